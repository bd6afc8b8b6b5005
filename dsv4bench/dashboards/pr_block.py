"""One markdown block for a pull request: what changed, what a step takes before and after, and the evidence behind."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsv4bench.dashboards.cells import batch_text, rows_beside
from dsv4bench.dashboards.markdown import code, item, prose, table_lines
from dsv4bench.dashboards.pr_counts import count_lines
from dsv4bench.dashboards.pr_evidence import (
    check_lines,
    command_lines,
    environment_lines,
    folded,
    memory_lines,
    unmeasured_lines,
)
from dsv4bench.dashboards.pr_subject import difference_lines, first_line
from dsv4bench.dashboards.style import plus_minus
from dsv4bench.dashboards.table import Column
from dsv4bench.dashboards.trial_cells import in_order, modes, sets, trial_cell, trial_settings
from dsv4bench.dashboards.verdict_notes import mark_notes, trust_notes
from dsv4bench.dashboards.verdict_tables import change_text, difference_text, no_time, times_unit
from dsv4bench.results.explanation import explained
from dsv4bench.results.noise_floor import Floor
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval
from dsv4bench.results.verdict import Verdict
from dsv4bench.units import NS_PER_US, format_count, format_in_unit

WORDS = ("FASTER", "SLOWER", "SAME", "INCONCLUSIVE")
ELSEWHERE = ("src=", "env=")
SIDE_BOUND = "- ±: the farther bound of the 95 % interval over the samples of a side"
ACCURACY = "- GSM8K: not run by this tool: ____"


def pr_block(records: Sequence[Record], verdicts: Sequence[Verdict], floors: Sequence[Floor]) -> str:
    """Return the block as GitHub markdown, between markers by which a later run can take its place.

    `records` are all of the trials, `verdicts` those on them, `floors` what A/A trials found. The same records give the
    same bytes, in whatever order they come. ValueError without verdicts.
    """
    records = sorted(records, key=in_order)
    verdicts = sorted(verdicts, key=lambda verdict: in_order(verdict.trial.any))
    shown = [verdict for verdict in verdicts if not verdict.trial.aa] or verdicts
    if not shown:
        raise ValueError("a PR block of no verdicts")
    blocks = [[first_line(shown)], *(_set_lines(same, verdicts, floors) for same in sets(shown))]
    blocks += [["#### Correctness", "", *check_lines(records), ACCURACY]]
    blocks += [["#### Memory", "", *lines]] if (lines := memory_lines(shown)) else []
    blocks += [["#### Not measured", "", *unmeasured_lines(shown)]]
    blocks += [environment_lines(shown), command_lines(records)]
    name = _name(shown)
    text = "\n\n".join("\n".join(lines) for lines in blocks)
    return f"<!-- dsv4bench:begin {name} -->\n{text}\n<!-- dsv4bench:end {name} -->\n"


def _name(verdicts: Sequence[Verdict]) -> str:
    """Return the name in the markers: what is compared on which device, in letters that end no comment.

    Trees and environments go without their names, which hold a commit: the block of the next commit has the same name.
    """
    trials = [verdict.trial for verdict in verdicts]
    settings = [part for trial in trials for side in trial.sides for part in side.split(",")]
    words = [part.split("=")[0] if part.startswith(ELSEWHERE) else part for part in settings]
    words += [trial.any.machine for trial in trials]
    return re.sub(r"[^A-Za-z0-9=+.]+", "-", " ".join(["ab", *dict.fromkeys(words)])).strip("-")


def _set_lines(same: Sequence[Verdict], every: Sequence[Verdict], floors: Sequence[Floor]) -> list[str]:
    """Return a set's part: what changed, the verdicts, what is launched, and what of the gain that explains."""
    trial = same[0].trial
    what = (
        f"A/A, {code(trial.sides[0])} on both sides" if trial.aa else f"Changed: {' -> '.join(map(code, trial.sides))}"
    )
    lines = [f"#### {what}", "", item(_summary(same)), item(trial_settings(trial)), *difference_lines(same), ""]
    lines += [*_verdict_table(same), ""]
    lines += map(item, mark_notes(same).values())
    lines += [SIDE_BOUND] if any(one.a_ns and one.a_ns.confidence for one in same) else []
    lines += map(item, trust_notes(same, every, floors))
    lines += ["", *folded("What decided each cell", [_decided(one) for one in same])]
    counts = count_lines(same)
    return [*lines, "", "#### Launches", "", *counts] if counts else lines


def _decided(verdict: Verdict) -> str:
    """Return what decided a cell and what its difference is made of, as a point of a list."""
    why = f"{verdict.word or 'no verdict'}: {verdict.reason}"
    return "<br>".join([item(f"{trial_cell(verdict)}: {why}"), *([prose(explained(verdict))] if verdict.word else [])])


def _summary(same: Sequence[Verdict]) -> str:
    """Return how many cells have which verdict."""
    counts = [(word, sum(verdict.word == word for verdict in same)) for word in WORDS]
    missing = sum(verdict.word is None for verdict in same)
    said = [f"{number} {word}" for word, number in counts if number] + (
        [f"{missing} without a verdict"] if missing else []
    )
    return f"{format_count(len(same), 'cell')}: {', '.join(said)}"


def _verdict_table(same: Sequence[Verdict]) -> list[str]:
    """Return a row for each cell, its verdict first: a narrow screen shows the rest on scrolling."""
    scale, unit = times_unit(same)
    predicted = ["pred us"] if any(verdict.predicted_ns is not None for verdict in same) else []
    numbers = [f"before {unit}", f"after {unit}", "diff us", *predicted, "change"]
    rows = [
        [
            prose(_batch(verdict.trial.any)),
            prose(mode),
            _word(verdict),
            _side(verdict.a_ns, verdict.trial.a, scale),
            _side(verdict.b_ns, verdict.trial.b, scale),
            prose(difference_text(verdict)),
            *(format_in_unit(verdict.predicted_ns, NS_PER_US, signed=True, digits=3) for _ in predicted),
            change_text(verdict),
        ]
        for verdict, mode in zip(same, modes(same), strict=True)
    ]
    words = [Column(title, (), right=False) for title in ("batch", "mode", "verdict")]
    return table_lines([*words, *(Column(title, ()) for title in numbers)], rows)


def _side(interval: Interval | None, record: Record | None, scale: int) -> str:
    if interval is not None:
        return plus_minus(interval, scale)
    text = prose(no_time(record))
    return f"**{text}**" if record is not None and record.status == "wrong" else text


def _batch(record: Record) -> str:
    """Return the batch, and its rows where it does not say them."""
    rows = rows_beside(record)
    return batch_text(record) + (f" ({rows} rows)" if rows else "")


def _word(verdict: Verdict) -> str:
    word = f"**{verdict.word}**" if verdict.word else "none"
    return "<br>".join([word, *map(prose, verdict.marks)])
