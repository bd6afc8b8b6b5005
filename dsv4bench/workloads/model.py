"""What a forward costs at least, from lengths alone: FLOPs, bytes, launches, and a time. Everything here is `modelled`.

A byte is counted once however often a cache serves it, as the kernels' own costs do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dsv4bench.kernels.contract import Cost
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM, INDEX_K, KVLayout
from dsv4bench.units import NS_PER_S
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.break_forms import copied_row_bytes
from dsv4bench.workloads.geometry import Geometry, LayerKind
from dsv4bench.workloads.late_layers import early, late, sparse_layers
from dsv4bench.workloads.mhc import mixing_costs
from dsv4bench.workloads.moe_costs import TENSOR_CORES, moe_costs, moe_launches
from dsv4bench.workloads.variant import KVPair, Variant

BF16_BYTES = 2
ROW_BYTES = HEAD_DIM * BF16_BYTES  # a workspace row, and the bf16 row of a writer

MOE_WIDTH, MOE_ROUTED = 2304, 384  # of the MoE of v41-flash (specification 1.1)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates that a modelled time assumes; `launch_ns` is what one launch costs the host."""

    name: str
    bytes_per_s: float
    gemm_flops_per_s: float
    attention_flops_per_s: float
    launch_ns: float


# Assumptions, not measurements of this machine: elementwise copies and a plain Triton attention as measured on one H200
# (4.24 TB/s, 239 TFLOP/s), bf16 GEMMs at 60 % of the dense peak of 989 TFLOP/s, 10 us of host time a launch.
H200_CEILINGS = Ceilings("assumed H200 rates", 4.24e12, 0.6 * 989e12, 239e12, 10_000)
# the torch references of v41-flash-mini on one server core: 8 rows are bound by calls, 512 by the attention's gathers
CPU_CEILINGS = Ceilings("assumed CPU rates", 4e9, 60e9, 8e9, 200_000)


def ceilings_of(device: str) -> Ceilings:
    """Return the assumed rates of "cuda" or "cpu"."""
    return H200_CEILINGS if device == "cuda" else CPU_CEILINGS


@dataclass(frozen=True, slots=True)
class Saving:
    """What reuse leaves out of one forward: dequant calls, rows and bytes."""

    calls: int
    rows: int
    bytes: int

    def ns(self, bytes_per_s: float) -> float:
        """Return the predicted saving at a dequant rate, read and written bytes together."""
        return self.bytes / bytes_per_s * NS_PER_S


def compressed_rows(batch: Batch, ratio: int) -> int:
    """Return the compressed rows that one gather of `ratio` holds: floor(seq / ratio) of each request (6.2)."""
    return 0 if ratio == 0 or batch.idle else sum(seq // ratio for seq in batch.seq_lens)


def swa_rows(batch: Batch, window: int) -> int:
    """Return the window rows of one gather: min(seq, extend + window - 1) of each request (6.2)."""
    return 0 if batch.idle else sum(min(request.seq, request.extend + window - 1) for request in batch.requests)


def dequants(geometry: Geometry, batch: Batch, variant: Variant) -> list[LayerKind]:
    """Return the layers that dequantise a compressed region: all that have one, or with reuse those that fill it anew.

    Layers that attend packed caches, and the late layers of a replay, gather nothing.

    The head holds one source's rows: it stays while layers of that source follow each other (in v41-flash from each
    source to the next, 1.2), and any other layer in between, window-only ones included, takes it away (6.3).
    """
    found, head = [], None
    for kind in sparse_layers(geometry, variant, batch):
        if kind.ratio and (variant.reuse == "off" or kind.kv_source != head):
            found.append(kind)
        head = kind.kv_source
    return found


def dequant_rows(geometry: Geometry, batch: Batch, variant: Variant) -> int:
    """Return the compressed rows that one forward dequantises."""
    return sum(compressed_rows(batch, kind.ratio) for kind in dequants(geometry, batch, variant))


def dequant_bytes(layout: KVLayout, rows: int) -> int:
    """Return the bytes of dequantising `rows`: packed row read, bf16 row written (2.4)."""
    return rows * (layout.row_bytes + ROW_BYTES)


def reuse_saving(geometry: Geometry, batch: Batch, variant: Variant) -> Saving:
    """Return what reuse saves in one forward of `variant`, whichever of both the variant itself is."""
    off, on = replace(variant, reuse="off"), replace(variant, reuse="on")
    rows = dequant_rows(geometry, batch, off) - dequant_rows(geometry, batch, on)
    calls = len(dequants(geometry, batch, off)) - len(dequants(geometry, batch, on))
    return Saving(calls, rows, dequant_bytes(variant.kv.extra, rows))


def matrices(geometry: Geometry, kind: LayerKind) -> Iterator[tuple[str, int, int]]:
    """Yield (operation, inputs, outputs) of every projection of a layer, in the order of a forward (1.1)."""
    hidden, rank, width = geometry.hidden, geometry.q_rank, geometry.heads * HEAD_DIM
    yield "qkv_proj", hidden, rank + HEAD_DIM
    yield "q_proj", rank, width
    if kind.owns_kv:
        yield "compress_proj", hidden, HEAD_DIM * kind.ratio
        yield "index_k_proj", HEAD_DIM, INDEX_DIM
    if kind.owns_index:
        yield "index_q_proj", rank, geometry.index_heads * INDEX_DIM
        yield "index_weights_proj", hidden, geometry.index_heads
    for _ in range(geometry.o_groups):
        yield "o_proj_a", width // geometry.o_groups, geometry.o_rank
    yield "o_proj_b", geometry.o_groups * geometry.o_rank, hidden


def weight_bytes(geometry: Geometry) -> int:
    """Return the bytes of all projections in bf16; norms and sinks are a few KiB a layer."""
    shapes = (shape for kind in geometry.layers for shape in matrices(geometry, kind))
    return sum(inputs * outputs for _, inputs, outputs in shapes) * BF16_BYTES


def visible_keys(batch: Batch, ratio: int, most: int) -> int:
    """Return the sum over all rows of min((position + 1) // ratio, most)."""
    if batch.idle:
        return 0
    return sum(_keys_before(r.seq, ratio, most) - _keys_before(r.prefix, ratio, most) for r in batch.requests)


def _keys_before(tokens: int, ratio: int, most: int) -> int:
    """Return the sum of min(n // ratio, most) for n = 1 to `tokens`."""
    below = min(tokens + 1, most * ratio)  # from n = below on every row sees `most`
    full, rest = divmod(below, ratio)
    return ratio * full * (full - 1) // 2 + full * rest + (tokens + 1 - below) * most


def forward_work(geometry: Geometry, batch: Batch, variant: Variant, others: Sequence[Batch] = ()) -> dict[str, Cost]:
    """Return the least work of one forward by part: gemm, index, attention, both dequants, the writers, mixing, MoE.

    `others` are the batches of the other ranks, whose rows the experts of this one run too.
    """
    kv, sparse = variant.kv, sparse_layers(geometry, variant, batch)
    window_rows = swa_rows(batch, geometry.window) * len(sparse)
    head_rows = dequant_rows(geometry, batch, variant)
    own = own_rows(geometry, batch, variant)
    rows = sum(part.live for _, part in own)
    written = sum(batch.live // kind.ratio for kind in geometry.layers if kind.owns_kv)
    row_writes = rows * kv.main.row_bytes + written * (kv.extra.row_bytes + INDEX_K.row_bytes)
    packed = [kind for kind, _ in own if kind not in sparse]
    return {
        "gemm": _total(gemm_cost(part.rows, *shape) for kind, part in own for _, *shape in matrices(geometry, kind)),
        "index": _total(one for kind, part in own if kind.owns_index for one in index_costs(geometry, kind, part)),
        "attention": _total(attention_cost(geometry, kind, part, kv if kind in packed else None) for kind, part in own),
        "dequant_compressed": Cost(0, head_rows * kv.extra.row_bytes, head_rows * ROW_BYTES),
        "dequant_swa": Cost(0, window_rows * kv.main.row_bytes, window_rows * ROW_BYTES),
        "writers": Cost(0, rows * ROW_BYTES, row_writes),
        "break_copies": break_copies(geometry, batch, variant),
        "mixing": _total(_mixing(geometry, batch, variant)),
        "moe": _total(_moe(geometry, batch, variant, others)),
    }


def _mixing(geometry: Geometry, batch: Batch, variant: Variant) -> Iterator[Cost]:
    """Yield the work of mixing residual streams around every sublayer, where that is in the step (1.1)."""
    for kind, part in own_rows(geometry, batch, variant):
        yield from (cost for _, cost in mixing_costs(geometry, part.rows, kind, variant))


def _moe(geometry: Geometry, batch: Batch, variant: Variant, others: Sequence[Batch]) -> Iterator[Cost]:
    """Yield the router and the experts behind every layer; norm and sum are left out as attention's are."""
    ranks = (own_rows(geometry, one, variant) for one in (batch, *others))
    for (_, part), *rest in zip(*ranks, strict=True):
        costs = moe_costs(geometry, part, variant, [other for _, other in rest])
        yield from (cost for op, cost in costs if op in TENSOR_CORES)


def own_rows(geometry: Geometry, batch: Batch, variant: Variant) -> list[tuple[LayerKind, Batch]]:
    """Return every layer with the batch whose rows it runs: late layers that are replayed run those of the tail."""
    own = [(kind, batch) for kind in early(geometry, variant)]
    if late(geometry, variant):
        tail = batch.tail(geometry.window, len(batch.requests))
        own += [(kind, tail) for kind in late(geometry, variant)]
    return own


def break_copies(geometry: Geometry, batch: Batch, variant: Variant) -> Cost:
    """Return the bytes that a breakable graph moves to copy what its breaks return, of live rows (6.6)."""
    if batch.bucket is None:  # no forward of a graph
        return Cost(0, 0, 0)
    own = own_rows(geometry, batch, variant)
    copied = sum(part.live * sum(copied_row_bytes(geometry, kind, variant)) for kind, part in own)
    return Cost(0, copied, copied)


def gemm_cost(rows: int, inputs: int, outputs: int) -> Cost:
    """Return the least work of one projection of `rows` rows: weights and rows read once, results written, in bf16."""
    read = inputs * outputs + rows * inputs
    return Cost(2 * rows * inputs * outputs, read * BF16_BYTES, rows * outputs * BF16_BYTES)


def attention_cost(geometry: Geometry, kind: LayerKind, batch: Batch, packed: KVPair | None) -> Cost:
    """Queries and the gathered rows are read once, outputs written; a key costs a dot and a weighted sum (6.4).

    Over packed caches (of the pair `packed`) the rows that queries can name are read as they are stored.
    """
    keys = visible_keys(batch, 1, geometry.window)
    if kind.ratio:
        keys += visible_keys(batch, kind.ratio, geometry.index_topk)
    compressed, windows = compressed_rows(batch, kind.ratio), swa_rows(batch, geometry.window)
    gathered_bytes = (compressed + windows) * ROW_BYTES
    if packed is not None:
        named = min(compressed, visible_keys(batch, kind.ratio, geometry.index_topk))
        gathered_bytes = named * packed.extra.row_bytes + windows * packed.main.row_bytes
    query_bytes = batch.live * geometry.heads * ROW_BYTES
    return Cost(geometry.heads * keys * 4 * HEAD_DIM, query_bytes + gathered_bytes + keys * 4, query_bytes)


def index_costs(geometry: Geometry, kind: LayerKind, batch: Batch) -> tuple[Cost, Cost]:
    """Return the work of scoring every visible position, or those of candidate blocks, and of choosing the top-k (6.5).

    Logits are bf16: written by the first, read by the second.
    """
    most = geometry.candidate_blocks * geometry.candidate_block if kind.candidates == "consume" else batch.context
    pairs = visible_keys(batch, kind.ratio, most)
    query_bytes = batch.live * geometry.index_heads * INDEX_DIM * BF16_BYTES
    key_bytes = compressed_rows(batch, kind.ratio) * INDEX_K.row_bytes
    logit_bytes, flops = pairs * BF16_BYTES, 2 * geometry.index_heads * INDEX_DIM * pairs
    logits = Cost(flops, query_bytes + key_bytes, logit_bytes)
    return logits, Cost(0, logit_bytes, batch.live * geometry.index_topk * 4)


def _total(costs: Iterator[Cost]) -> Cost:
    every = list(costs)
    return Cost(*(sum(getattr(cost, part) for cost in every) for part in ("flops", "bytes_read", "bytes_written")))


def launches(geometry: Geometry, batch: Batch, variant: Variant, ranks: int = 1) -> int:
    """Return about how many launches one forward makes: operations of the step, GEMMs included (6.1, 3.6)."""
    kinds = geometry.layers
    sparse = sparse_layers(geometry, variant, batch)
    per_layer = 10  # 2 norms, 4 GEMMs, 2 rotations, SWA writer, attention
    combines = sum(1 for kind in sparse if kind.ratio) + (0 in geometry.ratios)
    slots = sum(1 for kind in kinds if kind.owns_index and kind not in sparse) + (len(sparse) < len(kinds))
    torch_path = 63 if variant.kv.extra.encoding == "fp4" else 64  # 61 or 62, and two projections
    sources = sum(
        torch_path if kind.ratio == 2 and variant.compressor == "torch" else 4 for kind in kinds if kind.owns_kv
    )
    index = sum(6 if kind.candidates == "publish" else 5 for kind in kinds if kind.owns_index)
    gathers = len(sparse) + len(dequants(geometry, batch, variant))
    copies = 0 if batch.bucket is None else sum(len(copied_row_bytes(geometry, kind, variant)) for kind in kinds)
    mixing = sum(1 for kind in kinds for _ in mixing_costs(geometry, batch.rows, kind, variant))
    per_layer += moe_launches(variant, ranks, batch.bucket is not None)
    return len(kinds) * per_layer + combines + slots + gathers + sources + index + copies + mixing


def forward_ns(
    geometry: Geometry, batch: Batch, variant: Variant, ceilings: Ceilings, others: Sequence[Batch] = ()
) -> float:
    """Return a modelled time of one forward: work over the assumed rates, or the launches where they take longer.

    `others` are the other ranks' batches. What crosses the link to them is in no time; a rank without rows takes none.
    """
    if not batch.live:
        return 0.0
    work = forward_work(geometry, batch, variant, others)
    seconds = sum(cost.bytes_moved for cost in work.values()) / ceilings.bytes_per_s
    seconds += sum(work[part].flops for part in ("gemm", "index", "mixing", "moe")) / ceilings.gemm_flops_per_s
    seconds += work["attention"].flops / ceilings.attention_flops_per_s
    whole = variant.graph and variant.graph_mode == "full"
    host_ns = 0.0 if whole else launches(geometry, batch, variant, 1 + len(others)) * ceilings.launch_ns
    return max(seconds * NS_PER_S, host_ns)
