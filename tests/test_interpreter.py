"""The patched interpreter: it computes as a GPU does, and its self-check sees when it does not."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests import interpreter

ALL_BF16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def bits(values: torch.Tensor) -> np.ndarray:
    size = values.element_size()
    return values.view(interpreter.SIGNED_TORCH[size]).numpy().view(interpreter.UNSIGNED[size])


def nearest_e4m3(value: float) -> int:
    """Search all 127 finite magnitudes; a tie goes to the even code."""
    magnitudes = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist()
    gaps = [abs(min(abs(value), 448.0) - magnitude) for magnitude in magnitudes]
    nearest = [code for code, gap in enumerate(gaps) if gap == min(gaps)]
    return min(nearest, key=lambda code: code % 2) | (0x80 if np.signbit(value) else 0)


def test_e4m3_is_the_nearest_value_and_saturates():
    values = torch.cat([ALL_BF16[::97], torch.tensor([0.25, 0.0009765625, 447.9, 464.0, 1e30, -1e30])]).float()
    values = values[values.isfinite()]
    got = interpreter.convert(bits(values), torch.float32, torch.float8_e4m3fn)
    assert got.tolist() == [nearest_e4m3(value) for value in values.tolist()]


def test_every_bf16_survives_the_way_to_f32_and_back():
    there = interpreter.convert(bits(ALL_BF16), torch.bfloat16, torch.float32)
    back = interpreter.convert(there, torch.float32, torch.bfloat16)
    nan = torch.isnan(ALL_BF16).numpy()
    assert np.array_equal(back[~nan], bits(ALL_BF16)[~nan])
    assert np.isnan(there.view(np.float32)[nan]).all()


def exact_fma(x: float, y: float, z: float) -> float:
    """Round the exact rational once: numpy's float32 of a Fraction goes through f64, so search the neighbours."""
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    gaps = [abs(Fraction(float(value)) - exact) for value in around]
    nearest = [value for value, gap in zip(around, gaps, strict=True) if gap == min(gaps)]
    return float(min(nearest, key=lambda value: value.view(np.uint32) & 1))


def test_an_fma_rounds_once():
    draw = np.random.default_rng(3)
    x, y, z = (draw.standard_normal(2000).astype(np.float32) for _ in range(3))
    z[::2] = -(x * y)[::2] * (1 + draw.integers(-2, 3, 1000).astype(np.float32) * np.float32(2**-23))
    # a tie at f32 that only a term far below f64's last place decides
    x[0], y[0], z[0] = 1 + 2**-12, 1 + 2**-12, 2**-100
    got = interpreter.fma(x, y, z)
    assert got.tolist() == [exact_fma(*map(float, row)) for row in zip(x, y, z, strict=True)]


def test_a_tie_is_broken_by_what_lies_below_the_last_place_of_f64():
    x = np.float32(1 + 2**-12)
    assert interpreter.fma(x, x, np.float32(-(2**-100)))[()] == np.float32(1 + 2**-11)
    assert interpreter.fma(x, x, np.float32(2**-100))[()] == np.float32(1 + 2**-11 + 2**-23)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_an_fma_keeps_what_is_not_finite(special):
    got = interpreter.fma(np.float32([1.0]), np.float32([special]), np.float32([1.0]))
    assert np.array_equal(got, np.float32([special]), equal_nan=True)


def test_the_self_check_passes(triton_device):
    assert triton_device == "cuda" or interpreter.why_not() is None


def test_the_self_check_sees_an_unpatched_conversion(triton_device, monkeypatch):
    if triton_device == "cuda":
        pytest.skip("a GPU needs no patch")
    from triton.runtime import interpreter as private

    from tests.interpreter_check import wrong_answers

    def truncate(data, source, target, rounding_mode):
        kept = interpreter.convert(data, torch.float32, torch.float32) >> 16
        return kept.astype(np.uint16) if target == private.tl.bfloat16 else good(data, source, target, rounding_mode)

    good = private._convert_float
    monkeypatch.setattr(private, "_convert_float", truncate)
    assert "bf16 rounds to nearest even" in wrong_answers()


def test_types_that_are_worked_out_once_stay_apart(triton_device):
    import triton.language as tl

    def block(element, *sizes):
        return tl.block_type(element, [tl.constexpr(size) for size in sizes])

    pairs, turned, halves = block(tl.float32, 2, 4), block(tl.float32, 4, 2), block(tl.bfloat16, 2, 4)
    pointers = block(tl.pointer_type(tl.float32), 2, 4)
    assert pairs == block(tl.float32, 2, 4)
    assert [pairs == other for other in (turned, halves, pointers, tl.float32)] == [False] * 4
    shapes = [[size.value for size in tl.tensor(None, one).shape] for one in (pairs, turned, halves, pointers)]
    assert shapes == [[2, 4], [4, 2], [2, 4], [2, 4]]
    assert [tl.tensor(None, one).dtype for one in (pairs, halves, tl.int8)] == [tl.float32, tl.bfloat16, tl.int8]
    assert tl.float32 != tl.bfloat16
