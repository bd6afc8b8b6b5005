"""Count one small step in every way that this device has, so that the counters can be held against each other.

On a GPU: the calls, a profiler over an eager step, the capture ledger, a profiler over a replay, and Triton's own hook.
On a CPU the calls, eagerly and on a tape. The layer map says how many there must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch

from dsv4bench.errors import CaptureError, UsageError
from dsv4bench.profiling.capture import Listeners, capture_breakable, tape_breakable, warm_up
from dsv4bench.profiling.counting import Counts, GraphCounter, count_on_cpu, profile_eager, why_not_captured
from dsv4bench.profiling.graph_annotations import ANNOTATED, load_graph_annotations
from dsv4bench.profiling.graphs import Pool, open_pool, padded_plan
from dsv4bench.profiling.ledger import DEVICE_METRICS, OUTSIDE_OPS, CallLedger, Ledger
from dsv4bench.profiling.replay_match import Replayed, match_replay
from dsv4bench.profiling.traces.attribute import attribute
from dsv4bench.profiling.traces.columns import KERNEL, Trace
from dsv4bench.profiling.triton_hook import TritonLaunches
from dsv4bench.ranges import Silent
from dsv4bench.results.agreement import Agreement, Key, Source, Values
from dsv4bench.results.ledger_table import Graph, Node, kernel_name
from dsv4bench.workloads.break_forms import form_of
from dsv4bench.workloads.cells import Cell, cells
from dsv4bench.workloads.expected_calls import expected_calls
from dsv4bench.workloads.memory import free_bytes, refuse_too_large
from dsv4bench.workloads.options import PrefillOptions
from dsv4bench.workloads.prefill import prepare
from dsv4bench.workloads.providers import parse, refuse_absent
from dsv4bench.workloads.step import Piece, Step
from dsv4bench.workloads.weights import Model, make_model

EXPECTED, EAGER, GRAPH = "layer map", "calls", "calls, graph"
PROFILER, LEDGER, REPLAY = "profiler, eager", "capture ledger", "profiler, replay"
HOOK, HOOK_GRAPH, HOOK_REPLAY = "Triton hook, eager", "Triton hook, capture", "Triton hook, replay"
TRITON, TRITON_GRAPH, TRITON_BREAKS = "Triton kernels, eager", "Triton kernels, captured", "Triton kernels, breaks"
TORCH, NODES = "torch's annotations", "kernels and copies of the ledger"
ON_A_CPU = "the profiler, the capture ledger and Triton's hook need a GPU; here a tape stands for the graph"
# a hook that Triton called on a replay too would count the segments again
EQUAL = (
    (EXPECTED, EAGER, GRAPH),
    (LEDGER, REPLAY),
    (HOOK, TRITON, HOOK_GRAPH, TRITON_GRAPH),
    (HOOK_REPLAY, TRITON_BREAKS),
    (TORCH, NODES),
)
EQUAL_BUT_PRODUCTS = ((PROFILER, LEDGER),)
ONE = ("kernels",)


def check_all(options: PrefillOptions) -> list[Agreement]:
    """Check every graph cell that was asked for; UsageError where a GPU's graphs cannot be read or memory is short."""
    device = torch.device(options.device)
    reason = why_not_captured() if device.type == "cuda" else None
    if reason is not None:
        raise UsageError(f"--device {device.type}: {reason}")
    groups, found = cells(options), list[Agreement]()
    refuse_too_large(groups, free_bytes(options.device))
    for geometry, same in groupby((cell for group in groups for cell in group), key=lambda cell: cell.geometry):
        model = make_model(geometry, device, options.seed)
        found += [check_counters(cell, model, device) for cell in same]
    return found


def check_counters(cell: Cell, model: Model, device: torch.device) -> Agreement:
    """Run one forward of a graph cell, whose rows fill their bucket, and return what each way of counting found.

    CellSkipped where the cell's provider is not there.
    """
    refuse_absent(parse(cell.variant.provider, device.type), device.type)
    plan, _ = padded_plan((cell,))
    variant = cell.variant
    prefill = prepare(model, variant, plan, variant.compressor == "torch", form_of(variant).copies)
    step, forward = prefill.step(variant), next(prefill.all_forwards())
    expected = {key: (count,) for key, count in expected_calls(cell.geometry, forward.batch, variant).items()}
    with torch.no_grad():
        step.load(forward)
        pieces = step.padded_pieces(forward, form_of(variant))
        pool = open_pool(device)
        if pool is not None:
            return _on_gpu(cell, step, pieces, pool, Source(EXPECTED, expected))
        return _on_cpu(cell, step, pieces, Source(EXPECTED, expected))


def _on_cpu(cell: Cell, step: Step, pieces: Sequence[Piece], expected: Source) -> Agreement:
    eager = count_on_cpu(step, pieces, "eager")
    ledger = Ledger()
    step.ops.mark = calls = CallLedger(ledger)
    try:
        tape_breakable(pieces, step.ops, Listeners(on_piece=calls.hear))
    finally:
        step.ops.mark = Silent()
    sources = (expected, _rows(EAGER, eager.rows, ("calls",)), _rows(GRAPH, ledger.rows(), ("calls",)))
    return Agreement(_cell(cell), sources, EQUAL[:1], absent=(ON_A_CPU,))


def _on_gpu(cell: Cell, step: Step, pieces: Sequence[Piece], pool: Pool, expected: Source) -> Agreement:
    hook = TritonLaunches()
    warm_up(pieces, pool.stream)
    with hook.listening():
        calls, eager = profile_eager(step, pieces, hook)
        hooked = hook.take()
        with GraphCounter(step, hook) as counter:
            captured = capture_breakable(pieces, pool.stream, pool.handle, counter.listeners)
        hooked_at_capture = hook.take()
        trace = counter.profile(captured)
    counts, replayed = counter.count(trace), match_replay(trace, counter.graphs)
    named, named_breaks = _named(eager, hook.names), _named(trace, hook.names)
    annotated, absent = _annotated(step, pieces, pool, counter.graphs)
    sources = (
        expected,
        _rows(EAGER, calls.rows(), ("calls",)),
        _rows(GRAPH, counts.rows, ("calls",)),
        _rows(PROFILER, attribute(eager).ledger.rows(), DEVICE_METRICS),
        _rows(LEDGER, counts.rows, DEVICE_METRICS),
        _added(REPLAY, _rows("", attribute(trace, "break").ledger.rows(), DEVICE_METRICS), _replayed(replayed)),
        _launches(HOOK, hooked),
        _launches(HOOK_GRAPH, hooked_at_capture),
        _launches(HOOK_REPLAY, hook.take()),
        _rows(TRITON, attribute(named).ledger.rows(), ONE),
        _added(TRITON_GRAPH, _breaks(named_breaks), _captured(counter.graphs, hook.names)),
        replace(_breaks(named_breaks), name=TRITON_BREAKS),
        *annotated,
    )
    other = (*_other(counts, replayed), *_deaf(step, hook))
    return Agreement(_cell(cell), sources, EQUAL, EQUAL_BUT_PRODUCTS, absent, other)


def _annotated(
    step: Step, pieces: Sequence[Piece], pool: Pool, graphs: Sequence[Graph]
) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """Capture once more for torch's own annotations; return them beside the ledger's nodes, or why there are none."""
    annotations = load_graph_annotations()
    if isinstance(annotations, str):
        return (), (annotations,)
    step.ops.mark = annotations
    try:
        capture_breakable(pieces, pool.stream, pool.handle, Listeners(graphs=annotations))
    except CaptureError as error:
        return (), (f"torch's own graph annotations: {error}",)
    finally:
        step.ops.mark, found = Silent(), annotations.take()
    nodes = (node for graph in graphs for node in graph if node.metric in ANNOTATED and node.placed)
    return (_launches(TORCH, found), _launches(NODES, Counter(map(_key, nodes)))), ()


def _cell(cell: Cell) -> dict[str, Any]:
    switches = cell.variant.switches()
    return {"geometry": cell.geometry.name, "rows": cell.load.rows, **switches}


def _other(counts: Counts, replayed: Replayed) -> Iterator[str]:
    """Yield what is wrong with the counts as a whole."""
    if counts.disagreement:
        yield counts.disagreement
    coverage = counts.coverage or {}
    for name in ("unattributed", "ambiguous", "lost"):
        if coverage.get(name):
            yield f"{coverage[name]} operations of the replay {name}"
    yield from replayed.why


def _deaf(step: Step, hook: TritonLaunches) -> Iterator[str]:
    """Yield a sentence where the hook heard nothing of kernels that Triton launches: no launches equal no launches."""
    ours = [name for name, who in sorted(step.ops.ran_on.items()) if {"triton", "gluon"} & set(who.split(", "))]
    if ours and not hook.names:
        yield f"Triton's hook heard no launch, though {', '.join(ours)} ran on Triton"


def _rows(name: str, rows: Iterable[Mapping[str, Any]], metrics: tuple[str, ...]) -> Source:
    """Return count rows as a source, wherever they ran."""
    found: dict[Key, Values] = {}
    for row in rows:
        _add(found, (row["op"], row["kv_source"]), tuple(int(row[one] or 0) for one in metrics))
    return Source(name, {key: values for key, values in found.items() if any(values)})


def _add(found: dict[Key, Values], key: Key, values: Values) -> None:
    before = found.get(key, (0,) * len(values))
    found[key] = tuple(one + other for one, other in zip(before, values, strict=True))


def _added(name: str, *parts: Source) -> Source:
    found: dict[Key, Values] = {}
    for part in parts:
        for key, values in part.counts.items():
            _add(found, key, values)
    return Source(name, found)


def _launches(name: str, counts: Counter[Key]) -> Source:
    return Source(name, {key: (count,) for key, count in counts.items()})


def _replayed(replayed: Replayed) -> Source:
    """Return what records of a replay found their node, by the node's place and their own class."""
    found: dict[Key, Values] = {}
    for one in replayed.matched:
        if one.node is not None and one.attributed:
            _add(found, _key(one.node), tuple(int(one.operation.metric == each) for each in DEVICE_METRICS))
    return Source("", found)


def _captured(graphs: Iterable[Graph], names: set[str]) -> Source:
    """Return the captured nodes of kernels with these names."""
    nodes = (node for graph in graphs for node in graph if node.metric == "kernels" and node.name in names)
    return _launches("", Counter(map(_key, nodes)))


def _key(node: Node) -> Key:
    return node.op or OUTSIDE_OPS, node.kv_source


def _named(trace: Trace, names: set[str]) -> Trace:
    """Return a trace with the kernels of these names alone."""
    wanted = trace.names(trace.operations["name"]).map(lambda name: kernel_name(name) in names)
    return replace(trace, operations=trace.operations[wanted & (trace.operations["kind"] == KERNEL)])


def _breaks(trace: Trace) -> Source:
    return _rows("", attribute(trace, "break").ledger.rows(), ONE)
