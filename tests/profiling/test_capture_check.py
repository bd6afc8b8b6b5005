"""What is not graph-safe: a planted fault of each kind is named with its line, and the tape replays it wrong."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from dsv4bench.profiling import verify
from dsv4bench.profiling.capture import run_pieces, tape_breakable
from dsv4bench.profiling.capture_check import check_capture, merged, other_batches
from dsv4bench.profiling.graphs import padded_plan
from dsv4bench.profiling.passes import run_group
from dsv4bench.profiling.tape_rules import Finding, Rule
from dsv4bench.workloads import sources
from dsv4bench.workloads import step as step_module
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.break_forms import COMPRESS, OUTPUT, form_of
from dsv4bench.workloads.prefill import prepare
from tests.profiling.small_groups import TINY, group, model, session

HERE = "tests/profiling/test_capture_check.py"


def report(**typed):
    """Check a workload of two requests, reuse on."""
    (cell,) = group(**{"geometry": TINY, "batch": "2", "graph": True, "reuse": "on", **typed})
    return check_capture(cell, model(cell.geometry))


def plant(monkeypatch, fault, part=OUTPUT):
    """Let a part of every layer do `fault(step, rows)` after its own work."""
    honest = step_module._PARTS[part]

    def run(step, kind, rows):
        honest(step, kind, rows)
        fault(step, kind, rows)

    monkeypatch.setitem(step_module._PARTS, part, run)


# workloads that are graph-safe


# load_input, 6 kernels and products of 3 layers before attention and 3 after, and what segments hold of 2 sources:
# index_query, and the compressor. compress_pool has 50 operations and a scalar; V4 is rotated before it is stored
COMMON = 1 + 3 * 6 + 3 * 3


@pytest.mark.parametrize(
    ("typed", "nodes"),
    [
        ({}, COMMON + 2 * (1 + 3)),
        ({"compressor": "torch"}, COMMON + 2 * (1 + 51 + 6)),
        ({"kv": "v4", "compressor": "torch"}, COMMON + 2 * (1 + 51 + 7)),
        ({"breaks": "hopper"}, COMMON),
        ({"batch": "3", "dep_simulated": "2", "extend": "7"}, COMMON + 2 * (1 + 3)),
    ],
    ids=["fused", "torch", "torch, v4", "hopper", "ranks"],
)
def test_our_step_is_graph_safe(typed, nodes):
    found = report(**typed)
    assert found.unsafe == ()
    assert found.captures == 3  # with its own batch, a row less and a request less
    assert found.nodes == nodes


def test_every_bucket_is_captured_and_a_refused_forward_is_named():
    found = report(geometry=TINY, batch="1", extend="1")
    assert (found.buckets, found.captures, found.refused) == ((), 0, ("bucket 4 is over 2 times the 1 tokens",))
    assert report(batch="1", extend="7").captures == 2  # one request: there is none to leave out


# planted faults


def reads_a_value(step, kind, rows):
    step.inputs.lens[0].item()


def indexes_by_a_mask(step, kind, rows):
    step.buffers.latent[:rows][step.inputs.loc[:rows] != 0].sum()


def copies_host_memory(step, kind, rows):
    step.buffers.index_k[:1].copy_(torch.tensor([1.0]))


def takes_the_live_rows(step, kind, rows):
    step.buffers.latent[: step.forward.live].mul_(2)


def allocates_the_live_rows(step, kind, rows):
    torch.empty(step.forward.live, device=step.inputs.loc.device).zero_().add_(1)


def bakes_in_a_number(step, kind, rows):
    step.buffers.latent[:rows].fill_(step.forward.live)


def bakes_in_an_argument(step, kind, rows):
    latent = step.buffers.latent[:rows]
    step.ops.run(kind, "norm", "rms_norm", x=latent, weight=latent[0], eps=step.forward.live / 4, out=latent)


def bakes_in_a_place(step, kind, rows):
    step.buffers.latent[step.forward.live - 1].zero_()


def takes_a_tensor_by_reference(step, kind, rows):
    step.buffers.latent[:rows, 0].copy_(step.forward.inputs.positions)


def does_more_for_one_batch(step, kind, rows):
    if step.forward.live == 16:
        step.buffers.latent[:rows].zero_()


FAULTS = (
    (reads_a_value, "reads a value to the host (_local_scalar_dense)"),
    (indexes_by_a_mask, "has a size that depends on data (index.Tensor)"),
    (copies_host_memory, "copies fresh host memory to the device (torch.tensor or the like)"),
    (takes_the_live_rows, "`self` has another shape for another batch (16 x 512 and 15 x 512)"),
    (allocates_the_live_rows, "`self` has another shape for another batch (16 and 15)"),
    (bakes_in_a_number, "bakes in `value` (16 for one batch, 15 for another)"),
    (bakes_in_an_argument, "bakes in `eps` (4.0 for one batch, 3.75 for another)"),
    (bakes_in_a_place, "`self` lies elsewhere for another batch (7680 and 7168)"),
    (takes_a_tensor_by_reference, "reads `src` from a tensor that a replay does not refresh"),
    (does_more_for_one_batch, "does other work for another batch (zero_ against rms_norm)"),
)


@pytest.mark.parametrize(("fault", "what"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_with_its_line_and_every_layer_that_has_it(monkeypatch, fault, what):
    plant(monkeypatch, fault)
    found = report()
    first = found.unsafe[0]
    assert first.rule.text == what
    assert first.rule.mend
    lines = range(fault.__code__.co_firstlineno + 1, fault.__code__.co_firstlineno + 4)
    assert first.place in [f"{HERE}:{line}" for line in lines]
    assert {one.place for one in found.unsafe} == {first.place}
    # the last layer's segment ends with this part; the other two go on with the norm of the next layer
    assert [piece for one in found.unsafe for piece in one.pieces] == [f"layer {layer} output" for layer in range(3)]


# what a step keeps in Python between calls


def keeps_a_workspace(kept, step, rows):
    space = kept.setdefault("space", torch.empty_like(step.buffers.latent))
    torch.mul(step.buffers.latent[:rows], 2, out=space[:rows])
    step.buffers.latent[:rows].copy_(space[:rows])


def keeps_a_table(kept, step, rows):
    if "table" not in kept:
        kept["table"] = torch.tensor([1.0, 3.0]).sum() + step.weights[0].input_norm[0]
    step.buffers.latent[:rows].mul_(kept["table"])


def keeps_a_value(kept, step, rows):
    latent = step.buffers.latent[:rows]
    if latent.data_ptr() not in kept:
        kept[latent.data_ptr()] = latent.amax()
    latent.div_(kept[latent.data_ptr()])


def keeps_what_follows_from_a_value(kept, step, rows):
    if "norm" not in kept:
        kept["norm"] = torch.empty_like(step.buffers.latent)
        scale = step.inputs.positions[:rows].max().sqrt()
        kept["norm"][:rows].copy_(scale.expand(rows, 1))
    step.buffers.latent[:rows].add_(kept["norm"][:rows])


def keeps_a_sum(kept, step, rows):
    kept.setdefault("sum", torch.zeros_like(step.buffers.latent))[:rows].add_(step.buffers.latent[:rows])


@pytest.mark.parametrize(
    ("keeps", "name"),
    [
        (keeps_a_workspace, None),
        (keeps_a_table, None),
        (keeps_a_value, "other"),
        (keeps_what_follows_from_a_value, "other"),
        (keeps_a_sum, "self"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_value_of_an_earlier_batch_may_not_be_kept_but_a_workspace_and_a_table_may(monkeypatch, keeps, name):
    kept = {}
    plant(monkeypatch, lambda step, kind, rows: keeps(kept, step, rows))
    found = [(one.place, one.rule.text) for one in report().unsafe]
    last = [line for _, _, line in keeps.__code__.co_lines()][-1]
    wanted = f"reads `{name}`, which an earlier call made of its batch and kept"
    assert found == ([] if name is None else [(f"{HERE}:{last}", wanted)])


def test_a_fault_ends_the_graph_cells_alone_and_leaves_nothing_active(monkeypatch):
    plant(monkeypatch, reads_a_value)
    records = run_group(group(geometry=TINY), model(TINY), session())
    assert [(one.engine, one.status) for one in records] == [("cpu-reference", "ok")] * 2 + [("tape", "failed")] * 2
    line = reads_a_value.__code__.co_firstlineno + 1
    assert records[2].reason.startswith(f"capture: layer 0 output: {HERE}:{line}: reads a value to the host")
    assert _get_current_dispatch_mode() is None


# the metadata design from before change G


def offsets_by_reference(step, kind, rows):
    """Compress with the offsets that were built for this forward, not with the static ones (specification 5.3)."""
    static = step.inputs
    step.inputs = replace(static, offsets=step.forward.inputs.offsets)
    try:
        sources.compress(step, kind, rows)
    finally:
        step.inputs = static


def ring_rows_that_a_replay_gets_wrong(cell):
    """Capture two requests of 12 rows, replay with one row less; return (layer, ring rows that differ from eager)."""
    plan, _ = padded_plan((cell,))
    prefill = prepare(model(cell.geometry), cell.variant, plan, False, form_of(cell.variant).copies)
    step = prefill.step(cell.variant)
    (forward,) = prefill.all_forwards()
    pieces = step.padded_pieces(forward, form_of(cell.variant))
    step.load(forward)
    captured = tape_breakable(pieces, step.ops)
    other = prefill.forward(verify.other_batch(forward.batch))
    rings = []
    for run in (lambda _: run_pieces(pieces), lambda _: captured.replay()):
        verify.observe(step, [other], run)
        rings.append({layer: ring.clone() for layer, ring in step.pools.rings.items()})
    eager, replayed = rings
    return {layer: (eager[layer] != replayed[layer]).any(1).nonzero().squeeze(1).tolist() for layer in eager}


def test_the_tape_replays_the_offsets_of_before_change_g_wrong_and_the_check_names_them(monkeypatch):
    (cell,) = group(geometry=TINY, batch="2", extend="12", graph=True, reuse="on")
    with torch.no_grad():
        assert ring_rows_that_a_replay_gets_wrong(cell) == {0: [], 2: []}
        monkeypatch.setitem(step_module._PARTS, COMPRESS, offsets_by_reference)
        # captured rows 0..11 and 12..23; the other batch has 0..10 at positions 61..71, and 11..22 at 60..71. The last
        # 8 rows of each as captured, 4..11 and 16..23, park positions 65..71 of both: ring row 0 of each, of position
        # 64, is the prefix's. Rows of the second request begin at 8
        assert ring_rows_that_a_replay_gets_wrong(cell) == {0: [0, 8], 2: [0, 8]}
        found = check_capture(cell, model(TINY)).unsafe
    whats = {one.rule.what: one.pieces for one in found}
    assert whats == {
        "reads `starts` from a tensor that a replay does not refresh": ("layer 0 compress", "layer 2 compress")
    }
    assert found[0].place.startswith("dsv4bench/workloads/sources.py:")


# parts


def test_other_batches_have_fewer_rows_or_requests_in_the_same_bucket():
    first, second = Request(0, 60, 4), Request(1, 60, 4)
    rows, requests = other_batches(Batch((first, second), 0, 8))
    assert rows == Batch((Request(0, 61, 3), second), 0, 8)
    assert requests == Batch((second,), 0, 8)
    assert list(other_batches(Batch((Request(0, 60, 1),), 0, 4))) == []
    assert list(other_batches(Batch((), 0).padded(8))) == []


def test_findings_of_one_line_are_one_with_all_its_pieces():
    rule, other = Rule("a", "b", "first"), Rule("c", "d")
    again = replace(rule, detail="second")
    found = merged([Finding("x", "f:1", rule), Finding("y", "f:1", again), Finding("x", "f:1", other)] * 2)
    assert found[0].rule.detail == "first"
    assert [(one.place, one.rule, one.pieces) for one in found] == [
        ("f:1", rule, ("x", "y")),
        ("f:1", other, ("x",)),
    ]
