"""The memory estimate against what is really allocated, and the refusal that says what would fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4bench.errors import UsageError
from dsv4bench.units import GIB
from dsv4bench.workloads import memory
from dsv4bench.workloads.batch import Request, equal_requests
from dsv4bench.workloads.buffers import make_buffers
from dsv4bench.workloads.cells import Cell, Load
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.memory import (
    estimate,
    free_bytes,
    own_weight_bytes,
    refuse_too_large,
    step_bytes,
    what_fits,
)
from dsv4bench.workloads.model import weight_bytes
from dsv4bench.workloads.pools import Extent, make_pools, make_tables
from dsv4bench.workloads.variant import KV_PAIRS, Variant

CPU = torch.device("cpu")


def uniform_cell(batch, extend, prefix, geometry=V41_FLASH, **changes):
    return replace(Cell(geometry, Load(equal_requests(batch, extend, prefix, 8192)), 8192, Variant()), **changes)


@pytest.mark.parametrize("kv", KV_PAIRS.values(), ids=KV_PAIRS)
@pytest.mark.parametrize("compressor", ["torch", "fused"])
def test_pools_and_buffers_are_what_is_allocated(kv, compressor):
    cell = uniform_cell(3, 8, 600, V41_FLASH_MINI, variant=Variant(kv, compressor=compressor))
    tables = make_tables([Extent(600, 608)] * 3, 128, CPU, seed=0)
    found = estimate((cell,))
    assert found.pool_bytes == make_pools(V41_FLASH_MINI, kv, tables, CPU).bytes
    assert found.buffer_bytes == make_buffers(V41_FLASH_MINI, 24, CPU, compressor == "torch").bytes


def test_workspace_is_that_of_the_largest_forward():
    rows = 65_536 + 8192 + 127
    on, off = (uniform_cell(1, 8192, 57_344, variant=Variant(reuse=reuse)) for reuse in ("on", "off"))
    torch_path = replace(on, variant=Variant(compressor="torch"))
    # one for reuse off, one for reuse on where it is asked for, and one to verify with; two steps more for a compressor
    for group, count in (((off,), 2), ((on,), 3), ((off, on), 3), ((off, on, torch_path), 5)):
        assert estimate(group).workspace_bytes == count * rows * 1024


def test_ranks_with_a_device_each_take_what_the_fullest_takes():
    real = uniform_cell(5, 128, 600, ranks=2, dep=True)
    assert estimate((real,)) == estimate((uniform_cell(3, 128, 600),))  # requests 0, 2 and 4
    assert estimate((replace(real, dep=False),)).pool_bytes == estimate((uniform_cell(5, 128, 600),)).pool_bytes


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_graph_pads_a_rank_of_a_device_to_the_bucket_of_all(graph):
    """Rank 1 has fewer rows and takes more, for its long prefix."""
    both = Load((Request(0, 0, 16), Request(1, 15_000, 8)))
    cell = Cell(V41_FLASH_MINI, both, 8192, Variant(graph=graph), ranks=2, dep=True)
    own, padded = (
        make_buffers(V41_FLASH_MINI, rows, CPU, torch_path=False, break_copies=graph).bytes for rows in (8, 16)
    )
    assert estimate((cell,)).buffer_bytes == (padded if graph else own)
    logits = 8 * 15_008 * 2  # of eight rows more, bf16
    assert step_bytes(cell, rank=1) - step_bytes(cell.of_rank(1), rank=0) == (padded - own + logits if graph else 0)


def test_a_long_prompt_is_chunked():
    chunked = replace(uniform_cell(1, 1, 0), load=Load((Request(0, 0, 10_000),)), chunk=4096)
    assert (
        estimate((chunked,)).workspace_bytes == 3 * (8192 + 4096 + 127) * 1024
    )  # the second chunk; the third has 1808 rows


def test_a_graph_needs_the_rows_of_its_bucket():
    eager = uniform_cell(1, 4100, 0)
    graph = replace(eager, variant=Variant(graph=True, break_outputs="static"))  # bucket 4608
    assert estimate((eager, graph)).buffer_bytes * 4100 == estimate((eager,)).buffer_bytes * 4608


@pytest.mark.parametrize(("replay", "rows"), [("off", 4608), ("on", 4608 + 128)])
def test_what_breaks_return_takes_one_attention_output(replay, rows):
    """64 heads of 512 channels in bf16, 64 KiB a row (specification 6.6); the rows of a tail have their own."""
    copy, static = (
        uniform_cell(1, 4100, 0, variant=Variant(graph=True, replay=replay, break_outputs=outputs))
        for outputs in ("copy", "static")
    )
    found = [estimate(group).buffer_bytes for group in ((copy,), (static, copy), (static,))]
    assert found[:2] == [found[2] + rows * 64 * 1024] * 2


def test_logits_are_tiled():
    assert estimate((uniform_cell(1, 8, 56),)).logits_bytes == 8 * 64 * 2
    assert estimate((uniform_cell(1, 8192, 500_000),)).logits_bytes == GIB


def test_tables_by_hand():
    found = estimate((uniform_cell(2, 8, 120, V41_FLASH_MINI),))
    rotations, slots = 3 * 128 * 256, 3 * 256 * 8 + 2 * 4
    hidden, gathers = 2 * 16 * 256 * 2, (2 * (128 + 64) + 2 * 128) * 4
    assert found.table_bytes == rotations + slots + hidden + gathers


def test_the_total_is_the_sum():
    found = estimate((uniform_cell(1, 8, 120, V41_FLASH_MINI),))
    parts = [getattr(found, name) for name in found.__slots__]
    assert found.total_bytes == sum(parts)
    assert len(parts) == 8


def test_what_fits_is_the_largest_batch_that_does():
    cell = uniform_cell(64, 1024, 65_536)
    needed = {count: estimate((uniform_cell(count, 128, 65_536),)).total_bytes for count in (40, 41)}
    middle = sum(needed.values()) // 2
    assert needed[40] < middle < needed[41]
    assert what_fits(middle, (cell,)) == "at most --batch 40 at this prefix"


def test_one_request_that_is_too_long():
    cell = uniform_cell(1, 1024, 1_000_000)
    answer = what_fits(12 * GIB, (cell,))
    prefix = int(answer.removeprefix("at most --prefix "))
    assert prefix % 256 == 0
    assert estimate((uniform_cell(1, 1024, prefix),)).total_bytes <= 12 * GIB
    assert estimate((uniform_cell(1, 1024, prefix + 256),)).total_bytes > 12 * GIB


def test_recorded_requests_that_are_too_many():
    load = Load(tuple(Request(index, 0, 100_000) for index in range(8)), "r.jsonl")
    cell = replace(uniform_cell(1, 1, 0), load=load)
    for count in (3, 7):
        fewer = replace(cell, load=replace(load, requests=load.requests[:count]))
        assert what_fits(estimate((fewer,)).total_bytes, (cell,)) == f"at most --batch {count}"


def test_nothing_fits():
    assert "the weights of v41-flash alone do not fit" in what_fits(GIB, (uniform_cell(1, 8, 120),))
    assert what_fits(10 * GIB, (uniform_cell(1, 8192, 0),)) == "a smaller --chunk or geometry"


def test_too_large_is_refused_before_allocation():
    cell = uniform_cell(64, 1024, 65_536)
    refuse_too_large([(cell,)], 100 * GIB)
    with pytest.raises(UsageError) as caught:
        refuse_too_large([(uniform_cell(1, 8, 120),), (cell,)], 15 * GIB)
    text = str(caught.value)
    assert text.startswith("--batch 64 --prefix 65536 (128 new tokens each): about ")
    assert "(modelled), 15.00 GiB free; expected at most --batch " in text


def test_a_recorded_cell_is_named_by_its_file():
    cell = replace(uniform_cell(1, 1, 0), load=Load((Request(0, 0, 100_000),), "r.jsonl"))
    with pytest.raises(UsageError, match=r"--requests r\.jsonl --batch 1: about"):
        refuse_too_large([(cell,)], 10 * GIB)


def test_free_memory(monkeypatch):
    assert free_bytes("cpu") > 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (7, 9))
    assert free_bytes("cuda") == 7


def test_free_memory_where_there_is_no_proc(monkeypatch):
    monkeypatch.setattr(memory, "Path", lambda _: Path("no such file"))
    assert free_bytes("cpu") > GIB // 4


def test_experts_and_their_rows_are_counted():
    cell = uniform_cell(4, 8, 120, V41_FLASH_MINI)
    one = replace(cell, variant=replace(cell.variant, moe="experts"))
    two = replace(one, ranks=2, dep=True)
    matrices = 3 * 256 * 64
    for found, ranks, rows in ((one, 1, 32), (two, 2, 16)):
        memory = estimate((found,))
        weights = 2 * (256 * 48 + (48 // ranks + 1) * matrices)
        every = ranks * rows
        # own rows and their sum with the residual; where ranks exchange, all rows and those that came back
        buffers = 2 * 256 * (2 * rows + (every + rows if ranks > 1 else 0))
        routing = every * (4 * 48 + 6 * (4 + 8)) + 4 * 48 // ranks
        assigned = every * 6 * 2 * 2 * (256 + 64)
        assert memory.moe_bytes == weights + buffers + routing + assigned
    assert estimate((cell,)).moe_bytes == 0


@pytest.mark.parametrize(("moe", "ranks", "experts"), [("off", 2, 0), ("collectives", 2, 0), ("experts", 2, 24)])
def test_weights_that_a_cell_holds_are_the_stacks_and_those_of_experts_that_stand_in(moe, ranks, experts):
    cell = uniform_cell(2, 8, 120, V41_FLASH_MINI, ranks=ranks, dep=True, variant=Variant(moe=moe))
    held = 256 * 48 + (experts + 1) * 3 * 256 * 64 if experts else 0  # router, routed of this rank and one shared
    assert own_weight_bytes(cell) == weight_bytes(V41_FLASH_MINI) + 2 * held
    without = replace(cell, variant=replace(cell.variant, moe="off"))
    rest = estimate((cell,)).moe_bytes - 2 * held  # buffers and rows, no weight twice
    assert step_bytes(cell, rank=0) == step_bytes(without, rank=0) + rest
