"""The cached prefix: which slots it fills, with the bytes of one row at a time, and what it parks in the rings."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.kernels import kernel
from dsv4bench.kernels.layout import INDEX_K
from dsv4bench.workloads import prefix
from dsv4bench.workloads.ops import Ops
from dsv4bench.workloads.pools import Extent, make_pools, make_tables
from dsv4bench.workloads.prefix import Span, pack_spans, write_prefix
from dsv4bench.workloads.rope_table import rope_table
from dsv4bench.workloads.variant import KV_PAIRS
from dsv4bench.workloads.weights import make_model
from tests.workloads.stacks import CPU, SHORT, Slots, same, written

# one source of each ratio
STACK = replace(SHORT, window=8, ratios=(0, 2, 1), kv_sources=(1, 2), index_sources=(1, 2), candidate_source=None)
# an odd prefix, none, one that ends in its second page, and one shorter than ring and window
EXTENTS = (Extent(13, 20), Extent(0, 4), Extent(258, 263), Extent(4, 6))
ROW_TENSORS = ("kv", "kv_score", "k", "positions", "req", "loc", "latent")


def fresh_pools(kv="v41+fp4"):
    return make_pools(STACK, KV_PAIRS[kv], make_tables(EXTENTS, STACK.window, CPU, 1), CPU)


def write(pools, seed=0):
    freqs = {ratio: rope_table(STACK, ratio, 263) for ratio in (0, 1, 2)}
    write_prefix(make_model(STACK, CPU, seed), pools, freqs, "torch")


@pytest.fixture(scope="module")
def filled():
    pools = fresh_pools()
    write(pools)
    return pools


class Recorder:
    """Writes down every call of an operation, by layer and kernel, with the rows as they were."""

    def __init__(self, monkeypatch):
        self.calls = defaultdict(list)
        run = Ops.run

        def record(ops, kind, op, name, **tensors):
            rows = {key: value.clone() if key in ROW_TENSORS else value for key, value in tensors.items()}
            self.calls[kind.layer, name].append(rows)
            run(ops, kind, op, name, **tensors)

        monkeypatch.setattr(Ops, "run", record)

    def column(self, layer, name, key):
        """Return what all calls of a kernel in a layer were given under `key`, one after another."""
        return torch.cat([call[key] for call in self.calls[layer, name]])


def one_row_at_a_time(recorded, pools):
    """Write what was recorded again, into `pools`, each row by a call of its own (appendix B.1)."""
    targets = {"norm_rope_store": pools.swa, "index_key": pools.index_k}
    for (layer, name), calls in recorded.items():
        for call in calls:
            for t in range(len(call["loc"])):
                row = {key: value[t : t + 1] if key in ROW_TENSORS else value for key, value in call.items()}
                row["cache"] = targets.get(name, pools.compressed)[layer]
                if name == "compress_c2":
                    one = {"starts": torch.tensor([0]).int(), "lens": torch.tensor([1]).int()}
                    row |= {"ring": pools.rings[layer], **one}
                kernel(name).reference(**row)


@pytest.mark.parametrize(("kv", "chunk_rows"), [("v4", 16_384), ("v41", 16_384), ("v41+fp4", 5)])
def test_bytes_are_those_of_one_row_at_a_time(monkeypatch, kv, chunk_rows):
    monkeypatch.setattr(prefix, "CHUNK_ROWS", chunk_rows)
    recorder, pools, expected = Recorder(monkeypatch), fresh_pools(kv), fresh_pools(kv)
    write(pools)
    one_row_at_a_time(recorder.calls, expected)
    assert same(written(pools), written(expected))


def slots_with_bytes(cache, layout, page_size):
    data = cache[:, : page_size * layout.data_bytes].reshape(-1, layout.data_bytes)
    return set(data.any(1).nonzero().flatten().tolist())


def test_the_window_caches_hold_the_newest_7_tokens(filled):
    slots = Slots(filled.tables)
    expected = {
        slots.swa(i, p) for i, e in enumerate(EXTENTS) for p in range(max(0, e.prefix - 7), e.prefix)
    }  # a window of 8: a new token sees 7 before it
    assert len(expected) == 7 + 0 + 7 + 4
    assert 0 not in expected
    for cache in filled.swa:
        assert slots_with_bytes(cache, filled.swa_layout, 256) == expected


@pytest.mark.parametrize(("source", "ratio"), [(1, 2), (2, 1)])
def test_compressed_caches_hold_every_complete_group(filled, source, ratio):
    slots = Slots(filled.tables)
    expected = {slots.compressed(i, c, ratio) for i, e in enumerate(EXTENTS) for c in range(e.prefix // ratio)}
    assert slots_with_bytes(filled.compressed[source], filled.compressed_layout, 256 // ratio) == expected
    assert slots_with_bytes(filled.index_k[source], INDEX_K, filled.index_page) == expected


def test_rows_come_in_order_of_positions(monkeypatch):
    """Both odd and even rows reach the ratio-2 compressor, so that its ring sees what a chunked prompt would leave."""
    recorder, pools = Recorder(monkeypatch), fresh_pools()
    write(pools)
    order = [(i, p) for i, e in enumerate(EXTENTS) for p in range(e.prefix)]
    for layer, name in ((1, "compress_c2"), (1, "index_key"), (2, "compress_c1")):
        assert recorder.column(layer, name, "positions").tolist() == [p for _, p in order]
    slots = Slots(pools.tables)
    assert recorder.column(1, "compress_c2", "loc").tolist() == [slots.full(i, p) for i, p in order]


@pytest.mark.parametrize("chunk_rows", [3, 16_384])
def test_rings_park_the_newest_rows(monkeypatch, chunk_rows):
    monkeypatch.setattr(prefix, "CHUNK_ROWS", chunk_rows)
    recorder, pools = Recorder(monkeypatch), fresh_pools()
    expected = pools.rings[1].clone()
    write(pools)
    states, row = recorder.column(1, "compress_c2", "kv_score"), 0
    for i, extent in enumerate(EXTENTS):
        for p in range(extent.prefix):
            if p >= extent.prefix - 8:
                expected[i * 8 + p % 8] = states[row]
            row += 1
    assert torch.equal(pools.rings[1], expected)


def test_layers_hold_other_rows(monkeypatch):
    recorder = Recorder(monkeypatch)
    write(fresh_pools())
    rows = [recorder.column(layer, "norm_rope_store", "kv") for layer in range(3)]
    assert not any(torch.equal(rows[i], rows[j]) for i in range(3) for j in range(i))


def test_rings_are_saved_as_the_prefix_left_them(filled):
    assert same(list(filled.saved_rings.values()), list(filled.rings.values()))
    assert all(saved.data_ptr() != filled.rings[source].data_ptr() for source, saved in filled.saved_rings.items())


def test_a_seed_gives_the_same_prefix(filled):
    again, other = fresh_pools(), fresh_pools()
    write(again)
    write(other, seed=1)
    assert same(written(again), written(filled))
    assert not any(torch.equal(a, b) for a, b in zip(written(other), written(filled), strict=True))


SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.integers(0, 40)).map(lambda three: Span(*three)))


def tokens(spans):
    return [(span.request, position) for span in spans for position in range(span.first, span.first + span.rows)]


@given(SPANS, st.integers(1, 30))
def test_packed_spans_keep_every_token_in_order(spans, chunk_rows):
    groups = list(pack_spans(spans, chunk_rows))
    assert [token for group in groups for token in tokens(group)] == tokens(spans)


@given(SPANS, st.integers(1, 30))
def test_all_groups_but_the_last_are_full(spans, chunk_rows):
    sizes = [sum(span.rows for span in group) for group in pack_spans(spans, chunk_rows)]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size == chunk_rows for size in sizes[:-1])
    assert all(0 < size <= chunk_rows for size in sizes[-1:])


@given(SPANS, st.integers(1, 30))
def test_no_group_has_an_empty_span(spans, chunk_rows):
    assert all(span.rows > 0 for group in pack_spans(spans, chunk_rows) for span in group)


def test_a_span_is_cut_where_a_group_ends():
    spans = [Span(0, 10, 3), Span(1, 0, 4)]
    assert list(pack_spans(spans, 5)) == [[Span(0, 10, 3), Span(1, 0, 2)], [Span(1, 2, 2)]]
