"""Fused index keys: golden codes, positions of groups, skipped rows, and the unfused path's bytes."""

import pytest
import torch

from dsv4bench.kernels import codec, fake_quant, index_key, index_pack, paged, rms_norm
from dsv4bench.kernels.index_key import KERNEL, Shape, cost
from dsv4bench.kernels.layout import INDEX_K
from tests.kernels import golden
from tests.kernels.exact_rows import identity_table, turning_table, unit_row

POISON = 0xA5
PAGE = 4
PAGES = 3


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider on keys and their slots; return the cache on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(k, loc, **others):
        tensors = arguments(k, loc, **others)
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        KERNEL.provider(request.param).build(there)()
        return there["cache"].cpu()

    return call


def arguments(k, loc, **others):
    return {
        "k": k,
        "weight": torch.ones(128).bfloat16(),
        "eps": 1e-20,
        "freqs": identity_table(16),
        "positions": torch.zeros(len(k), dtype=torch.int64),
        "loc": loc if torch.is_tensor(loc) else torch.tensor(loc, dtype=torch.int64),
        "ratio": 1,
        "cache": torch.full((PAGES, INDEX_K.page_bytes(PAGE)), POISON, dtype=torch.uint8),
        "page_size": PAGE,
        **others,
    }


def slot(cache, index):
    """Return the codes of a slot, one hexadecimal digit a channel, and its exponent bytes."""
    payload, scales = paged.read_rows(cache, torch.tensor([index]), PAGE, INDEX_K)
    codes = torch.stack([payload[0] & 15, payload[0] >> 4], -1).flatten()
    return "".join(f"{code:x}" for code in codes.tolist()), scales[0].tolist()


def written(cache):
    slots = torch.arange(PAGES * PAGE)
    payload, scales = paged.read_rows(cache, slots, PAGE, INDEX_K)
    return {int(i) for i in slots if set(payload[i].tolist()) | set(scales[i].tolist()) != {POISON}}


def exact_rows(rows):
    """Rows of 48 times +-1.5 and 80 times +-0.5: the mean square is 1, exactly, in whatever order it is summed."""
    generator = torch.Generator().manual_seed(5)
    magnitude = torch.where(torch.rand(rows, 128, generator=generator).argsort(1) < 48, 1.5, 0.5)
    return (magnitude * (torch.randint(2, (rows, 128), generator=generator) * 2 - 1)).bfloat16()


@pytest.mark.parametrize(("factor", "pack_exponent"), [(f, e) for f, _, e in golden.INDEX_SCALES])
def test_the_two_stages_give_the_golden_exponents(run, factor, pack_exponent):
    """Specification A.6; 0.2 and 1e-5 fail any shortcut through one stage."""
    row = unit_row(golden.index_row(factor)[:32].tolist(), 128)
    codes, scales = slot(run(row[None], [6]), 6)
    assert scales[0] == pack_exponent
    assert codes[:32] == golden.INDEX_CODES.get(factor, codes[:32])


def test_a_group_is_rotated_at_its_first_position(run):
    """By hand: at ratio 2 positions 6 and 7 turn by 6 quarters, (a, b) to (-a, -b); at ratio 1, 7 gives (b, -a).

    The scale is 1, so 6, 4, 3, 2 are codes 7, 6, 5, 4, with the sign in bit 3.
    """
    row = torch.roll(unit_row([6.0, 4.0, -3.0, 2.0], 128), 64).expand(2, 128)
    positions = torch.tensor([6, 7])
    paired = run(row, [1, 2], positions=positions, ratio=2, freqs=turning_table(16))
    single = run(row, [1, 2], positions=positions, ratio=1, freqs=turning_table(16))
    assert [slot(paired, i)[0][64:68] for i in (1, 2)] == ["fe5c", "fe5c"]
    assert [slot(single, i)[0][64:68] for i in (1, 2)] == ["fe5c", "6f45"]


def test_rows_without_a_slot_write_nothing(run):
    """Loc -1 is an incomplete group, 0 padding; what their rows hold is not read."""
    k = exact_rows(5)
    k[[0, 2, 4]] = float("nan")
    cache = run(k, [-1, 3, 0, 10, -1], positions=torch.tensor([0, 1, 2, 3, 4]), ratio=2)
    assert written(cache) == {3, 10}
    for row, index in ((1, 3), (3, 10)):
        want = run(k[row : row + 1], [index], positions=torch.tensor([row]), ratio=2)
        assert slot(cache, index) == slot(want, index)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # numpy's, in the interpreter
@pytest.mark.parametrize("few_rows", [0, 4096], ids=["four", "one"])
def test_padding_of_ratio_1_writes_nothing(few_rows, run, monkeypatch):
    """Its row may hold NaN, its position lie far outside the table, which is not read."""
    monkeypatch.setattr(index_key, "FEW_ROWS", few_rows)
    k, positions = exact_rows(5), torch.tensor([10**9, 1, -(10**9), 3, 10**9])
    k[[0, 2, 4]] = float("nan")
    cache = run(k, [-1, 3, 0, 10, 0], positions=positions, freqs=turning_table(16))
    assert written(cache) == {3, 10}
    for row, index in ((1, 3), (3, 10)):
        alone = {"positions": positions[row : row + 1], "freqs": turning_table(16)}
        assert slot(cache, index) == slot(run(k[row : row + 1], [index], **alone), index)


def test_bytes_of_equal_normed_rows_are_exact(run):
    """Specification 9.1: rows that the norm cannot blur, at many angles, against the oracle."""
    k = exact_rows(6)
    weight = torch.linspace(-2, 2, 128).bfloat16()
    angles = 7 * torch.rand(16, 32, generator=torch.Generator().manual_seed(6))
    freqs, positions = torch.stack([angles.cos(), angles.sin()], -1).flatten(1), torch.arange(6) * 2 + 1
    cache = run(k, [1, 2, 3, 4, 5, 6], weight=weight, freqs=freqs, positions=positions, ratio=2)
    normed = (k.float() * weight.float()).bfloat16()
    key = codec.rotate_tail(normed, freqs, positions - 1).bfloat16().float()
    want = codec.index_pack(codec.fake_quant_index(key))
    got = paged.read_rows(cache, torch.arange(1, 7), PAGE, INDEX_K)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_a_normed_key_is_bf16_before_it_turns(run):
    """By hand: under a maximum of 6, 1.5 * 1.671875 is 2.5078125, in bf16 2.5; plus 1/128 that is 2.5 again, code 4.

    Rounded only once, after the turn (a - b, a + b), it would be 2.515625, code 5.
    """
    k, weight = torch.full((1, 128), 0.5), torch.full((128,), 0.5)
    k[0, [64, 66, *range(46)]] = 1.5  # 48 of them: the mean square is 1
    weight[64:68] = torch.tensor([1.671875, -1 / 64, 4.0, 0.0])
    codes, scales = slot(run(k.bfloat16(), [1], weight=weight.bfloat16(), freqs=torch.ones(1, 64)), 1)
    assert (codes[64], codes[66], scales[2]) == ("4", "7", 127)


def test_the_unfused_kernels_write_the_same_bytes(run):
    """Norm, fake quantisation, pack and store, each a kernel of its own (specification 3.7)."""
    k, freqs, positions = exact_rows(3), turning_table(16), torch.tensor([0, 4, 8])
    weight = torch.linspace(0.5, 3, 128).bfloat16()
    normed, rotated = torch.empty_like(k), torch.empty_like(k)
    rms_norm.reference(x=k, weight=weight, eps=1e-20, out=normed)
    fake_quant.reference(x=normed, freqs=freqs, positions=positions, block=32, out=rotated)
    want = arguments(k, [2, 7, 9])["cache"]
    payload, scales = torch.empty(3, 64, dtype=torch.uint8), torch.empty(3, 4, dtype=torch.uint8)
    loc = torch.tensor([2, 7, 9])
    index_pack.reference(x=rotated, loc=loc, payload=payload, scales=scales, cache=want, page_size=PAGE)
    assert torch.equal(run(k, [2, 7, 9], weight=weight, freqs=freqs, positions=positions), want)


@pytest.mark.parametrize("rows", [1, 4, 7, 8])
def test_programs_of_four_rows_write_what_programs_of_one_write(rows, run, monkeypatch):
    loc = [2, -1, 7, 0, 9, 4, 11, 5][:rows]
    k, positions = exact_rows(rows), torch.arange(rows)
    want = run(k, loc, positions=positions, freqs=turning_table(16))
    monkeypatch.setattr(index_key, "FEW_ROWS", 0)
    assert torch.equal(run(k, loc, positions=positions, freqs=turning_table(16)), want)


@pytest.mark.parametrize("live", [(4,), (3,), (1, 2), (0, 1), (0, 1, 2, 3, 4), (0, 3, 4)], ids=str)
def test_any_rows_of_the_pairs_may_be_live(live, run):
    """Of five rows, so the last has no partner; requests that begin odd make both of a pair live."""
    k, positions = exact_rows(5), torch.tensor([1, 3, 6, 7, 9])
    loc = [row + 1 if row in live else (0, -1)[row % 2] for row in range(5)]
    k[[row for row in range(5) if row not in live]] = float("nan")
    cache = run(k, loc, positions=positions, ratio=2, freqs=turning_table(16))
    assert written(cache) == {row + 1 for row in live}
    for row in live:
        alone = {"positions": positions[row : row + 1], "ratio": 2, "freqs": turning_table(16)}
        assert slot(cache, row + 1) == slot(run(k[row : row + 1], [row + 1], **alone), row + 1)


def test_a_key_comes_from_its_norm(run):
    """Doubling a row changes nothing, a zero row stays zero under eps 1e-20."""
    k = torch.randn(1, 128, generator=torch.Generator().manual_seed(7)).bfloat16()
    cache = run(torch.cat([k, 2 * k, 0 * k]), [1, 2, 3])
    assert slot(cache, 1) == slot(cache, 2)
    assert slot(cache, 3) == ("0" * 128, [114] * 4)


def test_no_rows_do_nothing(run):
    assert written(run(exact_rows(0), [])) == set()


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("k", lambda k: k.repeat(1, 2)[:, ::2], "k: dimension 1 has stride 2, expected 1"),
        ("ratio", lambda ratio: 3, "ratio: 3, expected a power of two"),
        ("page_size", lambda size: 8, r"index_k cache with pages of 8 is .*\[pages, 544\].*\[3, 272\]"),
    ],
    ids=["k-stride", "ratio", "page-size"],
)
def test_a_wrong_argument_is_named(argument, make, said):
    given = arguments(exact_rows(3), [1, 2, 3])
    given[argument] = make(given[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(given)


def test_a_value_out_of_range_is_named():
    """Twelve slots, a table of 16; at ratio 2 position 17 turns by row 16; rows without a slot may say any position."""
    given = arguments(exact_rows(3), [11, 0, -1], positions=torch.tensor([15, 99, -7]), ratio=2)
    KERNEL.check_values(given)
    with pytest.raises(ValueError, match=r"loc\[0\]: 12, expected 0 to 11"):
        KERNEL.check_values(given | {"loc": torch.tensor([12, 0, -1])})
    with pytest.raises(ValueError, match=r"positions\[0\]: 16, expected 0 to 15"):
        KERNEL.check_values(given | {"positions": torch.tensor([17, 0, 0])})


def test_ids_of_both_widths_do_the_same(run):
    k, positions, loc = exact_rows(3), torch.tensor([3, 9, 15]), torch.tensor([2, 7, -1])
    want = run(k, loc, freqs=turning_table(16), positions=positions, ratio=2)
    got = run(k, loc.int(), freqs=turning_table(16), positions=positions.int(), ratio=2)
    assert torch.equal(got, want)


def test_cost_counts_the_rows_that_have_a_slot(generator):
    """8 rows at ratio 2, the last one padding: 3 complete groups."""
    counted = cost(KERNEL.inputs(Shape(8, 1, 2, 64), generator))
    assert counted.bytes_read == 3 * (256 + 256) + 8 * 16 + 256
    assert counted.bytes_written == 3 * 68
