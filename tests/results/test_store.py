"""The store: nothing finished is lost, nothing is overwritten, and a torn line is told from a broken file."""

import errno
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsv4bench.errors import RecordError, UsageError
from dsv4bench.results import store as store_module
from dsv4bench.results.schema import encode
from dsv4bench.results.store import finished_keys, open_store, read_records, resume_store, run_directory
from tests.results.synthetic import lost, record

ROOT = Path(__file__).parents[2]
ENDLESS_WRITER = """
import sys
from pathlib import Path
from dsv4bench.results.store import open_store
from tests.results.synthetic import record
with open_store(Path(sys.argv[1])) as store:
    number = 0
    while True:
        store.append(record(key=str(number)))
        print(number, flush=True)
        number += 1
"""

WRITER = """
import sys
from pathlib import Path
from dsv4bench.results.store import resume_store
from tests.results.synthetic import record
sys.stdin.read()
for turn in range(3):
    with resume_store(Path(sys.argv[1])) as store:
        for number in range(10):
            store.append(record(key=f"{sys.argv[2]}-{turn}-{number}"))
"""


def keys(reading):
    return [one.key for one in reading.records]


def test_what_was_appended_is_read_in_order(tmp_path):
    with open_store(tmp_path / "run") as store:
        for name in "abc":
            store.append(record(key=name))
        assert keys(read_records(tmp_path / "run")) == ["a", "b", "c"]
    assert str(os.getpid()) in store.path.name
    assert keys(read_records(store.path)) == ["a", "b", "c"]


def test_a_second_process_writes_a_file_of_its_own(tmp_path):
    with open_store(tmp_path) as first:
        first.append(record(key="old", created="2026-01-01"))
    with resume_store(tmp_path) as second, resume_store(tmp_path) as third:
        third.append(record(key="newest", created="2026-01-03"))
        second.append(lost("failed", "a reason", key="newer", created="2026-01-02"))
    assert len({first.path, second.path, third.path}) == 3
    assert keys(read_records(tmp_path)) == ["old", "newer", "newest"]
    assert finished_keys(tmp_path) == {"old", "newer", "newest"}


def test_files_made_within_one_second_are_read_in_the_order_of_their_making(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "TIME_FORMAT", "then")
    names = [f"{number:02}" for number in range(12)]
    for name in names:
        with resume_store(tmp_path) as store:
            store.append(record(key=name, created="2026-01-01"))
    assert keys(read_records(tmp_path)) == names


def test_files_of_runs_below_a_directory_are_read(tmp_path):
    for name in ("b", "a"):
        with open_store(tmp_path / name) as store:
            store.append(record(key=name))
    assert keys(read_records(tmp_path)) == ["a", "b"]


def test_a_killed_process_loses_no_finished_record(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path / "run")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process, process.stdout:
        for line in process.stdout:
            if int(line) >= 20:
                break
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    finished = int(rest[-1]) if rest else 20
    found = keys(read_records(tmp_path / "run"))
    assert found[: finished + 1] == [str(number) for number in range(finished + 1)]
    assert len(found) <= finished + 2  # the one that was written but not yet reported


def test_four_processes_write_into_one_directory_at_once(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], cwd=ROOT, stdin=subprocess.PIPE)
        for name in "abcd"
    ]
    for one in writers:
        one.stdin.close()  # all begin together
    while any(one.poll() is None for one in writers):
        read_records(tmp_path)  # at any moment no more than the last line of a file is torn
    assert [one.returncode for one in writers] == [0] * 4
    found = keys(read_records(tmp_path))
    assert sorted(found) == [f"{name}-{turn}-{number}" for name in "abcd" for turn in range(3) for number in range(10)]
    assert len(list(tmp_path.glob("*.jsonl"))) == 12


def test_a_name_that_another_machine_took_first_is_left_to_it(tmp_path, monkeypatch):
    whole_open, taken = os.open, []

    def late(path, flags, *mode):
        if not taken:
            taken.append(Path(path))
            taken[0].write_text("theirs")
        return whole_open(path, flags, *mode)

    monkeypatch.setattr(store_module.os, "open", late)
    with open_store(tmp_path / "run") as store:
        store.append(record(key="ours"))
    assert taken[0].read_text() == "theirs"
    assert store.path.stem == f"{taken[0].stem}_002"


@pytest.mark.parametrize("cut", [1, 10, 200], ids=lambda cut: f"{cut}-bytes-short")
def test_a_torn_last_line_is_left_out_with_a_warning(tmp_path, cut):
    file = tmp_path / "r.jsonl"
    file.write_text(encode(record(key="whole")) + encode(record(key="torn"))[: -1 - cut])
    reading = read_records(file)
    assert keys(reading) == ["whole"]
    assert len(reading.warnings) == 1
    assert f"{file}:2" in reading.warnings[0]


def test_a_last_line_that_lacks_only_its_newline_is_whole(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text(encode(record(key="whole")).rstrip("\n"))
    assert (keys(read_records(file)), read_records(file).warnings) == (["whole"], [])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (encode(record())[:50] + "\n" + encode(record()), 1),
        (encode(record()) + "\n" + encode(record())[:50] + "\n", 3),
        (encode(record()) + '{"schema": 9}', 2),
    ],
    ids=["torn-middle", "broken-last-with-newline", "newer-schema-last"],
)
def test_any_other_broken_line_is_an_error_with_its_place(tmp_path, text, line):
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(RecordError, match=rf"r\.jsonl:{line}: "):
        read_records(tmp_path)


def test_a_directory_that_holds_something_is_not_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"not empty .*--resume"):
        open_store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--out .*file/run: cannot make this directory: Not a directory"):
        open_store(tmp_path / "file" / "run")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store_module.os, "open", refuse)
    with pytest.raises(UsageError, match="cannot write a results file here: Permission denied"):
        open_store(tmp_path / "run")


def test_a_missing_path_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_records(tmp_path / "none")
    with pytest.raises(UsageError, match=r"--resume .*no such directory"):
        resume_store(tmp_path / "none")


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    whole_write = os.write

    def half(file, data):
        whole_write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_store(tmp_path) as store:
        store.append(record(key="before"))
        monkeypatch.setattr(store_module.os, "write", half)
        with pytest.raises(UsageError, match="No space left"):
            store.append(record(key="lost"))
        monkeypatch.setattr(store_module.os, "write", whole_write)
        store.append(record(key="after"))
    assert keys(read_records(tmp_path)) == ["before", "after"]


def test_a_write_in_parts_makes_one_line(tmp_path, monkeypatch):
    whole_write = os.write
    monkeypatch.setattr(store_module.os, "write", lambda file, data: whole_write(file, data[:100]))
    with open_store(tmp_path) as store:
        store.append(record(key="long"))
    assert keys(read_records(tmp_path)) == ["long"]


def test_a_record_is_on_the_disk_when_append_returns(tmp_path, monkeypatch):
    with open_store(tmp_path) as store:
        seen = []
        monkeypatch.setattr(store_module.os, "fsync", lambda _: seen.append(keys(read_records(tmp_path))))
        store.append(record(key="one"))
    assert seen == [["one"]]


def test_a_run_is_called_by_its_utc_time_and_name():
    noon = datetime(2026, 11, 30, 12, 0, 5, tzinfo=UTC)
    assert run_directory("prefill", noon) == Path("results/20261130T120005Z-prefill")
