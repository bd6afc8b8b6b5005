"""V4's fp8 index rows: bytes by hand and by numpy, at their slots and nowhere else."""

import numpy as np
import pytest
import torch

from dsv4bench.kernels.index_store_fp8 import KERNEL, Shape, cost, inputs

POISON = 0xA5


@pytest.fixture(params=["torch", "triton"])
def stored(request, device):
    """Call a provider on rows and their slots, over three pages of poison; return the cache on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(x: torch.Tensor, loc: torch.Tensor, page_size: int = 4) -> torch.Tensor:
        cache = torch.full((3, page_size * 132), POISON, dtype=torch.uint8, device=where)
        given = {"x": x.to(where), "loc": loc.to(where), "cache": cache, "page_size": page_size}
        KERNEL.provider(request.param).build(given)()
        return cache.cpu()

    return call


def take(cache: torch.Tensor, slot: int, page_size: int = 4) -> tuple[torch.Tensor, float]:
    """Return the payload and the scale of a slot, by the addresses of specification 2.1, and poison it."""
    page, index = divmod(slot, page_size)
    payload = cache[page, index * 128 : index * 128 + 128]
    scale = cache[page, page_size * 128 + index * 4 : page_size * 128 + index * 4 + 4]
    found = payload.clone(), scale.clone().view(torch.float32).item()
    payload[:], scale[:] = POISON, POISON
    return found


def by_numpy(row: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The payload and the scale of a row, in numpy's f32 arithmetic."""
    values = row.float().numpy()
    scale = np.maximum(np.abs(values).max(), np.float32(1e-4)) / np.float32(448)
    scaled = torch.from_numpy(values * (np.float32(1) / scale)).clamp(-448, 448)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), float(scale)


def test_a_row_by_hand(stored):
    """Under a maximum of 448 the scale is 1: 17 ties to 16, -19 to -20, -0.0 keeps its sign."""
    x = torch.zeros(1, 128)
    x[0, :5] = torch.tensor([448.0, 17.0, -19.0, -0.0, -448.0])
    payload, scale = take(stored(x.bfloat16(), torch.tensor([7])), 7)
    assert payload[:5].tolist() == [0x7E, 0x58, 0xDA, 0x80, 0xFE]
    assert payload[5:].count_nonzero() == 0
    assert scale == 1.0


def test_the_payload_takes_the_reciprocal(stored):
    """0.3046875 / (3.25 / 448) is 42, a tie that goes to 40 (0x62); times the reciprocal it lies above: 44."""
    x = torch.zeros(1, 128)
    x[0, 5], x[0, 127] = 0.3046875, -3.25
    payload, scale = take(stored(x.bfloat16(), torch.tensor([0])), 0)
    assert (payload[5], payload[127]) == (0x63, 0xFE)
    assert scale == np.float32(3.25) / np.float32(448)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("page_size", [2, 64])
def test_rows_of_many_magnitudes_lie_at_their_slots(stored, page_size, dtype):
    """Zeros and rows under the floor of 1e-4 among them; 7 rows are not a multiple of a program's."""
    x = torch.randn(7, 128, generator=torch.Generator().manual_seed(2)) * 10.0 ** torch.arange(-6.0, 1.0)[:, None]
    x[3] = 0.0
    slots = [3 * page_size - 1, 0, page_size, 1, 2 * page_size, page_size + 1, 2 * page_size - 1][: 3 * page_size]
    slots = list(dict.fromkeys(slots))
    x = x[: len(slots)].bfloat16()
    cache = stored(x, torch.tensor(slots, dtype=dtype), page_size)
    for row, slot in enumerate(slots):
        payload, scale = take(cache, slot, page_size)
        want, want_scale = by_numpy(x[row])
        assert torch.equal(payload, want)
        assert scale == want_scale
    assert (cache == POISON).all()


def test_rows_may_be_strided(stored):
    wide = torch.randn(3, 256, generator=torch.Generator().manual_seed(8)).bfloat16()
    loc = torch.tensor([4, 1, 9])
    assert torch.equal(stored(wide[:, 128:], loc), stored(wide[:, 128:].contiguous(), loc))


def test_no_rows_are_no_work(stored):
    assert (stored(torch.zeros(0, 128).bfloat16(), torch.zeros(0, dtype=torch.int64)) == POISON).all()


def test_the_least_bytes_of_a_call(generator):
    counted = cost(inputs(Shape(10, 64, id_bits=32), generator))
    assert (counted.bytes_read, counted.bytes_written, counted.flops) == (10 * (256 + 4), 10 * 132, 10 * 256)


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("x", lambda x: x.repeat(1, 2)[:, ::2], "x: dimension 1 has stride 2, expected 1"),
        ("page_size", lambda size: 24, "page_size: 24, expected a power of two"),
        ("page_size", lambda size: 32, r"index_k_fp8 cache with pages of 32 is .*\[pages, 4224\].*\[1, 8448\]"),
    ],
    ids=["x-stride", "page-size", "page-bytes"],
)
def test_a_wrong_argument_is_named(argument, make, said, generator):
    tensors = inputs(Shape(5, 64), generator)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize("wrong", [-1, 64])
def test_a_slot_out_of_range_is_named(wrong, generator):
    tensors = inputs(Shape(5, 64), generator)
    tensors["loc"][2] = 63
    KERNEL.check_values(tensors)
    tensors["loc"][2] = wrong
    with pytest.raises(ValueError, match=rf"loc\[2\]: {wrong}, expected 0 to 63"):
        KERNEL.check_values(tensors)
