"""Page tables, positions and window lengths of few rows: by hand, by plain loops, edges, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.page_table_positions import KERNEL, Shape, cost, inputs

POISON = -77
OUTPUTS = ("lens", "positions", "table", "swa_lens")


@pytest.fixture(scope="session", params=["torch", "triton"])
def run(request, device):
    """Call a provider on poisoned outputs; return them as lists."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        for name in OUTPUTS:
            there[name].fill_(POISON)
        KERNEL.provider(request.param).build(there)()
        return {name: there[name].tolist() for name in OUTPUTS}

    return call


def arguments(req_to_token, req, seq_lens, max_seq_len, page_size, window=128):
    rows, pages = len(req), -(-max_seq_len // page_size)
    short = {"dtype": torch.int32}
    return {
        "req_to_token": torch.as_tensor(req_to_token, **short),
        "req": torch.tensor(req, dtype=torch.int64),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int64),
        "max_seq_len": max_seq_len,
        "page_size": page_size,
        "window": window,
        "lens": torch.empty(rows, **short),
        "positions": torch.empty(rows, **short),
        "table": torch.empty(rows, pages, **short),
        "swa_lens": torch.empty(rows, **short),
    }


def looped(tensors):
    """Build every output one number at a time (specification 5.1)."""
    lengths, size = tensors["seq_lens"].tolist(), tensors["page_size"]
    slots = tensors["req_to_token"].tolist()
    pages = range(-(-tensors["max_seq_len"] // size))
    return {
        "lens": lengths,
        "positions": [length - 1 for length in lengths],
        "table": [[slots[request][page * size] // size for page in pages] for request in tensors["req"].tolist()],
        "swa_lens": [min(length, tensors["window"]) for length in lengths],
    }


def test_rows_by_hand(run):
    """Pages of 4: request 0 in pages 3, 1 and request 1 in page 2; what lies past its end is written too."""
    table = [[12, 13, 14, 15, 4, 5, 6, 7, 99, 0], [8, 9, 10, 11, 28, 0, 0, 0, -1, 0]]
    got = run(arguments(table, [0, 1, 0, 1], [7, 3, 6, 1], max_seq_len=9, page_size=4, window=6))
    assert got == {
        "lens": [7, 3, 6, 1],
        "positions": [6, 2, 5, 0],
        "table": [[3, 1, 24], [2, 7, -1], [3, 1, 24], [2, 7, -1]],
        "swa_lens": [6, 3, 6, 1],
    }


def test_a_padded_row_is_the_last_request_at_position_0(run):
    tensors = inputs(Shape((300, 513), rows=2, padding_rows=2), torch.Generator().manual_seed(1))
    got = run(tensors)
    assert tensors["req"].tolist() == [0, 0, 1, 1, 1, 1]
    assert got["positions"] == [298, 299, 511, 512, 0, 0]
    assert got["swa_lens"][-2:] == [1, 1]
    assert got["table"][4] == got["table"][5] == got["table"][3]


@pytest.mark.parametrize(("length", "pages"), [(1, 1), (255, 1), (256, 1), (257, 2), (512, 2), (513, 3)])
def test_a_table_has_a_column_for_each_page_begun(length, pages, run):
    tensors = inputs(Shape((length,)), torch.Generator().manual_seed(1))
    got = run(tensors)
    assert [len(row) for row in got["table"]] == [pages]
    assert got == looped(tensors)


@pytest.mark.parametrize(("length", "window"), [(127, 127), (128, 128), (129, 128)])
def test_the_window_is_full_from_128_on(length, window, run):
    assert run(inputs(Shape((length,)), torch.Generator().manual_seed(1)))["swa_lens"] == [window]


@pytest.mark.parametrize("pages", [256, 257, 512, 600])
def test_a_table_of_more_pages_than_one_program_writes(pages, run):
    tensors = inputs(Shape((2 * pages, 2 * pages - 1), page_size=2), torch.Generator().manual_seed(1))
    assert len(tensors["table"][0]) == pages
    assert run(tensors) == looped(tensors)


@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_a_table_with_wider_rows_than_the_longest_request(ids, run):
    tensors = inputs(Shape((9, 30), rows=3, page_size=8, ids=ids), torch.Generator().manual_seed(1))
    wide = torch.full((2, 100), 7777, dtype=torch.int32)
    wide[:, : tensors["req_to_token"].shape[1]] = tensors["req_to_token"]
    tensors["req_to_token"] = wide[:, :40]
    assert tensors["req_to_token"].stride(0) == 100
    assert run(tensors) == looped(tensors)


def test_no_rows(run):
    assert run(arguments([[0] * 8], [], [], max_seq_len=8, page_size=4)) == {name: [] for name in OUTPUTS}


batches = st.integers(0, 3).flatmap(
    lambda bits: st.tuples(st.just(1 << bits), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 9))
)


@settings(max_examples=25)
@given(batch=batches, spare=st.integers(0, 9))
def test_any_batch(run, batch, spare):
    page_size, lengths, seed = batch
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths) + spare
    slots = torch.randint(0, 4096, (5, longest), generator=generator)
    req = torch.randint(0, 5, (len(lengths),), generator=generator).tolist()
    tensors = arguments(slots, req, lengths, longest, page_size)
    assert run(tensors) == looped(tensors)


WRONG = {
    "page_size": ({"page_size": 48}, r"page_size: 48, expected a power of two"),
    "narrow-table": ({"max_seq_len": 300}, r"table: int32 \[2, 1\], expected int32 \[2, 2\]"),
    "short-rows": (
        {"max_seq_len": 257, "table": torch.zeros(2, 2, dtype=torch.int32)},
        r"req_to_token: 256 tokens a request, expected more than 256",
    ),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(change, said):
    tensors = inputs(Shape((256, 100)), torch.Generator().manual_seed(1)) | change
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("req", 2, r"req\[1\]: 2, expected 0 to 1"),
        ("req", -1, r"req\[1\]: -1, expected 0 to 1"),
        ("seq_lens", 0, r"seq_lens\[1\]: 0, expected 1 to 256"),
        ("seq_lens", 257, r"seq_lens\[1\]: 257, expected 1 to 256"),
    ],
)
def test_values_out_of_range_are_named(name, value, said):
    tensors = inputs(Shape((256, 100)), torch.Generator().manual_seed(1))
    KERNEL.check_values(tensors)
    tensors[name][1] = value
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(tensors)


def test_the_cost_counts_the_first_slot_of_each_page():
    found = cost(inputs(Shape((300, 1), rows=1), torch.Generator().manual_seed(1)))
    # 2 rows of 2 pages: 4 slots, 2 row numbers and 2 lengths of 8 bytes; 4 pages and 3 numbers a row
    assert (found.bytes_read, found.bytes_written) == (4 * 4 + 2 * 16, 4 * 4 + 2 * 12)
    # the 3 rows of each of 2 requests read the same slots
    found = cost(inputs(Shape((300, 290), rows=3), torch.Generator().manual_seed(1)))
    assert (found.bytes_read, found.bytes_written) == (4 * 4 + 6 * 16, 4 * 12 + 6 * 12)


@pytest.mark.parametrize(
    ("rows", "case", "requests", "each", "padding"),
    [(64, "decode", 64, 1, 0), (256, "verify 4", 64, 4, 0), (6, "verify 4", 1, 4, 2)],
)
def test_a_bench_has_the_rows_that_it_names(rows, case, requests, each, padding):
    assert KERNEL.bench.shape(rows, case) == Shape((65536,) * requests, each, padding)
