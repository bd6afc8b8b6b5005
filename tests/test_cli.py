"""Commands other than prefill, what is wrong with a command line, and what a pipe gets."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from dsv4bench import __version__, cli_machine
from dsv4bench.errors import CellError
from dsv4bench.kernels import CATALOGUE
from dsv4bench.results.schema import encode
from tests.command_line import command_line
from tests.results.synthetic import lost, record, sweep
from tests.source_tree import ROOT


@pytest.fixture
def run(monkeypatch, capsys):
    return command_line(monkeypatch, capsys)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def records(tmp_path):
    """A folder with the records of a sweep on a GPU."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "records.jsonl").write_text("".join(map(encode, sweep())))
    return folder


# bad input


def line(**values):
    return json.dumps(values) + "\n"


FILES = {
    "empty.jsonl": "",
    "words.jsonl": "hello\n",
    "list.jsonl": "[1]\n",
    "negative.jsonl": line(input_length=5, hash_ids=[]) + line(input_length=-5, hash_ids=[]),
    "missing.jsonl": line(hash_ids=[]),
    "text.jsonl": line(input_length="12"),
    "one.jsonl": line(input_length=640, hash_ids=[]),
    "numbers.txt": "1 2 x\n",
    "a-file": "",
    "config.json": "{}",
}
BAD = {
    "--batch 0": "--batch 0: expected at least 1",
    "--batch 64..1": "--batch 64..1: expected the smaller end first",
    "--batch x": "--batch x: expected a number, a list 1,2,8, a range 1..64",
    "--batch 1..64:x1": "--batch 1..64:x1: expected a factor of at least 2 after :x",
    "--batch @nowhere": "--batch @nowhere: No such file or directory; expected a file of numbers",
    "--batch @numbers.txt": "--batch x: expected a number",
    "--extend -5": "--extend -5: expected at least 1",
    "--extend 0": "--extend 0: expected at least 1",
    "--prefix -1": "--prefix -1: expected at least 0",
    "--prefix 1048577": "--prefix 1048577: expected at most 1048576",
    "--prefix 2m": "--prefix 2m: expected at most 1048576",
    "--prefix 1m --geometry v41-flash": "1048576 cached + 8 new tokens; expected at most 1048576, the positions of v41",
    "--chunk 0": "--chunk 0: expected at least 1",
    "--chunk 32 --batch 64": "--chunk 32: no token for each of 64 requests, at least 64 expected",
    "--dep-simulated 0": "--dep-simulated 0: expected at least 1",
    "--seed -1": "--seed -1: expected at least 0",
    "--seed x": "--seed x: expected a whole number of at least 0",
    "--samples 0": "--samples 0: expected at least 1",
    "--samples 1.5": "--samples 1.5: expected a whole number of at least 1",
    "--kv v42": "--kv v42: no such KV pair (did you mean 'v4'?); known: v4, v41, v41+fp4",
    "--kv fp4": "--kv fp4: FP4 is extra-only (compressed rows), never a main cache; known: v4, v41, v41+fp4",
    "--provider tritn": "--provider tritn: not known (did you mean 'triton'?); known: auto, torch, triton",
    "--provider triton": "--provider triton: needs a CUDA device; on a CPU `python -m pytest tests/kernels` runs the",
    "--device cuda": "--device cuda: no CUDA device on this machine; expected cpu or auto",
    "--device gpu": "--device gpu: not known (did you mean 'cpu'?); known: auto, cpu, cuda",
    "--reuse of": "--reuse of: not known (did you mean 'off'?); known: off, on, both",
    "--compressor fusd": "--compressor fusd: not known (did you mean 'fused'?); known: torch, fused, both",
    "--graph-mode half": "--graph-mode half: not known; known: breakable, full",
    "--fault stale": "--fault stale: not known (did you mean 'stale-head'?); known: stale-head, wrong-row, extra-copy",
    "--geometry v41-flsh": "--geometry v41-flsh: no such geometry (did you mean 'v41-flash'?); known: v41-flash,",
    "--geometry config.json": "--geometry config.json: field 'model_type' is None, expected deepseek_v41",
    "--requests nowhere.jsonl": "--requests nowhere.jsonl: No such file or directory",
    "--requests empty.jsonl": "--requests empty.jsonl: the file is empty; expected one JSON object a line",
    "--requests words.jsonl": "--requests words.jsonl line 1: not JSON",
    "--requests list.jsonl": "--requests list.jsonl line 1: expected a JSON object",
    "--requests negative.jsonl": "--requests negative.jsonl line 2: input_length is -5, expected a whole number from 1",
    "--requests missing.jsonl": "--requests missing.jsonl line 1: input_length is missing",
    "--requests text.jsonl": "--requests text.jsonl line 1: input_length is '12', expected a whole number",
    "--requests one.jsonl --batch 2": "--batch 2: one.jsonl holds only 1 requests",
    "--requests one.jsonl --extend 5": "--extend 5: the lengths come from --requests one.jsonl; expected one of both",
    "--out a-file": "--out a-file: cannot make this directory: File exists",
    "--out a-file/run": "--out a-file/run: cannot make this directory: Not a directory",
    "--out .": "--out .: the directory is not empty (go on with --resume ., or name a new one)",
    "--resume nowhere": "--resume nowhere: no such directory",
    "--resume a-file": "--resume a-file: no such directory",
    "--resume . --out new": "--out new: --resume . already says where records go",
    "--format tabel": "--format tabel: expected one of table, md, csv, json, jsonl (did you mean 'table'?)",
}


@pytest.mark.parametrize("typed", BAD)
def test_bad_input_gets_one_line_and_exit_code_2(run, here, monkeypatch, typed):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for name, text in FILES.items():
        (here / name).write_text(text)
    assert BAD[typed] in run("prefill", *typed.split()).slip
    assert {file.name for file in here.iterdir()} == set(FILES)  # nothing was made or begun


def test_more_tokens_than_memory_takes_is_refused_before_anything_is_allocated(run, here, monkeypatch):
    monkeypatch.setattr("dsv4bench.cli_prefill.free_bytes", lambda device: 2 << 30)
    only = run("prefill", "--batch", "8", "--prefix", "8k,256k").slip
    assert only.startswith("--batch 8 --prefix 262144 (8 new tokens each): about ")
    assert re.search(r"needed \(modelled\), 2\.000 GiB free; expected at most --batch [1-7] at this prefix$", only)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("show nowhere", "nowhere: no such file or directory"),
        ("show empty", "empty: no records here"),
        ("show words.jsonl", "words.jsonl:1: not JSON: "),
        ("show newer.jsonl", "newer.jsonl:1: written with schema 99, this version reads up to schema 1"),
        ("show run --format xml", "--format xml: expected one of table, md, csv, json, jsonl"),
        ("plot nowhere", "nowhere: no such file or directory"),
        ("plot empty", "empty: no step and no kernel with a time to draw"),
        ("plot run --out words.jsonl", "words.jsonl: cannot write the figure: File exists"),
        ("plot run --out words.jsonl/x", "words.jsonl/x: cannot write the figure: Not a directory"),
    ],
    ids=lambda value: value if value.startswith(("show", "plot")) else "",
)
def test_what_cannot_be_shown_gets_one_line_too(run, here, records, typed, expected):
    (here / "empty").mkdir()
    (here / "words.jsonl").write_text("hello\n")
    (here / "newer.jsonl").write_text('{"schema": 99}\n')
    assert run(*typed.split()).slip.startswith(expected)


def test_any_other_error_of_ours_is_one_line_and_exit_code_1(run, records, monkeypatch):
    def fail(*_):
        raise CellError("no cell")

    monkeypatch.setattr("dsv4bench.dashboards.tables.show", fail)
    assert run("show", records).err == "dsv4bench: no cell\n"
    assert run("show", records).code == 1


# help


def test_the_version(run):
    assert run("--version").out == f"dsv4bench {__version__}\n"


@pytest.mark.parametrize("typed", ["", "--help", "prefill --help", "kernels --help", "show --help", "plot --help"])
def test_help_fits_80_columns_and_says_the_exit_codes(run, typed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    found = run(*typed.split())
    text = found.out + found.err
    assert found.code == (0 if typed else 2)
    assert max(map(len, text.splitlines())) <= 80
    said = "Exit codes: 0 ok; 2 usage." if typed.startswith(("show", "plot")) else "130 Ctrl-C"
    assert said in " ".join(text.split())


def test_help_shows_how_an_axis_is_written(run):
    words = " ".join(run("prefill", "--help").out.split())
    assert "8 | 1,2,8 | 1..64 doubles | 1..64:+8 | 1..64:x4 | @file" in words


# show


def test_show_prints_the_tables_again(run, records):
    found = run("show", records)
    assert (found.code, found.err) == (0, "")
    assert "38 -> 4" in found.out
    assert "\x1b" not in found.out
    assert max(map(len, found.out.splitlines())) <= 80
    assert run("show", records / "records.jsonl").out == found.out


def test_a_wrong_cell_is_shown_like_others(run, here):
    (here / "wrong.jsonl").write_text(encode(lost("wrong", "a byte differs")))
    found = run("show", "wrong.jsonl")
    assert (found.code, "a byte differs" in found.out) == (0, True)


@pytest.mark.parametrize("typed", ["--json", "--format json"])
def test_show_prints_records_as_one_array(run, records, typed):
    found = json.loads(run("show", records, *typed.split()).out)
    assert [one["key"] for one in found] == [one.key for one in sorted(sweep(), key=lambda one: one.created)]


def test_show_prints_records_line_by_line(run, records):
    lines = run("show", records, "--format", "jsonl").out.splitlines()
    assert [json.loads(one)["status"] for one in lines] == [one.status for one in sweep()]


@pytest.mark.parametrize(("form", "begins"), [("md", "**KV dequants"), ("csv", "# KV dequants")])
def test_show_prints_other_formats(run, records, form, begins):
    assert run("show", records, "--format", form).out.startswith(begins)


def test_a_torn_last_line_is_a_warning_and_not_the_end(run, records):
    file = records / "records.jsonl"
    file.write_text(file.read_text() + encode(record(2))[:50])
    found = run("show", records)
    assert found.code == 0
    assert "38 -> 4" in found.out
    (only,) = found.err.splitlines()
    assert only.startswith(f"warning: {file}:13: left out a torn last line")


# the machine and the catalogue


def test_list_names_kernels_and_the_values_of_options(run):
    found = run("list")
    assert found.code == 0
    assert all(name in found.out for name in CATALOGUE)
    assert "v41-flash, v41-flash-mini" in found.out
    listed = json.loads(run("list", "--json").out)
    assert list(listed["kernels"]) == list(CATALOGUE)
    assert listed["kernels"]["dequant"] == ["torch", "triton", "sglang"]
    assert listed["fault"] == ["stale-head", "wrong-row", "extra-copy"]
    assert listed["recipe"] == ["dep4", "b200-dep4", "b200-dep2", "gb300-dep2"]


def test_env_says_what_runs_here_and_why_not(run, monkeypatch):
    monkeypatch.setattr("dsv4bench.cli_machine.environment", lambda device: {"cpu": "a CPU", "gpu": None})
    monkeypatch.setattr("dsv4bench.cli_machine.resolve_device", lambda word: "cpu")
    found = run("env")
    assert found.code == 0
    assert "cpu          a CPU" in found.out
    assert "no: needs a CUDA device" in found.out
    assert max(map(len, found.out.splitlines())) <= 80
    told = json.loads(run("env", "--json").out)
    assert told["environment"]["gpu"] is None
    by_name = {(row["kernel"], row["provider"]): row["why_not"] for row in told["providers"]}
    assert by_name["dequant", "torch"] is None
    assert by_name["dequant", "triton"] == "needs a CUDA device"


PARTS = ("graph capture", "clocks and power", "NVTX ranges", "Triton kernels")


@pytest.mark.parametrize(
    ("device", "missing", "reasons"),
    [
        (
            "cpu",
            ("cuda.bindings.runtime", "pynvml"),
            ["needs a CUDA device", "needs a CUDA device", None, "needs a CUDA device"],
        ),
        (
            "cuda",
            ("cuda.bindings.runtime", "pynvml", "nvtx", "triton"),
            [f"the package {name!r} is not installed" for name in ("cuda-bindings", "nvidia-ml-py", "nvtx", "triton")],
        ),
        ("cuda", (), [None, None, None, None]),
    ],
    ids=["CPU", "nothing installed", "all installed"],
)
def test_env_says_which_optional_parts_are_there(monkeypatch, device, missing, reasons):
    def spec(name):
        return None if name in missing else object()

    monkeypatch.setattr("importlib.util.find_spec", spec)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    assert [(row["part"], row["why_not"]) for row in cli_machine.optional_parts(device)] == list(
        zip(PARTS, reasons, strict=True)
    )


def test_env_shows_the_optional_parts(run, monkeypatch):
    monkeypatch.setattr("dsv4bench.cli_machine.environment", lambda device: {})
    monkeypatch.setattr("dsv4bench.cli_machine.resolve_device", lambda word: "cpu")
    shown = run("env").out
    assert all(part in shown for part in PARTS)
    assert [row["part"] for row in json.loads(run("env", "--json").out)["parts"]] == list(PARTS)


def test_shell_completion_is_there(run):
    assert "--install-completion" in run("--help").out


# pipes and terminals


@pytest.mark.parametrize("form", ["table", "json"], ids=["less than a buffer", "more than a buffer"])
def test_a_reader_that_goes_away_is_nobody_to_complain_to(records, form, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, "-m", "dsv4bench", "show", str(records), "--format", form]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        complaint = process.stderr.read()
    assert (complaint, process.returncode) == (b"", 0)


GATE = ["compare", "old.jsonl", "failed.jsonl", "--gate"]
RED = b"gate: no time any more: "
FULL = b"dsv4bench: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("output", "words", "code", "said", "environment"),
    [
        ("| true", GATE, 1, RED, {}),
        ("| true", GATE, 1, RED, {"PYTHONUNBUFFERED": "1"}),
        (">&-", GATE, 1, RED, {}),
        (">/dev/full", ["list"], 1, FULL, {}),
        (">/dev/full", ["list"], 1, FULL, {"RANK": "0", "WORLD_SIZE": "2"}),
    ],
    ids=["gone", "gone unbuffered", "closed", "full", "full of a rank"],
)
def test_output_that_is_lost_takes_no_exit_code_with_it(tmp_path, output, words, code, said, environment):
    (tmp_path / "old.jsonl").write_text(encode(record()))
    (tmp_path / "failed.jsonl").write_text(encode(lost("failed", "boom")))
    command = shlex.join([sys.executable, "-m", "dsv4bench", *words])
    done = subprocess.run(
        ["bash", "-c", f"{command} {output}; exit ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr[: len(said)], done.stderr.count(b"\n")) == (code, said, 1)


def test_colours_are_for_terminals_and_no_color_is_honoured(run, records, monkeypatch):
    def shown(**environment):
        for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": "100", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        return run("show", records).out

    assert "\x1b[" in shown()
    assert "\x1b[3" not in shown(NO_COLOR="1")  # no colour; bold may stay
