"""Index top-k: the same choice as a sort in plain Python, ties, rows that see little, and candidate blocks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels import index_topk
from dsv4bench.kernels.index_topk import KERNEL, Shape, cost, inputs

INF, NAN = math.inf, math.nan


@pytest.fixture(params=["torch", "triton"])
def provider(request):
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return KERNEL.provider(request.param)


@pytest.fixture
def run(provider, device):
    """Call a provider on rows of logits; return the chosen positions as lists."""

    def call(rows, topk, candidates=None):
        tensors = arguments(rows, topk, candidates)
        there = {name: value.to(device) if torch.is_tensor(value) else value for name, value in tensors.items()}
        provider.build(there)()
        return there["raw"].tolist()

    return call


def arguments(rows, topk, candidates=None):
    return {
        "logits": torch.as_tensor(rows, dtype=torch.bfloat16),
        "candidates": None if candidates is None else torch.tensor(candidates, dtype=torch.int32),
        "candidate_block": 8,
        "topk": topk,
        "raw": torch.full((len(rows), topk), -77, dtype=torch.int32),
    }


def chosen(row, topk, blocks=None):
    """The `topk` largest finite logits, the lower column first among equals, in order of columns."""
    finite = [column for column, logit in enumerate(row) if math.isfinite(logit)]
    best = sorted(sorted(finite, key=lambda column: (-row[column], column))[:topk])
    positions = best if blocks is None else [blocks[c // 8] * 8 + c % 8 for c in best]
    return positions + [-1] * (topk - len(positions))


@pytest.mark.parametrize(
    ("row", "topk", "want"),
    [
        pytest.param([1.0, 3.0, 2.0, 4.0], 2, [1, 3], id="largest-in-column-order"),
        pytest.param([2.0, 5.0, 2.0, 2.0, 1.0], 3, [0, 1, 2], id="tie-to-the-lowest-column"),
        pytest.param([7.0] * 9, 4, [0, 1, 2, 3], id="all-equal"),
        pytest.param([-3.0, -1.0, -2.0, -8.0], 2, [1, 2], id="negatives"),
        pytest.param([-0.0, 0.0, -0.0, 0.0], 2, [0, 1], id="both-zeros-are-equal"),
        pytest.param([0.5, -INF, 0.25, -INF], 4, [0, 2, -1, -1], id="fewer-visible"),
        pytest.param([-INF] * 5, 3, [-1, -1, -1], id="none-visible"),
        pytest.param([NAN, 1.0, INF, 0.0], 3, [1, 3, -1], id="only-finite-ones"),
        pytest.param([3.0, 1.0], 4, [0, 1, -1, -1], id="narrower-than-top-k"),
        pytest.param([1e-40, -1e-40, 0.0, 2e-40], 2, [0, 3], id="denormals"),
        pytest.param([3.3e38, 3.2e38, -3.3e38], 2, [0, 1], id="largest-numbers"),
    ],
)
def test_one_row(row, topk, want, run):
    assert run([row], topk) == [want]


@pytest.mark.parametrize("topk", [1, 5, 32, 100, 512])
def test_rows_that_see_from_nothing_to_everything(topk, run):
    logits = inputs(Shape(rows=5, columns=333, topk=topk), torch.Generator().manual_seed(5))["logits"]
    assert run(logits, topk) == [chosen(row, topk) for row in logits.float().tolist()]


@pytest.mark.parametrize("columns", [127, 128, 129, 400])
def test_ties_carry_on_from_block_to_block(columns, run, monkeypatch):
    """The kernel's block is made small, so that a row of few values takes several."""
    monkeypatch.setattr(index_topk, "BLOCK_COLUMNS", 128)
    rows = torch.arange(3 * columns).view(3, columns) * 7 % torch.tensor([[2], [3], [5]])
    assert run(rows, 90) == [chosen(row, 90) for row in rows.tolist()]


def test_more_columns_than_one_block_takes(run):
    logits = inputs(Shape(rows=2, columns=9001, topk=40), torch.Generator().manual_seed(5))["logits"]
    assert run(logits, 40) == [chosen(row, 40) for row in logits.float().tolist()]


def test_columns_of_candidate_blocks_stand_for_their_positions(run):
    blocks = [[2, 5, 9, -1], [0, 1, 2, 3]]
    logits = torch.randn(2, 32, generator=torch.Generator().manual_seed(5)).bfloat16()
    logits[0, 24:] = -INF  # the columns of a candidate -1
    got = run(logits, 12, blocks)
    assert got == [chosen(row, 12, own) for row, own in zip(logits.float().tolist(), blocks, strict=True)]
    assert set(got[0]) <= {*range(16, 24), *range(40, 48), *range(72, 80)}


def test_all_blocks_as_candidates_change_nothing(run):
    logits = inputs(Shape(rows=4, columns=96, topk=20), torch.Generator().manual_seed(5))["logits"]
    assert run(logits, 20, [list(range(12))] * 4) == run(logits, 20)


def test_logits_with_a_row_stride(run, device):
    wide = torch.randn(3, 90, generator=torch.Generator().manual_seed(5)).bfloat16()
    assert run(wide[:, 5:70], 9) == run(wide[:, 5:70].contiguous(), 9)


def test_rows_of_a_wider_output(provider, device):
    """More columns tie than there are places left, at a key that is odd and at one that is even: none spills over."""
    odd, even = [1.0, 0.50390625, 0.50390625, 0.50390625, 0.25], [1.0, 1.0, 0.5, 0.5, 0.5]
    tensors = arguments([odd, even], 3)
    buffer = torch.full((2, 9), -77, dtype=torch.int32, device=device)
    there = {name: value.to(device) if torch.is_tensor(value) else value for name, value in tensors.items()}
    provider.build({**there, "raw": buffer[:, 2:5]})()
    assert buffer.tolist() == 2 * [[-77, -77, 0, 1, 2, -77, -77, -77, -77]]


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        pytest.param(
            "logits",
            lambda logits: logits.repeat(1, 2)[:, ::2],
            r"logits: dimension 1 has stride 2, expected 1",
            id="logits-columns-apart",
        ),
        pytest.param(
            "logits",
            lambda logits: logits.repeat(1, 2)[:, :33],
            r"columns of logits: 33, expected at most 32: .* candidate blocks",
            id="logits-beyond-the-candidates",
        ),
        pytest.param(
            "candidates",
            lambda blocks: blocks.long(),
            r"candidates: int64 \[2, 4\], expected int32 \[2, blocks\]",
            id="candidate-dtype",
        ),
        pytest.param(
            "candidates",
            lambda blocks: blocks[:1],
            r"candidates: int32 \[1, 4\], expected int32 \[2, blocks\]",
            id="candidate-rows",
        ),
        pytest.param(
            "candidate_block", lambda size: 6, r"candidate_block: 6, expected a power of two", id="candidate-block"
        ),
        pytest.param("topk", lambda topk: 0, r"topk: 0, expected at least 1", id="no-top-k"),
        pytest.param(
            "topk", lambda topk: 5, r"raw: int32 \[2, 4\], expected int32 \[2, 5\]", id="top-k-wider-than-raw"
        ),
    ],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = arguments(torch.zeros(2, 32), 4, [[0, 1, 2, 3]] * 2)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize(("wrong", "right"), [(-2, -1), (2**28 - 1, 2**28 - 2)], ids=["negative", "beyond-i32"])
def test_a_candidate_out_of_range_is_named(wrong, right):
    tensors = arguments(torch.zeros(2, 32), 4, [[0, 1, 2, 3]] * 2)
    tensors["candidates"][1, 2] = right
    KERNEL.check_values(tensors)
    tensors["candidates"][1, 2] = wrong
    with pytest.raises(ValueError, match=rf"candidates\[1, 2\]: {wrong}, expected -1 to 268435454"):
        KERNEL.check_values(tensors)


LOGITS = st.sampled_from([-INF, -2.0, -0.0, 0.0, 0.5, 0.50390625, 1.0, 3.0])


@settings(max_examples=60)
@given(row=st.lists(LOGITS, min_size=1, max_size=40), topk=st.integers(1, 12))
def test_the_reference_chooses_what_a_sort_chooses(row, topk):
    tensors = arguments([row], topk)
    KERNEL.reference(**tensors)
    assert tensors["raw"].tolist() == [chosen(row, topk)]


def test_chunks_of_rows_give_what_one_chunk_gives(monkeypatch, device):
    tensors = inputs(Shape(rows=7, columns=64, topk=9), torch.Generator(device).manual_seed(5))
    KERNEL.reference(**tensors)
    whole = tensors["raw"].clone()
    monkeypatch.setitem(index_topk.CHUNK_VALUES, device, 2 * 64)
    KERNEL.reference(**tensors)
    assert torch.equal(tensors["raw"], whole)


def test_the_cost_reads_each_logit_once():
    found = cost(arguments(torch.zeros(3, 32), 4, [[0, 1, 2, 3]] * 3))
    assert (found.flops, found.bytes_read, found.bytes_written) == (96, 2 * 96 + 4 * 12, 4 * 12)
