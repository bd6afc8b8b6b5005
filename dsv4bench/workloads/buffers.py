"""The static buffers of a step: every tensor that one operation writes and a later one reads.

They are allocated once for the most rows that a cell runs, and a step works on the first rows of each; so a captured
segment and an eager break see the same addresses, and no row buffer is allocated while a step is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

import torch

from dsv4bench.kernels.combine import width
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM
from dsv4bench.kernels.mhc import MIXES, SLICES, STATS, STREAMS
from dsv4bench.kernels.window_slots import columns as window_columns
from dsv4bench.workloads.geometry import Geometry

BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Row-wise buffers; all are bf16 unless said otherwise."""

    residual: torch.Tensor  # [rows, hidden]
    x: torch.Tensor  # [rows, hidden]: normed input of a layer
    qkv: torch.Tensor  # [rows, q_rank + 512]
    q_lora: torch.Tensor  # [rows, q_rank]: normed
    q: torch.Tensor  # [rows, heads, 512]
    attention: torch.Tensor  # [rows, heads, 512]
    output_a: torch.Tensor  # [rows, o_groups, o_rank]
    source_kv: torch.Tensor  # [rows, 512]: projection of a ratio-1 source
    kv_score: torch.Tensor  # [rows, 1024] f32: projection of a ratio-2 source, kv | score
    latent: torch.Tensor  # [rows, 512]
    index_k: torch.Tensor  # [rows, 128]
    index_q_raw: torch.Tensor  # [rows, index_heads, 128]
    index_q: torch.Tensor  # [rows, index_heads, 128]
    index_weights_raw: torch.Tensor  # [rows, index_heads]
    index_weights: torch.Tensor  # [rows, index_heads]
    candidates: torch.Tensor  # [rows, candidate_blocks] i32
    raw_1: torch.Tensor  # [rows, topk] i32: one shared top-k buffer per ratio (specification 1.2)
    raw_2: torch.Tensor  # [rows, topk] i32
    indices: torch.Tensor  # [rows, topk + window, rounded up to 128] i32
    lens: torch.Tensor  # [rows] i32
    window_indices: torch.Tensor  # [rows, window, rounded up to 128] i32: ratio 0, once per forward
    window_lens: torch.Tensor  # [rows] i32
    # attention over packed caches reads slots instead
    window_slots: torch.Tensor  # [rows, window, rounded up to 64] i32: once per forward
    window_slot_lens: torch.Tensor  # [rows] i32
    slots_1: torch.Tensor  # [rows, topk] i32: what raw_1 chose
    slots_2: torch.Tensor  # [rows, topk] i32: what raw_2 chose
    slot_lens_1: torch.Tensor  # [rows] i32
    slot_lens_2: torch.Tensor  # [rows] i32
    # the torch path of the ratio-2 compressor keeps its own
    split_kv: torch.Tensor  # [rows, 512] f32
    split_score: torch.Tensor  # [rows, 512] f32
    pooled: torch.Tensor  # [rows, 512]
    group_positions: torch.Tensor  # [rows] i64
    slots: torch.Tensor  # [rows] i64
    rotated: torch.Tensor  # [rows, 512]
    index_k_normed: torch.Tensor  # [rows, 128]
    index_k_rotated: torch.Tensor  # [rows, 128]
    payload: torch.Tensor  # [rows, 64] u8
    scales: torch.Tensor  # [rows, 4] u8
    # the residual streams, where they are in the step
    streams: torch.Tensor  # [rows, 4, hidden]
    collapsed: torch.Tensor  # [rows, hidden]: what a sublayer would take in
    mix_stats: torch.Tensor  # [rows, 16, 25] f32
    mixes: torch.Tensor  # [rows, 24] f32
    break_output: torch.Tensor  # [n] bf16: what a break returns, where that is then copied

    def own(self, out: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape and dtype of `out` that lies in `break_output`."""
        return self.break_output.view(out.dtype)[: out.numel()].view(out.shape)

    def with_streams(self) -> StepBuffers:
        """Return these buffers and, for as many rows, those of the residual streams."""
        rows, hidden = self.residual.shape
        return replace(self, **_streams(rows, hidden, self.residual.device))

    @property
    def bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def tensors(self) -> list[torch.Tensor]:
        """Return every buffer."""
        return [getattr(self, f.name) for f in fields(self)]

    def poison(self) -> None:
        """Fill every buffer with NaN, or with ones where it holds integers, so that a stale read shows."""
        for tensor in self.tensors():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 1)


def make_buffers(
    geometry: Geometry,
    rows: int,
    device: torch.device,
    torch_path: bool,
    packed: bool = False,
    break_copies: bool = False,
) -> StepBuffers:
    """Allocate the buffers of `rows` rows; those of torch path, packed attention and break copies only if asked for."""
    bf16, f32, i32 = (partial(torch.zeros, dtype=dtype, device=device) for dtype in (BF16, torch.float32, torch.int32))
    packed_rows = rows if packed else 0
    heads, index_heads, topk = geometry.heads, geometry.index_heads, geometry.index_topk
    # what a break may return: an attention output, kv | score in f32, index queries
    widest = max(heads * HEAD_DIM, 4 * HEAD_DIM, index_heads * INDEX_DIM)
    return StepBuffers(
        residual=bf16(rows, geometry.hidden),
        x=bf16(rows, geometry.hidden),
        qkv=bf16(rows, geometry.q_rank + HEAD_DIM),
        q_lora=bf16(rows, geometry.q_rank),
        q=bf16(rows, heads, HEAD_DIM),
        attention=bf16(rows, heads, HEAD_DIM),
        output_a=bf16(rows, geometry.o_groups, geometry.o_rank),
        source_kv=bf16(rows, HEAD_DIM),
        kv_score=f32(rows, 2 * HEAD_DIM),
        latent=bf16(rows, HEAD_DIM),
        index_k=bf16(rows, INDEX_DIM),
        index_q_raw=bf16(rows, index_heads, INDEX_DIM),
        index_q=bf16(rows, index_heads, INDEX_DIM),
        index_weights_raw=bf16(rows, index_heads),
        index_weights=bf16(rows, index_heads),
        candidates=i32(rows, geometry.candidate_blocks),
        raw_1=i32(rows, topk),
        raw_2=i32(rows, topk),
        indices=i32(rows, width(topk, geometry.window)),
        lens=i32(rows),
        window_indices=i32(rows, width(0, geometry.window)),
        window_lens=i32(rows),
        window_slots=i32(packed_rows, window_columns(geometry.window)),
        window_slot_lens=i32(packed_rows),
        slots_1=i32(packed_rows, topk),
        slots_2=i32(packed_rows, topk),
        slot_lens_1=i32(packed_rows),
        slot_lens_2=i32(packed_rows),
        **_torch_path(rows if torch_path else 0, device),
        **_streams(0, geometry.hidden, device),
        break_output=bf16(rows * widest if break_copies else 0),
    )


def _streams(rows: int, hidden: int, device: torch.device) -> dict[str, torch.Tensor]:
    bf16, f32 = (partial(torch.zeros, dtype=dtype, device=device) for dtype in (BF16, torch.float32))
    return {
        "streams": bf16(rows, STREAMS, hidden),
        "collapsed": bf16(rows, hidden),
        "mix_stats": f32(rows, SLICES, STATS),
        "mixes": f32(rows, MIXES),
    }


def _torch_path(rows: int, device: torch.device) -> dict[str, torch.Tensor]:
    bf16, f32, i64, u8 = (
        partial(torch.zeros, dtype=dtype, device=device) for dtype in (BF16, torch.float32, torch.int64, torch.uint8)
    )
    return {
        "split_kv": f32(rows, HEAD_DIM),
        "split_score": f32(rows, HEAD_DIM),
        "pooled": bf16(rows, HEAD_DIM),
        "group_positions": i64(rows),
        "slots": i64(rows),
        "rotated": bf16(rows, HEAD_DIM),
        "index_k_normed": bf16(rows, INDEX_DIM),
        "index_k_rotated": bf16(rows, INDEX_DIM),
        "payload": u8(rows, INDEX_DIM // 2),
        "scales": u8(rows, INDEX_DIM // 32),
    }
