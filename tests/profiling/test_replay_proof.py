"""A proof holds for honest graphs, and each planted fault of a graph or a step shows in the comparison that it must."""

from dataclasses import fields, replace
from functools import partial

import pytest
import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling import replay_proof
from dsv4bench.profiling.replay_proof import capture_buckets, proofs, prove_bucket, subjects
from dsv4bench.profiling.replay_watch import Beginning
from dsv4bench.results.proofs import WHATS
from dsv4bench.workloads import sources
from dsv4bench.workloads import step as steps
from dsv4bench.workloads.break_forms import COMPRESS, SOURCE_PROJECTIONS
from dsv4bench.workloads.forward import RowInputs
from dsv4bench.workloads.prefill import prepare
from dsv4bench.workloads.replay_batches import MANY, replay_batches
from dsv4bench.workloads.variant import Variant
from tests.profiling.fake_gpu import fake_gpu
from tests.profiling.small_groups import SMALL, TINY, model

FUSED = Variant(graph=True)
TORCH = replace(FUSED, compressor="torch")
BUCKET = 16  # more rows than a ring has


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def prefill():
    plan = (tuple(one.batch for one in replay_batches(BUCKET)),)
    made = prepare(model(TINY), FUSED, plan, torch_path=True, break_copies=True)
    return made, Beginning(made.pools)


def proven(prefill, variant=FUSED, batches=None, spoil=lambda step, graph: graph):
    """Capture the bucket's graph, let `spoil` touch it, and return what differs: batch -> thing -> how."""
    prefill, beginning = prefill
    step = prefill.step(variant)
    graph = capture_buckets(prefill, step, [BUCKET])[BUCKET]
    found = [one for one in subjects(prefill, BUCKET) if batches is None or one.name in batches]
    rows = prove_bucket(step, beginning, found, spoil(step, graph))
    return {row.batch: {one.what: one.differs for one in row.comparisons if one.differs} for row in rows}


NOTHING = {one.name: {} for one in replay_batches(BUCKET)}


@pytest.mark.parametrize(
    "variant",
    [FUSED, TORCH, replace(TORCH, breaks="hopper", break_outputs="static")],
    ids=["fused", "torch path", "torch path, hopper breaks"],
)
def test_honest_replays_are_proven(prefill, variant):
    assert proven(prefill, variant) == NOTHING


def test_every_ratio_and_the_tail_of_replayed_late_layers_are_proven():
    variant = replace(FUSED, replay="on")
    (proof,) = proofs(model(SMALL), [variant], [4], lambda _: None)
    assert proof.holds, [row.complaints for row in proof.rows] or proof.reason
    assert proof.graph == "breakable tape"
    assert {one.what for row in proof.rows for one in row.comparisons} == set(WHATS)


def test_at_256_rows_the_batches_of_the_specification_are_proven():
    plan = (tuple(one.batch for one in replay_batches(256)),)
    prefill = prepare(model(TINY), FUSED, plan, torch_path=False, break_copies=True)
    step = prefill.step(FUSED)
    graph = capture_buckets(prefill, step, [256])[256]
    rows = prove_bucket(step, Beginning(prefill.pools), subjects(prefill, 256)[:5], graph)
    assert [(row.live, row.complaints) for row in rows] == [(256, []), (191, []), (1, []), (0, []), (256, [])]


# planted faults


def by_reference(prefill, monkeypatch):
    """As before change G: each load hands over the batch's own offsets, which a captured kernel does not see."""

    class Handed(steps.Step):
        def load(self, forward):
            self.inputs = replace(self.inputs, offsets=torch.zeros_like(forward.inputs.offsets))
            super().load(forward)
            self.inputs = replace(self.inputs, offsets=forward.inputs.offsets)

    monkeypatch.setattr("dsv4bench.workloads.prefill.Step", Handed)


def test_offsets_that_are_handed_over_by_reference_give_wrong_rings(prefill, monkeypatch):
    by_reference(prefill, monkeypatch)
    found = proven(prefill, batches=("full", "three requests"))
    assert found["full"] == {}  # the batch of the capture
    differs = found["three requests"]
    assert differs["offsets"] == "an input lies at another address than at capture"
    assert differs["rings"] == "source 0 and 1 more"


def test_offsets_by_reference_do_not_harm_the_torch_path_but_are_named(prefill, monkeypatch):
    by_reference(prefill, monkeypatch)
    found = proven(prefill, TORCH, batches=("full", "three requests"))
    assert set(found["three requests"]) == {"offsets"}  # it reads none of them


@pytest.mark.parametrize(("variant", "buffer"), [(TORCH, "split_kv"), (FUSED, "kv_score")], ids=["torch", "fused"])
def test_projections_that_are_not_zeroed_behind_the_live_rows_are_seen(prefill, monkeypatch, variant, buffer):
    def no_zeros(step, kind, rows, copies):
        sources.project(step, kind, step.forward.live, copies)

    monkeypatch.setitem(steps._RETURNING, SOURCE_PROJECTIONS, no_zeros)
    found = proven(prefill, variant, batches=("full", "three requests"))
    assert found["full"] == {}
    assert found["three requests"]["padding"].startswith(f"layer 0 {buffer} and ")


def after_compress(monkeypatch, spoil):
    def compress(step, kind, rows):
        sources.compress(step, kind, rows)
        spoil(step, kind.layer)

    monkeypatch.setitem(steps._PARTS, COMPRESS, compress)


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        ("compressed of layer 0 and 1 more", lambda step, at: step.pools.compressed[at][0, :256].fill_(7)),
        ("index K of layer 0 and 1 more", lambda step, at: step.pools.index_k[at][0, :64].fill_(7)),
        ("compressed of layer 0 and 1 more", lambda step, at: step.pools.compressed[at][-1, -1:].fill_(7)),
        ("window of layer 0 and 1 more", lambda step, at: step.pools.swa[at][0, :1].fill_(7)),
        # request 8 has no row in either batch
        ("ring of source 0 and 1 more", lambda step, at: step.pools.rings[at][8 * MANY + 1].fill_(7)),
    ],
    ids=[
        "a padding slot",
        "a padding slot of the index keys",
        "a free slot",
        "slot 0 of a window",
        "a skipped request",
    ],
)
def test_what_a_compressor_writes_beyond_its_rows_is_seen_though_eager_does_it_too(prefill, monkeypatch, what, spoil):
    after_compress(monkeypatch, spoil)
    found = proven(prefill, batches=("full", "no live token"))
    for differs in found.values():
        assert differs["untouched"] == what
        assert set(differs) - {"rings"} == {"untouched"}


def test_the_torch_path_may_write_the_dummy_slot_and_no_other(prefill, monkeypatch):
    after_compress(monkeypatch, lambda step, at: step.pools.compressed[at][0, :256].fill_(7))
    assert proven(prefill, TORCH, batches=("full",)) == {"full": {}}
    after_compress(monkeypatch, lambda step, at: step.pools.compressed[at][0, 256:257].fill_(7))
    assert proven(prefill, TORCH, batches=("full",))["full"] == {"untouched": "compressed of layer 0 and 1 more"}


def nothing_captured(step, graph):
    """The breaks alone: a replay of graphs without nodes."""
    return replace(graph, calls=tuple(call for call in graph.calls if isinstance(call, partial)))


def test_a_capture_that_captured_nothing_does_not_pass_by_what_still_stands_there(prefill):
    found = proven(prefill, batches=("full", "three requests", "full again"), spoil=nothing_captured)
    for differs in found.values():
        assert {"outputs", "latents", "compressed", "index K", "window"} <= set(differs)


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("hidden", {"outputs", "latents", "compressed", "index K", "window", "rings"}),
        ("positions", {"outputs", "compressed", "index K", "window", "rings"}),
        ("loc", {"compressed", "untouched"}),
        ("pair_loc", {"index K", "untouched"}),
        ("swa_loc", {"window", "untouched"}),
        ("offsets", {"offsets", "rings"}),
    ],
)
def test_an_input_of_another_batch_shows_where_it_is_read(prefill, name, differs):
    kept = {}

    def stale(step, graph):
        kept["value"] = getattr(step.inputs, name).clone()
        read = getattr(step.inputs, name)
        return replace(graph, calls=(lambda: read.copy_(kept["value"]), *graph.calls))

    # the inputs are those of the capture, of the batch "full"
    found = proven(prefill, batches=("full", "parities flipped"), spoil=stale)
    assert found["full"] == {}
    assert differs <= set(found["parities flipped"])


@pytest.mark.parametrize("name", [field.name for field in fields(RowInputs)])
def test_an_input_that_no_load_refreshes_is_named_though_eager_reads_it_too(prefill, monkeypatch, name):
    honest = RowInputs.load

    def load(inputs, other):
        honest(inputs, other)
        getattr(inputs, name).zero_()

    monkeypatch.setattr(RowInputs, "load", load)
    found = proven(prefill, batches=("parities flipped",))["parities flipped"]["offsets"]
    assert found.startswith("[[0, 0," if name == "offsets" else f"not this batch's: {name}")


def test_slots_that_are_not_written_are_seen_though_eager_does_not_write_them_either(prefill, monkeypatch):
    monkeypatch.setattr(sources, "_index_key", lambda step, kind, rows: None)
    assert proven(prefill, batches=("full", "no live token")) == {
        "full": {"index K": "not written: layer 0 and 1 more"},
        "no live token": {},
    }


# errors


def test_a_bucket_that_cannot_be_captured_frees_the_graphs_before_it(prefill, monkeypatch):
    freed = []
    prefill, _ = prefill
    step, honest = prefill.step(FUSED), replay_proof._capture

    def capture(step, forward, pool):
        if forward.batch.rows == 4:
            raise CaptureError("layer 0 project: no")
        graph = honest(step, forward, pool)
        freed.append(graph)
        return graph

    monkeypatch.setattr(replay_proof, "_capture", capture)
    with pytest.raises(CaptureError, match="bucket 4: layer 0 project: no"):
        capture_buckets(prefill, step, [4, 8])
    assert [graph.graphs[0].nodes for graph in freed] == [[]]


def test_an_error_ends_the_proof_of_one_variant_and_no_other(monkeypatch):
    def fail_on_the_torch_path(step, kind, rows):
        if step.variant.compressor == "torch":
            step.buffers.latent[0, 0].item()
        sources.compress(step, kind, rows)

    monkeypatch.setitem(steps._PARTS, COMPRESS, fail_on_the_torch_path)
    heard = []
    broken, honest = proofs(model(TINY), [TORCH, FUSED], [4], heard.append)
    assert not broken.holds
    assert (broken.graph, broken.rows) == ("", ())
    assert broken.reason.startswith("capture: bucket 4: layer 0 compress: tests/profiling/test_replay_proof.py:")
    assert "reads a value to the host" in broken.reason
    assert honest.holds
    assert heard == ["bucket 4, fused, sm100"]


def test_caches_for_which_there_is_no_memory_end_the_proofs_with_the_reason(monkeypatch):
    def prepare(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has")

    monkeypatch.setattr(replay_proof, "prepare", prepare)
    found = [(one.holds, one.reason) for one in proofs(model(TINY), [TORCH, FUSED], [4], lambda _: None)]
    assert found == [(False, "CUDA out of memory. Tried to allocate 9 GiB")] * 2


def test_on_a_gpu_graphs_of_cuda_are_proven(monkeypatch, prefill):
    fake_gpu(monkeypatch)
    pool = replay_proof.Pool(torch.cuda.Stream(), (0, 1))
    monkeypatch.setattr(replay_proof, "open_pool", lambda _: pool)
    assert proven(prefill, batches=("full", "three requests", "no live token")) == {
        name: {} for name in ("full", "three requests", "no live token")
    }


def test_a_graph_of_cuda_without_its_last_nodes_is_seen(monkeypatch, prefill):
    device = fake_gpu(monkeypatch)
    pool = replay_proof.Pool(torch.cuda.Stream(), (0, 1))
    monkeypatch.setattr(replay_proof, "open_pool", lambda _: pool)

    def cut(step, graph):
        device.graph_nodes[max(device.graph_nodes)].clear()  # the last segment: what follows the last attention
        return graph

    assert proven(prefill, batches=("three requests",), spoil=cut) == {"three requests": {"outputs": "the output"}}
