"""Rules of the doctor on times: what the counts do not suffer from, but whoever reads a duration does."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from dsv4bench.profiling.traces.columns import KERNEL, NO_ID, SET
from dsv4bench.profiling.traces.doctor_counts import TORCH
from dsv4bench.profiling.traces.idle import before_launch_ns, stable_order
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.profiling.traces.ranges_of import matching
from dsv4bench.results.reviews import Evidence, Finding, whole
from dsv4bench.units import format_ns, format_percent

Rule = Callable[[Placed], Finding | None]

SAME_IN_A_ROW = 20  # equal kernels with nothing between them: a benchmark's loop rather than a model
MOST = 0.5  # of a time: more than half
FILL_NAMES = re.compile(r"fill|memset|zero_", re.IGNORECASE)
ALONE = "under no profiler: times of a recording are not step times"


def clock_skew(placed: Placed) -> Finding | None:
    """Find operations that began before the call that launched them."""
    early_ns = before_launch_ns(placed.trace, placed.rows)
    count = int((early_ns > 0).sum())
    if not count:
        return None
    most = int(early_ns.max())
    text = f"{count} operations begin before their launch, by up to {format_ns(most)}: their clocks differ"
    evidence = {"operations": count, "most_ns": most}
    command = "use durations and counts only; the joins here go by correlation id, never by time"
    return Finding("clock-skew", False, text, evidence, command)


def overlap_on_one_stream(placed: Placed) -> Finding | None:
    """Find operations that overlap with the one before on their stream, as programmatic launches do."""
    rows = placed.rows
    if not len(rows):
        return None
    streams = rows.groupby(["process", "device", "stream"], sort=False).ngroup().to_numpy()
    order = stable_order(streams)  # operations are sorted by start
    ordered, streams = rows[["start_ns", "end_ns"]].iloc[order], streams[order]
    same = streams[1:] == streams[:-1]
    shared = ordered["end_ns"].to_numpy()[:-1] - ordered["start_ns"].to_numpy()[1:]
    count = int((same & (shared > 0)).sum())
    if not count:
        return None
    text = f"{count} operations overlap with the one before on one stream (programmatic launch): sums exceed busy time"
    evidence = {"operations": count, "most_ns": int(shared[same].max())}
    return Finding("overlap-on-one-stream", False, text, evidence, "read busy time beside the sum of kernels")


def zero_duration_kernels(placed: Placed) -> Finding | None:
    """Find kernels without a duration."""
    kernels = placed.rows[placed.rows["kind"] == KERNEL]
    none = kernels["end_ns"] <= kernels["start_ns"]
    if not none.any():
        return None
    at_zero = int((kernels["start_ns"][none] <= 0).sum())
    text = (
        f"{int(none.sum())} of {len(kernels)} kernels last no time ({at_zero} without a start): their time is not known"
    )
    evidence = {"kernels": int(none.sum()), "without_start": at_zero}
    return Finding("zero-duration-kernels", False, text, evidence, "a newer profiler: times of whole us round to 0")


def no_l2_flush(placed: Placed) -> Finding | None:
    """Find a kernel that ran many times in a row with nothing between: it found its data in the L2 cache."""
    rows = placed.rows
    ordered = rows[["name", "device", "kind"]].iloc[stable_order(rows["device"].to_numpy())]
    names, devices = ordered["name"].to_numpy(), ordered["device"].to_numpy()
    kernel = ordered["kind"].to_numpy() == KERNEL
    if len(names) < SAME_IN_A_ROW:
        return None
    new = np.concatenate([[True], (names[1:] != names[:-1]) | (devices[1:] != devices[:-1])])
    begins = np.flatnonzero(new)
    lengths = np.where(kernel[begins], np.diff(np.append(begins, len(names))), 0)
    longest = int(lengths.argmax())
    if lengths[longest] < SAME_IN_A_ROW:
        return None
    name = str(placed.trace.strings[names[begins[longest]]])
    text = (
        f"{name[:60]} runs {lengths[longest]} times in a row, with no flush of the L2 cache between: its times are hot"
    )
    evidence: Evidence = {"in_a_row": int(lengths[longest]), "kernel": name}
    return Finding(
        "no-l2-flush", False, text, evidence, "dsv4bench kernels times cold and hot, with a flush outside the window"
    )


def flush_in_step(placed: Placed) -> Finding | None:
    """Find steps of which most is a fill: a flush of the cache that must not count as the step's work."""
    rows = placed.rows[placed.rows["step"] != NO_ID]
    if not placed.steps.marked or not len(rows):
        return None
    fills = (rows["kind"].to_numpy() == SET) | matching(placed.trace, rows["name"].to_numpy(), FILL_NAMES)
    lasts = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    share = int(lasts[fills].sum()) / max(int(lasts.sum()), 1)
    if share <= MOST:
        return None
    text = f"{format_percent(share)} of the time in steps are {int(fills.sum())} fills: a flush inside the timed window"
    evidence = {"fills": int(fills.sum()), "share": round(share, 4)}
    return Finding("flush-in-step", False, text, evidence, "flush before the range of a step opens")


def launch_bound(placed: Placed) -> Finding | None:
    """Find devices that wait for their launches for more than half of the time."""
    waiting, span = (sum(getattr(step, name) or 0 for step in placed.told) for name in ("waiting_ns", "span_ns"))
    share = waiting / span if span else 0.0
    if share <= MOST:
        return None
    text = f"launch bound: the device waits for its next launch in {format_percent(share)} of the steps' time"
    evidence = {"waiting_ns": waiting, "span_ns": span}
    return Finding("launch-bound", False, text, evidence, ALONE)


def python_stacks_dominate(placed: Placed) -> Finding | None:
    """Find recordings with Python's stacks, which slow the host many times."""
    found = placed.trace.facts.get("python_functions", "")
    stacks, launches = int(found) if found.isdigit() else 0, len(placed.trace.launches)
    if stacks <= 2 * launches or not stacks:
        return None
    text = (
        f"{stacks} rows are Python calls, {launches} are launches: with_stack slows the host, so host times say nothing"
    )
    return Finding(
        "python-stacks-dominate",
        False,
        text,
        {"python_functions": stacks, "launches": launches},
        f"{TORCH}, with_stack=False",
    )


def cut_first_or_last(placed: Placed) -> Finding | None:
    """Find steps that the recording cut."""
    cut = [step for step in placed.told if step.cut]
    if not cut:
        return None
    text = "; ".join(f"step {step.number} is cut: {step.cut}" for step in cut)
    return Finding("cut-steps", False, text, {"cut": len(cut)}, "medians leave cut steps out; record whole steps")


def uneven_steps(placed: Placed) -> Finding | None:
    """Find whole steps that ran different numbers of kernels: one number per step would hide that."""
    steps = [step.kernels for step in whole(placed.told) if step.kernels is not None]
    if not placed.steps.marked or len(set(steps)) < 2:
        return None
    text = f"whole steps run between {min(steps)} and {max(steps)} kernels: they are not equal steps"
    return Finding(
        "uneven-steps", False, text, {"least": min(steps), "most": max(steps)}, "--steps A-B chooses equal ones"
    )


TIME_RULES: tuple[Rule, ...] = (
    clock_skew,
    overlap_on_one_stream,
    zero_duration_kernels,
    no_l2_flush,
    flush_in_step,
    launch_bound,
    python_stacks_dominate,
    cut_first_or_last,
    uneven_steps,
)
