"""Joined run folders: records bit for bit, a file for each session, copies once, torn lines left out and said."""

import errno
import json
import os

import pytest

from dsv4bench.errors import RecordError, UsageError
from dsv4bench.results.merged import check_place, read_sessions, write_sessions
from dsv4bench.results.schema import encode
from dsv4bench.results.store import read_records
from tests.results.synthetic import record

# what an older version wrote, and what no version writes so: blanks, another order of keys, a key that nobody knows
OLD = '{"status": "skipped",  "reason": "why", "key": "old", "from_later": [1, 2.50]}'


def line(key, **changes):
    return encode(record(key=key, **changes))


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def texts(folder):
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def join(out, *folders):
    merged = read_sessions(folders)
    write_sessions(merged.sessions, out)
    return merged


def test_records_are_copied_bit_for_bit_one_file_a_session(tmp_path):
    one, two = line("a") + OLD + "\n", line("b")
    write(tmp_path / "x" / "one.jsonl", one)
    write(tmp_path / "y" / "deep" / "two.jsonl", two)
    merged = join(tmp_path / "all", tmp_path / "x", tmp_path / "y")
    assert texts(tmp_path / "all") == {"one.jsonl": one, "two.jsonl": two}
    assert [record.key for record in merged.records] == ["a", "old", "b"]
    assert (merged.copies, merged.measured_again, merged.warnings) == (0, [], [])


def test_files_of_one_name_stay_apart(tmp_path):
    for name in "xyz":
        write(tmp_path / name / "records.jsonl", line(name))
    write(tmp_path / "w" / "records-2.jsonl", line("w"))
    join(tmp_path / "all", *(tmp_path / name for name in "wxyz"))
    keys = {path.name: [one.key for one in read_records(path).records] for path in (tmp_path / "all").iterdir()}
    assert keys == {
        "records-2.jsonl": ["w"],
        "records.jsonl": ["x"],
        "records-3.jsonl": ["y"],
        "records-4.jsonl": ["z"],
    }


def test_a_cell_of_two_sessions_keeps_both_records(tmp_path):
    first, second = line("a", samples_ns={"step_period": [10]}), line("a", samples_ns={"step_period": [30]})
    write(tmp_path / "x" / "one.jsonl", first, line("b"), line("b"))  # twice in one session: not another session
    write(tmp_path / "y" / "two.jsonl", second)
    merged = join(tmp_path / "all", tmp_path / "x", tmp_path / "y")
    assert merged.measured_again == ["a"]
    found = [one.samples_ns["step_period"] for one in read_records(tmp_path / "all").records if one.key == "a"]
    assert sorted(found) == [[10], [30]]


@pytest.mark.parametrize("way", ["twice", "parent", "copied", "grown"])
def test_what_another_file_holds_bit_for_bit_is_joined_once(tmp_path, way):
    lines = [line(name) for name in "abc"]
    write(tmp_path / "x" / "in" / "r.jsonl", *lines[: 2 if way == "grown" else 3])  # grown: copied while it ran
    if way in ("copied", "grown"):
        write(tmp_path / "y" / "r.jsonl", *lines)
    again = {"twice": "x", "parent": "x/in"}.get(way, "y")
    merged = join(tmp_path / "all", tmp_path / "x", tmp_path / again)
    assert merged.copies == (2 if way == "grown" else 3)
    assert merged.measured_again == []
    joined = "".join(texts(tmp_path / "all").values())
    assert sorted(joined.splitlines(keepends=True)) == lines
    assert len(texts(tmp_path / "all")) == (2 if way == "grown" else 1)


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    torn = line("torn")[:120]
    file = write(tmp_path / "x" / "r.jsonl", line("a"), torn)
    only = write(tmp_path / "y" / "only.jsonl", torn)
    merged = join(tmp_path / "all", tmp_path / "x", tmp_path / "y")
    assert texts(tmp_path / "all") == {"r.jsonl": line("a")}
    left_out = "left out a torn last line (120 bytes)"
    assert merged.warnings == [f"{file}:2: {left_out}", f"{only}:1: {left_out}"]


def test_a_whole_last_line_gets_the_newline_that_it_lacks(tmp_path):
    write(tmp_path / "x" / "r.jsonl", line("a").rstrip("\n"))
    join(tmp_path / "all", tmp_path / "x")
    assert texts(tmp_path / "all") == {"r.jsonl": line("a")}


@pytest.mark.parametrize(
    ("text", "place"),
    [(line("a")[:50] + "\n" + line("b"), 1), (line("a") + '{"schema": 99, "key": "k", "status": "ok"}\n', 2)],
    ids=["broken-in-the-middle", "newer-schema"],
)
def test_what_is_no_record_stops_before_anything_is_made(tmp_path, text, place):
    write(tmp_path / "x" / "r.jsonl", text)
    with pytest.raises(RecordError, match=rf"r\.jsonl:{place}: "):
        read_sessions([tmp_path / "x"])


def test_nothing_to_join_is_one_line(tmp_path):
    (tmp_path / "x").mkdir()
    write(tmp_path / "y" / "r.jsonl", "")
    with pytest.raises(UsageError, match=r"x .*y: no records here"):
        read_sessions([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(UsageError, match=r"z: no such file or directory"):
        read_sessions([tmp_path / "x", tmp_path / "z"])


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("full", "the directory is not empty; expected a new one"),
        ("x/all", r"lies in .*x, which would hold its records twice; expected one outside"),
        ("x/in/../all/deep", r"lies in .*x, which would hold its records twice"),
        ("link/all", r"lies in .*x, which would hold its records twice"),
    ],
)
def test_a_place_that_would_mix_runs_is_refused(tmp_path, out, message):
    write(tmp_path / "x" / "in" / "r.jsonl", line("a"))
    write(tmp_path / "full" / "notes.txt", "mine")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(UsageError, match=f"--out .*{message}"):
        check_place(tmp_path / out, [tmp_path / "x"])


@pytest.mark.parametrize("out", ["new", "empty", "beside/x"])
def test_a_new_or_empty_folder_outside_is_taken(tmp_path, out):
    write(tmp_path / "x" / "r.jsonl", line("a"))
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / out, [tmp_path / "x", tmp_path / "x" / "r.jsonl"])
    join(tmp_path / out, tmp_path / "x")
    assert texts(tmp_path / out) == {"r.jsonl": line("a")}


def test_a_full_disk_leaves_nothing_that_looks_joined(tmp_path, monkeypatch):
    write(tmp_path / "x" / "a.jsonl", line("a"))
    write(tmp_path / "x" / "b.jsonl", line("b"))
    honest, flushed = os.fsync, []

    def full(file):
        flushed.append(file)
        if len(flushed) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(file)

    monkeypatch.setattr("dsv4bench.results.merged.os.fsync", full)
    with pytest.raises(UsageError, match=r"--out .*all: cannot write .*b\.jsonl: No space left on device"):
        join(tmp_path / "all", tmp_path / "x")
    assert texts(tmp_path / "all") == {}


def test_a_place_that_cannot_be_made_is_one_line(tmp_path):
    write(tmp_path / "x" / "r.jsonl", line("a"))
    for out in ("x/r.jsonl/all", "x/r.jsonl"):
        with pytest.raises(UsageError, match=r"--out .*: cannot write .*r\.jsonl.*: (Not a directory|File exists)"):
            join(tmp_path / out, tmp_path / "x")


def test_a_thousand_records_are_joined_as_they_are(tmp_path):
    lines = [json.dumps({"key": str(one), "status": "skipped", "reason": "r"}) + "\n" for one in range(1000)]
    for number in range(10):
        write(tmp_path / "x" / f"{number}.jsonl", *lines[number::10])
    join(tmp_path / "all", tmp_path / "x")
    assert sorted("".join(texts(tmp_path / "all").values()).splitlines(keepends=True)) == sorted(lines)
