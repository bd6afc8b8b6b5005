"""A wrong argument is refused in one line that names it and both values."""

import pytest
import torch

from dsv4bench.kernels import arguments
from dsv4bench.kernels.layout import V41

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("tensor", "free", "said"),
    [
        (torch.zeros(3, 512), 0, "x: float32 [3, 512], expected bfloat16 [n, 512]"),
        (torch.zeros(3, 256, dtype=BF16), 0, "x: bfloat16 [3, 256], expected bfloat16 [n, 512]"),
        (torch.zeros(512, dtype=BF16), 0, "x: bfloat16 [512], expected bfloat16 [n, 512]"),
        (torch.zeros(3, 1024, dtype=BF16)[:, :512], 0, "x: dimension 0 has stride 1024, expected 512"),
        (torch.zeros(3, 1024, dtype=BF16)[:, ::2], 1, "x: dimension 1 has stride 2, expected 1"),
    ],
    ids=["dtype", "width", "dimensions", "row-stride", "channel-stride"],
)
def test_a_wrong_tensor_is_named(tensor, free, said):
    with pytest.raises(ValueError, match="x: ") as caught:
        arguments.expect_tensor("x", tensor, arguments.BF16, ("n", 512), free)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("tensor", "free"),
    [
        (torch.zeros(3, 512, dtype=BF16), 0),
        (torch.zeros(0, 512, dtype=BF16), 0),
        (torch.zeros(1, 1024, dtype=BF16)[:, :512], 0),
        (torch.zeros(3, 1024, dtype=BF16)[:, :512], 1),
    ],
    ids=["dense", "no-rows", "one-row-has-no-stride", "free-row-stride"],
)
def test_a_right_tensor_passes(tensor, free):
    arguments.expect_tensor("x", tensor, arguments.BF16, ("n", 512), free)


@pytest.mark.parametrize("page_size", [0, -2, 3, 96])
def test_a_page_holds_a_power_of_two(page_size):
    with pytest.raises(ValueError, match=f"page_size: {page_size}, expected a power of two"):
        arguments.expect_cache(torch.zeros(1, 528, dtype=torch.uint8), V41, page_size)


def test_a_cache_of_another_page_size_is_refused():
    with pytest.raises(ValueError, match=r"cache: a v41 cache with pages of 64 is .*\[pages, 33792\].*\[2, 1056\]"):
        arguments.expect_cache(torch.zeros(2, 1056, dtype=torch.uint8), V41, 64)


def test_values_out_of_range_are_named_with_their_place():
    arguments.expect_range("slots", torch.tensor([0, 5]), 0, 6)
    with pytest.raises(ValueError, match=r"slots\[1\]: 6, expected 0 to 5"):
        arguments.expect_range("slots", torch.tensor([0, 6, 7]), 0, 6)


def test_candidates_may_be_absent():
    arguments.expect_candidates(None, 3, 0)
    arguments.expect_candidate_ids(None, 0)


def test_limits_and_choices_name_both_values():
    with pytest.raises(ValueError, match="rows: 65537, expected at most 65536: ids are 16 bits"):
        arguments.expect_at_most("rows", 65537, 65536, "ids are 16 bits")
    with pytest.raises(ValueError, match="ratio: 3, expected one of 4, 128"):
        arguments.expect_one_of("ratio", 3, (4, 128))


@pytest.mark.parametrize(
    "cache",
    [
        torch.zeros(2, 135_168),
        torch.zeros(2, 135_167, dtype=torch.uint8),
        torch.zeros(135_168, dtype=torch.uint8),
        torch.zeros(2, 2 * 135_168, dtype=torch.uint8)[:, :135_168],
    ],
    ids=["float", "too-narrow", "one-page-without-a-dimension", "gaps-between-pages"],
)
def test_a_cache_that_does_not_fit_the_layout_is_refused(cache):
    with pytest.raises(ValueError, match=r"v41 cache with pages of 256 is contiguous uint8 \[pages, 135168\]"):
        arguments.expect_cache(cache, V41, 256)


def test_a_fitting_cache_is_taken():
    arguments.expect_cache(torch.zeros(2, 135_168, dtype=torch.uint8), V41, 256)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_a_cache_that_begins_within_a_word_is_refused(offset):
    """Codes are written by words of four bytes; a GPU faults where one is not aligned."""
    cache = torch.zeros(2 * 1536 + 4, dtype=torch.uint8)
    arguments.expect_cache(cache[4:].view(2, 1536), V41, 2)
    with pytest.raises(ValueError, match=f"cache: begins {offset} bytes behind a multiple of 4"):
        arguments.expect_cache(cache[offset : offset + 3072].view(2, 1536), V41, 2)
