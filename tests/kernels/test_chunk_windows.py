"""Query and window rows of a forward: by hand, by plain loops at every edge, and as the step lists them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels import chunk_windows
from dsv4bench.kernels.chunk_windows import KERNEL, Shape, cost, inputs
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
    """Build every output one position at a time (specification 5.4)."""
    window, page = tensors["window"], tensors["table_page"]
    found = {name: [] for name in KERNEL.outputs}
    requests = zip(*(tensors[name].tolist() for name in ("seq_lens", "extend_lens", "req")), strict=True)
    for seq, extend, row in requests:
        seen = range(max(0, seq - extend - window + 1), seq)  # by any query, were each to see itself and 127 before
        found["query_start"].append(len(found["query_pos"]))
        found["swa_offsets"].append(len(found["swa_ids"]))
        found["swa_first_pos"].append(seen.start)
        found["swa_gather_lens"].append(len(seen))
        found["query_pos"] += range(seq - extend, seq)
        for position in seen:
            slot = int(tensors["table"][row, position // page]) * page + position % page
            found["swa_ids"].append(int(tensors["full_to_swa"][slot]))
    found["query_start"].append(len(found["query_pos"]))
    found["swa_offsets"].append(len(found["swa_ids"]))
    for name in ("query_pos", "swa_ids"):
        found[name] += [0] * (len(tensors[name]) - len(found[name]))
    return found


def test_two_requests_by_hand(run):
    """Window 4, pages of 4: request 0 has page 2, 1 and 5 tokens cached of 7, request 1 has page 0 and begins."""
    tensors = made(Shape(((5, 2), (0, 3)), table_page=4, spare=1, window=4))
    tensors["req"] = torch.tensor([2, 0])
    tensors["table"] = torch.tensor([[0, 99], [99, 99], [2, 1]], dtype=torch.int32)
    tensors["full_to_swa"] = torch.arange(100, 112)
    assert run(tensors) == {
        "query_start": [0, 2, 5],
        "query_pos": [5, 6, 0, 1, 2, 0],
        "swa_gather_lens": [5, 3],
        "swa_first_pos": [2, 0],
        "swa_offsets": [0, 5, 8],
        "swa_ids": [110, 111, 104, 105, 106, 100, 101, 102, 0],
    }


BATCHES = {
    "no-requests": Shape(()),
    "no-requests-but-room": Shape((), spare=300),
    "one-token": Shape(((0, 1),)),
    "window-edges": Shape(((0, 127), (0, 128), (0, 129), (126, 1), (127, 1), (128, 1), (127, 2))),
    "page-edges": Shape(((253, 1), (254, 1), (255, 1), (256, 1), (0, 254), (0, 255), (0, 256), (0, 257))),
    "no-new-tokens": Shape(((5, 0), (400, 0), (0, 0), (3, 2))),
    "token-slots": Shape(((140, 6), (0, 3), (255, 40)), table_page=1, ids=torch.int32),
    "room": Shape(((10, 600), (0, 2)), spare=700),
    "as-long-as-a-program": Shape(((0, 255), (0, 256), (0, 257), (0, 513))),
    "many-requests": Shape(tuple((i * 13 % 30, i % 3) for i in range(70)), window=5),
    "no-window-but-itself": Shape(((9, 4), (0, 2)), window=1),
}


@pytest.mark.parametrize("shape", BATCHES.values(), ids=BATCHES)
def test_every_row_of_a_batch(shape, run):
    tensors = made(shape)
    assert run(tensors) == looped(tensors)


@pytest.mark.parametrize("programs", [1, 6])
def test_a_program_goes_on_where_there_are_few(programs, run, monkeypatch):
    """Most of a long list is written by one or two programs of its request; the spare entries too."""
    monkeypatch.setattr(chunk_windows, "PROGRAMS", programs)
    tensors = made(Shape(((300, 900), (0, 2)), spare=600))
    assert run(tensors) == looped(tensors)


@pytest.mark.parametrize(("name", "room"), [("query_pos", 700), ("swa_ids", 900)])
def test_one_list_has_more_room_than_the_other(name, room, run):
    """As where only the query rows are padded to a bucket."""
    tensors = made(Shape(((300, 40), (0, 2)), spare=1))
    tensors[name] = tensors[name].new_empty(room)
    assert run(tensors) == looped(tensors)


def test_a_table_with_wider_rows(run):
    tensors = made(Shape(((300, 40), (0, 5))))
    wide = torch.full((3, 10), 7777, dtype=torch.int32)
    wide[:, : tensors["table"].shape[1]] = tensors["table"]
    tensors["table"] = wide[:, : tensors["table"].shape[1]]
    assert tensors["table"].stride(0) == 10
    assert run(tensors) == looped(tensors)


@pytest.mark.parametrize("requests", [((5, 3), (300, 200), (0, 1)), ((127, 1), (0, 300), (256, 129))], ids=str)
def test_the_step_lists_the_same(requests, run):
    """`workloads/forward.py` builds these tables on the host's side of the step; they agree in every number."""
    tables = make_tables([Extent(prefix, prefix + new) for prefix, new in requests], 128, CPU, 3)
    batch = Batch(tuple(Request(i, *lengths) for i, lengths in enumerate(requests)))
    forward = make_forward(SHORT, tables, batch, 0)
    tensors = made(Shape(requests))
    tensors |= {"table": tables.page_table, "full_to_swa": tables.full_to_swa, "req": torch.arange(len(requests))}
    got = run(tensors)
    assert got["query_start"] == forward.query_start.tolist()
    assert got["query_pos"] == forward.inputs.positions.tolist()
    assert got["swa_gather_lens"] == forward.gather_lens.tolist()
    assert got["swa_ids"] == forward.swa_ids.tolist()
    assert got["swa_offsets"][:-1] == forward.gathers[0].swa_bases.tolist()


requests = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6)


@settings(max_examples=30)
@given(requests=requests, page=st.sampled_from([1, 4, 16]), window=st.integers(1, 9), spare=st.integers(0, 3))
def test_any_batch(run, requests, page, window, spare):
    tensors = made(Shape(tuple(requests), page, spare, window))
    assert run(tensors) == looped(tensors)


WRONG = {
    "page": ({"table_page": 3}, r"table_page: 3, expected a power of two"),
    "window": ({"window": 0}, r"window: 0, expected at least 1"),
    "table-stride": ({"table": torch.zeros(3, 4).int()[:, ::2]}, r"table: dimension 1 has stride 2, expected 1"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        KERNEL.check(made(Shape(((5, 3), (0, 2)))) | change)


VALUES = {
    "seq-over-the-table": ("seq_lens", 1, 513, r"seq_lens\[1\]: 513, expected 0 to 512"),
    "negative-extend": ("extend_lens", 1, -1, r"extend_lens\[1\]: -1, expected 0 to"),
    "extend-over-seq": ("extend_lens", 1, 3, r"cached prefix\[1\]: -1, expected 0 to"),
    "req": ("req", 1, 3, r"req\[1\]: 3, expected 0 to 2"),
    "more-queries": ("extend_lens", 0, 5, r"query_pos: 5 entries, expected at least 7"),
    "slot-past-the-map": ("table", slice(None), 2**24, r"slot of window row \[0\]: 4294967296, expected 0 to 1535"),
    "no-window-slot": ("full_to_swa", slice(None), -1, r"window slot of window row \[0\]: -1, expected 0 to"),
}


@pytest.mark.parametrize(("name", "place", "value", "said"), VALUES.values(), ids=VALUES)
def test_values_out_of_range_are_named(name, place, value, said):
    tensors = made(Shape(((5, 3), (0, 2))))
    tensors[name][place] = value
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(tensors)


def test_more_window_rows_than_room_are_named():
    tensors = made(Shape(((5, 3), (0, 2))))
    tensors["swa_ids"] = tensors["swa_ids"][:-1]
    with pytest.raises(ValueError, match=r"swa_ids: 9 entries, expected at least 10"):
        KERNEL.check_values(tensors)


def test_the_cost_counts_table_entries_once():
    found = cost(made(Shape(((254, 4), (0, 2)), window=4)))
    # window rows 251 to 257 lie in two pages, 0 and 1 in one; 9 window slots; two requests of 16 bytes
    assert found.bytes_read == 4 * 3 + 8 * 9 + 2 * 16
    assert found.bytes_written == 4 * 9 + 8 * 6 + 4 * (4 * 2 + 2)


def test_a_bench_has_the_rows_that_it_names():
    assert KERNEL.bench.shape(65536, "1 request") == Shape(((1024, 65536),), 1)
    assert KERNEL.bench.shape(65536, "64 each") == Shape(((1024, 64),) * 1024, 1)
    assert KERNEL.bench.shape(70, "64 each") == Shape(((1024, 64),), 1, spare=6)
