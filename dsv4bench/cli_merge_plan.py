"""What is missing of the plans of joined runs: each command's plan is worked out again from its records' argv.

A cell is known by its group's content key and its switches. No commit is in them, so that a cell counts as measured
whatever the commit. What the plan needs beside the command (a config.json, recorded requests, a file of the user's)
must lie where the command finds it; else, or where this version plans other cells than the records are of, the plan is
not known, and that is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import typer

from dsv4bench.cli import app
from dsv4bench.cli_mistakes import NOT_TYPED_SO
from dsv4bench.cli_repro_run import typed_values
from dsv4bench.errors import UsageError
from dsv4bench.results.compare import without_place
from dsv4bench.results.merged import MissingGroup, PlanLeft
from dsv4bench.results.migrations import SWITCHES
from dsv4bench.results.record import Record
from dsv4bench.results.store import NO_TIME_LEFT
from dsv4bench.units import format_count
from dsv4bench.workloads.shard import dealt

if TYPE_CHECKING:
    from dsv4bench.workloads.cells import Cell

ANY_PROVIDER = ""  # of a kernel that no record of its command is of

CellId = tuple[str, str]  # the key of its group, and its switches as JSON
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of a plan: its content key, what tells it from the others, and what its cells are called, by switches."""

    key: str
    what: str
    cells: Mapping[str, str]


def plans_left(records: Sequence[Record]) -> list[PlanLeft]:
    """Return what is missing of the plan of each command among the records; commands with one plan count once."""
    runs: dict[tuple[tuple[str, ...], str], list[Record]] = {}
    for record in records:
        if record.label != "modelled":  # a projection carries the command of what it projects
            device = "cuda" if record.engine == "gpu" else "cpu"
            runs.setdefault((tuple(without_place(record.argv)), device), []).append(record)
    have = {_id_of(record) for record in records if record.reason != NO_TIME_LEFT}
    found: dict[object, PlanLeft] = {}
    for (command, device), own in runs.items():
        try:
            plan = _plan(command, device, own)
        except (UsageError, NOT_TYPED_SO) as error:
            found[command, device] = PlanLeft(command, reason=str(error))
        except ModuleNotFoundError as error:
            found[command, device] = PlanLeft(command, reason=f"{error.name} is not installed here")
        else:
            found.setdefault(frozenset(_ids(plan)), _left(command, plan, have, _shards(own)))
    return list(found.values())


def _left(command: tuple[str, ...], plan: Sequence[PlannedGroup], have: set[CellId], shards: int | None) -> PlanLeft:
    """Return what of a plan is not among the cells that there are."""
    numbers = dealt((group.key for group in plan), shards) if shards else {}
    missing = []
    for group in plan:
        names = tuple(name for switches, name in group.cells.items() if (group.key, switches) not in have)
        if names:
            whose = f"{numbers[group.key]}/{shards}" if shards else None
            missing.append(MissingGroup(group.what, names, len(group.cells), whose))
    return PlanLeft(command, sum(len(group.cells) for group in plan), tuple(missing))


def _shards(records: Sequence[Record]) -> int | None:
    """Return how many shards the records' commands name, or None where they do not all name the same number."""
    typed = {(typed_values(record.argv, "shard") or [""])[-1].rpartition("/")[2] for record in records}
    count = typed.pop() if len(typed) == 1 else ""
    return int(count) if count else None


def _plan(command: Sequence[str], device: str, own: Sequence[Record]) -> list[PlannedGroup]:
    """Return the plan of a command on a device; UsageError where it is not that which `own`, its records, are of."""
    planned = {"prefill": _of_prefill, "kernels": _of_kernels}.get("".join(command[1:2]))
    if planned is None:
        raise UsageError("no command is known" if not command else "only prefill and kernels have a plan")
    name, *arguments = command[1:]
    context = typer.main.get_group(app).commands[name].make_context(name, arguments)
    plan = planned(context.params, device, own)
    strangers = {_id_of(record) for record in own} - _ids(plan)
    if strangers:
        raise UsageError(f"{format_count(len(strangers), 'cell')} of its records would not be in it here")
    return plan


def _of_prefill(params: Values, device: str, own: Sequence[Record]) -> list[PlannedGroup]:
    from dsv4bench.workloads.cells import STORED, cells
    from dsv4bench.workloads.options import PrefillArguments, prefill_options

    plan = cells(prefill_options(PrefillArguments(**_typed(PrefillArguments, params)), ran_on=device))
    whats = _told_apart([_axes(group[0], ("provider", *STORED)) for group in plan])
    return [
        PlannedGroup(
            group[0].group,
            what,
            {
                _text(cell.variant.switches()): name
                for cell, name in zip(group, _told_apart([_mode(cell) for cell in group]), strict=True)
            },
        )
        for group, what in zip(plan, whats, strict=True)
    ]


def _of_kernels(params: Values, device: str, own: Sequence[Record]) -> list[PlannedGroup]:
    """Return the plan of kernels; "auto" are the providers that the records of a kernel name, on whatever machine."""
    from dsv4bench.workloads.kernel_cells import AUTO, KernelArguments, kernel_cells

    typed = KernelArguments(**_typed(KernelArguments, params))
    words = [word.strip() for text in typed.provider for word in text.split(",")]
    plan = kernel_cells(replace(typed, provider=["all" if word == AUTO else word for word in words]), ran_on=device)
    ran: dict[str, set[str]] = {}
    for kernel in (record.kernel or {} for record in own):
        ran.setdefault(str(kernel.get("name")), set()).add(str(kernel.get("provider")))
    found = []
    for group in plan:
        providers = [cell.provider for cell in group]
        if AUTO in words:
            providers = [one for one in providers if one in ran.get(group[0].kernel, ())] or [ANY_PROVIDER]
        what = " ".join(filter(None, [group[0].kernel, group[0].case, str(group[0].rows or "")]))
        found.append(PlannedGroup(group[0].group, what, {_text({"provider": one}): one for one in providers}))
    return found


def _typed(arguments: type[Any], params: Values) -> dict[str, Any]:
    """Return what of a command's parameters its arguments take; what was not typed keeps its default."""
    names = [field.name for field in fields(arguments) if field.name in params]
    return {name: params[name] for name in names if params[name] not in (None, (), "")}


def _axes(cell: Cell, names: Sequence[str]) -> dict[str, Any]:
    """Return the values that tell a cell's group from others, the usual ones first, the switches by `names`."""
    load, variant = cell.load, cell.variant
    lengths = {"batch": len(load.requests), "extend": load.extend, "prefix": load.prefix}
    switches = {name: variant.switches()[name] for name in names}
    return {**lengths, **switches, "geometry": cell.geometry.name, "ranks": cell.ranks, "chunk": cell.chunk}


def _mode(cell: Cell) -> dict[str, Any]:
    """Return the values that tell a cell from others of its group."""
    switches = cell.variant.switches()
    return {"mode": cell.mode, **{name: switches[name] for name in ("breaks", "break-outputs", "compressor", "reuse")}}


def _told_apart(rows: Sequence[Values]) -> list[str]:
    """Return what tells each row from the others, e.g. "batch 8, kv v4"; the first value where nothing does."""
    several = [name for name in rows[0] if len({row[name] for row in rows} - {None}) > 1] or list(rows[0])[:1]
    return [", ".join(f"{name} {row[name]}" for name in several if row[name] is not None) for row in rows]


def _ids(plan: Sequence[PlannedGroup]) -> set[CellId]:
    return {(group.key, switches) for group in plan for switches in group.cells}


def _id_of(record: Record) -> CellId:
    """Return by what a record's cell is known: of kernels alone by the provider, of steps by all switches."""
    names = ("provider",) if record.kernel else SWITCHES
    return record.group, _text({name: record.variant.get(name) for name in names})


def _text(switches: Values) -> str:
    return json.dumps(switches, sort_keys=True)
