"""The device operations of a step as a trace would show them, with the ranges that were around them.

Written from docs/step.md, "Order of work in a layer", and not from the step or from what infers layers.
"""

from dataclasses import replace

from dsv4bench.ranges import Range
from dsv4bench.workloads.geometry import V41_FLASH
from tests.profiling.traces.made_rows import Made

GEMM = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
FLASH = "void sm90::fwd::sparse_attn_fwd_kernel<512, true>(sm90::fwd::Params)"
SGLANG = "sglang::jit::(anonymous namespace)"
COPY = "Memcpy DtoD (Device -> Device)"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16> >(int)"
# operation -> its kernels; an operation that is not here is one GEMM
TRITON = {
    "input_norm": ["_rms_norm"],
    "q_norm": ["_rms_norm"],
    "latent_norm": ["_rms_norm"],
    "index_k_norm": ["_rms_norm"],
    "q_rope": ["_rope"],
    "inverse_rope": ["_rope"],
    "norm_rope_store": ["_norm_rope_store"],
    "compress_c1": ["_compress_c1"],
    "compress_c2": ["_compress_c2"],
    "compress_pool": [COPY, FILL, *["void at::native::elementwise_kernel<128, 4>(int)"] * 4, COPY],
    "index_key": ["_index_key"],
    "index_query": ["_index_query"],
    "index_logits": ["_index_logits", "_index_logits"],
    "index_topk": ["_index_topk"],
    "index_candidates": ["_index_candidates"],
    "combine": ["_combine"],
    "dequant_compressed": ["_dequant"],
    "dequant_swa": ["_dequant"],
    "sparse_attention": ["sparse_attention"],
    "paged_attention": ["_paged_attention"],
    "window_slots": ["_window_slots"],
    "compressed_slots": ["_compressed_slots"],
    "store": ["_store"],
    "fake_quant": ["_fake_quant"],
    "index_pack": ["_pack", "_store"],
    "o_proj_a": [GEMM, "void cublasLt::splitKreduce_kernel<32, 16, int>(cublasLt::cublasSplitKParams)"],
    "load_input": [COPY],
    "break_copy": [COPY],
    "zero_padding": [FILL],
}
UPSTREAM = TRITON | {
    "input_norm": ["void rmsnorm_warp_kernel<256, __nv_bfloat16>(int)"],
    "q_norm": ["void rmsnorm_cta_kernel<256, __nv_bfloat16>(int)"],
    "q_rope": ["void fused_rope_kernel<true, int>(FusedQKRopeParams)"],
    "inverse_rope": ["void fused_rope_kernel<true, int>(FusedQKRopeParams)"],
    "norm_rope_store": [f"void {SGLANG}::fused_k_norm_rope_flashmla_v41<__nv_bfloat16, 512l>(Params)"],
    "compress_c1": [f"void {SGLANG}::flash_c1_decode_kernel<512l, 64l, 8, int>(Params)"],
    "compress_c2": ["void flash_c2_prefill_kernel<512l>(P)", "void c2_prefill_store_kernel<512l, int>(int)"],
    "index_key": ["void index_k_kernel<true, 128l, 64l>(IndexKParams)"],
    "index_query": ["void index_q_kernel<true, 128l, 64l>(IndexQParams)"],
    "index_logits": ["_fp4_index_logits_kernel"],
    "index_topk": ["void topk_bf16_small_kernel<true>(TopKBF16Params)"],
    "combine": ["_combine_topk_swa_indices_kernel"],
    "dequant_compressed": ["_dequantize_k_cache_paged_v41_fp4_kernel"],
    "dequant_swa": ["_dequantize_k_cache_paged_v41_fp8_kernel"],
    "sparse_attention": [FLASH],
}


PROJECTIONS = ("compress_proj", "index_q_proj", "index_weights_proj")
AHEAD = ("input_norm", "compress_proj", "compress_c1", "index_k_proj", "index_key")


def source_ops(kind, compressor="fused"):
    """Return what a source layer adds, in order."""
    torch = kind.owns_kv and kind.ratio == 2 and compressor == "torch"
    found = ["compress_proj"] * ((2 if torch else 1) if kind.owns_kv else 0)
    found += ["index_q_proj", "index_weights_proj"] if kind.owns_index else []
    if torch:
        found += ["compress_pool", "latent_norm", "store", "index_k_proj", "index_k_norm", "fake_quant", "index_pack"]
    elif kind.owns_kv:
        found += [f"compress_c{kind.ratio}", "index_k_proj", "index_key"]
    if kind.owns_index:
        found += ["index_query", "index_logits", "index_topk"]
        found += ["index_candidates"] if kind.candidates == "publish" else []
    return found


def layer_ops(kind, reuse="on", compressor="fused", packed=False, copies=False):
    """Return the operations of a layer in order; with `copies` its breaks copy and pad what they return."""
    found = ["load_input"] if kind.layer == 0 else []
    found += ["input_norm", "qkv_proj", "q_norm", "q_proj", "q_rope", "norm_rope_store"]
    for op in source_ops(kind, compressor):
        found += [op, "break_copy", "zero_padding"] if copies and op in PROJECTIONS else [op]
    if packed:
        found += ["window_slots"] if kind.layer == 20 else []
        found += ["compressed_slots"] if kind.owns_index else []
        found += ["paged_attention"]
    else:
        found += ["combine"] if kind.ratio or kind.layer == 0 else []
        found += ["dequant_compressed"] if kind.ratio and (reuse == "off" or kind.owns_kv) else []
        found += ["dequant_swa", "sparse_attention"]
    return [*found, *(["break_copy", "zero_padding"] if copies else []), "inverse_rope", "o_proj_a", "o_proj_b"]


def step_ops(geometry=V41_FLASH, late="off", **options):
    """Return (layer kind, operation) of a forward; `late` "on" runs layers 20 to 39 over packed caches."""
    for kind in geometry.layers:
        own = kind
        if late == "on" and kind.layer == 20:  # its compressor runs ahead, over all rows
            yield from (
                (kind, op) for op in ("input_norm", "compress_proj", "compress_c1", "index_k_proj", "index_key")
            )
            own = replace(kind, owns_kv=False)
        packed = late == "on" and kind.layer >= 20
        yield from ((kind, op) for op in layer_ops(own, packed=packed, **options))


CORE = ("combine", "dequant_compressed", "dequant_swa", "sparse_attention")
BREAKS = (*CORE, "break_copy", "zero_padding", *PROJECTIONS)


def step_trace(ops, steps=2, names=TRITON, ranges=True, breakable=False, between=()):
    """Return the trace of steps of such operations, each op under its range, and (layer, op, step) of every operation.

    `breakable` launches what lies between breaks by graphs; then a replay's operations have no range of their own.
    """
    made, truth, clock = Made(), [], 100
    graph = None
    for step in range(steps):
        for kind, op in ops:
            eager = not breakable or op in BREAKS
            begins = clock
            for name in names.get(op, [GEMM]):
                clock += 10
                if eager or graph is None:
                    graph = None if eager else clock
                    made.launched(clock, clock, "cuLaunchKernelEx" if eager else "cudaGraphLaunch")
                kind_of = "copy" if name.startswith("Memcpy") and eager else "kernel"
                shown = "memcpy128" if name.startswith("Memcpy") and not eager else name
                made.ran(graph or clock, shown, kind_of, start_ns=100_000_000 + clock)
                truth.append((kind.layer, op, step))
            clock += 10
            if ranges and eager:
                made.opened(Range(0, kind.layer, kind.ratio, kind.kv_source, op).text(), begins + 1, clock)
        graph = None
        for name in between:
            clock += 10
            made.launched(clock, clock).ran(clock, name, start_ns=100_000_000 + clock)
            truth.append((-1, None, -1))
    return made.trace(), truth
