"""`--shard 2/4`: the share of a plan that a process runs, and the folder that it writes to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsv4bench.results.shard_folders import begun_shard, new_shard
from dsv4bench.results.store import begun_directory, new_directory, run_directory
from dsv4bench.units import format_count
from dsv4bench.workloads.shard import Shard


def share_words(shard: Shard, plan: Sequence[object], share: Sequence[object]) -> str:
    """Return the line that says how much of a plan a shard runs, e.g. "shard 2/4: 7 of 27 groups"."""
    return f"shard {shard}: {len(share) or 'none'} of {format_count(len(plan), 'group')}"


def directory_of(name: str, out: Path | None, resume: Path | None, shard: Shard | None) -> Path:
    """Return the folder of a run called `name`, new or resumed; a shard has one of its own in it."""
    if shard is None:
        return begun_directory(resume) if resume else new_directory(out or run_directory(name))
    if resume:
        return begun_shard(resume, shard.number, shard.count)
    return new_shard(out or run_directory(name), shard.number, shard.count)
