"""RoPE of heads: quarter turns exactly, any turn beside complex numbers in float64, and what stays as it is."""

import pytest
import torch

from dsv4bench.kernels import rope
from dsv4bench.kernels.rope import KERNEL, Shape, cost, inputs
from tests.kernels.exact_rows import identity_table, turning_table


@pytest.fixture(params=["torch", "triton"])
def provider(request):
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return KERNEL.provider(request.param)


@pytest.fixture
def run(provider, device):
    """Rotate a tensor by a provider; return it on the CPU."""

    def call(x, freqs, positions, inverse=False):
        there = x.to(device)
        arguments = {"x": there, "freqs": freqs.to(device), "positions": positions.to(device), "inverse": inverse}
        provider.build(arguments)()
        return there.cpu()

    return call


def heads(rows, count, channels):
    """Heads [rows, count, channels] of distinct small integers."""
    return (torch.arange(rows * count * channels) % 251 - 125).view(rows, count, channels).bfloat16()


def test_quarter_turns_are_exact(run):
    """(a, b) at 90, 180 and 270 degrees is (-b, a), (-a, -b) and (b, -a); rows turn by their own positions."""
    x = heads(4, 3, 512)
    got = run(x.clone(), turning_table(9), torch.tensor([0, 5, 2, 7]))
    a, b = x[..., 448::2], x[..., 449::2]
    for row, (re, im) in enumerate([(a, b), (-b, a), (-a, -b), (b, -a)]):
        assert torch.equal(got[row, :, 448::2], re[row])
        assert torch.equal(got[row, :, 449::2], im[row])


def test_other_channels_stay(run):
    x = heads(2, 5, 512)
    assert torch.equal(run(x.clone(), turning_table(4), torch.tensor([1, 3]))[..., :448], x[..., :448])


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
def test_complex_numbers(inverse, run):
    made = inputs(Shape(5, 4, 128, inverse), torch.Generator().manual_seed(9))
    x, freqs, positions = made["x"], made["freqs"], made["positions"]
    turn = torch.view_as_complex(freqs.double().view(-1, 32, 2))[positions][:, None]
    tail = torch.view_as_complex(x[..., 64:].double().unflatten(-1, (32, 2)))
    want = torch.view_as_real(tail * (turn.conj() if inverse else turn)).flatten(-2)
    got = run(x.clone(), freqs, positions, inverse)[..., 64:]
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=1e-6)  # half a step of bf16, and an f32 error
    assert (got == want.float().bfloat16()).double().mean() > 0.999


def test_the_inverse_turns_back(run):
    x = heads(4, 2, 64)
    positions = torch.tensor([0, 1, 2, 3])
    turned = run(x.clone(), turning_table(4), positions)
    assert not torch.equal(turned, x)
    assert torch.equal(run(turned, turning_table(4), positions, inverse=True), x)


def test_the_sign_of_zero_survives_no_turn(run):
    """fma(a, 1, -(b * 0)) keeps -0.0 only where b * 0 is 0.0: what IEEE says, and both providers do."""
    x = torch.full((1, 1, 64), -0.0).bfloat16()
    x[..., 1::2] = 3.0
    got = run(x, identity_table(2), torch.tensor([1]))
    assert got[..., 0::2].signbit().all()
    assert (got[..., 1::2] == 3.0).all()


def test_heads_of_a_wider_buffer(provider, device):
    """Strides of rows and heads are free, and what lies beside a head keeps its poison."""
    positions, freqs = torch.tensor([1, 2, 3], device=device), turning_table(4).to(device)
    buffer = torch.full((3, 4, 80), 7.0, device=device).bfloat16()
    alone, view = heads(3, 2, 64).to(device), buffer[:, 1:3, 8:72]
    view.copy_(alone)
    for x in (alone, view):
        provider.build({"x": x, "freqs": freqs, "positions": positions, "inverse": False})()
    assert torch.equal(view, alone)
    view.fill_(7.0)
    assert (buffer == 7.0).all()


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        pytest.param("x", lambda x: x[..., ::2], r"x: dimension 2 has stride 2, expected 1", id="channels-apart"),
        pytest.param("x", lambda x: x[..., :63], r"x: 63 channels, expected at least 64", id="x-narrow"),
        pytest.param(
            "positions",
            lambda positions: positions.repeat(2)[::2],
            r"positions: dimension 0 has stride 2, expected 1",
            id="position-stride",
        ),
    ],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = inputs(Shape(2, 3, 128, False), torch.Generator().manual_seed(9))
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize("wrong", [-1, 4096])
def test_a_position_outside_the_table_is_named(wrong):
    tensors = inputs(Shape(2, 3, 128, False), torch.Generator().manual_seed(9))
    tensors["positions"][1] = 4095
    KERNEL.check_values(tensors)
    tensors["positions"][1] = wrong
    with pytest.raises(ValueError, match=rf"positions\[1\]: {wrong}, expected 0 to 4095"):
        KERNEL.check_values(tensors)


def test_chunks_of_rows_give_what_one_chunk_gives(monkeypatch, generator):
    tensors = inputs(Shape(5, 3, 64, False), generator)
    whole = tensors["x"].clone()
    KERNEL.reference(**{**tensors, "x": whole})
    monkeypatch.setattr(rope, "CHUNK_VALUES", 2 * 3 * 64)
    KERNEL.reference(**tensors)
    assert torch.equal(tensors["x"], whole)


def test_the_cost_counts_tails_only(generator):
    tensors = inputs(Shape(2, 3, 512, False), generator)
    tensors["positions"].fill_(7)
    values = 2 * 3 * 64
    found = cost(tensors)
    assert (found.flops, found.bytes_written) == (3 * values, 2 * values)
    assert found.bytes_read == 2 * values + 8 * 2 + 4 * 64  # one table row, named twice
