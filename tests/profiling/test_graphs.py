"""Graphs of a group: which forward is padded into which graph, what is captured, and what a replay must equal."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling import counting, verify
from dsv4bench.profiling.capture_ledger import CaptureLedger
from dsv4bench.profiling.graphs import NO_GRAPH, Graphs, Pool, open_pool, padded_plan
from dsv4bench.profiling.verify import Check
from dsv4bench.workloads.break_forms import EAGER, Form
from tests.profiling.fake_gpu import fake_gpu
from tests.profiling.small_groups import allocated, group, requests_file

CUDA = torch.device("cuda")


def of(run, graph=True):
    """The first graph or eager cell of a group, and its step."""
    cell = next(cell for cell in run.runs if cell.graph == graph)
    return cell, run.steps[cell.key]


def checks(run, again=False):
    cell, step = of(run)
    with torch.no_grad():
        return list(run.graphs.checks(cell, step, again))


def captured(run):
    cell, step = of(run)
    with torch.no_grad():
        run.graphs.capture(cell, step, next(run.prefill.all_forwards()))
    return cell


@pytest.fixture(scope="module")
def taped():
    """One cell of 7 rows in a bucket of 8, captured as a CPU does."""
    run = allocated(graph=True, reuse="on", extend="7")
    captured(run)
    return run


# plans


@pytest.mark.parametrize(
    ("typed", "buckets", "refusals"),
    [
        ({"graph": False, "extend": "7"}, [None], []),
        ({"extend": "7"}, [8], []),
        ({"extend": "8"}, [8], []),
        ({"graph_mode": "full", "extend": "7"}, [None], []),
        ({"graph_mode": "full,breakable", "extend": "7"}, [8], []),
        ({"extend": "1"}, [None], ["bucket 4 is over 2 times the 1 tokens"]),
        ({"prefix": "17000"}, [None], ["context 17008 is over the graph's limit of 16384"]),
        ({"batch": "2", "dep_simulated": "3", "extend": "5"}, [8, 8, 8], []),
    ],
    ids=["eager", "7 rows", "8 rows", "full", "full and breakable", "1 row", "long context", "a rank without requests"],
)
def test_a_plan_is_padded_where_a_breakable_graph_takes_it(typed, buckets, refusals):
    plan, refused = padded_plan(group(**typed))
    assert [batch.bucket for rank in plan for batch in rank] == buckets
    assert list(refused.values()) == refusals


def test_each_forward_is_padded_or_refused_by_itself(tmp_path):
    cells = group(graph=True, requests=requests_file(tmp_path, 13), chunk="6")
    (rank,), refused = padded_plan(cells)
    # 13 tokens in forwards of 6, 6 and 1: bucket 8 is over the chunk, which bounds the buckets
    assert [(batch.live, batch.bucket) for batch in rank] == [(6, None), (6, None), (1, None)]
    assert list(refused) == [0, 1, 2]
    cells = group(graph=True, requests=requests_file(tmp_path, 13), chunk="12")
    (rank,), refused = padded_plan(cells)
    assert [(batch.live, batch.bucket) for batch in rank] == [(12, 12), (1, None)]
    assert refused == {1: "bucket 4 is over 2 times the 1 tokens"}


# captures on a CPU


def test_on_a_cpu_a_graph_is_a_tape(taped):
    cell, _ = of(taped)
    (graph,) = cell.captured.values()
    assert list(cell.captured) == [8]
    # breaks: 6 attentions, 4 source projections, 3 full top-k, 3 of them right before an attention
    assert (graph.kind, graph.breaks, graph.graph_launches) == ("breakable tape", 13, 11)
    assert graph.memory_bytes == 8 * 32 * 2  # the logits, bf16, of the layer that scores 4 blocks of 8 candidates


def test_on_a_cpu_a_full_graph_is_one_tape_for_each_forward():
    run = allocated(graph=True, graph_mode="full", reuse="on")
    cell = captured(run)
    (graph,) = cell.captured.values()
    assert (list(cell.captured), graph.kind, graph.segments, graph.breaks) == ([-1], "full tape", 1, 0)
    assert [(check.name, check.passed) for check in checks(run)] == [(NAMES[0], True)]


def test_a_cpu_has_no_pool_of_graphs():
    assert open_pool(torch.device("cpu")) is None


# checks


NAMES = [
    "replay against eager",
    "replay of another batch against eager",
    "padded rows against live rows",
    "replay of one live row against eager",
    "replay without a live row",
]


def test_a_replay_equals_eager_runs_of_two_batches(taped):
    found = checks(taped)
    assert [check.name for check in found] == NAMES
    assert all(check.passed for check in found)


def test_after_timing_one_batch_is_enough(taped):
    assert [check.name for check in checks(taped, again=True)] == NAMES[:1]


def spoilt(taped, monkeypatch, spoil):
    cell, _ = of(taped)
    monkeypatch.setitem(cell.captured, 8, replace(cell.captured[8], calls=spoil(cell.captured[8].calls)))


def test_a_graph_that_lacks_a_piece_is_wrong_for_every_batch(taped, monkeypatch):
    spoilt(taped, monkeypatch, lambda calls: calls[:-1])
    # padding runs the pieces, not the graph, and without live rows there is nothing to lack
    assert [check.passed for check in checks(taped)] == [False, False, True, False, True]


@pytest.mark.parametrize("name", ["hidden", "positions", "loc", "pair_loc", "swa_loc"])
def test_a_graph_that_has_baked_in_its_first_batch_is_wrong_for_the_other(taped, monkeypatch, name):
    _, step = of(taped)
    (forward,) = taped.prefill.all_forwards()
    kept, read = (getattr(inputs, name) for inputs in (forward.inputs, step.inputs))
    spoilt(taped, monkeypatch, lambda calls: (lambda: read[: len(kept)].copy_(kept), *calls))
    first, second, _, single, empty = checks(taped)
    assert first.passed
    assert not second.passed
    assert not single.passed
    # rows of the first batch, which is not there now, have slots; those of index keys have just been written so
    assert empty.passed == (name not in ("loc", "swa_loc"))


def test_a_graph_that_writes_without_a_live_row_is_wrong(taped, monkeypatch):
    cache = taped.prefill.pools.compressed[4]
    spoilt(taped, monkeypatch, lambda calls: (*calls, lambda: cache[1, :1].add_(1)))
    assert checks(taped)[-1] == Check(
        NAMES[-1], False, f"layer outputs are equal, 1 of {len(taped.prefill.pools.written())} caches or rings differ"
    )


def test_a_cell_whose_every_forward_is_refused_has_nothing_to_check():
    run = allocated(graph=True, reuse="on", extend="1")
    cell, _ = of(run)
    assert cell.status == "refused"
    assert captured(run).captured == {}
    assert checks(run) == []


def test_each_graph_is_checked_once_and_an_idle_rank_never(taped):
    run = allocated(graph=True, reuse="on", batch="3", dep_simulated="4", extend="4")
    cell = captured(run)
    assert list(cell.captured) == [4]
    assert [check.name for check in checks(run, again=True)] == NAMES[:1]


def test_an_idle_forward_of_a_rank_stands_for_no_graph(monkeypatch, tmp_path):
    # the first rank is done after 8 rows; the second goes on with 4, for which the first one idles in the same bucket
    run = allocated(
        graph=True, reuse="on", requests=requests_file(tmp_path, 8, 12), batch="2", chunk="8", dep_simulated="2"
    )
    assert [[(batch.live, batch.bucket) for batch in rank] for rank in run.plan] == [[(8, 8), (0, 4)], [(8, 8), (4, 4)]]
    captured(run)
    compared = []
    honest = verify.observe
    monkeypatch.setattr(
        verify, "observe", lambda step, ones, go: compared.append(ones[0].live) or honest(step, ones, go)
    )
    assert [check.passed for check in checks(run, again=True)] == [True, True]
    assert compared == [8, 8, 4, 4]  # eager and replayed


# captures on a GPU that exists only here


@pytest.fixture
def gpu(monkeypatch):
    return fake_gpu(monkeypatch)


def on_gpu(monkeypatch, **typed):
    """A group whose graphs are captured on the fake GPU while its tensors stay on the CPU."""
    run = allocated(graph=True, reuse="on", **typed)
    monkeypatch.setattr(run, "_graphs", Graphs(run.prefill, CUDA))
    return run


def test_a_gpu_has_a_stream_and_a_pool_for_a_cells_graphs(gpu):
    pool = open_pool(CUDA)
    assert isinstance(pool, Pool)
    assert (pool.stream.cuda_stream, pool.handle) == (7, (0, 1))


def test_a_captured_graph_replays_what_eager_runs_for_both_batches(gpu, monkeypatch):
    run = on_gpu(monkeypatch, extend="7")
    cell = captured(run)
    (graph,) = cell.captured.values()
    assert (graph.kind, graph.breaks) == ("breakable CUDA graph", 13)
    assert graph.graph_launches == graph.segments
    found = checks(run)
    assert [(check.name, check.passed) for check in found] == [(name, True) for name in NAMES]


def test_a_full_graph_is_compared_by_its_output_alone_and_holds_live_rows(gpu, monkeypatch):
    run = on_gpu(monkeypatch, extend="7", graph_mode="full")
    cell = captured(run)
    (graph,) = cell.captured.values()
    assert (graph.kind, graph.segments, graph.breaks) == ("full CUDA graph", 1, 0)
    (check,) = checks(run)  # no other batch: a full graph is good for one set of lengths
    assert check.passed
    assert check.detail.startswith("1 layer outputs and ")


def test_a_full_graph_holds_live_rows_where_a_breakable_one_holds_its_bucket(gpu, monkeypatch):
    run = on_gpu(monkeypatch, extend="7", graph_mode="full,breakable", breaks="hopper")
    step = run.steps["on", ("fused", "torch")]
    monkeypatch.setattr(step, "pieces", lambda rows, tail_rows, form=EAGER, padded=False: (rows, form))
    (forward,) = run.prefill.all_forwards()
    found = [run.graphs.pieces(cell, step, forward) for cell in run.runs]
    assert found == [(7, Form("sm100")), (8, Form("hopper", copies=True))]


def test_a_stale_graph_of_a_gpu_is_wrong(gpu, monkeypatch):
    run = on_gpu(monkeypatch, extend="7")
    cell = captured(run)
    last = max(gpu.graph_nodes)
    gpu.graph_nodes[last].clear()  # the last segment is the output of layer 5
    assert [check.passed for check in checks(run)] == [False, False, True, False, True]
    assert cell.status == "ok"  # the caller draws the consequence


def test_forwards_of_one_bucket_share_a_graph_and_the_first_one_is_counted(gpu, monkeypatch, tmp_path):
    run = on_gpu(monkeypatch, requests=requests_file(tmp_path, 39), chunk="16")
    cell, step = of(run)
    forwards = list(run.prefill.all_forwards())
    assert [forward.batch.bucket for forward in forwards] == [16, 16, 8]
    counted = []
    honest = counting.GraphCounter.profile
    monkeypatch.setattr(
        counting.GraphCounter, "profile", lambda self, graph: counted.append(graph) or honest(self, graph)
    )
    with torch.no_grad():
        run.graphs.capture(cell, step, forwards[2])
    assert list(cell.captured) == [8, 16]
    assert counted == [cell.captured[8]]
    assert [run.graphs.key(cell, forward) for forward in forwards] == [16, 16, 8]
    assert run.graphs.of(cell, forwards[0]) is run.graphs.of(cell, forwards[1])


def test_a_full_graph_belongs_to_one_forward(gpu, monkeypatch, tmp_path):
    run = on_gpu(monkeypatch, requests=requests_file(tmp_path, 16), chunk="8", graph_mode="full")
    cell = captured(run)
    forwards = list(run.prefill.all_forwards())
    keys = [run.graphs.key(cell, forward) for forward in forwards]
    assert len(set(keys)) == 2
    assert NO_GRAPH not in keys
    assert list(cell.captured) == keys
    assert [check.passed for check in checks(run)] == [True, True]


def test_marks_are_silent_again_after_a_capture_that_failed(gpu, monkeypatch):
    run = on_gpu(monkeypatch)
    cell, step = of(run)
    silent = step.ops.mark

    def fail(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(CaptureLedger, "end_graph", fail)
    with pytest.raises(RuntimeError, match="boom"):
        captured(run)
    assert type(step.ops.mark) is type(silent)
    assert cell.captured == {}


def test_a_bucket_that_cannot_be_captured_frees_those_before_it(gpu, monkeypatch, tmp_path):
    run = on_gpu(monkeypatch, requests=requests_file(tmp_path, 24), chunk="16")
    cell, step = of(run)
    forwards = list(run.prefill.all_forwards())
    with torch.no_grad():
        run.graphs.capture(cell, step, forwards[0])
    (sixteen, eight), cell.captured = cell.captured.values(), {}
    gpu.reset_graphs.clear()
    monkeypatch.setattr(gpu, "launch", refusing_once(gpu, sixteen.segments))
    with pytest.raises(CaptureError, match="layer 0 input: out of blocks"):
        captured(run)
    assert len(gpu.reset_graphs) == sixteen.segments + 1  # of the first bucket, and the one that failed
    assert eight.segments == sixteen.segments
    assert cell.captured == {}
    assert (gpu.capturing, gpu.current.cuda_stream) == (None, 0)


def refusing_once(gpu, graphs):
    """A launch that is refused in the first capture after `graphs` ones."""
    honest, before = gpu.launch, gpu.captures

    def launch(*args, **kwargs):
        if gpu.capturing is not None and gpu.captures == before + graphs + 1:
            raise RuntimeError("out of blocks")
        honest(*args, **kwargs)

    return launch


@pytest.mark.parametrize(("error", "raised"), [(RuntimeError, CaptureError), (torch.OutOfMemoryError, None)])
def test_a_device_without_graphs_is_one_clear_error(gpu, monkeypatch, error, raised):
    def no_pool():
        raise error("not supported")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", no_pool)
    with pytest.raises(raised or error, match="this device has no CUDA graphs .not supported." if raised else None):
        open_pool(CUDA)
