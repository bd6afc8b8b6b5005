"""Tables of projections: step times on other GPUs, the model behind them with its error, and the peaks that it used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsv4bench.dashboards.cells import batch_text, grouped, in_step, mode_text, rows_notes, rows_text
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.peaks import Device
from dsv4bench.results.projected import Model, Projected, scaled_text
from dsv4bench.results.projection import LEAST_SHARE, Operation
from dsv4bench.results.record import Record
from dsv4bench.units import NS_PER_MS, NS_PER_US, format_count, format_in_unit, format_percent, significant

AXES = ("kv", "compressor", "reuse")
USED = ("hbm_rate", "bf16", "sms", "sm_clock")  # the figures that the model scales by
HOST_MARK = "host"
SMALL = 0.001  # of all device time: operations below it stand in CSV only
MEANING = (
    "share: of the ceiling of bytes or FLOPs (the longer one) at this GPU's peaks; above 1 what is read lies in the L2"
)
CYCLES = (
    f"cycles: an operation below {LEAST_SHARE:.0%} of both ceilings is bound by neither, and scales with SMs x clock"
)
ASSUMED = (
    "assumed of the other GPU: kernels as good as these are here (its own attention among them), the same fixed cost of"
    " a launch, the same loss to power and heat"
)


def projection_tables(projected: Sequence[Projected]) -> list[Table]:
    """Return the step times of every model's cells on every target, what the model is made of, and the peaks used."""
    found: list[Table] = []
    for same in grouped(projected, lambda one: id(one.model)):
        targets = list({one.target.word: one.target for one in same}.values())
        found += [_step_table(same, targets), _model_table(same[0].model, targets)]
    devices = {one.word: one for item in projected for one in (item.model.fit.device, item.target)}
    return [*found, _peaks_table(list(devices.values()))]


def _step_table(projected: Sequence[Projected], targets: Sequence[Device]) -> Table:
    model = projected[0].model
    cells = grouped(projected, lambda one: id(one.cell))
    records = [same[0].cell.record for same in cells]
    shown = {name: len({record.variant.get(name) for record in records}) > 1 for name in AXES}
    prefixes = len({record.batch.get("prefix") for record in records}) > 1
    columns = (
        Column("batch", ("requests", "extend")),
        Column("rows", ("rows",)),
        Column("prefix" if prefixes else "", ("prefix",)),
        Column("mode", ("mode",), right=False),
        *(Column(name if shown[name] else "", (name,), right=False) for name in AXES),
        Column(f"{model.fit.device.word.upper()} ms", ("measured_ns",)),
        *(
            Column(title, names)
            for one in targets
            for title, names in (
                (f"{one.word.upper()} ms", (f"{one.word}_ns", f"{one.word}_launch_bound")),
                ("", (f"{one.word}_status", f"{one.word}_reason")),
            )
        ),
    )
    rows = [(*_workload(same[0].cell.record), _measured(same[0]), *_each(same, targets)) for same in cells]
    title = (
        f"Step time projected on {', '.join(one.word.upper() for one in targets)} (modelled) from {model.fit.machine}"
    )
    notes = (*_settings(records, shown, prefixes), *rows_notes(records), *_step_notes(projected))
    return Table(title, columns, tuple(rows), notes)


def _workload(record: Record) -> tuple[Cell, ...]:
    batch = record.batch
    return (
        Cell(batch_text(record), (batch.get("requests"), batch.get("extend"))),
        cell(batch.get("rows"), rows_text(record)),
        cell(batch.get("prefix")),
        cell(mode_text(record)),
        *(cell(record.variant.get(name)) for name in AXES),
    )


def _measured(one: Projected) -> Cell:
    return cell(one.cell.step_ns, _ms(one.cell.step_ns))


def _each(same: Sequence[Projected], targets: Sequence[Device]) -> list[Cell]:
    found: list[Cell] = []
    for one in (next(item for item in same if item.target.word == target.word) for target in targets):
        got = one.prediction
        if got is None:
            found += [Cell("-", (None, None)), Cell("", ("skipped", one.reason))]
            continue
        mark = f" {HOST_MARK}" if got.launch_bound else ""
        found += [Cell(f"{_ms(got.step_ns)}{mark}", (got.step_ns, got.launch_bound)), Cell("", ("ok", None))]
    return found


def _settings(records: Sequence[Record], shown: Mapping[str, bool], prefixes: bool) -> list[str]:
    words = [f"{name} {records[0].variant.get(name)}" for name in AXES if not shown[name]]
    words += [] if prefixes else [f"prefix {records[0].batch.get('prefix')}"]
    stacks = dict.fromkeys(f"{in_step(record.variant)} of {record.geometry}" for record in records)
    return [f"{', '.join(stacks)}; {', '.join(words)}"]


def _step_notes(projected: Sequence[Projected]) -> list[str]:
    said = [
        f"{one.target.word.upper()}: {text}" for one in projected for text in (scaled_text(one), one.assumed) if text
    ]
    found = [*dict.fromkeys(said), projected[0].model.errors_text, projected[0].model.elsewhere_text]
    if any(one.prediction and one.prediction.launch_bound for one in projected):
        found.append(f"{HOST_MARK}: launch-bound, as long as the host needs to submit the step")
    reasons = dict.fromkeys(one.reason for one in projected if one.reason)
    counts = {reason: len({id(one.cell) for one in projected if one.reason == reason}) for reason in reasons}
    return [
        *found,
        ASSUMED,
        *(f"not projected ({format_count(count, 'cell')}): {reason}" for reason, count in counts.items()),
    ]


def _model_table(model: Model, targets: Sequence[Device]) -> Table:
    device, operations = model.fit.device, model.fit.operations
    total = sum(one.timed_ns for one in operations.values())
    columns = (
        Column("op", ("op",), right=False),
        Column("of the time", ("timed_share",)),
        Column("bound by", ("bound",), right=False),
        Column("share", ("share",)),
        Column("us a launch", ("launch_ns",)),
        *(Column(f"{one.word.upper()} x", (f"{one.word}_factor",)) for one in targets),
    )
    order = sorted(operations.items(), key=lambda item: -item[1].timed_ns)
    rows = [
        (
            cell(op),
            cell(one.timed_ns / total, format_percent(one.timed_ns / total)),
            cell(one.bound),
            cell(one.share, "-" if one.share is None else significant(one.share, 3)),
            cell(one.launch_ns, format_in_unit(one.launch_ns, NS_PER_US)),
            *(cell(factor, significant(factor, 3)) for factor in (_factor(one, device, t) for t in targets)),
        )
        for op, one in order
        if one.timed_ns >= SMALL * total
    ]
    left = len(operations) - len(rows)
    few = (
        [f"{left} operations below {format_percent(SMALL)} of the time are in the model and not shown"] if left else []
    )
    host = model.host
    made = (
        f"fitted on {model.fit.cells} profiled steps; a step takes {significant(model.fit.steady, 4)} x the sum of its"
        f" operations (median); the host takes {format_in_unit(host.launch_ns, NS_PER_US)} us a launch and"
        f" {format_in_unit(host.graph_launch_ns, NS_PER_US)} us a graph launch (fitted on {host.cells} cells)"
    )
    title = (
        f"The model of {model.fit.machine}: what its operations reach, and how much faster their ceiling is elsewhere"
    )
    return Table(title, columns, tuple(rows), (made, *model.left_out_text, MEANING, CYCLES, *few))


def _factor(one: Operation, device: Device, target: Device) -> float:
    if one.bound == "cycles":
        return target.cycles_per_s / device.cycles_per_s
    figure = "bf16" if one.bound == "FLOPs" else "hbm_rate"
    return target.value(figure) / device.value(figure)


def _peaks_table(devices: Sequence[Device]) -> Table:
    columns = (
        Column("figure", ("figure",), right=False),
        *(Column(one.word.upper(), (f"{one.word}", f"{one.word}_source", f"{one.word}_date")) for one in devices),
    )
    names = list(dict.fromkeys(name for one in devices for name in one.figures))
    rows = [(cell(name), *(_figure(one, name) for one in devices)) for name in names]
    rows.append((cell("host"), *(Cell(one.host, (one.host, None, None)) for one in devices)))
    sources = [
        f"{one.word.upper()} {name}: {found.source}{f' ({found.date})' if found.date else ''}"
        for one in devices
        for name in USED
        for found in (one.figures[name],)
    ]
    return Table(
        "Peaks of these GPUs, FLOP rates dense; the model uses " + ", ".join(USED),
        columns,
        tuple(rows),
        tuple(sources),
    )


def _figure(device: Device, name: str) -> Cell:
    one = device.figures.get(name)
    return Cell("not known", (None, None, None)) if one is None else Cell(one.text, (one.value, one.source, one.date))


def _ms(ns: float) -> str:
    return format_in_unit(ns, NS_PER_MS)
