"""How often each operation of a step is called, from the layer map alone: what every way of counting must find.

Written from docs/step.md, "Order of work in a layer", and not from the step. It covers a step over the sparse path
whose rows fill their bucket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.break_forms import BREAK_COPY, form_of
from dsv4bench.workloads.geometry import Geometry, LayerKind
from dsv4bench.workloads.model import dequants
from dsv4bench.workloads.variant import Variant

Key = tuple[str, int | None]  # operation, kv_source
EVERY_LAYER = (
    *("input_norm", "qkv_proj", "q_norm", "q_proj", "q_rope", "norm_rope_store"),
    *("dequant_swa", "sparse_attention", "inverse_rope", "o_proj_a", "o_proj_b"),
)
FUSED = {1: ("compress_c1", "index_k_proj", "index_key"), 2: ("compress_c2", "index_k_proj", "index_key")}
TORCH_PATH = ("compress_pool", "latent_norm", "store", "index_k_proj", "index_k_norm", "fake_quant", "index_pack")
PROJECTIONS = ("compress_proj", "index_q_proj", "index_weights_proj")


def expected_calls(geometry: Geometry, batch: Batch, variant: Variant) -> Counter[Key]:
    """Return the calls of each operation and kv_source in one forward of `batch`, replay off and path sparse."""
    found: Counter[Key] = Counter()
    filled, form = dequants(geometry, batch, variant), form_of(variant)
    copied = PROJECTIONS if form.breaks == "sm100" else ()  # what no segment reads is not copied
    for kind in geometry.layers:
        ops = [*EVERY_LAYER, *_mixing(kind, variant), *_of_source(kind, variant), *_of_core(geometry, kind)]
        ops += ["dequant_compressed"] if kind in filled else []
        if form.copies:  # the attention's output, and what each projection returns
            ops += [BREAK_COPY] * (1 + sum(op in copied for op in ops))
        found.update((op, kind.kv_source) for op in ops)
    return found


def _of_core(geometry: Geometry, kind: LayerKind) -> Iterator[str]:
    """Yield what depends on the layer's place: layer 0 takes in the rows, layers of ratio 0 share one index list."""
    if kind.layer == 0:
        yield "load_input"
    if kind.ratio or kind.layer == geometry.ratios.index(0):
        yield "combine"


def _mixing(kind: LayerKind, variant: Variant) -> Iterator[str]:
    """Yield what mixes the residual streams around a sublayer; layer 0 fills them."""
    if variant.mhc == "on":
        yield from ("mhc_pre", "mhc_stats", "mhc_mix", "mhc_post") * (1 if variant.moe == "off" else 2)
        yield from ("mhc_enter",) if kind.layer == 0 else ()


def _of_source(kind: LayerKind, variant: Variant) -> Iterator[str]:
    if kind.owns_kv:
        yield from _compressor(kind, variant)
    if kind.owns_index:
        yield from ("index_q_proj", "index_weights_proj", "index_query", "index_logits", "index_topk")
        if kind.candidates == "publish":
            yield "index_candidates"


def _compressor(kind: LayerKind, variant: Variant) -> Iterator[str]:
    """Yield a source's compressor; the torch path projects kv and score apart, and FP4 rotates where it stores."""
    yield "compress_proj"
    if kind.ratio == 1 or variant.compressor == "fused":
        yield from FUSED[kind.ratio]
        return
    yield "compress_proj"
    yield from TORCH_PATH
    if variant.kv.extra.encoding != "fp4":
        yield "fake_quant"
