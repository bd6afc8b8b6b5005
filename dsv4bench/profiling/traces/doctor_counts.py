"""Rules of the doctor on what is missing in a trace, so that counts or their places cannot be trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import KERNEL, MARK, NO_ID, PUSH_POP, START_END, Trace
from dsv4bench.profiling.traces.graph_chain import captured_at
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.profiling.traces.ranges_of import graph_launch_rows, kernel_launches, matching
from dsv4bench.ranges import PREFIX
from dsv4bench.results.reviews import Finding
from dsv4bench.units import format_ns

Flags = npt.NDArray[np.bool_]
Rule = Callable[[Placed], Finding | None]

NSYS = "nsys profile -t cuda,nvtx --cuda-graph-trace=node -o trace COMMAND, with the capture of the graph inside"
TORCH = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) around whole steps"
LEDGER = "--ledger RECORDS, the records of the run that made this trace: they hold what was captured"
_KERNEL_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel|ModuleLaunchKernel")
_LOSES = re.compile(r"\b(cut|ends early|is damaged|lost|dropped|truncated|left out|may be missing)\b")


def repaired(placed: Placed) -> Finding | None:
    """Find what had to be mended to read the file; where something was lost, counts are too small."""
    repairs = placed.trace.repairs
    if not repairs:
        return None
    wrong = any(_LOSES.search(one) for one in repairs)
    return Finding("repaired", wrong, "; ".join(repairs), {"repairs": len(repairs)}, _again(placed.trace))


def graph_mode_hides_kernels(placed: Placed) -> Finding | None:
    """Find graphs that were traced as wholes: their kernels are not in the file."""
    runs = placed.trace.graph_runs
    if not len(runs):
        return None
    time_ns = int((runs["end_ns"] - runs["start_ns"]).sum())
    text = f"{len(runs)} graph replays ({format_ns(time_ns)}) are one row each: how many kernels ran in them is unknown"
    evidence = {"graph_runs": len(runs), "graph_ns": time_ns, "kernel_rows": len(placed.rows)}
    return Finding("graph-mode-hides-kernels", True, text, evidence, NSYS)


def collected_but_absent(placed: Placed) -> Finding | None:
    """Find files that say that CUDA was traced and hold no kernel, nor a call of CUDA's."""
    trace = placed.trace
    said = trace.facts.get("collected", "")
    if "cuda" not in said.lower() or {"kernels", "copies", "sets", "launches"} & trace.recorded:
        return None
    text = (
        f"the file says that CUDA was collected ({said}) and has no table of it: an importer older than nsys, perhaps"
    )
    return Finding("collected-but-absent", True, text, {"collected": said}, "nsys export of the version that recorded")


def kernels_not_recorded(placed: Placed) -> Finding | None:
    """Find traces of the host alone."""
    trace = placed.trace
    if "kernels" in trace.recorded or len(trace.graph_runs) or collected_but_absent(placed) or capture_not_run(placed):
        return None
    launches, command = _kernel_calls(trace), _again(trace)
    text = f"no kernel was recorded, {launches} kernel launches were: what ran on the device is not known"
    if "launches" not in trace.recorded:
        without = "-t cuda" if trace.format == "nsys" else "ProfilerActivity.CUDA"
        where = "" if trace.devices else "on a CPU or "
        text = f"no device operation is in it, nor a call that launches one: recorded {where}without {without}"
        command = command if trace.devices else f"on a GPU: {command}"
    return Finding("kernels-not-recorded", True, text, {"kernel_launches": launches}, command)


def capture_not_run(placed: Placed) -> Finding | None:
    """Find traces of a graph's capture in which nothing ran, neither the graph nor a kernel outside of it."""
    outside = int(kernel_launches(placed.trace).sum()) + len(graph_launch_rows(placed.trace))
    inside = _kernel_calls(placed.trace) - int(kernel_launches(placed.trace).sum())
    if not inside or outside or (placed.rows["kind"] == KERNEL).any():
        return None
    text = f"this is a capture: {inside} launches into a graph being captured, and no kernel that ran"
    return Finding("capture-not-run", True, text, {"captured_launches": inside, "kernels": 0}, _again(placed.trace))


def launches_without_kernels(placed: Placed) -> Finding | None:
    """Find launches of kernels and graphs, outside of captures, of which the file has no operation."""
    trace = placed.trace
    if "kernels" not in trace.recorded:
        return None
    kernels, graphs = placed.coverage.lost, _empty_graphs(placed)
    if not kernels and not graphs:
        return None
    parts = [f"{count} {what}" for count, what in ((kernels, "kernel launches"), (graphs, "graph launches")) if count]
    unclear = int((_unclear(placed) & (placed.rows["kind"].to_numpy() == KERNEL)).sum())
    few = "counts of the device are too small"
    then = f"{unclear} kernels may be theirs, whose launch cannot be told" if unclear else few
    text = f"{' and '.join(parts)} have no kernel in the file: {then}"
    evidence = {"kernel_launches": kernels, "graph_launches": graphs, "all_launches": len(trace.launches)}
    return Finding("launches-without-kernels", True, text, evidence, _again(trace))


def _empty_graphs(placed: Placed) -> int:
    """Return how many graph launches have no operation; a graph that is traced as a whole has none."""
    if len(placed.trace.graph_runs):
        return 0
    launch = placed.rows["launch"].to_numpy()
    ran = np.zeros(len(placed.trace.launches), dtype=np.bool_)
    ran[launch[launch != NO_ID]] = True
    return int((~ran[graph_launch_rows(placed.trace)]).sum())


def no_launch_rows(placed: Placed) -> Finding | None:
    """Find files of the device alone: which range launched a kernel is not known."""
    if len(placed.trace.launches) or not len(placed.rows):
        return None
    text = f"{len(placed.rows)} operations and no call that launched them: ranges and steps cannot be told"
    return Finding("no-launch-rows", False, text, {"operations": len(placed.rows)}, _again(placed.trace))


def kernels_without_launch(placed: Placed) -> Finding | None:
    """Find operations whose launch is not in a file that has launches, or cannot be told among several."""
    alone = placed.rows["launch"].to_numpy() == NO_ID
    if not alone.any() or not len(placed.trace.launches):
        return None
    unclear = int((alone & _unclear(placed)).sum())
    parts = (
        (int(alone.sum()) - unclear, "launched before the recording began, or by calls that it skipped"),
        (unclear, "that name no launch, or several"),
    )
    said = ", ".join(f"{count} {what}" for count, what in parts if count)
    text = f"{int(alone.sum())} of {len(placed.rows)} operations have no launch in the file: {said}"
    evidence = {"operations": len(placed.rows), "without_launch": int(alone.sum()), "unclear": unclear}
    return Finding("kernels-without-launch", False, text, evidence, _again(placed.trace))


def _unclear(placed: Placed) -> Flags:
    """Return which operations have no correlation id, no process, or an id that several launches had."""
    names = ["process", "correlation"]
    keys = pd.MultiIndex.from_frame(placed.rows[names])
    several = keys.isin(pd.MultiIndex.from_frame(placed.trace.launches[names]))
    nameless = (placed.rows[names] == NO_ID).any(axis=1).to_numpy()
    return np.asarray((placed.rows["launch"].to_numpy() == NO_ID) & (nameless | several))


def capture_before_window(placed: Placed) -> Finding | None:
    """Find replayed operations that no range is known for, since their capture is not in the file."""
    unplaced = _not_captured(placed)
    if not unplaced:
        return None
    replayed = int(placed.rows["in_graph"].sum())
    text = f"{unplaced} of {replayed} replayed operations have no range: the capture of their graph is not in the file"
    evidence = {"replayed": replayed, "without_range": unplaced}
    ours = any(name.startswith(PREFIX) for name in placed.trace.strings)
    return Finding("capture-before-window", False, text, evidence, LEDGER if ours else NSYS)


def _not_captured(placed: Placed) -> int:
    """Return how many replayed operations have no place and no capture in the file; others' lies in no range."""
    captured = len(captured_at(placed.trace).operation) if placed.coverage.in_graphs else 0
    return min(placed.coverage.in_graphs, int(placed.rows["in_graph"].sum()) - captured)


def incomplete_attribution(placed: Placed) -> Finding | None:
    """Find operations outside of every range, in files that have ranges."""
    cover = placed.coverage
    outside = cover.unattributed + cover.in_graphs - _not_captured(placed)
    if not outside + cover.ambiguous or not cover.attributed:
        return None
    missing = outside + cover.ambiguous
    text = f"{missing} of {cover.total} operations lie in no range that names a layer or an operation"
    evidence = {"unattributed": outside, "ambiguous": cover.ambiguous, "operations": cover.total}
    return Finding("incomplete-attribution", False, text, evidence, "ranges around all that launches, or --map FILE")


def start_end_unused(placed: Placed) -> Finding | None:
    """Find NVTX start/end ranges that alone could tell places, and were not asked for."""
    kinds = placed.trace.annotations["kind"]
    count = int((kinds == START_END).sum())
    if not count or (kinds == PUSH_POP).any() or placed.coverage.attributed:
        return None
    text = f"all {count} ranges are start/end ranges, which hold nothing unless asked for"
    return Finding("start-end-unused", False, text, {"ranges": count}, "trace review --nvtx-kind start-end")


def unclosed_ranges(placed: Placed) -> Finding | None:
    """Find ranges that were never closed."""
    ranges = placed.trace.annotations
    count = int(((ranges["end_ns"] == NO_ID) & (ranges["kind"] != MARK)).sum())
    if not count:
        return None
    text = f"{count} ranges were never closed and are taken to last to the end"
    return Finding("unclosed-ranges", False, text, {"ranges": count}, "close every range before the recording ends")


def one_of_n_processes(ranks: Sequence[Placed]) -> Finding | None:
    """Find traces of some ranks of a distributed run; each rank's trace says how many there are."""
    traces = [placed.trace for placed in ranks]
    told = [value for trace in traces for name, value in trace.facts.items() if name.endswith("world_size")]
    size = max((int(value) for value in told if value.isdecimal()), default=0)
    known = len(traces) if len(traces) > 1 else len(traces[0].processes)
    if size < 2 or known >= size:
        return None
    alone = "one rank" if traces[0].rank is None else f"rank {traces[0].rank}"
    which = f"this is {alone}" if len(traces) == 1 else f"these are {len(traces)} ranks"
    text = f"{which} of {size}: a step takes as long as its slowest rank"
    return Finding("one-of-N-processes", False, text, {"world_size": size}, "trace review FOLDER, of all ranks")


def api_calls_skipped(placed: Placed) -> Finding | None:
    """Find recordings that left out calls of the API, in files that lack launches."""
    if placed.trace.facts.get("api_calls_skipped") != "true" or not (placed.rows["launch"] == NO_ID).any():
        return None
    text = "the recording skipped some API calls: the launches that are missing may be among them"
    return Finding("api-calls-skipped", False, text, {}, "nsys profile --cuda-trace-all-apis=true")


def profiler_warnings(placed: Placed) -> Finding | None:
    """Find what the profiler itself complained of."""
    lines = placed.trace.facts.get("warnings", "").splitlines()
    if not lines:
        return None
    text = f"the profiler warns: {'; '.join(lines[:3])}"
    return Finding("profiler-warnings", False, text, {"warnings": len(lines)}, _again(placed.trace))


def _kernel_calls(trace: Trace) -> int:
    """Return how many calls launch a kernel, also those into a capture."""
    return int(matching(trace, trace.launches["name"].to_numpy(), _KERNEL_LAUNCH).sum())


def _again(trace: Trace) -> str:
    """Return how to record such a trace again, with the same tool."""
    return NSYS if trace.format == "nsys" else TORCH


COUNT_RULES: tuple[Rule, ...] = (
    repaired,
    graph_mode_hides_kernels,
    collected_but_absent,
    kernels_not_recorded,
    capture_not_run,
    launches_without_kernels,
    no_launch_rows,
    kernels_without_launch,
    capture_before_window,
    incomplete_attribution,
    start_end_unused,
    unclosed_ranges,
    api_calls_skipped,
    profiler_warnings,
)
