"""`dsv4bench compare` as it is typed: what it prints, what the gate stops, and its exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.cli_compare import with_percent
from dsv4bench.cli_compare_run import Request, run_compare
from dsv4bench.results.schema import encode
from tests.command_line import command_line
from tests.results.synthetic import GPU, counts, lost, ramp, record, row


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: command_line(monkeypatch, capsys)("compare", *arguments)


def step(middle_us=20_000, commit="a", step_ns=1000, **changes):
    here = {**GPU, "commit": commit * 40, **changes.pop("environment", {})}
    return record(**{"samples_ns": {"step_period": ramp(middle_us * 1000, step_ns)}, "environment": here, **changes})


MORE = counts("on", extra=[row("sparse_attention", 2, "eager", 0, copies=3)])
FEWER = [one for one in counts("on") if one["op"] != "qkv_proj"]
RUNS = {
    "old": [step(commit="o")],
    "same": [step()],
    "slow3": [step(20_600)],
    "slow1": [step(20_200)],
    "fast": [step(10_000)],
    "noisy": [step(step_ns=400_000)],
    "more": [step(counts=MORE)],
    "fewer": [step(counts=FEWER)],
    "wrong": [replace(lost("wrong", "a byte differs"), environment=GPU)],
    "b300": [step(30_000, environment={"gpu": "NVIDIA B300"})],
    "chip": [step(environment={"gpu_chip": "1111"})],
    "other-chip": [step(30_000, environment={"gpu_chip": "3333"})],
    "driver": [step(30_000, environment={"driver": "590"})],
    "v4": [step(batch=2)],
    "both": [step(), step(batch=2)],
    "mini": [step(geometry="mini")],
    "slow3-and-mini": [step(20_600), step(geometry="mini")],
    "uncounted": [step(counts=[])],
    "skipped": [lost("skipped", "not installed", environment=GPU)],
    "same-and-skipped": [step(), lost("skipped", "not installed", batch=2, environment=GPU)],
    "same-and-refused": [step(), lost("refused", "too long", batch=2, environment=GPU)],
    "torn": [replace(lost("failed", "one line\r\nand \x1b[1manother", batch=2), environment=GPU), step()],
    "broken-name": [step(environment={"gpu": "NVIDIA\nB300"})],
    "nothing": [step(samples_ns={"step_period": [0] * 11})],
    "slow-and-driver": [step(20_600), step(batch=2, environment={"driver": "590"})],
}


@pytest.fixture(autouse=True)
def runs(tmp_path):
    for name, records in RUNS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(map(encode, records)))


# before, after, and the gate: the exit code and what is said on stderr
GATES = [
    ("old same", None, 0, ""),
    ("old slow3", None, 0, ""),
    ("old slow3", 2, 1, "gate: SLOWER: eager, reuse on, kv v41+fp4, batch 1 x 1024: +3.00 % [+2.98 %, +3.02 %]"),
    ("old slow3", 5, 0, ""),
    ("old slow1", 2, 0, ""),
    ("old slow1", 0.5, 1, "gate: SLOWER"),
    ("old fast", "strict", 0, ""),
    ("old noisy", 2, 0, "gate: passed: INCONCLUSIVE: eager, reuse on, kv v41+fp4, batch 1"),
    ("old noisy", "strict", 3, "gate: INCONCLUSIVE: eager"),
    ("old more", None, 0, ""),
    ("old more", 2, 1, "gate: added launches: eager, reuse on, kv v41+fp4, batch 1 x 1024: sparse_attention"),
    ("old fewer", "strict", 0, ""),
    ("old wrong", None, 0, ""),
    ("old wrong", 2, 1, "gate: no time any more: eager, reuse on, kv v41+fp4, batch 1 x 1024: after: wrong: a byte"),
    ("wrong old", None, 0, ""),
    ("wrong old", 2, 0, "gate: passed: not timed before (wrong: a byte differs): eager, reuse on, kv v41+fp4, batch 1"),
    ("wrong old", "strict", 3, "gate: not timed before (wrong: a byte differs): eager"),
    ("skipped old", 2, 0, "gate: passed: not timed before (skipped: not installed): eager"),
    ("old b300", None, 0, ""),
    ("old b300", 2, 3, "gate: two machines: no verdict (machine: NVIDIA H200 before, NVIDIA B300 after): eager"),
    ("chip other-chip", 2, 3, "gate: two machines: no verdict (GPU chip: 1111 before, 3333 after): eager"),
    ("chip other-chip", None, 0, ""),
    ("old other-chip", 2, 1, "gate: SLOWER"),
    ("old driver", None, 3, ""),
    ("old driver", 2, 3, "gate: not comparable: driver: 580 before, 590 after: eager"),
    ("old v4", None, 4, ""),
    ("old v4", 2, 4, "gate: passed: not run after: eager"),
    ("both same", 2, 0, "gate: passed: not run after: eager, reuse on, kv v41+fp4, batch 2"),
    ("both same", "strict", 3, "gate: not run after"),
    ("old mini", 2, 4, "gate: passed: not run after: v41-flash eager, reuse on"),
    ("old slow3-and-mini", 2, 1, "gate: SLOWER: v41-flash eager, reuse on"),
    ("same both", "strict", 0, ""),
    ("both slow-and-driver", 2, 1, "gate: SLOWER"),
    ("both same-and-skipped", 2, 0, "gate: passed: after: skipped: not installed: eager"),
    ("both same-and-skipped", "strict", 3, "gate: after: skipped: not installed: eager"),
    ("both same-and-refused", "strict", 3, "gate: after: refused: too long: eager"),
    ("same-and-skipped same-and-refused", "strict", 0, ""),
    ("old uncounted", 2, 0, "gate: passed: launches not counted after: eager"),
    ("old uncounted", "strict", 3, "gate: launches not counted after: eager"),
    ("uncounted old", "strict", 0, ""),
    ("uncounted uncounted", "strict", 0, ""),
    ("old skipped", 2, 4, "gate: passed: after: skipped: not installed: eager"),
    ("old nothing", 2, 1, "gate: no time any more: eager, reuse on, kv v41+fp4, batch 1 x 1024: after: a step of 0 ns"),
    ("nothing old", 2, 0, "gate: passed: not timed before (a step of 0 ns: nothing was measured): eager"),
]


@pytest.mark.parametrize(("sides", "gate", "code", "said"), GATES, ids=[f"{case[0]} {case[1]}" for case in GATES])
def test_exit_codes(monkeypatch, tmp_path, capsys, sides, gate, code, said):
    monkeypatch.chdir(tmp_path)
    before, after = (Path(f"{name}.jsonl") for name in sides.split())
    least = None if gate is None else 0.02 if gate == "strict" else gate / 100
    found = run_compare(Request(before, after, "cell", least, gate is not None, gate == "strict", "table"))
    out, err = capsys.readouterr()
    assert found == code
    assert said in err if said else err == ""
    assert out


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            "torn",
            "gate: no time any more: eager, reuse on, kv v41+fp4, batch 2 x 1024: after: failed: one line  and  [1mano",
        ),
        ("broken-name", "gate: two machines: no verdict (machine: NVIDIA H200 before, NVIDIA B300 after): eager"),
    ],
    ids=["reason", "machine"],
)
def test_a_line_of_the_gate_is_one_line_whatever_is_in_it(run, after, said):
    lines = run("both.jsonl", f"{after}.jsonl", "--gate").err.splitlines()
    assert lines[0].startswith(said)
    assert all(line.startswith("gate: ") and line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        ("old.jsonl slow3.jsonl --gate", 1, "gate: SLOWER"),
        ("--gate 0.5 old.jsonl slow1.jsonl", 1, "gate: SLOWER"),
        ("old.jsonl slow1.jsonl --gate=2%", 0, ""),
        ("old.jsonl noisy.jsonl --gate --strict", 3, "gate: INCONCLUSIVE"),
        ("old.jsonl slow3.jsonl --by kv", 0, ""),
    ],
    ids=["bare", "first", "percent", "strict", "without"],
)
def test_the_gate_as_it_is_typed(run, typed, code, said):
    found = run(*typed.split())
    assert (found.code, found.err[: len(said)]) == (code, said)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("old.jsonl same.jsonl --by layer", "--by layer: expected one of cell, mode, batch, kv"),
        ("old.jsonl same.jsonl --gate 0", "--gate 0: expected a percentage above 0 and below 100, e.g. --gate 2"),
        ("old.jsonl same.jsonl --gate=two", "--gate two: expected a percentage"),
        ("old.jsonl same.jsonl --gate=", "--gate '': expected a percentage"),
        ("old.jsonl same.jsonl --strict", "--strict: only --gate has something to be strict about"),
        ("old.jsonl none.jsonl", "none.jsonl: no such file or directory"),
        ("old.jsonl same.jsonl --format pdf", "--format pdf: expected one of table, md, csv, json, jsonl"),
        ("old.jsonl empty.jsonl", "empty.jsonl: no records here"),
    ],
    ids=lambda text: text.split(" ", 2)[-1],
)
def test_a_mistake_is_one_line(run, tmp_path, typed, message):
    (tmp_path / "empty.jsonl").write_text("")
    found = run(*typed.split())
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("a b --gate", "a b --gate 2"),
        ("--gate a b", "--gate 2 a b"),
        ("--gate 1 a b", "--gate 1 a b"),
        ("a --gate --strict b", "a --gate 2 --strict b"),
        ("a b --gate=1", "a b --gate=1"),
        ("a b", "a b"),
    ],
)
def test_the_gate_may_stand_without_its_percentage(typed, parsed):
    assert with_percent(typed.split()) == parsed.split()


def test_json_holds_every_cell_with_its_keys(run):
    (found,) = json.loads(run("old.jsonl", "slow3.jsonl", "--json").out)
    assert (found["verdict"], found["least"], found["added"]) == ("SLOWER", 0.02, [])
    assert found["before_ns"]["value"] == 20_000_000
    assert found["ratio"]["value"] == pytest.approx(1.03)
    assert found["keys"] == {"before": ["gpu-1-False-on"], "after": ["gpu-1-False-on"]}
    assert found["batch"]["requests"] == 1
    (line,) = run("old.jsonl", "driver.jsonl", "--format", "jsonl").out.splitlines()
    assert json.loads(line)["differences"] == [{"what": "driver", "before": "580", "after": "590"}]


def test_a_torn_line_is_said(run, tmp_path):
    (tmp_path / "torn.jsonl").write_text(encode(step()) + encode(step())[:40])
    found = run("old.jsonl", "torn.jsonl")
    assert found.code == 0
    assert found.err.startswith("warning: torn.jsonl:2: left out a torn last line")


def test_help_fits_80_columns(run):
    found = run("--help")
    assert found.code == 0
    assert max(map(len, found.out.splitlines())) <= 80
    assert "--gate [PCT]" in found.out
