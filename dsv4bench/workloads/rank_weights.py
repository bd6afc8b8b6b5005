"""What the whole model's weights take on one rank, and the stored sets of `--recipe` (specification 1.1, 8.1, 8.4).

Every figure is `modelled`: from the geometry and the formats of the checkpoint. The three draft layers and the vision
tower are left out, and so are norms and sinks, a few KiB a layer.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from fractions import Fraction

from dsv4bench.errors import UsageError, nearest
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.model import BF16_BYTES, matrices

VOCABULARY = 129_280  # specification 1.1
FP8_BYTES = Fraction(1025, 1024)  # a value, and a ue8m0 scale for each block of 32 x 32 (1.1)
FP4_BYTES = Fraction(17, 32)  # half a byte, and a ue8m0 scale for 32 values along K (1.1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A stored deployment: the fraction of memory, tokens of a chunk, ranks of the experts, and where that is said.

    Weights are those of the checkpoint in all of them: dense FP8, routed experts FP4 (specification 1.1).
    """

    name: str
    fraction: float
    chunk: int
    ranks: int
    source: str


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("dep4", 0.70, 4096, 4, "DEP4 of 8.1; fraction and chunk of InferenceX for H200, H100 and GB200, 8.4"),
        Recipe("b200-dep4", 0.80, 4096, 4, "InferenceX, B200 TP4/EP4, 8.4"),
        Recipe("b200-dep2", 0.92, 2048, 2, "InferenceX, B200 TP2/EP2, 8.4"),
        Recipe("gb300-dep2", 0.80, 8192, 2, "upstream's test of GB300 TP2/EP2, 8.4; its chunk also in 10"),
    )
}


def recipe_of(text: str) -> Recipe | None:
    """Return the stored set called `text`, or None for ""; UsageError names the nearest one."""
    if text and text not in RECIPES:
        raise UsageError(f"--recipe {text}: expected one of {', '.join(RECIPES)}{nearest(text, tuple(RECIPES))}")
    return RECIPES.get(text)


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Modelled bytes of one rank's weights by part; every rank has all but the routed experts whole (8.1)."""

    embedding_bytes: int
    attention_bytes: int
    router_bytes: int
    shared_bytes: int
    routed_bytes: int

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(astuple(self))


def rank_weights(geometry: Geometry, ranks: int) -> RankWeights:
    """Return what the model takes on one of `ranks` ranks, with the Engram table on the host (as 1.1 has it).

    Embedding and LM head are bf16 matrices of their own.
    """
    layers = len(geometry.layers)
    attention = sum(inputs * outputs for kind in geometry.layers for _, inputs, outputs in matrices(geometry, kind))
    expert = layers * 3 * geometry.hidden * geometry.expert_width
    return RankWeights(
        embedding_bytes=2 * VOCABULARY * geometry.hidden * BF16_BYTES,
        attention_bytes=int(attention * FP8_BYTES),
        router_bytes=layers * geometry.hidden * geometry.routed_experts * BF16_BYTES,
        shared_bytes=int(geometry.shared_experts * expert * FP8_BYTES),
        routed_bytes=int(geometry.routed_experts * expert * FP4_BYTES / ranks),
    )
