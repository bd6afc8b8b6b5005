"""The ratio-1 compressor: golden bytes, padding, double rounding, and bytes from its own latents."""

import pytest
import torch

from dsv4bench.kernels import codec, compress_c1, paged
from dsv4bench.kernels.compress_c1 import KERNEL, Shape, cost
from dsv4bench.kernels.layout import LAYOUTS, UNIFORM_FP8, V4, V41, V41_FP4, V41_FP4_NEW
from tests.kernels import golden
from tests.kernels.exact_rows import identity_table, turning_table, unit_row

POISON = 0xA5
TILE_OF_32 = [*golden.VALUES, *(value / 2 for value in golden.VALUES)]


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider on tensors, which move to its device and come back."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(**tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        KERNEL.provider(request.param).build(there)()
        return {name: there[name].cpu() for name in KERNEL.outputs}

    return call


def tensors(kv, loc, layout, page_size=4, pages=3, **others):
    rows = len(kv)
    return {
        "kv": kv,
        "weight": torch.ones(512).bfloat16(),
        "eps": 1e-20,
        "freqs": identity_table(8),
        "positions": torch.zeros(rows, dtype=torch.int64),
        "loc": torch.tensor(loc),
        "cache": torch.full((pages, layout.page_bytes(page_size)), POISON, dtype=torch.uint8),
        "page_size": page_size,
        "layout": layout,
        "latent": torch.full((rows, 512), float("nan")).bfloat16(),
        **others,
    }


def slot(cache, index, layout, page_size=4):
    data, scales = paged.read_rows(cache, torch.tensor([index]), page_size, layout)
    return bytes(data[0].tolist()), bytes(scales[0].tolist())


def poisoned(cache, index, layout, page_size=4):
    return all(set(part) <= {POISON} for part in slot(cache, index, layout, page_size))


def random_rows(rows, seed=1):
    return torch.randn(rows, 512, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_a_v41_cache_takes_the_fake_quantised_row(run):
    """Specification A.4b, "after the compressed-KV fake quant"."""
    got = run(**tensors(unit_row(TILE_OF_32, 512)[None], [5], V41))
    data, scales = slot(got["cache"], 5, V41)
    assert data[:32] == bytes.fromhex(golden.V41_AFTER_FAKE_QUANT)
    assert scales[0] == 121


def test_a_uniform_cache_takes_the_fake_quantised_row(run):
    """By hand: the values of A.4 on the grid of e2m1 under scale 1 (A.4), each then the nearest e4m3, here exact."""
    got = run(**tensors(unit_row(golden.VALUES, 512)[None], [5], UNIFORM_FP8))
    data, _ = slot(got["cache"], 5, UNIFORM_FP8)
    assert data[:16] == bytes.fromhex("30b0008038b840c0440000 30b04ccc38")


@pytest.mark.parametrize("layout", [V41_FP4, V41_FP4_NEW], ids=lambda layout: layout.name)
def test_an_fp4_cache_rounds_once(run, layout):
    """Specification A.4: -0.0 keeps its sign here, which a fake quantisation in between would clear."""
    got = run(**tensors(unit_row(golden.VALUES, 512)[None], [7], layout))
    data, scales = slot(got["cache"], 7, layout)
    assert data[:8] == bytes.fromhex(golden.FP4_BYTES)
    assert scales[0] == golden.FP4_SCALE


def test_a_v4_cache_takes_fake_quantised_tails_in_bf16(run):
    tail_first = torch.roll(unit_row(golden.VALUES, 512), 448)[None]  # the tile lies at channels 448 to 463
    got = run(**tensors(tail_first, [2], V4))
    data, scales = slot(got["cache"], 2, V4)
    want = [0.5, -0.5, 0.0, -0.0, 1, -1, 2, -2, 3, 0.0, 0.0, 0.5, -0.5, 6, -6, 1]
    assert data[448:480] == bytes(torch.tensor(want).bfloat16().view(torch.uint8).tolist())
    assert scales[7] == POISON  # the pad byte is nobody's


def test_the_latent_is_not_rotated_and_the_stored_row_is(run):
    """One quarter turn makes (a, b) of each tail pair (-b, a)."""
    row = torch.roll(unit_row([2.0, 1.0, -3.0, 4.0, 6.0, 0.0], 512), 448)[None]
    got = run(**tensors(row, [1], V4, freqs=turning_table(8), positions=torch.tensor([5])))
    assert torch.equal(got["latent"], row)
    stored = torch.tensor(list(slot(got["cache"], 1, V4)[0][448:460]), dtype=torch.uint8).view(torch.bfloat16)
    assert stored.tolist() == [-1.0, 2.0, -4.0, -3.0, 0.0, 6.0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_padding_publishes_its_latent_and_leaves_the_cache(run, name):
    kv, layout = random_rows(4), LAYOUTS[name]
    got = run(**tensors(kv, [0, 6, -1, 3], layout))
    want = codec.rms_norm(kv, torch.ones(512), 1e-20)
    torch.testing.assert_close(got["latent"].float(), want, rtol=2**-7, atol=0)
    written = {index for index in range(12) if not poisoned(got["cache"], index, layout)}
    assert written == {3, 6}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_bytes_follow_from_the_latent(run, name):
    """From equal latents the specification wants equal bytes (9.1), whatever the order of the norm's sum."""
    layout, positions = LAYOUTS[name], torch.tensor([3, 0, 6])
    angles = 7 * torch.rand(8, 32, generator=torch.Generator().manual_seed(2))
    freqs = torch.stack([angles.cos(), angles.sin()], -1).flatten(1)
    weight = (1 + 0.1 * random_rows(1)[0]).bfloat16()
    given = tensors(random_rows(3), [9, 4, 1], layout, freqs=freqs, positions=positions, weight=weight)
    want = given["cache"].clone()
    got = run(**given)
    rotated = codec.rotate_tail(got["latent"], freqs, positions).bfloat16()
    codec.write_compressed(want, given["loc"], rotated, 4, layout)
    assert torch.equal(got["cache"], want)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", LAYOUTS)
def test_programs_of_two_rows_write_what_programs_of_one_write(name, rows, run, monkeypatch):
    """Padding among the rows; an odd number of rows leaves the last program one."""
    loc, positions = [7, 0, 2, -1, 9][:rows], torch.tensor([3, 0, 7, 1, 5])[:rows]
    shape = {"freqs": turning_table(8), "positions": positions}
    want = run(**tensors(random_rows(rows), loc, LAYOUTS[name], **shape))
    monkeypatch.setattr(compress_c1, "FEW_ROWS", 0)
    got = run(**tensors(random_rows(rows), loc, LAYOUTS[name], **shape))
    assert torch.equal(got["latent"], want["latent"])
    assert torch.equal(got["cache"], want["cache"])


@pytest.mark.parametrize("few_rows", [0, 4096], ids=["two", "one"])
def test_the_table_row_of_padding_is_not_read(few_rows, run, monkeypatch):
    """Its position lies far outside the table; the plain path picks the live rows first."""
    monkeypatch.setattr(compress_c1, "FEW_ROWS", few_rows)
    far = torch.tensor([10**9, 3, -(10**9)])
    got = run(**tensors(random_rows(3), [0, 6, -1], V41, positions=far, freqs=turning_table(8)))
    want = run(**tensors(random_rows(3), [0, 6, -1], V41, positions=torch.tensor([0, 3, 0]), freqs=turning_table(8)))
    assert torch.equal(got["latent"], want["latent"])
    assert torch.equal(got["cache"], want["cache"])


def test_a_zero_row_stays_zero(run):
    """Eps is 1e-20: a larger one would do no harm here, none at all would make it NaN."""
    got = run(**tensors(torch.zeros(1, 512).bfloat16(), [3], V41))
    data, scales = slot(got["cache"], 3, V41)
    assert got["latent"].eq(0).all()
    assert (set(data), set(scales)) == ({0}, {114})


def test_eps_counts_in_f32(run):
    """Values of 1e-10 have a mean square of 1e-20: with eps 1e-20 the latent is 1 / sqrt(2)."""
    got = run(**tensors(torch.full((1, 512), 1e-10).bfloat16(), [3], V41))
    want = 1e-10 / (2e-20**0.5)
    torch.testing.assert_close(got["latent"].float(), torch.full((1, 512), want), rtol=2**-7, atol=0)


def test_rows_may_be_strided(run):
    wide = random_rows(6).view(3, 1024)
    want = run(**tensors(wide[:, 512:].contiguous(), [1, 2, 3], V41_FP4))
    got = run(**tensors(wide[:, 512:], [1, 2, 3], V41_FP4))
    assert torch.equal(got["cache"], want["cache"])


def test_no_rows_do_nothing(run):
    got = run(**tensors(random_rows(0), [], V41) | {"loc": torch.zeros(0, dtype=torch.int64)})
    assert got["cache"].eq(POISON).all()


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("kv", lambda kv: kv.repeat(1, 2)[:, ::2], "kv: dimension 1 has stride 2, expected 1"),
        ("latent", lambda latent: latent[:2], r"latent: bfloat16 \[2, 512\], expected bfloat16 \[3, 512\]"),
        ("latent", lambda latent: latent.repeat(1, 2)[:, :512], "latent: dimension 0 has stride 1024, expected 512"),
        ("page_size", lambda size: 3, "page_size: 3, expected a power of two"),
    ],
    ids=["kv-stride", "latent-rows", "latent-stride", "page-size"],
)
def test_a_wrong_argument_is_named(argument, make, said):
    given = tensors(random_rows(3), [1, 2, 3], V41)
    given[argument] = make(given[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(given)


@pytest.mark.parametrize(
    ("argument", "wrong", "last"), [("loc", 12, 11), ("positions", 8, 7), ("positions", -1, 7)], ids=str
)
def test_a_value_out_of_range_is_named(argument, wrong, last):
    """Padding may say any position."""
    given = tensors(random_rows(3), [0, 2, -5], V41, positions=torch.tensor([99, 0, -4]))
    given[argument][1] = last
    KERNEL.check_values(given)
    given[argument][1] = wrong
    with pytest.raises(ValueError, match=rf"{argument}\[1\]: {wrong}, expected 0 to {last}"):
        KERNEL.check_values(given)


@pytest.mark.parametrize("name", LAYOUTS)
def test_ids_of_both_widths_do_the_same(run, name):
    given = tensors(random_rows(4), [7, 0, -1, 3], LAYOUTS[name], positions=torch.tensor([3, 0, 1, 7]))
    narrow = {id_: given[id_].int() for id_ in ("loc", "positions")}
    want = run(**{key: value.clone() if torch.is_tensor(value) else value for key, value in given.items()})
    assert torch.equal(run(**given | narrow)["cache"], want["cache"])


def test_cost_counts_live_rows(generator):
    """8 rows, 3 of them padding, FP4: by hand."""
    counted = cost(KERNEL.inputs(Shape(8, 3, "fp4", 256), generator))
    assert counted.bytes_read == 8 * (1024 + 16) + 5 * 256 + 1024
    assert counted.bytes_written == 8 * 1024 + 5 * 288
