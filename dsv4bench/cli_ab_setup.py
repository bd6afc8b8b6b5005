"""From what was typed after `dsv4bench ab` to an experiment: sides, places, cells, pairs; or one line why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4bench.cli import AXES
from dsv4bench.cli_ab_sources import Place, at_hand, place_texts, places
from dsv4bench.profiling.ab_experiment import Experiment
from dsv4bench.profiling.time_limit import parse_time_limit
from dsv4bench.results.min_effect import MinEffect, parse_min_effect
from dsv4bench.results.trials import SIDES
from dsv4bench.results.verdict_stats import pairs_needed
from dsv4bench.units import format_count
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.options import PrefillArguments, PrefillOptions, prefill_options, resolve_device, whole
from dsv4bench.workloads.sides import Switches, Two, both_sides, check_sides, parse_side, side_text, two_sides

BLOCK = 2  # samples of a side in a pair of one process: a b b a, so that a drift meets both alike
FRESH_BLOCK = {"cuda": 11, "cpu": 3}  # samples of a fresh process
Typed = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """An experiment that has no session yet: its cells, the arguments of the plan that holds them, where sides run.

    `notes` go into every record, `told` is for the one who asked.
    """

    experiment: Experiment
    twos: list[Two]
    arguments: PrefillArguments
    options: PrefillOptions
    switches: dict[str, Switches]
    places: dict[str, Place]
    limit_ns: int | None
    notes: tuple[str, ...]
    told: tuple[str, ...]


def set_up(typed: Typed, scratch: Path) -> Setup:
    """Return what was asked for; source trees of git revisions are unpacked in `scratch`."""
    where = _places(typed, scratch)
    with at_hand(where):
        return _set_up(typed, where)


def _set_up(typed: Typed, where: dict[str, Place]) -> Setup:
    device = resolve_device(typed["device"])
    switches = _switches(typed, device, where)
    arguments = _arguments(typed, switches, device)
    twos = two_sides(cells(prefill_options(arguments)), switches["a"], switches["b"])
    apart = [] if all(two.together for two in twos) else list(switches["a"])
    fresh = typed["fresh"] or bool(apart) or any(place.elsewhere for place in where.values())
    arguments = replace(arguments, samples=_block(typed["samples"], fresh, device))
    options = prefill_options(arguments)
    needed = pairs_needed(len(twos))
    texts = place_texts(where)
    experiment = Experiment(
        session="",
        sides={side: ",".join(filter(None, (side_text(switches[side]), texts[side]))) for side in SIDES},
        aa=typed["aa"],
        min_effect=_min_effect(typed["min_effect"]),
        pairs=_pairs(typed["pairs"], needed if fresh or device == "cpu" else None),
        least_pairs=needed,
        block=options.samples or BLOCK,
        fresh=fresh,
    )
    notes = (*options.notes, *(["one warm-up before the samples of a process"] if options.quick else []))
    told = (*_told(experiment, len(twos), apart), *_idle_trees(where, twos))
    return Setup(
        experiment, twos, arguments, options, switches, where, parse_time_limit(typed["time_limit"]), notes, told
    )


def _places(typed: Typed, scratch: Path) -> dict[str, Place]:
    """Return where each side runs; with --aa both where a does."""
    trees, pythons = ({side: str(typed[f"{side}_{kind}"]) for side in SIDES} for kind in ("src", "env"))
    if typed["aa"]:
        return dict.fromkeys(SIDES, places(trees | {"b": ""}, pythons | {"b": ""}, scratch)["a"])
    return places(trees, pythons, scratch)


def _switches(typed: Typed, device: str, where: Mapping[str, Place]) -> dict[str, Switches]:
    """Return what each side sets; with --aa both what a does."""
    switches = {side: parse_side(f"--{side}", typed[side], device) for side in SIDES}
    if typed["aa"]:
        return dict.fromkeys(SIDES, switches["a"])
    check_sides(switches["a"], switches["b"], elsewhere=where["a"].differs_from(where["b"]))
    return switches


def _arguments(typed: Typed, switches: Mapping[str, Switches], device: str) -> PrefillArguments:
    """Return the arguments of the plan of both sides; a CPU warms up once."""
    own = {name: value for name, value in typed.items() if name in PrefillArguments.__dataclass_fields__}
    own |= {name: "" for name in AXES if own[name] is None}
    return both_sides(PrefillArguments(**own | {"quick": device == "cpu"}), switches["a"], switches["b"])


def _block(text: str | None, fresh: bool, device: str) -> int:
    """Return how many samples of a side make a pair."""
    if text is None:
        return FRESH_BLOCK[device] if fresh else BLOCK
    return whole("--samples", text, least=1)


def _min_effect(text: str) -> MinEffect | None:
    return parse_min_effect(text) if text else None


def _pairs(text: str | None, usual: int | None) -> int | None:
    return usual if text is None else whole("--pairs", text, least=1)


def _told(experiment: Experiment, cells: int, apart: list[str]) -> tuple[str, ...]:
    """Return the lines about what was decided for the user, and what will not be decided."""
    told = []
    if apart:
        told.append(f"a and b differ in {', '.join(apart)}: pairs of fresh processes")
    if experiment.pairs and experiment.pairs < experiment.least_pairs and not experiment.aa:
        told.append(
            f"too few pairs: with fewer than {experiment.least_pairs} no verdict on {format_count(cells, 'cell')} can"
            " name a difference"
        )
    return tuple(told)


def _idle_trees(where: Mapping[str, Place], twos: Sequence[Two]) -> tuple[str, ...]:
    """Return a line where source trees hold nothing that the plan's providers call."""
    packages = sorted({name for place in where.values() for name in place.packages})
    providers = " ".join({cell.variant.provider for two in twos for cell in (two.a, two.b)})
    if not packages or "dsv4bench" in packages or ".py:" in providers or any(name in providers for name in packages):
        return ()
    return (f"the source trees hold {', '.join(packages)}, and --provider {providers} calls none of it",)
