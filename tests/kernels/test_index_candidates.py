"""Candidate blocks: the same choice as a sort in plain Python; the newest block; rows with few blocks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels import index_candidates
from dsv4bench.kernels.index_candidates import KERNEL, Shape, cost, inputs

INF = math.inf


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider; return the chosen block ids as lists."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(logits, positions, kept, ratio=1):
        tensors = arguments(logits, positions, kept, ratio)
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        KERNEL.provider(request.param).build(there)()
        return there["blocks"].tolist()

    return call


def arguments(logits, positions, kept, ratio=1):
    return {
        "logits": torch.as_tensor(logits, dtype=torch.bfloat16),
        "positions": torch.as_tensor(positions),
        "ratio": ratio,
        "candidate_block": 8,
        "blocks": torch.full((len(positions), kept), -77, dtype=torch.int32),
    }


def chosen(row, position, kept, ratio):
    """The newest visible block, then those of the largest logits, the lower first among equals; ascending."""
    visible = (position + 1) // ratio
    keys = {block: max(row[8 * block : 8 * block + 8]) for block in range(-(-min(visible, len(row)) // 8))}
    newest = (visible - 1) // 8
    best = sorted(keys, key=lambda block: (block != newest, -keys[block], block))[:kept]
    return sorted(best) + [-1] * (kept - len(best))


def peaks(*heights):
    """A row whose n-th block has its largest logit, `heights[n]`, somewhere inside."""
    row = torch.full((len(heights), 8), -9.0)
    row[torch.arange(len(heights)), torch.arange(len(heights)) * 3 % 8] = torch.tensor(heights)
    return row.flatten().tolist()


@pytest.mark.parametrize(
    ("row", "position", "kept", "want"),
    [
        pytest.param(peaks(1.0, 4.0, 2.0, 3.0, 0.0), 39, 3, [1, 3, 4], id="best-and-newest"),
        pytest.param(peaks(1.0, 4.0, 2.0, 3.0, 5.0), 39, 1, [4], id="one-kept-is-the-newest"),
        pytest.param(peaks(2.0, 2.0, 2.0, 2.0, 2.0), 39, 3, [0, 1, 4], id="tie-to-the-lowest-block"),
        pytest.param(peaks(-0.0, 0.0, -0.0, 1.0), 31, 3, [0, 1, 3], id="both-zeros-are-equal"),
        pytest.param(peaks(1.0, 2.0, 3.0, 4.0), 31, 4, [0, 1, 2, 3], id="as-many-as-kept"),
        pytest.param(peaks(1.0, 2.0, 3.0, 4.0), 31, 6, [0, 1, 2, 3, -1, -1], id="fewer-than-kept"),
        pytest.param(peaks(3.0, 2.0, -INF, -INF), 9, 3, [0, 1, -1], id="invisible-blocks-do-not-fill-up"),
        pytest.param([1.0] + [-INF] * 31, 0, 2, [0, -1], id="one-position"),
        pytest.param([-INF] * 32, 31, 3, [0, 1, 3], id="nothing-but-hidden-logits"),
    ],
)
def test_one_row(row, position, kept, want, run):
    assert run([row], [position], kept) == [want]


def test_a_row_that_sees_nothing_has_no_blocks(run):
    assert run([[-INF] * 16], [0], 2, ratio=2) == [[-1, -1]]


SHAPES = {
    "ratio-1": Shape(rows=6, columns=256, blocks=8, ratio=1, last=255),
    "ratio-2": Shape(rows=6, columns=128, blocks=5, ratio=2, last=255),
    "ragged-columns": Shape(rows=4, columns=133, blocks=5, ratio=1, last=132),
    "capacity-beyond-the-rows": Shape(rows=4, columns=640, blocks=6, ratio=1, last=200),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_row_of_a_batch(shape, run):
    tensors = inputs(shape, torch.Generator().manual_seed(6))
    logits, positions = tensors["logits"], tensors["positions"]
    want = [
        chosen(row, position, shape.blocks, shape.ratio)
        for row, position in zip(logits.float().tolist(), positions.tolist(), strict=True)
    ]
    assert run(logits, positions, shape.blocks, shape.ratio) == want


def test_ties_carry_on_from_tile_to_tile(run, monkeypatch):
    """The kernel's tile is made small, so that a row takes several."""
    monkeypatch.setattr(index_candidates, "BLOCKS_AT_ONCE", 16)
    logits = (torch.arange(2 * 400).view(2, 400) // 8 * 7 % torch.tensor([[3], [5]])).float()
    want = [chosen(row, 390, 30, 1) for row in logits.tolist()]
    assert run(logits, [390, 390], 30) == want


HEIGHTS = st.lists(st.sampled_from([-2.0, -0.0, 0.0, 0.5, 1.0]), min_size=1, max_size=12)


@settings(max_examples=60)
@given(heights=HEIGHTS, kept=st.integers(1, 8), hidden=st.integers(0, 7), ratio=st.sampled_from([1, 2]))
def test_the_reference_chooses_what_a_sort_chooses(heights, kept, hidden, ratio):
    row = peaks(*heights)
    visible = len(row) - hidden
    row[visible:] = [-INF] * hidden
    tensors = arguments([row], [visible * ratio - 1], kept, ratio)
    KERNEL.reference(**tensors)
    assert tensors["blocks"].tolist() == [chosen(row, visible * ratio - 1, kept, ratio)]


def test_chunks_of_rows_give_what_one_chunk_gives(monkeypatch, device):
    tensors = inputs(Shape(rows=7, columns=64, blocks=4, ratio=1, last=63), torch.Generator(device).manual_seed(6))
    KERNEL.reference(**tensors)
    whole = tensors["blocks"].clone()
    monkeypatch.setitem(index_candidates.CHUNK_VALUES, device, 2 * 64)
    KERNEL.reference(**tensors)
    assert torch.equal(tensors["blocks"], whole)


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        pytest.param(
            "logits",
            lambda logits: logits.repeat(1, 2)[:, ::2],
            r"logits: dimension 1 has stride 2, expected 1",
            id="logits-columns-apart",
        ),
        pytest.param("ratio", lambda ratio: 3, r"ratio: 3, expected a power of two", id="ratio"),
        pytest.param(
            "candidate_block", lambda size: 6, r"candidate_block: 6, expected a power of two", id="candidate-block"
        ),
        pytest.param(
            "blocks",
            lambda blocks: blocks[:1],
            r"blocks: int32 \[1, 3\], expected int32 \[2, blocks\]",
            id="blocks-rows",
        ),
        pytest.param(
            "blocks", lambda blocks: blocks[:, :0], r"blocks: keeps 0 a row, expected at least 1", id="no-blocks"
        ),
    ],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = arguments(torch.zeros(2, 12), [4, 11], 3)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize(("ratio", "last"), [(1, 11), (2, 24)])
def test_a_row_that_sees_more_than_the_logits_have_is_named(ratio, last):
    """At ratio 2 position 24 still sees 12 columns, position 25 a thirteenth."""
    tensors = arguments(torch.zeros(2, 12), [4, last], 3, ratio)
    KERNEL.check_values(tensors)
    tensors["positions"][1] = last + 1
    with pytest.raises(ValueError, match=rf"positions\[1\]: {last + 1}, expected 0 to {last}"):
        KERNEL.check_values(tensors)


def test_the_cost_reads_what_is_visible():
    found = cost(arguments(torch.zeros(2, 32), [4, 40], 3))
    assert (found.flops, found.bytes_read, found.bytes_written) == (5 + 32, 2 * (5 + 32) + 16, 4 * 6)
