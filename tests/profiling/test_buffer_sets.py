"""Buffer sets: how many, that they are apart, and that contents and strides are kept."""

from types import SimpleNamespace

import pytest
import torch

from dsv4bench.kernels.contract import Cost
from dsv4bench.profiling import buffer_sets
from dsv4bench.profiling.buffer_sets import MOST_SETS, copied, l2_bytes, restore, rotation, set_bytes, sets_needed


@pytest.mark.parametrize(
    ("touched", "cache", "count"),
    [(100, 100, 3), (101, 100, 3), (99, 100, 4), (1000, 100, 2), (0, 10**9, MOST_SETS), (1, 10**6, MOST_SETS)],
)
def test_the_sets_together_exceed_three_caches(touched, cache, count):
    assert sets_needed({}, touched, cache, torch.device("cuda")) == count


@pytest.mark.parametrize(("mib", "count"), [(1, 64), (16, 4), (1000, 2)])
def test_the_sets_fit_in_memory_though_a_call_touches_little(mib, count):
    held = {"cache": torch.empty(mib * 1024**2, dtype=torch.uint8)}
    assert sets_needed(held, 1, 10**9, torch.device("cpu")) == count


def test_a_set_counts_its_elements_and_no_more_than_a_call_touches():
    tensors = {"x": torch.zeros(3, 5), "cache": torch.zeros(7, dtype=torch.uint8), "eps": 1.0, "none": None}
    assert set_bytes(tensors) == 67
    assert buffer_sets.touched_bytes(tensors, Cost(0, 20, 10)) == 30
    assert buffer_sets.touched_bytes(tensors, Cost(0, 200, 10)) == 67


def test_a_rotation_has_equal_contents_at_other_addresses_with_the_same_strides():
    wide = torch.arange(24.0).view(4, 6)
    first = {"x": wide[:, 2:4], "eps": 0.5}
    sets = rotation(first, 3)
    assert sets[0] is first
    assert len({one["x"].data_ptr() for one in sets}) == 3
    assert {one["x"].stride() for one in sets} == {(6, 1)}
    assert all(torch.equal(one["x"], wide[:, 2:4]) and one["eps"] == 0.5 for one in sets)


def test_a_set_is_restored_to_what_it_was():
    pristine = {"x": torch.arange(4), "n": 3}
    used = copied(pristine)
    used["x"].zero_()
    restore(used, pristine)
    assert used["x"].tolist() == [0, 1, 2, 3]


def test_the_l2_is_the_devices(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=60))
    assert l2_bytes(torch.device("cuda")) == 60
    told = tmp_path / "size"
    told.write_text("2048K\n")
    monkeypatch.setattr(buffer_sets, "CPU_L2", told)
    assert l2_bytes(torch.device("cpu")) == 2 * 1024**2
    monkeypatch.setattr(buffer_sets, "CPU_L2", tmp_path / "missing")
    assert l2_bytes(torch.device("cpu")) == 1024**2
