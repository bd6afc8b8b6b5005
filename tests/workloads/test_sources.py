"""Source layers: projections, both compressors by a row-at-a-time oracle, chunks, padding, and the two-level top-k."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.layout import INDEX_K
from dsv4bench.workloads import sources
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.variant import KV_PAIRS
from tests.workloads.stacks import CPU, SHORT, Heard, Slots, batch, bits, cell, same, variant, written

# an odd prefix (its first new row pools with the ring), a fresh request, one even, and a single odd row
MIXED = ((13, 24), (0, 3), (6, 2), (7, 1))
LIVE, ROWS = 30, 36
COMPRESSORS = pytest.mark.parametrize("compressor", ["fused", "torch"])
RATIO_2, RATIO_1, CONSUMER = SHORT.layers[1], SHORT.layers[5], SHORT.layers[7]


def prepared(*batches, geometry=SHORT, kv="v41+fp4", compressor="fused", exact=False):
    """Return a step with its first forward loaded, and poisoned buffers."""
    made = cell(geometry, *batches, kv=kv, torch_path=compressor == "torch", exact=exact)
    step = made.step(variant(kv=kv, compressor=compressor))
    step.load(made.forwards[0][0])
    step.poison()
    step.ops.mark = Heard()
    return step, made.forwards[0]


def random_rows(rows, width, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


def give(step, x=None, seed=0):
    """Put normed inputs of the live rows into the buffers, as the layer before would."""
    live, geometry = step.forward.live, step.geometry
    step.buffers.x[:live] = random_rows(live, geometry.hidden, seed) if x is None else x
    step.buffers.q_lora[:live] = random_rows(live, geometry.q_rank, seed + 1)


def compress(step, kind, rows):
    sources.project(step, kind, rows)
    sources.compress(step, kind, rows)


PROJECTIONS = {
    "ratio 2 fused": (RATIO_2, "fused", {"kv_score": slice(0, 1024)}),
    "ratio 2 torch": (RATIO_2, "torch", {"split_kv": slice(0, 512), "split_score": slice(512, 1024)}),
    "ratio 1": (RATIO_1, "fused", {"source_kv": slice(0, 512)}),
    "index only": (CONSUMER, "fused", {}),
}


@pytest.mark.parametrize("case", PROJECTIONS)
def test_projections_run_at_the_live_rows_and_clear_the_padding(case):
    kind, compressor, outputs = PROJECTIONS[case]
    step, _ = prepared(batch(*MIXED, bucket=ROWS), batch(*MIXED, bucket=40), compressor=compressor)
    give(step)  # rows past the live ones stay NaN: a product over them would show
    sources.project(step, kind, ROWS)
    weights, buffers = step.weights[kind.layer], step.buffers
    x, q_lora = buffers.x[:LIVE].double(), buffers.q_lora[:LIVE].double()
    expected = {name: x @ weights.source.compress[:, part].double() for name, part in outputs.items()}
    expected |= {"index_q_raw": q_lora @ weights.index.query.double()}
    expected |= {"index_weights_raw": x @ weights.index.heads.double()}
    for name, product in expected.items():
        out = getattr(buffers, name)
        close = {"rtol": 1e-4, "atol": 1e-5} if out.dtype == torch.float32 else {"rtol": 2**-7, "atol": 2e-3}
        torch.testing.assert_close(out[:LIVE].flatten(1).double(), product, **close)
        assert (out[LIVE:ROWS] == 0).all(), name
        assert out[ROWS:].isnan().all(), name
    assert step.ops.mark.calls()["compress_proj"] == len(outputs)


@pytest.mark.parametrize("kind", [RATIO_2, RATIO_1, CONSUMER], ids=["ratio 2", "ratio 1", "index only"])
def test_an_idle_rank_launches_no_product(kind):
    step, _ = prepared(Batch(()).padded(4), batch((13, 3), bucket=4))
    sources.project(step, kind, 4)
    assert set(step.ops.mark.ops()) == {"zero_padding"}
    assert (step.buffers.index_q_raw[:4] == 0).all()


CALLS = {
    ("v41+fp4", "fused"): ["compress_c2", "index_k_proj", "index_key"],
    ("v41+fp4", "torch"): [
        "compress_pool",
        "latent_norm",
        "store",
        "index_k_proj",
        "index_k_norm",
        "fake_quant",
        "index_pack",
    ],
    ("v41", "torch"): [
        "compress_pool",
        "latent_norm",
        "fake_quant",
        "store",
        "index_k_proj",
        "index_k_norm",
        "fake_quant",
        "index_pack",
    ],
}


@pytest.mark.parametrize("case", CALLS, ids=" ".join)
def test_calls_of_each_compressor(case):
    step, _ = prepared(batch(*MIXED), kv=case[0], compressor=case[1])
    give(step)
    sources.project(step, RATIO_2, LIVE)
    step.ops.mark = Heard()
    sources.compress(step, RATIO_2, LIVE)
    assert step.ops.mark.ops() == CALLS[case]


def test_calls_of_ratio_1():
    step, _ = prepared(batch(*MIXED))
    give(step)
    compress(step, RATIO_1, LIVE)
    assert step.ops.mark.ops()[-3:] == ["compress_c1", "index_k_proj", "index_key"]


def row_at_a_time(step, kv_score, ring):
    """Appendix B.1 in f64: return the latents of odd rows, and the ring with each request's last 8 rows parked."""
    inputs, norm = step.inputs, step.weights[RATIO_2.layer].source.norm.double()
    state, latents, ring = ring.clone(), {}, ring.clone()
    for t in range(LIVE):
        req, position = int(inputs.req[t]), int(inputs.positions[t])
        if position % 2:
            old = state[req * 8 + (position - 1) % 8].double()
            new = kv_score[t].double()
            gate = torch.softmax(torch.stack([old[512:], new[512:]]), 0)
            pooled = (gate[0] * old[:512] + gate[1] * new[:512]).bfloat16().double()
            latents[t] = pooled * (pooled.square().mean() + 1e-20).rsqrt() * norm
        state[req * 8 + position % 8] = kv_score[t]
    ring[: 4 * 8] = state[: 4 * 8]  # every row parks here, and the last 8 are what is left
    return latents, ring


@COMPRESSORS
def test_ratio_2_pools_as_one_row_at_a_time_would(compressor):
    step, _ = prepared(batch(*MIXED, bucket=ROWS), compressor=compressor)
    give(step)
    before = step.pools.rings[1].clone()
    compress(step, RATIO_2, ROWS)
    split = torch.cat([step.buffers.split_kv, step.buffers.split_score], 1)
    states = step.buffers.kv_score if compressor == "fused" else split
    latents, ring = row_at_a_time(step, states, before)
    assert sorted(latents) == [0, *range(2, 24, 2), 25, 28, 29]  # positions 13, 15 .. 35; 1; 7; 7
    for t, expected in latents.items():
        torch.testing.assert_close(step.buffers.latent[t].double(), expected, rtol=2**-6, atol=2**-20)
    assert torch.equal(step.pools.rings[1], ring)


@COMPRESSORS
def test_ratio_2_stores_its_own_latents(compressor):
    """The stored row is the latent turned to the group's first position; its index key is the latent's projection."""
    step, _ = prepared(batch(*MIXED), compressor=compressor, exact=True)
    give(step)
    compress(step, RATIO_2, LIVE)
    weights, inputs, freqs = step.weights[1].source, step.inputs, step.freqs[2]
    odd = (inputs.positions[:LIVE] % 2 == 1).nonzero().flatten()
    latent, group, slots = step.buffers.latent[odd], inputs.positions[odd] - 1, inputs.loc[odd] // 2
    layout = step.pools.compressed_layout
    found = codec.dequantise(*paged.read_rows(step.pools.compressed[1], slots, 128, layout), layout)
    turned = codec.rotate_tail(latent, freqs, group).bfloat16()
    expected = codec.dequantise(*codec.quantise(turned.float(), layout), layout)
    assert torch.equal(bits(found), bits(expected))
    key = codec.rms_norm((latent.float() @ weights.index_k.float()).bfloat16(), weights.index_k_norm, 1e-20).bfloat16()
    key = codec.fake_quant_index(codec.rotate_tail(key, freqs, group).bfloat16().float())
    stored = codec.index_unpack(*paged.read_rows(step.pools.index_k[1], slots, 64, INDEX_K))
    torch.testing.assert_close(stored.float(), key.float(), rtol=0, atol=0)


@pytest.mark.parametrize("kv", KV_PAIRS)
def test_both_compressors_leave_the_same_caches(kv):
    """Nearly: pooled values may differ by one bf16 step, and a byte with them (specification 3.5)."""
    found = {}
    for compressor in ("fused", "torch"):
        step, _ = prepared(batch(*MIXED, bucket=ROWS), kv=kv, compressor=compressor)
        give(step)
        compress(step, RATIO_2, ROWS)
        odd = (step.inputs.positions[:LIVE] % 2 == 1).nonzero().flatten()
        caches = [step.pools.compressed[1][1:], step.pools.index_k[1][4:]]  # without the full page 0
        found[compressor] = (step.buffers.latent[odd].float(), caches, step.pools.rings[1])
    (latents, caches, ring), (other_latents, other_caches, other_ring) = found["fused"], found["torch"]
    torch.testing.assert_close(latents, other_latents, rtol=2**-6, atol=2**-20)
    assert torch.equal(ring[:-1], other_ring[:-1])
    for mine, theirs in zip(caches, other_caches, strict=True):
        assert mine.any()
        assert (mine != theirs).sum() <= 1e-3 * theirs.count_nonzero()


@COMPRESSORS
@pytest.mark.parametrize("kind", [RATIO_2, RATIO_1], ids=["ratio 2", "ratio 1"])
def test_padding_writes_nothing(kind, compressor):
    """The torch path stores padding in slot 0, the dummy of the reserved page (specification 3.6); fused, nowhere."""
    plain, padded = (
        prepared(batch(*MIXED, bucket=bucket), compressor=compressor, exact=True)[0] for bucket in (LIVE, ROWS)
    )
    for step, rows in ((plain, LIVE), (padded, ROWS)):
        give(step)
        compress(step, kind, rows)
    assert same(written(plain.pools), written(padded.pools))
    dummies = 1 if compressor == "torch" and kind.ratio == 2 else 0
    compressed = (padded.pools.compressed, padded.pools.compressed_layout, 256 // kind.ratio)
    for caches, layout, page in (compressed, (padded.pools.index_k, INDEX_K, 64)):
        data, scales = paged.read_rows(caches[kind.layer], torch.arange(dummies, page), page, layout)
        assert not data.any()
        assert not scales.any()


@COMPRESSORS
def test_a_batch_of_padding_only_changes_nothing(compressor):
    step, _ = prepared(Batch(()).padded(4), batch((13, 3), bucket=4), compressor=compressor)
    before = written(step.pools)
    for kind in (RATIO_2, RATIO_1):
        compress(step, kind, 4)
    assert same(written(step.pools), before)


# one source of each ratio
PAIR = replace(SHORT, ratios=(2, 1), kv_sources=(0, 1), index_sources=(0, 1), candidate_source=None)
# forwards of (request, first new row, rows); 24 rows wrap a ring of 8 three times
CHUNKS = {
    "odd and single": [((0, 0, 7),), ((0, 7, 1),), ((0, 8, 16),)],
    "shorter than the ring": [((0, 3 * i, 3),) for i in range(8)],
    "one row at a time": [((0, i, 1),) for i in range(10)],
    "two requests": [((0, 0, 17),), ((0, 17, 7), (1, 0, 4)), ((1, 4, 9),)],
}


def chunked_caches(forwards, prefixes, x, compressor):
    """Compress `forwards` of given normed inputs one after another, and return all that they wrote."""
    batches = [Batch(tuple(Request(i, prefixes[i] + first, rows) for i, first, rows in cut)) for cut in forwards]
    step, loaded = prepared(*batches, geometry=PAIR, compressor=compressor, exact=True)
    for forward, cut in zip(loaded, forwards, strict=True):
        step.load(forward)
        for kind in PAIR.layers:
            step.poison()
            give(step, torch.cat([x[i][first : first + rows] for i, first, rows in cut]))
            compress(step, kind, forward.live)
    return written(step.pools)


@COMPRESSORS
@pytest.mark.parametrize("prefixes", [(0, 13), (13, 6), (7, 1)], ids=str)
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
def test_chunks_leave_the_bytes_of_one_forward(chunks, prefixes, compressor):
    """From equal inputs: compressed caches, index keys and rings of both ratios (specification 9.1)."""
    lengths = [0, 0]
    for i, first, rows in (part for cut in chunks for part in cut):
        lengths[i] = first + rows
    x = [random_rows(length, PAIR.hidden, 10 + i) for i, length in enumerate(lengths)]
    whole = [tuple((i, 0, length) for i, length in enumerate(lengths) if length)]
    first, second = (chunked_caches(forwards, prefixes, x, compressor) for forwards in (whole, chunks))
    assert same(first, second)


# ---- index queries and the two-level top-k

SELECTIVE = replace(SHORT, index_topk=8, candidate_blocks=3)
LONG = ((90, 6), (0, 5), (40, 3))


FULL_2, PUBLISHER, FILTERED = SELECTIVE.layers[1], SELECTIVE.layers[5], SELECTIVE.layers[7]


def after_selection(kind, made, geometry=SELECTIVE):
    """Return a step that ran the sources up to layer `kind`, each on inputs of its own."""
    step, _ = prepared(made, geometry=geometry)
    for source in (FULL_2, PUBLISHER, FILTERED):
        if source.layer <= kind.layer:
            give(step, seed=source.layer)
            sources.project(step, source, made.rows)
            if source.owns_kv:
                sources.compress(step, source, made.rows)
            sources.index_queries(step, source, made.rows)
            sources.select(step, source, made.rows)
    return step


def chosen(step, kind):
    return (step.buffers.raw_2 if kind.ratio == 2 else step.buffers.raw_1).tolist()


def logits_of(step, kind, row):
    """Return the logit of every position that a row sees (appendix B.3), with Hopper's rounding."""
    req, position = int(step.inputs.req[row]), int(step.inputs.positions[row])
    slots = Slots(step.pools.tables)
    seen = [slots.compressed(req, c, kind.ratio) for c in range((position + 1) // kind.ratio)]
    cache = step.pools.index_k[kind.kv_source]
    keys = codec.index_unpack(*paged.read_rows(cache, torch.tensor(seen, dtype=torch.int64), 64, INDEX_K)).double()
    dots = (keys @ step.buffers.index_q[row].double().T).bfloat16().relu()
    products = (dots.double() * step.buffers.index_weights[row].double()).bfloat16()
    return products.float().sum(1).bfloat16().float()


def best(logits, count, among=None):
    """Return the positions of the `count` largest logits, the lower position first where two are equal."""
    among = range(len(logits)) if among is None else among
    ranked = sorted(among, key=lambda c: (-logits[c].item(), c))
    return sorted(ranked[:count])


def best_blocks(logits, count):
    """Return the best blocks of 8 by their largest logit, the newest always among them."""
    maxima = [max(logits[b : b + 8].tolist()) for b in range(0, len(logits), 8)]
    maxima[-1] = float("inf")
    return sorted(sorted(range(len(maxima)), key=lambda b: (-maxima[b], b))[:count])


def packed(values, width):
    return values + [-1] * (width - len(values))


FULL = pytest.mark.parametrize("kind", [FULL_2, PUBLISHER], ids=["ratio 2", "ratio 1"])


@FULL
def test_each_row_gets_its_best_positions(kind):
    step = after_selection(kind, batch(*LONG))
    for row in range(step.forward.live):
        assert chosen(step, kind)[row] == packed(best(logits_of(step, kind, row), 8), 8)


@FULL
def test_a_row_that_sees_few_positions_gets_them_all(kind):
    step = after_selection(kind, batch(*LONG))
    for row, position in ((6, 0), (7, 1), (10, 4)):
        assert chosen(step, kind)[row] == packed(list(range((position + 1) // kind.ratio)), 8)


def test_the_candidate_source_publishes_the_best_blocks():
    step = after_selection(PUBLISHER, batch(*LONG))
    for row in range(step.forward.live):
        expected = best_blocks(logits_of(step, PUBLISHER, row), 3)
        assert step.buffers.candidates[row].tolist() == packed(expected, 3)


def test_a_consumer_selects_from_the_published_blocks_only():
    step = after_selection(FILTERED, batch(*LONG))
    left_out = 0
    for row in range(step.forward.live):
        logits = logits_of(step, FILTERED, row)
        published = [b for b in step.buffers.candidates[row].tolist() if b >= 0]
        among = [c for c in range(len(logits)) if c // 8 in published]
        assert chosen(step, FILTERED)[row] == packed(best(logits, 8, among), 8)
        left_out += best(logits, 8) != best(logits, 8, among)
    assert left_out  # without the filter some row would choose otherwise


def test_blocks_that_cover_every_position_are_not_read():
    """With 12 blocks of 8 all 96 positions are covered: the filter would change nothing, and is skipped."""
    wide = replace(SELECTIVE, candidate_blocks=12)
    step = after_selection(PUBLISHER, batch(*LONG), wide)
    step.buffers.candidates.fill_(-1)
    give(step, seed=7)
    sources.project(step, FILTERED, 14)
    sources.index_queries(step, FILTERED, 14)
    sources.select(step, FILTERED, 14)
    for row in range(14):
        assert chosen(step, FILTERED)[row] == packed(best(logits_of(step, FILTERED, row), 8), 8)


@pytest.mark.parametrize(("blocks", "consumer"), [(2, 2 * 8), (64, 256)], ids=["filtered", "not filtered"])
def test_only_consumers_score_the_same_columns_in_every_forward(blocks, consumer):
    """They are captured, so their shapes cannot follow the lengths: what any forward may see, in whole 64s."""
    stack = replace(SELECTIVE, candidate_blocks=blocks)
    step, forwards = prepared(batch((130, 6)), batch((136, 60)), geometry=stack)
    columns = {5: [], 7: []}

    def audit(rng, kernel, provider, tensors, call):
        if kernel.name == "index_logits":
            columns[rng.layer].append(tensors["logits"].shape[1])
        call()

    step.ops.audit = audit
    for forward in forwards:
        step.load(forward)
        give(step)
        for layer in columns:
            sources.project(step, stack.layers[layer], forward.live)
            sources.index_queries(step, stack.layers[layer], forward.live)
            sources.select(step, stack.layers[layer], forward.live)
    assert columns == {5: [192, 256], 7: [consumer, consumer]}


def test_padding_publishes_no_block():
    candidates = after_selection(PUBLISHER, batch(*LONG, bucket=20)).buffers.candidates
    assert (candidates[14:20] == -1).all()
    assert (candidates[:14, 0] >= 0).all()


def test_padding_does_not_change_what_live_rows_select():
    plain, padded = (after_selection(FILTERED, batch(*LONG, bucket=bucket)) for bucket in (14, 20))
    for kind in (FULL_2, FILTERED):
        assert chosen(padded, kind)[:14] == chosen(plain, kind)


@pytest.mark.parametrize("kind", [FULL_2, PUBLISHER, FILTERED], ids=["full", "publisher", "consumer"])
def test_tiles_of_the_logits_change_nothing(monkeypatch, kind):
    whole = after_selection(kind, batch(*LONG))
    monkeypatch.setattr(sources, "LOGITS_BYTES", 3 * 128 * 2)  # 3 rows of 128 columns of bf16
    tiled = after_selection(kind, batch(*LONG))
    assert tiled.ops.mark.calls()["index_logits"] > whole.ops.mark.calls()["index_logits"]
    assert chosen(tiled, kind) == chosen(whole, kind)
    assert torch.equal(tiled.buffers.candidates, whole.buffers.candidates)


def test_index_queries_are_turned_and_rounded_to_the_grid():
    step, _ = prepared(batch(*MIXED))
    give(step)
    sources.project(step, RATIO_1, LIVE)
    sources.index_queries(step, RATIO_1, LIVE)
    raw, inputs = step.buffers.index_q_raw[:LIVE], step.inputs
    turned = codec.rotate_tail(raw, step.freqs[1], inputs.positions[:LIVE]).bfloat16()
    assert torch.equal(step.buffers.index_q[:LIVE].float(), codec.fake_quant_index(turned.float()))
    scaled = (step.buffers.index_weights_raw[:LIVE].double() * (128 * 2) ** -0.5).bfloat16()
    assert torch.equal(step.buffers.index_weights[:LIVE], scaled)
    assert step.buffers.index_q.device == CPU
