"""Real exports of Nsight Systems against figures that other code counted."""

import json

import numpy as np
import pytest

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.nsys import keep_events
from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, PUSH_POP, SET, START_END, TABLES
from dsv4bench.profiling.traces.nsys_reader import read, sniff
from tests.profiling.traces.shared_traces import FOLDER, needs_traces

pytestmark = [pytest.mark.corpus, needs_traces]
KINDS = {"kernels": ("kernels", KERNEL), "copies": ("memcpy", COPY), "sets": ("memset", SET)}
NO_TABLE = "no table"


def entries():
    if not FOLDER.exists():
        return []
    return [
        pytest.param(entry, id=entry["dst"])
        for entry in json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
        if entry["dst"].endswith(".sqlite") and "foreign" not in entry["dst"]
    ]


@pytest.fixture(scope="module")
def traces():
    read_before = {}

    def trace_of(entry):
        path = FOLDER / "real" / entry["dst"]
        if path not in read_before:
            read_before[path] = read(path)
        return read_before[path]

    return trace_of


def the_range(trace, expected):
    """The one range of this name that lasts as long."""
    ranges = trace.annotations[trace.names(trace.annotations["text"]) == expected["range"]]
    lasts_ns = ranges["end_ns"] - ranges["start_ns"]
    (found,) = ranges[lasts_ns == round(expected["dur_us"] * 1000)].to_dict("records")
    return found


def launched_within(trace, annotation, same_thread):
    """The kernels whose call starts inside a range, joined as the README beside the traces says."""
    calls = trace.launches
    inside = calls[
        (calls["process"] == annotation["process"])
        & (calls["start_ns"] >= annotation["start_ns"])
        & (calls["start_ns"] <= annotation["end_ns"])
        & (not same_thread or calls["thread"] == annotation["thread"])
    ]
    kernels = trace.operations[trace.operations["kind"] == KERNEL]
    return kernels.merge(inside[["process", "correlation"]].drop_duplicates(), on=["process", "correlation"])


@pytest.mark.parametrize("entry", entries())
def test_an_export_has_the_counted_rows(entry, traces):
    trace, truth = traces(entry), entry["truth"]
    kinds = trace.operations["kind"]
    found = {
        name: int((kinds == kind).sum()) if name in trace.recorded else NO_TABLE for name, (_, kind) in KINDS.items()
    }
    assert found == {name: truth[theirs] for name, (theirs, _) in KINDS.items()}
    tables = {"launches": "runtime_calls", "annotations": "nvtx_rows", "graph_runs": "graph_trace_rows"}
    rows = {name: len(getattr(trace, name)) if name in trace.recorded else NO_TABLE for name in tables}
    assert rows == {name: truth[theirs] for name, theirs in tables.items()}


@pytest.mark.parametrize("entry", entries())
def test_an_export_has_the_counted_times_and_joins(entry, traces):
    trace, truth = traces(entry), entry["truth"]
    operations = trace.operations
    kernels = operations[operations["kind"] == KERNEL]
    lasts_us = ((operations["end_ns"] - operations["start_ns"]).groupby(operations["kind"]).sum() / 1000).to_dict()
    for key, kind in (("kernel_time_us", KERNEL), ("memcpy_time_us", COPY), ("memset_time_us", SET)):
        assert lasts_us.get(kind, 0) == pytest.approx(truth.get(key, 0), abs=1e-6)
    if "devices" in truth:
        assert sorted(kernels["device"].unique()) == truth["devices"]
        assert len(kernels[["device", "stream"]].drop_duplicates()) == truth["streams(device,stream)"]
        assert int(kernels["start_ns"].min()) == truth["min_start_ns"]
        assert (kernels["end_ns"].max() - kernels["start_ns"].min()) / 1000 == pytest.approx(truth["span_us"])
        keys = trace.launches[["process", "correlation"]].drop_duplicates()
        known = kernels.merge(keys, on=["process", "correlation"])
        assert len(kernels) - len(known) == truth["kernels_without_runtime_row"]
        assert (kernels["process"] != NO_ID).all()
    if isinstance(truth.get("kernels_with_graphNodeId"), int):
        assert int((kernels["graph_node"] != NO_ID).sum()) == truth["kernels_with_graphNodeId"]
    if isinstance(truth.get("processes"), int):
        assert kernels["process"].nunique() == truth["processes"]


@pytest.mark.parametrize("entry", entries())
def test_calls_and_ranges_have_their_names(entry, traces):
    trace, truth = traces(entry), entry["truth"]
    calls = trace.names(trace.launches["name"]).value_counts()
    for name, times in truth.get("api_top", []):
        plain = name.split("_v")[0] if name.split("_v")[-1].isdigit() and len(name.split("_v")[-1]) > 3 else name
        assert calls[plain] >= times
    launches = trace.launches[trace.names(trace.launches["name"]).str.match("cu(da)?Launch(Cooperative)?Kernel")]
    assert len(launches) == truth.get("launch_api_calls", 0)
    ranges = trace.annotations[trace.annotations["kind"].isin([PUSH_POP, START_END])]
    assert len(ranges) == truth.get("nvtx_ranges(59,60)", 0)
    assert int((ranges["end_ns"] == NO_ID).sum()) == truth.get("nvtx_ranges_end_null", 0)
    texts = trace.names(ranges["text"]).value_counts()
    assert {name: int(texts[name]) for name, _ in truth.get("nvtx_top_names", [])} == dict(
        truth.get("nvtx_top_names", [])
    )
    assert ranges["thread"].nunique() == truth.get("nvtx_threads", 0)


@pytest.mark.parametrize("entry", entries())
def test_kernels_of_a_range_are_those_whose_call_starts_in_it(entry, traces):
    trace = traces(entry)
    for expected in entry["ranges"]:
        mine, any_thread = (launched_within(trace, the_range(trace, expected), same) for same in (True, False))
        assert (len(mine), len(any_thread)) == (expected["kernels_same_thread"], expected["kernels_same_process"])
        lasts_ns = int((mine["end_ns"] - mine["start_ns"]).sum())
        assert lasts_ns / 1000 == pytest.approx(expected["kernel_time_us_same_thread"], abs=1e-6)


def test_a_replayed_step_has_its_captured_nodes():
    trace = read(FOLDER / "h200" / "probe_graph_node.sqlite")
    nodes = trace.graph_nodes
    cloned = nodes[nodes["original"] != NO_ID]
    instantiated = nodes[nodes["node"] // 2**32 == 2]["node"].unique()
    assert len(instantiated) == 29
    assert len(set(instantiated) - set(cloned["node"])) == 5
    replayed = trace.operations[trace.operations["graph_node"] != NO_ID]
    assert (len(replayed), set(replayed["graph_node"]) <= set(cloned["node"])) == (72, True)
    assert trace.facts["cuda_graph_trace"] == "node"


def test_warnings_of_the_profiler_are_kept():
    trace = read(FOLDER / "real" / "IhorAtlanov-assignment2-systems" / "no_cuda_at_all.sqlite")
    assert "No CUDA events collected. Does the process use CUDA?" in trace.facts["warnings"].splitlines()
    assert "Cuda" in trace.facts["collected"].split(", ")
    assert trace.recorded == frozenset()


@pytest.mark.parametrize(
    ("name", "counts", "repair"),
    [
        ("31_truncated", (1, 3, 15, 0), "331776 of 552960 bytes are there"),
        ("34_nvtx_unclosed_crossthread_textid", (5, 0, 5, 4), "NVTX_EVENTS: 1 range never closed"),
        ("36_graph_nodes_and_dangling_name", (5, 0, 2, 2), "names of 1 row are missing (StringIds lacks 99)"),
    ],
)
def test_what_is_broken_is_read_and_said(name, counts, repair):
    trace = read(FOLDER / "broken" / f"{name}.sqlite")
    kinds = trace.operations["kind"].value_counts()
    assert (kinds.get(KERNEL, 0), kinds.get(COPY, 0), len(trace.launches), len(trace.annotations)) == counts
    assert len(trace.repairs) == 1
    assert repair in trace.repairs[0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("broken/33_zero_bytes.sqlite", "the file is empty; expected an nsys export"),
        ("real/hpcgroup-pipit/foreign_test.sqlite", "no nsys export; its tables: test"),
    ],
)
def test_what_is_no_export_is_one_line(path, message):
    assert sniff(FOLDER / path)
    with pytest.raises(TraceFormatError, match=message):
        read(FOLDER / path)


def test_the_other_formats_are_not_claimed():
    others = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".sqlite"]
    assert len(others) > 30
    assert not [path for path in others if sniff(path)]


def test_no_environment_variable_is_kept():
    trace = read(FOLDER / "real" / "hpcgroup-pipit" / "cloverleaf-cuda.sqlite")
    assert "SLURM_GPUS" not in " ".join([*trace.facts, *trace.facts.values(), *map(str, np.asarray(trace.strings))])


@pytest.mark.parametrize("entry", entries())
def test_an_export_without_its_environment_is_read_alike(entry, traces, tmp_path):
    path = tmp_path / "kept.sqlite"
    path.write_bytes((FOLDER / "real" / entry["dst"]).read_bytes())
    keep_events(path)
    whole, kept = traces(entry), read(path)
    for name in TABLES:
        assert getattr(whole, name).equals(getattr(kept, name)), name
    same = ("strings", "facts", "devices", "repairs", "recorded", "processes", "threads")
    assert {name: getattr(kept, name) for name in same} == {name: getattr(whole, name) for name in same}
