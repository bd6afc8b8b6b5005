"""The writer of what ratio 4 and 128 pooled: bytes by hand, where a record's row goes, and who writes nothing."""

import struct

import pytest
import torch

from dsv4bench.kernels import codec, codec_index, paged
from dsv4bench.kernels.compress_norm_rope_store import (
    INDEXES,
    KERNEL,
    TARGETS,
    Shape,
    cost,
    hadamard,
    inputs,
    slot_gaps,
)
from dsv4bench.kernels.layout import INDEX_K, INDEX_K_FP8, LAYOUTS, UNIFORM_FP8, V4, V41, KVLayout

PAGE = 4
POISON = 0xA5
INVALID = (0xFFFFFFFF, 0, 0, -1, -1)
IDENTITY = torch.tensor([1.0, 0.0] * 32)
QUARTER = torch.tensor([0.0, 1.0] * 32)


@pytest.fixture(params=["torch", "triton"])
def provider(request) -> str:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return request.param


def width(layout: KVLayout) -> int:
    return 128 if layout in INDEXES else 512


def plan_c(*records: tuple) -> torch.Tensor:
    """Pack (seq_len, ragged_id); the pages and the buffer's length are of no use here."""
    whole = [record if len(record) == 5 else (*record, 5, 77, 88) for record in records]
    return torch.tensor(list(b"".join(struct.pack("<IHHii", *record) for record in whole)), dtype=torch.uint8)


def plan_d(*lengths: int) -> torch.Tensor:
    return torch.tensor(list(b"".join(struct.pack("<Iiii", n, 7, 7, 7) for n in lengths)), dtype=torch.uint8)


def tensors_of(kv, plan, out_loc, layout, device, ratio=4, decode=False, positions=None, weight=None) -> dict:
    """Return the arguments over three pages of poison; rows of the table that are not in `positions` are NaN."""
    freqs = torch.full((1024, 64), float("nan"))
    for position, row in (positions or {0: IDENTITY}).items():
        freqs[position] = row
    weight = torch.ones(kv.shape[1]) if weight is None else weight
    there = {
        "kv": kv,
        "plan": plan.view(-1, 16),
        "weight": weight.to(kv.dtype),
        "freqs": freqs,
        "out_loc": torch.tensor(out_loc, dtype=torch.int64),
        "cache": torch.full((3, layout.page_bytes(PAGE)), POISON, dtype=torch.uint8),
    }
    there = {name: value.to(device) for name, value in there.items()}
    return {**there, "decode": decode, "ratio": ratio, "eps": 1e-20, "page_size": PAGE, "layout": layout}


def stored(provider: str, tensors: dict, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Run; return data and scales of slots; nothing but these slots may have changed."""
    KERNEL.check_values(tensors)
    KERNEL.provider(provider).build(tensors)()
    cache, layout = tensors["cache"].cpu(), tensors["layout"]
    data, scales = paged.read_rows(cache, torch.tensor(slots), PAGE, layout)
    want, used = torch.full_like(cache, POISON), scales.shape[1] - (layout == V4)
    paged.write_rows(want, torch.tensor(slots), (data, scales[:, :used]), PAGE, layout)
    assert torch.equal(cache, want)
    return data, scales[:, :used]


def signs(rows: int, columns: int, seed: int = 3) -> torch.Tensor:
    """Return rows of 1 and -1, whose norm changes nothing."""
    return torch.randint(0, 2, (rows, columns), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1


def matrix() -> torch.Tensor:
    """Return the 128-point Walsh-Hadamard matrix in natural order, element by element: (-1)^(common bits of i, j)."""
    return torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(128)] for i in range(128)])


def coded(y: torch.Tensor, layout: KVLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows that are normed and rotated, whose 128 channels hold multiples of 1/8: their mixture is exact."""
    if layout not in INDEXES:
        return codec.quantise(y.bfloat16().float(), layout)
    mixed = (y.double() @ matrix().double()).float() * torch.tensor(128.0).rsqrt()
    return (codec_index.index_pack_c4 if layout == INDEX_K else codec_index.index_pack_fp8)(mixed)


# ---- bytes


@pytest.mark.parametrize("factor", [1.0, 2.0**-10, 2.0**20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("name", TARGETS)
def test_bytes_of_rows_with_an_exact_norm(name, dtype, factor, provider, device):
    """The row and the row turned by a quarter; weights are multiples of 1/8, so each step is exact by hand."""
    layout, columns = TARGETS[name], width(TARGETS[name])
    row, weight = signs(1, columns), (torch.arange(columns) * 5 % 16 + 1) / 8
    kv = (row * factor).to(dtype).expand(2, columns).contiguous()
    positions = {8: QUARTER, 40: IDENTITY}
    tensors = tensors_of(kv, plan_c((12, 3), (44, 0)), [9, 99, 99, 2], layout, device, 4, False, positions, weight)
    y = row * weight
    turned = y.clone()
    turned[:, -64::2], turned[:, -63::2] = -y[:, -63::2], y[:, -64::2]
    data, scales = stored(provider, tensors, [2, 9])
    want, want_scales = coded(torch.cat([turned, y]), layout)
    assert torch.equal(data, want)
    assert torch.equal(scales, want_scales)


@pytest.mark.parametrize("name", TARGETS)
def test_the_triton_kernel_has_the_reference_s_bytes_where_the_norm_is_exact(name, triton_device):
    """Any angles and weights: rotation, mixture and quantiser have one order of operations."""
    layout, columns = TARGETS[name], width(TARGETS[name])
    generator = torch.Generator().manual_seed(4)
    angles = 6.3 * torch.rand(9, 32, generator=generator)
    table = torch.stack([angles.cos(), angles.sin()], -1).flatten(1)
    positions = {4 * group: table[group] for group in range(9)}
    plan = plan_c(*[(4 * group + 4, group) for group in range(9)])
    given = (signs(9, columns), plan, [5, 3, 11, 7, 0, 1, 2, 8, 9], layout, triton_device, 4, False, positions)
    weight = torch.rand(columns, generator=generator) + 0.5
    got, want = (tensors_of(*given, weight=weight) for _ in range(2))
    KERNEL.provider("triton").build(got)()
    KERNEL.reference(**want)
    assert torch.equal(got["cache"], want["cache"])


def test_v4_rounds_to_bf16_before_the_quantiser(provider, device):
    """1 + 2^-4 + 2^-12 under a scale of 2^-7 (the largest of a tile is 3.5) lies just above a tie of e4m3.

    bf16 takes it for the tie, 1 + 2^-4, which goes to the even code, 1.
    """
    weight = torch.full((512,), 1 + 2.0**-4 + 2.0**-12)
    weight[::64] = 3.5
    tensors = tensors_of(torch.ones(1, 512), plan_c((4, 0)), [1], V4, device, weight=weight)
    data, scales = stored(provider, tensors, [1])
    assert (scales == 120).all()
    assert (data[:, 1:64] == data[0, 1]).all()
    assert codec.e4m3_decode(data[:, 1]).item() * 2.0**-7 == 1.0
    assert (data[:, 448:].contiguous().view(torch.bfloat16)[:, 1:] == 1.0625).all()


@pytest.mark.parametrize(("layout", "tail"), [(V4, 222), (UNIFORM_FP8, 222), (V41, 221)], ids=lambda v: str(v)[:20])
def test_the_tail_turns_in_f32_except_in_v41_layouts(layout, tail, provider, device):
    """A tail of 1.25 * (1 + 2^-7) times 0.6875 is 221.72 steps of 2^-8; rounded to bf16 before, it would be 221.375.

    The mean square is 1: 64 times 1.25^2, 48 times 0.5^2, 400 times 1.
    """
    kv = torch.cat([torch.full((48,), 0.5), torch.ones(400), torch.full((64,), 1.25)])[None].bfloat16()
    table, weight = {0: torch.tensor([0.6875, 0.0] * 32)}, torch.full((512,), 1 + 2.0**-7)
    tensors = tensors_of(kv, plan_c((4, 0)), [6], layout, device, positions=table, weight=weight)
    got = stored(provider, tensors, [6])
    y = kv.float() * (1 + 2.0**-7)
    y[:, 448:] = tail / 256
    want = codec.quantise(y.bfloat16().float(), layout)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_an_index_row_is_not_rounded_on_its_way(provider, device):
    """A weight of 1 + 2^-12 in every channel scales the whole row: only the scale tells, to the last place."""
    row, weight = signs(1, 128), torch.full((128,), 1 + 2.0**-12)
    plain, tall = (
        stored(provider, tensors_of(row, plan_c((4, 0)), [1], INDEX_K_FP8, device, weight=given), [1])
        for given in (None, weight)
    )
    assert torch.equal(plain[0], tall[0])
    ratio = tall[1].view(torch.float32).double() / plain[1].view(torch.float32).double()
    assert abs(ratio.item() - (1 + 2.0**-12)) < 2e-7


def test_hadamard_is_the_matrix(generator):
    x = torch.randint(-8, 9, (5, 128), generator=generator, device=generator.device).float()
    want = (x.double() @ matrix().to(x.device).double()).float() * torch.tensor(128.0).rsqrt()
    assert torch.equal(hadamard(x), want)
    torch.testing.assert_close(hadamard(hadamard(x)), x)


@pytest.mark.parametrize("channel", [0, 1, 2, 64, 100, 127])
def test_one_channel_becomes_a_row_of_the_matrix(channel, provider, device):
    """The norm makes sqrt(128) of a one: 127 and 0 are the largest numbers of a channel, 100 has three bits."""
    kv = torch.zeros(1, 128)
    kv[0, channel] = -3.0
    data, scales = stored(provider, tensors_of(kv, plan_c((4, 0)), [1], INDEX_K_FP8, device), [1])
    values = codec_index.index_unpack_fp8(data, scales)
    torch.testing.assert_close(values, -matrix()[channel : channel + 1], rtol=1e-6, atol=0)


# ---- where a row goes


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("layout", [V4, INDEX_K_FP8], ids=["main", "index"])
def test_a_prefill_goes_by_its_own_token_and_the_first_position_of_its_group(layout, ratio, provider, device):
    """Five records in no order over 65 536 tokens: out_loc and the table hold nothing of use elsewhere."""
    tokens, slots, lengths = [65535, 2, 40000, 0, 7], [11, 4, 0, 6, 9], [3 * ratio, ratio, 7 * ratio, 2 * ratio, ratio]
    out_loc = [10**9] * 65536
    for token, slot in zip(tokens, slots, strict=True):
        out_loc[token] = slot
    kv = signs(5, width(layout))
    plan = plan_c(*zip(lengths, tokens, strict=True))
    positions = {length - ratio: IDENTITY for length in lengths}
    got = stored(provider, tensors_of(kv, plan, out_loc, layout, device, ratio, False, positions), slots)
    want = coded(kv, layout)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("layout", [V4, INDEX_K], ids=["main", "index"])
def test_a_decode_goes_by_its_row_and_skips_incomplete_groups(layout, ratio, provider, device):
    """Lengths around a multiple of the ratio; rows without a group are NaN, and their slots must stay as they are."""
    lengths = [ratio, ratio + 1, 2 * ratio - 1, 5 * ratio, 1, ratio + 2, 3 * ratio]
    slots = [11, 1, 2, 0, 3, 5, 7]
    rows = [0, 3, 6]
    kv = torch.full((7, width(layout)), float("nan"))
    kv[rows] = signs(3, width(layout))
    positions = {lengths[row] - ratio: IDENTITY for row in rows}
    tensors = tensors_of(kv, plan_d(*lengths), slots, layout, device, ratio, True, positions)
    got, want = stored(provider, tensors, [11, 0, 7]), coded(kv[rows], layout)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("name", TARGETS)
def test_records_that_stand_for_nothing_write_nothing(name, provider, device):
    layout = TARGETS[name]
    kv = torch.full((6, width(layout)), float("nan"))
    kv[2] = signs(1, width(layout))
    plan = plan_c(INVALID, INVALID, (4, 1), INVALID, INVALID, INVALID)
    got = stored(provider, tensors_of(kv, plan, [3, 8, 3, 3, 3, 3], layout, device), [8])
    assert torch.equal(got[0], coded(kv[2:3], layout)[0])


def test_no_record(provider, device):
    stored(provider, tensors_of(torch.empty(0, 512), plan_c(), [], V41, device), [])


# ---- tolerance, cost and arguments


@pytest.mark.parametrize(("ulps", "gap"), [(1, 0), (7, 0), (8, 1), (16, 2)])
def test_an_f32_scale_counts_by_eights_of_last_places(ulps, gap):
    caches = [torch.zeros(1, INDEX_K_FP8.page_bytes(PAGE), dtype=torch.uint8) for _ in range(2)]
    for cache, extra in zip(caches, (0, ulps), strict=True):
        cache.view(torch.int32)[0, PAGE * 32 :] = 0x3F800000 + extra
    assert int(slot_gaps(*caches, PAGE, INDEX_K_FP8).max()) == gap


def test_gaps_of_other_layouts_are_those_of_their_codes():
    got, want = (torch.zeros(1, V41.page_bytes(PAGE), dtype=torch.uint8) for _ in range(2))
    got[0, 3] = 2
    assert int(slot_gaps(got, want, PAGE, V41).max()) == 2


def test_cost_by_hand(generator):
    """Six records, of which three have a group: rows of 128 bf16 and a slot number in, 132 bytes out."""
    tensors = inputs(Shape(6, 4, "index_k_fp8", 4, skip_every=2), generator)
    table_rows = tensors["plan"].view(torch.int32)[1::2, 0].unique().numel()
    found = cost(tensors)
    read = 3 * (256 + 8) + table_rows * 256 + 6 * 16 + 256
    assert (found.flops, found.bytes_read, found.bytes_written) == (3 * (20 * 128 + 192), read, 3 * 132)


def edited(name, change):
    return lambda tensors: tensors.update({name: change(tensors[name])})


BAD = {
    "ratio": (edited("ratio", lambda _: 2), "ratio: 2, expected one of 4, 128"),
    "page size": (edited("page_size", lambda _: 3), "page_size: 3, expected a power of two"),
    "channels": (edited("kv", lambda kv: kv[:, :128].contiguous()), r"kv: float32 \[2, 128\], expected .* \[n, 512\]"),
    "layout": (edited("layout", lambda _: INDEX_K), "cache: a index_k cache with pages of 4"),
    "rows with gaps": (edited("kv", lambda kv: kv.repeat(1, 2)[:, :512]), "kv: dimension 0 has stride 1024"),
    "weight": (edited("weight", torch.Tensor.bfloat16), r"weight: bfloat16 \[512\], expected float32 \[512\]"),
    "records": (edited("plan", lambda plan: plan[:1]), r"plan: uint8 \[1, 16\], expected uint8 \[2, 16\]"),
    "too few tokens": (edited("out_loc", lambda loc: loc[:1]), "plan: records: 2, expected at most 1: each has"),
    "slots of a decode": (edited("decode", lambda _: True), r"out_loc: int64 \[5\], expected int64 \[2\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_argument_is_named(case):
    change, message = BAD[case]
    tensors = tensors_of(signs(2, 512), plan_c((4, 0), (8, 4)), [1, 0, 0, 0, 2], V4, "cpu")
    change(tensors)
    with pytest.raises(ValueError, match=message):
        KERNEL.check(tensors)


def test_an_index_row_has_128_channels():
    tensors = tensors_of(signs(1, 512), plan_c((4, 0)), [1], INDEX_K, "cpu")
    with pytest.raises(ValueError, match=r"kv: float32 \[1, 512\], expected float32 or bfloat16 \[n, 128\]"):
        KERNEL.check(tensors)


VALUES = {
    "position before the table": (plan_c((3, 0)), 1, r"plan: seq_len - ratio\[0\]: -1, expected 0 to 1023"),
    "position behind the table": (plan_c((1028, 0)), 1, r"plan: seq_len - ratio\[0\]: 1024, expected 0 to 1023"),
    "token": (plan_c((4, 1)), 1, r"plan: ragged_id\[0\]: 1, expected 0 to 0"),
    "slot": (plan_c((4, 0)), 12, r"out_loc\[0\]: 12, expected 0 to 11"),
    "no slot": (plan_c((4, 0)), -1, r"out_loc\[0\]: -1, expected 0 to 11"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_out_of_range_is_named(case):
    plan, slot, message = VALUES[case]
    with pytest.raises(ValueError, match=message):
        KERNEL.check_values(tensors_of(signs(1, 512), plan, [slot], V4, "cpu"))


def test_every_layout_is_a_target():
    assert set(TARGETS.values()) == {*LAYOUTS.values(), *INDEXES}
