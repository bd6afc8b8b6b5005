"""The rotation table against the golden frequencies of specification A.11."""

import math

import pytest
import torch

from dsv4bench.workloads.geometry import V41_FLASH
from dsv4bench.workloads.rope_table import rope_frequencies, rope_table, yarn_ramp

GOLDEN = {
    0: {0: 1.0, 15: 1.33352e-2, 20: 3.16228e-3, 25: 7.49894e-4, 31: 1.33352e-4},
    1: {0: 1.0, 15: 3.63554e-3, 20: 2.96978e-4, 25: 5.37231e-6, 31: 5.68053e-7},
}
GOLDEN[2] = GOLDEN[1]


@pytest.mark.parametrize(("ratio", "index", "want"), [(r, k, w) for r, row in GOLDEN.items() for k, w in row.items()])
def test_golden_frequencies(ratio, index, want):
    assert rope_frequencies(V41_FLASH, ratio)[index].item() == pytest.approx(want, rel=2e-6)


def test_yarn_ramp():
    assert yarn_ramp(V41_FLASH) == (15, 25)


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_table_is_cosine_and_sine_of_position_times_frequency(ratio):
    table = rope_table(V41_FLASH, ratio, 70_000)
    assert table.shape == (70_000, 64)
    assert table.dtype == torch.float32
    frequencies = rope_frequencies(V41_FLASH, ratio)
    for position, index in ((0, 0), (1, 0), (257, 15), (69_999, 3), (69_999, 31)):
        angle = position * frequencies[index].item()
        want = torch.tensor([math.cos(angle), math.sin(angle)]).float()  # from float64, rounded once
        assert torch.equal(table[position, 2 * index : 2 * index + 2], want)
