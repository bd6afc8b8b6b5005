"""What the cells of a group share: extents, capacity, storage; and a prompt in chunks against the whole prompt."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.pools import Extent
from dsv4bench.workloads.prefill import extents_of, prepare
from tests.workloads.stacks import DEEP, SHORT, batch, cell, follow, model_of, run, same, variant

PLANS = {
    "one forward": ((batch((5, 3), (0, 2)),), (Extent(5, 8), Extent(0, 2))),
    "chunks": (
        (Batch((Request(0, 5, 3),)), Batch((Request(0, 8, 4), Request(1, 0, 1))), Batch((Request(1, 1, 6),))),
        (Extent(5, 12), Extent(0, 7)),
    ),
    "padding": ((batch((5, 3), bucket=8),), (Extent(5, 8),)),
}


@pytest.mark.parametrize("case", PLANS)
def test_extents(case):
    plan, expected = PLANS[case]
    assert extents_of((plan,)) == expected


def test_extents_of_two_ranks():
    """Requests keep the numbers that they had before they were dealt; an idle rank has none."""
    first = (Batch((Request(0, 5, 3),), 0), Batch((Request(2, 7, 1),), 0))
    second = (Batch((Request(1, 2, 9),), 1), Batch((), 1).padded(4))
    assert extents_of((first, second)) == (Extent(5, 8), Extent(2, 11), Extent(7, 8))


@pytest.fixture(scope="module")
def two_forwards():
    return cell(SHORT, batch((13, 9), (0, 3)), batch((22, 30)))


def test_storage_is_sized_for_the_largest_forward(two_forwards):
    assert two_forwards.capacity == {1: 52, 2: 26}
    assert two_forwards.buffers.residual.shape == (30, SHORT.hidden)
    assert two_forwards.inputs.positions.shape == (30,)
    assert {ratio: table.shape for ratio, table in two_forwards.freqs.items()} == dict.fromkeys((0, 1, 2), (52, 64))
    assert two_forwards.buffers.pooled.shape[0] == 0  # no torch path was asked for


def test_the_torch_path_has_buffers_of_its_own():
    buffers = cell(SHORT, batch((0, 3)), torch_path=True).buffers
    own = (buffers.split_kv, buffers.split_score, buffers.pooled, buffers.group_positions, buffers.slots)
    own += (buffers.rotated, buffers.index_k_normed, buffers.index_k_rotated, buffers.payload, buffers.scales)
    assert {tensor.shape[0] for tensor in own} == {3}


def test_each_ratio_has_a_rotation_of_its_own(two_forwards):
    """Layers of ratio 1 and 2 share the YaRN table, ratio 0 has the plain one (specification 1.1)."""
    assert torch.equal(two_forwards.freqs[1], two_forwards.freqs[2])
    assert not torch.equal(two_forwards.freqs[0], two_forwards.freqs[1])


def test_the_variants_of_a_group_share_storage(two_forwards):
    on, off = two_forwards.step(variant()), two_forwards.step(variant(reuse="off"))
    assert on.pools is off.pools
    assert on.buffers is off.buffers
    assert on.inputs is off.inputs
    assert on.kv_buffer is not off.kv_buffer


def test_the_workspace_is_reserved_for_the_largest_forward(two_forwards):
    """Ratio 1 keeps all rows. First 22 + 3, and as many window rows; then 25 + 3 tokens of old: 52 and 52."""
    assert [forward.workspace_rows for forward in two_forwards.forwards[0]] == [2 * (22 + 3), 2 * 52]
    assert two_forwards.step(variant()).kv_buffer.capacity_rows == 104


def test_forwards_have_hidden_states_of_their_own():
    plan = ((batch((0, 4)), batch((4, 4))), (Batch((Request(1, 0, 4),), 1), Batch((Request(1, 4, 4),), 1)))
    made = prepare(model_of(SHORT), variant(kv="v4"), plan, torch_path=False)
    hidden = [forward.inputs.hidden for forward in made.all_forwards()]
    assert len(hidden) == 4
    assert not any(torch.equal(hidden[i], hidden[j]) for i in range(4) for j in range(i))


def test_another_batch_runs_over_the_same_pools(two_forwards):
    other = two_forwards.forward(batch((13, 8), (0, 3)))
    planned = two_forwards.forwards[0][0]
    assert other.inputs.loc[:8].tolist() == planned.inputs.loc[:8].tolist()
    assert not torch.equal(other.inputs.hidden[:8], planned.inputs.hidden[:8])
    assert run(two_forwards.step(variant()), other).shape == (11, SHORT.hidden)


def test_the_same_cell_again_is_the_same_cell():
    found = []
    for _ in range(2):
        made = cell(SHORT, batch((13, 9), (0, 3)))
        found.append([run(made.step(variant()), made.forwards[0][0])])
    assert same(*found)


# ---- a prompt in chunks

# every visible position is selected, so that no near tie of the top-k can turn rounding into another choice
EVERYTHING = replace(DEEP, index_topk=64, candidate_blocks=8)
CUTS = {"odd": (7, 1, 16), "even": (8, 8, 8), "longer than the ring": (3, 20, 1)}


def in_chunks(geometry, prefix, cuts, hidden):
    """Run one request chunk by chunk, each chunk on top of the ones before; return all output rows."""
    firsts = [prefix + sum(cuts[:i]) for i in range(len(cuts))]
    made = cell(geometry, *(batch((first, rows)) for first, rows in zip(firsts, cuts, strict=True)))
    step, outputs = made.step(variant()), []
    for forward, rows in zip(made.forwards[0], hidden.split(cuts), strict=True):
        forward.inputs.hidden.copy_(rows)
        outputs.append(follow(step, forward))
    return torch.cat(outputs).float()


@pytest.fixture(scope="module")
def prompt():
    return torch.randn(24, DEEP.hidden, generator=torch.Generator().manual_seed(3)).bfloat16()


@pytest.fixture(scope="module")
def whole(prompt):
    return in_chunks(EVERYTHING, 13, (24,), prompt)


def distance(got, whole, prompt):
    """Return how far outputs lie apart, as a share of what the 40 layers added to the prompt."""
    return ((got - whole).norm() / (whole - prompt.float()).norm()).item()


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
def test_40_layers_in_chunks_are_close_to_the_whole_prompt(prompt, whole, cuts):
    """GEMMs may round otherwise at another row count; `test_sources` has the bytes from equal inputs.

    40 layers of quantised rows make 6 % of changed last bits of the prompt, so rounding alone explains no more.
    """
    assert distance(in_chunks(EVERYTHING, 13, cuts, prompt), whole, prompt) < 0.08


def test_chunks_of_another_prompt_are_not_close(prompt, whole):
    """The measure above tells prompts apart that differ in their first token only."""
    other = prompt.clone()
    other[0] = other[1]
    chunked = in_chunks(EVERYTHING, 13, CUTS["odd"], other)
    assert distance(chunked[1:], whole[1:], prompt[1:]) > 0.2
