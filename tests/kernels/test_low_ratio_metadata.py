"""Slots and lengths of ratios 1 and 2: by hand at every edge, any batch by plain loops, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.low_ratio_metadata import KERNEL, Shape, cost, inputs, outputs

POISON = 77


@pytest.fixture(scope="session", params=["torch", "triton"])
def run(request, device):
    """Call a provider on poisoned outputs; return them as lists."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        for name in KERNEL.outputs:
            there[name].fill_(POISON)
        KERNEL.provider(request.param).build(there)()
        return {name: there[name].tolist() for name in KERNEL.outputs}

    return call


def arguments(lengths, slots, topk, ids=torch.int64):
    made = outputs(len(lengths), topk, torch.device("cpu"))
    return {"seq_lens": torch.tensor(lengths, dtype=ids), "loc": torch.tensor(slots, dtype=ids), "topk": topk, **made}


# length, slot -> (slot, length, sparse length) of ratio 1, then of ratio 2; top-k 512
ROWS = [
    (1, 0, (0, 1, 1), (-1, 1, 1)),  # padding
    (1, 512, (512, 1, 1), (-1, 1, 1)),
    (2, 513, (513, 2, 2), (256, 1, 1)),
    (3, 514, (514, 3, 3), (-1, 1, 1)),
    (4, 515, (515, 4, 4), (257, 2, 2)),
    (511, 1022, (1022, 511, 511), (-1, 255, 255)),
    (512, 1023, (1023, 512, 512), (511, 256, 256)),
    (513, 1024, (1024, 513, 512), (-1, 256, 256)),
    (1023, 2046, (2046, 1023, 512), (-1, 511, 511)),
    (1024, 2047, (2047, 1024, 512), (1023, 512, 512)),
    (1026, 2049, (2049, 1026, 512), (1024, 513, 512)),
    (0, 6, (6, 1, 1), (3, 1, 1)),  # the formulas as they stand
]


@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_rows_by_hand(ids, run):
    lengths, slots, first, second = zip(*ROWS, strict=True)
    got = run(arguments(lengths, slots, 512, ids))
    for ratio, want in ((1, first), (2, second)):
        parts = (got[f"r{ratio}_{part}"] for part in ("loc", "lens", "sparse_lens"))
        assert list(zip(*parts, strict=True)) == list(want)
        assert got[f"r{ratio}_pages"] == [[-1] * 512] * len(ROWS)


@pytest.mark.parametrize(("topk", "columns"), [(1, 64), (64, 64), (65, 128), (100, 128), (512, 512), (520, 576)])
def test_the_page_tables_are_a_multiple_of_64_wide_and_absent_throughout(topk, columns, run):
    got = run(arguments([2000, 3], [1999, 2], topk))
    assert got["r1_pages"] == got["r2_pages"] == [[-1] * columns] * 2
    assert got["r1_sparse_lens"] == [topk, min(3, topk)]
    assert got["r2_sparse_lens"] == [min(1000, topk), 1]


@pytest.mark.parametrize("rows", [31, 32, 33, 64, 65])
def test_programs_that_write_many_rows_write_each_and_none_past_the_last(rows, run):
    """Lengths 1, 2, 3...; the outputs are the first rows of longer tensors, whose other rows keep their poison."""
    tensors = arguments(list(range(1, rows + 1)), list(range(100, 100 + rows)), 64)
    longer = outputs(rows + 40, 64, torch.device("cpu"))
    got = run(tensors | {name: whole.fill_(POISON)[:rows] for name, whole in longer.items()})
    lengths = list(range(1, rows + 1))
    assert got["r1_loc"] == list(range(100, 100 + rows))
    assert got["r1_lens"] == lengths
    assert got["r2_loc"] == [-1 if length % 2 else (99 + length) // 2 for length in lengths]
    assert got["r2_lens"] == [1, *(length // 2 for length in lengths[1:])]
    assert got["r1_pages"] == got["r2_pages"] == [[-1] * 64] * rows
    for whole in longer.values():
        assert (whole[rows:] == POISON).all()


def test_slots_over_32_bits(run):
    got = run(arguments([8, 9], [2**33 + 7, 2**33 + 8], 64))
    assert (got["r1_loc"], got["r2_loc"]) == ([2**33 + 7, 2**33 + 8], [2**32 + 3, -1])


def test_no_rows(run):
    assert run(arguments([], [], 64)) == {name: [] for name in KERNEL.outputs}


@settings(max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(1, 1100), st.integers(0, 5000)), min_size=1, max_size=6),
    topk=st.sampled_from([1, 70, 512]),
)
def test_any_batch(run, rows, topk):
    lengths, slots = zip(*rows, strict=True)
    got = run(arguments(lengths, slots, topk))
    for ratio in (1, 2):
        for row, (length, slot) in enumerate(rows):
            seen = sum(1 for end in range(1, length + 1) if end % ratio == 0)  # groups that are complete
            assert got[f"r{ratio}_lens"][row] == max(seen, 1)
            assert got[f"r{ratio}_sparse_lens"][row] == max(min(seen, topk), 1)
            assert got[f"r{ratio}_loc"][row] == (slot // ratio if length % ratio == 0 else -1)


WRONG = {
    "topk": ({"topk": 0}, r"topk: 0, expected at least 1"),
    "wider-topk": ({"topk": 65}, r"r1_pages: int32 \[2, 64\], expected int32 \[2, 128\]"),
    "stride": ({"r2_pages": torch.zeros(2, 128).int()[:, ::2]}, r"r2_pages: dimension 0 has stride 128, expected 64"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        KERNEL.check(arguments([5, 6], [4, 5], 64) | change)


@pytest.mark.parametrize("name", ["seq_lens", "loc"])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_negative_values_are_named(name, ids):
    tensors = arguments([5, 6], [4, 5], 64, ids)
    KERNEL.check_values(tensors)
    tensors[name][1] = -1
    with pytest.raises(ValueError, match=rf"{name}\[1\]: -1, expected 0 to"):
        KERNEL.check_values(tensors)


def test_inputs_put_odd_lengths_on_even_slots():
    tensors = inputs(Shape((1, 2, 7), topk=5, padding_rows=1), torch.Generator().manual_seed(1))
    assert ((tensors["seq_lens"] + tensors["loc"]) % 2).tolist() == [1, 1, 1, 1]
    assert (tensors["seq_lens"][-1], tensors["loc"][-1]) == (1, 0)


def test_the_cost_is_all_but_the_page_tables():
    found = cost(arguments([5, 6], [4, 5], 70))
    assert (found.bytes_read, found.bytes_written) == (2 * 16, 2 * 2 * (8 + 4 + 4 + 4 * 128))
