"""The counters against each other: all that a CPU has, and on a GPU that exists only here."""

import sys
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from dsv4bench.dashboards.counter_table import counter_tables, counters_plain
from dsv4bench.dashboards.render import plain
from dsv4bench.errors import CellSkipped
from dsv4bench.profiling import counter_check, graph_annotations
from dsv4bench.profiling.counter_check import (
    EAGER,
    GRAPH,
    HOOK,
    HOOK_GRAPH,
    HOOK_REPLAY,
    LEDGER,
    PROFILER,
    REPLAY,
    TORCH,
    TRITON,
    TRITON_BREAKS,
    TRITON_GRAPH,
    check_counters,
)
from dsv4bench.workloads.ops import Ops
from tests.profiling.fake_gpu import fake_gpu
from tests.profiling.small_groups import TINY, group, model

triton = pytest.importorskip("triton")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def cell(**typed):
    (first, *_) = group(geometry=TINY, **{"graph": True, "reuse": "on", "extend": "8", "prefix": "60", **typed})
    return first


@pytest.mark.parametrize("compressor", ["torch", "fused"])
@pytest.mark.parametrize("reuse", ["off", "on"])
def test_calls_on_a_cpu_are_those_of_the_layer_map(compressor, reuse):
    found = check_counters(cell(compressor=compressor, reuse=reuse), model(TINY), CPU)
    assert (found.agreed, len(found.sources)) == (True, 3)
    assert "need a GPU" in found.absent[0]
    (table,) = counter_tables([found])
    assert "every source agrees: true" in plain(table)
    assert max(map(len, plain(table).splitlines())) <= 80


def test_a_provider_that_is_not_there_has_no_counts():
    with pytest.raises(CellSkipped, match="provider flash_mla: "):
        check_counters(cell(provider="flash_mla"), model(TINY), CPU)


def test_a_step_that_calls_more_than_its_map_is_found(monkeypatch):
    honest = counter_check.expected_calls

    def expected_calls(*arguments):
        return honest(*arguments) - Counter({("q_rope", 0): 1})

    monkeypatch.setattr(counter_check, "expected_calls", expected_calls)
    found = check_counters(cell(), model(TINY), CPU)
    assert not found.agreed
    assert found.differences("q_rope") == ["q_rope (kv_source 0): layer map 1, calls 2, calls, graph 2"]
    assert "every source agrees: false" in plain(counter_tables([found])[0])


@pytest.fixture
def gpu(monkeypatch):
    """The fake GPU, every launch of which goes through Triton, as it does but for replays."""
    device = fake_gpu(monkeypatch)
    honest = device.launch

    def launch(name="k", *arguments, **options):
        triton.knobs.runtime.launch_enter_hook(SimpleNamespace(get=lambda: {"name": name}))
        honest(name, *arguments, **options)

    device.launch = launch
    return device


def source(found, name):
    (one,) = (one for one in found.sources if one.name == name)
    return one


def test_profiler_ledger_replay_and_hook_see_the_same_launches(gpu):
    found = check_counters(cell(), model(TINY), CUDA)
    pieces = {op for op in found.ops if op.startswith("layer_")}
    assert source(found, LEDGER).of("layer_1_output") == (1, 0, 0)
    assert len(pieces) == 18
    for op in pieces:
        three = {source(found, name).of(op) for name in (PROFILER, LEDGER, REPLAY)}
        assert three == {(1, 0, 0)}
        assert {source(found, name).of(op) for name in (HOOK, HOOK_GRAPH, TRITON, TRITON_GRAPH)} == {(1,)}
    # at a replay Triton hears the seven breaks, and none of the eleven segments
    assert source(found, HOOK_REPLAY).counts == source(found, TRITON_BREAKS).counts
    assert sum(count for (count,) in source(found, HOOK_REPLAY).counts.values()) == 7
    assert source(found, EAGER).of("layer_1_output") == source(found, GRAPH).of("layer_1_output") == (1,)
    assert found.other == ()


def test_a_hook_that_hears_nothing_of_triton_kernels_does_not_agree(monkeypatch):
    monkeypatch.setattr(Ops, "ran_on", {"rms_norm": "triton", "combine": "torch", "dequant": "sglang, gluon"})
    fake_gpu(monkeypatch)  # whose launches no hook hears
    found = check_counters(cell(), model(TINY), CUDA)
    assert found.other == ("Triton's hook heard no launch, though dequant, rms_norm ran on Triton",)
    assert not found.agreed


def test_a_hook_that_heard_replays_too_would_be_found(gpu):
    honest = gpu.execute

    def execute(graph):
        triton.knobs.runtime.launch_enter_hook(SimpleNamespace(get=lambda: {"name": "again"}))
        honest(graph)

    gpu.execute = execute
    found = check_counters(cell(), model(TINY), CUDA)
    assert not found.agreed
    assert any(HOOK_REPLAY in text for text in found.differences("other"))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (None, graph_annotations.NO_MODULE),
        (SimpleNamespace(), graph_annotations.NO_MODULE),
        (SimpleNamespace(_is_tools_id_unavailable=lambda: True), graph_annotations.NO_IDS),
    ],
    ids=["an old torch", "another torch", "an old driver"],
)
def test_without_torchs_annotations_a_line_says_why(gpu, monkeypatch, module, why):
    monkeypatch.setitem(sys.modules, graph_annotations.MODULE, module)
    found = check_counters(cell(), model(TINY), CUDA)
    assert found.absent == (why,)


@pytest.mark.parametrize("missed", [0, 1], ids=["all", "one node missed"])
def test_torchs_annotations_are_held_against_the_ledger(gpu, monkeypatch, missed):
    fake = FakeAnnotations(gpu, missed)
    monkeypatch.setitem(sys.modules, graph_annotations.MODULE, fake)
    found = check_counters(cell(), model(TINY), CUDA)
    nodes = source(found, TORCH).counts
    assert (sum(count for (count,) in nodes.values()), found.absent) == (11 - missed, ())
    different = [text for op in found.ops for text in found.differences(op) if TORCH in text]
    assert len(different) == missed
    assert not fake.enabled


def test_a_capture_that_torchs_annotations_break_is_told_and_costs_nothing_else(gpu, monkeypatch):
    fake = FakeAnnotations(gpu, 0)
    fake.mark_kernels = lambda text: 1 / 0
    monkeypatch.setitem(sys.modules, graph_annotations.MODULE, fake)
    found = check_counters(cell(), model(TINY), CUDA)
    (why,) = found.absent
    assert why.startswith("torch's own graph annotations: layer 0 ")
    assert why.endswith(": division by zero")
    assert not fake.enabled
    assert source(found, LEDGER).of("layer_1_output") == (1, 0, 0)


class FakeAnnotations:
    """`torch.cuda._graph_annotations`: annotates what is captured in a scope, all but the first `missed` nodes."""

    def __init__(self, device, missed):
        self.device, self.missed = device, missed
        self.found, self.pending, self.enabled = {}, [], False

    def _is_tools_id_unavailable(self):
        return False

    def enable_annotations(self):
        self.enabled = True

    def disable_annotations(self):
        self.enabled = False

    def clear_kernel_annotations(self):
        self.found.clear()

    def get_kernel_annotations(self):
        return self.found

    @contextmanager
    def mark_kernels(self, text):
        before = len(self.device.nodes)
        yield
        if self.device.capturing:
            self.pending += [(number, text) for number in range(before, len(self.device.nodes))]

    def resolve_pending_annotations(self):
        kept, self.missed = self.pending[self.missed :], 0
        for number, text in kept:
            self.found.setdefault(number, [{"str": text}])
        self.pending = []


def test_a_gpu_has_every_column_in_eighty(gpu):
    found = check_counters(cell(), model(TINY), CUDA)
    lines = plain(counter_tables([found])[0]).splitlines()
    head = next(line for line in lines if line.startswith("op "))
    assert head.split() == ["op", "map", "calls", "graph", "profiler", "ledger", "replay", "hook", "capture", "agree"]
    # the fake's operations are pieces, with longer names than the longest of a step
    too_long = max(map(len, found.ops)) - len("dequant_compressed")
    assert max(map(len, lines)) - too_long <= 80
    (one,) = counters_plain([found])
    assert one["sources"][LEDGER]["layer_1_output"] == [1, 0, 0]
    assert one["agreed"] is found.agreed
