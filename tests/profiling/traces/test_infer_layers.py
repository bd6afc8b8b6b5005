"""Layers without ranges, against what was written down while the trace was made."""

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.infer_layers import infer
from dsv4bench.profiling.traces.kernel_ops import kernel_codes
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.open_trace import open_trace
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.workloads.geometry import V41_FLASH
from tests.profiling.traces.made_rows import Made
from tests.profiling.traces.made_step import BREAKS, CORE, TRITON, UPSTREAM, step_ops, step_trace

RECORDED = Path(__file__).resolve().parents[2] / "data" / "traces"


def inferred(trace):
    """Return (layer, op, step) of every operation, or why there are none."""
    found = infer(trace, V41_FLASH, kernel_codes(trace))
    if isinstance(found, str):
        return found
    return [
        (layer, None if op == NO_ID else found.ops[op], step)
        for layer, op, step in zip(found.layer.tolist(), found.op.tolist(), found.step.tolist(), strict=True)
    ]


@pytest.mark.parametrize("names", [TRITON, UPSTREAM], ids=["triton", "sglang and flash_mla"])
@pytest.mark.parametrize(("breakable", "copies"), [(False, False), (True, True)], ids=["eager", "breakable graph"])
@pytest.mark.parametrize("reuse", ["on", "off"])
@pytest.mark.parametrize("compressor", ["fused", "torch"])
@pytest.mark.parametrize("late", ["off", "on"], ids=["all rows", "late layers replayed"])
def test_every_operation_of_our_step_is_found_without_ranges(names, breakable, copies, reuse, compressor, late):
    ops = list(step_ops(late=late, reuse=reuse, compressor=compressor, copies=copies))
    trace, truth = step_trace(ops, names=names, ranges=False, breakable=breakable)
    assert inferred(trace) == truth


@pytest.mark.parametrize(
    ("reuse", "dequants"), [("on", {2: 1, 8: 1, 14: 1, 20: 1}), ("off", {2: 6, 8: 6, 14: 6, 20: 20})]
)
def test_compressed_dequants_per_kv_source_are_those_of_the_reuse(reuse, dequants):
    trace, _ = step_trace(list(step_ops(reuse=reuse)), steps=1, ranges=False)
    labels = label(trace, ranges_of(trace), infer_from=V41_FLASH)
    sources = labels.kv_source[labels.op == labels.ops.index("dequant_compressed")]
    assert dict(zip(*(column.tolist() for column in np.unique(sources, return_counts=True)), strict=True)) == dequants
    assert labels.coverage.method == "kernel sequence (inferred)"
    assert labels.coverage.complete


def test_what_runs_between_two_steps_belongs_to_no_layer():
    between = ("lm_head", "sample", "Memcpy DtoH")
    trace, truth = step_trace(list(step_ops()), ranges=False, between=between)
    assert inferred(trace) == truth


EXPERTS = ["void rmsnorm_warp_kernel<256>(int)", "nvjet_router", "moe_align", "nvjet_grouped", "silu_and_mul"]


@pytest.mark.parametrize("names", [TRITON, UPSTREAM], ids=["triton", "sglang and flash_mla"])
def test_the_experts_of_a_whole_model_belong_to_the_layer_before_them(names):
    """A serving engine runs a norm, GEMMs and kernels of other names between two attention stacks."""
    ops = []
    for kind in V41_FLASH.layers:
        ops += [(kind, op) for owner, op in step_ops(reuse="off") if owner is kind]
        ops.append((kind, "experts"))
    trace, truth = step_trace(ops, names=names | {"experts": EXPERTS}, ranges=False, between=("lm_head",))
    found = inferred(trace)
    assert [(layer, step) for layer, _, step in found] == [(layer, step) for layer, _, step in truth]
    told = (*CORE, "compress_c2", "q_norm")
    assert [one for one, other in zip(found, truth, strict=True) if other[1] in told] == [
        other for other in truth if other[1] in told
    ]


def cut(ops, first, last):
    """Return the part of a step, and its truth, from operation `first` on and up to `last`."""
    trace, truth = step_trace(ops, steps=3, ranges=False)
    kept = slice(first, len(truth) - last)
    return replace(trace, operations=trace.operations[kept].reset_index(drop=True)), truth[kept]


@pytest.mark.parametrize(
    ("first", "last"), [(300, 0), (0, 200), (250, 333), (301, 1)], ids=["head cut", "tail cut", "both", "in a layer"]
)
def test_a_step_that_the_trace_cuts_is_still_found(first, last):
    trace, truth = cut(list(step_ops()), first, last)
    found = inferred(trace)
    known = [(one, other) for one, other in zip(found, truth, strict=True) if one[0] != NO_ID]
    assert [one[0] for one, _ in known] == [other[0] for _, other in known]
    assert [one[2] for one, _ in known] == [other[2] for _, other in known]
    # of the layer that was cut at the head only what is sure, and of the last one what lies behind its attention
    assert len(found) - len(known) <= 40


def without(op, at=0):
    """Return a step without the `at`-th call of an operation."""
    ops = list(step_ops())
    place = [index for index, (_, name) in enumerate(ops) if name == op][at]
    return ops[:place] + ops[place + 1 :]


def with_one_more(op, layer):
    ops = list(step_ops())
    place = next(index for index, (kind, name) in enumerate(ops) if kind.layer == layer and name == "combine")
    return [*ops[:place], (ops[place][0], op), *ops[place:]]


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        (without("sparse_attention", 7), "kernel 7 of a stream should be layer 7, which has one writer of window rows"),
        (without("compress_c2", 1), "kernel 8 of a stream should be layer 8, which has a compressor of ratio 2"),
        (without("combine", 5), "kernel 6 of a stream should be layer 6, which has indices combined 1 times"),
        (without("dequant_swa", 30), "kernel 30 of a stream should be layer 30, which has one dequant of the window"),
        (without("input_norm", 3), "a norm is missing before attention kernel 3"),
        (without("norm_rope_store", 12), "no writer of window rows is known before attention kernel 12"),
        (with_one_more("compress_c1", 24), "kernel 24 of a stream should be layer 24, which has no compressor of"),
        (
            with_one_more("dequant_compressed", 20),
            "kernel 20 of a stream should be layer 20, which has 1 to 1 dequants",
        ),
        ([pair for pair in step_ops() if pair[1] != "sparse_attention"], "no attention kernel of this model is known"),
        ([pair for pair in step_ops() if not pair[1].startswith("compress_c")], "has a compressor of ratio 2"),
        ([pair for pair in step_ops() if pair[0].layer in (3, 4)], "are no whole step and fit several layers"),
    ],
    ids=[
        "an attention is missing",
        "a source without its compressor",
        "indices combined elsewhere",
        "no window",
        "no input norm",
        "no window row is written",
        "a compressor where none is",
        "a head that is filled twice",
        "another model",
        "compressors of unknown names",
        "so little that several layers fit",
    ],
)
def test_a_sequence_that_does_not_fit_is_refused_with_its_reason(ops, reason):
    trace, _ = step_trace(ops, ranges=False)
    assert reason in inferred(trace)


WHOLE = [
    step_trace(list(step_ops(late=late, reuse="off", compressor=compressor)), ranges=False)
    for late, compressor in (("off", "fused"), ("off", "torch"), ("on", "fused"))
]


@given(st.sampled_from(WHOLE), st.data())
def test_a_lost_record_is_refused_or_moves_no_other_to_another_layer(whole, data):
    trace, truth = whole
    lost = data.draw(st.integers(0, len(truth) - 1))
    found = inferred(replace(trace, operations=trace.operations.drop(index=lost).reset_index(drop=True)))
    if isinstance(found, str):
        return
    kept = truth[:lost] + truth[lost + 1 :]
    assert [one[0] for one in found] == [
        one[0] if known[0] != NO_ID else NO_ID for one, known in zip(kept, found, strict=True)
    ]


def test_streams_and_processes_are_sequences_of_their_own():
    trace, truth = step_trace(list(step_ops()), steps=1, ranges=False)
    operations = trace.operations
    other = operations.assign(device=1, stream=9, start_ns=operations["start_ns"] + 3)
    both = replace(trace, operations=type(operations)(_concatenated(operations, other)))
    found = inferred(both)
    assert found[: len(truth)] == truth
    assert [(layer, op) for layer, op, _ in found[len(truth) :]] == [(layer, op) for layer, op, _ in truth]


def _concatenated(first, second):
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def test_ranges_that_tell_another_layer_are_believed_and_noted():
    trace, _ = step_trace(list(step_ops()), steps=1, ranges=False)
    made = Made()
    made.strings, made.rows["annotations"] = made.strings, []
    strings = [*trace.strings, "model.layers.39.self_attn"]
    made.opened("x", 0, int(trace.launches["start_ns"].to_numpy()[50]))
    annotations = made.trace().annotations.assign(text=len(strings) - 1)
    mixed = replace(trace, strings=strings, annotations=annotations)
    labels = label(mixed, ranges_of(mixed), infer_from=V41_FLASH)
    assert set(labels.layer.tolist()) == {39, NO_ID}
    assert "differ from those of the ranges" in labels.notes[0]


def test_ranges_of_breaks_and_inferred_segments_go_together():
    ops = list(step_ops())
    trace, truth = step_trace(ops, breakable=True)
    labels = label(trace, ranges_of(trace), infer_from=V41_FLASH)
    assert [(layer, labels.ops[op]) for layer, op in zip(labels.layer.tolist(), labels.op.tolist(), strict=True)] == [
        (layer, op) for layer, op, _ in truth
    ]
    assert labels.coverage.method == "launch correlation + kernel sequence (inferred)"
    assert labels.coverage.complete
    assert {op for _, op, _ in truth} - set(BREAKS)


def recorded(provider, mode, reuse, folder):
    """One step of v41-flash, 64 rows, on an H200: torch.profiler's of SGLang's kernels, nsys's of ours."""
    suffix = ".json.gz" if provider == "sglang" else ".sqlite.gz"
    path = RECORDED / f"v41-flash-{provider}-{mode}-reuse-{reuse}{suffix}"
    if provider == "triton":
        path = folder / path.stem
        path.write_bytes(gzip.decompress((RECORDED / f"{path.name}.gz").read_bytes()))
    (trace,) = open_trace(path)
    return trace


def names(labels):
    return np.array([None if op == NO_ID else labels.ops[op] for op in labels.op.tolist()], dtype=object)


# kernels that serve another operation too, by SGLang's own names
OTHERWISE = {
    "triton": set(),
    "sglang": {
        ("index_candidates", "index_topk"),
        *((op, "fill") for op in ("combine", "index_topk")),
    },
}


@pytest.mark.parametrize("reuse", ["off", "on"])
@pytest.mark.parametrize("mode", ["eager", "breakable"])
@pytest.mark.parametrize("provider", ["triton", "sglang"])
def test_a_recorded_step_is_found_without_its_ranges(provider, mode, reuse, tmp_path):
    trace = recorded(provider, mode, reuse, tmp_path)
    whole = label(trace, ranges_of(trace))
    told = whole.layer != NO_ID
    stripped = replace(trace, annotations=trace.annotations[:0])
    blind = label(stripped, ranges_of(stripped), infer_from=V41_FLASH)
    assert blind.coverage.method == "kernel sequence (inferred)", blind.notes
    assert told.sum() > 400
    assert blind.layer[told].tolist() == whole.layer[told].tolist()
    assert blind.kv_source[told].tolist() == whole.kv_source[told].tolist()
    pairs = set(zip(names(whole)[told], names(blind)[told], strict=True))
    assert {(op, found) for op, found in pairs if found is not None and found != op} <= OTHERWISE[provider]
    unnamed = names(blind) == None  # noqa: E711 - element by element
    assert unnamed.sum() < 0.4 * len(unnamed)
    steps = 2 if (provider, mode) == ("triton", "breakable") else 1  # nsys's window holds the capture's own run, too
    dequants = Counter(blind.kv_source[names(blind) == "dequant_compressed"].tolist())
    expected = {2: 6, 8: 6, 14: 6, 20: 20} if reuse == "off" else dict.fromkeys((2, 8, 14, 20), 1)
    assert dequants == {source: count * steps for source, count in expected.items()}
