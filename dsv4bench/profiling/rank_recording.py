"""The record of a cell whose ranks are processes: that of rank 0, with what the others have to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsv4bench.profiling.launches import Launched, by_source
from dsv4bench.profiling.peers import exchange
from dsv4bench.profiling.rank_run import RankRun
from dsv4bench.profiling.slack import LEAST
from dsv4bench.results.counts import incomplete
from dsv4bench.results.ranks import exchange_times
from dsv4bench.results.record import Record
from dsv4bench.workloads.moe import GATHER, RETURN


def merged(run: RankRun, own: Sequence[Record]) -> list[Record]:
    """Return the records of a group as rank 0 keeps them, given this rank's; all ranks return the same."""
    ranks = exchange(run.peers, "records", list(own))
    seen = run.launched or [[]] * len(own)
    return [_merged(records, launched) for records, launched in zip(zip(*ranks, strict=True), seen, strict=True)]


def _merged(ranks: Sequence[Record], launched: Sequence[Launched]) -> Record:
    """Return rank 0's record with every rank's checks and flags, the most memory, and coverage that lacks something.

    The prediction is of the rank that saves most, as where ranks are simulated.
    """
    coverages = [record.coverage for record in ranks]
    others = list(enumerate(ranks))[1:]
    return replace(
        ranks[0],
        predicted=_largest_saving(ranks),
        rank_launches=[by_source(one.rows) for one in launched] or None,
        checks=[*ranks[0].checks, *(_of_rank(rank, check) for rank, one in others for check in one.checks)],
        flags=[*ranks[0].flags, *_own_flags(ranks)],
        memory=_most(ranks),
        device_time=with_exchange(ranks),
        coverage=next((one for one in coverages if incomplete(one)), coverages[0]),
    )


def _largest_saving(ranks: Sequence[Record]) -> dict[str, Any] | None:
    known = [record.predicted for record in ranks if record.predicted]
    return max(known, key=lambda one: one["saved_bytes"], default=None)


def with_exchange(ranks: Sequence[Record]) -> dict[str, Any] | None:
    """Return rank 0's device time, with how long each rank worked and waited where they exchange rows."""
    times = [record.device_time for record in ranks]
    own, known = times[0], [one for one in times if one]
    if own is None or len(known) < len(times):
        return own
    found = exchange_times([one["rows"] for one in known], (GATHER, RETURN))
    return own | {"exchange": found} if found else own


def _of_rank(rank: int, check: dict[str, Any]) -> dict[str, Any]:
    return check | {"name": f"{check['name']}, rank {rank}"}


def _own_flags(ranks: Sequence[Record]) -> list[str]:
    """Return the flags of the other ranks that rank 0 does not have."""
    found = ((rank, flag) for rank, one in enumerate(ranks) for flag in one.flags)
    return [f"rank {rank}: {flag}" for rank, flag in found if flag not in ranks[0].flags]


def _most(ranks: Sequence[Record]) -> dict[str, Any]:
    """Return the most that any rank used of each kind of memory, and the least that one had free, with its number."""
    found: dict[str, Any] = {}
    for record in ranks:
        for name, value in record.memory.items():
            known = [one for one in (found.get(name), value) if one is not None]
            found[name] = max(known) if known else None
    free = [(record.memory[LEAST], rank) for rank, record in enumerate(ranks) if LEAST in record.memory]
    return found | (dict(zip((LEAST, f"{LEAST.removesuffix('_bytes')}_rank"), min(free), strict=True)) if free else {})
