"""`--shard 2/4`: the share of a plan that a process runs, and the store that it writes to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsv4bench.results.shard_folders import open_shard, resume_shard
from dsv4bench.results.store import Store, open_store, resume_store, run_directory
from dsv4bench.units import format_count
from dsv4bench.workloads.shard import Shard


def share_words(shard: Shard, plan: Sequence[object], share: Sequence[object]) -> str:
    """Return the line that says how much of a plan a shard runs, e.g. "shard 2/4: 7 of 27 groups"."""
    return f"shard {shard}: {len(share) or 'none'} of {format_count(len(plan), 'group')}"


def store_of(name: str, out: Path | None, resume: Path | None, shard: Shard | None) -> Store:
    """Return the store of a run called `name`, new or resumed; a shard has a folder of its own in it."""
    if shard is None:
        return resume_store(resume) if resume else open_store(out or run_directory(name))
    if resume:
        return resume_shard(resume, shard.number, shard.count)
    return open_shard(out or run_directory(name), shard.number, shard.count)
