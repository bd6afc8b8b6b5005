"""The two sides of an A/B: the switches that each of them sets, and which two cells of one plan belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsv4bench.errors import UsageError, nearest
from dsv4bench.workloads.cells import Cell, Group
from dsv4bench.workloads.options import PrefillArguments
from dsv4bench.workloads.providers import choice
from dsv4bench.workloads.variant import (
    BREAK_OUTPUTS,
    BREAKS,
    COMPRESSORS,
    GRAPH_MODES,
    KV_PAIRS,
    MHC,
    MOES,
    PATHS,
    REPLAYS,
    REUSE,
    Variant,
    kv_pair,
)

WORDS: dict[str, Sequence[str]] = {
    "reuse": REUSE,
    "compressor": COMPRESSORS,
    "graph": ("on", "off"),
    "graph-mode": GRAPH_MODES,
    "breaks": BREAKS,
    "break-outputs": BREAK_OUTPUTS,
    "kv": tuple(KV_PAIRS),
    "replay": REPLAYS,
    "path": PATHS,
    "moe": MOES,
    "mhc": MHC,
}
SWITCHES = (*WORDS, "provider")
# what an eager step, or a whole graph, does not have: it cannot tell the cells of the other side apart
ONE_SIDE_ONLY = {"graph": ("graph-mode", "breaks", "break-outputs"), "graph-mode": ("breaks", "break-outputs")}

Switches = dict[str, str]


@dataclass(frozen=True, slots=True)
class Two:
    """A cell of side a and the cell of side b that differs from it in the switches of the sides and in nothing else."""

    a: Cell
    b: Cell

    @property
    def together(self) -> bool:
        """Whether both can run in one process, their samples in turn: on the same pools, launched in the same way."""
        return self.a.storage == self.b.storage and self.a.variant.graph == self.b.variant.graph


def parse_side(option: str, text: str, device: str) -> Switches:
    """Return the switches that "reuse=off,compressor=torch" sets, by name, each value as a variant spells it.

    UsageError, naming `option`, the part that is wrong and the nearest right one.
    """
    found: Switches = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name not in SWITCHES:
            raise UsageError(f"{option} {part}: no such switch{nearest(name, SWITCHES)}; known: {', '.join(SWITCHES)}")
        if not equals or not value:
            known = f", VALUE one of {', '.join(WORDS[name])}" if name in WORDS else ""
            raise UsageError(f"{option} {part}: expected {name}=VALUE{known}")
        if name in found:
            raise UsageError(f"{option} {text}: {name} is named twice; expected one value for it")
        found[name] = _value(option, name, value, device)
    return found


def side_text(switches: Switches) -> str:
    """Return the switches as they are typed: "reuse=off,compressor=torch"."""
    return ",".join(f"{name}={value}" for name, value in switches.items())


def check_sides(a: Switches, b: Switches, elsewhere: bool) -> None:
    """Raise UsageError unless a and b set the same switches and differ, in them or `elsewhere` (tree, environment)."""
    typed = " ".join(f"--{name} {side_text(side)}" for name, side in (("a", a), ("b", b)) if side)
    if set(a) != set(b):
        odd = ", ".join(sorted(set(a) ^ set(b)))
        raise UsageError(f"{typed}: expected both to name the same switches; only one names {odd}")
    if a == b and not elsewhere:
        raise UsageError(f"{typed or 'ab'}: a and b are the same; add --aa to measure the noise floor, or change one")


def both_sides(typed: PrefillArguments, a: Switches, b: Switches) -> PrefillArguments:
    """Return the arguments of the plan that holds the cells of both; UsageError where an axis says it once more."""
    default, axes = PrefillArguments(), dict[str, Any]()
    for name in a:
        given, usual = (getattr(one, _field(name)) for one in (typed, default))
        # one flag, or a list or a tuple of its repetitions: that differs between versions of typer
        if given != usual and not (isinstance(given, Sequence) and set(given) <= {usual}):
            option = "--no-graph" if given is False else f"--{name}"
            raise UsageError(f"{option}: --a and --b already say {name}; expected one of both")
        axes[_field(name)] = tuple(dict.fromkeys((a[name], b[name])))
    if "graph" in axes:
        axes["graph"] = None if len(axes["graph"]) > 1 else axes["graph"] == ("on",)
    return replace(typed, **axes)


def two_sides(plan: Sequence[Group], a: Switches, b: Switches) -> list[Two]:
    """Return the cells of a plan two by two, in its order; a cell that has none of the switches is left out.

    UsageError where no cell has them, or where a cell of one side has several that belong to it on the other.
    """
    first, second = (_by_what_is_shared(plan, switches) for switches in (a, b))
    found = [Two(cell, second[shared]) for shared, cell in first.items() if shared in second]
    if not found:
        raise UsageError(
            f"--a {side_text(a)} --b {side_text(b)}: no cell of this plan has {' and '.join(a)} on both sides"
        )
    return found


def in_groups(twos: Sequence[Two]) -> list[list[Two]]:
    """Return those that run after one another on the same pools together, in their order: by the group of side a."""
    found: dict[str, list[Two]] = {}
    for two in twos:
        found.setdefault(two.a.group, []).append(two)
    return list(found.values())


def _by_what_is_shared(plan: Sequence[Group], switches: Switches) -> dict[Cell, Cell]:
    """Return the cells that a side's switches hold for, by themselves without what only one side can have."""
    found: dict[Cell, Cell] = {}
    for cell in (cell for group in plan for cell in group if _holds(cell.variant, switches)):
        shared = replace(cell, variant=_without(cell.variant, switches))
        if shared in found:
            raise UsageError(
                f"{side_text(switches)}: two cells of this side belong to one of the other, {_form(found[shared])} and"
                f" {_form(cell)}; expected one value of --graph-mode, --breaks and --break-outputs"
            )
        found[shared] = cell
    return found


def _holds(variant: Variant, switches: Switches) -> bool:
    """Return whether a variant has these values; an eager one has no graph mode."""
    graph = {"graph": "on"} if variant.graph else {"graph": "off", "graph-mode": None}
    own = variant.switches() | graph
    return all(own[name] == value for name, value in switches.items())


def _without(variant: Variant, switches: Switches) -> Variant:
    """Return a variant with the defaults of these switches, and of those that the other side need not have."""
    names = {*switches, *(more for name in switches for more in ONE_SIDE_ONLY.get(name, ()))}
    return replace(variant, **{_field(name): getattr(Variant(), _field(name)) for name in names})


def _form(cell: Cell) -> str:
    variant = cell.variant
    return f"{variant.graph_mode} {variant.breaks} {variant.break_outputs}"


def _field(switch: str) -> str:
    return switch.replace("-", "_")


def _value(option: str, name: str, value: str, device: str) -> str:
    """Return the value of a switch as a variant spells it."""
    try:
        if name == "provider":
            return choice(value, device).text
        if name == "kv":
            return kv_pair(value).name
    except UsageError as error:
        raise UsageError(f"{option} {name}={str(error).removeprefix(f'--{name} ')}") from None
    value = "on" if (name, value) == ("replay", "recipe") else value
    if value not in WORDS[name]:
        known = tuple(WORDS[name])
        raise UsageError(f"{option} {name}={value}: not known{nearest(value, known)}; known: {', '.join(known)}")
    return value
