"""Random weights of the attention stack from a seed, scaled so that activations stay in range over 40 layers.

Matrices are stored [in, out] in bf16, so that a projection is `x @ weight`. Shapes: specification 1.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM
from dsv4bench.workloads.geometry import Geometry, LayerKind


@dataclass(frozen=True, slots=True)
class SourceWeights:
    """What a layer that owns compressed KV adds: compressor projection and norm, index-K projection and norm."""

    compress: torch.Tensor  # [hidden, 512] at ratio 1, [hidden, 1024] at ratio 2
    norm: torch.Tensor  # [512]
    index_k: torch.Tensor  # [512, 128]
    index_k_norm: torch.Tensor  # [128]


@dataclass(frozen=True, slots=True)
class IndexWeights:
    """What an index source adds: the query projection from the normed q latent, and the head weights from x."""

    query: torch.Tensor  # [q_rank, index_heads * 128]
    heads: torch.Tensor  # [hidden, index_heads]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's attention weights."""

    input_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [hidden, q_rank + 512]
    q_norm: torch.Tensor  # [q_rank]
    query: torch.Tensor  # [q_rank, heads * 512]
    kv_norm: torch.Tensor  # [512]
    sink: torch.Tensor  # [heads] f32
    output_a: torch.Tensor  # [o_groups, heads * 512 / o_groups, o_rank]
    output_b: torch.Tensor  # [o_groups * o_rank, hidden]
    source: SourceWeights | None
    index: IndexWeights | None


class _Maker:
    """Draws tensors one after another from one seeded generator."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def matrix(self, *shape: int, gain: float = 1.0) -> torch.Tensor:
        """Return a normal matrix that keeps the variance of its input, times `gain`."""
        drawn = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return drawn.normal_(0.0, gain * shape[-2] ** -0.5, generator=self._generator)

    def norm(self, width: int) -> torch.Tensor:
        """Return norm weights near one."""
        drawn = torch.empty(width, dtype=torch.bfloat16, device=self._device)
        return drawn.normal_(1.0, 0.1, generator=self._generator)

    def sink(self, heads: int) -> torch.Tensor:
        """Return one attention sink per head."""
        return torch.empty(heads, dtype=torch.float32, device=self._device).normal_(generator=self._generator)


@dataclass(frozen=True, slots=True)
class Model:
    """A geometry with its weights on a device, and the seed that everything random of a run is drawn from.

    `reserved` stands for weights that the stack has not: it is held, and nobody reads it.
    """

    geometry: Geometry
    weights: tuple[LayerWeights, ...]
    device: torch.device
    seed: int
    reserved: torch.Tensor | None = None


def make_model(geometry: Geometry, device: torch.device, seed: int) -> Model:
    """Draw every layer's weights on `device`; the same seed gives the same weights on the same kind of device."""
    maker = _Maker(device, seed)
    return Model(geometry, tuple(_layer(geometry, kind, maker) for kind in geometry.layers), device, seed)


def reserve(model: Model, count: int) -> Model:
    """Return the model with so many bytes of its device reserved; the model itself for none."""
    return replace(model, reserved=torch.empty(count, dtype=torch.uint8, device=model.device)) if count else model


def _layer(geometry: Geometry, kind: LayerKind, maker: _Maker) -> LayerWeights:
    group_width = geometry.heads * HEAD_DIM // geometry.o_groups
    # the residual stream adds one output per layer; this keeps its variance near one after all of them
    residual_gain = len(geometry.layers) ** -0.5
    return LayerWeights(
        input_norm=maker.norm(geometry.hidden),
        qkv=maker.matrix(geometry.hidden, geometry.q_rank + HEAD_DIM),
        q_norm=maker.norm(geometry.q_rank),
        query=maker.matrix(geometry.q_rank, geometry.heads * HEAD_DIM),
        kv_norm=maker.norm(HEAD_DIM),
        sink=maker.sink(geometry.heads),
        output_a=maker.matrix(geometry.o_groups, group_width, geometry.o_rank),
        output_b=maker.matrix(geometry.o_groups * geometry.o_rank, geometry.hidden, gain=residual_gain),
        source=_source(geometry, kind, maker) if kind.owns_kv else None,
        index=_index(geometry, maker) if kind.owns_index else None,
    )


def _source(geometry: Geometry, kind: LayerKind, maker: _Maker) -> SourceWeights:
    return SourceWeights(
        compress=maker.matrix(geometry.hidden, HEAD_DIM * kind.ratio),
        norm=maker.norm(HEAD_DIM),
        index_k=maker.matrix(HEAD_DIM, INDEX_DIM),
        index_k_norm=maker.norm(INDEX_DIM),
    )


def _index(geometry: Geometry, maker: _Maker) -> IndexWeights:
    return IndexWeights(
        query=maker.matrix(geometry.q_rank, geometry.index_heads * INDEX_DIM),
        heads=maker.matrix(geometry.hidden, geometry.index_heads),
    )
