"""Trials read back from records: who belongs to whom, and which samples are a pair."""

from dataclasses import replace
from itertools import permutations
from statistics import median

import pytest

from dsv4bench.results.compare import compare, latest, pairs
from dsv4bench.results.trials import FRESH, ONE_PROCESS, PairOfSamples, trials
from tests.results.synthetic import GPU, lost, record, with_variant

REUSE = {"a": "reuse=off", "b": "reuse=on"}


def field(side, pair=None, sides=REUSE, **changes):
    """What a record of `ab` says of itself."""
    own = {"session": "s", "side": side, "sides": sides, "pair": pair, "place": "ab".index(side), "block": 2}
    return {**own, "aa": False, "min_effect": {"relative": 0.005}, "sm_mhz": None, **changes}


def side(name, samples=(1, 2, 3, 4), pair=None, reuse=None, mhz=None, sides=REUSE, **changes):
    """The record of one side."""
    ab = field(name, pair, sides, sm_mhz=mhz)
    reuse = reuse or {"a": "off", "b": "on"}[name]
    return record(reuse=reuse, samples_ns={"step_period": list(samples)}, ab=ab, **changes)


def test_samples_that_alternated_are_split_into_blocks_of_the_same_place():
    (trial,) = trials([side("a", [1, 2, 3, 4, 5], mhz=[1980, None]), side("b", [6, 7, 8, 9, 10], mhz=[1970])])
    assert (trial.how, trial.aa, trial.sides) == (ONE_PROCESS, False, ("reuse=off", "reuse=on"))
    assert trial.pairs == (PairOfSamples((1, 2), (6, 7), 1980, 1970), PairOfSamples((3, 4), (8, 9), None, None))


@pytest.mark.parametrize(
    ("count", "pairs", "sizes"),
    [(64, 64, {2}), (95, 95, {2}), (97, 48, {4, 6}), (530, 66, {16, 18})],
    ids=["few", "still few", "two and two", "eight by eight"],
)
def test_many_pairs_of_one_process_are_merged_with_their_neighbours(count, pairs, sizes):
    taken, clocks = list(range(1, 2 * count + 1)), [1000.0 + 2 * place for place in range(count)]
    (trial,) = trials([side("a", taken, mhz=clocks), side("b", taken)])
    assert len(trial.pairs) == pairs
    assert {len(pair.a_ns) for pair in trial.pairs} == sizes
    assert [time for pair in trial.pairs for time in pair.b_ns] == taken  # all of them, in their order
    assert all(pair.a_mhz == pytest.approx(1000 + median(pair.a_ns) - 1.5) for pair in trial.pairs)


def test_of_fresh_processes_the_pairs_are_those_of_which_both_have_a_time():
    records = [
        side("a", [10], 0, mhz=[1900, 1980, 1985]), side("b", [20], 0),
        side("b", [21], 1), side("a", [11], 1),
        side("a", [12], 2), lost("failed", "died", reuse="on", ab=field("b", 2)),
    ]  # fmt: skip
    (trial,) = trials(records)
    assert trial.how == FRESH
    assert trial.pairs == (PairOfSamples((10,), (20,), 1980, None), PairOfSamples((11,), (21,)))
    assert trial.b.status == "ok"  # a process that died takes nothing from the others


def test_a_pair_that_was_measured_again_stands_once():
    records = [side("a", [10], 0), side("a", [11], 0), side("b", [20], 0)]
    assert trials(records)[0].pairs == (PairOfSamples((11,), (20,)),)


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=lambda order: "".join(map(str, order)))
@pytest.mark.parametrize("pair", [None, 0], ids=["one process", "fresh processes"])
def test_the_side_that_was_made_last_stands_whatever_was_read_last(pair, order):
    cells = [
        side(name, [first, first], pair, created=f"2026-11-30T12:0{minute}:00+00:00")
        for name, first, minute in (("a", 10, 0), ("b", 20, 1), ("b", 21, 2), ("a", 11, 3))
    ]
    (trial,) = trials([cells[place] for place in order])
    assert trial.pairs == (PairOfSamples((11, 11), (21, 21)),)
    assert (trial.a, trial.b) == (cells[3], cells[2])
    assert trial.processes == (cells[0], cells[3], cells[1], cells[2])


@pytest.mark.parametrize("again", ["a", "b"])
@pytest.mark.parametrize("pair", [None, 1], ids=["one process", "one of several processes"])
def test_a_side_that_failed_when_measured_again_is_no_pair_with_its_first_time(pair, again):
    """The other side's new time was measured next to the failure, not next to the first time."""
    failed = lost("failed", "died", reuse={"a": "off", "b": "on"}[again], ab=field(again, pair))
    second = side("b" if again == "a" else "a", [5, 6, 7, 8], pair)
    (trial,) = trials([side("a", pair=pair), side("b", pair=pair), second, failed])
    assert trial.pairs == ()


UNLIKE = {
    "driver": ({"driver": "590.1"}, "driver: 580 in a, 590 in b"),
    "power limit": ({"power_limit_mw": 500_000}, "power limit: 700 W in a, 500 W in b"),
    "host": ({"cpu": "Grace"}, "host: a CPU in a, Grace in b"),
    "chip": ({"gpu_chip": "3333"}, "GPU chip: 1111 in a, 3333 in b"),
    "profiler": ({"injected": ["nsys"]}, "profiler: none in a, nsys in b"),
}


@pytest.mark.parametrize(("changes", "reason"), UNLIKE.values(), ids=UNLIKE)
@pytest.mark.parametrize("pair", [None, 0], ids=["one process", "fresh processes"])
def test_sides_that_are_unlike_are_no_pair(pair, changes, reason):
    here = {**GPU, "gpu_chip": "1111", "power_limit_mw": 700_000, "injected": []}
    first = side("a", pair=pair, environment=here)
    (trial,) = trials([first, side("b", pair=pair, environment={**here, **changes})])
    assert (trial.pairs, trial.refused) == ((), f"not comparable: {reason}")


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_side_whose_dequants_ran_faster_than_the_memory_is_no_pair(which):
    rates = dict.fromkeys("ab", 3e12) | {which: 2e13}
    sides = [side(name, predicted={"dequant_bytes_per_s": rate}) for name, rate in rates.items()]
    (trial,) = trials(sides)
    assert (trial.pairs, trial.refused) == ((), "implausible: 417 % of the peak HBM rate (4.8 TB/s)")


@pytest.mark.parametrize("changes", [{}, {"commit": "b" * 40, "torch": "2.9", "cuda": "12.9"}, {"driver": "580.9"}])
def test_sides_may_differ_in_their_code_and_environment(changes):
    (trial,) = trials([side("a"), side("b", environment={**GPU, **changes})])
    assert (len(trial.pairs), trial.refused) == (2, "")


@pytest.mark.parametrize("pair", [None, 0], ids=["one process", "fresh processes"])
def test_a_step_of_0_ns_takes_all_pairs_away(pair):
    (trial,) = trials([side("a", [0, 0, 0, 0], pair), side("b", pair=pair)])
    assert (trial.pairs, trial.refused) == ((), "a step of 0 ns: nothing was measured")


@pytest.mark.parametrize("pair", [None, 1], ids=["one process", "one of several processes"])
def test_a_side_that_is_wrong_takes_all_pairs_away(pair):
    first = [] if pair is None else [side("a", pair=0), side("b", pair=0)]
    wrong = lost("wrong", "heads: 1 of 4 differ", reuse="on", ab=field("b", pair))
    (trial,) = trials([*first, side("a", pair=pair), wrong])
    assert trial.pairs == ()
    assert trial.b.reason == "heads: 1 of 4 differ"


def test_a_side_that_never_ran_has_no_record():
    (trial,) = trials([side("b")])
    assert (trial.a, trial.pairs, trial.any) == (None, (), trial.b)


@pytest.mark.parametrize(
    "other",
    [{"batch": 8}, {"geometry": "v41-flash-mini"}, {"environment": {"gpu": "NVIDIA H100"}}, {"ranks": 2}],
    ids=lambda value: next(iter(value)),
)
def test_trials_never_mix_what_else_differs(other):
    assert len(trials([side("a"), side("b"), side("a", **other), side("b", **other)])) == 2
    assert [trial.pairs for trial in trials([side("a"), side("b", **other)])] == [(), ()]


@pytest.mark.parametrize("changes", [{"session": "another"}, {"aa": True}], ids=["session", "aa"])
def test_sessions_and_noise_floors_stay_apart(changes):
    more = [replace(one, ab={**one.ab, **changes}) for one in (side("a"), side("b"))]
    assert [len(trial.pairs) for trial in trials([side("a"), side("b"), *more])] == [2, 2]


def test_records_of_other_commands_are_no_trial():
    assert trials([record(reuse="off"), record(reuse="on")]) == []


def forms(**values):
    return {name: values.get(name.replace("-", "_")) for name in ("graph", "graph-mode", "breaks", "break-outputs")}


EAGER = forms(graph=False, graph_mode="breakable")
BREAKABLE = forms(graph=True, graph_mode="breakable", breaks="sm100", break_outputs="copy")
FULL = forms(graph=True, graph_mode="full")


@pytest.mark.parametrize(
    ("sides", "before", "after", "engine"),
    [
        ({"a": "graph=off", "b": "graph=on"}, EAGER, BREAKABLE, "tape"),
        ({"a": "graph-mode=full", "b": "graph-mode=breakable"}, FULL, BREAKABLE, "cpu-reference"),
    ],
    ids=["graph", "graph-mode"],
)
def test_what_only_one_side_can_have_does_not_keep_them_apart(sides, before, after, engine):
    first = with_variant(side("a", sides=sides, engine="cpu-reference", reuse="on"), **before)
    second = with_variant(side("b", sides=sides, engine=engine, reuse="on"), **after)
    (trial,) = trials([first, second])
    assert len(trial.pairs) == 2


# what the tables of `show` make of such records


def test_the_last_record_of_every_side_of_every_pair_is_kept():
    records = [side("a", pair=0), side("a", pair=1), side("a", pair=1, reuse="off"), side("b", pair=1, reuse="off")]
    assert latest(records) == [records[0], records[2], records[3]]


def test_the_samples_of_two_processes_have_no_paired_difference():
    (pair,) = pairs([side("a", pair=0), side("b", pair=0)], "reuse", "off", "on")
    assert compare(pair).difference is None
    assert compare(pair).unresolved == "4 and 4 samples: not interleaved"
    (pair,) = pairs([side("a"), side("b")], "reuse", "off", "on")
    assert compare(pair).difference is not None
