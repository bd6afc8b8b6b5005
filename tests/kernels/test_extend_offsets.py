"""Offsets for a captured ring write-back: what earlier replays and data-parallel padding must not leave there."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.extend_offsets import KERNEL, Shape, cost, inputs

POISON = 77


@pytest.fixture(scope="session", params=["torch", "triton"])
def run(request, device):
    """Call a provider over `offsets`, a tensor that stays; return what it then holds."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(starts, lens, offsets, ids=torch.int32):
        there = offsets.to(where)
        tensors = {
            name: torch.tensor(value, dtype=ids).to(where) for name, value in (("starts", starts), ("lens", lens))
        }
        KERNEL.provider(request.param).build(tensors | {"offsets": there})()
        offsets.copy_(there)
        return offsets.tolist()

    return call


def poisoned(slots):
    return torch.full((2, slots), POISON, dtype=torch.int32)


@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_three_requests_and_the_padding_of_other_ranks(ids, run):
    """By hand: R = 3 is the length of `starts`; entries of `lens` past it belong to no request."""
    got = run([0, 100, 101], [100, 1, 90, 65, 7], poisoned(6), ids)
    assert got == [[0, 100, 101, 0, 0, 0], [100, 1, 90, 0, 0, 0]]


def test_replays_over_one_tensor(run):
    """Specification B.5: three requests, one, one of a single row, an idle rank, then one again."""
    offsets = poisoned(8)
    address = offsets.data_ptr()
    assert run([0, 100, 101], [100, 1, 90], offsets) == [[0, 100, 101, 0, 0, 0, 0, 0], [100, 1, 90, 0, 0, 0, 0, 0]]
    assert run([0], [256], offsets) == [[0] * 8, [256] + [0] * 7]
    assert run([0], [1], offsets) == [[0] * 8, [1] + [0] * 7]
    assert run([], [], offsets) == [[0] * 8] * 2
    assert run([], [256], offsets) == [[0] * 8] * 2
    assert run([0], [256], offsets) == [[0] * 8, [256] + [0] * 7]
    assert offsets.data_ptr() == address


@pytest.mark.parametrize("slots", [1, 255, 256, 257, 512, 600])
@pytest.mark.parametrize("free", [0, 1])
def test_as_many_requests_as_columns_and_one_fewer(slots, free, run):
    requests = slots - free
    starts, lens = list(range(5, 5 + requests)), list(range(1000, 1000 + requests))
    assert run(starts, lens, poisoned(slots)) == [starts + [0] * free, lens + [0] * free]


def test_a_request_without_rows_keeps_its_column(run):
    assert run([0, 4, 4], [4, 0, 2], poisoned(4)) == [[0, 4, 4, 0], [4, 0, 2, 0]]


@settings(max_examples=30)
@given(lens=st.lists(st.integers(0, 300), max_size=9), padding=st.integers(0, 3), spare=st.integers(0, 3))
def test_any_batch(run, lens, padding, spare):
    starts = [sum(lens[:i]) for i in range(len(lens))]
    got = run(starts, lens + [9] * padding, poisoned(len(lens) + spare))
    assert got == [starts + [0] * spare, lens + [0] * spare]


WRONG = {
    "lens-missing": ({"lens": torch.zeros(2).int()}, r"starts: 3, expected at most 2: each request has a length"),
    "few-columns": ({"offsets": torch.zeros(2, 2).int()}, r"starts: 3, expected at most 2: each request has a column"),
    "one-row": ({"offsets": torch.zeros(1, 4).int()}, r"offsets: int32 \[1, 4\], expected int32 \[2, slots\]"),
    "stride": ({"offsets": torch.zeros(2, 8).int()[:, :4]}, r"offsets: dimension 0 has stride 8, expected 4"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(change, said):
    tensors = inputs(Shape((4, 1, 2), 1, 4), torch.Generator().manual_seed(2)) | change
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


def test_negative_values_are_named_but_not_those_of_padding():
    tensors = inputs(Shape((4, 1, 2), 1, 4), torch.Generator().manual_seed(2))
    tensors["lens"][3] = -1
    KERNEL.check_values(tensors)
    tensors["lens"][2] = -1
    with pytest.raises(ValueError, match=r"lens\[2\]: -1, expected 0 to"):
        KERNEL.check_values(tensors)
    tensors["starts"][1] = -3
    with pytest.raises(ValueError, match=r"starts\[1\]: -3, expected 0 to"):
        KERNEL.check_values(tensors)


def test_the_cost_reads_the_real_requests():
    found = cost(inputs(Shape((4, 1, 2), 1, 5, torch.int64), torch.Generator().manual_seed(2)))
    assert (found.bytes_read, found.bytes_written) == (3 * 16, 40)


def test_a_bench_has_64_k_tokens():
    assert KERNEL.bench.shape(1024, "1 request") == Shape((65536,), 0, 1024)
    assert KERNEL.bench.shape(1024, "full") == Shape((64,) * 1024, 0, 1024)
