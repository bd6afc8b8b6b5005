"""The calls that a layer map asks for, worked out by hand for the small model and from the page for the whole one."""

from dataclasses import replace

import pytest

from dsv4bench.workloads.expected_calls import expected_calls
from tests.profiling.small_groups import SMALL, group


def expected(geometry=SMALL, **typed):
    (cell, *_) = group(geometry=geometry, **{"graph": True, "reuse": "on", "extend": "8", "prefix": "60", **typed})
    batch = cell.run_forwards[0][0]
    return expected_calls(geometry, batch, cell.variant)


def of(counts, op):
    return {source: count for (name, source), count in counts.items() if name == op}


def test_sources_of_the_small_model():
    # sources 1 and 3 have ratio 2, source 4 ratio 1; layers 1, 3, 4 and 5 choose, 4 publishes candidates
    found = expected()
    assert of(found, "compress_c2") == {1: 1, 3: 1}
    assert of(found, "compress_c1") == {4: 1}
    assert of(found, "index_topk") == {1: 1, 3: 1, 4: 2}
    assert of(found, "index_candidates") == {4: 1}
    assert of(found, "dequant_swa") == {None: 1, 1: 2, 3: 1, 4: 2}
    assert of(found, "load_input") == {None: 1}
    assert of(found, "combine") == {None: 1, 1: 2, 3: 1, 4: 2}


@pytest.mark.parametrize(
    ("reuse", "compressed"), [("off", {1: 2, 3: 1, 4: 2}), ("on", {1: 1, 3: 1, 4: 1})], ids=["reuse off", "reuse on"]
)
def test_reuse_leaves_one_dequant_a_source(reuse, compressed):
    assert of(expected(reuse=reuse), "dequant_compressed") == compressed


def test_layers_of_ratio_0_share_one_index_list():
    two_windows = replace(SMALL, ratios=(0, 0, 2, 2, 1, 1), kv_sources=(2, 4), index_sources=(2, 4, 5))
    assert of(expected(two_windows), "combine") == {None: 1, 2: 2, 4: 2}
    assert of(expected(two_windows), "dequant_swa") == {None: 2, 2: 2, 4: 2}


@pytest.mark.parametrize(
    ("kv", "rotations"), [("v41+fp4", {1: 1, 3: 1}), ("v41", {1: 2, 3: 2})], ids=["fp4 rotates in the store", "fp8"]
)
def test_the_torch_path_of_a_source(kv, rotations):
    found = expected(compressor="torch", kv=kv)
    assert of(found, "compress_pool") == {1: 1, 3: 1}
    assert of(found, "compress_proj") == {1: 2, 3: 2, 4: 1}
    assert of(found, "fake_quant") == rotations
    assert of(found, "index_key") == {4: 1}
    assert of(found, "compress_c2") == {}


@pytest.mark.parametrize(
    ("typed", "copies"),
    [
        # the attention of every layer; one projection of each of 3 kv_sources, two of each of 4 index sources
        ({}, {None: 1, 1: 2 + 3, 3: 1 + 3, 4: 2 + 5}),
        ({"breaks": "hopper"}, {None: 1, 1: 2, 3: 1, 4: 2}),
        ({"break_outputs": "static"}, {}),
        ({"graph": False}, {}),
    ],
    ids=["sm100", "hopper", "static", "eager"],
)
def test_copies_of_what_breaks_return(typed, copies):
    assert of(expected(**typed), "break_copy") == copies
