import gzip
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces import kineto
from dsv4bench.profiling.traces.kineto import read, sniff, to_ns
from dsv4bench.profiling.traces.model import Annotation, DeviceOp, Launch
from tests.profiling.traces.shared_traces import FOLDER, needs_traces, truth

TEXT = """{"schemaVersion": 1, "baseTimeNanoseconds": 1790857026000000000, "traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "dsv4bench:step=0 op=rope rank=0", "pid": 454, "tid": 454,
  "ts": 5140677167473.345, "dur": 2992.859, "args": {"External id": 1}},
 {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 454, "tid": 454,
  "ts": 5140677167473.346, "dur": 5, "args": {"cbid": 652, "correlation": 5}},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 454, "tid": 454,
  "ts": 1, "dur": 1, "args": {}},
 {"ph": "X", "cat": "kernel", "name": "_rope", "pid": 0, "tid": 7, "ts": 5140677167474.0, "dur": 2.048,
  "args": {"device": 0, "stream": 7, "correlation": 5, "graph node id": 0}},
 {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "pid": 0, "tid": 7, "ts": 5140677167480, "dur": 1.5,
  "args": {"stream": 7, "correlation": 6, "graph node id": 4294967307}},
 {"ph": "X", "cat": "gpu_memset", "name": "Memset", "pid": 0, "tid": 7, "ts": 5140677167490.001, "dur": 0.001,
  "args": {}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 454, "tid": 454, "ts": 1, "dur": 1},
 {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0, "ts": 1, "dur": 1},
 {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
  "ts": 1, "dur": 1},
 {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 454, "tid": 454, "ts": 1},
 {"ph": "M", "name": "process_name", "pid": 0, "ts": 0, "args": {"name": "python"}}
]}"""
OPERATIONS = (
    DeviceOp("kernel", "_rope", 5140677167474000, 2048, 5, 7),
    DeviceOp("copy", "Memcpy DtoD", 5140677167480000, 1500, 6, 7, graph_node_id=4294967307),
    DeviceOp("set", "Memset", 5140677167490001, 1, None, None),
)


@pytest.fixture(params=["msgspec", "json"])
def decoder(request, monkeypatch):
    """Both decoders: the fast one, and Python's own where it is not installed."""
    if request.param == "json":
        monkeypatch.setattr(kineto.importlib.util, "find_spec", lambda name: None)
    return request.param


@pytest.fixture
def file(tmp_path):
    def write(text, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_operations_launches_and_annotations_are_read_to_the_nanosecond(decoder, file):
    trace = read(file(TEXT))
    assert trace.operations == OPERATIONS
    assert trace.launches == (Launch("cuLaunchKernelEx", 5140677167473346, 5, ("454", "454")),)
    assert trace.annotations == (
        Annotation("dsv4bench:step=0 op=rope rank=0", 5140677167473345, 5140677170466204, ("454", "454")),
    )


@pytest.mark.parametrize("name", ["trace.json.gz", "trace.json"], ids=["named gz", "named otherwise"])
def test_a_gzip_stream_is_known_by_its_bytes(decoder, file, name):
    path = file(gzip.compress(TEXT.encode()), name)
    assert read(path).operations == OPERATIONS
    assert sniff(path)


def test_a_plain_file_named_gz_is_read_as_what_it_is(file):
    assert read(file(TEXT, "trace.json.gz")).operations == OPERATIONS


def test_a_bare_list_of_events_is_read(decoder, file):
    assert read(file(json.dumps(json.loads(TEXT, parse_float=float)["traceEvents"]))).launches != ()


@given(st.integers(0, 10**17))
def test_no_time_loses_a_nanosecond(time_ns):
    text = f"{time_ns // 1000}.{time_ns % 1000:03d}"
    assert to_ns(Decimal(text)) == time_ns


KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": 1}}
LAUNCH = {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "ts": 1,
    "pid": 1,
    "tid": 1,
    "args": {"correlation": 1},
}


def without(event, key):
    return {name: value for name, value in event.items() if name != key}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (TEXT[:200], "not JSON"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read as a file or gzip stream"),
        (gzip.compress(TEXT.encode())[:300], "cannot be read as a file or gzip stream"),
        ("{}", "top level: expected a list of events or a mapping with the list 'traceEvents'"),
        ('{"traceEvents": null}', "top level: expected a list"),
        ("7", "top level: expected a list"),
        (json.dumps([{}, without(KERNEL, "ts")]), r"event 1 \('k'\): expected a key 'ts'"),
        (json.dumps([without(LAUNCH, "tid")]), r"event 0 \('cudaLaunchKernel'\): expected a key 'tid'"),
        (json.dumps([KERNEL | {"dur": None}]), r"event 0 \('k'\): expected numbers"),
        (json.dumps([KERNEL | {"ts": "soon"}]), r"event 0 \('k'\): expected numbers"),
        (json.dumps([KERNEL | {"ts": "NaN"}]), r"event 0 \('k'\): expected numbers"),
        (json.dumps([KERNEL | {"args": {"correlation": "x"}}]), r"event 0 \('k'\): expected numbers"),
        (json.dumps([KERNEL | {"args": [1]}]), r"event 0 \('k'\): expected numbers"),
        (json.dumps([KERNEL | {"cat": ["kernel"]}]), r"event 0 \('k'\): expected numbers"),
    ],
    ids=[
        "empty",
        "cut off",
        "broken gzip",
        "cut-off gzip",
        "no events",
        "null events",
        "a number",
        "no time",
        "no thread",
        "null duration",
        "a word as time",
        "not a number",
        "a word as correlation",
        "arguments are a list",
        "category is a list",
    ],
)
def test_what_is_no_trace_is_named_with_its_place(decoder, file, content, message):
    path = file(content)
    with pytest.raises(TraceFormatError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceFormatError, match=r"none\.json: cannot be read"):
        read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TEXT, True),
        ('\n [{"ph": "X"}]', True),
        ('{"a": 1}', False),
        ("ph,cat\n", False),
        (b"", False),
        (b"\x1f\x8bno gzip", False),
        (b"SQLite format 3\x00", False),
    ],
    ids=["trace", "bare list", "other JSON", "csv", "empty", "broken gzip", "sqlite"],
)
def test_sniffing_looks_at_the_first_bytes(file, content, expected):
    assert sniff(file(content)) is expected


def test_sniffing_a_missing_file_says_no(tmp_path):
    assert not sniff(tmp_path / "none.json")


BROKEN = [
    "01_truncated_gzip.json.gz",
    "02_truncated_json.json",
    "17_traceEvents_missing.json",
    "18_traceEvents_null.json",
    "19_empty_file.json",
]


@needs_traces
@pytest.mark.parametrize("name", BROKEN)
def test_shared_broken_traces_give_one_clear_error(name):
    with pytest.raises(TraceFormatError, match=name):
        read(FOLDER / "broken" / name)


SMALL = sorted(name for name, entry in truth().items() if entry["truth"].get("events", 10**9) < 2_000)


@needs_traces
@pytest.mark.parametrize("name", SMALL)
def test_shared_real_traces_have_the_operations_that_independent_code_counted(name):
    path, expected = FOLDER / "real" / name, truth()[name]["truth"]
    trace = read(path)
    kinds = [operation.kind for operation in trace.operations]
    assert sniff(path)
    assert kinds.count("kernel") == expected["kernels"]
    assert kinds.count("copy") == expected["memcpy"]
    assert kinds.count("set") == expected["memset"]
    total_ns = sum(operation.duration_ns for operation in trace.operations if operation.kind == "kernel")
    assert total_ns == pytest.approx(expected["kernel_time_us"] * 1000, abs=1)
