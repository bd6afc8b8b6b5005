"""`dsv4bench ab` from end to end on a tiny model: sides, pairs, verdicts, the block, gates, resuming, the dry run."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsv4bench.cli import FAILED, INCOMPLETE, NOTHING, OK
from dsv4bench.cli_ab_run import gated
from dsv4bench.errors import DsvError
from dsv4bench.profiling import ab_child, ab_run, sweep
from dsv4bench.profiling.ab_child import parse_job
from dsv4bench.profiling.ab_rule import Budget
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.results.stats import Interval
from dsv4bench.results.store import Store, read_records
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import judge
from tests.command_line import HERE, command_line, tiny_config
from tests.results.synthetic import counts, lost, record, row, with_side

LENGTHS = ("--extend", "4", "--prefix", "60")
REUSE = ("--a", "reuse=off", "--b", "reuse=on")
SLOW = Path(__file__).parents[1] / "examples" / "04_a_slow_kernel.py"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, config):
    """Run `ab prefill` on eager cells of the tiny model in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gc.collect", lambda: 0)  # the tests' own heap takes longer to collect than a step
    command = command_line(monkeypatch, capsys)
    return lambda *words: command("ab", "prefill", "--geometry", config, *LENGTHS, "--no-graph", *words)


STEP_NS = {"off": 1_000_000, "on": 900_000}  # reuse saves a tenth


@pytest.fixture
def pretended(monkeypatch):
    """Stand for the measuring: steps of `STEP_NS`, each sample a little longer; returns the groups that were run."""
    ran = []

    def run_group(group, model, session, progress):
        progress("pretend")
        ran.append(group)
        return [measured(cell, session) for cell in group]

    monkeypatch.setattr(sweep, "run_group", run_group)

    def make_model(geometry, _, seed):
        return SimpleNamespace(geometry=geometry, seed=seed, reserved=None)

    monkeypatch.setattr(sweep, "make_model", make_model)
    return ran


def measured(cell, session):
    """The record of a cell that took what `STEP_NS` says."""
    step_ns = STEP_NS[cell.variant.reuse]
    samples = [step_ns + 100 * (place % 3) for place in range(cell.samples)]
    one = unmeasured(cell, session, "failed", "not yet")
    return replace(one, status="ok", reason=None, samples_ns={"step_period": samples}, timing={"stop": ["all pairs"]})


@pytest.fixture
def processes(monkeypatch):
    """Run the jobs of fresh processes in this one; returns them, and what each would have been started with."""
    started = []

    def run_process(command, environment, timeout_s):
        started.append(SimpleNamespace(job=parse_job(command[-1]), command=command, environment=environment))
        if ab_child.main(command[-1]):
            raise DsvError("the child failed")

    monkeypatch.setattr(ab_run, "run_process", run_process)
    return started


def words(found):
    return " ".join(found.out.split())


# in one process


def test_a_run_prints_verdicts_and_keeps_a_record_of_each_side(run, pretended, tmp_path):
    found = run(*REUSE, "--batch", "1,2")
    assert found.code == 0
    assert "Verdicts: reuse=off (a) against reuse=on (b)" in words(found)
    assert found.out.count("FASTER") == 2
    assert re.search(r"\b7 pairs\b", words(found))  # 2^(1-7) <= 0.05 / 2 cells
    assert max(map(len, found.out.splitlines())) <= 80
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("Z-ab")
    assert found.err.splitlines()[-1] == f"records: results/{folder.name}"
    records = read_records(folder).records
    assert [(one.batch["requests"], one.ab["side"], one.variant["reuse"]) for one in records] == [
        (batch, side, reuse) for batch in (1, 2) for side, reuse in (("a", "off"), ("b", "on"))
    ]
    assert len({one.ab["session"] for one in records}) == 1
    assert [[cell.variant.reuse for cell in group] for group in pretended] == [["off", "on"]] * 2


def test_show_prints_the_verdicts_of_such_a_folder_first(run, pretended, monkeypatch, capsys):
    run(*REUSE, "--out", "run")
    found = command_line(monkeypatch, capsys)("show", "run")
    assert found.out.startswith("Verdicts: reuse=off (a) against reuse=on (b)")
    assert "Step time, reuse off (before) and on (after)" in words(found)


def test_json_is_the_records_that_were_kept(run, pretended, tmp_path):
    found = run(*REUSE, "--out", "run", "--json", "--quiet")
    assert (found.code, found.err) == (0, "")
    (file,) = (tmp_path / "run").glob("*.jsonl")
    assert json.loads(found.out) == [json.loads(line) for line in file.read_text().splitlines()]


def test_pairs_samples_and_least_effect_are_as_asked_for(run, pretended):
    found = run(*REUSE, "--pairs", "8", "--samples", "3", "--min-effect", "50us", "--json")
    one, _ = json.loads(found.out)
    assert len(one["samples_ns"]["step_period"]) == 24
    assert (one["ab"]["block"], one["ab"]["min_effect"]) == (3, {"absolute_ns": 50000.0})


def test_too_few_pairs_are_told_before_they_are_taken(run, pretended):
    found = run(*REUSE, "--pairs", "3")
    assert found.err.splitlines()[0] == "too few pairs: with fewer than 6 no verdict on 1 cell can name a difference"
    assert "INCONCLUSIVE" in found.out


def test_one_side_twice_is_the_noise_floor_and_is_kept_beside_the_verdicts(run, pretended):
    run(*REUSE, "--out", "run")
    found = run(*REUSE, "--aa", "--resume", "run")
    assert found.code == 0
    assert "Verdicts: A/A, reuse=off on both sides" in words(found)
    assert "Verdicts: reuse=off (a) against reuse=on (b)" in words(found)
    sides = [(one.ab["aa"], one.ab["side"], one.variant["reuse"]) for one in read_records(Path("run")).records]
    assert sorted(sides) == [(False, "a", "off"), (False, "b", "on"), (True, "a", "off"), (True, "b", "off")]


def test_a_planted_wrong_byte_gives_no_verdict(run):
    found = run(*REUSE, "--fault", "wrong-row", "--pairs", "1", "--gate")
    assert found.code == 1
    assert "WRONG" in found.out
    assert "no verdict: b: wrong: reused heads: 1 of 1 reused heads differ" in words(found)
    assert "FASTER" not in found.out


# fresh processes


def test_sides_that_cannot_share_a_process_run_in_pairs_of_fresh_ones(run, processes, pretended, tmp_path):
    found = run("--a", "kv=v4", "--b", "kv=v41", "--reuse", "on", "--out", "run")
    assert found.code == 0
    lines = found.err.splitlines()
    assert lines[:3] == [
        "a and b differ in kv: pairs of fresh processes",
        "[pair 1/6] a: kv=v4",
        "[pair 1/6] b: kv=v41",
    ]
    assert [(one.job.pair, one.job.side) for one in processes][:4] == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]
    assert re.search(r"\b6 pairs of fresh processes\b", words(found))
    records = read_records(tmp_path / "run").records
    assert {one.variant["kv"] for one in records if one.ab["side"] == "b"} == {"v41"}
    assert len({(one.ab["pair"], one.ab["side"]) for one in records}) == len(records) == 12


def test_what_could_share_a_process_runs_in_fresh_ones_where_asked(run, processes, pretended):
    found = run(*REUSE, "--fresh", "--pairs", "1")
    assert found.err.splitlines()[1:3] == ["[pair 1/1] a: reuse=off", "[pair 1/1] b: reuse=on"]
    assert [len(one.job.twos()) for one in processes] == [1, 1]
    assert {one.job.arguments.samples for one in processes} == {3}
    assert [len(read_records(file).records) for file in Path("results").glob("*/*")] == [1, 1]  # a file a process


def test_a_run_that_is_stopped_before_its_first_record_can_go_on(run, processes, pretended, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(ab_run, "run_process", stop)
        assert run(*REUSE, "--fresh", "--pairs", "1", "--out", "run").code == 130
    assert list(Path("run").iterdir()) == []
    assert run(*REUSE, "--fresh", "--pairs", "1", "--resume", "run").code == 0
    assert len(processes) == 2


def test_code_that_is_edited_between_pairs_ends_the_run_and_keeps_what_was_measured(
    run, processes, pretended, monkeypatch
):
    honest = ab_run.run_process

    def edit(*given):
        if len(processes) == 3:
            monkeypatch.setitem(HERE, "commit", "beef" * 10)
        honest(*given)

    monkeypatch.setattr(ab_run, "run_process", edit)
    found = run(*REUSE, "--fresh", "--pairs", "6", "--out", "run", "--quiet")
    assert found.code == INCOMPLETE
    assert found.err.splitlines() == [
        "stopped: dsv4bench changed before pair 2, side a; left out: 1 record of it",
        "records: run; --resume measures the new code as another experiment",
    ]
    assert "1 pair of fresh processes" in words(found)
    assert len(processes) == 4
    records = read_records(Path("run")).records
    assert sorted((one.ab["pair"], one.ab["side"]) for one in records) == [(0, "a"), (0, "b"), (1, "b")]


def test_a_side_whose_process_dies_is_a_reason_and_the_exit_code_is_1(run, monkeypatch):
    def die(*_):
        raise DsvError("exit code 7")

    monkeypatch.setattr(ab_run, "run_process", die)
    found = run(*REUSE, "--fresh", "--pairs", "1")
    assert found.code == 1
    assert "no verdict: both sides: failed: its process: exit code 7" in words(found)


def test_a_planted_slowdown_gates_red(run, processes, monkeypatch, tmp_path):
    for each in ("verify", "count"):  # what is timed is real
        monkeypatch.setattr(GroupRun, each, lambda group, again=False: None)
    slow = ("--a", "provider=auto", "--b", f"provider=rms_norm={SLOW}:slow", "--reuse", "on", "--gate")
    found = run(*slow, "--samples", "1", "--out", "run")
    assert found.code == 1
    assert "SLOWER" in found.out
    assert len(processes) == 0
    records = read_records(Path("run")).records
    assert [one.variant["provider"] for one in records] == ["torch", f"torch/rms_norm={SLOW}:slow"]
    assert [(one.ab["side"], one.ab["pair"]) for one in records] == [("a", None), ("b", None)]


# what the exit code says


CELL = "eager, kv v41+fp4, batch 1 x 1024"


def verdict(word, aa=False, a="ok", b="ok", batch=1):
    """A verdict of +0.93 % [+0.55 %, +1.31 %] on reuse=off (a) and reuse=on (b); None: a side that was not run."""
    sides = {
        side: with_side(
            record(batch, reuse) if status == "ok" else lost(status, "boom", batch=batch, reuse=reuse), side, aa=aa
        )
        for side, reuse, status in (("a", "off", a), ("b", "on", b))
        if status
    }
    (trial,) = trials(sides.values())
    (judged,) = judge([trial])
    return replace(judged, word=word, ratio=Interval(1.0093, 1.0055, 1.0131, 0.95))


@pytest.mark.parametrize(
    ("code", "verdicts", "options", "expected"),
    [
        (OK, [verdict("SLOWER")], (), OK),
        (OK, [verdict("SLOWER")], ("gate",), FAILED),
        (OK, [verdict("FASTER"), verdict("SAME")], ("gate", "strict"), OK),
        (OK, [verdict("SLOWER", aa=True)], ("gate", "strict"), OK),
        (OK, [verdict("INCONCLUSIVE")], ("gate",), OK),
        (OK, [verdict("INCONCLUSIVE")], ("gate", "strict"), INCOMPLETE),
        (OK, [verdict("INCONCLUSIVE"), verdict("SLOWER")], ("gate", "strict"), FAILED),
        (INCOMPLETE, [verdict("SAME")], ("gate",), INCOMPLETE),
        (INCOMPLETE, [verdict("SLOWER")], ("gate",), FAILED),
        (FAILED, [verdict("FASTER"), verdict(None)], (), FAILED),
        (NOTHING, [verdict(None)], ("gate", "strict"), NOTHING),
        (OK, [verdict(None, b="out_of_memory")], ("gate",), FAILED),
        (OK, [verdict(None, b="out_of_memory")], (), OK),
        (OK, [verdict(None, a="out_of_memory")], ("gate",), OK),
        (OK, [verdict(None, a="out_of_memory", b="out_of_memory")], ("gate",), OK),
        (OK, [verdict(None, a="refused", b="refused"), verdict("SAME")], ("gate", "strict"), OK),
        (OK, [verdict(None, a="skipped", b="skipped"), verdict("SAME")], ("gate",), OK),
        (OK, [verdict(None, a="skipped", b="skipped"), verdict("SAME")], ("gate", "strict"), INCOMPLETE),
        (OK, [verdict(None), verdict("SAME")], ("gate", "strict"), INCOMPLETE),
        (OK, [verdict(None, b=None), verdict("SAME")], ("gate", "strict"), INCOMPLETE),
    ],
    ids=[
        *("slower, no gate", "slower", "faster", "A/A", "inconclusive", "strict", "slower counts more"),
        *("not attributed", "not attributed and slower", "wrong", "nothing measured"),
        *("does not fit any more", "does not fit, no gate", "fits now", "never fitted", "both refused"),
        *("never reached", "never reached, strict", "pairs refused, strict", "not run, strict"),
    ],
)
def test_the_exit_code_that_verdicts_earn(code, verdicts, options, expected):
    assert gated(code, verdicts, "gate" in options, "strict" in options) == expected


@pytest.mark.parametrize(
    ("verdicts", "stops", "passes"),
    [
        ([verdict("SLOWER")], [f"SLOWER: {CELL}: +0.93 % [+0.55 %, +1.31 %]"], []),
        (
            [verdict("INCONCLUSIVE", batch=batch) for batch in range(1, 11)],
            [],
            ["INCONCLUSIVE: eager, kv v41+fp4, batch 1, 2, 3, 4, 5, 6, 7, 8 and 2 more"],
        ),
        ([verdict(None, b="wrong")], [f"no time any more: {CELL}: b: wrong: boom"], []),
        ([verdict(None, b="out_of_memory")], [f"no time any more: {CELL}: b: out_of_memory: boom"], []),
        ([verdict(None, a="failed")], [f"failed: {CELL}: a: boom"], []),
        ([verdict(None, a="failed", aa=True)], [f"failed: {CELL}: a: boom"], []),
        (
            [verdict(None, a="skipped", b="skipped"), verdict(None, a="out_of_memory", batch=2)],
            [],
            [
                "both sides: skipped: boom: eager, kv v41+fp4, batch 1",
                "a: out_of_memory: boom: eager, kv v41+fp4, batch 2",
            ],
        ),
        ([verdict("FASTER"), verdict("SLOWER", aa=True), verdict(None, a="refused", b="refused")], [], []),
        ([], [], []),
    ],
    ids=[
        "slower",
        "inconclusive",
        "wrong",
        "does not fit any more",
        "failed",
        "A/A failed",
        "no verdict",
        "good",
        "none",
    ],
)
@pytest.mark.parametrize("strict", [False, True], ids=["gate", "strict"])
def test_what_stops_a_gate_is_said_with_its_cells(capsys, verdicts, stops, passes, strict):
    assert gated(OK, verdicts, True, strict) == (FAILED if stops else INCOMPLETE if passes and strict else OK)
    said = [f"gate: {'' if strict else 'passed: '}{line}" for line in passes]
    assert capsys.readouterr().err.splitlines() == [*(f"gate: {line}" for line in stops), *said]
    gated(OK, verdicts, False, False)
    assert capsys.readouterr().err == ""


def test_a_gate_calls_a_cell_without_what_is_switched(capsys):
    cells = [record(8, graph=graph) for graph in (False, True)]
    named = ("graph=off", "graph=on")
    (trial,) = trials([with_side(one, side, named) for one, side in zip(cells, "ab", strict=True)])
    gated(OK, [replace(verdict("SLOWER"), trial=trial)], True, False)
    assert capsys.readouterr().err.startswith(
        "gate: SLOWER: eager -> graph, reuse on, kv v41+fp4, batch 8 x 1024: +0.93 %"
    )


def test_a_gate_says_what_reuse_launches_more(capsys):
    one = verdict("FASTER")
    more = replace(one.trial.b, counts=counts("on", extra=[row("sparse_attention", 2, "eager", 0, copies=3)]))
    slow = replace(one, trial=replace(one.trial, b=more, processes=(one.trial.a, more)))
    assert gated(FAILED, [slow], True, False) == FAILED
    assert capsys.readouterr().err.startswith(
        "gate: added launches: eager, reuse on, kv v41+fp4, batch 1 x 1024: sparse_"
    )


def test_a_gate_lets_noise_pass_and_strict_does_not(run, pretended):
    cell = "eager, kv v41+fp4, batch 1"
    for typed, code, said in (
        ("--a reuse=off --b reuse=on --pairs 2", 0, f"gate: passed: INCONCLUSIVE: {cell}"),
        ("--a reuse=off --b reuse=on --pairs 2 --strict --quiet", 3, f"gate: INCONCLUSIVE: {cell}"),
        ("--a reuse=on --b reuse=off", 1, f"gate: SLOWER: {cell} x 4: +11.11 % [+11.11 %, +11.11 %]"),
    ):
        found = run(*typed.split(), "--gate", "--out", str(code))
        assert (found.code, found.err.splitlines()[-1]) == (code, said)


# the block for a pull request


def test_the_block_goes_to_a_file_or_to_stdout(run, pretended, tmp_path):
    found = run(*REUSE, "--md", "block.md", "--out", "run")
    block = (tmp_path / "block.md").read_text()
    assert "FASTER" in found.out
    assert block.startswith("<!-- dsv4bench:begin")
    assert run(*REUSE, "--md", "-", "--resume", "run", "-q").out == block


# the dry run


def test_a_dry_run_says_what_each_cell_can_tell_and_runs_nothing(run, pretended, tmp_path):
    found = run(*REUSE, "--batch", "256,512", "--dry-run")
    assert (found.code, found.err, pretended) == (0, "", [])
    assert "plan: reuse=off (a) against reuse=on (b), 2 cells by turns in one process, 2 samples" in words(found)
    assert "? not resolvable here: the predicted effect is smaller than what the cell tells" in words(found)
    assert "noise of a sample: 1.00 % assumed" in words(found)
    assert max(map(len, found.out.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json_holds_every_figure(run):
    (one,) = json.loads(run(*REUSE, "--dry-run", "--json").out)
    # 7 ms a step, bound by its calls, and one call of 0.2 ms less with reuse (workloads/model.py)
    assert (one["label"], one["status"], one["reuse"], one["pairs"], one["block"]) == (
        "modelled",
        "planned",
        None,
        6,
        2,
    )
    assert one["sides"] == {"a": "reuse=off", "b": "reuse=on"}
    assert one["predicted_ns"] == one["b_step_ns"] - one["a_step_ns"] == -200_000
    assert one["min_effect_ns"] == pytest.approx(0.01 * one["a_step_ns"])
    assert one["resolvable"] is True
    assert one["time_ns"] == pytest.approx((12 + 8) * (one["a_step_ns"] + one["b_step_ns"]))


def test_a_modelled_step_that_its_work_binds_is_shorter_by_the_bytes_of_reuse(run):
    (one,) = json.loads(run(*REUSE, "--batch", "256", "--dry-run", "--json").out)
    assert one["predicted_ns"] == pytest.approx(-256 * 32 * 1312 / 4)  # 1.312 KB a row at 4 GB/s


@pytest.mark.parametrize(
    ("sides", "predicted"),
    [
        (("--a", "reuse=on", "--b", "reuse=off"), "slower"),
        (("--a", "path=sparse", "--b", "path=recipe"), "nothing"),
        (("--a", "reuse=off", "--aa"), "nothing"),
    ],
    ids=["the other way round", "not in the model", "A/A"],
)
def test_what_is_predicted_goes_by_the_sides(run, sides, predicted):
    one = json.loads(run(*sides, "--dry-run", "--json").out)[0]
    assert (one["predicted_ns"] is None) == (predicted == "nothing")
    assert (one["predicted_ns"] or 1) > 0


def test_a_dry_run_takes_its_noise_from_the_floor_that_was_measured(run, pretended):
    run("--a", "reuse=off", "--aa", "--out", "run", "--pairs", "8")
    found = run(*REUSE, "--dry-run", "--out", "run")
    assert "by the A/A of run" in words(found)
    assert "assumed;" not in words(found)


# resuming


def test_resume_measures_only_what_is_missing_in_one_process(run, pretended):
    first = run(*REUSE, "--batch", "2", "--pairs", "7", "--out", "run")
    pretended.clear()
    again = run(*REUSE, "--batch", "2", "--pairs", "7", "--resume", "run")
    assert (first.code, again.code, pretended) == (0, 0, [])
    assert again.out == first.out
    more = run(*REUSE, "--batch", "2", "--pairs", "8", "--resume", "run")
    assert (more.code, len(pretended)) == (0, 1)
    assert len({one.ab["session"][-8:] for one in read_records(Path("run")).records}) == 2  # another experiment


def test_resume_goes_on_with_the_missing_pairs(run, processes, pretended):
    run(*REUSE, "--fresh", "--pairs", "2", "--out", "run")
    processes.clear()
    found = run(*REUSE, "--fresh", "--pairs", "3", "--resume", "run")
    assert [(one.job.pair, one.job.side) for one in processes] == [(2, "a"), (2, "b")]
    assert len({one.ab["session"] for one in read_records(Path("run")).records}) == 1
    assert "3 pairs of fresh processes" in words(found)


def test_another_commit_is_another_session(run, processes, pretended, monkeypatch):
    run(*REUSE, "--fresh", "--pairs", "1", "--out", "run")
    monkeypatch.setitem(HERE, "commit", "beef" * 10)
    run(*REUSE, "--fresh", "--pairs", "1", "--resume", "run")
    assert len(processes) == 4


def test_ctrl_c_keeps_what_is_finished_and_prints_the_command_that_goes_on(run, pretended, monkeypatch, config):
    honest, appended = Store.append, []

    def append(store, record):
        if len(appended) == 3:
            raise KeyboardInterrupt
        appended.append(record)
        honest(store, record)

    monkeypatch.setattr(Store, "append", append)
    found = run(*REUSE, "--batch", "1,2", "--out", "run")
    assert (found.code, found.out) == (130, "")
    said, command = found.err.splitlines()[-2:]
    assert said == "interrupted: kept in run: 3 records; go on with"
    assert shlex.split(command) == [
        "dsv4bench", "ab", "prefill", "--geometry", str(config), *LENGTHS, "--no-graph", *REUSE, "--batch", "1,2",
        "--resume", "run",
    ]  # fmt: skip
    monkeypatch.setattr(Store, "append", honest)
    pretended.clear()
    assert run(*shlex.split(command)[6:][4:-4], "--batch", "1,2", "--resume", "run").code == 0
    assert [len(group[0].load.requests) for group in pretended] == [2]


def test_a_cell_that_the_time_limit_left_out_is_an_exit_code_until_it_is_measured(run, pretended, monkeypatch):
    with monkeypatch.context() as late:
        late.setattr(Budget, "spent", property(lambda _: bool(pretended)))
        found = run(*REUSE, "--batch", "1,2", "--time-limit", "9", "--out", "run")
    assert (found.code, len(pretended)) == (3, 1)
    final, _, said, command = found.err.splitlines()[-4:]
    assert final == "a cell that has pairs takes no more of them: for more, give more time in another folder"
    assert said == "what was never reached is measured by"
    assert shlex.split(command)[-6:] == ["--batch", "1,2", "--time-limit", "9", "--resume", "run"]
    found = run(*REUSE, "--batch", "1,2", "--time-limit", "9", "--resume", "run")
    assert (found.code, len(pretended)) == (0, 2)
    assert "never reached" not in found.err


def test_the_time_limit_is_told(run, processes, pretended):
    found = run(*REUSE, "--fresh", "--pairs", "4", "--time-limit", "0.000001")
    assert len(processes) == 2
    assert (
        "stopped at --time-limit 0.000001: cells have fewer pairs than were asked for, or none"
        in found.err.splitlines()
    )
    assert found.err.splitlines()[-2] == "what was never reached is measured by"  # pairs
    assert "takes no more" not in found.err


# slips


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "ab: a and b are the same; add --aa to measure the noise floor, or change one"),
        ("--a reuse=off", "--a reuse=off: expected both to name the same switches; only one names reuse"),
        ("--a reuse=off --b reuse=off", "--a reuse=off --b reuse=off: a and b are the same; add --aa"),
        ("--a reus=off --b reus=on", "--a reus=off: no such switch (did you mean 'reuse'?); known: reuse, compressor"),
        ("--a reuse=off --b reuse=onn", "--b reuse=onn: not known (did you mean 'on'?); known: on, off"),
        ("--a reuse=off --b reuse=on --reuse on", "--reuse: --a and --b already say reuse; expected one of both"),
        ("--a reuse=off --b reuse=on --pairs 0", "--pairs 0: expected at least 1"),
        ("--a reuse=off --b reuse=on --samples x", "--samples x: expected a whole number of at least 1"),
        ("--a reuse=off --b reuse=on --min-effect 5", "--min-effect 5: expected a number and one of %"),
        ("--a reuse=off --b reuse=on --time-limit 0", "--time-limit 0: expected seconds above 0, or minutes or hours"),
        ("--a reuse=off --b reuse=on --strict", "--strict: says what --gate lets pass; expected --gate too"),
        ("--a reuse=off --b reuse=on --md x/y.md", "--md x/y.md: no such directory as x"),
        ("--a reuse=off --b reuse=on --format tabel", "--format tabel: expected one of table, md"),
        ("--a reuse=off --b reuse=on --resume nowhere", "--resume nowhere: no such directory"),
        ("--a reuse=off --b reuse=on --out a --resume b", "--out a: --resume b already says where records go"),
        ("--a graph=off --b graph=on", "--no-graph: --a and --b already say graph"),
        ("--a breaks=sm100 --b breaks=hopper", "no cell of this plan has breaks on both sides"),
        ("--a-src nowhere", "--a-src nowhere: neither a directory nor a git revision of"),
        ("--a-env nowhere", "--a-env nowhere: no such file; expected the Python of an environment"),
    ],
    ids=lambda value: value if value.startswith("--a") else "",
)
def test_a_slip_is_one_line_and_exit_code_2(run, pretended, tmp_path, typed, said):
    assert said in run(*typed.split()).slip
    assert list(tmp_path.iterdir()) == []


def test_more_than_memory_takes_is_refused_before_anything_runs(run, pretended, monkeypatch, tmp_path):
    monkeypatch.setattr("dsv4bench.cli_ab_run.free_bytes", lambda device: 1)
    found = run(*REUSE)
    assert (found.code, pretended, list(tmp_path.iterdir())) == (2, [], [])
    assert "needed (modelled)" in found.err
