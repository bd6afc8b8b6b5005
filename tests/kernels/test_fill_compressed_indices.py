"""All compressed slots of a row: by hand, by plain loops at page and column edges, with and without raw positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.fill_compressed_indices import KERNEL, Shape, cost, inputs

POISON = 77


@pytest.fixture(scope="session", params=["torch", "triton"])
def run(request, device):
    """Call a provider on poisoned outputs; return slots and raw as lists."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        outputs = [there[name] for name in ("slots", "raw") if there[name] is not None]
        for output in outputs:
            output.fill_(POISON)
        KERNEL.provider(request.param).build(there)()
        return [output.tolist() for output in outputs]

    return call


def arguments(table, lens, columns, ratio, page_size):
    made = torch.empty(2, len(lens), columns, dtype=torch.int32)
    return {
        "table": torch.as_tensor(table, dtype=torch.int32),
        "lens": torch.tensor(lens, dtype=torch.int32),
        "ratio": ratio,
        "page_size": page_size,
        "slots": made[0],
        "raw": made[1],
    }


def looped(tensors):
    """Build the two tables one column at a time, from pages of tokens."""
    page_size, ratio, columns = tensors["page_size"], tensors["ratio"], tensors["slots"].shape[1]
    slots, raw = [], []
    for pages, length in zip(tensors["table"].tolist(), tensors["lens"].tolist(), strict=True):
        tokens = [page * page_size + index for page in pages for index in range(page_size)]
        row = [slot // ratio for slot in tokens[::ratio]][: min(length, columns)]
        absent = [-1] * (columns - len(row))
        slots.append(row + absent)
        raw.append(list(range(len(row))) + absent)
    return [slots, raw]


def test_rows_by_hand(run):
    """Pages of 8 tokens hold 4 rows of ratio 2; a length over the columns is cut."""
    got = run(arguments([[5, 3], [1, 9], [2, 7], [6, 4]], [6, 0, 4, 9], 7, 2, 8))
    assert got == [
        [
            [20, 21, 22, 23, 12, 13, -1],
            [-1] * 7,
            [8, 9, 10, 11, -1, -1, -1],
            [24, 25, 26, 27, 16, 17, 18],
        ],
        [[0, 1, 2, 3, 4, 5, -1], [-1] * 7, [0, 1, 2, 3, -1, -1, -1], [0, 1, 2, 3, 4, 5, 6]],
    ]


EDGES = {
    "ratio-1-page": (1, 256, 512, (1, 254, 255, 256, 257, 511, 512)),
    "ratio-2-page": (2, 256, 512, (1, 127, 128, 129, 255, 256, 257, 512)),
    "two-programs": (1, 256, 700, (511, 512, 513, 699, 700)),
    "two-whole-programs": (1, 256, 1024, (1023, 1024)),
    "page-of-the-ratio": (128, 128, 5, (0, 1, 4, 5)),
    "one-column": (2, 4, 1, (0, 1)),
}


@pytest.mark.parametrize(("ratio", "page_size", "columns", "lengths"), EDGES.values(), ids=EDGES)
def test_edges_of_pages_and_columns(ratio, page_size, columns, lengths, run):
    tensors = inputs(Shape(lengths, columns, ratio, page_size), torch.Generator().manual_seed(2))
    assert run(tensors) == looped(tensors)


def test_raw_positions_are_optional(run):
    tensors = inputs(Shape((5, 200), 256, 2), torch.Generator().manual_seed(2))
    assert run(tensors | {"raw": None}) == looped(tensors)[:1]


def test_a_table_with_wider_rows(run):
    tensors = inputs(Shape((300, 512, 1), 512, 1), torch.Generator().manual_seed(2))
    wide = torch.full((3, 20), 7777, dtype=torch.int32)
    wide[:, : tensors["table"].shape[1]] = tensors["table"]
    tensors["table"] = wide[:, : tensors["table"].shape[1]]
    assert run(tensors) == looped(tensors)


def test_pages_past_a_length_are_not_read(run):
    got = run(arguments([[3, -999]], [256], 260, 1, 256))
    assert got[0][0][255:] == [3 * 256 + 255, -1, -1, -1, -1]


def test_no_rows(run):
    assert run(arguments(torch.zeros(0, 2), [], 8, 1, 256)) == [[], []]


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    bits=st.sampled_from([0, 1, 2]),
    columns=st.integers(1, 40),
)
def test_any_batch(run, lengths, bits, columns):
    tensors = inputs(Shape(tuple(lengths), columns, 1 << bits, 8), torch.Generator().manual_seed(2))
    assert run(tensors) == looped(tensors)


WRONG = {
    "ratio": ({"ratio": 3}, r"ratio: 3, expected one of 1, 2, 4, 128"),
    "page": ({"page_size": 96}, r"page_size: 96, expected a power of two"),
    "small-page": ({"page_size": 2, "ratio": 4}, r"page_size: 2, expected at least the ratio, 4"),
    "table-rows": ({"table": torch.zeros(3, 2).int()}, r"table: int32 \[3, 2\], expected int32 \[2, pages\]"),
    "stride": ({"slots": torch.zeros(2, 32).int()[:, :16]}, r"slots: dimension 0 has stride 32, expected 16"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(change, said):
    tensors = inputs(Shape((3, 9), 16, 2), torch.Generator().manual_seed(2)) | change
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize(
    ("lens", "table", "said"),
    [
        ([3, -1], [[1, 2], [3, 4]], r"lens\[1\]: -1, expected 0 to 8"),
        ([3, 9], [[1, 2], [3, 4]], r"lens\[1\]: 9, expected 0 to 8"),
        ([3, 5], [[1], [3]], r"lens\[1\]: 5, expected 0 to 4"),
        ([3, 5], [[1, 2], [3, -4]], r"table\[1, 1\]: -4, expected 0 to"),
    ],
    ids=["negative", "over-the-columns", "over-the-table", "no-page"],
)
def test_values_out_of_range_are_named(lens, table, said):
    KERNEL.check_values(arguments([[1, -2], [3, 4]], [4, 8], 8, 2, 8))
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(arguments(table, lens, 8, 2, 8))


def test_the_cost_counts_a_page_once():
    tensors = arguments([[1, 2], [3, 4]], [5, 4], 8, 2, 8)  # 2 + 1 pages
    assert (cost(tensors).bytes_read, cost(tensors).bytes_written) == (4 * (3 + 2), 4 * 2 * 16)
    assert cost(tensors | {"raw": None}).bytes_written == 4 * 16
