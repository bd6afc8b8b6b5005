"""Index queries: golden values of A.6, quarter turns, and the weights' one rounding."""

import pytest
import torch

from dsv4bench.kernels import index_query
from dsv4bench.kernels.index_query import KERNEL, Shape, cost, inputs
from tests.kernels.exact_rows import identity_table, turning_table

GRID = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
NAN = float("nan")


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider; return the queries and the weights on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(q, **others):
        tensors = arguments(q, **others)
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        KERNEL.provider(request.param).build(there)()
        return there["out"].cpu(), there["weights"].cpu()

    return call


def arguments(q, **others):
    return {
        "q": q,
        "freqs": identity_table(8),
        "positions": torch.zeros(len(q), dtype=torch.int64),
        "weights_raw": torch.ones(q.shape[:2]).bfloat16(),
        "scale": 1.0,
        "out": torch.full(q.shape, NAN).bfloat16(),
        "weights": torch.full(q.shape[:2], NAN).bfloat16(),
        **others,
    }


def values(codes, exponent):
    """The 32 values of hexadecimal e2m1 codes times 2^(exponent - 127)."""
    digits = [int(digit, 16) for digit in codes]
    return torch.tensor([GRID[d & 7] * (-1) ** (d >> 3) for d in digits]) * 2.0 ** (exponent - 127)


def test_golden_tile(run):
    """A.6 at g = 0.2: the largest value, 0.2 / 6, asks for 2^-4, whose grid reaches 3 * 2^-4 here.

    The appendix gives the codes after packing, at 2^-5; they stand for the same values.
    """
    tile = (torch.linspace(-1, 1, 32) * 0.2).bfloat16()
    out, _ = run(tile.repeat(4)[None, None])
    assert torch.equal(out[0, 0].float(), values("ffffeeeeddccaaa00222445566667777", 122).repeat(4))


@pytest.mark.parametrize(("g", "exponent"), [(1.0, 125), (1e-3, 115), (1e-5, 108)])
def test_golden_exponents(g, exponent, run):
    """A.6: the largest value of a tile lands on 4 or 6 times the power of two of its fake exponent."""
    out, _ = run((torch.linspace(-1, 1, 32) * g).bfloat16().repeat(4)[None, None])
    assert out.float().max().item() in (4 * 2.0 ** (exponent - 127), 6 * 2.0 ** (exponent - 127))


def test_tiles_of_32_have_their_own_scale(run):
    q = torch.tensor([6.0, 0.75, 96.0, 0.0]).repeat_interleave(32)
    out, _ = run(q.bfloat16()[None, None])
    assert torch.equal(out[0, 0].float(), q)


def test_the_sign_of_what_rounds_to_zero(run):
    """-0.0 becomes 0.0; a small negative that rounds to zero keeps its sign (specification 2.2)."""
    q = torch.tensor([6.0, -0.0, -0.125, 0.125]).repeat(32).bfloat16()
    out, _ = run(q[None, None])
    assert torch.equal(out[0, 0].signbit(), torch.tensor([False, False, True, False]).repeat(32))
    assert (out[0, 0, 1::4] == 0).all()


def test_the_tail_turns_by_the_own_position(run):
    """Values of the grid, turned by quarters, are on the grid again: rows 0, 1, 2, 3 of one query."""
    q = torch.tensor(GRID[1:]).repeat(19)[:128].repeat(4, 2, 1).bfloat16()
    out, _ = run(q, freqs=turning_table(4), positions=torch.tensor([0, 1, 2, 3]))
    a, b = q[0, 0, 64::2], q[0, 0, 65::2]
    for row, (re, im) in enumerate([(a, b), (-b, a), (-a, -b), (b, -a)]):
        assert torch.equal(out[row, 0, :64], q[row, 0, :64])
        assert torch.equal(out[row, 1, 64::2], re)
        assert torch.equal(out[row, 1, 65::2], im)


def test_rotation_is_rounded_before_it_is_quantised(run):
    """3.46875 times cos 30 is 3.004, in bf16 3.0: the tile's scale is 2^-1, which holds 0.25; 1 would not."""
    q = torch.zeros(1, 1, 128)
    q[..., 64], q[..., 66] = 3.46875, 0.25
    freqs = identity_table(1)
    freqs[0, 0] = 0.8660254
    out, _ = run(q.bfloat16(), freqs=freqs)
    assert out[0, 0, [64, 66]].tolist() == [3.0, 0.25]


@pytest.mark.parametrize("heads", [4, 32])
def test_weights_are_rounded_once(heads, run):
    made = inputs(Shape(3, heads), torch.Generator().manual_seed(9))
    _, weights = run(made["q"], weights_raw=made["weights_raw"], scale=made["scale"])
    exact = made["weights_raw"].double() * torch.tensor(made["scale"], dtype=torch.float32).double()
    assert torch.equal(weights, exact.float().bfloat16())


def test_columns_of_wider_projections(run):
    made = inputs(Shape(3, 4), torch.Generator().manual_seed(9))
    plain = run(made["q"], weights_raw=made["weights_raw"])
    wide, raw = torch.full((3, 4, 160), NAN).bfloat16(), torch.full((3, 9), NAN).bfloat16()
    wide[..., :128], raw[:, 2:6] = made["q"], made["weights_raw"]
    got = run(wide[..., :128], weights_raw=raw[:, 2:6])
    assert torch.equal(got[0], plain[0])
    assert torch.equal(got[1], plain[1])


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        pytest.param(
            "q",
            lambda q: q.repeat(1, 1, 2)[..., ::2],
            r"q: dimension 2 has stride 2, expected 1",
            id="q-channels-apart",
        ),
        pytest.param(
            "weights_raw",
            lambda raw: raw.T.contiguous().T,
            r"weights_raw: dimension 1 has stride 3, expected 1",
            id="raw-heads-apart",
        ),
        pytest.param(
            "weights",
            lambda weights: weights[:2],
            r"weights: bfloat16 \[2, 4\], expected bfloat16 \[3, 4\]",
            id="weights-rows",
        ),
    ],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = inputs(Shape(3, 4), torch.Generator().manual_seed(9))
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize("wrong", [-1, 4096])
def test_a_position_outside_the_table_is_named(wrong):
    tensors = inputs(Shape(3, 4), torch.Generator().manual_seed(9))
    tensors["positions"][1] = 4095
    KERNEL.check_values(tensors)
    tensors["positions"][1] = wrong
    with pytest.raises(ValueError, match=rf"positions\[1\]: {wrong}, expected 0 to 4095"):
        KERNEL.check_values(tensors)


def test_chunks_of_rows_give_what_one_chunk_gives(monkeypatch, generator):
    tensors = inputs(Shape(5, 3), generator)
    KERNEL.reference(**tensors)
    whole = tensors["out"].clone()
    monkeypatch.setattr(index_query, "CHUNK_VALUES", 2 * 3 * 128)
    tensors["out"].fill_(NAN)
    KERNEL.reference(**tensors)
    assert torch.equal(tensors["out"], whole)


def test_the_cost_counts_each_value_once(generator):
    tensors = inputs(Shape(2, 4), generator)
    tensors["positions"].fill_(3)
    found = cost(tensors)
    read_and_written = 2 * (2 * 4 * 128 + 2 * 4)
    assert (found.bytes_read, found.bytes_written) == (read_and_written + 8 * 2 + 4 * 64, read_and_written)
