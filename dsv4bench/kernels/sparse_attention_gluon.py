"""Sparse attention for Hopper in Gluon: gather, scores and weighted values run side by side in one program.

Each program (one a multiprocessor) walks its share of units, a unit being a query row and 64 of its heads, and of each
unit its tiles of BLOCK keys. Three partitions of warps pass a tile on through shared memory, STAGES tiles in flight:

    gather  4 warps   cp.async of the queries and of the tile's rows; a row that is not valid is zero-filled
    scores  4 warps   S = Q K^T (64 x BLOCK x 512), running maximum and sum, weights as bf16 and the fade of the sums
    values  8 warps   acc = acc * fade + P V (64 x 512 x BLOCK), half of the channels in each warpgroup

Barriers of a slot: k_full (the gather's 128 threads), p_full (scores), k_empty (values: keys, weights and fade are
free). Barriers of a unit: q_full (the gather's threads), q_empty (scores: the last product has read the queries).
Shared memory at BLOCK 64 and STAGES 2: 64 KiB of queries, two tiles of 64 KiB, weights, sums and barriers: 225 KiB.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.9 renamed it
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
DIM = gl.constexpr(512)
LOG2_E = gl.constexpr(1.4426950408889634)
NEG_INF = gl.constexpr(float("-inf"))
ROWS_OF_OUT = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 2], [1, 0]))  # 16 bytes a thread, eight warps
VALUE_WARPS = 8

# one argument a line would make the signatures longer than the bodies
# fmt: off


@gluon.jit
def _tiles(lens_ptr, row, columns, BLOCK: gl.constexpr):
    """Return a row's columns and its tiles, at least one: a row without keys passes an empty tile on."""
    length = gl.minimum(gl.load(lens_ptr + row), columns)
    return length, gl.maximum((length + BLOCK - 1) // BLOCK, 1)


@gluon.jit
def _gather(
    q_ptr, q_row_stride, q_head_stride, kv_ptr, kv_stride, keys, indices_ptr, indices_stride, columns, lens_ptr, units,
    q_smem, k_smem, q_full, q_empty, k_full, k_empty,
    HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    key = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout))
    channel = gl.arange(0, DIM, layout=gl.SliceLayout(0, layout))
    tile = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        row = (unit // HEAD_BLOCKS).to(gl.int64)
        first_head = (unit % HEAD_BLOCKS) * 64
        length, tiles = _tiles(lens_ptr, row, columns, BLOCK)
        index_at = indices_ptr + row * indices_stride + key
        index = gl.load(index_at, mask=key < length, other=-1)
        live = head + first_head < HEADS
        q_at = q_ptr + row * q_row_stride + (first_head + head)[:, None].to(gl.int64) * q_head_stride + channel[None, :]
        turn = unit // gl.num_programs(0)
        mbarrier.wait(q_empty, (turn & 1) ^ 1)
        copy_to_shared(q_smem.index(0), q_at, mask=live[:, None])
        async_copy.mbarrier_arrive(q_full, increment_count=False)
        for step in range(tiles):
            slot = tile % STAGES
            valid = (index >= 0) & (index < keys)
            # an invalid row is zero-filled, and its address is one that may be read
            k_at = kv_ptr + gl.where(valid, index, 0).to(gl.int64)[:, None] * kv_stride + channel[None, :]
            later = (step + 1) * BLOCK
            index = gl.load(index_at + later, mask=later + key < length, other=-1)
            mbarrier.wait(k_empty.index(slot), ((tile // STAGES) & 1) ^ 1)
            copy_to_shared(k_smem.index(slot), k_at, mask=valid[:, None])
            async_copy.mbarrier_arrive(k_full.index(slot), increment_count=False)
            tile += 1
    async_copy.commit_group()
    async_copy.wait_group(0)  # no copy may be on its way when the program ends


@gluon.jit
def _scores(
    indices_ptr, indices_stride, columns, keys, lens_ptr, sink_ptr, scale_log2, units,
    q_smem, k_smem, p_smem, fade_smem, norm_smem, q_full, q_empty, k_full, p_full,
    HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    head = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])  # one index a thread; by S's columns it would be 16
    key = gl.arange(0, BLOCK, layout=flat)
    zero = gl.zeros([64, BLOCK], gl.float32, layout)
    tile = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        row = (unit // HEAD_BLOCKS).to(gl.int64)
        first_head = (unit % HEAD_BLOCKS) * 64
        length, tiles = _tiles(lens_ptr, row, columns, BLOCK)
        index_at = indices_ptr + row * indices_stride + key
        index = gl.load(index_at, mask=key < length, other=-1)
        sink = gl.load(sink_ptr + first_head + head, mask=first_head + head < HEADS, other=0.0) * LOG2_E
        highest = gl.full([64], NEG_INF, gl.float32, gl.SliceLayout(1, layout))
        total = gl.zeros([64], gl.float32, gl.SliceLayout(1, layout))
        mbarrier.wait(q_full, (unit // gl.num_programs(0)) & 1)
        for step in range(tiles):
            slot = tile % STAGES
            floor = gl.where((index >= 0) & (index < keys), 0.0, NEG_INF)
            floor = gl.convert_layout(floor, gl.SliceLayout(0, layout))
            later = (step + 1) * BLOCK
            index = gl.load(index_at + later, mask=later + key < length, other=-1)
            mbarrier.wait(k_full.index(slot), (tile // STAGES) & 1)
            fence_async_shared()
            # always 0, but unknown to the compiler: it would keep 32 descriptors of Q in registers, and spill
            queries = q_smem.index(tile // 1000000000)
            raw = warpgroup_mma(queries, k_smem.index(slot).permute((1, 0)), zero, use_acc=False, is_async=True)
            raw = warpgroup_mma_wait(0, deps=[raw])
            if step == tiles - 1:
                mbarrier.arrive(q_empty)
            scores = raw * scale_log2 + floor[None, :]  # an invalid key was zero-filled: 0 - inf
            above = gl.maximum(highest, gl.max(scores, axis=1))
            shift = gl.where(above == NEG_INF, 0.0, above)
            weights = gl.exp2(scores - shift[:, None])
            fade = gl.exp2(highest - shift)
            total = total * fade + gl.sum(weights, axis=1)
            highest = above
            p_smem.index(slot).store(weights.to(gl.bfloat16))
            fade_smem.index(slot).store(fade)
            if step == tiles - 1:
                denominator = total + gl.exp2(sink - shift)
                norm_smem.index(slot).store(gl.where(above == NEG_INF, 0.0, 1.0 / denominator))
            fence_async_shared()
            mbarrier.arrive(p_full.index(slot))
            tile += 1


@gluon.jit
def _values(
    lens_ptr, columns, out_ptr, out_row_stride, out_head_stride, units,
    k_smem, p_smem, fade_smem, norm_smem, k_full, k_empty, p_full,
    HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    tile = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        row = (unit // HEAD_BLOCKS).to(gl.int64)
        first_head = (unit % HEAD_BLOCKS) * 64
        _, tiles = _tiles(lens_ptr, row, columns, BLOCK)
        acc = gl.zeros([64, DIM], gl.float32, layout)
        norm = gl.zeros([64], gl.float32, row_layout)
        for step in range(tiles):
            slot = tile % STAGES
            phase = (tile // STAGES) & 1
            mbarrier.wait(k_full.index(slot), phase)
            mbarrier.wait(p_full.index(slot), phase)
            fence_async_shared()
            acc = acc * fade_smem.index(slot).load(row_layout)[:, None]
            acc = warpgroup_mma(p_smem.index(slot), k_smem.index(slot), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            if step == tiles - 1:
                norm = norm_smem.index(slot).load(row_layout)
            mbarrier.arrive(k_empty.index(slot))
            tile += 1
        out = (acc * norm[:, None]).to(gl.bfloat16)
        out = gl.convert_layout(out, ROWS_OF_OUT)
        head = first_head + gl.arange(0, 64, layout=gl.SliceLayout(1, ROWS_OF_OUT))
        channel = gl.arange(0, DIM, layout=gl.SliceLayout(0, ROWS_OF_OUT))
        out_at = out_ptr + row * out_row_stride + head[:, None].to(gl.int64) * out_head_stride + channel[None, :]
        gl.store(out_at, out, mask=(head < HEADS)[:, None])


@gluon.jit
def sparse_attention(
    q_ptr, q_row_stride, q_head_stride, kv_ptr, kv_stride, keys, indices_ptr, indices_stride, columns, lens_ptr,
    sink_ptr, out_ptr, out_row_stride, out_head_stride, scale_log2, units,
    HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    SCORE_REGISTERS: gl.constexpr, GATHER_REGISTERS: gl.constexpr,
):
    """Attend `units` query rows times blocks of 64 heads (shapes: `sparse_attention`); 16 warps a program."""
    tile_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    p_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BLOCK], gl.bfloat16)
    row_layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [1, 64, DIM], tile_layout)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, DIM], tile_layout)
    p_smem = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK], p_layout)
    fade_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 64], row_layout)
    norm_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 64], row_layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    p_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=128)
        mbarrier.init(k_empty.index(slot), count=1)
        mbarrier.init(p_full.index(slot), count=1)
    mbarrier.init(q_full, count=128)
    mbarrier.init(q_empty, count=1)
    gl.warp_specialize(
        [
            (_values, (lens_ptr, columns, out_ptr, out_row_stride, out_head_stride, units,
                       k_smem, p_smem, fade_smem, norm_smem, k_full, k_empty, p_full,
                       HEADS, HEAD_BLOCKS, BLOCK, STAGES)),
            (_scores, (indices_ptr, indices_stride, columns, keys, lens_ptr, sink_ptr, scale_log2, units,
                       q_smem, k_smem, p_smem, fade_smem, norm_smem, q_full, q_empty, k_full, p_full,
                       HEADS, HEAD_BLOCKS, BLOCK, STAGES)),
            (_gather, (q_ptr, q_row_stride, q_head_stride, kv_ptr, kv_stride, keys, indices_ptr, indices_stride,
                       columns, lens_ptr, units, q_smem, k_smem, q_full, q_empty, k_full, k_empty,
                       HEADS, HEAD_BLOCKS, BLOCK, STAGES)),
        ],
        [4, 4],
        [SCORE_REGISTERS, GATHER_REGISTERS],
    )
