"""torch.profiler traces as columns: what is read, to the nanosecond, and what each kind of writer leaves out."""

import gzip
import json

import pytest

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, PUSH_POP, SET, TABLES, Device
from dsv4bench.profiling.traces.kineto_reader import read, sniff
from tests.profiling.traces import kineto_files as files
from tests.profiling.traces.kineto_files import EVENTS, LAUNCH, RANGE, document, without, written

# as torch.profiler writes it
TEXT = """{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132},
 {"id": 1, "name": ""}], "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
 "baseTimeNanoseconds": 1790857026000000000,
 "host_name": "somewhere", "cupti_version": 28, "traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "kv_source=2", "pid": 454, "tid": 454,
  "ts": 5140677167473.345, "dur": 2992.859, "args": {"External id": 1}},
 {"ph": "X", "cat": "gpu_user_annotation", "name": "kv_source=2", "pid": 0, "tid": 7, "ts": 5140677167474, "dur": 9},
 {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 454, "tid": 455,
  "ts": 5140677167473.346, "dur": 5, "args": {"cbid": 652, "correlation": 5}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 454, "tid": 454,
  "ts": 5140677167999.5, "dur": 1, "args": {}},
 {"ph": "X", "cat": "gpu_memset", "name": "Memset", "pid": 0, "tid": 7, "ts": 5140677167490.001, "dur": 0.001,
  "args": {}},
 {"ph": "X", "cat": "kernel", "name": "_rope", "pid": 0, "tid": 7, "ts": 5140677167474.0, "dur": 2.048,
  "args": {"device": 0, "stream": 7, "correlation": 5, "graph node id": 0}},
 {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "pid": 0, "tid": 7, "ts": 5140677167480, "dur": 1.5,
  "args": {"stream": 7, "correlation": 6, "graph node id": 4294967307, "bytes": 4096}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 454, "tid": 454, "ts": 1, "dur": 1},
 {"ph": "X", "cat": "python_function", "name": "f", "pid": 454, "tid": 454, "ts": 1, "dur": 1},
 {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0, "ts": 1, "dur": 1},
 {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
  "ts": 1, "dur": 1},
 {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 454, "tid": 454, "ts": 1},
 {"ph": "M", "name": "process_name", "pid": 0, "ts": 0, "args": {"name": "python"}},
 {"ph": "M", "name": "process_name", "pid": 0, "ts": 0, "args": {"name": "python"}}
]}"""


@pytest.fixture
def trace_of(tmp_path):
    def read_back(*events, **head):
        return read(written(tmp_path, document(*events, **head)))

    return read_back


def rows(trace, name, *columns):
    return trace.__getattribute__(name)[list(columns)].values.tolist()


def test_operations_launches_and_ranges_are_read_to_the_nanosecond(tmp_path):
    trace = read(written(tmp_path, TEXT))
    assert rows(trace, "operations", "kind", "start_ns", "end_ns", "device", "stream", "correlation", "bytes") == [
        [KERNEL, 5140677167474000, 5140677167476048, 0, 7, 5, NO_ID],
        [COPY, 5140677167480000, 5140677167481500, NO_ID, 7, 6, 4096],
        [SET, 5140677167490001, 5140677167490002, NO_ID, NO_ID, NO_ID, NO_ID],
    ]
    assert trace.names(trace.operations["name"]).tolist() == ["_rope", "Memcpy DtoD", "Memset"]
    assert trace.operations["graph_node"].tolist() == [NO_ID, 4294967307, NO_ID]
    assert rows(trace, "launches", "start_ns", "end_ns", "correlation") == [
        [5140677167473346, 5140677167478346, 5],
        [5140677167999500, 5140677168000500, NO_ID],
    ]
    assert [trace.threads[code] for code in trace.launches["thread"]] == [("454", "455"), ("454", "454")]
    assert rows(trace, "annotations", "kind", "start_ns", "end_ns", "domain") == [
        [PUSH_POP, 5140677167473345, 5140677170466204, NO_ID]
    ]
    assert trace.names(trace.annotations["text"]).tolist() == ["kv_source=2"]
    assert trace.annotations["thread"].tolist() == trace.annotations["end_thread"].tolist()
    assert trace.processes == ["454"]
    assert set(trace.operations["process"]) == {0}
    for table, columns in TABLES.items():
        assert list(getattr(trace, table).columns) == list(columns)
    assert trace.repairs == ()


def test_what_the_file_says_of_its_making_is_kept_and_where_it_ran_is_not(tmp_path):
    trace = read(written(tmp_path, TEXT))
    assert trace.devices == (Device(0, "NVIDIA H200", 132), Device(1))
    assert trace.rank == 3
    assert trace.facts == {
        "schemaVersion": "1",
        "baseTimeNanoseconds": "1790857026000000000",
        "cupti_version": "28",
        "backend": "nccl",
        "world_size": "8",
        "cpu_ops": "1",
        "python_functions": "1",
        "gpu_user_annotations": "1",
    }


DEVICE, HOST, CALLS = {"kernels", "copies", "sets"}, {"annotations"}, {"launches"}


@pytest.mark.parametrize(
    ("events", "recorded"),
    [
        (EVENTS, DEVICE | HOST | CALLS),
        ((files.KERNEL,), DEVICE),
        ((LAUNCH,), CALLS),
        ((RANGE | {"cat": "cpu_op"},), HOST),
        ((RANGE | {"cat": "gpu_user_annotation"},), set()),
        ((), set()),
    ],
    ids=["all", "device only", "calls without a device row", "operators", "synthesised ranges", "nothing"],
)
def test_what_no_row_shows_is_not_recorded(trace_of, events, recorded):
    assert trace_of(*events).recorded == recorded


def test_categories_of_old_writers_are_read(trace_of):
    old = {"kernel": "Kernel", "cuda_driver": "Runtime"}
    trace = trace_of(*({**event, "cat": old.get(event["cat"], event["cat"])} for event in EVENTS))
    assert rows(trace, "operations", "kind", "correlation") == [[KERNEL, 5]]
    assert rows(trace, "launches", "correlation") == [[5]]


@pytest.mark.parametrize(
    ("times", "starts_ns"),
    [
        (("1695835573014944", "1695835573014946"), [1695835573014944000, 1695835573014946000]),
        (("1712000000000000.1", "1712000000000000.4"), [1712000000000000100, 1712000000000000400]),
        (("1", "1712000000000000.4"), [1000, 1712000000000000400]),
        (('"5140677167474.001"', "5140677167474.002"), [5140677167474001, 5140677167474002]),
    ],
    ids=["whole microseconds", "fractions of the epoch", "a late large one", "text"],
)
def test_no_writer_loses_a_nanosecond(tmp_path, times, starts_ns):
    events = [files.KERNEL | {"ts": "AT", "name": str(index)} for index in range(2)]
    text = document(*events)
    for time in times:
        text = text.replace('"AT"', time, 1)
    assert read(written(tmp_path, text)).operations["start_ns"].tolist() == starts_ns


def test_a_call_that_contains_another_of_its_correlation_comes_first(trace_of):
    inner = LAUNCH | {"cat": "cuda_driver", "name": "cuLaunchKernel", "dur": 2}
    outer = LAUNCH | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5}
    trace = trace_of(inner, outer, *EVENTS[2:])
    assert trace.names(trace.launches["name"]).tolist() == ["cudaLaunchKernel", "cuLaunchKernel"]
    assert trace.launches["correlation"].tolist() == [5, 5]


def test_the_process_of_an_operation_is_that_of_the_calls_with_its_correlation(trace_of):
    other = LAUNCH | {"pid": 900, "args": {"correlation": 6}}
    shared = [LAUNCH | {"pid": pid, "args": {"correlation": 7}} for pid in (454, 900)]
    kernels = [files.KERNEL | {"args": {"correlation": correlation}} for correlation in (5, 6, 7, 8)]
    trace = trace_of(LAUNCH, other, *shared, *kernels)
    names = [trace.processes[code] if code != NO_ID else None for code in trace.operations["process"]]
    assert names == ["454", "900", None, None]
    assert trace.repairs == ("operations whose correlation id several processes used, without process: 1",)


def test_process_and_thread_are_the_same_as_number_and_as_text(trace_of):
    trace = trace_of(LAUNCH, RANGE | {"pid": "454", "tid": "455"})
    assert trace.launches["thread"].tolist() == trace.annotations["thread"].tolist() == [0]


@pytest.mark.parametrize(
    ("event", "columns", "sentence"),
    [
        (without(files.KERNEL, "dur"), [5140677167474000] * 2, "operations without a duration, read as 0 ns: 1"),
        (files.KERNEL | {"dur": -1}, [5140677167474000] * 2, "operations with a negative duration, read as 0 ns: 1"),
        (without(files.KERNEL, "ts"), [NO_ID, NO_ID], "operations without a start, counted and without time: 1"),
        (files.KERNEL | {"ts": "soon"}, [NO_ID, NO_ID], "operations without a start, counted and without time: 1"),
        (
            files.KERNEL | {"ts": 0, "dur": 0},
            [NO_ID] * 2,
            "operations at time 0 of length 0, counted and without time",
        ),
        (files.KERNEL | {"dur": 1e10}, [5140677167474000] * 2, "operations of more than two hours, read as 0 ns: 1"),
    ],
    ids=["no duration", "negative duration", "no start", "a word as start", "lost time", "10 000 s"],
)
def test_a_kernel_whose_time_is_lost_still_counts(trace_of, event, columns, sentence):
    trace = trace_of(event)
    assert rows(trace, "operations", "start_ns", "end_ns") == [columns]
    assert trace.repairs[0].startswith(sentence)


def test_bytes_that_no_memory_holds_are_missing(trace_of):
    copy = files.KERNEL | {"cat": "gpu_memcpy", "args": {"correlation": 5, "bytes": 2**62}}
    trace = trace_of(copy)
    assert trace.operations["bytes"].tolist() == [NO_ID]
    assert trace.repairs == ("operations of more than 8 TiB, their bytes read as missing: 1",)


def test_a_range_without_a_duration_never_ended(trace_of):
    trace = trace_of(without(RANGE, "dur"))
    assert trace.annotations["end_ns"].tolist() == [NO_ID]
    assert trace.repairs == ("ranges without a duration, read as never ended: 1",)


def test_rows_that_are_not_complete_events_are_said_to_be_left_out(trace_of):
    trace = trace_of(files.KERNEL | {"ph": "B"}, files.KERNEL)
    assert len(trace.operations) == 1
    assert trace.repairs == ("operations, calls or ranges that are not complete events, left out: 1",)


@pytest.mark.parametrize(
    ("value", "correlation", "repairs"),
    [
        ("5", 5, ("texts read as numbers in 'correlation': 1",)),
        (1.5, NO_ID, ("values of 'correlation' that are no whole numbers, read as missing: 1",)),
        (None, NO_ID, ()),
        (10159970886766084423, 10159970886766084423 - 2**64, ()),
    ],
    ids=["text", "fraction", "null", "64 bits"],
)
def test_a_correlation_of_another_type_is_read_where_it_is_one(trace_of, value, correlation, repairs):
    trace = trace_of(files.KERNEL | {"args": {"correlation": value}})
    assert trace.operations["correlation"].tolist() == [correlation]
    assert trace.repairs == repairs


def test_a_kernel_without_arguments_counts(trace_of):
    trace = trace_of(without(files.KERNEL, "args"), files.KERNEL | {"args": None})
    assert trace.operations["correlation"].tolist() == [NO_ID, NO_ID]


def test_a_bare_list_of_events_is_read(tmp_path):
    assert len(read(written(tmp_path, json.dumps(EVENTS))).operations) == 1


def test_no_events_are_nothing_recorded(tmp_path):
    for text in ("[]", '{"traceEvents": []}', '{"traceEvents": [\n]}'):
        trace = read(written(tmp_path, text))
        assert (len(trace.operations), trace.recorded, trace.repairs) == (0, frozenset(), ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "byte 0: expected JSON, found an empty file"),
        (gzip.compress(b""), "byte 0: expected JSON, found no data in it"),
        (b"\x1f\x8b\x08\x00broken", "byte 0: expected JSON, found no data in it"),
        ("7", r"byte 0: expected a list of events or a mapping with the list 'traceEvents', found '7'"),
        ("{}", "top level: expected the list 'traceEvents', found no such key"),
        ('{"traceEvents": null}', "top level: expected the list 'traceEvents', found null"),
        ('{"traceEvents": 7}', "byte 16: expected the list 'traceEvents', found '7}'"),
        ('{"traceEvents": {"ph": "X"}}', "byte 16: expected the list 'traceEvents', found '{\"ph\": \"X\"}}'"),
        ('{"schemaVersion": 1, "devicePro', "byte 0: expected a list of events or a mapping with the list"),
        (
            '{"schemaVersion": 1, "traceEvents": [\n',
            "byte 38: expected an event of the list",
        ),
        ("[[1, 2], [3]]", r"byte 1: expected an event of the list 'traceEvents', found '\[1, 2\], \[3\]\]'"),
        ('[{"ph": "X', "byte 10: expected an event of the list 'traceEvents', found the end of the file"),
        (b"\x00\xff\xfe garbage", "byte 0: expected a list of events or a mapping"),
    ],
    ids=[
        "empty",
        "empty gzip",
        "broken gzip",
        "a number",
        "no events",
        "null events",
        "a number of events",
        "a mapping of events",
        "cut before the events",
        "cut before the first event",
        "lists",
        "cut in the first event",
        "bytes",
    ],
)
def test_what_is_no_trace_is_one_error_with_its_place(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(TraceFormatError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(TraceFormatError, match=r"none\.json: cannot be read: No such file"):
        read(tmp_path / "none.json")
    with pytest.raises(TraceFormatError, match="cannot be read: Is a directory"):
        read(tmp_path)
    assert not sniff(tmp_path / "none.json")
    assert not sniff(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TEXT, True),
        (gzip.compress(TEXT.encode()), True),
        (gzip.compress(TEXT.encode())[:300], True),
        (b"\xef\xbb\xbf" + TEXT.encode(), True),
        (TEXT.encode("utf-16"), True),
        ('\n [{"ph": "X"}]', True),
        ('{"a": 1}', False),
        ("ph,cat\n", False),
        (b"", False),
        (b"\x1f\x8bno gzip", False),
        (b"SQLite format 3\x00", False),
    ],
    ids=["trace", "gzip", "cut gzip", "mark", "UTF-16", "list", "other JSON", "csv", "empty", "broken gzip", "sqlite"],
)
def test_sniffing_looks_at_the_first_bytes(tmp_path, content, expected):
    assert sniff(written(tmp_path, content)) is expected
