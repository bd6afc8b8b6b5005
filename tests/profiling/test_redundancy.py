"""Calls with inputs seen before: by identity, until something writes them; and what our own step repeats."""

from functools import partial

import pytest
import torch

from dsv4bench.kernels.contract import EXACT, Cost, Kernel, torch_provider
from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.redundancy import repeated
from dsv4bench.ranges import Range
from tests.profiling.small_groups import allocated


def double(x, out, times=2):
    out.copy_(x * times)


def add_to(x, out):
    out.add_(x)


def kernel(name, reference, updates=()):
    made = torch_provider(reference)
    cost = lambda tensors: Cost(0, tensors["x"].numel() * 4, 0)  # noqa: E731  # one expression
    return Kernel(name, None, reference, cost, {"out": EXACT}, (), (made,), updates=updates)


DOUBLE, ADD = kernel("double", double), kernel("add_to", add_to, ("out",))


class Ops:
    """Calls kernels as a step does, one layer after another, all of kv_source 2."""

    def __init__(self):
        self.audit = self.mark = None

    def run(self, subject=DOUBLE, **tensors):
        provider = subject.providers[0]
        self.audit(Range(kv_source=2, op=subject.name), subject, provider, tensors, provider.build(tensors))


def numbers(step):
    """(calls, redundant, kept, bytes read again) of the first kernel of a step that has repeated calls."""
    ops, x, out = Ops(), torch.arange(8.0), torch.zeros(16)
    rows = repeated(ops, lambda: step(partial(ops.run), x, out))
    assert ops.audit is None
    return [(row.op, row.kv_source, row.calls, row.redundant, row.kept, row.bytes_read_again) for row in rows]


def twice(between=lambda run, x, out: None, **second):
    def step(run, x, out):
        run(x=x[:4], out=out[:4])
        between(run, x, out)
        run(**{"x": x[:4], "out": out[:4], **second})

    return step


UNCHANGED = {
    "nothing happens between": lambda run, x, out: None,
    "another part of the storage is written": lambda run, x, out: x[4:].fill_(7),
    "the input is read": lambda run, x, out: x.clone().sum(),
    "a kernel writes beside the result": lambda run, x, out: run(x=x[4:], out=out[4:8]),
}
CHANGED = {
    "a plain operation writes the input": lambda run, x, out: x.fill_(7),
    "one element is written": lambda run, x, out: x[3:4].zero_(),
    "an operation writes it as its out": lambda run, x, out: torch.add(out[:8], 1, out=x),
    "a kernel writes the input": lambda run, x, out: run(x=out[8:12], out=x[:4]),
    "a view of other type writes it": lambda run, x, out: x.view(torch.int32)[:1].zero_(),
}
SPOILT = {
    "a kernel writes the result": lambda run, x, out: run(x=x[4:], out=out[:4]),
    "a plain operation writes part of the result": lambda run, x, out: out[3].zero_(),
}


@pytest.mark.parametrize("between", UNCHANGED.values(), ids=UNCHANGED)
def test_a_call_with_unchanged_inputs_is_redundant_and_its_result_still_there(between):
    ((op, source, calls, *found),) = numbers(twice(between))
    assert (op, source, found) == ("double", 2, [1, 1, 16])
    assert calls in (2, 3)


@pytest.mark.parametrize("between", CHANGED.values(), ids=CHANGED)
def test_a_call_whose_input_was_written_since_is_not(between):
    assert numbers(twice(between)) == []


@pytest.mark.parametrize("between", SPOILT.values(), ids=SPOILT)
def test_a_result_that_was_overwritten_is_redundant_but_not_kept(between):
    ((*_, redundant, kept, _),) = numbers(twice(between))
    assert (redundant, kept) == (1, 0)


OTHERS = {
    "another number": {"times": 3},
    "other rows": {"x": torch.arange(8.0)[4:], "out": torch.zeros(4)},
    "equal values elsewhere": {"x": torch.arange(4.0)},
}


@pytest.mark.parametrize("second", OTHERS.values(), ids=OTHERS)
def test_other_inputs_are_no_repetition_even_with_equal_values(second):
    assert numbers(twice(**second)) == []


def test_a_longer_view_of_the_same_start_is_another_input():
    assert numbers(lambda run, x, out: (run(x=x[:4], out=out[:4]), run(x=x, out=out[:8]))) == []


def test_a_result_written_elsewhere_is_redundant_but_not_kept():
    ((*_, redundant, kept, _),) = numbers(lambda run, x, out: (run(x=x, out=out[:8]), run(x=x, out=out[8:])))
    assert (redundant, kept) == (1, 0)


def test_a_kernel_that_updates_its_output_is_no_repetition_of_itself():
    assert numbers(lambda run, x, out: [run(ADD, x=x, out=out[:8]) for _ in range(3)]) == []


def test_memory_that_was_freed_and_filled_anew_is_another_input():
    def step(run, x, out):
        for value in (1.0, 2.0):
            run(x=torch.full((4,), value), out=out[:4])

    assert numbers(step) == []


def test_the_audit_of_before_is_put_back_after_an_error():
    ops = Ops()
    ops.audit = before = print
    with pytest.raises(ZeroDivisionError):
        repeated(ops, lambda: 1 // 0)
    assert ops.audit is before


@pytest.fixture(scope="module")
def run():
    return allocated(graph=False)


def of_step(run, reuse):
    """(op, kv_source) -> (calls, redundant, kept) of the small model's step."""
    step = run.steps[reuse, ("fused", "torch")]
    (forward,) = run.prefill.all_forwards()
    step.load(forward)
    rows = repeated(step.ops, partial(run_pieces, step.live_pieces(forward)))
    assert all(row.bytes_read_again > 0 for row in rows)
    return {(row.op, row.kv_source): (row.calls, row.redundant, row.kept) for row in rows}


# layers 1 and 2 share index source 1: the second combine has the first one's top-k; layers 4 and 5 have their own
COMBINES = {("combine", 1): (2, 1, 1)}


def test_without_reuse_it_finds_the_dequants_that_reuse_saves_and_the_combines_of_a_shared_index_source(run):
    sources = {("dequant_compressed", source): (2, 1, 1) for source in (1, 4)}  # layers 1 and 2, layers 4 and 5
    assert of_step(run, "off") == COMBINES | sources


def test_with_reuse_the_combines_are_left(run):
    assert of_step(run, "on") == COMBINES
