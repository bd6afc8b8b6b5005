"""What the whole model takes on a rank, by hand from specification 1.1, and the stored sets."""

from dataclasses import replace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.rank_weights import RECIPES, rank_weights, recipe_of

# values of 40 layers: four matrices each, what 4 KV sources (three of ratio 2) and 8 index sources add
ATTENTION = 40 * (5120 * 1792 + 1280 * 32_768 + 8 * 4096 * 1024 + 8192 * 5120)
ATTENTION += 3 * 5120 * 1024 + 5120 * 512 + 4 * 512 * 128 + 8 * (1280 * 4096 + 5120 * 32)
EXPERT = 40 * 3 * 5120 * 2304  # one expert of every layer


@pytest.mark.parametrize(
    ("ranks", "routed_bytes", "total_bytes"),
    [(2, 144_388_915_200, 153_742_310_400), (4, 72_194_457_600, 81_547_852_800)],
)
def test_a_rank_of_v41_flash_by_hand(ranks, routed_bytes, total_bytes):
    found = rank_weights(V41_FLASH, ranks)
    assert found.attention_bytes == ATTENTION + ATTENTION // 1024 == 5_131_494_400
    assert found.embedding_bytes == 2 * 129_280 * 10_240
    assert found.router_bytes == 40 * 384 * 10_240
    assert found.shared_bytes == EXPERT + EXPERT // 1024
    assert found.routed_bytes == EXPERT * (384 // ranks) // 32 * 17 == routed_bytes
    assert found.total_bytes == total_bytes


def test_a_smaller_geometry_has_its_own_experts():
    found = rank_weights(V41_FLASH_MINI, 4)
    assert found.routed_bytes == 40 * 12 * 3 * 256 * 64 // 32 * 17
    assert found.embedding_bytes == 2 * 129_280 * 512


def test_a_config_without_experts_has_none():
    found = rank_weights(replace(V41_FLASH_MINI, routed_experts=0, shared_experts=0, expert_width=0), 4)
    assert (found.router_bytes, found.shared_bytes, found.routed_bytes) == (0, 0, 0)


def test_recipes_say_where_they_come_from():
    for name, recipe in RECIPES.items():
        assert recipe_of(name) is recipe
        assert 0 < recipe.fraction < 1
        assert "8." in recipe.source
    assert recipe_of("") is None


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UsageError, match=r"--recipe dep5: expected one of dep4, .*did you mean 'dep4'"):
        recipe_of("dep5")
