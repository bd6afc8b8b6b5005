"""Folders of shards: side by side in one sweep, none taken twice, nothing of another run among them."""

from pathlib import Path

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.results.shard_folders import begun_shard, new_shard, shard_folder
from dsv4bench.results.store import Store, new_directory, read_records
from tests.results.synthetic import record


def keys(folder):
    return sorted(one.key for one in read_records(folder).records)


def write(folder, *names):
    with Store(folder) as store:
        for name in names:
            store.append(record(key=name))


@pytest.mark.parametrize(
    ("directory", "folder"),
    [
        ("sweep", "sweep/shard-2-of-4"),
        ("sweep/shard-2-of-4", "sweep/shard-2-of-4"),
        ("sweep/shard-3-of-4", "sweep/shard-3-of-4/shard-2-of-4"),
    ],
)
def test_a_shard_writes_in_a_folder_that_has_its_name(directory, folder):
    assert shard_folder(Path(directory), 2, 4) == Path(folder)


def test_a_shard_is_known_from_inside_its_folder(tmp_path, monkeypatch):
    (tmp_path / "shard-1-of-2").mkdir()
    monkeypatch.chdir(tmp_path / "shard-1-of-2")
    assert shard_folder(Path(), 1, 2) == Path()


def test_shards_lie_side_by_side_and_are_read_together(tmp_path):
    write(new_shard(tmp_path / "sweep", 1, 2), "a")
    write(new_shard(tmp_path / "sweep", 2, 2), "b", "c")
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == ["shard-1-of-2", "shard-2-of-2"]
    assert keys(tmp_path / "sweep") == ["a", "b", "c"]
    assert keys(tmp_path / "sweep" / "shard-2-of-2") == ["b", "c"]


def test_a_shard_that_has_begun_is_not_begun_again(tmp_path):
    write(new_shard(tmp_path, 1, 2), "a")
    with pytest.raises(UsageError, match=r"--out .*shard-1-of-2: the directory is not empty \(go on with --resume"):
        new_shard(tmp_path, 1, 2)
    assert keys(tmp_path) == ["a"]


@pytest.mark.parametrize("before", ["whole-run", "other-count"])
def test_a_folder_with_records_of_another_run_is_not_touched(tmp_path, before):
    write(new_directory(tmp_path) if before == "whole-run" else new_shard(tmp_path, 1, 8), "old")
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"--out .*: .*records-.*\.jsonl is of no shard of 4 \(go on with --resume"):
        new_shard(tmp_path, 1, 4)
    assert sorted(tmp_path.rglob("*")) == there


def test_logs_of_a_scheduler_may_lie_in_the_sweep(tmp_path):
    (tmp_path / "slurm-12_1.out").write_text("[1/3] batch 1\n")
    write(new_shard(tmp_path, 1, 2), "a")
    assert keys(tmp_path) == ["a"]


def test_a_resumed_shard_has_a_new_file_in_its_folder(tmp_path):
    write(new_shard(tmp_path, 1, 2), "a")
    write(begun_shard(tmp_path, 1, 2), "b")
    write(begun_shard(tmp_path / "shard-1-of-2", 1, 2), "c")
    assert len(list((tmp_path / "shard-1-of-2").glob("*.jsonl"))) == 3
    assert keys(tmp_path) == ["a", "b", "c"]


def test_a_run_that_was_not_sharded_goes_on_in_shards(tmp_path):
    write(new_directory(tmp_path), "old")
    write(begun_shard(tmp_path, 2, 2), "new")
    assert keys(tmp_path) == ["new", "old"]
    assert keys(tmp_path / "shard-2-of-2") == ["new"]


@pytest.mark.parametrize("way", [new_shard, begun_shard])
def test_a_place_that_cannot_be_made_is_one_clear_line(tmp_path, way):
    (tmp_path / "file").write_text("")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "shard-1-of-2").write_text("")
    for place in ("file", "sweep"):
        with pytest.raises(UsageError, match=rf"--(out|resume) .*{place}.*: (cannot make|no such) (this )?directory"):
            way(tmp_path / place, 1, 2)


def test_a_sweep_that_is_not_there_is_not_resumed(tmp_path):
    with pytest.raises(UsageError, match=r"--resume .*none: no such directory"):
        begun_shard(tmp_path / "none", 1, 2)
    assert list(tmp_path.iterdir()) == []
