"""What ranks launched: summed by kv_source, and the first difference between ranks that must launch the same."""

import pytest

from dsv4bench.profiling.counting import Counts
from dsv4bench.profiling.launches import Launched, by_source, launched, unlike

ROW = {"kv_source": 2, "where": "segment", "calls": 1, "kernels": 3, "copies": 0, "sets": 0}


def row(op="compress_c2", **changes):
    return {"op": op, **ROW, **changes}


def rank(*rows, bucket=8, live=True):
    return Launched(list(rows), bucket, live)


BREAK = row("dequant_swa", where="break", kernels=1)
SAME, IDLE = rank(row(), BREAK), rank(row(), live=False)


def test_counts_are_summed_by_operation_source_and_place():
    rows = [row(aten_ops=None), row(calls=2, aten_ops=None), row(where="break", kernels=None, aten_ops=5)]
    found = launched(Counts(rows, None), 8, True)
    assert found.rows == [
        row(calls=3, kernels=6),
        {"op": "compress_c2", "kv_source": 2, "where": "break", "calls": 1, "copies": 0, "sets": 0},
    ]
    assert launched(None, None, False) == Launched([], None, False)


def test_a_record_keeps_the_sums_of_each_source():
    rows = [row(), row("q_proj", kv_source=None, kernels=7), row("store", kernels=2), row("combine", kv_source=0)]
    assert [(one["kv_source"], one["calls"], one["kernels"]) for one in by_source(rows)] == [
        (0, 1, 3),
        (2, 2, 5),
        (None, 1, 7),
    ]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((SAME, SAME), None),
        ((SAME, IDLE), None),
        ((SAME, rank(bucket=None, live=False)), None),
        ((SAME, rank(row(kernels=4), BREAK)), "compress_c2 (kv_source 2, segment): 4 kernels on rank 1, 3 on rank 0"),
        ((SAME, SAME, rank(row(kernels=4), live=False)), "compress_c2 (kv_source 2, segment): 4 kernels on rank 2, 3"),
        ((SAME, rank(row(), row("index_key", kv_source=None), BREAK)), "index_key (segment): 1 calls on rank 1, 0 on"),
        ((SAME, rank(row(kernels=4), BREAK, bucket=16)), None),
        (
            (SAME, rank(row(), bucket=16, live=False), rank(row(kernels=4), bucket=16, live=False)),
            "compress_c2 (kv_source 2, segment): 4 kernels on rank 2, 3 on rank 1",
        ),
        ((rank(row("q_proj")), rank(row("q_proj", kernels=9))), None),
        ((SAME, rank(row(), row("dequant_swa", where="break", kernels=2))), None),
        ((SAME, rank(row(), {**BREAK, "calls": 2})), "dequant_swa (kv_source 2, break): 2 calls on rank 1, 1"),
        ((SAME, rank(row(), BREAK, row("zero_padding", where="break"))), None),
        ((rank(row(where="eager")), rank(row(where="eager", calls=2))), "compress_c2 (kv_source 2, eager): 2 calls on"),
        ((rank(row(where="eager")), rank(live=False)), None),
    ],
    ids=[
        "the same",
        "an idle rank has no breaks",
        "an idle rank sits an eager step out",
        "another kernel in the graph",
        "another kernel in an idle rank's graph",
        "one more operation in the graph",
        "another bucket is another graph",
        "another kernel in the graph of another bucket",
        "a GEMM may take more kernels",
        "a break may take more kernels",
        "a break has another call",
        "padding of a rank's own",
        "an eager call more",
        "nothing to compare",
    ],
)
def test_ranks_launch_the_same(ranks, said):
    found = unlike(ranks)
    assert found is None if said is None else found.startswith(said)


def test_ranks_that_choose_their_way_by_their_rows_are_compared_by_graphs_alone():
    other = rank(row(), {**BREAK, "calls": 2})
    assert unlike((SAME, other), breaks=False) is None
    assert unlike((SAME, rank(row(kernels=4))), breaks=False) is not None
