"""Digests, the CPU's and the GPU's: what makes them equal, and that no single bit can change unseen."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling import digest as module
from dsv4bench.profiling.digest import digest, digest_all

FIRST, SECOND = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F


def summed(tensor):
    """What `digest` does with a tensor of a GPU."""
    return module._summed(tensor.contiguous().view(-1).view(torch.uint8))


each_kind = pytest.mark.parametrize("digest", [digest, summed], ids=["CPU", "GPU"])


def tensor_of(raw):
    return torch.tensor(list(raw), dtype=torch.uint8)


def by_hand(words):
    """The definition over Python's integers: word times the odd number of its place, modulo 2^64, as signed numbers."""
    sums = []
    for multiplier in (FIRST, SECOND):
        total = 0
        for place, word in enumerate(words, start=1):
            mixed = signed(place * multiplier)
            total += word * ((mixed ^ (mixed >> 29)) | 1)
        sums.append(signed(total))
    return tuple(sums)


def signed(number):
    number %= 1 << 64
    return number - (1 << 64) if number >> 63 else number


@pytest.mark.parametrize("words", [[], [1], [0, 0, 7], [-1, 2**31 - 1, -(2**31)], list(range(-50, 50))], ids=len)
def test_the_sums_are_those_of_the_definition(words):
    assert summed(torch.tensor(words, dtype=torch.int32)) == by_hand(words)


def test_on_a_cpu_it_is_blake2():
    raw = bytes(range(77))
    assert b"".join(part.to_bytes(8, "little") for part in digest(tensor_of(raw))) == (
        hashlib.blake2b(raw, digest_size=16).digest()
    )


@each_kind
@given(raw=st.binary(min_size=1, max_size=70), data=st.data())
def test_any_single_flipped_bit_changes_the_digest(digest, raw, data):
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    flipped = bytearray(raw)
    flipped[bit // 8] ^= 1 << bit % 8
    first, second = digest(tensor_of(raw))
    other_first, other_second = digest(tensor_of(flipped))
    assert first != other_first
    assert second != other_second


@each_kind
@given(words=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=20), data=st.data())
def test_two_different_words_that_change_places_change_the_digest(digest, words, data):
    i, j = data.draw(st.tuples(*[st.integers(0, len(words) - 1)] * 2).filter(lambda places: places[0] != places[1]))
    swapped = list(words)
    swapped[i], swapped[j] = words[j], words[i]
    one, other = (digest(torch.tensor(each, dtype=torch.int32)) for each in (words, swapped))
    assert (one == other) == (words[i] == words[j])


@each_kind
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_only_the_bytes_count_and_not_the_kind_of_the_numbers(digest, dtype):
    raw = torch.arange(48, dtype=torch.uint8)
    assert digest(raw.view(dtype)) == digest(raw)


@each_kind
def test_shape_and_strides_do_not_count_but_the_order_of_rows_does(digest):
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    assert digest(table.t().contiguous().t()) == digest(table) == digest(table.flatten())
    assert digest(table.t()) == digest(table.t().contiguous()) != digest(table)
    wide = torch.full((3, 8), -1, dtype=torch.int32)
    wide[:, :4] = table
    assert digest(wide[:, :4]) == digest(table)


def test_one_element_of_a_wider_tensor_counts_as_that_element():
    wide = torch.arange(1, 5, dtype=torch.int32)
    assert digest(wide[::4]) == digest(wide[:1].clone())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7], ids=lambda size: f"{size} bytes")
def test_on_a_gpu_a_tensor_of_odd_bytes_is_padded_with_zeros(size):
    raw = torch.arange(1, size + 1, dtype=torch.uint8)
    assert summed(raw) == summed(torch.nn.functional.pad(raw, (0, -size % 4)))


@each_kind
def test_every_nan_has_its_own_bits(digest):
    quiet, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert digest(quiet) == digest(quiet.clone())
    assert digest(quiet) != digest(other)


@each_kind
def test_an_empty_and_a_scalar_tensor_have_a_digest(digest):
    assert digest(torch.empty(0, 5)) == digest(torch.empty(0, dtype=torch.uint8))
    assert digest(torch.tensor(3, dtype=torch.int32)) == digest(torch.tensor([3], dtype=torch.int32))


def test_working_in_chunks_gives_the_same_digest(monkeypatch):
    words = torch.arange(-37, 40, dtype=torch.int32)
    monkeypatch.setattr(module, "_CHUNK_WORDS", 8)
    assert summed(words) == by_hand(words.tolist())


def test_several_tensors_have_a_digest_each():
    one, other = torch.ones(3), torch.zeros(3)
    assert digest_all([one, other, one]) == (digest(one), digest(other), digest(one))
