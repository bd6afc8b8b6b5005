"""The real torch.profiler traces beside the project give the figures that independent code counted in them."""

import numpy as np
import pandas as pd
import pytest

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, SET
from dsv4bench.profiling.traces.kineto_reader import read, sniff
from tests.profiling.traces.shared_traces import FOLDER, counted, needs_traces

pytestmark = [pytest.mark.corpus, needs_traces]

TRUTH = counted(lambda entry: ".json" in entry["dst"] and entry["parse"] == "ok" and "WRONGKIND" not in entry["dst"])


def busy_ns(rows):
    """Return the union of the times in which the rows run."""
    ordered = rows.sort_values("start_ns")
    ends = ordered["end_ns"].cummax().to_numpy()
    starts = np.maximum(ordered["start_ns"].to_numpy(), np.concatenate([[np.iinfo(np.int64).min], ends[:-1]]))
    return int(np.maximum(ordered["end_ns"].to_numpy() - starts, 0).sum())


def figures(trace):
    """Return the figures of truth.json from the columns of a trace."""
    rows = {kind: trace.operations[trace.operations["kind"] == kind] for kind in (KERNEL, COPY, SET)}
    kernels = rows[KERNEL]
    lasts = kernels["end_ns"] - kernels["start_ns"]
    calls = trace.launches.assign(name=trace.names(trace.launches["name"]))
    of_graphs = calls[calls["name"].str.contains("GraphLaunch")]["correlation"]
    known = calls[calls["correlation"] != NO_ID].drop_duplicates("correlation").set_index("correlation")
    launched_ns = kernels["correlation"].map(known["start_ns"])
    return {
        "kernels": len(kernels),
        "memcpy": len(rows[COPY]),
        "memset": len(rows[SET]),
        "runtime_driver_calls": len(calls),
        "user_annotation": len(trace.annotations),
        "gpu_user_annotation": int(trace.facts.get("gpu_user_annotations", 0)),
        "graph_launch_calls": len(of_graphs),
        "kernels_in_graph_launch": int(kernels["correlation"].isin(of_graphs).sum()),
        "kernels_graph_node_id!=0": int((kernels["graph_node"] != NO_ID).sum()),
        "kernels_without_launch_record": int(launched_ns.isna().sum()),
        "kernels_before_launch": int((kernels["start_ns"] < launched_ns).sum()),
        "zero_dur_kernels": int((lasts == 0).sum()),
        "distinct_kernel_names": kernels["name"].nunique(),
        "kernel_streams": len(kernels[["device", "stream"]].drop_duplicates()),
        "kernel_time_us": int(lasts.sum()) / 1000,
        "memcpy_time_us": int((rows[COPY]["end_ns"] - rows[COPY]["start_ns"]).sum()) / 1000,
        "kernel_busy_union_us": sum(busy_ns(part) for _, part in kernels.groupby("device")) / 1000,
    }


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_a_real_trace_has_the_figures_that_independent_code_counted(name):
    path, expected = FOLDER / "real" / name, TRUTH[name]["truth"]
    trace = read(path)
    found = figures(trace)
    assert found == {key: pytest.approx(expected[key], abs=1e-3) for key in found}
    assert sniff(path)
    assert ("kernels" in trace.recorded) is (expected["kernels"] + expected["memcpy"] + expected["memset"] > 0)
    assert trace.repairs == ()
    steps = trace.annotations[trace.names(trace.annotations["text"]).str.startswith("ProfilerStep")]
    lasts_us = (steps["end_ns"] - steps["start_ns"]) / 1000
    assert lasts_us.tolist() == pytest.approx([us for _, us in expected["ProfilerStep_us"]], abs=1e-3)


def launched_within(trace, annotation, same_thread):
    """The kernels whose call starts inside a range, joined as the README beside the traces says."""
    calls = trace.launches[trace.launches["correlation"] != NO_ID]
    inside = (calls["start_ns"] >= annotation.start_ns) & (calls["start_ns"] <= annotation.end_ns)
    inside &= calls["process"] == annotation.process
    if same_thread:
        inside &= calls["thread"] == annotation.thread
    kernels = trace.operations[trace.operations["kind"] == KERNEL]
    return kernels[kernels["correlation"].isin(calls[inside]["correlation"])]


@pytest.mark.parametrize("name", sorted(name for name, entry in TRUTH.items() if entry.get("ranges")))
def test_the_ranges_of_a_real_trace_hold_the_kernels_that_independent_code_counted(name):
    trace = read(FOLDER / "real" / name)
    texts = trace.names(trace.annotations["text"])
    for expected in TRUTH[name]["ranges"]:
        named = trace.annotations[texts == expected["range"]]
        lasts_ns = named["end_ns"] - named["start_ns"]
        annotation = next(named[(lasts_ns - expected["dur_us"] * 1000).abs() <= 1].itertuples())
        kernels = launched_within(trace, annotation, same_thread=True)
        assert len(kernels) == expected["kernels_same_thread"]
        assert len(launched_within(trace, annotation, same_thread=False)) == expected["kernels_same_process"]
        time_us = (kernels["end_ns"] - kernels["start_ns"]).sum() / 1000
        assert time_us == pytest.approx(expected["kernel_time_us_same_thread"], abs=1e-3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WRONGKIND_execution_trace_et.json.gz", "expected the list 'traceEvents', found no such key"),
        ("WRONGKIND_memory_timeline.raw.json.gz", "expected an event of the list 'traceEvents', found '"),
    ],
)
def test_json_of_another_kind_is_one_error(name, message):
    path = FOLDER / "real" / "facebookresearch-HolisticTraceAnalysis" / name
    assert not sniff(path)
    with pytest.raises(TraceFormatError, match=message):
        read(path)


def test_the_probe_has_its_eager_kernels_and_its_replays():
    """4 sources of 5 kernels and 1 copy in eager code, two replays of 24 kernels (README beside the traces)."""
    trace = read(FOLDER / "h200" / "probe_kineto.json.gz")
    calls = trace.launches.set_index("correlation")["name"]
    launched_by = trace.operations["correlation"].map(calls)
    replayed = trace.names(launched_by).str.contains("GraphLaunch")
    kinds = trace.operations["kind"]
    assert pd.crosstab(replayed, kinds).to_numpy().tolist() == [[20, 4], [48, 0]]
    assert trace.devices[0].name == "NVIDIA H200"


BROKEN = {
    "01_truncated_gzip.json.gz": (4, "the gzip stream ends early after 5535 of its 5535 bytes"),
    "02_truncated_json.json": (
        17,
        "the list of events is cut where the file ends, at byte 91221: the 270 events",
    ),
    "04_plain_json_named_gz.json.gz": (1, "the file is named .gz and is not compressed"),
    "05_utf8_bom_crlf.json": (1, "a byte order mark stands before the JSON"),
    "07_nan_infinity.json": (36, "inf or nan literals, read as missing values: 37"),
    "08_bare_list_no_close_trailing_comma.json": (36, "the list of events is not closed where the file ends"),
    "09_latin1_bytes.json": (36, "6 bytes not UTF-8, read as Latin-1, the first at byte 3690"),
    "11_negative_and_missing_dur.json": (36, "operations with a negative duration, read as 0 ns: 2"),
    "14_bad_escape_and_raw_newline.json": (1, "backslashes in texts that escape nothing, kept as they stand: 2"),
    "15_kernels_without_correlation.json": (36, None),
    "16_clock_skew_kernels_5ms_early.json": (36, None),
    "21_correlation_string_vs_int.json": (36, "texts read as numbers in 'correlation': 36"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_trace_is_read_and_says_what_was_mended(name):
    kernels, sentence = BROKEN[name]
    trace = read(FOLDER / "broken" / name)
    assert sniff(FOLDER / "broken" / name)
    assert trace.operations["kind"].tolist() == [KERNEL] * kernels
    assert "kernels" in trace.recorded
    if sentence is None:
        assert trace.repairs == ()
    else:
        assert any(repair.startswith(sentence) for repair in trace.repairs), trace.repairs


def test_kernels_without_a_correlation_have_none_and_skewed_ones_keep_their_times():
    without = read(FOLDER / "broken" / "15_kernels_without_correlation.json")
    assert set(without.operations["correlation"]) == {NO_ID}
    skewed = figures(read(FOLDER / "broken" / "16_clock_skew_kernels_5ms_early.json"))
    whole = figures(read(FOLDER / "real" / "AMD-AGI-TraceLens" / "b300_moe_01_many_experts.json.gz"))
    assert skewed["kernels_before_launch"] == 36
    assert skewed["kernel_time_us"] == whole["kernel_time_us"]


def test_ids_written_as_texts_join_as_numbers_do():
    texts = figures(read(FOLDER / "broken" / "21_correlation_string_vs_int.json"))
    assert texts["kernels_without_launch_record"] == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("17_traceEvents_missing.json", "top level: expected the list 'traceEvents', found no such key"),
        ("18_traceEvents_null.json", "top level: expected the list 'traceEvents', found null"),
        ("19_empty_file.json", "byte 0: expected JSON, found an empty file"),
    ],
)
def test_a_trace_without_events_is_one_error(name, message):
    with pytest.raises(TraceFormatError, match=f"{name}: {message}"):
        read(FOLDER / "broken" / name)


def test_every_torch_file_of_the_corpus_is_tested_here():
    beside = {path.name for path in (FOLDER / "broken").glob("*.json*")}
    tested = set(BROKEN) | {"17_traceEvents_missing.json", "18_traceEvents_null.json", "19_empty_file.json"}
    assert beside == tested
    real = {path.name for path in (FOLDER / "real").glob("*/*.json*")}
    named = {name.split("/")[-1] for name in TRUTH}
    assert {name for name in real if not name.startswith("WRONGKIND")} == named
