"""How the trials of an A/B are called: their sides, their cells, and what a set of them has in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dsv4bench.dashboards.cells import batch_text, grouped, heading, mode_text, provenance, said_of, settings
from dsv4bench.dashboards.stored_cells import switch_words
from dsv4bench.dashboards.style import arrow
from dsv4bench.results.record import Record
from dsv4bench.results.trials import Trial
from dsv4bench.results.verdict import Verdict


def side_records(trial: Trial) -> list[Record]:
    """Return the records of the sides that are there, a first."""
    return [record for record in (trial.a, trial.b) if record is not None]


def in_order(record: Record) -> tuple[Any, ...]:
    """Return what orders records by what they are, wherever they were read: session, batch, mode, side, process, time.

    Whatever else tells two apart is last, so that only records that are equal share a place.
    """
    ab, graph = record.ab or {}, bool(record.variant.get("graph"))
    batch = [record.batch.get(name) or 0 for name in ("prefix", "requests", "extend", "rows")]
    cell = (str(ab.get("session")), batch, str(record.batch.get("source")), graph, mode_text(record))
    return (*cell, str(ab.get("side")), ab.get("pair") or 0, record.created, repr(record))


def sets(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Return the verdicts as lists of those that share a session and all but the batch and the mode."""
    return grouped(verdicts, _shared)


def _shared(verdict: Verdict) -> tuple[Any, ...]:
    trial = verdict.trial
    versions = [tuple(provenance([record])) for record in side_records(trial)]
    return (*family(trial), trial.sides, heading("", trial.any, *trial.switched), trial_settings(trial), *versions)


def trial_settings(trial: Trial) -> str:
    """Return what holds for both sides, e.g. "reuse on, kv v41+fp4, prefix 8192"."""
    named, one = trial.switched, trial.any
    reuse = one.variant.get("reuse")
    first = [] if reuse is None or "reuse" in named else [f"reuse {reuse}"]
    return ", ".join(filter(None, [*first, settings(one, *named)]))


def modes(verdicts: Sequence[Verdict]) -> list[str]:
    """Return how each trial was launched: "eager", "graph"; the form of breaks where there is more than one of them."""
    full = [_mode(verdict.trial, mode_text) for verdict in verdicts]
    short = [_mode(verdict.trial, lambda record: record.mode) for verdict in verdicts]
    return short if len(set(full)) == len(set(short)) else full


def _mode(trial: Trial, text: Callable[[Record], str]) -> str:
    return arrow(text(trial.a or trial.any), text(trial.any))


def trial_cell(verdict: Verdict) -> str:
    """Return which cell a trial is, e.g. "eager, batch 8 x 1024"."""
    return f"{_mode(verdict.trial, mode_text)}, batch {batch_text(verdict.trial.any)}"


def trial_kind(trial: Trial) -> str:
    """Return how a trial's cell is called, without what is switched, up to its batch: "eager, kv v4, batch"."""
    return f"{_mode(trial, mode_text)}{switch_words(trial.any, *trial.switched)}, batch"


def said_of_trials(verdicts: Sequence[Verdict], sentences: Callable[[Verdict], Iterable[str]]) -> list[str]:
    """Return every distinct sentence that is said of some trial, with its cells unless it is said of all that ran."""
    of_record = {id(verdict.trial.any): verdict for verdict in verdicts}
    return said_of([verdict.trial.any for verdict in verdicts], lambda record: sentences(of_record[id(record)]))


def family(trial: Trial) -> tuple[object, bool]:
    """Return what the verdicts share that were corrected together."""
    return (trial.any.ab or {}).get("session"), trial.aa
