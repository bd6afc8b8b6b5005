"""Where an installed package may differ from the reference and be right: inputs that avoid it, tolerances for it.

Each entry says what upstream does. Whatever else differs is a finding.
"""

from dataclasses import replace

import torch

from dsv4bench.kernels.contract import Tolerance
from dsv4bench.kernels.layout import V4
from dsv4bench.kernels.paged import code_gaps, paged


def without_extreme_scales(tensors):
    """V4's dequantisers take 2^(byte - 127) from the exponential: infinity for byte 255, and 0 may come of byte 0."""
    if tensors.get("layout", V4) == V4:
        _, scales = paged(tensors["cache"], tensors["page_size"], V4)
        scales.clamp_(1, 254)
    return tensors


def distinct(tensors):
    """Of equal logits upstream keeps any, the reference the first: make the finite ones of a row distinct."""
    logits = tensors["logits"]
    rows, columns = logits.shape
    generator = torch.Generator().manual_seed(11)
    values = torch.arange(1, columns + 1, dtype=torch.int16).add(0x3000).view(torch.bfloat16)  # ascending
    drawn = values[torch.rand(rows, columns, generator=generator).argsort(dim=1)].to(logits.device)
    tensors["logits"] = torch.where(logits > float("-inf"), drawn, logits)
    return tensors


INPUTS = {
    "dequant": without_extreme_scales,
    "gather_requant": without_extreme_scales,
    "index_topk": distinct,
    "index_candidates": distinct,
}
ROTATED = "upstream leaves the order of the rotation's FMAs to the compiler (specification 9.1)"
OUTPUTS = {
    "store": {"cache": Tolerance(share=0.999, gaps=code_gaps, because=ROTATED)},
    "fake_quant": {"out": Tolerance(share=0.999, because=ROTATED)},
}


def upstreams(subject):
    """Return a kernel as upstream is held to it."""
    tame = INPUTS.get(subject.name, lambda tensors: tensors)
    outputs = {**subject.outputs, **OUTPUTS.get(subject.name, {})}
    return replace(subject, inputs=lambda shape, generator: tame(subject.inputs(shape, generator)), outputs=outputs)
