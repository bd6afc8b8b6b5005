"""`dsv4bench repro`: what it prints makes the row again, to the same key."""

import shlex
import subprocess
from dataclasses import replace

import pytest

from dsv4bench import cli_prefill
from dsv4bench.cli_repro_run import own_group, script, typed_values
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.profiling.session import open_session
from dsv4bench.results.schema import encode
from dsv4bench.results.store import NO_TIME_LEFT
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.options import prefill_options
from tests.command_line import command_line
from tests.results.synthetic import GPU, lost, record, with_side, with_variant

RUNS = [
    "--batch 1..2 --extend 4,8 --prefix 8 --kv v4,v41 --no-graph --samples 3",
    "--batch=1,2 --extend 4 --prefix 8,16 --dep-simulated 1,2 --reuse on --quick",
    "--batch 2 --extend 4 --prefix 8 --chunk 64,128 --replay off,on --path sparse,recipe --seed 3",
    "--extend 4 --batch 1 --prefix 8 --batch 4 --provider torch --buckets 4,16 --compressor both",
]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return command_line(monkeypatch, capsys)


def commands(text):
    return [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture
def plan(run, monkeypatch):
    """Return the groups of cells that a command would run."""
    asked = []
    monkeypatch.setattr(cli_prefill, "run_prefill", lambda request: asked.append(request.typed) or 0)

    def groups(words):
        assert run(*words).code == 0
        return cells(prefill_options(asked[-1]))

    return groups


def test_pools_of_a_fraction_are_sized_for_all_batches_so_all_of_them_stay():
    argv = ["dsv4bench", "prefill", "--batch", "1,8", "--recipe", "dep4"]
    assert own_group(with_variant(record(argv=argv), **{"mem-fraction": 0.7, "recipe": "dep4"})) == argv
    assert own_group(record(argv=argv))[3] == "1"


@pytest.mark.parametrize("typed", RUNS)
def test_the_command_makes_the_row_again_with_its_group_and_nothing_else(run, plan, typed, tmp_path):
    argv = ["dsv4bench", "prefill", "--device", "cpu", *typed.split()]
    session = open_session("cpu", None, False, tuple(argv))
    groups = plan(argv[1:])
    for group in groups:
        row = unmeasured(group[-1], session, "skipped", "not run here")
        (tmp_path / "r.jsonl").write_text(encode(row))
        checkout, again = commands(run("repro", row.key[:10], "r.jsonl").out)
        assert checkout == ["git", "checkout", row.environment["commit"]]
        assert plan(again[1:]) == (group,)
        assert row.key in {cell.key(session.commit) for cell in group}
    assert len(groups) > 1


COMMANDS = {
    "range": ("prefill --batch 1..64 --samples 10 --out x", "prefill --batch 8 --samples 10"),
    "one-value": ("prefill --batch 8 --prefix 8k --resume x", "prefill --batch 8 --prefix 8k"),
    "equals": ("prefill -q --batch=1,8 --reuse both", "prefill -q --batch 8 --reuse both"),
    "repeated": ("prefill --batch 1 --graph --batch 8", "prefill --batch 8 --graph"),
    "switches": (
        "prefill --kv v4,v41 --provider torch,triton --batch 8",
        "prefill --kv v4 --provider triton --batch 8",
    ),
    "turns": ("prefill --batch 8 --reuse both --compressor both", "prefill --batch 8 --reuse both --compressor both"),
    "kernels": ("kernels dequant c1 --rows 1,2 --out x", "kernels dequant c1 --rows 1,2"),
    "ab": (
        "ab prefill --batch 1..64 --a reuse=off --b reuse=on",
        "ab prefill --batch 1..64 --a reuse=off --b reuse=on",
    ),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("typed", "alone"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_is_narrowed_to_the_group_of_the_record(typed, alone):
    one = replace(with_variant(record(8), kv="v4"), argv=["dsv4bench", *typed.split()] if typed else [])
    assert own_group(one)[1:] == alone.split()


def test_values_are_found_however_they_were_typed():
    assert typed_values(["--src", "a", "--src=b", "--other", "c"], "src") == ["a", "b"]
    assert typed_values(["--src"], "src") == []


@pytest.mark.parametrize(
    ("side", "aa", "typed", "name", "alone", "checkout"),
    [
        ("a", False, "--a-src HEAD~3 --b-src x", "bench@HEAD~3", "--a-src {} --b-src x", None),
        ("b", False, "--a-src=x --b-src=../sgl@main", "sgl@main", "--a-src=x --b-src=../sgl@{}", None),
        ("b", True, "--a-src main --aa", "bench@main", "--a-src {} --aa", None),
        ("a", False, "--a-src ../sgl --b-src x", "sgl", "--a-src ../sgl --b-src x", "git -C ../sgl checkout {}"),
        ("a", False, "--a-src main@{1} --b-src x", "bench@main@{1}", "--a-src {} --b-src x", None),
    ],
    ids=["revision", "of a folder", "A/A", "folder", "reflog"],
)
def test_a_side_is_made_again_from_its_commit(side, aa, typed, name, alone, checkout):
    commit = "d" * 40
    here = GPU | {"commit": None, "src": {"name": name, "commit": commit}}
    argv = ["dsv4bench", "ab", "prefill", *typed.split()]
    one = with_side(record(environment=here, argv=argv), side, ("", ""), aa=aa)
    commands = [line for line in script(one) if not line.startswith("#")]
    assert commands == [
        *([checkout.format(commit)] if checkout else []),
        f"dsv4bench ab prefill {alone.replace('{}', commit)}",
    ]


NASTY = "x; touch owned\ntouch owned\x1b[31m $(touch owned)"


@pytest.mark.parametrize("commit", [NASTY, None])
def test_nothing_of_a_record_runs_but_the_commands(commit, tmp_path):
    """What a stranger's record holds is pasted into a shell: it must neither run nor steer the terminal."""
    tree = {"name": NASTY, "commit": commit, "dirty": True, "diff": NASTY}
    here = GPU | {"commit": NASTY, "dirty": True, "diff": NASTY, "src": tree, "gpu": NASTY, "torch": NASTY}
    one = record(environment=here | {"own_files": {NASTY: NASTY}}, argv=["dsv4bench", "prefill", NASTY], key=NASTY)
    text = "\n".join(script(one))
    assert "\x1b" not in text
    quiet = "git() { :; }; dsv4bench() { :; }\n"
    subprocess.run(["sh", "-c", quiet + text], cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())


def test_what_must_hold_is_said_and_all_but_commands_is_a_comment():
    tree = {"name": "sglang", "commit": "d" * 40, "dirty": True, "diff": "beef"}
    code = {"commit": "a" * 40, "dirty": True, "diff": "f00d", "src": tree, "own_files": {"dequant": "123abc"}}
    here = GPU | code | {"python": "3.12.3", "power_limit_mw": 700_000, "cuda": "13.0"}
    argv = ["dsv4bench", "prefill", "--batch", "1,2", "--src", "../my sglang"]
    lines = script(record(environment=here, argv=argv))
    text = " ".join(line.lstrip("# ") for line in lines)
    assert [line for line in lines if not line.startswith("#")] == [
        f"git checkout {'a' * 40}",
        f"git -C '../my sglang' checkout {'d' * 40}",
        "dsv4bench prefill --batch 1 --src '../my sglang'",
    ]
    for said in (
        "gpu-1-False-on of 2026-11-30T12:01:00+00:00: eager, reuse on, kv v41+fp4, batch 1 x 1024; ok",
        "local changes (f00d) lay over that commit and are not kept",
        "local changes (beef) of sglang are not kept",
        "the file that provided dequant had a sha256 that begins with 123abc",
        "with all that ran then: dsv4bench prefill --batch 1,2 --src '../my sglang'",
        "machine NVIDIA H200, host a CPU, power limit 700 W, driver 580.1, CUDA 13.0",
        "torch 2.11.0, triton 3.6.0, python 3.12.3",
    ):
        assert said in text
    assert max(map(len, lines)) <= 80


def test_a_record_that_says_nothing_of_its_making_says_so():
    lines = script(record(environment={}, argv=[]))
    assert "# no commit is known: it ran an installed package" in lines
    assert "# the record does not say by which command it was made" in lines


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("zzz runs", "zzz: no key of a record in runs begins so; `dsv4bench history runs` shows keys"),
        ("'' runs", "'': no key of a record in runs begins so"),
        ("k runs", "k: 2 keys in runs begin so: k1, k2; expected more of one"),
        ("runs:0", "runs:0: expected a line from 1 to 2 of `dsv4bench show runs --format jsonl`"),
        ("runs:3", "runs:3: expected a line from 1 to 2"),
        ("runs", "runs: expected a row of it, runs:N; `dsv4bench history runs` shows keys"),
        ("none:1", "none: no such file or directory"),
        ("k1", "results: no such file or directory"),
    ],
    ids=["unknown", "empty", "several", "zero", "beyond", "folder", "missing", "default"],
)
def test_a_mistake_is_one_line(run, tmp_path, typed, message):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "r.jsonl").write_text(encode(record(key="k1")) + encode(record(key="k2")))
    found = run("repro", *shlex.split(typed))
    assert (found.code, found.out) == (2, "")
    assert message in found.err


RUNS_OF_A_KEY = {
    "folders": ({"runs/a/r.jsonl": [1], "runs/b/r.jsonl": [2], "runs/c/r.jsonl": [0]}, "b", ["a", "c"]),
    "files-of-a-folder": (
        {"runs/a/r.jsonl": [1], "runs/m/r.jsonl": [2], "runs/m/r-2.jsonl": [3]},
        "m/r-2.jsonl",
        ["m/r.jsonl", "a"],
    ),
    "files-below-a-folder": ({"runs/r.jsonl": [1], "runs/a/r.jsonl": [2]}, "a", ["r.jsonl"]),
    "copies": ({"runs/a/r.jsonl": [1, 2], "runs/merged/r.jsonl": [1, 2]}, None, []),
    "pairs-of-one-run": ({"runs/a/r.jsonl": [1, 2, 3]}, "a", []),
}


@pytest.mark.parametrize(("files", "shown", "others"), RUNS_OF_A_KEY.values(), ids=RUNS_OF_A_KEY)
def test_other_runs_of_a_key_are_named(run, tmp_path, files, shown, others):
    for name, minutes in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        made = [record(key="k1", created=f"2026-11-30T12:0{minute}:00+00:00") for minute in minutes]
        (tmp_path / name).write_text("".join(map(encode, made)))
    found = run("repro", "k1", "runs")
    newest = max(minute for minutes in files.values() for minute in minutes)
    assert f"# k1 of 2026-11-30T12:0{newest}:00" in found.out
    said = f"# {len(others) + 1} runs have this key; this is the newest, of runs/{shown}; for another one\n"
    commands = "".join(f"#   dsv4bench repro k1 runs/{other}\n" for other in others)
    assert found.out.startswith(said + commands if others else "# k1 of")
    for other in others:
        alone = run("repro", "k1", f"runs/{other}")
        assert (alone.code, alone.out.startswith("# k1 of")) == (0, True)


def test_the_fresh_processes_of_an_ab_are_one_run(run, tmp_path):
    """Each has a file of its own; another run of the key may lie between the pairs of one that was resumed."""
    made = {
        "runs/ab/r-1.jsonl": with_side(record(key="k1", created="2026-11-30T12:01:00+00:00"), "a", pair=0),
        "runs/b/r.jsonl": record(key="k1", created="2026-11-30T12:02:00+00:00"),
        "runs/ab/r-2.jsonl": with_side(record(key="k1", created="2026-11-30T12:03:00+00:00"), "a", pair=1),
    }
    for name, one in made.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(encode(one))
    said = "# 2 runs have this key; this is the newest, of runs/ab; for another one\n#   dsv4bench repro k1 runs/b\n"
    assert run("repro", "k1", "runs").out.startswith(said)
    assert run("repro", "k1", "runs/ab").out.startswith("# k1 of 2026-11-30T12:03:00")


def test_only_some_of_many_runs_are_named(run, tmp_path):
    for number in range(9):
        (tmp_path / f"runs/{number}").mkdir(parents=True)
        made = record(key="k1", created=f"2026-11-30T12:0{number}:00+00:00")
        (tmp_path / f"runs/{number}/r.jsonl").write_text(encode(made))
    lines = run("repro", "k1", "runs").out.splitlines()
    assert [line.split()[-1] for line in lines[1:6]] == [f"runs/{number}" for number in (7, 6, 5, 4, 3)]
    assert lines[6] == "#   and 3 more"
    assert run("repro", "runs/8:1").out.startswith("# k1 of")  # a line was asked for


def test_what_a_time_limit_left_out_is_no_run(run, tmp_path):
    left_out = lost("skipped", NO_TIME_LEFT, created="2026-11-30T13:00:00+00:00", key="k1")
    for name, one in (("a", left_out), ("b", record(key="k1"))):
        (tmp_path / f"{name}.jsonl").write_text(encode(one))
    assert run("repro", "k1", ".").out.startswith("# k1 of 2026-11-30T12:01:00")


def test_the_last_record_of_a_key_counts(run, tmp_path):
    old, new = (record(key="k1", created=f"2026-11-30T12:0{minute}:00+00:00") for minute in (1, 2))
    (tmp_path / "r.jsonl").write_text(encode(new) + encode(old))
    assert "# k1 of 2026-11-30T12:02:00" in run("repro", "k1", "r.jsonl").out
