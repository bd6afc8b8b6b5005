"""`dsv4bench ab --dry-run`: cells, pairs and modelled times, and what each cell can tell from noise."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4bench.cli_ab_setup import Setup
from dsv4bench.dashboards.ab_plan_table import ab_plan_table
from dsv4bench.dashboards.render import show_tables
from dsv4bench.profiling.ab_experiment import Experiment
from dsv4bench.results.noise_floor import SAMPLE_NOISE, noise_floor, resolvable_ns
from dsv4bench.results.store import read_records
from dsv4bench.results.trials import trials
from dsv4bench.units import format_percent
from dsv4bench.workloads.dry_run import OTHER_RUNS, Planned, as_plain, plan_notes, planned
from dsv4bench.workloads.sides import ONE_SIDE_ONLY, Two


def print_plan(setup: Setup, folder: Path | None, form: str) -> None:
    """Print the plan as a table, or as plain objects; A/A records of `folder` say how wide an interval becomes."""
    noise = _noise(folder)
    sides = [[planned((cell,), None)[0] for cell in (two.a, two.b)] for two in setup.twos]
    rows = [_row(setup, two, a, b, noise) for two, (a, b) in zip(setup.twos, sides, strict=True)]
    if form == "json":
        print(json.dumps(rows, indent=1, allow_nan=False))
    elif form == "jsonl":
        print("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), end="")
    else:
        how = plan_notes([one for both in sides for one in both])
        source = _source(noise, {two.a.variant.graph for two in setup.twos}, folder)
        show_tables([ab_plan_table(rows, [*setup.notes, *setup.told, *source, *how])], form, sys.stdout)


def _row(setup: Setup, two: Two, a: Planned, b: Planned, noise: Mapping[bool, float]) -> dict[str, Any]:
    """Return a planned cell of both sides as plain values; an axis that the sides name is None."""
    experiment, switches = setup.experiment, setup.switches["a"]
    effect = experiment.min_effect_of(two)
    least_ns = effect.of_ns(a.step_ns or 0.0)
    share = noise.get(two.a.variant.graph)
    if share is None:
        named_ns = resolvable_ns(a.step_ns or 0.0, effect, experiment.pairs, experiment.block)
    else:
        named_ns = least_ns + share * (a.step_ns or 0.0)
    runs = a.step_ns is not None and b.step_ns is not None
    predicted_ns = _predicted_ns(setup, a, b) if runs and not experiment.aa else None
    named = {*switches, *(more for name in switches for more in ONE_SIDE_ONLY.get(name, ()))}
    without = {"mode" if name.startswith("graph") else name.replace("-", "_") for name in named}
    return (
        as_plain(a)
        | dict.fromkeys(without)
        | {
            "status": "planned" if runs else "refused",
            "sides": experiment.sides,
            "aa": experiment.aa,
            "fresh": experiment.fresh,
            "pairs": experiment.pairs,
            "block": experiment.block,
            "a_step_ns": a.step_ns,
            "b_step_ns": b.step_ns,
            "time_ns": _time_ns(experiment, a, b) if runs else None,
            "predicted_ns": predicted_ns,
            "min_effect_ns": least_ns if runs else None,
            "resolvable_ns": named_ns if runs else None,
            "resolvable": None if predicted_ns is None else abs(predicted_ns) >= named_ns,
        }
    )


def _time_ns(experiment: Experiment, a: Planned, b: Planned) -> float:
    """Return the time of all steps of both sides; what a process takes to start is not in it."""
    processes = experiment.pairs if experiment.fresh else 1
    samples = experiment.block * experiment.pairs
    return (samples + processes * OTHER_RUNS) * ((a.step_ns or 0.0) + (b.step_ns or 0.0))


def _predicted_ns(setup: Setup, a: Planned, b: Planned) -> float | None:
    """Return the modelled difference b - a; None where the sides differ in what the model does not know."""
    if any(place.elsewhere for place in setup.places.values()):
        return None
    if set(setup.switches["a"]) == {"reuse"}:
        return b.saved_ns if b.cell.variant.reuse == "off" else -b.saved_ns
    return ((b.step_ns or 0.0) - (a.step_ns or 0.0)) or None


def _noise(folder: Path | None) -> dict[bool, float]:
    """Return the widest A/A interval in `folder` as a share of the step, of graph cells and of eager ones."""
    if folder is None or not folder.is_dir():
        return {}
    found: dict[bool, float] = {}
    for floor in noise_floor(trials(read_records(folder).records)):
        difference, time = floor.verdict.difference_ns, floor.verdict.a_ns
        if difference is not None and time is not None:
            graph = bool(floor.verdict.trial.any.variant.get("graph"))
            found[graph] = max(found.get(graph, 0.0), difference.half_width / max(1.0, time.value))
    return found


def _source(noise: Mapping[bool, float], modes: set[bool], folder: Path | None) -> list[str]:
    """Return what the noise of cells of these modes (whether in a graph) is taken from."""
    usual = f"a sample's noise of {format_percent(SAMPLE_NOISE)}"
    known = [f"{'graph' if graph else 'eager'} ±{format_percent(share)}" for graph, share in sorted(noise.items())]
    assumed = [f"{usual} is assumed"] if not modes <= set(noise) else []
    measured = [f"A/A of {folder}: {', '.join(known)}"] if known else []
    return [f"resolves: {'; '.join([*measured, *assumed])}"]
