"""Made exports of Nsight Systems: what each table and column becomes, and what their absence means."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import COPY, KERNEL, MARK, NO_ID, PUSH_POP, SET, START_END, Device
from dsv4bench.profiling.traces.nsys_names import call_name
from dsv4bench.profiling.traces.nsys_reader import read, sniff
from tests.profiling.traces import nsys_exports as made
from tests.profiling.traces.nsys_exports import OTHER_PROCESS, OTHER_THREAD, PROCESS, THREAD, call, export, kernel, node

WHOLE = {
    made.KERNEL: [kernel(100, 130, 1), kernel(140, 150, 2, graphNodeId=2**32 + 5)],
    made.MEMCPY: [made.memcpy(200, 240, 3)],
    made.MEMSET: [made.memset(300, 301, 4)],
    made.RUNTIME: [call(10, 20, 1), call(30, 40, 2, nameId=6)],
    "NVTX_EVENTS": [made.pushed(5, 50, "step0")],
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "export.sqlite"


def column(trace, table, name):
    return getattr(trace, table)[name].tolist()


def texts(trace, table, name):
    codes = getattr(trace, table)[name]
    return [None if code == NO_ID else trace.strings[code] for code in codes]


def test_device_rows_become_operations(path):
    trace = read(export(path, WHOLE))
    assert column(trace, "operations", "kind") == [KERNEL, KERNEL, COPY, SET]
    assert column(trace, "operations", "start_ns") == [100, 140, 200, 300]
    assert column(trace, "operations", "end_ns") == [130, 150, 240, 301]
    assert column(trace, "operations", "correlation") == [1, 2, 3, 4]
    assert column(trace, "operations", "graph_node") == [NO_ID, 2**32 + 5, NO_ID, NO_ID]
    assert column(trace, "operations", "bytes") == [NO_ID, NO_ID, 4096, 64]
    assert column(trace, "operations", "stream") == [7, 7, 7, 7]
    assert texts(trace, "operations", "name") == [
        "void scale<int, float>(T *)",
        "void scale<int, float>(T *)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
    ]
    assert (trace.format, trace.processes, trace.repairs) == ("nsys", ["529"], ())
    assert trace.recorded == {"kernels", "copies", "sets", "launches", "annotations"}


def test_calls_lose_the_version_of_the_api_and_keep_both_rows_of_one_launch(path):
    rows = [call(10, 40, 1), call(20, 30, 1, nameId=5, eventClass=1)]
    trace = read(export(path, {made.RUNTIME: rows}))
    assert texts(trace, "launches", "name") == ["cudaLaunchKernel", "cuLaunchKernelEx"]
    assert column(trace, "launches", "correlation") == [1, 1]
    assert [trace.threads[code] for code in trace.launches["thread"]] == [("529", "529")] * 2


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaLaunchKernel_v7000_ptsz", "cudaLaunchKernel"),
        ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2"),
        ("cudaGetDeviceProperties_v2_v12000", "cudaGetDeviceProperties_v2"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx"),
    ],
)
def test_the_version_of_the_api_is_no_part_of_a_name(name, plain):
    assert call_name(name) == plain


@pytest.mark.parametrize("table", [made.KERNEL, made.MEMCPY, made.MEMSET, made.RUNTIME, "NVTX_EVENTS"])
def test_a_missing_table_was_not_recorded(path, table):
    names = {
        made.KERNEL: "kernels",
        made.MEMCPY: "copies",
        made.MEMSET: "sets",
        made.RUNTIME: "launches",
        "NVTX_EVENTS": "annotations",
    }
    trace = read(export(path, {name: rows for name, rows in WHOLE.items() if name != table}))
    assert trace.recorded == set(names.values()) - {names[table]}


def test_an_empty_table_counts_as_recorded_only_beside_rows_of_cuda(path):
    empty = {table: [] for table in WHOLE}
    assert read(export(path, empty)).recorded == set()
    beside_calls = read(export(path, {**empty, made.RUNTIME: [call(1, 2, 1)]}))
    assert beside_calls.recorded == {"kernels", "copies", "sets", "launches"}


@pytest.mark.parametrize(
    "without",
    [
        ("graphNodeId",),
        ("textId",),
        ("shortName", "mangledName"),
        ("deviceId", "streamId"),
        ("endGlobalTid", "domainId"),
    ],
    ids=",".join,
)
def test_a_missing_column_is_no_id_throughout(path, without):
    trace = read(export(path, WHOLE, without=without))
    assert (len(trace.operations), len(trace.launches), len(trace.annotations)) == (4, 2, 1)
    assert trace.repairs == ()
    gone = {"graphNodeId": "graph_node", "deviceId": "device", "streamId": "stream"}
    for name in without:
        if name in gone:
            assert set(column(trace, "operations", gone[name])) == {NO_ID}


@pytest.mark.parametrize(("names", "expected"), [((1, 2, 3), 1), ((99, 2, 3), 2), ((99, 98, 3), 3)])
def test_a_kernel_has_the_first_name_that_there_is(path, names, expected):
    row = kernel(1, 2, 1, **dict(zip(("demangledName", "shortName", "mangledName"), names, strict=True)))
    trace = read(export(path, {made.KERNEL: [row]}))
    assert texts(trace, "operations", "name") == [made.NAMES[expected]]
    assert trace.repairs == ()


def test_a_kernel_without_any_name_is_one_all_the_same(path):
    row = kernel(1, 2, 1, demangledName=99)
    trace = read(export(path, {made.KERNEL: [row]}, without=("shortName", "mangledName")))
    assert texts(trace, "operations", "name") == ["name 99 (missing)"]


def test_a_name_that_is_nowhere_is_one_of_its_own_and_counted(path):
    gone = {"shortName": 99, "mangledName": None}
    rows = [kernel(1, 2, 1, demangledName=77, **gone), kernel(3, 4, 2, demangledName=78, **gone), kernel(5, 6, 3)]
    trace = read(export(path, {made.KERNEL: rows}))
    assert len(set(texts(trace, "operations", "name"))) == 3
    assert trace.repairs == (f"{made.KERNEL}: the names of 2 rows are missing (StringIds lacks 77, 78)",)


def test_correlations_are_those_of_a_process(path):
    tables = {
        made.KERNEL: [kernel(100, 110, 1), kernel(120, 130, 1, globalPid=OTHER_PROCESS)],
        made.RUNTIME: [call(1, 2, 1), call(3, 4, 1, globalTid=OTHER_PROCESS | 530)],
    }
    trace = read(export(path, tables))
    assert column(trace, "operations", "process") == column(trace, "launches", "process") == [0, 1]
    assert trace.processes == ["529", "530"]


def test_ids_of_64_bits_keep_their_sign(path):
    process = -(2**63) | (7 << 48) | (0xFFFFFF << 24)
    tables = {
        made.KERNEL: [kernel(1, 2, 1, globalPid=process), kernel(3, 4, 2, globalPid=PROCESS | (0xFFFFFF << 24))],
        made.RUNTIME: [call(0, 1, 1, globalTid=process | 0xFFFFFE)],
    }
    trace = read(export(path, tables))
    assert trace.processes == ["16777215 of 0x8007", "16777215 of 0x0101"]
    assert trace.threads == [("16777215", "16777214")]
    assert column(trace, "operations", "process") == [0, 1]


@pytest.mark.parametrize(
    ("threads", "processes", "said"),
    [
        ((THREAD, OTHER_THREAD), [0, 0], "taken for the only one that made calls"),
        ((THREAD, OTHER_PROCESS | 1), [NO_ID, NO_ID], "unknown among 2, so that they belong to no call"),
        ((), [NO_ID, NO_ID], None),
    ],
    ids=["one-process", "two-processes", "no-calls"],
)
def test_rows_without_a_process_get_the_only_one(path, threads, processes, said):
    calls = [call(1, 2, one, globalTid=thread) for one, thread in enumerate(threads)]
    tables = {made.KERNEL: [kernel(5, 6, 0), kernel(7, 8, 1)], made.RUNTIME: calls}
    trace = read(export(path, tables, without=("globalPid",)))
    assert column(trace, "operations", "process") == processes
    assert trace.repairs == ((f"the process of 2 device rows is missing: {said}",) if said else ())


def test_texts_are_inline_or_registered(path):
    rows = [
        made.pushed(1, 9, "inline"),
        made.pushed(2, 8, None, textId=7),
        made.pushed(3, 7, "layer.0"),
        made.pushed(4, 5),
    ]
    trace = read(export(path, {"NVTX_EVENTS": rows}))
    assert texts(trace, "annotations", "text") == ["inline", "layer.0", "layer.0", "(no text)"]
    assert trace.annotations["text"].nunique() == 3


def test_ranges_marks_and_what_is_neither(path):
    rows = [
        made.pushed(10, None, "open"),
        made.pushed(20, 30, "other thread", eventType=60, endGlobalTid=OTHER_THREAD),
        made.pushed(40, None, "mark", eventType=34),
        made.pushed(50, 60, "imported", eventType=70),
        made.pushed(0, None, "category", eventType=33),
        made.pushed(90, 80, "backwards"),
    ]
    trace = read(export(path, {"NVTX_EVENTS": rows}))
    assert column(trace, "annotations", "kind") == [PUSH_POP, START_END, MARK, PUSH_POP, PUSH_POP]
    assert column(trace, "annotations", "end_ns") == [NO_ID, 30, 40, 60, 90]
    assert column(trace, "annotations", "thread") == [0, 0, 0, 0, 0]
    assert column(trace, "annotations", "end_thread") == [NO_ID, 1, 0, 0, 0]
    assert trace.threads == [("529", "529"), ("529", "540")]
    assert trace.repairs == ("NVTX_EVENTS: 1 range never closed", "NVTX_EVENTS: 1 range ended before it began")


def test_a_domain_has_the_name_that_its_process_gave_it(path):
    other = OTHER_PROCESS | 1
    rows = [
        made.pushed(0, None, "ours", eventType=75, domainId=1),
        made.pushed(0, None, None, eventType=75, domainId=1, globalTid=other, textId=8),
        made.pushed(1, 9, "a", domainId=1),
        made.pushed(2, 9, "b", domainId=1, globalTid=other),
        made.pushed(3, 9, "c"),
        made.pushed(4, 9, "d", domainId=5),
    ]
    trace = read(export(path, {"NVTX_EVENTS": rows}))
    assert texts(trace, "annotations", "domain") == ["ours", "NCCL", None, "domain 5"]


NODES = "CUDA_GRAPH_NODE_EVENTS"


@pytest.mark.parametrize("name", [NODES, "CUDA_GRAPH_EVENTS"], ids=["2025", "2023.4"])
def test_nodes_of_graphs_are_found_by_their_columns(path, name):
    rows = [node(10, 5), node(20, 2**33, 5, globalTid=OTHER_THREAD), node(20, 2**33)]
    trace = read(export(path, {NODES: rows}, renamed={NODES: name}))
    assert column(trace, "graph_nodes", "node") == [5, 2**33, 2**33]
    assert column(trace, "graph_nodes", "original") == [NO_ID, 5, NO_ID]
    assert column(trace, "graph_nodes", "time_ns") == [10, 20, 20]
    assert column(trace, "graph_nodes", "thread") == [0, 1, 0]
    assert trace.recorded == {"graph_nodes"}


def test_rows_of_whole_graphs_are_no_nodes(path):
    export(path, {NODES: [node(10, 5)]})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE CUDA_GRAPH_EVENTS (start, globalTid, graphId, originalGraphId, graphExecId)")
        connection.execute("INSERT INTO CUDA_GRAPH_EVENTS VALUES (1, 2, 3, 4, 5)")
        connection.commit()
    assert column(read(path), "graph_nodes", "node") == [5]


def test_a_graph_traced_as_a_whole_is_a_run(path):
    row = {"start": 5, "end": 9, "deviceId": 1, "correlationId": 3, "globalPid": PROCESS}
    trace = read(export(path, {made.GRAPH_TRACE: [row], made.RUNTIME: [call(1, 2, 3, nameId=6)]}))
    assert trace.graph_runs.to_dict("records") == [
        {"start_ns": 5, "end_ns": 9, "process": 0, "device": 1, "correlation": 3}
    ]
    assert trace.recorded == {"graph_runs", "launches"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("NVTX_EVENTS_V2",), "V2"),
        (("NVTX_EVENTS", "NVTX_EVENTS_V2"), ""),
        (("NVTX_EVENTS_V2", "NVTX_EVENTS_V10"), "V10"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else value,
)
def test_a_table_is_found_by_the_beginning_of_its_name(path, names, expected):
    export(path, {"NVTX_EVENTS": [made.pushed(1, 2, "")]}, renamed={"NVTX_EVENTS": "first"})
    with closing(sqlite3.connect(path)) as connection:
        for name in names:
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM first")
            connection.execute(f"UPDATE {name} SET text = ?", (name.removeprefix("NVTX_EVENTS").removeprefix("_"),))
        connection.commit()
    trace = read(path)
    assert texts(trace, "annotations", "text") == [expected]
    assert [repair.split(": ")[1] for repair in trace.repairs] == [
        "not read, beside " + "NVTX_EVENTS" + ("_" + expected if expected else "")
    ] * (len(names) - 1)


def test_the_file_tells_of_its_gpus(path):
    gpu = {"id": 0, "name": "NVIDIA H200", "l2CacheSize": 62914560, "memoryBandwidth": 4814304000000, "smCount": 132}
    integrated = {"id": 2, "name": "Iris", "l2CacheSize": 0, "memoryBandwidth": 0, "smCount": 0, "cuDevice": 0}
    gpus = [{**gpu, "cuDevice": 1}, {"id": 1, "name": "NVIDIA A100", "smCount": 108, "cuDevice": 0}, integrated]
    assert read(export(path, {"TARGET_INFO_GPU": gpus})).devices == (
        Device(0, "NVIDIA A100", 108, None, None),
        Device(1, "NVIDIA H200", 132, 62914560, 4814304000000),
    )


def test_two_processes_that_see_one_gpu_each_have_two(path):
    tables = {
        made.KERNEL: [kernel(1, 2, 1), kernel(1, 2, 1, globalPid=OTHER_PROCESS), kernel(3, 4, 2, deviceId=1)],
        "TARGET_INFO_GPU": [{"id": one, "name": f"gpu {one}", "smCount": 1, "cuDevice": 0} for one in range(3)],
        "TARGET_INFO_CUDA_DEVICE": [
            {"gpuId": 1, "cudaId": 0, "pid": 529},
            {"gpuId": 0, "cudaId": 1, "pid": 529},
            {"gpuId": 2, "cudaId": 0, "pid": 530},
        ],
    }
    trace = read(export(path, tables))
    assert column(trace, "operations", "device") == [1, 2, 0]
    assert [device.name for device in trace.devices] == ["gpu 0", "gpu 1", "gpu 2"]


def test_the_file_tells_of_its_making_but_not_of_the_environment(path):
    settings = [
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("GRAPHICS_TRACE_OPTIONS:MODE", "other"),
        ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
        ("PROCESS_0:CUDA_SKIP_SOME_API_CALLS", "true"),
        ("PROCESS_0:ENVIRONMENT_3", "TOKEN=secret"),
        ("PROCESS_0:ARGUMENT_1", "--token=secret"),
    ]
    system = [("NvDriverVersion", "52510517"), ("DeviceEnvironment", "TOKEN=secret")]
    tables = {
        "META_DATA_EXPORT": [
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2025.5.2.1"},
            {"name": "EXPORT_USER", "value": "secret"},
        ],
        "META_DATA_CAPTURE": [{"name": name, "value": value} for name, value in settings],
        "TARGET_INFO_SYSTEM_ENV": [{"name": name, "value": value} for name, value in system],
        "DIAGNOSTIC_EVENT": [{"severity": 1, "text": "fine"}, *[{"severity": 2, "text": "No CUDA\nevents"}] * 2],
        "ANALYSIS_DETAILS": [{"duration": 5_000}],
    }
    trace = read(export(path, tables))
    assert trace.facts == {
        "nsys": "2025.5.2.1",
        "collected": "Cuda, NvtxEvents",
        "cuda_graph_trace": "node",
        "api_calls_skipped": "true",
        "duration_ns": "5000",
        "driver": "525.105.17",
        "warnings": "No CUDA events (2 times)",
    }


def test_rows_that_are_no_numbers_are_left_out_and_counted(path):
    export(path, WHOLE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {made.KERNEL} SET start = 1.5 WHERE correlationId = 1")
        connection.execute(f"UPDATE {made.RUNTIME} SET correlationId = 'one' WHERE correlationId = 2")
        connection.commit()
    trace = read(path)
    assert column(trace, "operations", "correlation") == [2, 3, 4]
    assert column(trace, "launches", "correlation") == [1]
    left_out = "1 row left out, without whole numbers where they belong"
    assert trace.repairs == (f"{made.RUNTIME}: {left_out}", f"{made.KERNEL}: {left_out}")


@pytest.mark.parametrize(
    ("row", "expected", "repair"),
    [
        (made.kernel(5, 2**44, 1), (5, 5, NO_ID), "KERNEL: 1 row lasted more than two hours: read as 0 ns"),
        (
            made.kernel(-(2**63), 2**63 - 1, 1),
            (NO_ID, NO_ID, NO_ID),
            "KERNEL: 1 row without a time that could be one: counted and without time",
        ),
        (
            made.memcpy(5, 9, 1, bytes=2**62),
            (5, 9, NO_ID),
            "MEMCPY: 1 row moved more than 8 TiB: its bytes read as missing",
        ),
    ],
    ids=["hours", "centuries", "bytes"],
)
def test_numbers_that_no_operation_has_are_not_added_up(path, row, expected, repair):
    trace = read(export(path, {made.MEMCPY if "bytes" in row else made.KERNEL: [row]}))
    assert [column(trace, "operations", name)[0] for name in ("start_ns", "end_ns", "bytes")] == list(expected)
    assert trace.repairs == (f"CUPTI_ACTIVITY_KIND_{repair}",)


def test_a_range_of_no_possible_time_is_left_out(path):
    trace = read(export(path, {"NVTX_EVENTS": [made.pushed(0, 2**63 - 1, "a"), made.pushed(1, 9, "b")]}))
    assert column(trace, "annotations", "start_ns") == [1]
    assert trace.repairs == ("NVTX_EVENTS: 1 range left out, of no time that could be one",)


def test_a_table_that_cannot_be_read_for_its_columns_is_said(path):
    tables = {made.KERNEL: [made.kernel(1, 2, 1)], "NVTX_EVENTS": [made.pushed(0, 9, "a")]}
    trace = read(export(path, tables, without=("end",)))  # ranges are read without it
    assert trace.recorded == {"annotations"}
    assert trace.repairs[0] == "CUPTI_ACTIVITY_KIND_KERNEL: left out, it has no column end"
    with pytest.raises(TraceFormatError, match="KERNEL: left out, it has no column start"):
        read(export(path, tables, without=("start",)))


def test_a_damaged_page_costs_its_own_rows_and_is_said(path):
    rows = [kernel(100 * one, 100 * one + 50, one) for one in range(1, 1001)]
    export(path, {made.KERNEL: rows, made.RUNTIME: [call(1, 2, 1)]}, page_bytes=1024)
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (made.KERNEL,)).fetchone()
    page = content[(root - 1) * 1024 : root * 1024]
    middle = int.from_bytes(page[3:5]) // 2
    place = int.from_bytes(page[12 + 2 * middle : 14 + 2 * middle])
    leaf = int.from_bytes(page[place : place + 4])
    lost = int.from_bytes(content[(leaf - 1) * 1024 + 3 : (leaf - 1) * 1024 + 5])
    content[(leaf - 1) * 1024 : leaf * 1024] = bytes(1024)
    path.write_bytes(content)
    trace = read(path)
    kept = column(trace, "operations", "correlation")
    gone = sorted(set(range(1, 1001)) - set(kept))
    assert (len(kept), gone) == (1000 - lost, list(range(gone[0], gone[0] + lost)))
    assert trace.repairs == (f"{made.KERNEL}: only {1000 - lost} of about 1000 rows can be read (1 page damaged)",)


MANY = {made.KERNEL: [kernel(one, one + 1, one) for one in range(5000)], made.RUNTIME: [call(1, 2, 1)] * 9}


@pytest.mark.parametrize("keeps", [0.2, 0.5, 0.9])
def test_a_cut_file_is_read_as_far_as_it_goes(path, keeps):
    whole = export(path, MANY).stat().st_size
    os.truncate(path, int(whole * keeps))
    trace = read(path)
    assert f"{int(whole * keeps)} of {whole} bytes are there" in trace.repairs[0]
    kernels = len(trace.operations)
    assert 0 < kernels < 5000
    assert any(f"{made.KERNEL}: only {kernels} rows can be read (" in repair for repair in trace.repairs)


def test_a_file_of_which_nothing_is_left_is_one_line(path):
    export(path, MANY)
    os.truncate(path, 4096)
    with pytest.raises(TraceFormatError, match=r"nothing of it can be read: .*4096 of .* bytes are there"):
        read(path)


def test_an_export_stays_as_it_was(path):
    before = export(path, WHOLE).read_bytes()
    path.chmod(0o444)
    read(path)
    assert (path.read_bytes(), list(path.parent.iterdir())) == (before, [path])


def test_names_of_folders_may_hold_anything(path, tmp_path):
    export(path, WHOLE)
    odd = tmp_path / "a #1?mode=rw% b"
    odd.mkdir()
    assert len(read(shutil.copy(path, odd / "x.db")).operations) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; expected an nsys export"),
        (b"SQLite", "byte 0: expected an SQLite database, found b'SQLite'"),
        (b"SQLite format 3\0" + bytes(84), "database is damaged|not a database|disk image"),
    ],
    ids=["empty", "six-bytes", "zeros"],
)
def test_what_is_no_database_is_one_line(path, content, message):
    path.write_bytes(content)
    assert sniff(path)
    with pytest.raises(TraceFormatError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(TraceFormatError, match="No such file"):
        read(tmp_path / "gone.sqlite")
    assert not sniff(tmp_path / "gone.sqlite")
