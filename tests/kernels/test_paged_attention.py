"""Attention over packed caches against an oracle that dequantises whole caches, and what must not be read."""

import math

import pytest
import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.layout import LAYOUTS
from dsv4bench.kernels.paged_attention import KERNEL, Shape

PAIRS = [("v41", "fp4"), ("v4", "v4"), ("v41", "v41"), ("v41_new", "fp4_new"), ("uniform", "uniform")]


@pytest.fixture(params=["torch", "triton"])
def provider(request):
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return request.param


def made(shape, device="cpu"):
    return KERNEL.inputs(shape, torch.Generator(device).manual_seed(3))


def every_row(tensors, part):
    """Return all rows of a cache as f64."""
    cache, size, layout = (tensors[part], tensors[f"{part}_page_size"], tensors[f"{part}_layout"])
    slots = torch.arange(cache.shape[0] * size, device=cache.device)
    return codec.dequantise(*paged.read_rows(cache, slots, size, layout), layout).double()


def oracle(tensors):
    """Attend row by row and head by head over Python lists of keys, in f64."""
    rows = {part: every_row(tensors, part) for part in ("main", "extra") if tensors[part] is not None}
    out = torch.zeros(tensors["out"].shape, dtype=torch.float64)
    for t in range(out.shape[0]):
        keys = []
        for part, values in rows.items():
            chosen = tensors[f"{part}_slots"][t][: int(tensors[f"{part}_lens"][t])]
            keys += [values[slot] for slot in chosen.tolist() if slot >= 0]
        for h in range(out.shape[1] if keys else 0):
            q = tensors["q"][t, h].double()
            scores = [float(q @ key) * tensors["scale"] for key in keys]
            highest = max(scores)
            weights = [math.exp(score - highest) for score in scores]
            total = sum(weights) + math.exp(float(tensors["sink"][h]) - highest)
            out[t, h] = sum(w * key for w, key in zip(weights, keys, strict=True)) / total
    return out


@pytest.mark.parametrize(("main", "extra"), PAIRS, ids="+".join)
def test_both_caches_are_attended(provider, device, main, extra):
    tensors = made(Shape(3, 4, main, extra, window=64, topk=48, scanned=(50, 37)), device)
    KERNEL.provider(provider).build(tensors)()
    torch.testing.assert_close(tensors["out"].double().cpu(), oracle(tensors), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("scanned", "extra"), [((1, 0), "fp4"), ((0, 1), "fp4"), ((33, 0), ""), ((64, 48), "fp4"), ((0, 0), "fp4")]
)
def test_as_many_columns_as_a_row_has_are_scanned(provider, device, scanned, extra):
    tensors = made(Shape(2, 4, "v41", extra, window=64, topk=48, scanned=scanned), device)
    tensors["main_slots"][:, 0] = 5  # a valid key where one column is scanned
    if extra:
        tensors["extra_slots"][:, 0] = 7
    KERNEL.provider(provider).build(tensors)()
    torch.testing.assert_close(tensors["out"].double().cpu(), oracle(tensors), rtol=2e-2, atol=2e-2)


def test_rows_of_unequal_lengths(provider, device):
    tensors = made(Shape(4, 4, "v41", "fp4", window=64, topk=48, scanned=(64, 48)), device)
    tensors["main_lens"].copy_(torch.tensor([0, 1, 31, 64]))
    tensors["extra_lens"].copy_(torch.tensor([48, 0, 33, 1]))
    KERNEL.provider(provider).build(tensors)()
    torch.testing.assert_close(tensors["out"].double().cpu(), oracle(tensors), rtol=2e-2, atol=2e-2)


def test_a_row_without_keys_is_zero(provider, device):
    tensors = made(Shape(2, 4, "v41", "fp4", window=64, topk=48, scanned=(64, 48)), device)
    tensors["main_slots"].fill_(-1)
    tensors["extra_slots"].fill_(-1)
    tensors["out"].fill_(float("nan"))
    KERNEL.provider(provider).build(tensors)()
    assert (tensors["out"] == 0).all()


@pytest.mark.parametrize(("main", "extra"), PAIRS[:2], ids="+".join)
def test_slots_that_no_row_names_are_never_used(provider, device, main, extra):
    """Every slot that no scanned column names holds NaN: scale bytes and e4m3 codes of all ones."""
    tensors = made(Shape(2, 4, main, extra, window=64, topk=32, scanned=(20, 9)), device)
    want = oracle(tensors)
    for part in ("main", "extra"):
        cache, size, layout = (tensors[part], tensors[f"{part}_page_size"], tensors[f"{part}_layout"])
        columns = int(tensors[f"{part}_lens"][0])
        kept = tensors[f"{part}_slots"][:, :columns].unique()
        kept = kept[kept >= 0]
        rows = paged.read_rows(cache, kept, size, layout)
        cache.fill_(0xFF)
        paged.write_rows(cache, kept, rows, size, layout)
    KERNEL.provider(provider).build(tensors)()
    torch.testing.assert_close(tensors["out"].double().cpu(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("main_page_size", 96, "page_size: 96, expected a power of two"),
        ("extra_page_size", 64, "extra: a fp4 cache with pages of 64"),
        ("main_slots", torch.zeros(3, 64, dtype=torch.int32), r"main_slots: int32 \[3, 64\], expected int32 \[2, "),
        ("main_layout", LAYOUTS["v4"], "main: a v4 cache with pages of 256"),
    ],
    ids=["page", "extra-page", "slots", "layout"],
)
def test_wrong_arguments_are_refused_before_a_launch(name, value, said):
    tensors = made(Shape(2, 4, "v41", "fp4", window=64, topk=32, scanned=(20, 9))) | {name: value}
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


def test_values_out_of_range_are_named():
    tensors = made(Shape(2, 4, "v41", "fp4", window=64, topk=32, scanned=(20, 9)))
    KERNEL.check_values(tensors)
    tensors["extra_slots"][1, 3] = 3 * 128
    with pytest.raises(ValueError, match=r"extra_slots\[1, 3\]: 384, expected -1 to 383"):
        KERNEL.check_values(tensors)


@pytest.mark.parametrize(
    ("rows", "pair", "layouts", "pages"),
    [(8, "v4", ("v4", "v4"), 32), (64, "v41+fp4", ("v41", "fp4"), 256), (1024, "v41", ("v41", "v41"), 1024)],
)
def test_a_bench_is_a_full_width_row_over_about_as_many_slots(rows, pair, layouts, pages):
    assert KERNEL.bench.shape(rows, pair) == Shape(rows, 64, *layouts, 128, 512, (128, 512), pages)
