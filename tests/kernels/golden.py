"""Golden vectors of specification appendix A: inputs and the bytes that they must become."""

from collections.abc import Iterator

import torch

# A.4: one tile of 16 values, exact in bf16
VALUES = [0.30078125, -0.30078125, 0.050048828125, -0.02001953125, 1, -1, 2, -2.5]
VALUES += [3.09375, -0.0, 0.0, 0.6015625, -0.69921875, 5.90625, -5.90625, 0.8984375]
TILE = torch.tensor(VALUES)
ROW = torch.cat([TILE, TILE / 2, TILE / 4, TILE / 8]).repeat(8)  # 512 values

FP4_BYTES = "9180a2c48510792f"
FP4_SCALE = 0x38
V41_BYTES = "5ada45ba68e870f2748000 62e37cfc66 52d23db260e068ea6c8000 5adb74f45e"
V4_BYTES = V41_BYTES + "4aca35aa58d860e2648000 52d36cec56 42c22da250d058da5c8000 4acb64e44e"
# without a scale, from a search of the e4m3 grid in exact fractions
UNIFORM_BYTES = "2aaa158a38b840c244800032b34ccc36" + "22a20d8530b038ba3c80002aab44c42e"
UNIFORM_BYTES += "1a9a068328a830b234800022a33cbc26" + "1292038120a028aa2c80001a9b34b41e"
V41_AFTER_FAKE_QUANT = "60e0008068e870f0740000 60e07cfc68 58d8008060e068e86c0000 58d874f460"

# A.1, A.2, A.3: the maximum of a tile and its scale byte
V41_SCALES = [
    (0.0, 114),
    (1e-6, 114),
    (0.0546875, 114),  # 448 * 2^-13
    (0.0546875112, 115),
    (1.0, 119),
    (1.75, 119),
    (1.75000012, 120),
    (3.5, 120),
    (447.0, 127),
    (448.0, 127),
    (448.000031, 128),
    (896.0, 128),
    (1000.0, 129),
]
V4_SCALES = [
    (0.0, 105),
    (1e-4, 105),
    (0.01, 112),
    (1.0, 119),
    (3.5, 120),
    (100.0, 125),
    (448.0, 127),
    (448.00003, 128),
]
FP4_SCALES = [
    (0.0, 0x01),
    (2.0**-12, 0x01),
    (6 * 2.0**-9, 0x01),
    (0.1, 0x09),
    (1.0, 0x23),
    (3.0, 0x30),
    (5.0, 0x35),
    (6.0, 0x38),
    (6.375, 0x38),  # 6 * 1.0625, a tie
    (7.125, 0x3A),  # 6 * 1.1875, a tie
    (8.25, 0x3B),
    (2688.0, 0x7E),
    (1e6, 0x7E),
]
SCALES = {"v4": V4_SCALES, "v41": V41_SCALES, "fp4": FP4_SCALES}
TILE_WIDTH = {"v4": 64, "v41": 32, "fp4": 16}

# A.6: factor of linspace(-1, 1, 32), exponent byte of the fake quantisation, of the pack stage
INDEX_SCALES = [(1.0, 125, 125), (1e-3, 115, 115), (0.2, 123, 122), (1e-5, 108, 114)]
INDEX_CODES = {0.2: "ffffeeeeddccaaa00222445566667777", 1e-5: "0" * 32}

# the seven ties of the e2m1 grid go to the even code
E2M1_TIES = [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6)]
E2M1_GRID = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def from_hex(text: str) -> list[int]:
    return list(bytes.fromhex(text))


def index_row(factor: float) -> torch.Tensor:
    """Four tiles of linspace(-1, 1, 32) * factor, rounded to bf16."""
    return (torch.linspace(-1, 1, 32) * factor).bfloat16().float().repeat(4)


def all_bf16() -> torch.Tensor:
    """Every finite bf16."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return values[values.isfinite()]


def hard_maxima(millions: int, seed: int = 12) -> Iterator[torch.Tensor]:
    """Yield non-negative f32 maxima: 64 steps to both sides of every 448 * 2^k, then a million random ones at a time.

    Random bits give every exponent alike, denormals too; 2^120 and more, which no ue8m0 scale of 448 serves, are left
    out.
    """
    edges = (448 * 2.0 ** torch.arange(-22.0, 111)).view(torch.int32)
    yield (edges[:, None] + torch.arange(-64, 65, dtype=torch.int32)).flatten().view(torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(millions):
        yield torch.randint(0, (127 + 120) << 23, (1_000_000,), generator=generator, dtype=torch.int32).view(
            torch.float32
        )


def tiles_with_maximum(maxima: torch.Tensor, width: int) -> torch.Tensor:
    """One tile per maximum, which stands somewhere in the middle with the sign of its place."""
    tiles = torch.zeros(len(maxima), width)
    place = torch.arange(len(maxima)) % width
    tiles[torch.arange(len(maxima)), place] = maxima * (1 - 2 * (place % 2))
    return tiles


# 2.1: bytes of data and of scales of a slot, and whether the scales lie behind each row
SLOTS = {
    "v4": (576, 8, False),
    "v41": (512, 16, False),
    "fp4": (256, 32, False),
    "v41_new": (512, 16, True),
    "fp4_new": (256, 32, True),
    "uniform": (512, 0, False),
}


def slot_place(name: str, page_size: int, index: int) -> tuple[int, int]:
    """Return where in its page the data and the scales of a slot begin."""
    data, scales, interleaved = SLOTS[name]
    if interleaved:
        return index * (data + scales), index * (data + scales) + data
    return index * data, page_size * data + index * scales
