"""Verdicts on pairs whose numbers are known: the word, what decided, and what must stand beside it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.trials import ONE_PROCESS, PairOfSamples, Trial, trials
from dsv4bench.results.verdict import judge
from tests.results.synthetic import GPU, lost, record, with_side

A_NS = 20_000_000
STEADY = [-8, -6, -4, -2, 0, 2, 4, 6, 8]  # nine pairs, in units of 100 ppm; the bounds of their interval are -5 and 5


def trial(changes, mhz=None, saved_ns=None, aa=False, sides=("reuse=off", "reuse=on"), **ab):
    """A trial of one sample a pair: A takes 20 ms, B so many parts in a million more."""
    predicted = None if saved_ns is None else {"saved_ns": saved_ns, "saved_bytes": 2**20}
    a, b = (
        with_side(record(reuse=reuse, predicted=predicted), side, sides, block=1, aa=aa, **ab)
        for side, reuse in (("a", "off"), ("b", "on"))
    )
    clocks = mhz or [(None, None)] * len(changes)
    pairs = [
        PairOfSamples((A_NS,), (A_NS + A_NS * ppm // 10**6,), *both) for ppm, both in zip(changes, clocks, strict=True)
    ]
    return Trial(a, b, tuple(pairs), ONE_PROCESS, aa)


def around(ppm, scatter=STEADY):
    return [ppm + 100 * offset for offset in scatter]


def said(one):
    (found,) = judge([one])
    return found.word, found.reason


BEYOND = "is beyond the least effect of 0.5 %; p 0.0039, corrected for 1 cell"


@pytest.mark.parametrize(
    ("changes", "word", "reason"),
    [
        (around(-20_000), "FASTER", f"the change, -2.00 % [-2.05 %, -1.95 %], {BEYOND}"),
        (around(+20_000), "SLOWER", f"the change, +2.00 % [+1.95 %, +2.05 %], {BEYOND}"),
        (around(-1_000), "SAME", "the change, -0.10 % [-0.15 %, -0.05 %], is within the least effect of 0.5 %"),
        (
            around(-5_000),
            "INCONCLUSIVE",
            "the change, -0.50 % [-0.55 %, -0.45 %], is too near the least effect of 0.5 % to be told from it",
        ),
        (around(-20_000)[:5], "INCONCLUSIVE", "5 pairs cannot tell; 6 would do for 1 cell"),
        ([-20_000], "INCONCLUSIVE", "1 pair cannot tell; 6 would do for 1 cell"),
    ],
    ids=["faster", "slower", "same", "near", "few", "one"],
)
def test_the_interval_decides(changes, word, reason):
    assert said(trial(changes)) == (word, reason)


def test_an_interval_that_is_too_wide_says_how_many_pairs_would_do():
    (one,) = judge([trial(around(-5_000, [10 * offset for offset in STEADY]))])
    assert one.word == "INCONCLUSIVE"
    # half as wide as it is, an interval of +-0.5 % would be narrow enough: four times as many pairs
    assert one.reason == (
        "the change, -0.50 % [-1.00 %, -0.00 %], is too uncertain for a least effect of 0.5 %; about 37 pairs would do"
    )


def test_pairs_that_were_merged_are_counted_as_they_were_taken():
    one = trial(around(-5_000, [10 * offset for offset in STEADY]))
    merged = replace(one, pairs=tuple(PairOfSamples(pair.a_ns * 8, pair.b_ns * 8) for pair in one.pairs))
    assert said(merged)[1].endswith("about 292 pairs would do")  # eight times as many as above


@pytest.mark.parametrize(
    ("least", "end"),
    [
        (0.0001, "too uncertain for a least effect of 0.01 %; about 90182 pairs would do"),
        (0.00009, "too uncertain for a least effect of 0.009 %; only more pairs than a run can take would do"),
        (1e-12, "too uncertain for a least effect of 1e-10 %; only more pairs than a run can take would do"),
    ],
    ids=["many", "too many", "least of all"],
)
def test_pairs_that_no_run_can_take_are_not_counted(least, end):
    # +-0.5 % is 50 times the least effect of 0.01 %, and half of that would be narrow enough: some 9 x 100 ** 2 pairs
    found = said(trial(around(0, [10 * offset for offset in STEADY]), min_effect={"relative": least}))
    assert found[0] == "INCONCLUSIVE"
    assert found[1].endswith(end)


@pytest.mark.parametrize(
    ("pairs", "cells", "word", "reason"),
    [
        (6, 1, "FASTER", "p 0.031, corrected for 1 cell"),
        (6, 2, "INCONCLUSIVE", "p 0.062, corrected for 2 cells, is not below 0.05; 7 pairs would do"),
        (9, 7, "FASTER", "p 0.027, corrected for 7 cells"),
        (9, 28, "INCONCLUSIVE", "p 0.11, corrected for 28 cells, is not below 0.05; 11 pairs would do"),
        (11, 28, "FASTER", "p 0.027, corrected for 28 cells"),
    ],
)
def test_a_cell_is_corrected_for_all_cells_of_its_session(pairs, cells, word, reason):
    one = trial(around(-20_000, [*STEADY, -1, 1][:pairs]))
    noise, other, apart = (trial(around(0), **ab) for ab in ({"session": "s1"}, {"session": "s2"}, {"aa": True}))
    found = judge(
        [one, *[trial([0] * pairs)] * (cells - 1), other, apart, Trial(noise.a, None, (), ONE_PROCESS, False)]
    )
    assert found[0].word == word
    assert found[0].reason.endswith(reason)
    assert found[0].p == 2 / 2**pairs


def test_no_pairs_are_promised_where_their_number_is_not_the_reason():
    # eight of nine pairs are 2 % faster, the ninth is 0.03 % slower: all signs equal would be half of that p
    one = trial([*around(-20_000)[:8], 300])
    found = judge([one, *[trial(around(20_000))] * 8], alpha=0.01)[0]
    assert found.p == 2 * 2 / 2**9
    assert (found.word, found.reason) == ("INCONCLUSIVE", "p 0.035, corrected for 9 cells, is not below 0.01")


@pytest.mark.parametrize(
    ("ppm", "word", "reason"),
    [
        (
            -5_000,
            "FASTER",
            "the change, -100.0 us [-110.0 us, -90.00 us], is beyond the least effect of 50 us; p 0.0039",
        ),
        (-1_000, "SAME", "the change, -20.00 us [-30.00 us, -10.00 us], is within the least effect of 50 us"),
    ],
    ids=["beyond", "within"],
)
def test_a_least_effect_in_time_is_held_against_the_difference(ppm, word, reason):
    found = said(trial(around(ppm), min_effect={"absolute_ns": 50_000}))
    assert found[0] == word
    assert found[1].startswith(reason)


def test_the_numbers_are_those_of_the_pairs():
    (one,) = judge([trial(around(-20_000))])
    assert one.pairs == 9
    assert (one.a_ns.value, one.b_ns.value) == (A_NS, A_NS * 0.98)
    assert one.ratio.value == pytest.approx(0.98, abs=1e-5)
    assert (one.ratio.low, one.ratio.high) == pytest.approx((0.9795, 0.9805), abs=1e-6)
    assert one.difference_ns.value == -400_000
    assert (one.difference_ns.low, one.difference_ns.high) == (-410_000, -390_000)
    assert (one.predicted_ns, one.marks, one.min_effect) == (None, (), MinEffect(relative=0.005))
    assert one.resolvable_ns == 100_000 + 10_000


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (None, record(), "a: not run"),
        (lost("wrong", "heads: 1 of 4 differ", reuse="off"), record(), "a: wrong: heads: 1 of 4 differ"),
        (record(), lost("out_of_memory", "no room"), "b: out_of_memory: no room"),
        (lost("refused", "too long"), lost("refused", "too long"), "both sides: refused: too long"),
        (lost("failed", "died"), lost("refused", "too long"), "a: failed: died; b: refused: too long"),
        (record(), record(), "no pair has a time of both sides"),
        (record(), record(environment=GPU | {"driver": "9"}), "not comparable: driver: 580 in a, 9 in b"),
    ],
    ids=["absent", "wrong", "memory", "both", "each", "blocks", "unlike"],
)
def test_without_a_time_of_both_there_is_no_verdict_and_the_reason_says_why(a, b, reason):
    sides = [side and with_side(side, name, block=99) for side, name in ((a, "a"), (b, "b"))]
    (one,) = judge(trials([side for side in sides if side]))
    assert (one.word, one.reason, one.pairs, one.p_holm) == (None, reason, 0, None)


@pytest.mark.parametrize(
    ("ppm", "saved_ns", "marks"),
    [
        (-20_000, 400_000, ()),
        (-20_000, 291_000, ()),  # the interval begins at 390 us, less the least effect of 100 us
        (-20_000, 289_000, ("unexplained",)),
        (-20_000, 509_000, ()),
        (-20_000, 511_000, ("unexplained",)),
        (-1_000, 20_000, ("not resolvable here",)),
        (-1_000, 109_000, ("not resolvable here",)),  # the least effect and the half width of 10 us
        (-1_000, 111_000, ()),
        (-1_000, 131_000, ("unexplained",)),
        (+20_000, 400_000, ("unexplained",)),
        (-20_000, 20_000_001, ("unexplained", "implausible")),  # more than A took
    ],
    ids=str,
)
def test_a_prediction_marks_what_it_cannot_explain(ppm, saved_ns, marks):
    (one,) = judge([trial(around(ppm), saved_ns=saved_ns)])
    assert one.predicted_ns == -saved_ns
    assert one.marks == marks


def test_an_inconclusive_verdict_contradicts_nothing():
    (one,) = judge([trial(around(-20_000)[:5], saved_ns=5_000_000)])
    assert (one.word, one.marks) == ("INCONCLUSIVE", ())


def test_reuse_is_predicted_in_both_directions_and_alone():
    forth = trial(around(-20_000), saved_ns=400_000)
    back = replace(forth, a=forth.b, b=forth.a)
    assert [one.predicted_ns for one in judge([forth, back])] == [-400_000, 400_000]
    other = trial(around(-20_000), saved_ns=400_000, sides=("reuse=off,compressor=torch", "reuse=on,compressor=fused"))
    assert judge([other])[0].predicted_ns is None


def test_a_clock_that_made_the_difference_takes_the_word_away():
    clocks = [(1900.0, 1938.0 + place) for place in range(9)]  # 2 % more for B
    (one,) = judge([trial(around(-20_000), mhz=clocks)])
    assert (one.word, one.marks) == ("INCONCLUSIVE", ("clock",))
    assert one.reason.startswith("the clock may have made it: b's SM clock differs by +2.21 % [")
    same = [(1900.0, 1900.0)] * 9
    assert judge([trial(around(-20_000), mhz=same)])[0].word == "FASTER"


@pytest.mark.parametrize(("scatter", "narrow"), [(1, True), (4, True), (6, False)])
def test_an_interval_is_narrow_enough_at_half_of_the_least_effect(scatter, narrow):
    (one,) = judge([trial(around(-20_000, [scatter * offset for offset in STEADY]))])
    assert one.narrow_enough is narrow is (one.ratio.half_width <= 0.0025)
    assert not judge([trial(around(0)[:5])])[0].narrow_enough
    assert not judge([Trial(None, record(ab=one.trial.b.ab), (), ONE_PROCESS, False)])[0].narrow_enough


@pytest.mark.parametrize(("scatter", "narrow"), [(4, True), (6, False)])
@pytest.mark.parametrize("times", [0.5, 1, 2])
def test_the_interval_of_a_ratio_is_as_narrow_wherever_it_lies(times, scatter, narrow):
    one = trial([scatter * 100 * offset for offset in STEADY])
    moved = tuple(PairOfSamples(pair.a_ns, (round(pair.b_ns[0] * times),)) for pair in one.pairs)
    assert judge([replace(one, pairs=moved)])[0].narrow_enough is narrow


# what must hold of any pairs: A's samples, and how many parts in a million B takes more

PPM = st.integers(-40_000, 40_000)
ANY = st.lists(st.tuples(st.integers(10**6, 10**9), PPM), min_size=1, max_size=14)
MIRROR = {"FASTER": "SLOWER", "SLOWER": "FASTER"}


def of(pairs, factor=1, swap=False):
    found = [(a * factor, (a + a * ppm // 10**6 + 1) * factor) for a, ppm in pairs]
    sides = [PairOfSamples((b,), (a,)) if swap else PairOfSamples((a,), (b,)) for a, b in found]
    return judge([replace(trial([]), pairs=tuple(sides))])[0]


@given(ANY)
@settings(max_examples=30)
def test_swapping_the_sides_mirrors_the_verdict(pairs):
    forth, back = of(pairs), of(pairs, swap=True)
    assert back.word == MIRROR.get(forth.word, forth.word)
    assert (1 / back.ratio.high, 1 / back.ratio.low) == pytest.approx((forth.ratio.low, forth.ratio.high))
    assert back.difference_ns.value == -forth.difference_ns.value
    assert back.p == pytest.approx(forth.p)


@given(ANY, st.integers(2, 1000))
@settings(max_examples=30)
def test_another_unit_of_time_changes_no_verdict(pairs, factor):
    one, other = of(pairs), of(pairs, factor)
    assert (other.word, other.reason) == (one.word, one.reason)


@given(st.data(), ANY)
@settings(max_examples=30)
def test_the_order_of_the_pairs_changes_nothing(data, pairs):
    one, other = of(pairs), of(data.draw(st.permutations(pairs)))
    assert replace(other, trial=one.trial) == one


@given(ANY)
@settings(max_examples=30)
def test_equal_sides_are_never_called_faster_or_slower(pairs):
    same = tuple(PairOfSamples((a,), (a,)) for a, _ in pairs)
    (one,) = judge([replace(trial([]), pairs=same)])
    assert one.word == ("SAME" if len(pairs) >= 6 else "INCONCLUSIVE")
    assert one.p == 1
