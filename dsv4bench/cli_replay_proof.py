"""What `dsv4bench check replay` does after parsing: choose buckets, prove the graphs of every variant, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from dsv4bench.cli import FAILED, INTERRUPTED, OK
from dsv4bench.dashboards.proof_table import proof_table
from dsv4bench.dashboards.render import show_tables
from dsv4bench.errors import UsageError, nearest
from dsv4bench.profiling.replay_proof import prove
from dsv4bench.results.proofs import Proof
from dsv4bench.workloads.buckets import buckets
from dsv4bench.workloads.options import PrefillArguments, prefill_options, resolve_device
from dsv4bench.workloads.replay_batches import LEAST_ROWS

FORMATS = ("table", "md", "csv", "json")
EVERY = "all"
CPU_BUCKETS, GPU_BUCKETS = "8,64", "8,256,8192"


def run_replay_proof(typed: PrefillArguments, sizes: str, form: str, quiet: bool) -> int:
    """Print the proofs of the buckets `sizes` of every variant of `typed`; return the exit code."""
    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected one of {', '.join(FORMATS)}{nearest(form, FORMATS)}")
    meant = prefill_options(replace(typed, buckets=_listed(sizes, typed.device)))
    if meant.buckets[0] < LEAST_ROWS:
        raise UsageError(
            f"--buckets {sizes}: {meant.buckets[0]} rows cannot hold three requests; expected {LEAST_ROWS} or more"
        )
    found: list[Proof] = []
    try:
        found.extend(prove(meant, _silent if quiet else _tell))
    except KeyboardInterrupt:
        _show(found, form)
        _tell(f"interrupted: {'1 variant was' if len(found) == 1 else f'{len(found)} variants were'} checked")
        return INTERRUPTED
    _show(found, form)
    return OK if all(proof.holds for proof in found) else FAILED


def _listed(sizes: str, device: str) -> str:
    """Return the list of buckets: as typed, all of specification 6.6, or what a device is given by default."""
    if sizes.strip() == EVERY:
        return ",".join(map(str, buckets()))
    return sizes or (CPU_BUCKETS if resolve_device(device) == "cpu" else GPU_BUCKETS)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silent(line: str) -> None:
    """Say nothing."""


def _show(found: Sequence[Proof], form: str) -> None:
    if form == "json":
        print(json.dumps([proof.plain() for proof in found], indent=1))
    else:
        show_tables([proof_table(proof) for proof in found], form, sys.stdout)
