"""Times the ratio-2 compressor alone, torch path beside fused kernels, where the cells of a group have both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv4bench.profiling.alone import compressor_subject
from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.graphs import open_pool
from dsv4bench.profiling.timing import interleave

if TYPE_CHECKING:
    from dsv4bench.profiling.group import GroupRun


def time_compressors(group: GroupRun) -> None:
    """Time torch path and fused compressor alone, where a GPU's graph cells have both.

    Of ranks that are processes rank 0 does it, and no other has a part in it; so not where a step exchanges rows.
    """
    if group.exchanging or (group.session.peers is not None and group.session.peers.rank):
        return
    runs = [run for run in group.living(graph=True) if not run.full]
    if {run.cell.variant.compressor for run in runs} != {"torch", "fused"}:
        return
    pool = open_pool(group.session.device)
    if pool is None:
        return
    subjects = []
    for run in runs:
        step, forward = group.steps[run.key], group.counted(run)
        step.load(forward)
        run_pieces(group.graphs.pieces(run, step, forward))
        subjects.append(compressor_subject(step, forward.batch.rows, pool))
    found = [subject for subject in subjects if subject is not None]
    if found:
        for run, timing in zip(runs, interleave(found, group.session.clock, group.session.rule), strict=True):
            run.compressor = timing
