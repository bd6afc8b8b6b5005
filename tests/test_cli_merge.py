"""`dsv4bench merge` from end to end: shards joined, and what is missing of the plans of their commands."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4bench.cli_merge_plan import plans_left
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.profiling.session import Session
from dsv4bench.results.schema import encode
from dsv4bench.results.store import NO_TIME_LEFT, read_records
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.kernel_cells import KernelArguments, kernel_cells
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.shard import Shard
from tests.command_line import HERE, command_line, tiny_config
from tests.results.kernel_records import unable
from tests.results.synthetic import record
from tests.test_startup import BLOCK, python


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return command_line(monkeypatch, capsys)


def ran(typed, device="cpu", shard=None, commit="c0ffee", **arguments):
    """Return the records of a prefill that measured nothing, of one shard or of all; `arguments` are what was typed."""
    argv = ("dsv4bench", "prefill", *typed.split(), *(("--shard", str(shard)) if shard else ()))
    plan = cells(prefill_options(PrefillArguments(**arguments), ran_on=device))
    session = Session(torch.device(device), None, None, None, HERE | {"commit": commit}, argv)
    share = shard.of(plan) if shard else plan
    return [unmeasured(cell, session, "skipped", "not run here") for group in share for cell in group]


def kept(name, records):
    folder = Path(name)
    folder.mkdir(parents=True)
    (folder / f"{folder.name}.jsonl").write_text("".join(map(encode, records)))


SWEEP = {"batch": "1..8", "kv": "v4,v41"}  # 8 groups of 2 launch modes x 2 values of reuse
TYPED = "--batch 1..8 --kv v4,v41"


def shards(count, device="cpu"):
    return [ran(f"{TYPED} --out {n}", device, Shard(n, count), **SWEEP) for n in range(1, count + 1)]


# joining


def test_joined_shards_are_what_one_run_is(run):
    for number, own in enumerate(shards(3), start=1):
        kept(f"part/{number}", own)
    found = run("merge", "part/1", "part/2", "part/3", "--out", "all")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("Joined in all: 32 records of 3 sessions\n")
    assert "Plan of dsv4bench prefill --batch 1..8 --kv v4,v41: 32 cells, each with a record" in found.out
    assert max(map(len, found.out.splitlines())) <= 80
    whole = ran(TYPED, **SWEEP)
    assert {one.key for one in read_records(Path("all")).records} == {one.key for one in whole}
    assert {path.name: path.read_bytes() for path in Path("all").iterdir()} == {
        f"{number}.jsonl": Path(f"part/{number}/{number}.jsonl").read_bytes() for number in (1, 2, 3)
    }


def test_a_shard_that_is_missing_is_named_with_its_cells_and_what_runs_them(run):
    for number, own in enumerate(shards(3), start=1):
        kept(f"part/{number}", own)
    shutil.rmtree("part/2")
    found = run("merge", "part", "--out", "all")
    assert found.code == 3
    words = " ".join(found.out.split())
    groups = {(one.batch["requests"], one.variant["kv"]) for one in shards(3)[1]}
    assert all(f"batch {batch}, kv {kv} all 4 2/3" in words for batch, kv in groups)
    assert found.out.count(" 2/3\n") == len(groups) == 3
    assert "32 cells, 12 without a record" in words
    told, command = found.err.splitlines()
    assert (told, command.split()[-2:]) == ("what is missing runs with", ["--resume", "all"])


def test_a_torn_line_and_its_cell_are_both_told(run):
    kept("part", ran(TYPED, **SWEEP))
    file = Path("part/part.jsonl")
    file.write_bytes(file.read_bytes()[:-30])
    found = run("merge", "part", "--out", "all", "--json")
    assert found.code == 3
    assert found.err.startswith("warning: part/part.jsonl:32: left out a torn last line (")
    seen = json.loads(found.out)
    assert (seen["warnings"] != [], seen["sessions"][0]["records"], seen["copies"]) == (True, 31, 0)
    (plan,) = seen["plans"]
    assert plan["missing"] == [
        {"what": "batch 8, kv v41", "cells": ["mode tape, reuse on"], "planned": 4, "shard": None}
    ]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("merge nowhere --out all", "nowhere: no such file or directory"),
        ("merge empty --out all", "empty: no records here"),
        ("merge part --out part/all", "--out part/all: lies in part, which would hold its records twice"),
        ("merge part --out other", "--out other: the directory is not empty; expected a new one"),
        ("merge part --out part/part.jsonl", "--out part/part.jsonl: lies in part"),
        ("merge part --out all --format tabel", "--format tabel: expected one of table, md, csv, json, jsonl"),
    ],
)
def test_what_cannot_be_joined_is_one_line_and_exit_code_2(run, typed, expected):
    Path("empty").mkdir()
    kept("part", [record()])
    kept("other", [record()])
    before = sorted(Path().rglob("*"))
    assert run(*typed.split()).slip.startswith(expected)
    assert sorted(Path().rglob("*")) == before


def test_runs_are_joined_without_torch_and_the_plan_is_then_not_known(tmp_path):
    folder = tmp_path / "part"
    folder.mkdir()
    (folder / "r.jsonl").write_text("".join(map(encode, ran(TYPED, **SWEEP))))
    arguments = ["dsv4bench", "merge", str(folder), "--out", str(tmp_path / "all")]
    said = python(
        BLOCK.format(without=("torch", "triton"), names=["dsv4bench.cli"])
        + f"sys.argv = {arguments}\nimport dsv4bench.cli\ndsv4bench.cli.main()"
    )
    assert " ".join(said.split()).endswith("not known, so that cells may be missing torch is not installed here")
    assert (tmp_path / "all" / "r.jsonl").read_bytes() == (folder / "r.jsonl").read_bytes()


# plans


def left(records):
    """Return (cells, missing cells) of each plan, or why it is not known."""
    return [one.reason or (one.cells, one.missing_cells) for one in plans_left(records)]


def test_a_plan_of_a_gpu_is_known_on_a_laptop(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    records = ran("--batch 1..4", "cuda", batch="1..4")
    assert records[0].engine == "gpu"
    assert left(records) == [(12, 0)]
    assert left(records[4:]) == [(12, 4)]


def test_a_cell_counts_as_measured_whatever_the_commit_and_the_command():
    two = ran("--batch 2 --quick -q", batch="2", quick=True)
    rest = [one for one in ran("--batch 1,2 --quick", commit="beef", batch="1,2", quick=True) if one.batch["rows"] == 8]
    assert left([*rest, *two]) == [(8, 0), (4, 0)]
    assert left(rest) == [(8, 4)]


@pytest.mark.parametrize("other", ["--batch 1..8 --kv v4,v41 -q", "--kv v4 --batch 1,2,4,8 --kv v41"])
def test_one_plan_typed_in_two_ways_is_one_plan(other):
    first, second = Shard(1, 2), Shard(2, 2)
    assert left([*ran(TYPED, shard=first, **SWEEP), *ran(other, shard=second, **SWEEP)]) == [(32, 0)]


@pytest.mark.parametrize(("axis", "values"), [("path", ("sparse", "recipe")), ("kv", ("v4", "v41"))])
def test_missing_groups_are_told_apart_by_every_switch_that_pools_are_made_for(axis, values):
    own = ran(f"--{axis} {','.join(values)}", **{axis: ",".join(values)})
    (plan,) = plans_left(own[:1])
    assert [group.what for group in plan.missing] == [f"{axis} {value}" for value in values]


def test_other_sweeps_are_simply_joined():
    records = [*ran("--batch 1", batch="1"), *ran("--batch 2 --prefix 8", batch="2", prefix="8")[:3]]
    assert left(records) == [(4, 0), (4, 1)]


def test_what_a_time_limit_left_out_is_missing():
    records = ran("--batch 1,2", batch="1,2")
    assert left([*records[:4], *(replace(one, reason=NO_TIME_LEFT) for one in records[4:])]) == [(8, 4)]


def test_shards_are_named_only_where_all_agree_how_many_there_are():
    one = ran(TYPED, shard=Shard(1, 2), **SWEEP)
    (known,) = plans_left(one)
    assert {group.shard for group in known.missing} == {"2/2"}
    (unknown,) = plans_left([*one, *ran(TYPED, shard=Shard(2, 3), **SWEEP)])
    assert {group.shard for group in unknown.missing} == {None}


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "no command is known"),
        (["dsv4bench", "ab", "prefill", "--a", "reuse=off"], "only prefill and kernels have a plan"),
        (["dsv4bench", "prefill", "--of-tomorrow"], "No such option: --of-tomorrow"),
        (["dsv4bench", "prefill", "--batch", "0"], "--batch 0: expected at least 1"),
        (["dsv4bench", "prefill", "--geometry", "gone.json"], "--geometry gone.json: "),
        (["dsv4bench", "prefill", "--batch", "2"], "4 cells of its records would not be in it here"),
    ],
    ids=["none", "ab", "newer-option", "wrong-value", "lost-file", "other-cells"],
)
def test_a_plan_that_cannot_be_worked_out_again_says_why(argv, reason):
    (only,) = plans_left([replace(one, argv=argv) for one in ran("--batch 1", batch="1")])
    assert only.reason.startswith(reason)
    assert (only.cells, only.missing) == (0, ())


def test_a_projection_is_no_record_of_a_plan():
    records = ran("--batch 1,2", batch="1,2")
    modelled = [replace(one, label="modelled", engine="gpu") for one in records]
    assert left([*records, *modelled]) == [(8, 0)]


def test_a_file_that_the_plan_needs_is_looked_for_where_the_command_says(run, tmp_path):
    tiny_config(tmp_path)
    kept("part", ran("--geometry tiny.json --batch 1,2", geometry="tiny.json", batch="1,2"))
    assert "8 cells, each with a record" in " ".join(run("merge", "part", "--out", "all").out.split())
    (tmp_path / "tiny.json").unlink()
    found = run("merge", "part", "--out", "again")
    assert found.code == 0
    assert "not known, so that cells may be missing --geometry tiny.json: " in " ".join(found.out.split())


# plans of kernels


def kernels(provider, rows=("2", "3")):
    """Return the records of a run of two kernels, one a cell."""
    typed = KernelArguments(("rms_norm", "rope"), rows, case=(), provider=(provider,), device="cpu")
    argv = ["dsv4bench", "kernels", "rms_norm", "rope", "--rows", ",".join(rows), "--provider", provider]
    return [
        unable(
            cell.provider, name=cell.kernel, case=cell.case, rows=cell.rows, group=cell.group, argv=argv, engine="tape"
        )
        for group in kernel_cells(typed, ran_on="cpu")
        for cell in group
    ]


def test_every_named_provider_of_a_kernel_is_asked_for():
    whole = kernels("torch,triton")
    assert left(whole) == [(len(whole), 0)]
    lost = [one for one in whole if one.kernel["provider"] == "triton" and one.kernel["rows"] == 3]
    assert left([one for one in whole if one not in lost]) == [(len(whole), len(lost))]


def test_auto_asks_for_the_providers_that_ran_on_whatever_machine():
    """Here auto is torch; the records are of a machine where it was two others."""
    whole = [one for one in kernels("torch,triton") if one.kernel["provider"] == "triton"]
    own = [replace(one, argv=[*one.argv[:-1], "auto"]) for one in whole]
    assert left(own) == [(len(own), 0)]
    (only,) = plans_left(own[1:])
    assert [(group.cells, group.planned) for group in only.missing] == [(("triton",), 1)]
    (only,) = plans_left([one for one in own if one.kernel["name"] == "rms_norm"])
    assert all(group.what.startswith("rope") and group.planned == 1 for group in only.missing)
    assert len(only.missing) == sum(one.kernel["name"] == "rope" for one in own)
