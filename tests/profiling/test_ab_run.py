"""An A/B from its cells to its records: in one process by turns, and pair after pair of fresh processes."""

import re
from dataclasses import replace

import pytest

from dsv4bench.errors import DsvError
from dsv4bench.profiling import ab_run, sweep
from dsv4bench.profiling.ab_child import Job, parse_job
from dsv4bench.profiling.ab_experiment import Experiment, cell_of
from dsv4bench.profiling.ab_rule import ALL_PAIRS, NARROW, TIME_LIMIT, Budget
from dsv4bench.profiling.ab_run import (
    CodeChanged,
    Launch,
    Run,
    finished_pairs,
    keys,
    missing,
    run_fresh,
    run_together,
    sampled,
)
from dsv4bench.profiling.clocks import Nvml
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.results.store import open_store, read_records, resume_store
from dsv4bench.results.trials import trials
from dsv4bench.workloads.options import PrefillArguments
from dsv4bench.workloads.sides import in_groups, two_sides
from tests.profiling.small_groups import TINY, FakeClock, groups, model, session

OFF_ON = {"a": {"reuse": "off"}, "b": {"reuse": "on"}}
EXPERIMENT = Experiment("s", {"a": "reuse=off", "b": "reuse=on"}, False, None, 3, 6, 2, False)


@pytest.fixture(autouse=True)
def weights(monkeypatch):
    """The weights of the small model are made once, and the tests' own heap is not collected between groups."""
    monkeypatch.setattr("gc.collect", lambda: 0)
    monkeypatch.setattr(sweep, "make_model", lambda geometry, *_: model(geometry))


@pytest.fixture
def only_timed(monkeypatch):
    """Groups that are neither verified nor counted."""
    for each in ("verify", "count"):
        monkeypatch.setattr(GroupRun, each, lambda group, again=False: None)


def twos(sides=OFF_ON, **typed):
    return two_sides(groups(TINY, **{"graph": False, **typed}), sides["a"], sides["b"])


@pytest.fixture
def runs(tmp_path):
    """Return a function that makes a `Run` into the folder of the test."""
    opened = []

    def make(cells, experiment=EXPERIMENT, budget=None):
        opened.append(open_store(tmp_path / "run"))
        return Run(cells, experiment, budget or Budget.of(None), opened[-1])

    yield make
    for store in opened:
        store.close()


def kept(run):
    return read_records(run.store.directory).records


def told(record, *names):
    return tuple(record.ab[name] for name in names)


# in one process


def test_both_sides_run_by_turns_and_become_one_record_each(runs):
    run = runs(twos(batch="1,2"))
    assert run_together(run, session()) == ALL_PAIRS
    records = kept(run)
    assert [(one.batch["requests"], one.variant["reuse"], one.ab["side"]) for one in records] == [
        (batch, reuse, side) for batch in (1, 2) for reuse, side in (("off", "a"), ("on", "b"))
    ]
    assert {told(one, "pair", "place", "block", "aa") for one in records} == {(None, None, 2, False)}
    assert {len(one.samples_ns["step_period"]) for one in records} == {6}
    assert [len(trial.pairs) for trial in trials(records)] == [3, 3]
    assert {tuple(one.timing["stop"]) for one in records} == {(ALL_PAIRS,)}
    assert records[0].group == records[1].group


def test_one_side_twice_is_timed_twice(runs):
    off = {"a": {"reuse": "off"}, "b": {"reuse": "off"}}
    run = runs(twos(off, reuse="off", graph=None), replace(EXPERIMENT, aa=True))
    run_together(run, session())
    *eager, a, b = kept(run)
    assert [one.mode for one in (*eager, a, b)] == ["eager", "eager", "tape", "tape"]
    assert (a.key, a.ab["side"], b.ab["side"]) == (b.key, "a", "b")
    assert a.variant == b.variant
    assert {one.status for one in (a, b)} == {"ok"}
    (trial,) = trials([a, b])
    assert (trial.aa, len(trial.pairs)) == (True, 3)


def test_without_a_number_of_pairs_the_rule_of_a_process_is_its_time():
    (two,) = twos()
    open_ended = replace(EXPERIMENT, pairs=None)
    assert sampled(two.a, open_ended).samples is None
    assert sampled(two.a, replace(open_ended, fresh=True)).samples == open_ended.block


def test_a_side_that_is_wrong_has_no_pairs(runs):
    run = runs(twos(fault="wrong-row"))
    run_together(run, session())
    (trial,) = trials(kept(run))
    assert (trial.a.status, trial.b.status, trial.pairs) == ("ok", "wrong", ())


def test_sampling_ends_when_all_differences_are_known_and_the_clock_of_every_pair_is_kept(runs, only_timed):
    class Nvidia:
        NVMLError = OSError
        readings = iter(range(1000, 3000))

        @classmethod
        def nvmlDeviceGetClockInfo(cls, handle, which):
            return next(cls.readings) if which == 1 else None

    run = runs(twos(), replace(EXPERIMENT, pairs=20, block=3))
    assert run_together(run, session(nvml=Nvml(Nvidia, "handle"))) == NARROW  # the clock of the test has no noise
    (trial,) = trials(kept(run))
    assert len(trial.pairs) == EXPERIMENT.least_pairs
    # a border before every pair, then A B, B A, A B and next B A, A B, B A: 1000 | 1001 to 1006 | 1007 | 1008 to 1013
    assert (trial.pairs[0].a_mhz, trial.pairs[0].b_mhz) == (1004, 1003)
    assert (trial.pairs[1].a_mhz, trial.pairs[1].b_mhz) == (1010, 1011)


def test_the_time_limit_ends_every_cell_after_a_pair(runs, only_timed):
    clock = FakeClock()
    run = runs(twos(batch="1,2"), replace(EXPERIMENT, pairs=50, least_pairs=1), Budget.of(30_000_000, clock.now_ns))
    assert run_together(run, session(clock=clock)) == TIME_LIMIT
    first, second = trials(kept(run))
    # two warm-ups of 1 ms, for twice the rows 1.41 times as much, then half of what is left: the fourth pair of 4 ms
    assert len(first.pairs) == 4
    # two warm-ups, then all of the 10 ms that are left
    assert len(second.pairs) == 3
    assert first.a.timing["stop"] == second.b.timing["stop"] == [TIME_LIMIT]


def test_what_the_time_limit_leaves_out_says_so(runs):
    times = iter([0, 2])
    run = runs(twos(batch="1,2"), budget=Budget.of(1, lambda: next(times, 2)))
    assert run_together(run, session()) == TIME_LIMIT
    assert {(one.status, one.reason) for one in kept(run)} == {
        ("skipped", "--time-limit was over before it was measured")
    }
    assert [len(trial.pairs) for trial in trials(kept(run))] == [0, 0]


def test_what_one_process_finished_is_not_measured_again(runs):
    cells = twos(batch="1,2")
    first, second = in_groups(cells)
    done = [
        EXPERIMENT.stamped(unmeasured(sampled(cell_of(two, side), EXPERIMENT), session(), "failed", "why"), two, side)
        for two in first
        for side in "ab"
    ]
    assert missing(cells, EXPERIMENT, session(), []) == cells
    assert missing(cells, EXPERIMENT, session(), done) == second
    assert missing(cells, replace(EXPERIMENT, session="other"), session(), done) == cells
    assert missing(cells, EXPERIMENT, session(), done[:1]) == cells  # a group runs whole


def test_what_the_time_limit_left_out_is_measured_by_the_run_that_goes_on(runs, only_timed):
    cells = twos(batch="1,2")
    times = iter([0, 0, 0])
    run = runs(cells, budget=Budget.of(1, lambda: next(times, 2)))
    assert run_together(run, session()) == TIME_LIMIT
    assert [trial.b.status for trial in trials(kept(run))] == ["ok", "skipped"]
    left = missing(cells, EXPERIMENT, session(), kept(run))
    assert in_groups(left) == in_groups(cells)[-1:]
    assert run_together(replace(run, twos=left, budget=Budget.of(None)), session(clock=FakeClock())) == ALL_PAIRS
    assert [trial.b.status for trial in trials(kept(run))] == ["ok", "ok"]
    assert missing(cells, EXPERIMENT, session(), kept(run)) == []


def test_the_keys_of_an_experiment_are_those_of_its_cells_with_their_samples():
    (two,) = twos()
    opened = dict.fromkeys("ab", session())
    one, fresh = (keys([two], replace(EXPERIMENT, fresh=fresh), opened) for fresh in (False, True))
    assert one == [replace(cell, samples=6).key(session().commit) for cell in (two.a, two.b)]
    assert fresh == [replace(cell, samples=2).key(session().commit) for cell in (two.a, two.b)]


# fresh processes


FRESH = replace(EXPERIMENT, fresh=True)
LAUNCHES = {side: Launch(("python", side), {"SIDE": side}, session()) for side in "ab"}


class Processes:
    """Stand for the processes of a run: each writes a record of every cell of its side, in a file of its own.

    `ran` is what ran, in order. `dies` holds after how many records the process of (pair, side) dies, `edits` what the
    records of (pair, side) say differently, since somebody edited what is measured.
    """

    def __init__(self, run):
        self.run, self.ran, self.dies, self.edits = run, [], {}, {}

    def __call__(self, command, environment, timeout_s):
        *program, text = command
        job = parse_job(text)
        assert (program, environment) == (["python", job.side], {"SIDE": job.side})
        self.ran.append(f"{job.pair}{job.side}{job.place}")
        left = self.dies.get((job.pair, job.side), len(self.run.twos))
        with resume_store(self.run.store.directory) as store:
            for two in self.run.twos[:left]:
                cell = sampled(cell_of(two, job.side), job.experiment)
                one = replace(unmeasured(cell, session(), "refused", "pretended"), **SAMPLES[job.side])
                one = replace(one, **self.edits.get((job.pair, job.side), {}))
                store.append(job.experiment.stamped(one, two, job.side, job.pair, job.place))
        if left < len(self.run.twos):
            raise DsvError("exit code 7")


SAMPLES = {
    side: {"status": "ok", "reason": None, "samples_ns": {"step_period": [ns, ns]}}
    for side, ns in (("a", 100), ("b", 90))
}


@pytest.fixture
def fresh(runs, monkeypatch):
    """Return a function that measures cells in processes that are pretended, and what ran."""

    def measure(cells, experiment=FRESH, done=(), dies=(), budget=None, run=None, edits=(), launches=LAUNCHES):
        run = run or runs(cells, experiment, budget)
        processes = Processes(run)
        processes.dies, processes.edits = dict(dies), dict(edits)
        monkeypatch.setattr(ab_run, "run_process", processes)

        def job(side, pair, place):
            directory = str(run.store.directory)
            return Job(experiment, PrefillArguments(), OFF_ON, side, pair, place, directory, ("dsv4bench",), ())

        return run, run_fresh(run, launches, job, done), processes.ran

    return measure


def test_pairs_of_fresh_processes_alternate_and_each_measures_all_cells_of_its_side(fresh):
    run, stop, ran = fresh(twos(batch="1,2"))
    assert stop == ALL_PAIRS
    assert ran == ["0a0", "0b1", "1b0", "1a1", "2a0", "2b1"]
    found = trials(kept(run))
    assert [(trial.how, len(trial.pairs)) for trial in found] == [("fresh processes", 3)] * 2
    assert {told(one, "pair", "side", "place") for one in kept(run)} == {
        (0, "a", 0), (0, "b", 1), (1, "b", 0), (1, "a", 1), (2, "a", 0), (2, "b", 1),
    }  # fmt: skip


def test_a_process_that_dies_leaves_what_it_wrote_and_a_reason_for_the_rest(fresh):
    cells = twos(batch="1,2,3")
    run, stop, ran = fresh(cells, dies={(1, "b"): 1, (2, "a"): 0})
    assert (stop, len(ran)) == (ALL_PAIRS, 6)
    lost = [one for one in kept(run) if one.status == "failed"]
    assert {one.reason for one in lost} == {"its process: exit code 7"}
    assert [told(one, "pair", "side") for one in lost] == [(1, "b")] * 2 + [(2, "a")] * 3
    assert [one.batch["requests"] for one in lost] == [2, 3, 1, 2, 3]
    assert {one.any.batch["requests"]: len(one.pairs) for one in trials(kept(run))} == {1: 2, 2: 1, 3: 1}


def test_pairs_that_are_there_are_not_measured_again(fresh):
    cells = twos(batch="1,2")
    run, _, _ = fresh(cells, dies={(1, "b"): 1})
    assert finished_pairs(cells, FRESH, kept(run)) == {0, 1, 2}  # a process that died is a record too
    half = [one for one in kept(run) if told(one, "pair", "side") != (2, "a")]
    assert finished_pairs(cells, FRESH, half) == {0, 1}
    assert finished_pairs(cells, FRESH, half[:1]) == set()
    assert finished_pairs(cells, replace(FRESH, session="other"), kept(run)) == set()
    _, stop, ran = fresh(cells, done={0, 2}, run=run)
    assert (stop, ran) == (ALL_PAIRS, ["1b0", "1a1"])


@pytest.mark.parametrize(
    ("limit", "pairs"),
    [(1, 1), (99, 1), (100, 2), (139, 2), (140, 3)],
    ids=["the first always", "no half pair", "two whole ones", "no half third", "all"],
)
def test_no_pair_begins_that_would_by_the_longest_so_far_end_after_the_time_limit(fresh, limit, pairs):
    times = iter([0, 0, 50, 90])  # the first pair takes 50, the second 40
    _, stop, ran = fresh(twos(), budget=Budget.of(limit, lambda: next(times)))
    assert stop == (ALL_PAIRS if pairs == 3 else TIME_LIMIT)
    assert ran == ["0a0", "0b1", "1b0", "1a1", "2a0", "2b1"][: 2 * pairs]


def test_pairs_end_as_soon_as_all_differences_are_known_well_enough(fresh):
    run, stop, ran = fresh(twos(), replace(FRESH, pairs=20))
    assert (stop, len(ran)) == (NARROW, 2 * FRESH.least_pairs)  # without noise
    assert [len(trial.pairs) for trial in trials(kept(run))] == [FRESH.least_pairs]


EDITED = {
    "dsv4bench": {"environment": session().environment | {"diff": "e1"}},
    "the source tree sglang": {"environment": session().environment | {"src": {"name": "sglang", "commit": "c2"}}},
    "a provider's file": {},
}


@pytest.mark.parametrize("told", EDITED)
@pytest.mark.parametrize("known", [True, False], ids=["keys-known", "keys-of-the-first"])
def test_a_process_that_ran_other_code_ends_the_run_and_leaves_no_record(fresh, runs, told, known):
    cells = twos(batch="1,2")
    run = runs(cells, FRESH)
    expected = frozenset(keys(cells, FRESH, dict.fromkeys("ab", session()))) if known else None
    launches = {side: replace(launch, keys=expected) for side, launch in LAUNCHES.items()}
    said = f"stopped: {told} changed before pair 2, side b; left out: 2 records of it"
    with pytest.raises(CodeChanged, match=re.escape(said)):
        fresh(cells, run=run, launches=launches, edits={(1, "b"): {"key": "of other code", **EDITED[told]}})
    assert {(one.ab["pair"], one.ab["side"]) for one in kept(run)} == {(0, "a"), (0, "b")}
    assert [len(trial.pairs) for trial in trials(kept(run))] == [1, 1]


def test_the_first_process_must_have_run_the_code_that_was_looked_at(fresh, runs):
    run = runs(twos(), FRESH)
    launches = {side: replace(launch, keys=frozenset({"another"})) for side, launch in LAUNCHES.items()}
    with pytest.raises(CodeChanged, match="before pair 1, side a; left out: 1 record"):
        fresh(twos(), run=run, launches=launches)
    assert kept(run) == []


def test_ctrl_c_leaves_no_record_of_a_process_that_it_ended(fresh, monkeypatch):
    cells = twos()
    run, _, _ = fresh(cells)
    before = len(kept(run))
    monkeypatch.setattr(Processes, "__call__", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fresh(cells, done={0}, run=run)
    assert len(kept(run)) == before
