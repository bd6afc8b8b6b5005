"""The step: 40 layers in calls and pieces, its range of values, padding, idle ranks, replays, and both compressors."""

from dataclasses import fields, replace
from itertools import groupby

import pytest
import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.step import Piece
from dsv4bench.workloads.variant import KV_PAIRS
from tests.workloads.stacks import DEEP, SHORT, batch, bits, cell, follow, hear, run, same, variant, written

MIXED = ((13, 9), (0, 3), (40, 2))
LIVE = 14
COMPRESSORS = pytest.mark.parametrize("compressor", ["fused", "torch"])


@pytest.fixture(scope="module")
def deep():
    return cell(DEEP, batch((13, 5), (0, 3)), torch_path=True)


# ---- 40 layers

BEFORE_ATTENTION = ("input_norm", "qkv_proj", "q_norm", "q_proj", "q_rope", "norm_rope_store")
EVERY_LAYER = (*BEFORE_ATTENTION, "dequant_swa", "sparse_attention", "inverse_rope", "o_proj_a", "o_proj_b")
# what a forward calls whatever the compressor (specification 1.2, 6.1)
COMMON = dict.fromkeys(EVERY_LAYER, 40) | {
    "load_input": 1,
    "combine": 39,  # 38 compressed layers, and once for ratio 0
    "index_q_proj": 8,
    "index_weights_proj": 8,
    "index_query": 8,
    "index_logits": 8,
    "index_topk": 8,
    "index_candidates": 1,
    "index_k_proj": 4,
    "compress_c1": 1,
}
FUSED = {"compress_proj": 4, "compress_c2": 3, "index_key": 4}
TORCH = {
    "compress_proj": 7,  # ratio 2 wants contiguous halves: two products for each source
    "compress_pool": 3,
    "latent_norm": 3,
    "store": 3,
    "index_k_norm": 3,
    "fake_quant": 3,
    "index_pack": 3,
    "index_key": 1,
}


@pytest.mark.parametrize(("reuse", "dequants"), [("off", 38), ("on", 4)])
@pytest.mark.parametrize(("compressor", "calls"), [("fused", FUSED), ("torch", TORCH)])
def test_calls_of_a_forward(deep, reuse, dequants, compressor, calls):
    heard = hear(deep.step(variant(reuse=reuse, compressor=compressor)), deep.forwards[0][0])
    assert heard.calls() == COMMON | calls | {"dequant_compressed": dequants}


@pytest.mark.parametrize(
    ("reuse", "expected"),
    [("off", {2: 6, 8: 6, 14: 6, 20: 20}), ("on", {2: 1, 8: 1, 14: 1, 20: 1})],
)
def test_compressed_dequants_of_each_source(deep, reuse, expected):
    heard = hear(deep.step(variant(reuse=reuse)), deep.forwards[0][0])
    assert heard.per_source("dequant_compressed") == expected
    assert heard.per_source("dequant_swa") == {None: 2, 2: 6, 8: 6, 14: 6, 20: 20}


def test_reuse_changes_no_byte_of_40_layers(deep):
    found = []
    for reuse in ("off", "on"):
        output = run(deep.step(variant(reuse=reuse)), deep.forwards[0][0])
        found.append([bits(output), *written(deep.pools)])
    assert same(*found)


def test_breaks_and_captured_runs_of_40_layers(deep):
    """Specification 6.6: 40 attention cores, 8 source projections, 4 full top-k; segments between them."""
    pieces = deep.step(variant()).pieces(8)
    breaks = [piece.part for piece in pieces if piece.kind == "break"]
    assert {name: breaks.count(name) for name in breaks} == {"attention": 40, "source projections": 8, "top-k": 4}
    runs = [kind for kind, _ in groupby(piece.kind for piece in pieces)]
    assert (runs.count("segment"), len(breaks)) == (49, 52)


PIECES = {
    "window": (1, ["project", "attention*", "output"]),
    "first": (0, ["input", "project", "attention*", "output"]),
    "sharer": (3, ["project", "attention*", "output"]),
    "ratio 2": (2, ["project", "source projections*", "compress", "index queries", "top-k*", "attention*", "output"]),
    "ratio 1": (20, ["project", "source projections*", "compress", "index queries", "top-k*", "attention*", "output"]),
    "consumer": (24, ["project", "source projections*", "index queries", "top-k", "attention*", "output"]),
}


@pytest.mark.parametrize("kind", PIECES)
def test_pieces_of_a_layer(deep, kind):
    layer, expected = PIECES[kind]
    pieces = deep.step(variant()).layer(DEEP.layers[layer], 8)
    names = [piece.name + ("*" if piece.kind == "break" else "") for piece in pieces]
    assert names == [f"layer {layer} {name}" for name in expected]


def test_a_piece_of_no_layer_is_called_by_its_part():
    piece = Piece("calls", "segment", print)
    assert (piece.name, piece.part, piece.layer) == ("calls", "calls", None)


def test_values_stay_in_range_over_40_layers():
    """The mini geometry as the command line runs it on a CPU: 8 new tokens on 120."""
    made = cell(V41_FLASH_MINI, batch((120, 8)))
    step = made.step(variant())
    step.load(made.forwards[0][0])
    spread = []
    for kind in V41_FLASH_MINI.layers:
        for piece in step.layer(kind, 8):
            piece.run()
        spread.append(step.output(8).float().std().item())
    assert min(spread) > 0.8
    assert max(spread) < 2
    assert step.output(8).float().abs().max() < 10


# ---- what a layer does around its attention, by definition


def normed(x, weight):
    return (x.double() * (x.double().square().mean(1, keepdim=True) + 1e-20).rsqrt() * weight.double()).bfloat16()


def turned(x, freqs, positions, back=False):
    """Return f64 rows [rows, ..., 512] with their last 64 channels turned as complex numbers (specification 1.1)."""
    angles = torch.view_as_complex(freqs[positions].double().unflatten(1, (32, 2)))
    angles = angles.conj() if back else angles
    tail = torch.view_as_complex(x[..., 448:].double().unflatten(-1, (32, 2)).contiguous())
    tail = tail * angles.view(len(x), *[1] * (x.dim() - 2), 32)
    return torch.cat([x[..., :448].double(), torch.view_as_real(tail).flatten(-2)], -1)


def loaded(kv="v41"):
    made = cell(SHORT, batch(*MIXED), kv=kv)
    step = made.step(variant(kv=kv))
    step.load(made.forwards[0][0])
    step.poison()
    return step


def piece(step, layer, name):
    (found,) = [one for one in step.layer(SHORT.layers[layer], LIVE) if (one.layer, one.part) == (layer, name)]
    return found


def random_like(tensor, seed):
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("layer", [0, 3], ids=["window layer", "ratio-2 source"])
def test_queries_and_window_rows_by_definition(layer):
    step, kind = loaded(), SHORT.layers[layer]
    weights, buffers, positions = step.weights[layer], step.buffers, step.inputs.positions
    residual = buffers.residual.copy_(random_like(buffers.residual, 1))
    piece(step, layer, "project").run()
    x = normed(residual, weights.input_norm)
    qkv = (x.double() @ weights.qkv.double()).bfloat16()
    q = (normed(qkv[:, :32], weights.q_norm).double() @ weights.query.double()).bfloat16().view(LIVE, 2, 512)
    expected = turned(q, step.freqs[kind.ratio], positions)
    torch.testing.assert_close(buffers.q.double(), expected, rtol=2**-6, atol=2**-6)
    window = turned(normed(qkv[:, 32:], weights.kv_norm), step.freqs[kind.ratio], positions)
    layout = step.pools.swa_layout
    stored = paged.read_rows(step.pools.swa[layer], step.inputs.swa_loc.long(), 256, layout)
    # e4m3 has 3 bits of mantissa: half a step is 1/16, and below the scale's smallest normal number 2^-10 of the tile
    torch.testing.assert_close(codec.dequantise(*stored, layout).double(), window, rtol=0.08, atol=0.02)


@pytest.mark.parametrize("layer", [0, 3], ids=["window layer", "ratio-2 source"])
def test_output_by_definition(layer):
    """Attention is turned back, projected group by group, and added to the residual stream."""
    step, kind = loaded(), SHORT.layers[layer]
    weights, buffers = step.weights[layer], step.buffers
    attention = buffers.attention.copy_(random_like(buffers.attention, 2)).clone()
    before = buffers.residual.copy_(random_like(buffers.residual, 3)).double()
    piece(step, layer, "output").run()
    back = turned(attention, step.freqs[kind.ratio], step.inputs.positions, back=True).bfloat16()
    groups = [back[:, g].double() @ weights.output_a[g].double() for g in range(2)]  # one head a group
    expected = before + torch.cat(groups, 1).bfloat16().double() @ weights.output_b.double()
    torch.testing.assert_close(buffers.residual.double(), expected, rtol=2**-7, atol=2**-6)


def test_layer_0_takes_in_the_hidden_states():
    step = loaded()
    piece(step, 0, "input").run()
    assert torch.equal(step.output(LIVE), step.inputs.hidden[:LIVE])


# ---- padding


@pytest.fixture(scope="module")
def padded_cells():
    """The same requests in no bucket and in one of 20 rows, with products that round the same in both."""
    return {rows: cell(SHORT, batch(*MIXED, bucket=rows), torch_path=True, exact=True) for rows in (LIVE, 20)}


@COMPRESSORS
def test_padding_changes_no_byte(padded_cells, compressor):
    """Caches and rings, the reserved page apart, and the live rows; the consumers' filter is at work too."""
    found = {}
    for rows, made in padded_cells.items():
        step = made.step(variant(compressor=compressor))
        step.poison()
        found[rows] = [bits(run(step, made.forwards[0][0])[:LIVE]), *written(made.pools)]
    assert same(found[LIVE], found[20])


def test_padded_rows_stay_zero(padded_cells):
    made = padded_cells[20]
    assert (run(made.step(variant()), made.forwards[0][0])[LIVE:] == 0).all()


def test_padding_is_close_where_products_round():
    live, padded = (cell(SHORT, batch(*MIXED, bucket=rows)) for rows in (LIVE, 20))
    expected = run(live.step(variant()), live.forwards[0][0]).float()
    got = run(padded.step(variant()), padded.forwards[0][0])[:LIVE].float()
    assert (got - expected).norm() <= 3e-2 * expected.norm()


SITTING_OUT = {"idle": Batch(()).padded(20), "no requests": Batch(())}


@COMPRESSORS
@pytest.mark.parametrize("out", SITTING_OUT.values(), ids=SITTING_OUT.keys())
def test_a_rank_that_sits_out_writes_nothing(out, compressor):
    """Also after a busy forward, whose slots and lengths the static buffers still held (specification 8.2)."""
    made = cell(SHORT, batch(*MIXED, bucket=20), out, torch_path=True)
    step = made.step(variant(compressor=compressor))
    busy, sitting_out = made.forwards[0]
    run(step, busy)
    before = written(made.pools)
    step.poison()
    output = follow(step, sitting_out)
    assert output.shape == (out.rows, SHORT.hidden)
    assert (output == 0).all()
    assert same(written(made.pools), before)


# ---- replays

# fewer rows and requests, lengths of other parity, and another request in front
OTHERS = {
    "one row less": batch((13, 8), (0, 3), (40, 2), bucket=20),
    "one request": batch((13, 9), bucket=20),
    "one token": Batch((Request(0, 13, 1),)).padded(20),
    "other order": Batch((Request(2, 40, 2), Request(0, 13, 4))).padded(20),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_a_second_batch_in_the_same_storage_runs_as_if_alone(other):
    """Issue item 5: whatever a first batch left in buffers and static inputs is invisible to the second."""
    found = []
    for first in (True, False):
        made = cell(SHORT, batch(*MIXED, bucket=20))
        step, second = made.step(variant()), made.forward(other)
        if first:
            run(step, made.forwards[0][0])
        made.pools.restore_rings()
        output = follow(step, second)
        found.append([output, *(ring.clone() for ring in made.pools.rings.values())])
    assert same(*found)


def test_loading_keeps_what_captured_kernels_read(deep):
    step, forward = deep.step(variant()), deep.forwards[0][0]
    before = [tensor.data_ptr() for tensor in (*step.inputs.tensors(), step.output(1))]
    run(step, forward)
    run(step, deep.forward(batch((13, 2))))
    assert [tensor.data_ptr() for tensor in (*step.inputs.tensors(), step.output(1))] == before


def test_a_forward_that_sees_more_than_the_capacity_is_refused():
    made = cell(SHORT, batch((13, 9)))
    made.capacity[2] = 10  # 22 tokens have 11 complete pairs
    with pytest.raises(ValueError, match="exceeds the step's capacity"):
        made.step(variant()).load(made.forwards[0][0])


def test_a_forward_of_more_rows_than_the_buffers_is_refused():
    made = cell(SHORT, batch((13, 9)))
    with pytest.raises(ValueError, match="exceeds the step's capacity"):
        made.step(variant()).load(made.forward(batch((12, 10))))


def test_a_step_needs_a_forward(deep):
    with pytest.raises(AssertionError, match="load a forward first"):
        _ = deep.step(variant()).forward


def test_poison_reaches_every_buffer_and_the_workspace():
    made = cell(SHORT, batch((13, 9)), torch_path=True)
    step = made.step(variant())
    step.poison()
    for name in (f.name for f in fields(made.buffers)):
        tensor = getattr(made.buffers, name)
        assert (tensor.isnan() if tensor.is_floating_point() else tensor == 1).all(), name
    assert step.kv_buffer.reserve(0).isnan().all()


@pytest.mark.parametrize(("layer", "source", "page_size"), [(2, 1, 128), (3, 3, 128), (7, 5, 256)])
def test_a_layer_reads_the_cache_of_its_source(layer, source, page_size):
    made = cell(SHORT, batch((13, 9)))
    found = made.step(variant()).compressed(SHORT.layers[layer])
    assert found["cache"] is made.pools.compressed[source]
    assert (found["page_size"], found["layout"].name) == (page_size, "fp4")


# ---- both compressors


@pytest.mark.parametrize("kv", list(KV_PAIRS))
def test_the_torch_path_is_close_to_the_fused_compressor(kv):
    """Latents may differ by one bf16 step (specification 3.5); rings and windows of layer 0 are equal."""
    found = {}
    stack = replace(SHORT, index_topk=64, candidate_blocks=8)  # all positions, so that no near tie is decided otherwise
    for compressor in ("fused", "torch"):
        made = cell(stack, batch(*MIXED, bucket=20), kv=kv, torch_path=True)
        output = run(made.step(variant(kv=kv, compressor=compressor)), made.forwards[0][0])[:LIVE].float()
        found[compressor] = (output, made.pools.rings[1][:-1], made.pools.swa[0])
    (output, ring, window), (other_output, other_ring, other_window) = found["fused"], found["torch"]
    assert torch.equal(ring, other_ring)
    assert torch.equal(window, other_window)
    assert (output - other_output).norm() <= 3e-2 * output.norm()


@pytest.mark.parametrize(("new", "old"), [("v41_new", "v41"), ("v41_new+fp4_new", "v41+fp4")])
@pytest.mark.parametrize("compressor", ["fused", "torch"])
def test_where_scales_lie_changes_no_output(new, old, compressor):
    outputs = []
    for kv in (new, old):
        made = cell(SHORT, batch(*MIXED, bucket=20), kv=kv, torch_path=True)
        outputs.append(run(made.step(variant(kv=kv, compressor=compressor)), made.forwards[0][0])[:LIVE])
    assert torch.equal(*outputs)


def test_ranges_carry_the_rank_of_the_loaded_batch():
    made = cell(SHORT, batch((3, 2)), batch((5, 1)))
    step = made.step(variant())
    ranks = []
    for rank, forward in enumerate(made.all_forwards()):
        step.load(replace(forward, batch=replace(forward.batch, rank=rank)))
        ranks.append(step.ops.range(SHORT.layers[0], "combine").rank)
    assert ranks == [0, 1]
