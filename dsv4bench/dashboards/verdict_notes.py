"""What must be read with verdicts: how they were measured and judged, their marks, and what of them is noise."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsv4bench.dashboards.cells import cells_text, grouped, rows_notes, seen_where
from dsv4bench.dashboards.time_tables import prediction_notes
from dsv4bench.dashboards.trial_cells import family, modes, said_of_trials
from dsv4bench.results.compare import NOT_RESOLVABLE, Pair
from dsv4bench.results.explanation import explained
from dsv4bench.results.noise_floor import Floor
from dsv4bench.results.trials import FRESH
from dsv4bench.results.verdict import ALPHA, CLOCK, IMPLAUSIBLE, UNEXPLAINED, Verdict
from dsv4bench.results.verdict_stats import FEWEST_PAIRS
from dsv4bench.units import format_count, format_percent, format_power

# the mark of a verdict, its sign in a table and what it says
MARKS = {
    NOT_RESOLVABLE: ("?", "the predicted difference is smaller than what these pairs can name"),
    UNEXPLAINED: ("!", "the difference lies farther from the prediction than its interval and the least effect allow"),
    CLOCK: ("~", "the SM clock differed between the sides, and in cycles the verdict does not hold"),
    IMPLAUSIBLE: ("%", "the work that is predicted to be saved takes longer than the whole step"),
}
NUMBER = re.compile(r"[-+]?\d[\d.]*")
PREDICTED_ALONE = (
    "pred (modelled): ratio-2 sources x what the compressor of one takes alone, measured here, b - a; in graphs only"
)
AS_MANY = 2  # reasons that differ in nothing but numbers are all shown
POWER, HEAT = "power_mw_max", "temperature_celsius_max"  # of a record's clocks
NAMED = ("FASTER", "SLOWER")


def sign(mark: str) -> str:
    """Return the sign that stands for a mark in a table."""
    return MARKS[mark][0] if mark in MARKS else "*"


def mark_notes(same: Sequence[Verdict]) -> dict[str, str]:
    """Return what every mark of these verdicts says, by its sign and in the order of their first appearance."""
    marks = dict.fromkeys(mark for verdict in same for mark in verdict.marks)
    return {sign(mark): f"{mark}: {MARKS[mark][1]}" if mark in MARKS else mark for mark in marks}


def trust_notes(same: Sequence[Verdict], every: Sequence[Verdict], floors: Sequence[Floor]) -> list[str]:
    """Return what must be read with a set's verdicts: pairs, rule, prediction, clock, flags and the A/A floor.

    `every`: all verdicts, among them those that the set's were corrected with.
    """
    return [
        _how_measured(same),
        "; ".join([*_interval_notes(same), _how_judged(same, every)]),
        *_prediction_notes(same),
        *_explained_notes(same),
        *rows_notes(verdict.trial.any for verdict in same),
        *_clock_notes(same),
        *_flag_notes(same),
        *_floor_notes(same, floors),
    ]


def _interval_notes(same: Sequence[Verdict]) -> list[str]:
    """Return what the bounds of the differences are, where some have any: one pair has none."""
    bounded = [one for one in same if one.difference_ns and one.difference_ns.confidence]
    few = f" (of fewer than {FEWEST_PAIRS}: the extremes)" if any(one.pairs < FEWEST_PAIRS for one in bounded) else ""
    return [f"[ ]: the 95 % interval over pairs{few}"] if bounded else []


def _prediction_notes(same: Sequence[Verdict]) -> list[str]:
    """Return what the predicted differences are, in one line; nothing where none was predicted."""
    if all(verdict.predicted_ns is None for verdict in same):
        return []
    if same[0].trial.switched == {"compressor"}:
        return [PREDICTED_ALONE]
    return ["; ".join(prediction_notes([Pair(verdict.trial.a, verdict.trial.b) for verdict in same]))]


def _explained_notes(same: Sequence[Verdict]) -> list[str]:
    """Return how much of the differences that were named the removed work explains, in one line."""
    named = [one for one in same if one.word in NAMED and one.predicted_ns is not None and one.difference_ns]
    if len(named) == 1:
        return [explained(named[0])]
    shares = sorted((one.predicted_ns or 0.0) / one.difference_ns.value for one in named if one.difference_ns)
    if not shares:
        return []
    span = dict.fromkeys(f"{share * 100:.0f} %" for share in (shares[0], shares[-1]))
    cells = f"the {len(named)} cells that are FASTER or SLOWER"
    return [f"the removed work explains {' to '.join(span)} of the difference (predicted / measured) in {cells}"]


def _floor_notes(same: Sequence[Verdict], floors: Sequence[Floor]) -> list[str]:
    """Return what A/A trials on the machine of a set found: how far noise alone went, and what it was called."""
    here = [one for one in floors if seen_where(one.verdict.trial.any) == seen_where(same[0].trial.any)]
    ratios = [ratio for one in here if (ratio := one.verdict.ratio)]
    if not ratios:
        return []
    least, most = min(ratio.low for ratio in ratios), max(ratio.high for ratio in ratios)
    spread = " to ".join(format_percent(bound - 1, signed=True) for bound in (least, most))
    cells = format_count(len(ratios), "cell")
    found = (
        f"A/A floor: noise alone made {spread} and was called a difference in {sum(o.false for o in here)} of {cells}"
    )
    smallest = [share for one in here if (share := one.smallest) is not None]
    every = "each" if len(smallest) == len(ratios) else f"{len(smallest)} of them (the others have too few pairs)"
    return [found + (f"; {format_percent(max(smallest))} would have been named in {every}" if smallest else "")]


def undecided_notes(same: Sequence[Verdict]) -> list[str]:
    """Return why cells have no verdict, or one that decides nothing; of many that say the same, one as an example."""
    open_ones = [one for one in same if one.word not in (*NAMED, "SAME")]
    found = []
    for alike in grouped(open_ones, lambda one: (one.word, NUMBER.sub("", one.reason))):
        shown = alike if len({one.reason for one in alike}) <= AS_MANY else alike[:1]
        more = f"{len(alike)} cells, e.g. " if len(shown) < len(alike) else ""
        for one in grouped(shown, lambda verdict: verdict.reason):
            where = cells_text([verdict.trial.any for verdict in one])
            found.append(f"{one[0].word or 'no verdict'}: {more}{one[0].reason} ({where})")
    return found


def _how_measured(verdicts: Sequence[Verdict]) -> str:
    """Return how many pairs of what the verdicts of a set rest on, e.g. "9 pairs of fresh processes a cell, ..."."""
    counts = sorted({verdict.pairs for verdict in verdicts if verdict.word})
    number = f"{_least_to_most(counts)} {'pair' if counts == [1] else 'pairs'}" if counts else "no pairs"
    trial = verdicts[0].trial
    if trial.how == FRESH:
        return f"{number} of fresh processes a cell; a ran first, then b in turn (A B, B A, ...)"
    sizes = sorted({len(pair.a_ns) for verdict in verdicts for pair in verdict.trial.pairs})
    samples = "" if not sizes else f" of {_least_to_most(sizes)} sample{'s' if sizes[-1] > 1 else ''} of each side"
    return f"{number} a cell{samples}, in one process by turns (A B, B A, ...)"


def _least_to_most(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"


def _how_judged(verdicts: Sequence[Verdict], every: Sequence[Verdict]) -> str:
    """Return the rule behind a set's verdicts; `every`: all verdicts, among them those it was corrected with (Holm)."""
    together = [one for one in every if one.p is not None and family(one.trial) == family(verdicts[0].trial)]
    least = dict(zip(modes(verdicts), (verdict.min_effect.text for verdict in verdicts), strict=True))
    alike = len(set(least.values())) == 1
    said = next(iter(least.values())) if alike else ", ".join(f"{mode} {text}" for mode, text in least.items())
    return f"least effect named: {said}; alpha {ALPHA}, Holm over {format_count(len(together), 'cell')}"


def _clock_notes(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the range of either side's SM clock around the pairs, and the most power and heat, as far as known."""
    sides = {
        "a": [pair.a_mhz for verdict in verdicts for pair in verdict.trial.pairs if pair.a_mhz],
        "b": [pair.b_mhz for verdict in verdicts for pair in verdict.trial.pairs if pair.b_mhz],
    }
    said = [f"{side} {min(known):.0f} to {max(known):.0f} MHz" for side, known in sides.items() if known]
    parts = [*([f"SM clock around the pairs: {', '.join(said)}"] if said else []), *_most_power(verdicts)]
    return ["; ".join(parts)] if parts else []


def _most_power(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the most power and the highest temperature around the pairs, e.g. "at most 690 W, 66 C"."""
    around = [record.clocks for verdict in verdicts for record in verdict.trial.processes if record.clocks]
    powers, heats = ([one[name] for one in around if one.get(name) is not None] for name in (POWER, HEAT))
    said = [*([format_power(max(powers))] if powers else []), *([f"{max(heats)} C"] if heats else [])]
    return [f"at most {', '.join(said)}"] if said else []


def _flag_notes(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the flags of both sides' records, with their cells; how far a clock fell is in the notes on clocks."""

    def flags(verdict: Verdict) -> dict[str, None]:
        said = [flag for record in verdict.trial.processes for flag in record.flags]
        return dict.fromkeys(re.sub(r" from \d+ to \d+ MHz$", "", flag) for flag in said)

    return said_of_trials(verdicts, flags)
