"""Which reader opens a file, what a folder of ranks gives, and what is said of a file that is no trace."""

import gzip
import io
import tarfile

import pytest

from dsv4bench.errors import TraceFormatError, UsageError
from dsv4bench.profiling.traces.open_trace import open_trace, read_any, read_folder
from dsv4bench.ranges import Range
from tests.profiling.traces.kineto_files import EVENTS, RANGE, document, written
from tests.profiling.traces.shared_traces import FOLDER, needs_traces


def test_a_file_is_opened_by_the_reader_that_knows_it(tmp_path):
    (trace,) = open_trace(written(tmp_path, gzip.compress(document(*EVENTS).encode()), "no_suffix"))
    assert trace.format == "kineto"
    assert len(trace.operations) == 1


@pytest.mark.corpus
@needs_traces
def test_an_export_of_nsys_is_opened_too():
    assert read_any(FOLDER / "h200" / "probe_graph_node.sqlite").format.startswith("nsys")


def test_a_folder_is_read_in_the_order_of_its_ranks(tmp_path):
    for rank in (10, 2):
        written(tmp_path, document(*EVENTS, distributedInfo={"rank": rank}), f"a{20 - rank}.json")
    written(tmp_path, "no trace", "README.md")
    (tmp_path / "inside").mkdir()
    assert [trace.rank for trace in open_trace(tmp_path)] == [2, 10]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace_rank3.json", 3),
        ("rank-11.json.gz", 11),
        ("1719853884.5-TP-2.trace.json", 2),
        ("worker7_step_12.1694128201553.pt.trace.json", 7),
        ("host_4711.pt.trace.json", None),
        ("crank7.json", None),
    ],
)
def test_a_file_that_names_no_rank_has_that_of_its_name(tmp_path, name, rank):
    written(tmp_path, document(*EVENTS), name)
    assert [trace.rank for trace in read_folder(tmp_path)] == [rank]


def test_the_rank_in_a_file_goes_before_that_of_its_name(tmp_path):
    written(tmp_path, document(*EVENTS, distributedInfo={"rank": "5"}), "rank3.json")
    assert [trace.rank for trace in read_folder(tmp_path)] == [5]


def test_two_files_that_say_the_same_rank_are_an_error_that_names_both(tmp_path):
    for name in ("first.json", "second.json"):
        written(tmp_path, document(*EVENTS, distributedInfo={"rank": 3}), name)
    with pytest.raises(TraceFormatError, match=r"found first\.json and second\.json of rank 3: name one"):
        read_folder(tmp_path)


def test_our_ranges_tell_the_rank_where_no_name_does(tmp_path):
    for name, rank in (("off.json", 1), ("on.json", 0)):
        written(tmp_path, document(*EVENTS, RANGE | {"name": Range(rank=rank).text()}), name)
    assert [trace.rank for trace in read_folder(tmp_path)] == [0, 1]
    written(tmp_path, document(*EVENTS, RANGE | {"name": Range(rank=0).text()}), "off.json")
    with pytest.raises(TraceFormatError, match=r"found off\.json and on\.json of rank 0: name one"):
        read_folder(tmp_path)


def test_names_that_give_two_files_one_rank_tell_none(tmp_path):
    for name in ("TP-0-DP-0.json", "TP-0-DP-1.json"):
        written(tmp_path, document(*EVENTS), name)
    assert [trace.rank for trace in read_folder(tmp_path)] == [None, None]


@pytest.mark.parametrize("name", ["trace.sqlite", "trace.nsys-rep", "trace.gz", "trace"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_json_is_known_by_its_text_whatever_its_name(tmp_path, name, packed):
    text = document(*EVENTS).encode()
    assert len(read_any(written(tmp_path, gzip.compress(text) if packed else text, name)).operations) == 1


def test_a_folder_with_a_broken_rank_is_an_error_that_names_it(tmp_path):
    written(tmp_path, document(*EVENTS), "rank0.json")
    written(tmp_path, '{"traceEvents": null}', "rank1.json")
    with pytest.raises(TraceFormatError, match=r"rank1\.json: top level"):
        read_folder(tmp_path)


def tar_of(content):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("rank0.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b"ph,cat\n1,2\n", "found 'ph,cat"),
        (b'{"a": 1}', "found '{\"a\": 1}'"),
        (tar_of(b"[]"), "found a tar archive: unpack it and name the folder"),
        (gzip.compress(b"SQLite format 3\0rest"), "found a gzipped SQLite database: unpack it first"),
        (b"PK\x03\x04rest", "found a zip archive: unpack it first"),
        (b"\x1f\x8bno gzip", "found nothing that can be read"),
    ],
    ids=["empty", "csv", "other JSON", "tar", "gzipped SQLite", "zip", "broken gzip"],
)
def test_what_is_no_trace_is_said(tmp_path, content, message):
    path = written(tmp_path, content, "file")
    with pytest.raises(TraceFormatError, match=rf"file: byte 0: expected an SQLite export .*, {message}"):
        open_trace(path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(UsageError, match="none: no such file or directory"):
        open_trace(tmp_path / "none")
    with pytest.raises(TraceFormatError, match="expected a trace a rank, found none in 0 files"):
        open_trace(tmp_path)
