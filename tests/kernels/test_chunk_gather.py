"""Compressed rows that fill the workspace: by hand, by plain loops at every edge, and as the step lists them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels import chunk_gather
from dsv4bench.kernels.chunk_gather import KERNEL, Shape, cost, inputs
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.forward import make_forward
from dsv4bench.workloads.pools import Extent, make_tables
from tests.workloads.stacks import CPU, SHORT

POISON = 77


@pytest.fixture(scope="session", params=["torch", "triton"])
def run(request, device):
    """Call a provider on poisoned outputs; return them as lists."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        for name in KERNEL.outputs:
            there[name].fill_(POISON)
        KERNEL.provider(request.param).build(there)()
        return {name: there[name].tolist() for name in KERNEL.outputs}

    return call


def made(shape):
    tensors = inputs(shape, torch.Generator().manual_seed(4))
    KERNEL.check_values(tensors)
    return tensors


def looped(tensors):
    """Build every output one compressed row at a time (specification 6.2)."""
    page, ratio = tensors["table_page"], tensors["ratio"]
    ids, bases = [], []
    for seq, row in zip(tensors["seq_lens"].tolist(), tensors["req"].tolist(), strict=True):
        bases.append(len(ids))
        slots = [int(tensors["table"][row, p // page]) * page + p % page for p in range(seq)]
        ids += [max(slots[end - ratio] // ratio, 0) for end in range(1, seq + 1) if end % ratio == 0]
    size = len(tensors["ids"])
    swa_bases = [size + start for start in tensors["swa_offsets"].tolist()[:-1]]
    return {"ids": ids + [0] * (size - len(ids)), "bases": bases, "swa_bases": swa_bases}


def test_two_requests_by_hand(run):
    """Pages of 4 hold 2 rows of ratio 2: request 0 has pages 3, 1 and 7 tokens, so 3 rows, request 1 page 2 and 5."""
    tensors = made(Shape((7, 5), ratio=2, table_page=4, spare=1))
    tensors["req"] = torch.tensor([2, 0])
    tensors["table"] = torch.tensor([[2, 5], [99, 99], [3, 1]], dtype=torch.int32)
    tensors["swa_offsets"] = torch.tensor([0, 6, 11], dtype=torch.int32)
    assert run(tensors) == {"ids": [6, 7, 2, 4, 5, 0], "bases": [0, 3], "swa_bases": [6, 12]}


BATCHES = {
    "no-requests": Shape((), 1),
    "no-requests-but-room": Shape((), 1, spare=300),
    "ratio-1-page-edges": Shape((254, 255, 256, 257), 1),
    "ratio-2-page-edges": Shape((254, 255, 256, 257, 511, 512, 513, 514), 2),
    "shorter-than-the-ratio": Shape((1, 0, 1), 2),
    "ratio-4": Shape((3, 4, 5, 259, 260), 4, ids=torch.int32),
    "ratio-128": Shape((127, 128, 129, 255, 256, 700), 128),
    "token-slots": Shape((7, 300, 1), 2, table_page=1),
    "token-slots-of-ratio-128": Shape((127, 128, 385), 128, table_page=1),
    "room": Shape((600, 2), 1, spare=700),
    "as-long-as-a-program": Shape((255, 256, 257, 513), 1),
    "many-requests": Shape(tuple(i * 13 % 30 for i in range(70)), 2),
}


@pytest.mark.parametrize("shape", BATCHES.values(), ids=BATCHES)
def test_every_row_of_a_batch(shape, run):
    tensors = made(shape)
    assert run(tensors) == looped(tensors)


@pytest.mark.parametrize("programs", [1, 6])
def test_a_program_goes_on_where_there_are_few(programs, run, monkeypatch):
    monkeypatch.setattr(chunk_gather, "PROGRAMS", programs)
    tensors = made(Shape((1200, 2), 1, spare=600))
    assert run(tensors) == looped(tensors)


def test_a_page_that_is_none_becomes_the_dummy_slot(run):
    tensors = made(Shape((300,), 1))
    tensors["table"][int(tensors["req"][0]), 1] = -1
    assert run(tensors)["ids"][256:] == [0] * 44


def test_a_table_with_wider_rows(run):
    tensors = made(Shape((300, 5), 2))
    wide = torch.full((3, 10), 7777, dtype=torch.int32)
    wide[:, : tensors["table"].shape[1]] = tensors["table"]
    tensors["table"] = wide[:, : tensors["table"].shape[1]]
    assert run(tensors) == looped(tensors)


def test_slots_of_tokens_may_pass_31_bits(run):
    """A full slot of 2^32 is the compressed slot 2^25 of ratio 128: int32, but not on the way."""
    tensors = made(Shape((256,), 128))
    tensors["table"].fill_(2**24)
    assert run(tensors)["ids"] == [2**25, 2**25 + 1]


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("requests", [((5, 3), (300, 200), (0, 1)), ((127, 1), (0, 301), (256, 129))], ids=str)
def test_the_step_lists_the_same(requests, ratio, run):
    """`workloads/forward.py` builds these tables on the host's side of the step; they agree in every number."""
    tables = make_tables([Extent(prefix, prefix + new) for prefix, new in requests], 128, CPU, 3)
    batch = Batch(tuple(Request(i, *lengths) for i, lengths in enumerate(requests)))
    forward = make_forward(SHORT, tables, batch, 0)
    tensors = made(Shape(batch.seq_lens, ratio))
    offsets = torch.nn.functional.pad(forward.gather_lens.cumsum(0), (1, 0)).int()
    tensors |= {"table": tables.page_table, "req": torch.arange(len(requests)), "swa_offsets": offsets}
    gather = forward.gathers[ratio]
    wanted = {"ids": gather.ids, "bases": gather.bases, "swa_bases": gather.swa_bases}
    assert run(tensors) == {name: tensor.tolist() for name, tensor in wanted.items()}


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 50), max_size=6),
    ratio=st.sampled_from([1, 2, 4]),
    page=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 3),
)
def test_any_batch(run, lengths, ratio, page, spare):
    tensors = made(Shape(tuple(lengths), ratio, page, spare))
    assert run(tensors) == looped(tensors)


WRONG = {
    "page": ({"table_page": 3}, r"table_page: 3, expected a power of two"),
    "ratio": ({"ratio": 0}, r"ratio: 0, expected one of 1, 2, 4, 128"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        KERNEL.check(made(Shape((8, 3), 2)) | change)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seq_lens", 513, r"seq_lens\[1\]: 513, expected 0 to 512"),
        ("seq_lens", -1, r"seq_lens\[1\]: -1, expected 0 to 512"),
        ("seq_lens", 4, r"ids: 5 entries, expected at least 6"),
        ("req", 3, r"req\[1\]: 3, expected 0 to 2"),
    ],
)
def test_values_out_of_range_are_named(name, value, said):
    tensors = made(Shape((8, 3), 2))
    tensors[name][1] = value
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(tensors)


def test_the_cost_counts_table_entries_once():
    found = cost(made(Shape((258, 3), 2)))
    # 129 rows from two pages, 1 from one; three numbers of a request are 16 bytes; of slots, the first of a pair
    assert (found.bytes_read, found.bytes_written) == (4 * 3 + 2 * 16, 4 * (130 + 4))
    assert cost(made(Shape((258, 3), 2, table_page=1))).bytes_read == 4 * 130 + 2 * 16


def test_a_bench_has_the_rows_that_it_names():
    assert KERNEL.bench.shape(65536, "ratio 2") == Shape((131072,), 2)
    assert KERNEL.bench.shape(65536, "ratio 1 /64") == Shape((64,) * 1024, 1)
    assert KERNEL.bench.shape(70, "ratio 2 /64") == Shape((128,), 2, spare=6)
