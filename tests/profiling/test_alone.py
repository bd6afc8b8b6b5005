"""Parts of a step timed by themselves: which part, and what a round costs."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.profiling.alone import ROUNDS, compressor_subject, time_per_round_ns
from dsv4bench.profiling.graphs import open_pool
from dsv4bench.workloads.step import Piece, Step
from tests.profiling.fake_cuda import FakeCuda
from tests.profiling.small_groups import SMALL, FakeClock, allocated

CUDA = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    return FakeCuda().install(monkeypatch)


def test_on_a_cpu_a_round_is_what_all_calls_take_once():
    ran = []
    calls = [lambda: ran.append("a"), lambda: ran.append("b")]
    clock = FakeClock(tick_ns=700 * ROUNDS)
    assert time_per_round_ns(calls, clock, None) == 700
    assert ran == ["a", "b"] * ROUNDS * 2  # to warm up, and to be measured


def test_on_a_gpu_the_rounds_are_one_graph(gpu):
    clock = FakeClock(tick_ns=700 * ROUNDS)
    calls = [lambda: gpu.launch("a"), lambda: gpu.launch("b")]
    assert time_per_round_ns(calls, clock, open_pool(CUDA)) == 700
    (nodes,) = gpu.graph_nodes.values()
    assert [gpu.nodes[node][1] for node in nodes] == ["a", "b"] * ROUNDS
    assert gpu.log.count("launch graph 1") == 2  # once after its capture, once measured


def test_the_first_ratio_2_source_stands_for_all(gpu, monkeypatch):
    step = allocated(graph=False).steps["off", ("fused", "torch")]
    asked = []

    def layer(step, kind, rows):
        asked.append((kind.layer, rows))
        names = ("project", "source projections", "compress", "attention")
        return [Piece(name, "segment", lambda name=name: gpu.launch(name), kind.layer) for name in names]

    monkeypatch.setattr(Step, "layer", layer)
    subject = compressor_subject(step, 8, open_pool(CUDA))
    assert asked == [(1, 8)]
    assert (subject.period, len(subject.parts)) == ("compressor", 1)
    (nodes,) = gpu.graph_nodes.values()
    assert [gpu.nodes[node][1] for node in nodes] == ["compress"]


def test_a_model_without_ratio_2_has_no_such_compressor(gpu):
    step = allocated(graph=False).steps["off", ("fused", "torch")]
    step.geometry = replace(SMALL, ratios=(0, 1, 1, 1, 1, 1), kv_sources=(1,), index_sources=(1,), candidate_source=1)
    assert compressor_subject(step, 8, open_pool(CUDA)) is None
