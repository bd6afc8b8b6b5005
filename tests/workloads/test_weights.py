"""Random weights: shapes of specification 1.1, who owns what, seeds and scale."""

from dataclasses import fields, replace

import pytest
import torch

from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.weights import make_model
from tests.workloads.stacks import CPU, DEEP, SHORT

# one layer of each kind; every width is another number, so that no two can be taken for each other
ONE_OF_EACH = replace(
    SHORT,
    hidden=320,
    heads=8,
    q_rank=96,
    o_groups=4,
    o_rank=48,
    index_heads=6,
    ratios=(0, 2, 1, 1),
    kv_sources=(1, 2),
    index_sources=(1, 2, 3),
    candidate_source=2,
)

LAYER = {
    "input_norm": (320,),
    "qkv": (320, 96 + 512),
    "q_norm": (96,),
    "query": (96, 8 * 512),
    "kv_norm": (512,),
    "sink": (8,),
    "output_a": (4, 8 // 4 * 512, 48),
    "output_b": (4 * 48, 320),
}
SOURCE = {
    1: {"compress": (320, 1024), "norm": (512,), "index_k": (512, 128), "index_k_norm": (128,)},
    2: {"compress": (320, 512), "norm": (512,), "index_k": (512, 128), "index_k_norm": (128,)},
}
INDEX = {"query": (96, 6 * 128), "heads": (320, 6)}


def shapes(weights):
    tensors = {f.name: getattr(weights, f.name) for f in fields(weights)}
    return {name: tuple(value.shape) for name, value in tensors.items() if torch.is_tensor(value)}


def tensors(model):
    """Return every tensor of a model by layer and name."""
    found = {}
    for layer, weights in enumerate(model.weights):
        for part in (weights, weights.source, weights.index):
            names = () if part is None else (f.name for f in fields(part))
            values = {(layer, type(part).__name__, name): getattr(part, name) for name in names}
            found |= {key: value for key, value in values.items() if torch.is_tensor(value)}
    return found


def test_shapes_of_each_kind_of_layer():
    model = make_model(ONE_OF_EACH, CPU, 0)
    assert [shapes(weights) for weights in model.weights] == [LAYER] * 4
    assert {i: shapes(w.source) for i, w in enumerate(model.weights) if w.source is not None} == SOURCE
    found = [None if weights.index is None else shapes(weights.index) for weights in model.weights]
    assert found == [None, INDEX, INDEX, INDEX]


def test_owners_in_40_layers():
    """Specification 1.1: 4 compressors of which 3 have a gate, 4 index-K projections, 8 index-Q projections."""
    model = make_model(DEEP, CPU, 0)
    widths = {i: w.source.compress.shape[1] for i, w in enumerate(model.weights) if w.source is not None}
    assert widths == {2: 1024, 8: 1024, 14: 1024, 20: 512}
    assert [i for i, w in enumerate(model.weights) if w.index is not None] == [2, 8, 14, 20, 24, 28, 32, 36]


def test_matrices_are_bf16_and_sinks_f32():
    for (_, _, name), tensor in tensors(make_model(SHORT, CPU, 0)).items():
        assert tensor.dtype == (torch.float32 if name == "sink" else torch.bfloat16)
        assert tensor.is_contiguous()


def test_a_seed_gives_the_same_weights():
    first, again, other = (tensors(make_model(SHORT, CPU, seed)) for seed in (5, 5, 6))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)


def test_no_two_layers_share_weights():
    found = tensors(make_model(SHORT, CPU, 0))
    for name in ("qkv", "query", "output_b", "sink"):
        first, second = found[0, "LayerWeights", name], found[1, "LayerWeights", name]
        assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["qkv", "query", "output_a"])
def test_a_matrix_keeps_the_variance_of_its_input(name):
    """Unit normal rows stay unit normal within the error of a few thousand samples."""
    weight = getattr(make_model(V41_FLASH_MINI, CPU, 0).weights[0], name)[..., :512]
    x = torch.randn(64, weight.shape[-2], generator=torch.Generator().manual_seed(1))
    assert (x @ weight.float()).std().item() == pytest.approx(1, abs=0.05)


def test_the_outputs_of_all_layers_add_up_to_unit_variance():
    weight = make_model(DEEP, CPU, 0).weights[7].output_b
    assert weight.float().std().item() == pytest.approx((32 * 40) ** -0.5, rel=0.1)


def test_the_model_keeps_what_it_was_made_of():
    model = make_model(SHORT, CPU, 11)
    assert (model.geometry, model.device, model.seed, len(model.weights)) == (SHORT, CPU, 11, 8)
