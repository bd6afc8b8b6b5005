import pytest

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.kernel_ops import OPS, kernel_codes, op_of
from tests.profiling.traces.made_rows import Made


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("_dequant", "dequant"),
        ("_combine", "combine"),
        ("sparse_attention", "sparse_attention"),
        ("void sm90::fwd::sparse_attn_fwd_kernel<512, true>(sm90::fwd::Params)", "sparse_attention"),
        ("void sm100::prefill::sparse_fwd::head64::sparse_attn_fwd_kernel<T>(P)", "sparse_attention"),
        ("_ZN5sm1007prefill10sparse_fwd6head6422sparse_attn_fwd_kernelINS2_14KernelTemplateEEEvT_", "sparse_attention"),
        ("void sm100::prefill::fused_norm_rope_attn_rope_cast_fwd::core_attn::fwd_kernel<K>(P)", "sparse_attention"),
        ("void sm90::decode::sparse_fp8::flash_fwd_splitkv_mla_fp8_sparse_kernel<T>(P)", "paged_attention"),
        ("void smxx::decode::flash_fwd_mla_combine_kernel<T>(P)", "attention_merge"),
        ("_combine_topk_swa_indices_kernel", "combine"),
        ("_dequantize_k_cache_paged_v41_fp4_kernel", "dequant_compressed"),
        ("_dequantize_k_cache_paged_v41_fp8_kernel", "dequant"),
        ("void (anonymous namespace)::flash_c1_decode_kernel<512l, 64l>(P)", "compress_c1"),
        ("void c2_prefill_store_kernel<512l>(P)", "compress_c2"),
        ("void fused_k_norm_rope_flashmla_v41<__nv_bfloat16>(P)", "norm_rope_store"),
        ("void deep_gemm::sm90_fp8_mqa_logits<64>(P)", "index_logits"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_align2>(P)", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16>(P)", "gemm_part"),
        ("void flash::flash_fwd_kernel<T>(P)", None),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", None),
        ("ncclDevKernel_AllGather_RING_LL(args)", None),
    ],
)
def test_a_name_says_the_operation_of_a_kernel(name, op):
    assert op_of(name) == op


def ops(made):
    return [None if code == NO_ID else OPS[code] for code in kernel_codes(made.trace()).tolist()]


def test_the_last_dequant_before_an_attention_fills_the_window():
    made = Made()
    for place, name in enumerate(
        ["_dequant", "_dequant", "_other", "sparse_attention", "_dequant", "sparse_attention"]
    ):
        made.ran(name=name, start_ns=place)
    made.ran(name="_dequant", start_ns=99)
    compressed, window, attention = "dequant_compressed", "dequant_swa", "sparse_attention"
    assert ops(made) == [compressed, window, None, attention, window, attention, "dequant"]


def test_another_stream_is_another_order():
    made = Made().ran(name="_dequant", start_ns=1, stream=1).ran(name="sparse_attention", start_ns=2, stream=2)
    assert ops(made) == ["dequant", "sparse_attention"]


def test_copies_and_sets_are_no_kernels():
    assert ops(Made().ran(name="_dequant", kind="copy").ran(name="memcpy128")) == [None, None]
