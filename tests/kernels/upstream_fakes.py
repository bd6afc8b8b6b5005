"""Stand-ins for the packages that upstream's adapters call.

Each has the parameters of the real function, checks the dtypes and strides that the real one checks before it
launches, and does the work by this project's references. So an adapter that swaps two arguments, or passes a view or an
integer of a kind that upstream refuses, fails on a machine that has neither package nor GPU.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import torch

from dsv4bench.kernels import codec, kernel
from dsv4bench.kernels.layout import INDEX_K, INDEX_K_FP8, LAYOUTS
from dsv4bench.kernels.paged import read_rows, write_rows

DSV4 = "sglang.kernels.ops.attention.dsv4"
QUANTIZATION = "sglang.kernels.ops.quantization"

# the parameters of each function, as its definition spells them without annotations
PARAMETERS = {
    "sglang.kernels.ops.layernorm.norm:rmsnorm": "input, weight, out=None, eps=1e-6",
    f"{DSV4}.norm_rope:fused_rope_inplace": "q, k, freqs_cis, positions, inverse=False",
    f"{DSV4}.norm_rope:fused_k_norm_rope_flashmla": (
        "kv, kv_weight, eps, freqs_cis, positions, out_loc, kvcache, page_size, layout=None, q=None"
    ),
    f"{DSV4}.attn:fused_store_cache": "input, cache, indices, *, page_size, type, layout=None, freqs_cis=None",
    f"{DSV4}.fp4_rope_fake_quant:rope_tail_fake_quant_fp4": (
        "x, freqs, rope_dim, inverse=False, block_size=32, *, compressed_kv=False, positions=None"
    ),
    f"{QUANTIZATION}.fp4_fake_quant:fake_quant_fp4": "x, block_size=32",
    f"{QUANTIZATION}.fp4_fake_quant:fake_quant_compressed_kv": "x",
    f"{DSV4}.dequant_k_cache:dequantize_k_cache_paged_dsv4": (
        "quant_k_cache, page_table_1_flattened, page_size, out=None, layout=None"
    ),
    f"{DSV4}.dequant_k_cache:gather_dequant_requant_fp8_paged_dsv4": (
        "quant_k_cache, page_table_1_flattened, page_size, extra_rows=0, out=None"
    ),
    f"{DSV4}.dequant_k_cache:_dequantize_k_cache_paged_v41_fp8_kernel": (
        "output_ptr, buf_fp8_ptr, buf_uint8_ptr, page_table_ptr, output_stride_0, BYTES_PER_PAGE, PAGE_SIZE,"
        " DATA_BYTES, SCALE_BYTES, TILE_SIZE, DATA_STRIDE, SCALE_BASE, SCALE_STRIDE, IS_HIP"
    ),
    f"{DSV4}.low_ratio_compress:c1_decode_norm_rope_store": (
        "kv_input, norm_weight, positions, out_loc, eps, freqs_cis, k_cache, *, page_size, layout=None, out=None"
    ),
    f"{DSV4}.low_ratio_compress:c2_decode_norm_rope_store": (
        "kv_input, kv_state, norm_weight, positions, req, raw_out_loc, eps, freqs_cis, k_cache, *, page_size,"
        " ring_size, draft_len=1, layout=None, out=None"
    ),
    f"{DSV4}.low_ratio_compress:c2_prefill_norm_rope_store": (
        "kv_input, kv_state, norm_weight, positions, req, raw_out_loc, eps, freqs_cis, k_cache, extend_start_loc,"
        " extend_seq_lens, *, page_size, ring_size, layout=None, out=None"
    ),
    f"{DSV4}.c2_decode_pool:c2_decode_pool": (
        "kv, score, pos, raw_out_loc, out_loc, req, state_kv, state_score, pad_row, *, ring_size=0"
    ),
    f"{DSV4}.fp4_indexer_rope:index_k_norm_rope_pack_store": (
        "input, norm_weight, eps, freqs_cis, positions, loc, cache, *, ratio"
    ),
    f"{QUANTIZATION}.fp4_indexer_quant:quantize_fp4_indexer_tensor": "x, rne=False",
    "sglang.kernels.ops.kvcache.dsv4_fp4_index_k_cache:_store_fp4_index_k_cache_kernel": (
        "k_fp4, k_sf, cache, loc, page_size, cache_stride, BLOCK"
    ),
    f"{DSV4}.fp4_indexer:fp4_index_logits_paged": (
        "q, weights, req, req_table, lens, table, page_size, max_len, ratio, candidate_mask=None"
    ),
    f"{DSV4}.topk:topk_transform_ragged_v2": "scores, seq_lens, *, out_offsets, out_indices, row_starts=None",
    f"{DSV4}.topk:topk_transform_bf16_small": "scores, seq_lens, page_table, out_page_indices, page_size",
    f"{DSV4}.candidate_blocks:amax_topk_blocks": "logits, seq_lens, nblocks, topk_blocks, max_seq_len=None",
    f"{DSV4}.sparse_prefill_kernels:combine_topk_swa_indices": (
        "topk_indices, query_start_loc, query_pos, seq_lens, gather_lens, compressed_base, swa_base, window_size,"
        " compress_ratio, topk, out_indices=None, out_lens=None, swa_indices=None, swa_lengths=None"
    ),
    f"{DSV4}.compress:CompressorPrefillPlan.generate": (
        "compress_ratio, req_pool_indices, seq_lens, extend_lens, req_to_token, full_to_state, swa_page_size,"
        " ring_size, num_q_tokens, use_cuda_graph=False, use_req_ring=False"
    ),
    f"{DSV4}.compress:CompressorDecodePlan.generate": (
        "compress_ratio, req_pool_indices, req_to_token, full_to_state, seq_lens, swa_page_size, ring_size,"
        " use_req_ring=False"
    ),
    f"{DSV4}.attn_metadata_kernels:build_page_table_positions_small": (
        "*, req_to_token, req_pool_indices_repeated, seq_lens_casual, max_seq_len, page_size, swa_window"
    ),
    f"{DSV4}.metadata_kernel:build_low_ratio_metadata": "seq_lens, out_loc, topk",
    f"{DSV4}.metadata_kernel:fill_all_compressed_indices": (
        "page_table, compressed_seq_lens, page_indices, *, compress_ratio, page_size, raw_indices=None"
    ),
    f"{DSV4}.attn:get_paged_mqa_logits_metadata": "seq_lens, page_size, num_sm",
    "flash_mla:flash_mla_sparse_fwd": (
        "q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, use_legacy=False, return_log2_lse=None"
    ),
    "flash_mla:flash_mla_with_kvcache": (
        "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,"
        " softmax_scale=None, causal=False, is_fp8_kvcache=None, indices=None, attn_sink=None, extra_k_cache=None,"
        " extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None, enable_batch_invariant=False,"
        " use_legacy=False, kv_format=None, descale_q=None, descale_k=None"
    ),
    "flash_mla:get_mla_metadata": "*args, **kwargs",
    f"{DSV4}.sparse_prefill_kernels:build_swa_token_ids": (
        "seq_lens, extend_seq_lens, req_pool_indices, req_to_token, full_to_swa, swa_window, total_swa"
    ),
    f"{DSV4}.compress:compress_forward": (
        "kv_score_buffer, kv_score_input, ape, plan, *, head_dim, compress_ratio, out=None, is_online=False"
    ),
    f"{DSV4}.compress:compress_norm_rope_store": (
        "kv, plan, *, norm_weight, norm_eps, freq_cis, out_loc, kvcache, page_size, use_fp4=False, bf16_store=False,"
        " kvcache_scale=None, rope_cache=None, fp4_k_write_metadata=None, layout='v4', fp8_2buff=False,"
        " kvcache_rope=None"
    ),
    "deep_gemm:get_paged_mqa_logits_metadata": "context_lens, block_kv, num_sms",
}
PARAMETERS[f"{DSV4}.dequant_k_cache:_dequantize_k_cache_paged_v41_fp4_kernel"] = PARAMETERS[
    f"{DSV4}.dequant_k_cache:_dequantize_k_cache_paged_v41_fp8_kernel"
]
BY_THEIR_NAME = {"v41_fp4": "fp4", "v41_fp4_new": "fp4_new", "uniform_fp8": "uniform"}
KINDS = {"i32": torch.int32, "i64": torch.int64, "f32": torch.float32, "bf16": torch.bfloat16, "u8": torch.uint8}


def layout_of(name):
    return LAYOUTS[BY_THEIR_NAME.get(name, name)]


def demand(tensor, kinds, dense=True):
    """Refuse a tensor as the real function does: of a dtype that it has no code for, or with gaps."""
    assert tensor.dtype in [KINDS[kind] for kind in kinds.split("|")], f"{tensor.dtype}, {kinds} taken"
    assert tensor.is_contiguous() or not dense, f"strides {tensor.stride()}"


def real(freqs_cis):
    """Turn upstream's complex table back into f32 [M, 64]."""
    assert freqs_cis.dtype == torch.complex64
    return torch.view_as_real(freqs_cis).flatten(-2)


def reference(name, **tensors):
    kernel(name).reference(**tensors)


# ---- rows


def rmsnorm(a):
    demand(a.input, "bf16", dense=False)
    reference("rms_norm", x=a.input, weight=a.weight, eps=a.eps, out=a.out)


def fused_rope_inplace(a):
    assert a.k is None
    demand(a.positions, "i32|i64")
    assert a.q.shape[-1] == 64
    reference("rope", x=a.q, freqs=real(a.freqs_cis), positions=a.positions, inverse=a.inverse)


def fused_k_norm_rope_flashmla(a):
    demand(a.kv, "bf16", dense=False)
    demand(a.out_loc, "i32")
    demand(a.kvcache, "u8")
    rows = {"kv": a.kv, "weight": a.kv_weight, "eps": a.eps, "freqs": real(a.freqs_cis), "positions": a.positions}
    layout = layout_of(a.layout)
    reference("norm_rope_store", **rows, loc=a.out_loc, cache=a.kvcache, page_size=a.page_size, layout=layout)


def fused_store_cache(a):
    demand(a.input, "bf16")
    demand(a.indices, "i32|i64")
    if a.type == "indexer":
        assert (a.layout, a.freqs_cis) == (None, None)
        reference("index_store_fp8", x=a.input, loc=a.indices, cache=a.cache, page_size=a.page_size)
        return
    assert a.type == "flashmla"
    positions = None
    if a.freqs_cis is not None:
        assert a.layout != "v4"
        assert a.freqs_cis.shape == (len(a.input), 64)
        positions = torch.arange(len(a.input), device=a.input.device)
    rows = {"x": a.input, "loc": a.indices, "freqs": a.freqs_cis, "positions": positions}
    reference("store", **rows, cache=a.cache, page_size=a.page_size, layout=layout_of(a.layout))


def rope_tail_fake_quant_fp4(a):
    assert a.rope_dim == 64
    assert not a.inverse
    block = 16 if a.compressed_kv else a.block_size
    rows = a.x.reshape(-1, a.x.shape[-1])
    positions = a.positions.repeat_interleave(len(rows) // len(a.x))
    out = torch.empty_like(rows)
    reference("fake_quant", x=rows, freqs=real(a.freqs), positions=positions, block=block, out=out)
    return out.view(a.x.shape)


def fake_quant_fp4(a):
    assert a.block_size == 32
    return codec.fake_quant_index(a.x.float()).to(a.x.dtype)


def fake_quant_compressed_kv(a):
    return codec.fake_quant_kv(a.x.float()).to(a.x.dtype)


def dequantize_k_cache_paged_dsv4(a):
    demand(a.quant_k_cache, "u8")
    demand(a.page_table_1_flattened, "i32|i64")
    tensors = {"cache": a.quant_k_cache, "ids": a.page_table_1_flattened, "page_size": a.page_size}
    reference("dequant", **tensors, layout=layout_of("v4"), out=a.out)


def gather_dequant_requant_fp8_paged_dsv4(a):
    demand(a.quant_k_cache, "u8")
    ids, out = a.page_table_1_flattened, a.out
    demand(ids, "i32|i64")
    assert out.shape == (len(ids) + a.extra_rows, 1, 512)
    reference("gather_requant", cache=a.quant_k_cache, ids=ids, page_size=a.page_size, out=out)


def _dequantize_kernel(a):
    sizes = (a.DATA_BYTES, a.SCALE_BYTES, a.TILE_SIZE)
    layouts = [layout for layout in LAYOUTS.values() if sizes == taken(layout)]
    layout = next(one for one in layouts if one.strides(a.PAGE_SIZE) == (a.DATA_STRIDE, a.SCALE_BASE, a.SCALE_STRIDE))
    assert a.buf_fp8_ptr.dtype == torch.float8_e4m3fn
    assert a.buf_fp8_ptr.data_ptr() == a.buf_uint8_ptr.data_ptr()
    assert a.grid == (len(a.page_table_ptr),)
    assert a.output_stride_0 == a.output_ptr.stride(0)
    assert not a.IS_HIP
    cache = a.buf_uint8_ptr.view(-1, a.BYTES_PER_PAGE)
    reference("dequant", cache=cache, ids=a.page_table_ptr, page_size=a.PAGE_SIZE, layout=layout, out=a.output_ptr)


def taken(layout):
    return layout.data_bytes, layout.scale_bytes, layout.values_per_scale


def _dequantize_k_cache_paged_v41_fp8_kernel(a):
    assert a.DATA_BYTES == 512
    _dequantize_kernel(a)


def _dequantize_k_cache_paged_v41_fp4_kernel(a):
    assert a.DATA_BYTES == 256
    _dequantize_kernel(a)


# ---- compressors


def c1_decode_norm_rope_store(a):
    demand(a.kv_input, "bf16")
    demand(a.out_loc, "i32|i64")
    demand(a.freqs_cis, "f32")
    rows = {"kv": a.kv_input, "weight": a.norm_weight, "eps": a.eps, "freqs": a.freqs_cis, "positions": a.positions}
    place = {"loc": a.out_loc, "cache": a.k_cache, "page_size": a.page_size, "layout": layout_of(a.layout)}
    reference("compress_c1", **rows, **place, latent=a.out)


def pairs(a):
    demand(a.kv_input, "f32")
    demand(a.kv_state, "f32")
    demand(a.req, "i64")
    demand(a.raw_out_loc, "i32|i64")
    demand(a.freqs_cis, "f32")
    rows = {"kv_score": a.kv_input, "ring": a.kv_state, "weight": a.norm_weight, "eps": a.eps, "freqs": a.freqs_cis}
    place = {"loc": a.raw_out_loc, "cache": a.k_cache, "page_size": a.page_size, "layout": layout_of(a.layout)}
    return {**rows, **place, "positions": a.positions, "req": a.req, "ring_size": a.ring_size, "latent": a.out}


def c2_decode_norm_rope_store(a):
    reference("compress_c2_decode", **pairs(a), draft_len=a.draft_len)


def c2_prefill_norm_rope_store(a):
    demand(a.extend_start_loc, "i32")
    demand(a.extend_seq_lens, "i32")
    reference("compress_c2", **pairs(a), starts=a.extend_start_loc, lens=a.extend_seq_lens)


def c2_decode_pool(a):
    ring = a.state_kv.as_strided((len(a.state_kv), 1024), (1024, 1), a.state_kv.storage_offset())
    assert a.state_score.data_ptr() == ring[:, 512:].data_ptr()
    assert a.pad_row == len(ring) - 1
    made = {"pooled": torch.empty_like(a.kv), "group_positions": torch.empty_like(a.pos)}
    made["slots"] = torch.empty_like(a.out_loc)
    ids = {"positions": a.pos, "req": a.req, "loc": a.raw_out_loc, "pair_loc": a.out_loc}
    reference("compress_pool_decode", kv=a.kv, score=a.score, ring=ring, **ids, ring_size=a.ring_size, **made)
    return tuple(made.values())


# ---- the indexer


def index_k_norm_rope_pack_store(a):
    demand(a.input, "bf16")
    demand(a.loc, "i64")
    demand(a.freqs_cis, "f32")
    rows = {"k": a.input, "weight": a.norm_weight, "eps": a.eps, "freqs": a.freqs_cis, "positions": a.positions}
    reference("index_key", **rows, loc=a.loc, ratio=a.ratio, cache=a.cache, page_size=a.cache.shape[1] // 68)


def quantize_fp4_indexer_tensor(a):
    assert a.rne
    payload, scales = codec.index_pack(a.x.float())
    return payload.view(torch.int8), scales.contiguous().view(torch.int32).squeeze(1)


def _store_fp4_index_k_cache_kernel(a):
    assert a.grid == (len(a.loc),)
    assert a.BLOCK == 64
    assert a.cache_stride == a.cache.stride(0)
    assert a.k_fp4.dtype == torch.uint8
    write_rows(a.cache, a.loc, (a.k_fp4, a.k_sf.view(torch.uint8).view(-1, 4)), a.page_size, INDEX_K)


def fp4_index_logits_paged(a):
    """Score what each row sees, from one slot a token; leave the rest unwritten, as the real one does."""
    demand(a.q, "bf16")
    assert a.q.shape[1] >= 16
    assert a.max_len <= a.req_table.shape[1] // a.ratio
    out = torch.full((len(a.q), a.max_len), 7.0)
    for row, seen in enumerate(a.lens.clamp(max=a.max_len).tolist()):
        slots = a.req_table[a.req[row], : seen * a.ratio : a.ratio].long() // a.ratio
        keys = codec.index_unpack(*read_rows(a.table, slots, a.page_size, INDEX_K)).float()
        dots = (a.q[row].float() @ keys.T).bfloat16().clamp(min=0)
        out[row, :seen] = (dots * a.weights[row][:, None]).float().sum(0).bfloat16().float()
    return out


def best(scores, count, kept):
    """Return the places of the `kept` best of the first `count` scores, best first, ties to the lowest."""
    return scores[:count].float().argsort(descending=True, stable=True)[:kept]


def topk_transform_ragged_v2(a):
    demand(a.scores, "f32")
    demand(a.seq_lens, "i32")
    demand(a.out_offsets, "i32")
    assert a.scores.stride(0) % 4 == 0
    a.out_indices.fill_(-1)
    for row, count in enumerate(a.seq_lens.tolist()):
        found = best(a.scores[row], count, a.out_indices.shape[1])
        a.out_indices[row, : len(found)] = found + a.out_offsets[row]


def topk_transform_bf16_small(a):
    demand(a.scores, "bf16", dense=False)
    demand(a.seq_lens, "i32")
    demand(a.page_table, "i32", dense=False)
    assert a.scores.stride(0) % 8 == 0
    assert a.scores.shape[1] <= 16384
    a.out_page_indices.fill_(-1)
    for row, count in enumerate(a.seq_lens.tolist()):
        found = best(a.scores[row], count, a.out_page_indices.shape[1])
        page = a.page_table[row, found // a.page_size]
        a.out_page_indices[row, : len(found)] = page * a.page_size + found % a.page_size


def amax_topk_blocks(a):
    demand(a.seq_lens, "i32")
    demand(a.nblocks, "i32")
    assert a.logits.stride(0) % 8 == 0
    out = torch.full((len(a.logits), a.topk_blocks), -1, dtype=torch.int32)
    for row, (count, blocks) in enumerate(zip(a.seq_lens.tolist(), a.nblocks.tolist(), strict=True)):
        assert blocks == -(-count // 8)
        keys = torch.full((blocks, 8), float("-inf"))
        keys.view(-1)[:count] = a.logits[row, :count].float()
        keys = keys.amax(1) if blocks else keys.new_empty(0)
        keys[-1:] = float("inf")
        found = best(keys, blocks, a.topk_blocks)
        out[row, : len(found)] = found.int()
    return out


def combine_topk_swa_indices(a):
    integers = (a.topk_indices, a.query_start_loc, a.query_pos, a.seq_lens, a.gather_lens)
    for tensor in (*integers, a.compressed_base, a.swa_base):
        demand(tensor, "i32", dense=False)
    assert a.compress_ratio >= 1
    assert a.topk_indices.shape[1] >= a.topk
    reference(
        "combine",
        raw=a.topk_indices,
        query_start=a.query_start_loc,
        positions=a.query_pos,
        seq_lens=a.seq_lens,
        gather_lens=a.gather_lens,
        compressed_bases=a.compressed_base,
        swa_bases=a.swa_base,
        window=a.window_size,
        ratio=a.compress_ratio,
        topk=a.topk,
        indices=a.out_indices,
        lens=a.out_lens,
    )


def flash_mla_sparse_fwd(a):
    demand(a.q, "bf16")
    demand(a.indices, "i32")
    demand(a.topk_length, "i32")
    demand(a.attn_sink, "f32")
    heads = a.q.shape[1]
    assert heads in (64, 128)
    assert a.indices.shape[1] == 1
    assert a.indices.shape[2] % heads == 0
    assert a.d_v == 512
    assert a.use_legacy
    out = torch.empty_like(a.q)
    keys = {"kv": a.kv, "indices": a.indices.squeeze(1), "lens": a.topk_length}
    reference("sparse_attention", q=a.q, **keys, sink=a.attn_sink, scale=a.sm_scale, out=out)
    return out, None, None


def get_mla_metadata(a):
    return SimpleNamespace(filled_by=None), None


def flash_mla_with_kvcache(a):
    """Attend over caches that are views [pages, size, 1, bytes]; a schedule may serve calls of one shape only."""
    assert a.block_table is a.cache_seqlens is a.num_splits is None
    assert a.use_legacy
    assert a.is_fp8_kvcache
    assert a.head_dim_v == 512
    assert a.q.shape[1:3] in ((1, 64), (1, 128))
    schedule, shape = a.tile_scheduler_metadata, (a.q.shape, a.k_cache.shape, a.indices.shape)
    assert schedule.filled_by in (None, shape)
    schedule.filled_by = shape
    tensors = {}
    parts = {"main": (a.k_cache, a.indices, a.topk_length)}
    parts["extra"] = (a.extra_k_cache, a.extra_indices_in_kvcache, a.extra_topk_length)
    for part, (cache, slots, lens) in parts.items():
        tensors |= dict.fromkeys((part, f"{part}_slots", f"{part}_lens", f"{part}_page_size", f"{part}_layout"))
        if cache is None:
            continue
        pages, size, one, width = cache.shape
        assert (one, width, slots.shape[1], slots.shape[2] % 64) == (1, 584, 1, 0)
        assert int(lens.min()) >= 1
        layout = layout_of("v4")
        tensors[part] = cache.as_strided((pages, layout.page_bytes(size)), (cache.stride(0), 1))
        tensors |= {f"{part}_slots": slots.squeeze(1), f"{part}_lens": lens, f"{part}_page_size": size}
        tensors[f"{part}_layout"] = layout
    out = torch.empty_like(a.q)
    reference(
        "paged_attention", q=a.q.squeeze(1), sink=a.attn_sink, scale=a.softmax_scale, out=out.squeeze(1), **tensors
    )
    return out, None


# ---- planners and metadata


def build_swa_token_ids(a):
    for tensor in (a.seq_lens, a.extend_seq_lens, a.req_pool_indices, a.req_to_token):
        demand(tensor, "i32", dense=False)
    demand(a.full_to_swa, "i64")
    count, rows = len(a.seq_lens), int(a.extend_seq_lens.sum())
    first, gathered = torch.empty(2, count, dtype=torch.int32)
    made = {"swa_first_pos": first, "swa_gather_lens": gathered}
    made["swa_offsets"] = torch.empty(count + 1, dtype=torch.int32)
    queries = {"query_start": torch.empty(count + 1, dtype=torch.int32)}
    queries["query_pos"] = torch.empty(rows, dtype=torch.int64)
    ids = torch.full((a.total_swa,), 77, dtype=torch.int32)  # what is spare stays as the allocator left it
    used = int(torch.minimum(a.seq_lens, a.extend_seq_lens + a.swa_window - 1).sum())
    requests = {"seq_lens": a.seq_lens, "extend_lens": a.extend_seq_lens, "req": a.req_pool_indices.long()}
    tables = {"table": a.req_to_token, "table_page": 1, "full_to_swa": a.full_to_swa, "window": a.swa_window}
    reference("chunk_windows", **requests, **tables, **queries, **made, swa_ids=ids[:used])
    return ids, first, gathered, made["swa_offsets"]


def generate_prefill(a):
    """Plan, and hand the records out in another order, as the planner on the device does."""
    from dsv4bench.kernels.compress_ring import StateRing

    demand(a.req_pool_indices, "i64")
    demand(a.req_to_token, "i32")
    ring = StateRing(a.compress_ratio, a.ring_size, a.swa_page_size, a.use_req_ring)
    plan_c = torch.zeros(a.num_q_tokens, 16, dtype=torch.uint8)
    plan_w = torch.zeros(a.num_q_tokens, 8, dtype=torch.uint8)
    batch = {"req_pool_indices": a.req_pool_indices, "seq_lens": a.seq_lens, "extend_lens": a.extend_lens}
    tables = {"req_to_token": a.req_to_token, "full_to_state": a.full_to_state}
    reference("plan_prefill", ring=ring, **batch, **tables, plan_c=plan_c, plan_w=plan_w)
    return SimpleNamespace(plan_c=plan_c.flip(0), plan_w=plan_w.flip(0))


def generate_decode(a):
    from dsv4bench.kernels.compress_ring import StateRing

    ring = StateRing(a.compress_ratio, a.ring_size, a.swa_page_size, a.use_req_ring)
    plan_d = torch.zeros(len(a.seq_lens), 16, dtype=torch.uint8)
    tables = {"req_to_token": a.req_to_token, "full_to_state": a.full_to_state}
    batch = {"req_pool_indices": a.req_pool_indices, "seq_lens": a.seq_lens}
    reference("plan_decode", ring=ring, **batch, **tables, plan_d=plan_d)
    return SimpleNamespace(plan_d=plan_d)


def build_page_table_positions_small(a):
    rows, pages = len(a.seq_lens_casual), -(-a.max_seq_len // a.page_size)
    lens, positions, swa_lens = torch.empty(3, rows, dtype=torch.int32)
    made = {"lens": lens, "positions": positions, "table": torch.empty(rows, pages, dtype=torch.int32)}
    sizes = {"max_seq_len": a.max_seq_len, "page_size": a.page_size, "window": a.swa_window}
    rows = {"req_to_token": a.req_to_token, "req": a.req_pool_indices_repeated, "seq_lens": a.seq_lens_casual}
    reference("page_table_positions", **rows, **sizes, **made, swa_lens=swa_lens)
    return SimpleNamespace(
        seq_lens_casual=lens, positions_casual=positions, page_table=made["table"], swa_topk_lengths=swa_lens
    )


def build_low_ratio_metadata(a):
    made = {}
    for ratio in (1, 2):
        made[f"r{ratio}_loc"] = torch.empty(len(a.out_loc), dtype=torch.int64)
        made[f"r{ratio}_lens"], made[f"r{ratio}_sparse_lens"] = torch.empty(2, len(a.out_loc), dtype=torch.int32)
        made[f"r{ratio}_pages"] = torch.empty(len(a.out_loc), -(-a.topk // 64) * 64, dtype=torch.int32)
    reference("low_ratio_metadata", seq_lens=a.seq_lens, loc=a.out_loc, topk=a.topk, **made)
    return tuple(made.values())


def fill_all_compressed_indices(a):
    made = {"slots": a.page_indices, "raw": a.raw_indices}
    sizes = {"ratio": a.compress_ratio, "page_size": a.page_size}
    reference("fill_compressed_indices", table=a.page_table, lens=a.compressed_seq_lens, **sizes, **made)


def schedule(lens, page_size, num_sm):
    demand(lens, "i32")
    assert page_size in (64, 128)
    out = torch.empty(num_sm + 1, 2, dtype=torch.int32)
    reference("mqa_schedule", lens=lens, page_size=page_size, num_sm=num_sm, schedule=out)
    return out


def get_paged_mqa_logits_metadata(a):
    if "context_lens" in vars(a):
        assert a.context_lens.dim() == 2
        return schedule(a.context_lens, a.block_kv, a.num_sms)
    return schedule(a.seq_lens.view(-1), a.page_size, a.num_sm)


def compress_forward(a):
    assert a.plan.compress_ratio == a.compress_ratio
    demand(a.kv_score_input, "f32|bf16")
    demand(a.kv_score_buffer, "f32|bf16")
    assert a.kv_score_buffer.shape[1] == a.compress_ratio
    assert a.ape.shape[1] == a.out.shape[1] == a.head_dim
    common = {"x": a.kv_score_input, "pool": a.kv_score_buffer, "ape": a.ape, "ratio": a.compress_ratio, "out": a.out}
    if a.plan.is_decode:
        (plan_d,) = a.plan[1:3]
        reference("compress_window_decode", **common, plan_d=plan_d)
    else:
        plan_c, plan_w = a.plan[1:3]
        assert len(plan_w) <= len(a.kv_score_input)
        reference("compress_window", **common, plan_c=plan_c, plan_w=plan_w)


def compress_norm_rope_store(a):
    demand(a.out_loc, "i64")
    width, layout = a.kv.shape[1], layout_of(a.layout)
    assert width == 512 or (width, a.layout) == (128, "v4")
    assert width == 128 or not a.use_fp4
    if width == 128:
        layout = INDEX_K if a.use_fp4 else INDEX_K_FP8
    records = {"kv": a.kv, "plan": a.plan[1], "decode": a.plan.is_decode, "ratio": a.plan.compress_ratio}
    norm = {"weight": a.norm_weight, "eps": a.norm_eps, "freqs": real(a.freq_cis)}
    place = {"out_loc": a.out_loc, "cache": a.kvcache, "page_size": a.page_size, "layout": layout}
    reference("compress_norm_rope_store", **records, **norm, **place)


RENAMED = {
    "CompressorPrefillPlan.generate": generate_prefill,
    "CompressorDecodePlan.generate": generate_decode,
}


# ---- a package of them


class Fake:
    """A function, or a Triton kernel that takes its grid in brackets, with the real one's parameters."""

    def __init__(self, function, calls):
        self.function, self.calls, self.grid = function, calls, None
        name = function.partition(":")[2]
        self.work = RENAMED[name] if name in RENAMED else globals()[name]
        scope = {}
        exec(f"def bound({PARAMETERS[function]}): return dict(locals())", scope)
        self.bound = scope["bound"]

    def __getitem__(self, grid):
        self.grid = grid
        return self

    def __call__(self, *args, **kwargs):
        self.calls.append(self.function)
        return self.work(SimpleNamespace(grid=self.grid, **self.bound(*args, **kwargs)))


def install(monkeypatch):
    """Put stand-ins for all packages into sys.modules; return the list that their calls are written to."""
    calls = []
    for function in PARAMETERS:
        module, _, name = function.partition(":")
        place = module_called(module, monkeypatch)
        *classes, name = name.split(".")
        for part in classes:
            if not hasattr(place, part):
                setattr(place, part, SimpleNamespace())
            place = getattr(place, part)
        setattr(place, name, Fake(function, calls))
    return calls


def module_called(name, monkeypatch):
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        found = sys.modules.get(path)
        if found is None or not getattr(found, "is_fake", False):
            found = ModuleType(path)
            found.__spec__, found.__path__, found.is_fake = ModuleSpec(path, None), [], True
            monkeypatch.setitem(sys.modules, path, found)
    return sys.modules[name]
