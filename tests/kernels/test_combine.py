"""Combined indices: the golden rows of A.10, a row builder in plain Python, and rows that nobody owns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.combine import KERNEL, Shape, cost, inputs

POISON = -77


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider on poisoned outputs; return indices and lens as lists."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        there["indices"].fill_(POISON)
        there["lens"].fill_(POISON)
        KERNEL.provider(request.param).build(there)()
        return there["indices"].tolist(), there["lens"].tolist()

    return call


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


def one_row(position, ratio, raw, compressed_base, swa_base, seq, gather):
    """One query row at `position` of one request, the row's top-k as wide as `raw`."""
    return {
        "raw": i32([raw]),
        "query_start": i32([0, 1]),
        "positions": torch.tensor([position]),
        "seq_lens": i32([seq]),
        "gather_lens": i32([gather]),
        "compressed_bases": i32([compressed_base]),
        "swa_bases": i32([swa_base]),
        "window": 128,
        "ratio": ratio,
        "topk": len(raw),
        "indices": torch.empty(1, 256, dtype=torch.int32),
        "lens": torch.empty(1, dtype=torch.int32),
    }


# specification A.10
GOLDEN = [
    pytest.param(one_row(5, 2, [2, 0, -1, 9], 10, 100, 8, 8), [12, 10, -1, *range(100, 106)], id="ratio-2-hole-cut"),
    pytest.param(one_row(299, 1, [7, 3, 250, 1], 0, 1000, 300, 227), [7, 3, 250, 1, *range(1099, 1227)], id="ratio-1"),
]


@pytest.mark.parametrize(("tensors", "row"), GOLDEN)
def test_golden_rows(tensors, row, run):
    indices, lens = run(tensors)
    assert indices == [row + [-1] * (256 - len(row))]
    assert lens == [len(row)]


def built_row(tensors, row):
    """Build a row's indices one by one, from the definition (specification 6.2)."""
    starts = [start - int(tensors["query_start"][0]) for start in tensors["query_start"].tolist()]
    owner = [i for i in range(len(starts) - 1) if starts[i] <= row < starts[i + 1]]
    if not owner:
        return []
    request, position = owner[0], int(tensors["positions"][row])
    found = []
    if tensors["ratio"]:
        kept = tensors["raw"][row, : min((position + 1) // tensors["ratio"], tensors["topk"])].tolist()
        base = int(tensors["compressed_bases"][request])
        found = [-1 if chosen < 0 else chosen + base for chosen in kept]
    oldest = max(0, position + 1 - tensors["window"])
    first_gathered = int(tensors["seq_lens"][request] - tensors["gather_lens"][request])
    return found + [int(tensors["swa_bases"][request]) + at - first_gathered for at in range(oldest, position + 1)]


def check_rows(tensors, indices, lens):
    for row in range(len(lens)):
        want = built_row(tensors, row)
        assert lens[row] == len(want)
        assert indices[row] == want + [-1] * (len(indices[row]) - len(want))


BATCHES = {
    "one-row": Shape(((0, 1),), ratio=1, topk=32),
    "window-not-full": Shape(((0, 127), (0, 3)), ratio=2, topk=16),
    "window-edges": Shape(((126, 4), (254, 3)), ratio=1, topk=40),
    "holes-and-padding": Shape(((5, 9), (0, 3), (299, 4)), ratio=2, topk=32, padding_rows=6),
    "ratio-0": Shape(((120, 12), (0, 2)), ratio=0, topk=0, padding_rows=1),
    "many-requests": Shape(tuple((i * 13 % 200, 1 + i % 3) for i in range(17)), ratio=1, topk=8),
    "top-k-512": Shape(((600, 2),), ratio=1, topk=512),
}


@pytest.mark.parametrize("shape", BATCHES.values(), ids=BATCHES)
def test_every_row_of_a_batch(shape, run):
    tensors = inputs(shape, torch.Generator().manual_seed(3))
    check_rows(tensors, *run(tensors))


def test_the_queries_of_a_later_chunk_begin_past_zero(run):
    """The first entry of query_start is where this table's rows begin, not a row to skip."""
    tensors = inputs(Shape(((40, 3), (7, 2)), ratio=1, topk=16, padding_rows=2), torch.Generator().manual_seed(3))
    plain = run(tensors)
    tensors["query_start"] += 1000
    assert run(tensors) == plain
    check_rows(tensors, *plain)


def test_a_request_without_rows_owns_none(run):
    tensors = inputs(Shape(((40, 3), (9, 0), (7, 2)), ratio=1, topk=16), torch.Generator().manual_seed(3))
    assert tensors["query_start"].tolist() == [0, 3, 3, 5]
    check_rows(tensors, *run(tensors))


def test_a_batch_without_requests_owns_nothing(run):
    tensors = inputs(Shape(((4, 3),), ratio=1, topk=16), torch.Generator().manual_seed(3))
    for name in ("seq_lens", "gather_lens", "compressed_bases", "swa_bases"):
        tensors[name] = tensors[name][:0]
    tensors["query_start"] = tensors["query_start"][:1]
    assert run(tensors) == ([[-1] * 256] * 3, [0] * 3)


def test_a_top_k_wider_than_asked_is_cut(run):
    tensors = inputs(Shape(((300, 3),), ratio=1, topk=32), torch.Generator().manual_seed(3))
    plain = run(tensors)
    tensors["raw"] = torch.cat([tensors["raw"], torch.full((3, 9), 5, dtype=torch.int32)], dim=1)
    assert run(tensors) == plain


request_lists = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5)), min_size=1, max_size=5)


@settings(max_examples=40)
@given(
    requests=request_lists, ratio=st.sampled_from([1, 2]), topk=st.sampled_from([1, 7, 130]), seed=st.integers(0, 99)
)
def test_the_reference_builds_any_batch(requests, ratio, topk, seed):
    tensors = inputs(Shape(tuple(requests), ratio, topk, padding_rows=1), torch.Generator().manual_seed(seed))
    KERNEL.reference(**tensors)
    check_rows(tensors, tensors["indices"].tolist(), tensors["lens"].tolist())


def test_the_cost_counts_kept_columns_once():
    tensors = one_row(5, 2, [2, 0, -1, 9], 10, 100, 8, 8)
    # 3 kept columns, 1 position of 8 bytes, 4 + 2 integers of requests; 256 indices and 1 length
    found = cost(tensors)
    assert (found.bytes_read, found.bytes_written) == (4 * 3 + 8 + 4 * 6, 4 * 257)


@pytest.mark.parametrize(
    ("name", "at", "value", "said"),
    [
        ("query_start", 1, 6, r"query_start\[1:\] - query_start\[:-1\]\[1\]: -1, expected 0 to"),
        ("gather_lens", 1, 9, r"seq_lens - gather_lens\[1\]: -1, expected 0 to"),
        ("positions", 2, 10, r"seq_lens - positions, of owned rows\[2\]: 0, expected 1 to"),
        ("positions", 0, 6, r"positions of windows behind what is not gathered\[0\]: -1, expected 0 to"),
        ("raw", (3, 1), 4, r"rows behind raw, of its request\[3, 1\]: -1, expected 0 to"),
        ("raw", (3, 1), -2, r"raw\[3, 1\]: -2, expected -1 to"),
    ],
    ids=["order", "gathered", "behind-its-request", "before-its-window", "compressed-row", "negative-row"],
)
def test_a_value_out_of_range_is_named(name, at, value, said):
    """Requests of 10 and 8 tokens with windows of 3: rows at 7, 8, 9 and 6, 7; the sixth row is nobody's."""
    tensors = {
        "raw": i32([[0, 3, -1, 4], [3, 2, 1, 0], [4, 3, 2, 1], [0, 3, 2, POISON], [0, 1, 2, 3], [POISON] * 4]),
        "query_start": i32([0, 3, 5]),
        "positions": torch.tensor([7, 8, 9, 6, 7, 10**6]),
        "seq_lens": i32([10, 8]),
        "gather_lens": i32([5, 4]),
        "window": 3,
        "ratio": 2,
        "topk": 4,
    }
    KERNEL.check_values(tensors)
    tensors[name][at] = value
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(tensors)
