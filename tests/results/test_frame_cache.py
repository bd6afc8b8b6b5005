"""Run folders as one frame: the same from the cache as from the records, and never wrong whatever lies in the cache."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from dsv4bench.errors import RecordError, UsageError
from dsv4bench.results import frame_cache
from dsv4bench.results.frame import frame
from dsv4bench.results.frame_cache import cache_folder, read_frame
from dsv4bench.results.schema import encode
from dsv4bench.results.store import read_lines, read_records
from tests.results.synthetic import lost, record, sweep

COMMITTED = Path(__file__).parents[2] / "results"


@pytest.fixture
def runs(tmp_path):
    """Two run folders whose files have settled."""
    first = [replace(one, created=f"2026-11-30T12:00:{place:02d}+00:00") for place, one in enumerate(sweep())]
    write(tmp_path / "runs" / "a" / "r.jsonl", first)
    write(tmp_path / "runs" / "b" / "r.jsonl", [record(2), lost("failed", "no", created="2026-11-30T12:00:05+00:00")])
    return tmp_path / "runs"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder for the cache; files written just now may be kept at once."""
    monkeypatch.setattr(frame_cache, "SETTLED_NS", -(10**18))
    return tmp_path / "cache"


def write(file, records):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(map(encode, records)))


def kept(cache):
    return sorted(cache.glob("*"))


def reads(monkeypatch):
    """Return the list to which every file is added whose records are read."""
    seen = []
    monkeypatch.setattr(frame_cache, "read_lines", lambda file, *how: seen.append(file.name) or read_lines(file, *how))
    return seen


def test_a_second_reading_is_the_first_one_without_the_records(runs, cache, monkeypatch):
    first = read_frame([runs], cache).frame
    assert_frame_equal(first.drop(columns="run"), frame(read_records(runs).records), check_like=True)
    seen = reads(monkeypatch)
    assert_frame_equal(read_frame([runs], cache).frame, first)
    assert seen == []
    assert [file.suffix for file in kept(cache)] == [".parquet"]


def test_every_record_says_of_which_run_it_is(runs, cache, monkeypatch):
    """As the folders were named, also where another name of them filled the cache."""
    first = read_frame([runs], cache).frame
    assert dict(first["run"].value_counts()) == {str(runs / "a"): 12, str(runs / "b"): 2}
    assert set(first[first["requests"] == 2]["run"]) == {str(runs / "b")}
    monkeypatch.chdir(runs)
    found = read_frame([Path("b/r.jsonl"), Path()], cache).frame
    assert dict(found["run"].value_counts()) == {"a": 12, "b/r.jsonl": 2}
    seen = reads(monkeypatch)
    assert set(read_frame([Path("../runs")], cache).frame["run"]) == {"../runs/a", "../runs/b"}
    assert seen == []


def test_the_committed_runs_are_one_typed_frame(cache):
    paths = [COMMITTED / name for name in ("h200-prefix-64k", "h200-kernels", "h200-replay")]
    first, second = (read_frame(paths, cache).frame for _ in range(2))
    assert_frame_equal(first, second)
    assert first["created"].is_monotonic_increasing
    types = {name: str(kind) for name, kind in first.dtypes.items()}
    assert {name: types[name] for name in ("key", "created", "kv", "graph", "requests", "seed", "launches")} == {
        "key": "string", "created": "datetime64[ns, UTC]", "kv": "category", "graph": "boolean", "requests": "Int64",
        "seed": "Int64", "launches": "Int64",
    }  # fmt: skip
    assert {kind for name, kind in types.items() if name.endswith("_ns")} == {"float64"}
    assert {kind for name, kind in types.items() if name.endswith(("_bytes", "_samples"))} == {"Int64"}
    assert "object" not in types.values()


def test_only_what_changed_is_read_again(runs, cache, monkeypatch):
    read_frame([runs], cache)
    with (runs / "b" / "r.jsonl").open("a") as file:
        file.write(encode(record(4, key="new", created="2026-12-01T00:00:00+00:00")))
    write(runs / "c" / "new.jsonl", [record(32, key="newer", created="2026-12-02T00:00:00+00:00")])
    seen = reads(monkeypatch)
    found = read_frame([runs], cache).frame
    assert list(found["key"])[-2:] == ["new", "newer"]
    assert seen == ["r.jsonl", "new.jsonl"]
    shutil.rmtree(runs / "a")
    assert len(read_frame([runs], cache).frame) == 4
    assert len(kept(cache)) == 1


def test_a_file_of_the_same_size_and_time_is_another_file(runs, cache):
    file = runs / "b" / "r.jsonl"
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    assert "19" not in set(read_frame([runs], cache).frame["requests"].astype(str))
    file.write_text(file.read_text().replace('"requests":2', '"requests":9'))
    os.utime(file, ns=times)
    assert 9 in set(read_frame([runs], cache).frame["requests"].dropna())


def test_a_file_that_has_only_just_changed_is_not_kept(runs, cache, monkeypatch):
    monkeypatch.setattr(frame_cache, "SETTLED_NS", 10**12)
    assert len(read_frame([runs], cache).frame) == 14
    seen = reads(monkeypatch)
    assert len(read_frame([runs], cache).frame) == 14
    assert len(seen) == 2


def test_what_another_source_kept_is_read_again(runs, cache, monkeypatch):
    read_frame([runs], cache)
    monkeypatch.setattr(frame_cache, "_source", lambda: "another version")
    seen = reads(monkeypatch)
    assert len(read_frame([runs], cache).frame) == 14
    assert len(seen) == 2


DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "no-tail": lambda data: data[:-9],
    "text": lambda data: b"not parquet",
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_torn_cache_is_made_anew(runs, cache, damage):
    expected = read_frame([runs], cache).frame
    (file,) = kept(cache)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert_frame_equal(read_frame([runs], cache).frame, expected)
    assert len(file.read_bytes()) == len(whole)


def test_no_flipped_byte_of_the_cache_reaches_the_frame(runs, cache):
    expected = read_frame([runs], cache).frame
    (file,) = kept(cache)
    whole = file.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 12)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert_frame_equal(read_frame([runs], cache).frame, expected)


def test_where_nothing_can_be_written_there_is_no_cache(runs, cache):
    cache.write_text("a file is no folder")
    assert len(read_frame([runs], cache).frame) == 14
    assert cache.read_text() == "a file is no folder"


def test_a_torn_line_is_said_every_time(runs, cache):
    (runs / "b" / "torn.jsonl").write_text(encode(record(key="torn"))[:-20])
    for _ in range(2):
        (warning,) = read_frame([runs], cache).warnings
        assert "torn.jsonl:1: left out a torn last line" in warning


def test_only_the_sets_that_were_asked_for_last_are_kept(runs, cache, monkeypatch):
    monkeypatch.setattr(frame_cache, "MOST_FILES", 2)
    for paths in ([runs], [runs / "a"], [runs / "b"], [runs / "a", runs / "b"]):
        read_frame(paths, cache)
    assert len(kept(cache)) == 2


def test_a_file_that_two_paths_lead_to_is_read_once(runs, cache):
    assert len(read_frame([runs, runs / "a", runs / "a" / "r.jsonl"], cache).frame) == 14


def test_errors_are_those_of_the_records(tmp_path, cache):
    with pytest.raises(UsageError, match="no such file"):
        read_frame([tmp_path / "none"], cache)
    (tmp_path / "newer.jsonl").write_text('{"schema": 9}')
    with pytest.raises(RecordError, match=r"newer\.jsonl:1: written with schema 9"):
        read_frame([tmp_path / "newer.jsonl"], cache)


def test_nothing_is_an_empty_frame(tmp_path, cache):
    (tmp_path / "empty").mkdir()
    assert read_frame([tmp_path / "empty"], cache).frame.empty
    assert isinstance(read_frame([], cache).frame, pd.DataFrame)


def test_the_cache_lies_below_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "dsv4bench" / "frames"
