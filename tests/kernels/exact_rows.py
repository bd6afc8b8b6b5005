"""Rows whose norm changes nothing, so that a test knows every value that a writer quantises."""

import math

import torch


def unit_row(values: list[float], width: int) -> torch.Tensor:
    """Return a bf16 row [width] that begins with `values` and whose mean square is 1 within 1e-4.

    RMSNorm with weight 1 then gives back every value: its factor is nearer to 1 than half a bf16 step. The last channel
    makes up the sum that equal channels leave.
    """
    begin = torch.tensor(values).bfloat16()
    filled = width - len(values) - 1
    left = width - begin.double().square().sum().item()
    fill = torch.tensor(math.sqrt(left / (filled + 1)) * 0.996).bfloat16()
    last = torch.tensor(math.sqrt(left - filled * fill.double().item() ** 2)).bfloat16()
    row = torch.cat([begin, fill.expand(filled), last[None]])
    assert abs(row.double().square().mean().item() - 1) < 1e-4
    return row


def identity_table(rows: int) -> torch.Tensor:
    """Return a frequency table f32 [rows, 64] that rotates by nothing: cosine 1, sine 0."""
    return torch.tensor([1.0, 0.0]).repeat(rows, 32)


def turning_table(rows: int) -> torch.Tensor:
    """Return a frequency table f32 [rows, 64] whose row p turns every pair by p quarter turns, exactly."""
    quarter = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    return quarter[torch.arange(rows) % 4].repeat(1, 32)
