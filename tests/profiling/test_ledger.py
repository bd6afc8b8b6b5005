from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.ledger import DEVICE_METRICS, METRICS, WHERES, CallLedger, Ledger
from dsv4bench.ranges import Range

DEQUANT = Range(layer=3, ratio=2, kv_source=2, op="dequant_compressed")
COMBINE = Range(layer=3, ratio=2, kv_source=2, op="combine")


def filled(*entries):
    ledger = Ledger()
    for entry in entries:
        ledger.add(*entry)
    return ledger


def test_steps_and_layers_of_one_op_and_source_are_one_row():
    ledger = filled(
        (DEQUANT, "eager", "kernels"),
        (replace(DEQUANT, step=5), "eager", "kernels", 2),
        (replace(DEQUANT, layer=4), "eager", "kernels", 4),
    )
    assert len(list(ledger.entries())) == 2  # the step is no part of a key, the layer is
    assert [(row["op"], row["kv_source"], row["kernels"]) for row in ledger.rows()] == [("dequant_compressed", 2, 7)]


def test_what_nobody_counted_is_none_and_what_was_counted_but_absent_is_zero():
    ledger = filled((DEQUANT, "break", "calls"), (DEQUANT, "segment", "copies"), (COMBINE, "eager", "calls"))
    ledger.declare("eager", "kernels")
    assert [tuple(row.values()) for row in ledger.rows()] == [
        ("combine", 2, "eager", 1, 0, None, None, None),
        ("dequant_compressed", 2, "segment", None, None, 1, None, None),
        ("dequant_compressed", 2, "break", 1, None, None, None, None),
    ]
    assert list(ledger.rows()[0]) == ["op", "kv_source", "where", "calls", "kernels", "copies", "sets", "aten_ops"]


def test_rows_are_sorted_by_op_source_and_where():
    sources = [Range(op="b", kv_source=20), Range(op="b", kv_source=8), Range(op="b"), Range(op="a", kv_source=8)]
    ledger = filled(*[(rng, where, "calls") for rng in sources for where in reversed(WHERES)])
    assert [(row["op"], row["kv_source"]) for row in ledger.rows()][::3] == [("a", 8), ("b", None), ("b", 8), ("b", 20)]
    assert [row["where"] for row in ledger.rows()][:3] == ["eager", "segment", "break"]


def test_what_has_no_operation_is_shown_as_other_and_what_has_no_range_is_in_no_row():
    ledger = filled(
        (Range(layer=1), "eager", "kernels", 3), (None, "eager", "kernels", 2), (DEQUANT, "eager", "kernels")
    )
    assert [(row["op"], row["kernels"]) for row in ledger.rows()] == [("dequant_compressed", 1), ("other", 3)]
    assert (ledger.total("kernels"), ledger.unattributed("kernels"), ledger.outside_ops("kernels")) == (6, 2, 3)


def test_a_range_with_graph_launches_only_makes_no_row():
    assert filled((Range(), "break", "graph_launches", 41)).rows() == []


def test_totals_can_be_taken_for_one_place():
    ledger = filled((DEQUANT, "eager", "kernels", 5), (DEQUANT, "break", "kernels", 2), (None, "break", "copies"))
    assert ledger.total("kernels", "copies", where="break") == 3


def test_merging_adds_counts_and_keeps_what_was_counted():
    calls, nodes = filled((DEQUANT, "segment", "calls", 6)), filled((DEQUANT, "segment", "kernels", 6))
    nodes.declare("segment", *DEVICE_METRICS)
    nodes.merge(calls)
    nodes.merge(calls)
    assert [(r["calls"], r["kernels"], r["copies"], r["aten_ops"]) for r in nodes.rows()] == [(12, 6, 0, None)]
    assert calls.total("calls") == 6


def test_another_source_may_disagree():
    ledger = filled((DEQUANT, "eager", "kernels", 5), (None, "eager", "kernels"), (DEQUANT, "eager", "copies"))
    assert ledger.disagreement({"kernels": 6, "copies": 1}) is None
    assert ledger.disagreement({"kernels": 7, "copies": 1, "sets": 2}) == "kernels 6, expected 7; sets 0, expected 2"


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError, match="no such metric: kernel; there are calls, kernels"):
        filled((DEQUANT, "eager", "kernel"))


ENTRIES = st.tuples(
    st.none() | st.builds(Range, layer=st.integers(0, 3), op=st.sampled_from(["a", "b", None])),
    st.sampled_from(WHERES),
    st.sampled_from(METRICS),
    st.integers(1, 9),
)


@given(st.lists(ENTRIES), st.lists(ENTRIES))
def test_ranges_and_unattributed_add_up_to_all_that_was_counted(first, second):
    ledger = filled(*first)
    ledger.merge(filled(*second))
    for metric in METRICS:
        total = sum(count for _, _, counted, count in first + second if counted == metric)
        in_ranges = sum(counts[metric] for rng, _, counts in ledger.entries() if rng is not None)
        assert in_ranges + ledger.unattributed(metric) == ledger.total(metric) == total


def test_calls_are_counted_where_the_piece_runs_once_per_range_with_an_operation():
    calls = CallLedger(Ledger())
    layer = Range(layer=3)
    for where in ("segment", "break", "break"):
        calls.hear(where)
        calls.enter(layer)
        calls.enter(DEQUANT)
        calls.exit(DEQUANT)
        calls.exit(layer)
    assert [(row["op"], row["where"], row["calls"]) for row in calls.ledger.rows()] == [
        ("dequant_compressed", "segment", 1),
        ("dequant_compressed", "break", 2),
    ]


def test_calls_are_eager_until_a_piece_says_otherwise():
    calls = CallLedger(Ledger())
    calls.enter(COMBINE)
    assert calls.ledger.total("calls", where="eager") == 1
