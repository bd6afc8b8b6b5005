"""The schedule of paged index logits: golden A.9, a list of all units of work, batches of every size, zeros."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.mqa_schedule import KERNEL, Shape, cost, inputs

POISON = 77


@pytest.fixture(scope="session", params=["torch", "triton"])
def run(request, device):
    """Call a provider on a poisoned schedule of some lengths; return it as (row, unit) pairs."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(lens, num_sm, page_size=64):
        schedule = torch.full((num_sm + 1, 2), POISON, dtype=torch.int32, device=where)
        lens = torch.as_tensor(lens, dtype=torch.int32).to(where)
        tensors = {"lens": lens, "page_size": page_size, "num_sm": num_sm, "schedule": schedule}
        KERNEL.provider(request.param).build(tensors)()
        return [tuple(pair) for pair in schedule.tolist()]

    return call


def listed(lens, num_sm):
    """List every unit of work, deal them out, the last SMs one more; say where each SM begins."""
    units = [(row, unit) for row, length in enumerate(lens) for unit in range(-(-length // 256))]
    average, more = divmod(len(units), num_sm)
    firsts = [0]
    for sm in range(num_sm):
        firsts.append(firsts[-1] + average + (sm >= num_sm - more))
    assert firsts[-1] == len(units)
    return [(*units, (len(lens), 0))[first] for first in firsts]


def test_golden_schedules(run):
    """Specification A.9."""
    assert run([300, 0, 1000, 257], 4) == [(0, 0), (2, 0), (2, 2), (3, 0), (4, 0)]
    assert run([1], 3) == [(0, 0), (0, 0), (0, 0), (1, 0)]


BY_HAND = {
    "no-rows": ([], 2, [(0, 0)] * 3),
    "no-work": ([0, 0, 0], 2, [(3, 0)] * 3),
    "zeros-around": ([0, 256, 0, 256, 0], 2, [(1, 0), (3, 0), (5, 0)]),
    "one-sm": ([700], 1, [(0, 0), (1, 0)]),
    "unit-edges": ([255, 256, 257], 4, [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]),
    "the-last-get-more": ([256 * 5], 3, [(0, 0), (0, 1), (0, 3), (1, 0)]),
}


@pytest.mark.parametrize(("lens", "num_sm", "want"), BY_HAND.values(), ids=BY_HAND)
def test_schedules_by_hand(lens, num_sm, want, run):
    assert run(lens, num_sm) == want


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 128, 512, 513, 2048, 2049, 4096, 6500, 8192, 8193, 16385])
def test_batches_of_every_size(rows, run):
    lens = inputs(Shape(rows, 2_000, 7), torch.Generator().manual_seed(rows))["lens"].tolist()
    assert run(lens, 7) == listed(lens, 7)


@pytest.mark.parametrize("rows", [64, 2049])
@pytest.mark.parametrize("kept", [0, -1], ids=["first", "last"])
def test_a_batch_of_zeros_but_one(rows, kept, run):
    lens = [0] * rows
    lens[kept] = 3 * 256
    assert run(lens, 2) == listed(lens, 2)


def test_a_million_positions_a_row(run):
    lens = [2**20] * 8 + [2**31 - 256]
    assert run(lens, 3) == listed_by_sums(lens, 3)


def listed_by_sums(lens, num_sm):
    """As `listed`, for more units than a list should hold."""
    work = [-(-length // 256) for length in lens]
    average, more = divmod(sum(work), num_sm)
    found = []
    for sm in range(num_sm + 1):
        left, row = sm * average + max(0, sm - (num_sm - more)), 0
        while row < len(work) and left >= work[row]:
            left -= work[row]
            row += 1
        found.append((row, left))
    return found


@pytest.mark.parametrize("num_sm", [1, 2, 131, 132])
def test_any_number_of_sms(num_sm, run):
    lens = [5_000, 0, 1, 70_000, 256, 3]
    assert run(lens, num_sm) == listed(lens, num_sm)


def test_at_most_1024_sms():
    lens = [5_000, 0, 1, 70_000, 256, 3]
    schedule = torch.full((1025, 2), POISON, dtype=torch.int32)
    tensors = {"lens": torch.tensor(lens, dtype=torch.int32), "page_size": 64, "num_sm": 1024, "schedule": schedule}
    KERNEL.provider("triton").build(tensors)  # 1025 programs are many for the interpreter
    KERNEL.reference(**tensors)
    assert [tuple(pair) for pair in schedule.tolist()] == listed(lens, 1024)


def test_lengths_may_be_a_column_and_pages_of_either_size(run):
    lens = [300, 0, 1000, 257]
    plain = run(lens, 4)
    assert run([[length] for length in lens], 4) == plain
    assert run(lens, 4, page_size=128) == plain


@settings(max_examples=40)
@given(
    lens=st.lists(st.sampled_from([0, 0, 1, 255, 256, 257, 511, 512, 513, 3000]), max_size=70), num_sm=st.integers(1, 9)
)
def test_any_batch(run, lens, num_sm):
    assert run(lens, num_sm) == listed(lens, num_sm)


WRONG = {
    "no-sm": ({"num_sm": 0}, r"num_sm: 0, expected 1 to 1024"),
    "many-sms": ({"num_sm": 1025}, r"num_sm: 1025, expected 1 to 1024"),
    "page": ({"page_size": 256}, r"page_size: 256, expected one of 64, 128"),
    "lens-columns": ({"lens": torch.zeros(3, 2).int()}, r"lens: int32 \[3, 2\], expected int32 \[rows, 1\]"),
    "lens-stride": ({"lens": torch.zeros(6).int()[::2]}, r"lens: dimension 0 has stride 2, expected 1"),
    "schedule": ({"num_sm": 5}, r"schedule: int32 \[5, 2\], expected int32 \[6, 2\]"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(change, said):
    tensors = inputs(Shape(3, 900, 4), torch.Generator().manual_seed(2)) | change
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize("length", [-1, 2**31 - 255])
def test_lengths_out_of_range_are_named(length):
    tensors = inputs(Shape(3, 900, 4), torch.Generator().manual_seed(2))
    KERNEL.check_values(tensors)
    tensors["lens"][2] = length
    with pytest.raises(ValueError, match=rf"lens\[2\]: {length}, expected 0 to {2**31 - 256}"):
        KERNEL.check_values(tensors)


def test_the_cost_is_the_lengths_and_the_schedule():
    found = cost(inputs(Shape(3, 900, 4), torch.Generator().manual_seed(2)))
    assert (found.bytes_read, found.bytes_written) == (12, 40)
