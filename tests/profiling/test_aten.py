import pytest
import torch

from dsv4bench.profiling.aten import AtenCounter
from dsv4bench.profiling.ledger import Ledger
from dsv4bench.ranges import Range

OUTER, INNER = Range(layer=1, op="combine"), Range(layer=1, op="rope")


def counts(work):
    counter = AtenCounter(Ledger())
    with counter:
        work(counter)
    return {rng and rng.op: found["aten_ops"] for rng, _, found in counter.ledger.entries()}


def test_operations_go_to_the_innermost_open_range_and_none_is_lost():
    x = torch.ones(4)

    def work(mark):
        x.add(1)
        mark.enter(OUTER)
        x.mul_(2)
        mark.enter(INNER)
        x.sin()
        x.cos()
        mark.exit(INNER)
        x.zero_()
        mark.exit(OUTER)
        x.neg()

    assert counts(work) == {None: 2, "combine": 2, "rope": 2}


@pytest.mark.parametrize(
    ("operate", "count"),
    [
        (lambda x: x.view(2, 2), 0),
        (lambda x: x[1:3], 0),
        (lambda x: x.view(2, 2).transpose(0, 1), 0),
        (lambda x: x.split(2), 0),
        (lambda x: x.unbind(), 0),
        (lambda x: x.view(2, 2).t().contiguous(), 1),
        (lambda x: x[1:3].fill_(3), 1),
        (lambda x: torch.add(x, x, out=torch.empty(0)), 2),
        (lambda x: x.view(2, 2) @ x.view(2, 2), 1),
    ],
    ids=["view", "slice", "transpose", "split", "unbind", "copy", "write through a view", "empty and out", "matmul"],
)
def test_views_are_left_out(operate, count):
    assert counts(lambda _: operate(torch.arange(4.0))) == {None: count + 1}  # arange itself


def test_gradients_are_off_while_counting_and_back_afterwards():
    counter = AtenCounter(Ledger())
    with counter:
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_counts_lie_where_the_piece_runs():
    counter = AtenCounter(Ledger())
    with counter:
        for where in ("segment", "break"):
            counter.hear(where)
            counter.enter(INNER)
            torch.zeros(2).add_(1)
            counter.exit(INNER)
    assert [(row["where"], row["aten_ops"], row["kernels"]) for row in counter.ledger.rows()] == [
        ("segment", 2, None),
        ("break", 2, None),
    ]
