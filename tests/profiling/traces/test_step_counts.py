"""The rows that expectations are held against, of traces of an H200 and of the records of the same runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.open_trace import open_trace
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.profiling.traces.step_counts import count_steps, sources_told
from dsv4bench.results.counts import operations
from dsv4bench.results.ledger_table import read_ledger
from dsv4bench.results.store import read_records
from tests.profiling.traces.timed_steps import OURS, Timed

FOLDER = Path(__file__).parents[2] / "data" / "traces"
DEVICE = ("kernels", "copies", "sets")
ALL = frozenset({"kernels", "copies", "sets", "launches", "annotations"})


def placed(trace, graphs=()):
    found = ranges_of(trace)
    return place(found, label(trace, found, graphs=graphs))


def steps_of(one, sources=True, variant=None):
    return count_steps(one, one.told, sources, variant or {})


def only(made):
    """The one step of a trace made by hand."""
    (step,) = steps_of(placed(made.trace()))
    return step


@pytest.mark.parametrize("suffix", [".sqlite", ".json.gz"])
@pytest.mark.parametrize("mode", ["eager", "breakable"])
def test_a_recorded_step_has_the_rows_of_its_record(mode, suffix):
    (record,) = [
        one for one in read_records(FOLDER / "records.jsonl").records if one.variant["graph"] is (mode != "eager")
    ]
    graphs = read_ledger(record.capture_ledger) if record.capture_ledger and suffix == ".json.gz" else ()
    (trace,) = open_trace(FOLDER / f"{mode}{suffix}")
    (step,) = steps_of(placed(trace, graphs))
    expected = {
        (row["op"], row["kv_source"], row["where"]): [*(row[name] for name in DEVICE), operations(row["op"], row)]
        for row in record.counts
    }
    assert {
        (row["op"], row["kv_source"], row["where"]): [*(row[name] for name in DEVICE), row["operations"]]
        for row in step.counts
    } == expected
    assert step.coverage == {"unattributed": 0}
    assert step.variant == {"graph": mode != "eager"}
    assert step.total == sum(row[name] for row in step.counts for name in DEVICE)


def in_layer(op, *kernels, text=OURS):
    """A step that launches kernels, copies and sets (by their names) in one range of layer 8."""
    made = Timed().range("step0", 0, 9_000)
    made.range(f"dsv4bench:layer=8 ratio=2 kv_source=8{op and f' op={op}'}", 100, 8_000)
    for at, name in enumerate(kernels):
        kind = {"Memcpy": "copy", "Memset": "set"}.get(name, "kernel")
        made.launched(name, 200 + 100 * at, 300 + 100 * at, 350 + 100 * at, kind=kind)
    return made


@pytest.mark.parametrize(
    ("op", "kernels", "row"),
    [
        ("store", ["_store", "Memcpy", "Memset"], ("store", 1, 1, 1, 3)),
        ("index_k_proj", ["nvjet_a", "cublasLt::splitKreduce_kernel", "Memset"], ("index_k_proj", 2, 0, 1, 1)),
        ("index_k_proj", ["nvjet_a", "nvjet_b"], ("index_k_proj", 2, 0, 0, 2)),
        ("index_k_proj", ["nvjet_a", "quantise"], ("index_k_proj", 2, 0, 0, None)),
        ("index_k_proj", ["cublasLt::splitKreduce_kernel"], ("index_k_proj", 1, 0, 0, None)),
        ("", ["quantise", "Memcpy"], ("other", 1, 1, 0, 2)),
        ("", ["vectorized<FillFunctor>"], ("other", 1, 0, 0, 1)),
    ],
    ids=["every-class", "a-product-in-parts", "two-products", "a-product-and-more", "a-part", "other", "a-fill"],
)
def test_a_row_counts_each_class_and_products_as_one(op, kernels, row):
    step = only(in_layer(op, *kernels))
    (found,) = step.counts
    assert (found["op"], *(found[name] for name in DEVICE), found["operations"]) == row
    assert (found["kv_source"], found["where"], step.unplaced) == (8, "eager", {})


@pytest.mark.parametrize(
    ("about", "numbers"),
    [
        ({"format": "kineto"}, [1, None, 0, None]),
        ({"format": "nsys"}, [1, 0, 0, 1]),  # which makes no table of what did not happen
        ({"format": "nsys", "repairs": ("one table is damaged",)}, [1, None, 0, None]),
    ],
    ids=["torch.profiler", "nsys", "a-damaged-file"],
)
def test_what_was_not_recorded_is_not_zero(about, numbers):
    trace = replace(in_layer("store", "_store").trace(ALL - {"copies"}), **about)
    ((found,),) = [step.counts for step in steps_of(placed(trace))]
    assert [found[name] for name in (*DEVICE, "operations")] == numbers


def foreign(*kernels):
    """A step of a layer of somebody else's, whose ranges tell no operation of ours."""
    made = Timed().range("step0", 0, 9_000).range("model.layers.8.self_attn", 100, 8_000)
    for at, name in enumerate(kernels):
        made.launched(name, 200 + 100 * at, 300 + 100 * at, 350 + 100 * at)
    return made


def test_a_name_that_says_not_which_operation_is_no_place():
    step = only(foreign("_dequant", "_store", "sparse_attention", "_rms_norm", "void elementwise<3>(int)"))
    # by name a norm may be any, and a word of another program's is none of the step's operations
    assert step.unplaced == {"_rms_norm": 1, "elementwise": 1, "_dequant": 1, "_store": 1, "sparse_attention": 1}


def test_without_asking_for_sources_an_operation_is_place_enough():
    one = placed(foreign("_dequant", "sparse_attention", "_rms_norm").trace())
    (step,) = steps_of(one, sources=False)
    assert step.unplaced == {"_rms_norm": 1}
    assert not sources_told(one)


def test_a_step_without_operations_has_a_row_of_zeros():
    made = in_layer("store", "_store").range("step1", 20_000, 21_000)
    first, second = steps_of(placed(made.trace()))
    assert (first.number, second.number) == (0, 1)
    assert [second.counts[0][name] for name in ("op", *DEVICE, "operations")] == [None, 0, 0, 0, 0]


def test_a_trace_without_steps_is_one_without_a_number():
    made = Timed().range(OURS.format(layer=2, source=2), 0, 900).launched("_dequant", 10, 100, 200)
    step = only(made)
    assert (step.number, step.counts[0]["kernels"]) == (None, 1)
