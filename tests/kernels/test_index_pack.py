"""The unfused tail of the index keys: golden codes, bytes between the launches, and the slots."""

import pytest
import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.index_pack import KERNEL, Shape, cost
from dsv4bench.kernels.layout import INDEX_K
from tests.kernels import golden

POISON = 0xA5
PAGE = 4


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider on rows and their slots; return payload, scales and cache on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(x, loc):
        there = {name: v.to(where) if torch.is_tensor(v) else v for name, v in arguments(x, loc).items()}
        KERNEL.provider(request.param).build(there)()
        return tuple(there[name].cpu() for name in ("payload", "scales", "cache"))

    return call


def arguments(x, loc):
    rows = len(loc)
    return {
        "x": x,
        "loc": torch.tensor(loc, dtype=torch.int64),
        "payload": torch.full((rows, 64), POISON, dtype=torch.uint8),
        "scales": torch.full((rows, 4), POISON, dtype=torch.uint8),
        "cache": torch.full((3, INDEX_K.page_bytes(PAGE)), POISON, dtype=torch.uint8),
        "page_size": PAGE,
    }


def rows_of(values):
    return torch.tensor(values).bfloat16().expand(1, 128)


@pytest.mark.parametrize(("factor", "pack_exponent"), [(f, e) for f, _, e in golden.INDEX_SCALES])
def test_fake_quantised_rows_give_the_golden_codes(run, factor, pack_exponent):
    """Specification A.6: 1e-5 falls under the floor of 1e-4 and loses every code."""
    x = codec.fake_quant_index(golden.index_row(factor)[None]).bfloat16()
    payload, scales, _ = run(x, [5])
    codes = torch.stack([payload & 15, payload >> 4], -1).flatten()
    assert scales.tolist() == [[pack_exponent] * 4]
    if factor in golden.INDEX_CODES:
        assert "".join(f"{code:x}" for code in codes[:32].tolist()) == golden.INDEX_CODES[factor]


def test_a_negative_zero_loses_its_sign(run):
    """By hand: 6, -0.0, and -0.25, which ties to a zero, under scale 1."""
    x = torch.zeros(1, 128)
    x[0, :4] = torch.tensor([6.0, -0.0, -0.25, -0.5])
    payload, scales, _ = run(x.bfloat16(), [1])
    assert payload[0, :2].tolist() == [0x07, 0x90]
    assert scales[0].tolist() == [127, 114, 114, 114]


def test_every_row_goes_to_its_slot_and_nowhere_else(run):
    """Slots 0 and 11 are the ends of the pool; the launches' programs take 4 and 8 rows, so 5 rows are ragged."""
    x = torch.cat([rows_of([2.0**n]) for n in range(5)])
    loc = [11, 0, 6, 5, 2]
    payload, scales, cache = run(x, loc)
    got = paged.read_rows(cache, torch.arange(12), PAGE, INDEX_K)
    assert scales[:, 0].tolist() == [125, 126, 127, 128, 129]  # 2^n / 6 lies between 2^(n-3) and 2^(n-2)
    assert set(payload.flatten().tolist()) == {0x66}  # 2^n / 2^(n-2) is 4, code 6
    for row, index in enumerate(loc):
        assert torch.equal(got[0][index], payload[row])
        assert torch.equal(got[1][index], scales[row])
    for index in set(range(12)) - set(loc):
        assert set(got[0][index].tolist()) | set(got[1][index].tolist()) == {POISON}


def test_rows_may_be_strided(run):
    wide = codec.fake_quant_index(torch.randn(3, 256, generator=torch.Generator().manual_seed(8))).bfloat16()
    want = codec.index_pack(wide[:, 128:].float())
    payload, scales, _ = run(wide[:, 128:], [1, 2, 3])
    assert torch.equal(payload, want[0])
    assert torch.equal(scales, want[1])


def test_no_rows_do_nothing(run):
    assert run(torch.zeros(0, 128).bfloat16(), [])[2].eq(POISON).all()


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("x", lambda x: x.repeat(1, 2)[:, ::2], "x: dimension 1 has stride 2, expected 1"),
        ("scales", lambda s: s.repeat(1, 2)[:, :4], "scales: dimension 0 has stride 8, expected 4"),
        ("page_size", lambda size: 2, r"index_k cache with pages of 2 is .*\[pages, 136\].*\[3, 272\]"),
    ],
    ids=["x-stride", "scales-stride", "page-size"],
)
def test_a_wrong_argument_is_named(argument, make, said):
    given = arguments(rows_of([1.0]).repeat(2, 1), [1, 2])
    given[argument] = make(given[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(given)


def test_triton_wants_a_payload_that_begins_on_a_word():
    given = arguments(rows_of([1.0]).repeat(2, 1), [1, 2])
    given["payload"] = torch.zeros(131, dtype=torch.uint8)[3:].view(2, 64)
    KERNEL.check(given)
    with pytest.raises(ValueError, match="payload: begins 3 bytes behind a multiple of 4"):
        KERNEL.provider("triton").build(given)


@pytest.mark.parametrize("wrong", [-1, 12])
def test_a_slot_out_of_range_is_named(wrong):
    KERNEL.check_values(arguments(rows_of([1.0]), [11]))
    with pytest.raises(ValueError, match=rf"loc\[0\]: {wrong}, expected 0 to 11"):
        KERNEL.check_values(arguments(rows_of([1.0]), [wrong]))


def test_cost_counts_the_packed_rows_twice(generator):
    counted = cost(KERNEL.inputs(Shape(10, 64), generator))
    assert (counted.bytes_read, counted.bytes_written) == (10 * (256 + 68 + 8), 10 * 136)
