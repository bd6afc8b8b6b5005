"""No file, however broken, ends the reader in anything but a trace or one TraceFormatError."""

import gzip
import json
import time
import warnings
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import TABLES
from dsv4bench.profiling.traces.kineto_reader import read, sniff
from tests.profiling.traces.kineto_files import EVENTS, document
from tests.profiling.traces.test_kineto_reader import TEXT

SEEDS = (TEXT.encode(), document(*EVENTS * 5).encode(), json.dumps(EVENTS * 5).encode())
LIMIT_S = 5.0
JUNK = [text.encode("latin-1") for text in ('"', "\\", "{", "}", "[", "]", ",", ":", "nan", "-Infinity", "\n", "\xe9")]

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
events = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "s", "B", "M"]) | values,
        "cat": st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "cuda_driver", "user_annotation"]) | values,
        "name": st.just("k") | values,
        "pid": st.integers(0, 3) | values,
        "tid": st.integers(0, 3) | values,
        "ts": st.floats(0, 1e16) | values,
        "dur": st.floats(-10, 1e6) | values,
        "args": st.dictionaries(
            st.sampled_from(["device", "stream", "correlation", "graph node id", "bytes"]), st.integers(0, 9) | values
        )
        | values,
    },
)


def reads_or_refuses(path, content):
    """Read a file; return its trace, or None where it is refused. Fail where the trace contradicts itself."""
    path.write_bytes(content)
    start = time.process_time()
    sniff(path)
    trace, refusal = None, f"{path}: "
    try:
        trace = read(path)
    except TraceFormatError as error:
        refusal = str(error)
    assert refusal.startswith(f"{path}: ")
    assert len(refusal.splitlines()) == 1
    assert time.process_time() - start < LIMIT_S
    if trace is not None:
        for name, columns in TABLES.items():
            assert list(getattr(trace, name).columns) == list(columns)
        assert ("kernels" in trace.recorded) is (len(trace.operations) > 0)
        assert (trace.operations["end_ns"] >= trace.operations["start_ns"]).all()
        trace.names(trace.operations["name"])
    return trace


def damaged(content, random):
    """Return the bytes with some flipped, cut out, put in or cut off."""
    broken = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        place = random.randrange(len(broken) + 1)
        kind = random.randrange(5)
        if kind == 0 and place < len(broken):
            broken[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            del broken[place : place + random.randrange(1, 40)]
        elif kind == 2:
            broken[place:place] = random.choice(JUNK)
        elif kind == 3:
            broken[place:place] = broken[place // 2 : place // 2 + random.randrange(1, 200)]
        elif random.randrange(4) == 0:
            del broken[place:]
    return bytes(broken)


def damaged_file(random):
    """Return a damaged file, gzipped before the damage or after it or not at all."""
    content = random.choice(SEEDS)
    way = random.randrange(3)
    if way == 0:
        return damaged(gzip.compress(content, mtime=0), random)
    return gzip.compress(damaged(content, random)) if way == 1 else damaged(content, random)


@given(
    document=st.lists(events | values, max_size=5) | values | st.fixed_dictionaries({"traceEvents": st.lists(events)})
)
@settings(max_examples=20)
def test_random_json_is_read_or_refused(tmp_path_factory, document):
    text = json.dumps(document).encode("utf-8", "surrogatepass")
    reads_or_refuses(tmp_path_factory.getbasetemp() / "random.json", text)


@given(given_events=st.lists(events, min_size=1, max_size=6))
@settings(max_examples=60)
def test_every_complete_kernel_of_random_events_counts(tmp_path_factory, given_events):
    trace = reads_or_refuses(tmp_path_factory.getbasetemp() / "events.json", document(*given_events).encode())
    kernels = sum(event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy") for event in given_events)
    assert len(trace.operations) == kernels


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_read_or_refused(tmp_path, seed):
    random = Random(seed)
    for _ in range(40):
        reads_or_refuses(tmp_path / "damaged.json", damaged_file(random))


@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_that_damage_takes_is_said(tmp_path, seed):
    """A file with fewer kernels than were written says that something is wrong with it."""
    random = Random(seed)
    for _ in range(40):
        text = damaged(SEEDS[1], random)
        trace = reads_or_refuses(tmp_path / "damaged.json", text)
        if trace is not None and len(trace.operations) < text.count(b'"cat": "kernel"'):
            complete = sum(b'"ph": "X", "cat": "kernel"' in part for part in text.split(b"}"))
            assert trace.repairs or len(trace.operations) <= complete


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_minutes_of_damage(tmp_path):
    end, seed = time.monotonic() + 600, 0
    warnings.simplefilter("error")
    while time.monotonic() < end:
        seed += 1
        reads_or_refuses(tmp_path / "damaged.json", damaged_file(Random(1000 + seed)))
