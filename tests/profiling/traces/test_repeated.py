"""Work done twice, inferred from traces: change R without reuse, the combines of a shared index source with it."""

import pytest

from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.profiling.traces.repeated import repeated
from dsv4bench.ranges import Range
from dsv4bench.workloads.geometry import V41_FLASH
from tests.profiling.traces.made_rows import Made
from tests.profiling.traces.made_step import UPSTREAM, step_ops, step_trace

# specification 1.2: layers of each source and its index sources
LAYERS = {2: 6, 8: 6, 14: 6, 20: 20}
INDEX_SOURCES = {2: 1, 8: 1, 14: 1, 20: 5}


def placed(trace, infer_from=None):
    found = ranges_of(trace)
    return place(found, label(trace, found, geometry=V41_FLASH, infer_from=infer_from))


def of_steps(reuse, steps=2, infer_from=None, **options):
    trace, _ = step_trace(list(step_ops(reuse=reuse)), steps=steps, **options)
    rows = repeated([placed(trace, infer_from)])
    assert {row.method for row in rows} <= {"inferred"}
    return {(row.op, row.kv_source): (row.kernels, row.repeated) for row in rows}


def expected(steps, *ops):
    firsts = {"combine": INDEX_SOURCES, "dequant_compressed": dict.fromkeys(LAYERS, 1)}
    return {
        (op, source): (steps * layers, steps * (layers - firsts[op][source]))
        for op in ops
        for source, layers in LAYERS.items()
    }


FOUND = {"off": ("combine", "dequant_compressed"), "on": ("combine",)}


@pytest.mark.parametrize("reuse", ["off", "on"])
def test_our_ranges_tell_what_is_repeated(reuse):
    assert of_steps(reuse) == expected(2, *FOUND[reuse])


@pytest.mark.parametrize("reuse", ["off", "on"])
def test_layers_that_were_inferred_from_upstream_kernels_tell_it_too(reuse):
    found = of_steps(reuse, ranges=False, names=UPSTREAM, infer_from=V41_FLASH)
    assert found == expected(2, *FOUND[reuse])


def kernels(*ops, names=None):
    """A trace of one kernel each for (layer, kv_source, op), in its own range."""
    made, names = Made(), names or {}
    for number, (layer, source, op) in enumerate(ops):
        at = 100 + 10 * number
        made.opened(Range(0, layer, 1, source, op).text(), at, at + 9)
        made.launched(at + 1, number + 1).ran(number + 1, names.get(layer, op), start_ns=10_000 + at)
    return placed(made.trace())


D, C, T = "dequant_compressed", "combine", "index_topk"
CASES = {
    "another layer of the source": ([(4, 20, D), (5, 20, D)], 1),
    "another source": ([(4, 2, D), (5, 20, D)], 0),
    "the same layer in another forward": ([(4, 20, D), (4, 20, D)], 0),
    "layers of two forwards": ([(4, 20, D), (5, 20, D), (4, 20, D), (5, 20, D)], 2),
    "the cache was written in between": ([(4, 20, D), (4, 20, "compress_c1"), (5, 20, D)], 0),
    "another source's cache was": ([(4, 20, D), (4, 2, "compress_c1"), (5, 20, D)], 1),
    "combine after one top-k": ([(4, 20, T), (4, 20, C), (5, 20, C)], 1),
    "combine after a new top-k": ([(4, 20, T), (4, 20, C), (5, 20, T), (5, 20, C)], 0),
    "combine where no top-k was recorded": ([(4, 20, C), (5, 20, C)], 0),
    "combine of no source": ([(0, None, T), (0, None, C), (1, None, C)], 0),
    "an operation on other inputs in every layer": ([(4, 20, "dequant_swa"), (5, 20, "dequant_swa")], 0),
}


@pytest.mark.parametrize(("ops", "count"), CASES.values(), ids=CASES)
def test_only_another_layer_with_no_writer_between_is_a_repetition(ops, count):
    assert sum(row.repeated for row in repeated([kernels(*ops)])) == count


def test_a_kernel_of_another_name_is_none():
    assert repeated([kernels((4, 20, D), (5, 20, D), names={4: "_dequant_a", 5: "_dequant_b"})]) == []


def test_ranks_are_added_and_each_step_stands_for_itself():
    ranks = [kernels((4, 20, D), (5, 20, D), (6, 20, D)), kernels((4, 20, D), (5, 20, D))]
    (row,) = repeated(ranks)
    assert (row.kernels, row.repeated, row.per_step) == (5, 3, (1, 2))
    each_ns = [one.trace.operations["end_ns"] - one.trace.operations["start_ns"] for one in ranks]
    assert row.time_ns == int(each_ns[0][1:].sum() + each_ns[1][1:].sum())


def test_a_trace_without_kernels_or_labels_repeats_nothing():
    assert repeated([placed(Made().trace())]) == []
