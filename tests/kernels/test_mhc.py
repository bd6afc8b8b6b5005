"""The kernels of the four residual streams: rows by hand, float64 oracles in plain loops, what Sinkhorn promises."""

import math

import pytest
import torch

from dsv4bench.kernels import kernel
from dsv4bench.kernels.mhc import COMBINE, MIXES, POST, PRE, slice_width
from dsv4bench.kernels.mhc_mix import Shape

NAN = float("nan")


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider of a kernel on copies of its tensors, and return on the CPU what it wrote."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(name, **tensors):
        there = {key: value.to(where, copy=True) if torch.is_tensor(value) else value for key, value in tensors.items()}
        kernel(name).provider(request.param).build(there)()
        return there[next(iter(kernel(name).outputs))].cpu()

    return call


def streams_of(*rows):
    """Return streams [rows, 4, hidden] bf16 from nested lists."""
    return torch.tensor(rows).bfloat16()


def mixes_of(pre=(0.0,) * 4, post=(0.0,) * 4, combine=((0.0,) * 4,) * 4):
    return torch.tensor([[*pre, *post, *(value for line in combine for value in line)]])


IDENTITY = [[float(i == j) for j in range(4)] for i in range(4)]
ROW = streams_of([[1.0, 2.0, 0.0, 4.0], [8.0, 0.0, -2.0, 0.5], [0.0, 16.0, 3.0, 0.0], [-1.0, 1.0, 1.0, 2.0]])


def test_pre_is_the_weighted_sum_of_the_streams(run):
    """1 - 4 + 0 - 2, 2 + 0 + 4 + 2, 0 + 1 + 0.75 + 2, 4 - 0.25 + 0 + 4."""
    out = torch.full((1, 4), NAN, dtype=torch.bfloat16)
    mixes = mixes_of(pre=(1.0, -0.5, 0.25, 2.0), post=(NAN,) * 4, combine=((NAN,) * 4,) * 4)
    assert run("mhc_pre", streams=ROW, mixes=mixes, out=out).tolist() == [[-5.0, 8.0, 3.75, 7.75]]


def test_post_adds_the_result_to_each_stream_by_its_own_share(run):
    y = torch.tensor([[1.0, 0.0, 2.0, -4.0]]).bfloat16()
    mixes = mixes_of(pre=(NAN,) * 4, post=(0.0, 1.0, 2.0, 0.5), combine=IDENTITY)
    assert run("mhc_post", streams=ROW, mixes=mixes, y=y).tolist() == [
        [[1.0, 2.0, 0.0, 4.0], [9.0, 0.0, 0.0, -3.5], [2.0, 16.0, 7.0, -8.0], [-0.5, 1.0, 2.0, 0.0]]
    ]


def test_post_mixes_from_the_first_index_to_the_second(run):
    """All of stream 0 goes to stream 3 and half of it to stream 1, which also keeps itself; the others end."""
    combine = [[0.0, 0.5, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4]
    y = torch.zeros(1, 4, dtype=torch.bfloat16)
    assert run("mhc_post", streams=ROW, mixes=mixes_of(combine=combine), y=y).tolist() == [
        [[0.0] * 4, [8.5, 1.0, -2.0, 2.5], [0.0] * 4, [1.0, 2.0, 0.0, 4.0]]
    ]


def test_stats_by_hand(run):
    """Rows of 4 streams with 4 channels: each of the 16 slices is one of them, so nothing is summed."""
    projection = torch.arange(24.0)[:, None] * torch.tensor([1.0] * 8 + [2.0] * 8)
    found = run("mhc_stats", streams=ROW, projection=projection, stats=torch.full((1, 16, 25), NAN))
    flat = ROW.float().flatten().tolist()
    want = [[value * n * (1 if at < 8 else 2) for n in range(24)] + [value * value] for at, value in enumerate(flat)]
    assert found.tolist() == [want]


@pytest.mark.parametrize(("rows", "hidden"), [(3, 64), (65, 20), (2, 1284)])
def test_stats_against_float64(rows, hidden, run, generator):
    made = kernel("mhc_stats").inputs(Shape(rows, hidden), generator)
    streams, projection = made["streams"].cpu().double().flatten(1), made["projection"].cpu().double()
    found = run("mhc_stats", **made).double().sum(dim=1)
    torch.testing.assert_close(found[:, :24], streams @ projection.T, rtol=0, atol=5e-3)
    torch.testing.assert_close(found[:, 24], streams.square().sum(dim=1), rtol=1e-5, atol=0)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def mixed(z, scale, base):
    """Return the 24 mixes of a row from the definition, one number at a time."""
    pre = [sigmoid(scale[0] * z[i] + base[i]) + 1e-6 for i in range(4)]
    post = [2 * sigmoid(scale[1] * z[4 + i] + base[4 + i]) for i in range(4)]
    table = [[math.exp(scale[2] * z[8 + 4 * i + j] + base[8 + 4 * i + j]) for j in range(4)] for i in range(4)]
    table = [[value / sum(line) + 1e-6 for value in line] for line in table]
    for iteration in range(20):
        if iteration:
            table = [[value / (sum(line) + 1e-6) for value in line] for line in table]
        sums = [sum(line[j] for line in table) + 1e-6 for j in range(4)]
        table = [[line[j] / sums[j] for j in range(4)] for line in table]
    return [*pre, *post, *(value for line in table for value in line)]


def test_mixes_against_the_definition_in_plain_loops(run, generator):
    made = kernel("mhc_mix").inputs(Shape(35, 64), generator)
    sums = made["stats"].cpu().double().sum(dim=1)
    z = sums[:, :24] / (sums[:, 24:] / 256 + 1e-20).sqrt()
    want = [mixed(row, made["scale"].tolist(), made["base"].tolist()) for row in z.tolist()]
    found = run("mhc_mix", **made | {"mixes": torch.full((35, 24), NAN)})
    torch.testing.assert_close(found.double(), torch.tensor(want, dtype=torch.float64), rtol=1e-4, atol=1e-6)


def test_a_row_of_zeros_mixes_evenly(run):
    """eps of 1e-20 keeps the norm of a zero row, a padded one, finite."""
    found = run(
        "mhc_mix",
        stats=torch.zeros(1, 16, 25),
        scale=torch.ones(3),
        base=torch.zeros(24),
        hidden=64,
        eps=1e-20,
        mixes=torch.full((1, 24), NAN),
    )
    torch.testing.assert_close(found[0], torch.tensor([0.5] * 4 + [1.0] * 4 + [0.25] * 16), rtol=1e-5, atol=0)


def test_streams_are_mixed_doubly_stochastically(run, generator):
    found = run("mhc_mix", **kernel("mhc_mix").inputs(Shape(64, 64), generator))
    combine = found[:, COMBINE].unflatten(1, (4, 4))
    assert (combine > 0).all()
    for dim in (1, 2):
        torch.testing.assert_close(combine.sum(dim=dim), torch.ones(64, 4), rtol=0, atol=1e-3)
    assert ((found[:, PRE] > 0) & (found[:, PRE] < 1.001)).all()
    assert ((found[:, POST] > 0) & (found[:, POST] < 2)).all()


def test_slices_are_even_or_refused():
    assert slice_width(5120) == 1280
    with pytest.raises(ValueError, match="streams: 6 channels, expected a multiple of 4"):
        slice_width(6)


def test_costs_of_a_row(generator):
    """A row of 64 channels a stream: 4 streams are 512 bytes, one is 128; mixes 96, of which pre is 16; sums 1600."""
    found = {
        name: kernel(name).cost(kernel(name).inputs(Shape(1, 64), generator))
        for name in ("mhc_pre", "mhc_stats", "mhc_mix", "mhc_post")
    }
    assert {name: (cost.bytes_read, cost.bytes_written) for name, cost in found.items()} == {
        "mhc_pre": (512 + 16, 128),
        "mhc_stats": (512 + MIXES * 256 * 4, 1600),
        "mhc_mix": (1600 + 12 + 96, 96),
        "mhc_post": (512 + 128 + 80, 512),
    }
    assert found["mhc_stats"].flops == 2 * 25 * 256
