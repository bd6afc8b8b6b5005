"""Layer kinds against the table of specification 1.2, and the refusals."""

from collections import Counter
from dataclasses import replace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI, geometry, why_not

# (layers, ratio, kv source, index source of each layer): the table of specification 1.2, written out
TABLE = [
    (range(2), 0, None, None),
    (range(2, 8), 2, 2, 2),
    (range(8, 14), 2, 8, 8),
    (range(14, 20), 2, 14, 14),
    (range(20, 24), 1, 20, 20),
    (range(24, 28), 1, 20, 24),
    (range(28, 32), 1, 20, 28),
    (range(32, 36), 1, 20, 32),
    (range(36, 40), 1, 20, 36),
]
BOTH = pytest.mark.parametrize("model", [V41_FLASH, V41_FLASH_MINI], ids=lambda model: model.name)


@BOTH
def test_layer_map(model):
    found = [(kind.layer, kind.ratio, kind.kv_source, kind.index_source) for kind in model.layers]
    assert found == [(layer, *rest) for layers, *rest in TABLE for layer in layers]


@BOTH
def test_layers_per_kv_source(model):
    sources = Counter(kind.kv_source for kind in model.layers if kind.ratio)
    assert sources == {2: 6, 8: 6, 14: 6, 20: 20}


@BOTH
def test_owners_and_candidates(model):
    kinds = model.layers
    assert [kind.layer for kind in kinds if kind.owns_kv] == [2, 8, 14, 20]
    assert [kind.layer for kind in kinds if kind.owns_index] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert {kind.layer: kind.candidates for kind in kinds if kind.candidates != "none"} == {
        20: "publish",
        24: "consume",
        28: "consume",
        32: "consume",
        36: "consume",
    }


def test_widths_of_v41_flash():
    model = V41_FLASH
    assert (model.hidden, model.heads, model.q_rank, model.o_groups, model.o_rank) == (5120, 64, 1280, 8, 1024)
    assert model.attention_scale == pytest.approx(0.0441942, rel=1e-6)
    assert model.index_weight_scale == 0.015625
    assert model.eps == 1e-20
    assert model.compressed_ratios == (1, 2)


def test_mini_shrinks_widths_only():
    smaller = (
        "name",
        "hidden",
        "heads",
        "q_rank",
        "o_groups",
        "o_rank",
        "index_heads",
        "index_topk",
        "candidate_blocks",
        "routed_experts",
        "expert_width",
    )
    kept = replace(V41_FLASH_MINI, **{name: getattr(V41_FLASH, name) for name in smaller})
    assert kept == V41_FLASH
    assert all(getattr(V41_FLASH_MINI, name) < getattr(V41_FLASH, name) for name in smaller[1:])


def test_index_sources_before_the_candidate_source_take_no_part():
    model = replace(V41_FLASH, candidate_source=8)
    assert {kind.layer: kind.candidates for kind in model.layers if kind.owns_index and kind.ratio == 2} == {
        2: "none",
        8: "publish",
        14: "consume",
    }
    assert {kind.candidates for kind in model.layers if kind.ratio == 1} == {"none"}


def test_no_candidate_source_filters_nothing():
    model = replace(V41_FLASH, candidate_source=None)
    assert {kind.candidates for kind in model.layers} == {"none"}


def test_known_names():
    assert geometry("v41-flash") is V41_FLASH
    assert geometry("v41-flash-mini") is V41_FLASH_MINI


def test_unknown_name_names_the_nearest():
    with pytest.raises(UsageError, match=r"--geometry v41-flsh: .*did you mean 'v41-flash'.*config\.json"):
        geometry("v41-flsh")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ratios": (0, 4, 128)}, "compress ratio 4 is not one that this version runs (0, 1, 2)"),
        ({"kv_sources": (2, 8, 14, 40)}, "source layer 40 is not one of the 40 layers"),
        ({"kv_sources": (8, 14, 20)}, "layer 2 of ratio 2 has no KV source"),
        ({"index_sources": (2, 8, 14)}, "layer 20 of ratio 1 has no index source"),
        (
            {"candidate_source": 21},
            "candidate source 21 of ratio 1 is no index source, so nothing publishes candidates",
        ),
        ({"candidate_source": 0}, "candidate source 0 of ratio 0 is no index source, so nothing publishes candidates"),
        ({"candidate_source": 14}, None),
        ({"candidate_source": None}, None),
        ({"o_groups": 7}, "64 heads do not divide into 7 output groups"),
        ({}, None),
    ],
    ids=[
        "ratio",
        "source outside",
        "no kv source",
        "no index source",
        "candidates of a reader",
        "candidates of a window layer",
        "candidates of ratio 2",
        "no candidates",
        "groups",
        "v41-flash itself",
    ],
)
def test_why_not(changes, reason):
    assert why_not(replace(V41_FLASH, **changes)) == reason
