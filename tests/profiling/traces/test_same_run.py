"""One step and one replay of an H200, read by nsys, by torch.profiler and by the ledger of their record: equal counts.

`benchmarks/record_fixtures.sh` makes the files.
"""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, SET
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.open_trace import open_trace
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import BY_CAPTURE, METHODS, ranges_of
from dsv4bench.results.ledger_table import read_ledger
from dsv4bench.results.store import read_records

FOLDER = Path(__file__).parents[2] / "data" / "traces"
RECORDS = FOLDER / "records.jsonl"
METRICS = {KERNEL: "kernels", COPY: "copies", SET: "sets"}
MODES = {"eager": False, "breakable": True}  # name of a file and whether the cell is a graph
SUFFIXES = (".sqlite", ".json.gz")
MOST_BYTES = 300_000

pytestmark = pytest.mark.skipif(not RECORDS.exists(), reason="recorded on a GPU: benchmarks/record_fixtures.sh")
cases = pytest.mark.parametrize(
    ("mode", "suffix"), [pytest.param(mode, suffix, id=mode + suffix) for mode in MODES for suffix in SUFFIXES]
)


def recorded(mode):
    """The record of the cell."""
    (found,) = [one for one in read_records(RECORDS).records if one.variant["graph"] is MODES[mode]]
    return found


def placed(mode, suffix):
    """The trace with everything joined; only torch.profiler needs the ledger for the segments of a replay."""
    (trace,) = open_trace(FOLDER / f"{mode}{suffix}")
    ledger = recorded(mode).capture_ledger
    graphs = read_ledger(ledger) if ledger and suffix == ".json.gz" else ()
    found = ranges_of(trace)
    return place(found, label(trace, found, graphs=graphs))


def counted(one):
    """(op, kv_source, metric) -> device operations of the step's range; the capture's own run lies outside of it."""
    rows = one.rows[one.rows["step"] != NO_ID]
    found = Counter()
    for op, source, kind in zip(rows["op"], rows["kv_source"], rows["kind"], strict=True):
        assert op != NO_ID, "an operation without a place"
        found[one.ops[op], None if source == NO_ID else int(source), METRICS[kind]] += 1
    return found


def of_record(one):
    """The same of the counts of a record."""
    found = Counter()
    for row in one.counts:
        for metric in METRICS.values():
            if row[metric]:
                found[row["op"], row["kv_source"], metric] += row[metric]
    return found


@cases
def test_a_trace_counts_what_the_record_counts(mode, suffix):
    assert counted(placed(mode, suffix)) == of_record(recorded(mode))


@cases
def test_a_trace_has_one_marked_step_and_every_operation_of_it_a_layer(mode, suffix):
    one = placed(mode, suffix)
    assert (one.steps.marked, len(one.steps.frame)) == (True, 1)
    inside = (one.rows["step"] != NO_ID).to_numpy()
    assert inside.any()
    assert one.known("layer")[inside].all()


def test_reuse_dequantises_each_source_once_and_the_window_in_every_layer():
    found = counted(placed("breakable", ".sqlite"))
    assert {key[1]: count for key, count in found.items() if key[0] == "dequant_compressed"} == {0: 1, 2: 1}
    assert sum(count for key, count in found.items() if key[0] == "dequant_swa") == 4


def test_the_replay_of_nsys_is_attributed_by_the_capture_and_runs_in_graphs():
    one = placed("breakable", ".sqlite")
    inside = one.rows[one.rows["step"] != NO_ID]
    assert inside["in_graph"].any()
    assert METHODS[BY_CAPTURE] in one.coverage.method


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*[!d]")), ids=lambda file: file.name)
def test_files_are_small_and_hold_no_environment_and_no_path(file):
    content = file.read_bytes()
    assert len(content) <= MOST_BYTES
    content = gzip.decompress(content) if file.suffix == ".gz" else content
    words = (b"HOME=", b"PATH=", b"LD_LIBRARY_PATH", b"/root/", b"/home/", b"/bin/python")
    assert not [word for word in words if word in content]
