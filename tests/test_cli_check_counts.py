"""`dsv4bench check counts` from end to end: on records, on a run made here, and by its exit code."""

import json
import re

import pytest

from dsv4bench.results.schema import encode
from dsv4bench.results.store import read_records
from tests.command_line import CONFIG, command_line, tiny_config
from tests.results.synthetic import lost, record, sweep, with_variant
from tests.source_tree import ROOT

LEDGER = ROOT / "tests" / "data" / "ledger.jsonl"
AFTER = '[cells]\nreuse = "on"\n[[expect]]\nop = "dequant_compressed"\nby = "kv_source"\ncalls = { max = 1 }\n'
TINY = AFTER + '[[expect]]\nop = "dequant_swa"\ncalls = 2\n[[expect]]\nop = "other"\naten_ops = 0\n'
QUICK = ("--extend", "4", "--prefix", "60", "--no-graph")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in a folder that holds expectations and the records of a sweep."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "after.toml").write_text(AFTER)
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "empty").mkdir()
    (tmp_path / "sweep.jsonl").write_text("".join(map(encode, sweep())))
    command = command_line(monkeypatch, capsys)
    return lambda *arguments: command("check", "counts", *arguments)


@pytest.fixture
def live(run, tmp_path):
    """Run the cells of a tiny model here."""
    config = tiny_config(tmp_path)
    return lambda *arguments: run("--expect", "tiny.toml", "--geometry", config, *QUICK, *arguments)


# records


@pytest.mark.parametrize("name", ["reuse_before", "reuse_after", "compressor_before", "compressor_after"])
def test_a_shipped_file_holds_on_the_ledger(run, name):
    found = run("--expect", name, LEDGER)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"{name}: all ")


def test_options_choose_among_the_records(run):
    held = run("--expect", "after.toml", "sweep.jsonl")
    assert held.code == 0
    assert held.out.splitlines()[0] == "after.toml: the expectation holds, in 5 cells"
    assert held.out.splitlines()[-1] == "  over the graph's limit of 16384"
    broken = run("--expect", "after.toml", "sweep.jsonl", "--reuse", "off", "--no-graph")
    assert broken.code == 1
    assert broken.out.startswith("after.toml: 1 of 1 expectation broken, in 3 of 3 cells\n")
    both = run("--expect", "after.toml", "sweep.jsonl", "--reuse", "both", "--no-graph")
    assert both.out.startswith("after.toml: 1 of 1 expectation broken, in 3 of 6 cells\n")


def test_json_and_markdown(run):
    found = json.loads(run("--expect", "reuse_after", LEDGER, "--reuse", "off", "--json").out)
    assert (found["verdict"], found["broken"]) == ("reuse_after: 2 of 4 expectations broken, in 1 of 1 cell", 5)
    assert run("--expect", "reuse_after", LEDGER, "--format", "md").out == (
        "**reuse\\_after: all 4 expectations hold, in 2 cells**\n\n"
        "- not checked: entries 1, 2, 3, 4, about cpu-reference or tape; ran on gpu\n"
    )


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        ([record(1, "on"), lost("skipped", "no graph", batch=1, reuse="on", graph=True)], 0),
        ([record(1, "on"), lost("wrong", "outputs differ", batch=1, reuse="on", graph=True)], 1),
        ([record(1, "on"), lost("failed", "an error", batch=1, reuse="on", graph=True)], 1),
        ([lost("out_of_memory", "too much", batch=1, reuse="on")], 4),
        ([record(1, "on", kernel={"name": "dequant"})], 4),
        ([record(1, "on", coverage={"unattributed": 2})], 3),
        ([record(1, "off"), with_variant(record(1, "off"), reuse="on")], 1),
        ([], 4),
    ],
    ids=["a-skipped-cell", "a-wrong-cell", "a-failed-cell", "no-memory", "kernels-only", "gaps", "broken", "nothing"],
)  # fmt: skip
def test_the_exit_code_says_what_came_of_it(run, tmp_path, cells, code):
    (tmp_path / "cells.jsonl").write_text("".join(map(encode, cells)))
    assert run("--expect", "after.toml", "cells.jsonl").code == code


def test_an_uncounted_class_fails_unless_it_is_allowed(run, tmp_path):
    (tmp_path / "kernels.toml").write_text('[[expect]]\nop = "dequant_swa"\nkernels = 40\n')
    (tmp_path / "cpu.jsonl").write_text(encode(record(1, "on", engine="cpu-reference")))
    asked = ("--expect", "kernels.toml", "cpu.jsonl")
    assert "not counted here" in run(*asked).out
    assert run(*asked).code == 1
    assert run(*asked, "--allow-uncounted").code == 0


BAD = {
    "--expect nowhere.toml sweep.jsonl": "--expect nowhere.toml: no such file, and none of that name is shipped",
    "--expect after.toml nowhere": "nowhere: no such file or directory",
    "--expect after.toml sweep.jsonl --map a.toml": "--map: is about a trace; expected the PATH of one",
    "--expect after.toml --steps 3": "--steps: is about a trace; expected the PATH of one",
    "--expect after.toml sweep.jsonl --batch 8": "--batch: sweep.jsonl has its cells already; expected no PATH",
    "--expect after.toml sweep.jsonl --out new": "--out: sweep.jsonl has its cells already; expected no PATH",
    "--expect after.toml sweep.jsonl --reuse of": "sweep.jsonl: no cell with reuse of (did you mean 'off'?); here",
    "--expect after.toml sweep.jsonl --kv v4": "sweep.jsonl: no cell with kv v4",
    "--expect after.toml sweep.jsonl --format csv": "--format csv: expected one of table, md, json",
    "--expect after.toml --reuse of": "--reuse of: not known (did you mean 'off'?); known: off, on, both",
    "--expect after.toml --batch 0": "--batch 0: expected at least 1",
    "--expect after.toml --out empty/../sweep.jsonl": "--out empty/../sweep.jsonl: cannot make this directory",
}


@pytest.mark.parametrize("typed", BAD)
def test_bad_input_gets_one_line_and_exit_code_2(run, typed):
    assert run(*typed.split()).slip.startswith(BAD[typed])


def test_a_torn_last_line_is_a_warning(run, tmp_path):
    (tmp_path / "torn.jsonl").write_text(encode(record(1, "on")) + encode(record(2, "on"))[:50])
    found = run("--expect", "after.toml", "torn.jsonl")
    assert found.code == 0
    assert found.err.startswith("warning: torn.jsonl:2: left out a torn last line")


@pytest.mark.parametrize("typed", [("check", "--help"), ("check", "counts", "--help")], ids=" ".join)
def test_help_fits_80_columns(monkeypatch, capsys, typed):
    found = command_line(monkeypatch, capsys)(*typed)
    assert max(map(len, found.out.splitlines())) <= 80
    assert "4 there was nothing to check" in " ".join(found.out.split())


def test_the_workflow_of_the_examples_checks_the_ledger(run):
    text = (ROOT / "examples" / "github-actions.yml").read_text()
    (names,) = re.findall(r"expect: \[(.+)\]", text)
    (line,) = re.findall(r"dsv4bench check counts (.+ledger.+) [|] tee", text)
    assert names.split(", ") == ["reuse_before", "reuse_after", "compressor_before", "compressor_after"]
    for name in names.split(", "):
        typed = line.replace("${{ matrix.expect }}", name).replace("tests/data/ledger.jsonl", str(LEDGER))
        assert run(*typed.split()).code == 0


# a run made here


def test_a_run_made_here_holds_or_is_broken(live, tmp_path):
    found = live("--quiet", "--out", "kept")
    assert (found.code, found.out, found.err) == (0, "tiny.toml: all 3 expectations hold, in 1 cell\n", "")
    (kept,) = read_records(tmp_path / "kept").records
    assert (kept.variant["reuse"], len(kept.step_samples_ns)) == ("on", 1)
    off = live("--reuse", "off")
    assert off.code == 1
    assert "    1  dequant_compressed          0  calls  at most 1      2" in off.out
    assert off.err == "[1/1] batch 1, 4 rows, v41+fp4\n"


EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
STREAMS = '[[expect]]\nop = "mhc_pre"\ncalls = { min = 1 }\n'


@pytest.mark.parametrize(
    ("cells", "typed", "code"),
    [
        ('[cells]\nmhc = "on"\nmoe = "experts"\n', (), 0),
        ("", ("--mhc", "--moe", "experts"), 0),
        ('[cells]\nmhc = "on"\n', ("--no-mhc",), 1),
    ],
    ids=["the file asks", "the command asks", "the command says otherwise"],
)
def test_a_run_made_here_has_more_than_attention_where_that_is_asked_for(run, tmp_path, cells, typed, code):
    (tmp_path / "streams.toml").write_text(cells + STREAMS)
    config = tmp_path / "experts.json"
    config.write_text(json.dumps(CONFIG | EXPERTS))
    asked = ("--expect", "streams.toml", "--geometry", config, *QUICK, "--reuse", "on", "--quiet", "--out", "kept")
    assert run(*asked, *typed).code == code
    (kept,) = read_records(tmp_path / "kept").records
    assert kept.variant["mhc"] == ("off" if code else "on")
    assert kept.variant["moe"] == ("off" if code else "experts")


@pytest.mark.parametrize(("typed", "chosen"), [((), 2), (("--mhc",), 1), (("--no-mhc",), 1)], ids=["both", "on", "off"])
def test_records_are_chosen_by_their_residual_streams(run, tmp_path, typed, chosen):
    cells = [with_variant(record(1, "on", key=mhc), mhc=mhc) for mhc in ("off", "on")]
    (tmp_path / "cells.jsonl").write_text("".join(map(encode, cells)))
    found = json.loads(run("--expect", "after.toml", "cells.jsonl", "--json", *typed).out)
    assert found["verdict"].endswith(f"in {chosen} {'cells' if chosen > 1 else 'cell'}")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("extra-copy", "    3  other        all  aten_ops         0      2"),
        ("wrong-row", "tiny.toml: nothing to check; 1 cell failed or wrong"),
    ],
)
def test_a_planted_fault_is_not_let_through(live, fault, said):
    found = live("--fault", fault, "--quiet")
    assert found.code == 1
    assert said in found.out


def test_reuse_that_forgets_is_seen(live, monkeypatch):
    monkeypatch.setattr("dsv4bench.workloads.kv_buffer.SparsePrefillKVBuffer.get_with_head", forgetful)
    assert live("--quiet").code == 1


def forgetful(buffer, rows, _key):
    return buffer.get(rows), False


def test_ctrl_c_checks_nothing(live, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dsv4bench.profiling.sweep.run", interrupt)
    found = live("--quiet")
    assert (found.code, found.out, found.err) == (130, "", "interrupted: nothing was checked\n")
