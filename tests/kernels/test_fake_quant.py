"""Fake quantisation of rows: golden values of both rules, rotation in front, and the table's edge."""

import pytest
import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.contract import same_bits
from dsv4bench.kernels.fake_quant import KERNEL, Shape, cost
from tests.kernels import golden
from tests.kernels.exact_rows import identity_table, turning_table


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider on rows; return its output on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(x, block, freqs=None, positions=None):
        there = [None if t is None else t.to(where) for t in (x, freqs, positions)]
        out = torch.full(x.shape, float("nan"), dtype=torch.bfloat16, device=where)
        tensors = {"x": there[0], "freqs": there[1], "positions": there[2], "block": block, "out": out}
        KERNEL.provider(request.param).build(tensors)()
        return out.cpu()

    return call


def random_rows(rows, width):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(3)).bfloat16()


def assert_same_bits(got, want):
    assert same_bits(got, want).all(), (got[~same_bits(got, want)], want[~same_bits(got, want)])


def test_compressed_kv_values_are_those_of_the_golden_bytes(run):
    """Specification A.4b: a row of 512 whose tiles are A.4's times 1, 1/2, 1/4, 1/8."""
    got = run(golden.ROW.bfloat16()[None], 16)
    payload = torch.tensor(golden.from_hex(golden.V41_AFTER_FAKE_QUANT), dtype=torch.uint8)
    assert_same_bits(got[0, :32], (codec.e4m3_decode(payload) * 2.0 ** (121 - 127)).bfloat16())


@pytest.mark.parametrize(("tie", "code"), golden.E2M1_TIES)
@pytest.mark.parametrize("scale", [1.0, 1.375])
def test_compressed_kv_ties_go_to_the_even_code(run, tie, code, scale):
    """A maximum of 8.25 gives scale 1.375, one of 6 scale 1; tie * scale is exact in bf16."""
    row = torch.zeros(1, 64)
    row[0, :3] = torch.tensor([6 * scale, tie * scale, -tie * scale])
    want = golden.E2M1_GRID[code] * scale
    got = run(row.bfloat16(), 16)
    assert_same_bits(got[0, :3], torch.tensor([6 * scale, want, -want]).bfloat16())


@pytest.mark.parametrize(("value", "want"), [(-0.0, 0.0), (-0.02, -0.0), (0.02, 0.0)], ids=str)
@pytest.mark.parametrize("block", [16, 32])
def test_only_a_zero_quotient_loses_its_sign(run, block, value, want):
    row = torch.zeros(1, 64)
    row[0, :2] = torch.tensor([6.0, value])
    assert_same_bits(run(row.bfloat16(), block)[0, 1], torch.tensor(want).bfloat16())


@pytest.mark.parametrize(("factor", "exponent"), [(f, e) for f, e, _ in golden.INDEX_SCALES])
def test_index_scales_are_powers_of_two_of_the_first_stage(run, factor, exponent):
    """Specification A.6: every value is a grid point times 2^(exponent - 127), the largest at least 3 times it."""
    got = run(golden.index_row(factor).bfloat16()[None], 32)[0].double()
    steps = (got.abs() / 2.0 ** (exponent - 127)).unique()
    assert set(steps.tolist()) <= set(golden.E2M1_GRID)
    assert steps.max() >= 3


def test_blocks_do_not_share_scales(run):
    """By hand: 600 / 6 = 100 ties to the e4m3 96, 0.5 / 6 to 0.0859375, 1 / 6 to 0.171875; every quotient goes to 6."""
    row = torch.cat([torch.full((16,), 600.0), torch.full((16,), 0.5), torch.full((32,), -1.0)])[None]
    want = torch.cat([torch.full((16,), 576.0), torch.full((16,), 0.515625), torch.full((32,), -1.03125)])[None]
    assert_same_bits(run(row.bfloat16(), 16), want.bfloat16())


def test_the_tail_turns_before_it_is_rounded(run):
    """By hand: position 3 turns (a, b) to (b, -a), position 2 to (-a, -b); the other channels stay."""
    row = torch.zeros(2, 128)
    row[:, :2] = torch.tensor([4.0, 6.0])
    row[:, 64:68] = torch.tensor([6.0, 1.0, -2.0, 3.0])
    got = run(row.bfloat16(), 32, turning_table(8), torch.tensor([3, 2]))
    assert got[:, :2].tolist() == [[4.0, 6.0], [4.0, 6.0]]
    assert got[:, 64:68].tolist() == [[1.0, -6.0, 3.0, 2.0], [-6.0, -1.0, 2.0, -3.0]]


def test_the_rotated_row_is_bf16_before_it_is_rounded(run):
    """The order of specification 3.10: rotate, round to bf16, then fake-quantise."""
    angles = 7 * torch.rand(4, 32, generator=torch.Generator().manual_seed(4))
    freqs, positions = torch.stack([angles.cos(), angles.sin()], -1).flatten(1), torch.tensor([0, 3, 2])
    x = random_rows(3, 512)
    want = codec.fake_quant_kv(codec.rotate_tail(x, freqs, positions).bfloat16().float()).bfloat16()
    assert_same_bits(run(x, 16, freqs, positions), want)


@pytest.mark.parametrize("position", [-1, 8, 2**40])
def test_a_position_outside_the_table_reads_its_first_row(run, position):
    x = random_rows(2, 128)
    table = turning_table(9)[1:]  # its first row is a quarter turn
    want = run(x, 32, table, torch.tensor([0, 5]))
    assert_same_bits(run(x, 32, table, torch.tensor([position, 5])), want)


def test_no_table_means_no_rotation(run):
    x = random_rows(3, 512)
    assert_same_bits(run(x, 16), run(x, 16, identity_table(4), torch.tensor([1, 0, 3])))


@pytest.mark.parametrize(("rows", "width", "block"), [(5, 128, 32), (1, 64, 16), (3, 256, 32)])
def test_every_row_of_a_ragged_last_program_is_written(run, rows, width, block):
    """Narrow rows share programs: 5 rows of 128 take one of 4 and one of 1."""
    wide = random_rows(rows, 2 * width)
    rule = {16: codec.fake_quant_kv, 32: codec.fake_quant_index}[block]
    assert_same_bits(run(wide[:, width:], block), rule(wide[:, width:].float()).bfloat16())


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        pytest.param("block", lambda block: 64, r"block: 64, expected one of 16, 32", id="block"),
        pytest.param("x", lambda x: x[:, :96], r"width of x: 96, expected one of 64, 128, 256, 512", id="x-width"),
        pytest.param(
            "x", lambda x: x.repeat(1, 2)[:, ::2], r"x: dimension 1 has stride 2, expected 1", id="x-channels-apart"
        ),
        pytest.param(
            "out", lambda out: out[:2], r"out: bfloat16 \[2, 128\], expected bfloat16 \[3, 128\]", id="out-rows"
        ),
        pytest.param(
            "out",
            lambda out: out.repeat(1, 2)[:, :128],
            r"out: dimension 0 has stride 256, expected 128",
            id="out-row-stride",
        ),
        pytest.param("freqs", lambda freqs: None, r"freqs: None, expected a tensor beside positions", id="no-freqs"),
        pytest.param(
            "positions", lambda positions: None, r"positions: None, expected a tensor beside freqs", id="no-positions"
        ),
    ],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = KERNEL.inputs(Shape(3, 128, 32, True), torch.Generator().manual_seed(9))
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


def test_cost_counts_each_row_once(generator):
    plain = cost(KERNEL.inputs(Shape(10, 128, 32, False), generator))
    turned = cost(KERNEL.inputs(Shape(10, 128, 32, True), generator))
    assert (plain.bytes_read, plain.bytes_written) == (2560, 2560)
    assert turned.bytes_read == 2560 + 10 * (8 + 256)
