"""The widths of the model and the kind of each layer: which one owns compressed KV, which one reads whose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from dsv4bench.errors import UsageError, nearest
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM
from dsv4bench.workloads.config_file import looks_like_path, read_config

RATIOS = (0, 1, 2)  # compress ratios that this version runs
NO_CANDIDATES: Literal["none"] = "none"

Candidates = Literal["none", "publish", "consume"]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What one layer does: its ratio, whose compressed KV and whose top-k it reads, and which of them it makes.

    `candidates` says what an index source does with the candidate blocks of the two-level top-k (specification 6.5).
    """

    layer: int
    ratio: int
    kv_source: int | None
    index_source: int | None
    owns_kv: bool
    owns_index: bool
    candidates: Candidates


@dataclass(frozen=True, slots=True)
class Geometry:
    """The widths of one model; `ratios` has one entry per layer, draft layers left out (specification 1.1)."""

    name: str
    hidden: int
    heads: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    index_heads: int
    index_topk: int
    candidate_source: int | None
    candidate_blocks: int
    candidate_block: int
    rope_theta: float
    compress_rope_theta: float
    yarn_factor: float
    yarn_original: int
    beta_fast: float
    beta_slow: float
    max_positions: int
    eps: float
    index_page: int
    # the MoE of a layer, which `--moe experts` stands in for; 0 where a config names no experts
    routed_experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    shared_experts: int = 0

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        return _layer_kinds(self)

    @property
    def late_start(self) -> int | None:
        """The first of the late layers, which a replay runs on each request's tail only (specification 1.2).

        It is the last kv_source, whose compressed rows no layer before it reads; None where a layer behind it reads
        another source or none.
        """
        start = max(self.kv_sources, default=None)
        if start is None or any(kind.kv_source != start for kind in self.layers[start:]):
            return None
        return start

    @property
    def attention_scale(self) -> float:
        """Factor on q.k before the softmax: 512^-0.5 (specification 6.4)."""
        return float(HEAD_DIM**-0.5)

    @property
    def index_weight_scale(self) -> float:
        """Factor on the raw head weights of the indexer: 128^-0.5 * heads^-0.5, 0.015625 at 32 heads (3.7)."""
        return float((INDEX_DIM * self.index_heads) ** -0.5)

    @property
    def compressed_ratios(self) -> tuple[int, ...]:
        """The ratios other than 0 that the stack has, ascending."""
        return tuple(sorted(set(self.ratios) - {0}))


@cache
def _layer_kinds(geometry: Geometry) -> tuple[LayerKind, ...]:
    return tuple(_layer_kind(geometry, layer) for layer in range(len(geometry.ratios)))


def _layer_kind(geometry: Geometry, layer: int) -> LayerKind:
    kv_source = _source(geometry, geometry.kv_sources, layer)
    index_source = _source(geometry, geometry.index_sources, layer)
    owns_index = index_source == layer
    return LayerKind(
        layer=layer,
        ratio=geometry.ratios[layer],
        kv_source=kv_source,
        index_source=index_source,
        owns_kv=kv_source == layer,
        owns_index=owns_index,
        candidates=_candidates(geometry, layer) if owns_index else NO_CANDIDATES,
    )


def _source(geometry: Geometry, sources: tuple[int, ...], layer: int) -> int | None:
    """Return the nearest source at or before `layer` with the layer's own ratio (specification 1.2)."""
    ratio = geometry.ratios[layer]
    if ratio == 0:
        return None
    return max((source for source in sources if source <= layer and geometry.ratios[source] == ratio), default=None)


def _candidates(geometry: Geometry, layer: int) -> Candidates:
    source = geometry.candidate_source
    if source is None or layer < source or geometry.ratios[layer] != geometry.ratios[source]:
        return "none"
    return "publish" if layer == source else "consume"


V41_FLASH = Geometry(  # specification 1.1
    name="v41-flash",
    hidden=5120,
    heads=64,
    q_rank=1280,
    o_groups=8,
    o_rank=1024,
    window=128,
    ratios=(0,) * 2 + (2,) * 18 + (1,) * 20,
    kv_sources=(2, 8, 14, 20),
    index_sources=(2, 8, 14, 20, 24, 28, 32, 36),
    index_heads=32,
    index_topk=512,
    candidate_source=20,
    candidate_blocks=2048,
    candidate_block=8,
    rope_theta=10_000.0,
    compress_rope_theta=160_000.0,
    yarn_factor=16.0,
    yarn_original=65_536,
    beta_fast=32.0,
    beta_slow=1.0,
    max_positions=1_048_576,
    eps=1e-20,
    index_page=64,
    routed_experts=384,
    experts_per_token=6,
    expert_width=2304,
    shared_experts=1,
)

# Small enough for two CPU cores; layers, sources, KV rows and formats are those of v41-flash.
V41_FLASH_MINI = replace(
    V41_FLASH,
    name="v41-flash-mini",
    hidden=256,
    heads=4,
    q_rank=64,
    o_groups=2,
    o_rank=64,
    index_heads=4,
    index_topk=32,
    candidate_blocks=8,
    routed_experts=48,  # as many ranks share them evenly as share 384, up to 48
    expert_width=64,
)

GEOMETRIES = {known.name: known for known in (V41_FLASH, V41_FLASH_MINI)}


def geometry(name_or_path: str) -> Geometry:
    """Return the geometry called `name_or_path`, or the one that a Hugging Face config.json of this family describes.

    Raises UsageError for an unknown name, a file that is not such a config, or a model that this version does not run.
    """
    if name_or_path in GEOMETRIES:
        return GEOMETRIES[name_or_path]
    if not looks_like_path(name_or_path):
        hint = nearest(name_or_path, tuple(GEOMETRIES))
        known = f"known: {', '.join(GEOMETRIES)}, or the path of a config.json"
        raise UsageError(f"--geometry {name_or_path}: no such geometry{hint}; {known}")
    found = Geometry(**read_config(name_or_path))
    reason = why_not(found)
    if reason is not None:
        raise UsageError(f"{found.name}: {reason}")
    return found


def why_not(geometry: Geometry) -> str | None:
    """Return one sentence saying why this version cannot run `geometry`, or None if it can."""
    strange = sorted(set(geometry.ratios) - set(RATIOS))
    if strange:
        return f"compress ratio {strange[0]} is not one that this version runs ({', '.join(map(str, RATIOS))})"
    outside = [source for source in _all_sources(geometry) if not 0 <= source < len(geometry.ratios)]
    if outside:
        return f"source layer {outside[0]} is not one of the {len(geometry.ratios)} layers"
    for kind in geometry.layers:
        if kind.ratio and (kind.kv_source is None or kind.index_source is None):
            missing = "KV" if kind.kv_source is None else "index"
            return f"layer {kind.layer} of ratio {kind.ratio} has no {missing} source"
    candidates = geometry.candidate_source
    if candidates is not None and not geometry.layers[candidates].owns_index:
        ratio = geometry.ratios[candidates]
        return f"candidate source {candidates} of ratio {ratio} is no index source, so nothing publishes candidates"
    if geometry.heads % geometry.o_groups:
        return f"{geometry.heads} heads do not divide into {geometry.o_groups} output groups"
    return None


def _all_sources(geometry: Geometry) -> tuple[int, ...]:
    candidate = () if geometry.candidate_source is None else (geometry.candidate_source,)
    return geometry.kv_sources + geometry.index_sources + candidate
