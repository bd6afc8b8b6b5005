"""Adapters to SGLang's planners and metadata builders, all of which allocate what they return."""

from __future__ import annotations

from typing import Any

import torch

from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.upstream_adapter import Adapter, Function, Results, delivers, needs_dense

DSV4 = "sglang.kernels.ops.attention.dsv4"
SGLANG = "sglang"
LAST = 1 << 40  # above every row of a batch


def _plan_prefill(t: Tensors, plan: Function) -> Results:
    ring, rows = t["ring"], t["plan_c"].shape[0]
    tables = (t["req_to_token"], t["full_to_state"])
    found = plan(
        ring.ratio,
        t["req_pool_indices"],
        t["seq_lens"],
        t["extend_lens"],
        *tables,
        ring.swa_page,
        ring.ring_size,
        rows,
        use_cuda_graph=True,
        use_req_ring=ring.request_ring,
    )
    return found.plan_c, found.plan_w


def _deliver_plans(t: Tensors, plans: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Order the records by row of the batch: the planner takes places from counters, in any order."""
    for name, column, found in zip(("plan_c", "plan_w"), (1, 0), plans, strict=True):
        words = found.view(torch.int32)
        row = words[:, column].long() & (0xFFFF if name == "plan_c" else 0xFFFFFFFF)
        t[name].copy_(found[row.masked_fill(words[:, 0] == -1, LAST).argsort(stable=True)])


def _plan_decode(t: Tensors, plan: Function) -> Results:
    ring = t["ring"]
    tables = (t["req_pool_indices"], t["req_to_token"], t["full_to_state"], t["seq_lens"])
    return (plan(ring.ratio, *tables, ring.swa_page, ring.ring_size, use_req_ring=ring.request_ring).plan_d,)


def _page_table_positions(t: Tensors, build: Function) -> Results:
    found = build(
        req_to_token=t["req_to_token"],
        req_pool_indices_repeated=t["req"],
        seq_lens_casual=t["seq_lens"],
        max_seq_len=t["max_seq_len"],
        page_size=t["page_size"],
        swa_window=t["window"],
    )
    return found.seq_lens_casual, found.positions_casual, found.page_table, found.swa_topk_lengths


def _low_ratio_metadata(t: Tensors, build: Function) -> Results:
    return build(t["seq_lens"], t["loc"], t["topk"])


def _fill_compressed_indices(t: Tensors, fill: Function) -> None:
    sizes = {"compress_ratio": t["ratio"], "page_size": t["page_size"]}
    fill(t["table"], t["lens"], t["slots"], **sizes, raw_indices=t["raw"])


def _mqa_schedule(t: Tensors, schedule: Function) -> Results:
    return (schedule(t["lens"], t["page_size"], t["num_sm"]),)


def _prepare_windows(t: Tensors) -> dict[str, Any]:
    """Narrow the requests to i32 and expand the table to one slot a token, as SGLang has both."""
    page, table = t["table_page"], t["table"]
    slots = table[:, :, None] * page + torch.arange(page, dtype=torch.int32, device=table.device)
    return {"req": t["req"].int(), "table": slots.flatten(1)}


def _chunk_windows(t: Tensors, build: Function) -> Results:
    requests = (t["seq_lens"], t["extend_lens"], t["req"])
    return build(*requests, t["table"], t["full_to_swa"], t["window"], t["swa_ids"].shape[0])


def _deliver_windows(t: Tensors, results: Results) -> None:
    """Blank spare entries, and write the lists of query rows, which SGLang has from its scheduler."""
    ids, first, gathered, offsets = results
    rows = torch.arange(len(t["query_pos"]), device=ids.device)
    start = t["query_start"]
    start[:1].zero_()
    torch.cumsum(t["extend_lens"], 0, out=start[1:])
    request = (torch.searchsorted(start, rows, right=True) - 1).clamp(max=len(first) - 1)
    prefix = t["seq_lens"] - t["extend_lens"]
    t["query_pos"].copy_((prefix[request] + rows - start[request]).masked_fill(rows >= start[-1], 0))
    t["swa_ids"].copy_(ids.masked_fill(torch.arange(len(ids), device=ids.device) >= offsets[-1], 0))
    delivers("swa_first_pos", "swa_gather_lens", "swa_offsets")(t, (first, gathered, offsets))


ADAPTERS = (
    Adapter(
        "plan_prefill",
        SGLANG,
        (f"{DSV4}.compress:CompressorPrefillPlan.generate",),
        _plan_prefill,
        "req_pool_indices",
        deliver=_deliver_plans,
        refuses=needs_dense("req_to_token"),
    ),
    Adapter(
        "plan_decode",
        SGLANG,
        (f"{DSV4}.compress:CompressorDecodePlan.generate",),
        _plan_decode,
        "req_pool_indices",
        deliver=delivers("plan_d"),
        refuses=needs_dense("req_to_token"),
    ),
    Adapter(
        "page_table_positions",
        SGLANG,
        (f"{DSV4}.attn_metadata_kernels:build_page_table_positions_small",),
        _page_table_positions,
        "req",
        deliver=delivers("lens", "positions", "table", "swa_lens"),
    ),
    Adapter(
        "low_ratio_metadata",
        SGLANG,
        (f"{DSV4}.metadata_kernel:build_low_ratio_metadata",),
        _low_ratio_metadata,
        "loc",
        deliver=delivers(*(f"r{ratio}_{part}" for ratio in (1, 2) for part in ("loc", "lens", "sparse_lens", "pages"))),
    ),
    Adapter(
        "fill_compressed_indices",
        SGLANG,
        (f"{DSV4}.metadata_kernel:fill_all_compressed_indices",),
        _fill_compressed_indices,
        "lens",
    ),
    Adapter(
        "mqa_schedule",
        SGLANG,
        (f"{DSV4}.attn:get_paged_mqa_logits_metadata",),
        _mqa_schedule,
        "lens",
        deliver=delivers("schedule"),
    ),
    Adapter(
        "chunk_windows",
        SGLANG,
        (f"{DSV4}.sparse_prefill_kernels:build_swa_token_ids",),
        _chunk_windows,
        "seq_lens",
        _prepare_windows,
        _deliver_windows,
    ),
)
