"""Verdicts: whether B is faster than A by more than what matters, from pairs that were measured next to each other.

docs/ab.md, "How a verdict is reached", says the same in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from dsv4bench.results.compare import NOT_RESOLVABLE, predicted_difference_ns
from dsv4bench.results.compressor_gain import compressor_gain
from dsv4bench.results.cycles import clock_objection
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.stats import CONFIDENCE, Interval, median_interval
from dsv4bench.results.trials import FRESH, Trial
from dsv4bench.results.verdict_stats import (
    FEWEST_PAIRS,
    holm,
    least_p,
    log_ratios,
    medians_ns,
    pair_interval,
    pairs_needed,
    ratio_interval,
    signed_rank_p,
)
from dsv4bench.units import format_count, format_ns, format_percent

Word = Literal["FASTER", "SLOWER", "SAME", "INCONCLUSIVE"]

ALPHA = 0.05
UNEXPLAINED, CLOCK, IMPLAUSIBLE = "unexplained", "clock", "implausible"
MOST_PAIRS = 100_000  # that a run may be told to take: two steps of 10 ms each are half an hour
NARROW_SHARE = 0.5  # of the least effect: so wide an interval finds twice that effect in 97 of 100 trials


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the pairs of one trial say. B - A in nanoseconds: negative means that time was saved.

    `word` is None where there is nothing to judge (no pairs: a side failed or gave a wrong result), and `reason` says
    why; else `reason` is one sentence on what decided. `ratio` is B / A and `difference_ns` B - A, both with their 95 %
    intervals over pairs. `p` is that of the exact signed-rank test, `p_holm` corrected for all cells of the session.
    `marks` are words that must stand beside the verdict: "not resolvable here", "unexplained", "clock", "implausible".
    """

    trial: Trial
    word: Word | None
    reason: str
    pairs: int
    a_ns: Interval | None = None
    b_ns: Interval | None = None
    ratio: Interval | None = None
    difference_ns: Interval | None = None
    predicted_ns: float | None = None
    p: float | None = None
    p_holm: float | None = None
    min_effect: MinEffect = field(default_factory=MinEffect)
    marks: tuple[str, ...] = ()

    @property
    def resolvable_ns(self) -> float | None:
        """The least true difference that these pairs would have named: what may be named, and the interval's width."""
        if self.a_ns is None or self.difference_ns is None:
            return None
        return self.min_effect.of_ns(self.a_ns.value) + self.difference_ns.half_width

    @property
    def narrow_enough(self) -> bool:
        """Whether the interval is so narrow that more pairs would hardly help, wherever it lies."""
        return self.ratio is not None and narrow(_measure(self)[0], self.min_effect)


def narrow(interval: Interval, effect: MinEffect) -> bool:
    """Return whether an interval is so narrow that more pairs would hardly help, wherever it lies.

    It is that of the difference in nanoseconds where the least effect is a time, else that of the ratio.
    """
    return interval.confidence >= CONFIDENCE and _width(interval, effect) <= NARROW_SHARE


def judge(trials: Iterable[Trial], alpha: float = ALPHA) -> list[Verdict]:
    """Return a verdict for each trial, corrected over the cells of its session; A/A trials are corrected by themselves.

    The least effect is that of the records. FASTER and SLOWER need three things: the interval lies wholly beyond the
    least effect, the corrected p is below `alpha`, and the SM clock, where it is known, did not make the difference.
    """
    seen = [_seen(trial) for trial in trials]
    families: dict[tuple[object, bool], list[int]] = {}
    for place, one in enumerate(seen):
        if one.p is not None:
            families.setdefault(((one.trial.any.ab or {}).get("session"), one.trial.aa), []).append(place)
    for places in families.values():
        for place, p in zip(places, holm([seen[place].p or 0.0 for place in places]), strict=True):
            seen[place] = _marked(_decided(replace(seen[place], p_holm=p), len(places), alpha))
    return seen


def _seen(trial: Trial) -> Verdict:
    """Return all numbers of a trial without a word."""
    effect = MinEffect(**(trial.any.ab or {})["min_effect"])
    if not trial.pairs:
        return Verdict(trial, None, _why_none(trial), 0, min_effect=effect)
    a, b = medians_ns(trial.pairs)
    return Verdict(
        trial,
        None,
        "",
        len(trial.pairs),
        a_ns=median_interval([sample for pair in trial.pairs for sample in pair.a_ns]),
        b_ns=median_interval([sample for pair in trial.pairs for sample in pair.b_ns]),
        ratio=ratio_interval(trial.pairs),
        difference_ns=pair_interval(b - a),
        predicted_ns=_predicted_ns(trial),
        p=signed_rank_p(log_ratios(trial.pairs)),
        min_effect=effect,
    )


def _predicted_ns(trial: Trial) -> float | None:
    """Return the predicted difference of a change of reuse or of the compressor alone; None of any other."""
    if trial.switched == {"compressor"}:
        gain = compressor_gain(trial.a, trial.b)
        return gain.difference_ns if gain else None
    return predicted_difference_ns(trial.a, trial.b) if trial.switched == {"reuse"} else None


def _why_none(trial: Trial) -> str:
    """Return why a trial has no pairs, naming the status of each side that has no time."""
    if trial.refused:
        return trial.refused
    sides = {"a": trial.a, "b": trial.b}
    why = {side: f"{one.status}: {one.reason}" if one else "not run" for side, one in sides.items()}
    lost = {side: why[side] for side, one in sides.items() if one is None or one.status != "ok"}
    if len(lost) == 2 and lost["a"] == lost["b"]:
        return f"both sides: {lost['a']}"
    return "; ".join(f"{side}: {text}" for side, text in lost.items()) or "no pair has a time of both sides"


def _decided(one: Verdict, cells: int, alpha: float) -> Verdict:
    """Return the verdict with its word and what decided, of a session that measured so many cells."""
    assert one.p is not None
    assert one.p_holm is not None
    effect, change = one.min_effect.text, _change(one)
    if one.pairs < FEWEST_PAIRS:
        few = format_count(one.pairs, "pair")
        return _inconclusive(one, f"{few} cannot tell; {pairs_needed(cells, alpha)} would do for {_cells(cells)}")
    interval, least, most = _measure(one)
    if least <= interval.low and interval.high <= most:
        return replace(one, word="SAME", reason=f"the change, {change}, is within the least effect of {effect}")
    if least <= interval.high and interval.low <= most:
        return _inconclusive(one, _too_wide(one))
    corrected = f"p {one.p_holm:.2g}, corrected for {_cells(cells)}"
    if one.p_holm >= alpha:
        more = f"; {pairs_needed(cells, alpha)} pairs would do" if one.p <= least_p(one.pairs) else ""
        return _inconclusive(one, f"{corrected}, is not below {alpha:g}{more}")
    word: Word = "FASTER" if interval.high < least else "SLOWER"
    objection = clock_objection(one.trial.pairs, faster=word == "FASTER")
    if objection is not None:
        return replace(_inconclusive(one, f"the clock may have made it: {objection}"), marks=(CLOCK,))
    return replace(one, word=word, reason=f"the change, {change}, is beyond the least effect of {effect}; {corrected}")


def _cells(count: int) -> str:
    return format_count(count, "cell")


def _inconclusive(one: Verdict, reason: str) -> Verdict:
    return replace(one, word="INCONCLUSIVE", reason=reason)


def _too_wide(one: Verdict) -> str:
    """Return why an interval over a bound decides nothing, and how many pairs would do where a run can take them."""
    effect, change = one.min_effect.text, _change(one)
    if one.narrow_enough:
        return f"the change, {change}, is too near the least effect of {effect} to be told from it"
    wider = _width(_measure(one)[0], one.min_effect) / NARROW_SHARE
    pairs = math.ceil(_taken(one.trial) * wider**2)
    enough = f"about {pairs} pairs" if pairs <= MOST_PAIRS else "only more pairs than a run can take"
    return f"the change, {change}, is too uncertain for a least effect of {effect}; {enough} would do"


def _taken(trial: Trial) -> float:
    """Return how many pairs were taken, before any were merged."""
    if trial.how == FRESH:
        return len(trial.pairs)
    block: int = (trial.any.ab or {})["block"]
    return sum(len(pair.a_ns) for pair in trial.pairs) / block


def _measure(one: Verdict) -> tuple[Interval, float, float]:
    """Return the interval that the least effect is about, and the bounds between which nothing may be named.

    The bounds of a ratio are each other's inverse, so that swapping the sides mirrors the verdict.
    """
    assert one.ratio is not None
    assert one.difference_ns is not None
    if one.min_effect.absolute_ns is not None:
        return one.difference_ns, -one.min_effect.absolute_ns, one.min_effect.absolute_ns
    most = 1 + (one.min_effect.relative or 0.0)
    return one.ratio, 1 / most, most


def _width(interval: Interval, effect: MinEffect) -> float:
    """Return the half width of an interval as a share of the least effect; of a ratio that of its logarithm."""
    if effect.absolute_ns is not None:
        return interval.half_width / effect.absolute_ns
    half_width = math.log(max(interval.high / interval.value, interval.value / interval.low))
    return half_width / max(effect.relative or 0.0, 1e-12)


def _change(one: Verdict) -> str:
    """Return the change with its interval, in what the least effect is given in."""
    interval = _measure(one)[0]
    values = (interval.value, interval.low, interval.high)
    if one.min_effect.absolute_ns is not None:
        value, low, high = (format_ns(ns) for ns in values)
    else:
        value, low, high = (format_percent(ratio - 1, signed=True) for ratio in values)
    return f"{value} [{low}, {high}]"


def _marked(one: Verdict) -> Verdict:
    """Return the verdict with the marks that its prediction earns."""
    predicted_ns, difference = one.predicted_ns, one.difference_ns
    if predicted_ns is None or difference is None or one.a_ns is None or one.b_ns is None:
        return one
    named, allowed = one.word in ("FASTER", "SLOWER"), one.min_effect.of_ns(one.a_ns.value)
    apart = max(difference.low - predicted_ns, predicted_ns - difference.high)
    without_reuse = one.a_ns if predicted_ns < 0 else one.b_ns
    earned = {
        NOT_RESOLVABLE: not named and abs(predicted_ns) < (one.resolvable_ns or 0.0),
        UNEXPLAINED: one.word != "INCONCLUSIVE" and apart > allowed,
        CLOCK: CLOCK in one.marks,
        IMPLAUSIBLE: abs(predicted_ns) > without_reuse.high,  # the step took less than a part of its work does alone
    }
    return replace(one, marks=tuple(mark for mark, found in earned.items() if found))
