"""From what was typed to what was meant: defaults by device, refusals in one line."""

import json
from dataclasses import replace

import pytest
import torch

from dsv4bench.errors import UsageError
from dsv4bench.workloads.geometry import GEOMETRIES, V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.options import PrefillArguments, prefill_options, resolve_device
from dsv4bench.workloads.variant import KV_PAIRS
from tests.command_line import CONFIG


@pytest.fixture
def with_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def options(**typed):
    return prefill_options(PrefillArguments(**typed))


def test_defaults_on_a_gpu(with_cuda):
    found = options(batch="1..64")
    assert found.device == "cuda"
    assert found.geometry == (V41_FLASH,)
    assert (found.batch, found.extend, found.prefix) == ((1, 2, 4, 8, 16, 32, 64), (1024,), (8192,))
    assert (found.chunk, found.ranks, found.graph, found.graph_mode) == ((8192,), (1,), (False, True), ("breakable",))
    assert (found.reuse, found.kv, found.compressor) == (("off", "on"), (KV_PAIRS["v41+fp4"],), ("fused",))
    assert (found.breaks, found.break_outputs, found.buckets) == (("sm100",), ("copy",), ())
    assert (found.provider, found.samples, found.quick, found.fault) == (("triton",), None, False, None)
    assert found.notes == ()


def test_defaults_on_a_cpu(without_cuda):
    found = options()
    assert found.device == "cpu"
    assert found.geometry == (V41_FLASH_MINI,)
    assert (found.extend, found.prefix, found.chunk) == ((8,), (120,), (8192,))
    assert (found.provider, found.samples, found.quick) == (("torch",), 3, True)
    assert found.notes == (
        "defaults on a CPU: --geometry v41-flash-mini, --extend 8, --prefix 120, one warm-up and three samples",
    )


@pytest.mark.parametrize("empty", ["", [], ()], ids=["text", "list", "tuple"])
def test_what_is_left_empty_takes_its_default(without_cuda, empty):
    names = ("batch", "extend", "chunk", "graph_mode", "reuse", "kv", "compressor", "provider", "geometry")
    assert options(**dict.fromkeys(names, empty), dep_simulated=empty) == options()


def test_what_is_typed_is_no_default(without_cuda):
    found = options(geometry="v41-flash", extend="16", prefix="0", samples=5)
    assert (found.geometry, found.extend, found.prefix) == ((V41_FLASH,), (16,), (0,))
    assert (found.samples, found.quick) == (5, False)
    assert found.notes == ()


def test_recorded_lengths_are_divided_on_a_cpu(without_cuda):
    found = options(requests="r.jsonl", batch="1,4")
    assert (found.divide, found.chunk) == (64, (128,))
    assert found.notes[1] == "lengths and the chunk of 8192 of r.jsonl are divided by 64 on a CPU"
    own = options(requests="r.jsonl", chunk="256")
    assert own.chunk == (256,)
    assert own.notes[1] == "lengths of r.jsonl are divided by 64 on a CPU"


def test_recorded_lengths_are_whole_on_a_gpu(with_cuda):
    found = options(requests="r.jsonl")
    assert (found.divide, found.chunk) == (1, (8192,))


@pytest.mark.parametrize(
    ("graph", "want"), [(None, (False, True)), (True, (True,)), (False, (False,))], ids=["both", "graph", "eager"]
)
def test_graph(graph, want):
    assert options(device="cpu", graph=graph).graph == want


def test_buckets_are_one_list():
    assert options(device="cpu", buckets="64,128,8k").buckets == (64, 128, 8192)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(False, ("off",)), (True, ("on",)), (("off", "on"), ("off", "on"))],
    ids=["not given", "given", "two sides"],
)
def test_residual_streams(typed, meant):
    assert options(device="cpu", mhc=typed).mhc == meant


def test_switches_of_several_values():
    found = options(
        device="cpu",
        kv=["v4,v41", "v41+fp4"],
        graph_mode="full,breakable",
        breaks="hopper,sm100",
        break_outputs="both",
        compressor="both",
        reuse="on,off",
        provider="torch,auto",
        geometry="v41-flash-mini,v41-flash",
        dep_simulated="1..4",
        fault="wrong-row",
        quick=True,
    )
    assert [pair.name for pair in found.kv] == ["v4", "v41", "v41+fp4"]
    assert (found.graph_mode, found.compressor, found.reuse) == (
        ("full", "breakable"),
        ("torch", "fused"),
        ("on", "off"),
    )
    assert (found.breaks, found.break_outputs) == (("hopper", "sm100"), ("copy", "static"))
    assert found.provider == ("torch",)
    assert [model.name for model in found.geometry] == ["v41-flash-mini", "v41-flash"]
    assert (found.ranks, found.fault, found.samples) == ((1, 2, 4), "wrong-row", 3)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"batch": "0"}, "--batch 0: expected at least 1"),
        ({"batch": "64..1"}, "--batch 64..1: expected the smaller end first"),
        ({"batch": "x"}, "--batch x: expected a number"),
        ({"extend": "-1"}, "--extend -1: expected at least 1"),
        ({"prefix": "-1"}, "--prefix -1: expected at least 0"),
        ({"prefix": "1048577"}, "--prefix 1048577: expected at most 1048576"),
        ({"chunk": "0"}, "--chunk 0: expected at least 1"),
        ({"kv": "fp4"}, "FP4 is extra-only"),
        ({"kv": "v41,v5"}, "--kv v5: no such KV pair (did you mean 'v4"),
        ({"kv": [""]}, "--kv : no such KV pair"),
        ({"provider": "tritn"}, "did you mean 'triton'"),
        ({"provider": "triton"}, "--provider triton: needs a CUDA device; on a CPU `python -m pytest tests/kernels`"),
        ({"reuse": "maybe"}, "--reuse maybe: not known"),
        ({"graph_mode": "ful"}, "did you mean 'full'"),
        ({"compressor": "fuse"}, "did you mean 'fused'"),
        ({"breaks": "hoper"}, "--breaks hoper: not known (did you mean 'hopper'?); known: sm100, hopper, both"),
        ({"buckets": "128,64"}, "--buckets 128,64: expected an ascending list without doubles, but 64 follows 128"),
        ({"break_outputs": "copies"}, "--break-outputs copies: not known (did you mean 'copy'?)"),
        ({"geometry": "v41"}, "--geometry v41: no such geometry"),
        (
            {"fault": "wrong-row", "reuse": "off"},
            "--fault wrong-row: --reuse off has nothing to plant it in; expected --reuse on or both",
        ),
        ({"fault": "stale"}, "--fault stale: not known (did you mean 'stale-head'?)"),
        ({"dep_simulated": "0"}, "--dep-simulated 0: expected at least 1"),
        ({"dep": "0"}, "--dep 0: expected at least 1"),
        ({"dep": "5"}, "--dep 5: 384 experts are not dealt evenly to 5 ranks; try 4"),
        ({"dep": "2", "dep_simulated": "1,2"}, "--dep 2: --dep-simulated 1,2 runs ranks too; expected one"),
        ({"samples": 0}, "--samples 0: expected at least 1"),
        ({"seed": -1}, "--seed -1: expected at least 0"),
        ({"requests": "r.jsonl", "extend": "8"}, "--extend 8: the lengths come from --requests r.jsonl"),
        ({"requests": "r.jsonl", "prefix": ["8", "9"]}, "--prefix 8 9: the lengths come from --requests r.jsonl"),
        ({"device": "gpu"}, "--device gpu: not known"),
        ({"device": "cuda"}, "--device cuda: no CUDA device on this machine"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_line(without_cuda, typed, message):
    with pytest.raises(UsageError) as caught:
        options(**({"device": "cpu"} | typed))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_devices(with_cuda):
    assert [resolve_device(word) for word in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


def test_a_stale_head_that_could_not_show_is_refused(tmp_path, monkeypatch):
    """One source of each ratio: the ids tell their heads apart, whatever the key leaves out."""
    lonely = replace(
        V41_FLASH_MINI, ratios=(0, 2, 2, 1, 1), kv_sources=(1, 3), index_sources=(1, 3), candidate_source=3
    )
    monkeypatch.setitem(GEOMETRIES, "lonely", lonely)
    with pytest.raises(UsageError, match="no kv_source right after another of its ratio"):
        prefill_options(PrefillArguments(fault="stale-head", geometry="lonely", device="cpu"))
    assert prefill_options(PrefillArguments(fault="wrong-row", geometry="lonely", device="cpu")).fault == "wrong-row"
    assert prefill_options(PrefillArguments(fault="stale-head", device="cpu")).fault == "stale-head"


@pytest.mark.parametrize(
    ("sources", "why"),
    [([0], "--replay on: no layer of .*tiny.json lies before its last kv_source"), ([0, 1], None)],
    ids=["every layer late", "one early"],
)
def test_a_replay_needs_a_layer_that_runs_over_every_row(tmp_path, sources, why):
    config = {**CONFIG, "kv_source_layer_ids": sources, "index_source_layer_ids": sources}
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    typed = {"device": "cpu", "geometry": str(tmp_path / "tiny.json"), "replay": "on"}
    if why is None:
        assert options(**typed).replay == ("on",)
    else:
        with pytest.raises(UsageError, match=why):
            options(**typed)
