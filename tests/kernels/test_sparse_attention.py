"""Sparse attention: results by hand, a float64 reference, sinks, and rows that nobody selected."""

import math

import pytest
import torch

from dsv4bench.kernels import attend
from dsv4bench.kernels.sparse_attention import KERNEL, Shape, cost, inputs

NAN = float("nan")


@pytest.fixture(params=["torch", "triton", "gluon"])
def run(request, device):
    """Call a provider on a poisoned output and return it on the CPU; nothing interprets Gluon, so it needs a Hopper."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device
    reason = KERNEL.provider("gluon").needs.why_not(device)
    if request.param == "gluon" and reason:
        pytest.skip(reason)

    def call(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        there["out"].fill_(NAN)
        KERNEL.provider(request.param).build(there)()
        return there["out"].cpu()

    return call


def made(shape):
    return inputs(shape, torch.Generator().manual_seed(11))


def definition(tensors):
    """Attend row by row in float64 (specification 6.4)."""
    q, kv, indices, lens, sink = (tensors[name].cpu() for name in ("q", "kv", "indices", "lens", "sink"))
    out = torch.zeros(q.shape, dtype=torch.float64)
    for t in range(len(q)):
        chosen = [i for i in indices[t, : int(lens[t])].tolist() if 0 <= i < len(kv)]
        if chosen:
            keys = kv[chosen, 0].double()
            scores = torch.cat([q[t].double() @ keys.T * tensors["scale"], sink.double()[:, None]], dim=1)
            out[t] = scores.softmax(dim=1)[:, :-1] @ keys
    return out


def near(got, want):
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)


SHAPES = {
    "mini": Shape(rows=6, heads=4, keys=300, columns=256, scanned=160),
    "one-head": Shape(rows=1, heads=1, keys=20, columns=128, scanned=20),
    "64-heads": Shape(rows=2, heads=64, keys=200, columns=128, scanned=100),
    "more-than-64-heads": Shape(rows=1, heads=72, keys=90, columns=128, scanned=80),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_float64(shape, run):
    tensors = made(shape)
    near(run(tensors), definition(tensors))


def test_every_row_scans_its_own_length(run):
    """Length 0, 1, one block of keys, one more, and all; what lies past the length names rows that hold NaN."""
    tensors = made(Shape(rows=6, heads=4, keys=256, columns=256, scanned=256))
    tensors["lens"] = torch.tensor([0, 1, 64, 65, 200, 256], dtype=torch.int32)
    tensors["kv"] = torch.cat([tensors["kv"], torch.full((9, 1, 512), NAN, dtype=torch.bfloat16)])
    past = torch.arange(256) >= tensors["lens"][:, None]
    tensors["indices"] = torch.where(past, 256 + torch.arange(256) % 9, tensors["indices"]).to(torch.int32)
    got = run(tensors)
    near(got, definition(tensors))
    assert (got[0] == 0).all()


def test_a_length_longer_than_the_table_ends_with_it(run):
    tensors = made(Shape(rows=2, heads=4, keys=50, columns=128, scanned=128))
    want = definition(tensors)
    tensors["lens"] += 40
    near(run(tensors), want)


def test_holes_and_strangers_are_not_read(run):
    """-1 and indices at or past N take no part, though rows 0 and N - 1, where they could fall, hold NaN."""
    tensors = made(Shape(rows=3, heads=4, keys=60, columns=128, scanned=100))
    kv, indices = tensors["kv"], tensors["indices"]
    kv[0] = kv[-1] = NAN
    indices[(indices == 0) | (indices == 59)] = -1
    indices[0, ::3] = 60
    indices[1, 1::3] = 2**31 - 1
    indices[2, 2::5] = -(2**31)
    near(run(tensors), definition(tensors))


def test_no_valid_key_gives_zero_whatever_the_sink(run):
    tensors = made(Shape(rows=2, heads=4, keys=10, columns=128, scanned=70))
    tensors["sink"] = torch.tensor([0.0, -1e30, 1e30, -math.inf])
    tensors["indices"].fill_(-1)
    tensors["kv"].fill_(NAN)
    assert (run(tensors) == 0).all()


def test_a_workspace_without_rows(run):
    tensors = made(Shape(rows=2, heads=4, keys=10, columns=128, scanned=70))
    tensors["kv"] = tensors["kv"][:0]
    assert (run(tensors) == 0).all()


def test_by_hand(run):
    """Equal scores: the mean of the values, the sink counting as one more key whose value is 0."""
    tensors = made(Shape(rows=1, heads=2, keys=5, columns=128, scanned=4))
    tensors["q"].zero_()
    tensors["kv"][:, 0] = torch.tensor([9.0, 1.0, 2.0, 5.0, 9.0])[:, None]
    tensors["indices"][0, :4] = torch.tensor([1, -1, 3, 2])
    tensors["sink"] = torch.tensor([0.0, -1e30])
    got = run(tensors)
    assert (got[0, 0] == 2.0).all()  # (1 + 5 + 2) / (3 + 1)
    assert (got[0, 1] == torch.tensor(8 / 3).bfloat16()).all()


@pytest.mark.parametrize(
    ("sink", "share"),
    [(0.0, 1 / (1 + math.exp(-2.0))), (-1e30, 1.0), (1e30, 0.0), (2.0, 0.5), (-math.inf, 1.0), (math.inf, 0.0)],
    ids=["0", "-1e30", "1e30", "equal", "-inf", "inf"],
)
def test_the_sink_takes_its_share(sink, share, run):
    """One key of score 2 and value 1: out = 1 / (1 + exp(sink - 2))."""
    tensors = made(Shape(rows=1, heads=4, keys=1, columns=128, scanned=1))
    tensors["q"].zero_()
    tensors["q"][0, :, 0] = 2.0
    tensors["kv"].fill_(1.0)
    tensors["indices"].fill_(0)
    tensors["sink"].fill_(sink)
    tensors["scale"] = 1.0
    assert (run(tensors) == torch.tensor(share).bfloat16()).all()


def test_scores_far_apart_do_not_overflow(run):
    tensors = made(Shape(rows=2, heads=4, keys=130, columns=256, scanned=130))
    tensors["q"] *= 60
    got = run(tensors)
    assert got.isfinite().all()
    near(got, definition(tensors))


def test_rows_of_a_wider_workspace_and_heads_of_a_wider_projection(run):
    tensors = made(Shape(rows=3, heads=4, keys=40, columns=128, scanned=40))
    plain = run(tensors)
    for name, wide in (("kv", (40, 1, 520)), ("q", (3, 4, 544))):
        buffer = torch.full(wide, NAN, dtype=torch.bfloat16)
        buffer[..., :512] = tensors[name]
        tensors[name] = buffer[..., :512]
    assert torch.equal(run(tensors), plain)


def test_chunks_of_rows_give_what_one_chunk_gives(monkeypatch, device):
    tensors = inputs(Shape(rows=7, heads=4, keys=90, columns=128, scanned=80), torch.Generator(device).manual_seed(11))
    KERNEL.reference(**tensors)
    whole = tensors["out"].clone()
    monkeypatch.setitem(attend.GATHER_BYTES, device, 3 * 128 * 512 * 4)
    tensors["out"].fill_(NAN)
    KERNEL.reference(**tensors)
    torch.testing.assert_close(tensors["out"], whole, rtol=2**-7, atol=1e-3)


def test_the_cost_counts_a_shared_row_once():
    tensors = made(Shape(rows=2, heads=4, keys=10, columns=128, scanned=3))
    tensors["indices"][:, :3] = torch.tensor([[4, -1, 7], [7, 4, 99]])
    found = cost(tensors)
    assert found.flops == 4 * 4 * (2 * 512 + 2 * 512)  # 4 valid columns, 4 heads
    assert found.bytes_read == 2 * 2 * 4 * 512 + 2 * 1024 + 4 * (6 + 2 + 4)  # queries, rows 4 and 7, integers and sinks
    assert found.bytes_written == 2 * 2 * 4 * 512
