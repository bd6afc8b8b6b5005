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
from dsv4bench.profiling.ab_experiment import CELL_S, Experiment
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.noise_floor import SAMPLE_NOISE, noise_floor, resolvable_ns
from dsv4bench.results.store import read_records
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import NARROW_SHARE
from dsv4bench.units import NS_PER_S, format_percent
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
    named = {*switches, *(more for name in switches for more in ONE_SIDE_ONLY.get(name, ()))}
    without = {"mode" if name.startswith("graph") else name.replace("-", "_") for name in named}
    of_both = {name: getattr(experiment, name) for name in ("sides", "aa", "fresh", "block")}
    steps = {"a_step_ns": a.step_ns, "b_step_ns": b.step_ns}
    return as_plain(a) | dict.fromkeys(without) | of_both | steps | _figures(setup, two, a, b, noise)


def _figures(setup: Setup, two: Two, a: Planned, b: Planned, noise: Mapping[bool, float]) -> dict[str, Any]:
    """Return pairs, time and what these resolve of a cell; None where the graph refuses a side."""
    if a.step_ns is None or b.step_ns is None:
        names = ("pairs", "time_ns", "predicted_ns", "min_effect_ns", "resolvable_ns", "resolvable")
        return {"status": "refused", **dict.fromkeys(names)}
    experiment = setup.experiment
    both_ns, effect = a.step_ns + b.step_ns, experiment.min_effect_of(two)
    sample = noise.get(two.a.variant.graph, SAMPLE_NOISE)
    pairs = _pairs(experiment, effect, a.step_ns, both_ns, sample)
    resolvable = resolvable_ns(a.step_ns, effect, pairs, experiment.block, sample)
    predicted_ns = None if experiment.aa else _predicted_ns(setup, a, b)
    processes = pairs if experiment.fresh else 1
    return {
        "status": "planned",
        "pairs": pairs,
        "time_ns": (pairs * experiment.block + processes * OTHER_RUNS) * both_ns,
        "predicted_ns": predicted_ns,
        "min_effect_ns": effect.of_ns(a.step_ns),
        "resolvable_ns": resolvable,
        "resolvable": None if predicted_ns is None else abs(predicted_ns) >= resolvable,
    }


def _pairs(experiment: Experiment, effect: MinEffect, step_ns: float, both_ns: float, noise: float) -> int:
    """Return how many pairs are taken: as many as were asked for, or as it takes until an interval is narrow enough."""
    if experiment.pairs is not None:
        return experiment.pairs
    pairs, enough_ns = experiment.least_pairs, (1 + NARROW_SHARE) * effect.of_ns(step_ns)
    while pairs * experiment.block * both_ns < CELL_S * NS_PER_S:
        if resolvable_ns(step_ns, effect, pairs, experiment.block, noise) <= enough_ns:
            break
        pairs += max(1, pairs // 4)
    return pairs


def _predicted_ns(setup: Setup, a: Planned, b: Planned) -> float | None:
    """Return the modelled difference b - a; None where the sides differ in what the model does not know."""
    if any(place.elsewhere for place in setup.places.values()):
        return None
    return ((b.step_ns or 0.0) - (a.step_ns or 0.0)) or None


def _noise(folder: Path | None) -> dict[bool, float]:
    """Return the noise of a sample by the A/A records in `folder`, as a share of the step: in a graph, and eager."""
    if folder is None or not folder.is_dir():
        return {}
    found: dict[bool, float] = {}
    for floor in noise_floor(trials(read_records(folder).records)):
        one, trial = floor.verdict, floor.verdict.trial
        if one.difference_ns is not None and one.a_ns is not None:
            block = (trial.any.ab or {})["block"]
            width_ns = resolvable_ns(one.a_ns.value, MinEffect(absolute_ns=0.0), one.pairs, block, noise=1.0)
            graph = bool(trial.any.variant.get("graph"))
            found[graph] = max(found.get(graph, 0.0), one.difference_ns.half_width / width_ns)
    return found


def _source(noise: Mapping[bool, float], modes: set[bool], folder: Path | None) -> list[str]:
    """Return what the noise of cells of these modes (whether in a graph) is taken from."""
    known = [f"{'graph' if graph else 'eager'} {format_percent(share)}" for graph, share in sorted(noise.items())]
    measured = [f"{', '.join(known)} by the A/A of {folder}"] if known else []
    assumed = [f"{format_percent(SAMPLE_NOISE)} assumed"] if not modes <= set(noise) else []
    return [f"noise of a sample: {'; '.join([*measured, *assumed])}"]
