"""Projections as records: the model of `projection.py` applied to measured cells, with its measured error.

A projected record has label `modelled`, one sample a metric, and no side of a trial; it enters no verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from dsv4bench.results.peaks import Device, Peaks
from dsv4bench.results.projection import Cell, Fit, Host, Prediction, alike, fit, fit_host, predict
from dsv4bench.results.published import Published, errors_elsewhere, read_published
from dsv4bench.results.record import LAUNCH_BOUND, Record
from dsv4bench.units import format_count, format_percent

EAGER, GRAPH, SUBMIT = "eager", "graph", "host submit"  # what an error is of
KEPT = ("commit", "dirty", "diff", "src", "dsv4bench")  # of the environment: whose code was measured
KEY_DIGITS = 16
PERCENT = 100
PUBLISHED = "of the time of single operations, against what others published of their kernels and sizes"
RATES = {"bytes": "hbm_rate", "FLOPs": "bf16"}  # what is scaled by which figure


@dataclass(frozen=True, slots=True)
class Error:
    """The error of predicting cells from others: median and 90th percentile of |predicted / measured - 1|."""

    median: float
    most: float
    cells: int

    @property
    def text(self) -> str:
        """What a reader is told, e.g. "median 0.81 %, 90 % of 21 cells within 3.10 %"."""
        return f"median {format_percent(self.median)}, 90 % of {self.cells} cells within {format_percent(self.most)}"


@dataclass(frozen=True, slots=True)
class Model:
    """A fit of one machine with its cells, its host and its errors on that machine, by what they are of.

    `elsewhere` are its errors of single operations on other GPUs, with the published figures behind them.
    """

    cells: Sequence[Cell]
    fit: Fit
    host: Host
    errors: Mapping[str, Error]
    elsewhere: Sequence[tuple[Published, float]]

    @property
    def errors_text(self) -> str:
        """What a reader is told of the errors, on one line."""
        said = [f"{what} {error.text}" for what, error in self.errors.items()]
        found = "; ".join(said) or "not measured, which needs two workloads with device times"
        return f"error on {self.fit.machine} itself, of cells that the fit had not seen: {found}"

    @property
    def elsewhere_text(self) -> str:
        """What a reader is told of the errors on other GPUs, on one line."""
        found: dict[str, dict[str, list[str]]] = {}
        for one, error in self.elsewhere:
            found.setdefault(one.device.upper(), {}).setdefault(one.op, []).append(f"{round(PERCENT * error):+d} %")
        said = [
            f"{device} {', '.join(f'{op} ' + ' and '.join(errors) for op, errors in ops.items())}"
            for device, ops in sorted(found.items())
        ]
        known = f"; {PUBLISHED}: {'; '.join(said)}" if said else ""
        return f"error on other GPUs: of steps not known{known}"

    @property
    def left_out_text(self) -> list[str]:
        """What a reader is told of device times that the fit leaves out, if there are any."""
        count = sum(cell.partial for cell in self.cells)
        why = "a part of what ran in their profiled step has no place, so times of its operations are missing"
        return [f"device times left out of the fit ({format_count(count, 'cell')}): {why}"] if count else []


@dataclass(frozen=True, slots=True)
class Projected:
    """A measured cell on another device: a prediction, or the reason why there is none.

    `assumed` says what of the host was assumed, or is None where its kind of host was measured.
    """

    cell: Cell
    model: Model
    target: Device
    prediction: Prediction | None
    reason: str | None
    assumed: str | None


def models(cells: Sequence[Cell], peaks: Peaks) -> list[Model]:
    """Fit every machine that has whole device times, once for all cells whose kernels ran on the same providers.

    Cells of such a machine without device times of their own are in its first model, which says whether it fits them.
    """
    found: list[Model] = []
    others: list[Cell] = []
    figures = read_published()
    for same in alike(cells):
        if not any(cell.timed for cell in same):
            others += same
            continue
        device = peaks.of_machine(same[0].record.machine)
        fitted, host = fit(same, device), fit_host(same, device.host)
        if fitted and host:
            found.append(Model(same, fitted, host, held_out(same, device), errors_elsewhere(fitted, peaks, figures)))
    firsts = {model.fit.machine: place for place, model in reversed(list(enumerate(found)))}
    for machine, place in firsts.items():
        mine = [cell for cell in others if cell.record.machine == machine]
        found[place] = replace(found[place], cells=[*found[place].cells, *mine])
    return found


def measured_hosts(cells: Sequence[Cell], peaks: Peaks) -> list[Host]:
    """Fit the host of every machine whose kind of host is known, device times or not."""
    found = []
    for same in alike(cells):
        kinds = [device.host for device in peaks.devices.values() if same[0].record.machine in device.names]
        found += [host for kind in kinds if (host := fit_host(same, kind))]
    return found


def held_out(cells: Sequence[Cell], device: Device) -> dict[str, Error]:
    """Predict the cells of every other workload from the rest, then the rest from them; no error of fewer than two."""
    order = list(dict.fromkeys(cell.workload for cell in cells))
    relative: dict[str, list[float]] = {}
    for fold in (0, 1):
        seen = [cell for cell in cells if order.index(cell.workload) % 2 == fold]
        fitted, host = fit(seen, device), fit_host(seen, device.host)
        for cell in cells:
            if cell in seen or fitted is None or host is None or fitted.why_not(cell):
                continue
            got = predict(cell, fitted, host, device)
            what = GRAPH if cell.record.variant.get("graph") else EAGER
            relative.setdefault(what, []).append(got.step_ns / cell.step_ns - 1)
            if cell.host_ns:
                relative.setdefault(SUBMIT, []).append(got.host_ns / cell.host_ns - 1)
    return {what: _error(relative[what]) for what in (EAGER, GRAPH, SUBMIT) if what in relative}


def _error(relative: Sequence[float]) -> Error:
    off = [abs(one) for one in relative]
    return Error(median(off), float(np.quantile(off, 0.9)), len(off))


def project(model: Model, target: Device, peaks: Peaks, hosts: Sequence[Host]) -> list[Projected]:
    """Project every cell of a model on `target`."""
    host, assumed = _host(model, target, peaks, hosts)
    found = []
    for cell in model.cells:
        reason = model.fit.why_not(cell)
        got = None if reason else predict(cell, model.fit, host, target)
        found.append(Projected(cell, model, target, got, reason, assumed))
    return found


def _host(model: Model, target: Device, peaks: Peaks, hosts: Sequence[Host]) -> tuple[Host, str | None]:
    """Return the host that submits: the model's own, one of the target's kind that was measured, or a scaled one."""
    for host in (model.host, *hosts):
        if host.kind == target.host:
            return host, None
    own, other = peaks.hosts[model.host.kind], peaks.hosts[target.host]
    ratio = other.value / own.value
    scaled = Host(model.host.machine, target.host, model.host.launch_ns * ratio, model.host.graph_launch_ns * ratio, 0)
    return (
        scaled,
        f"launches cost {target.host} {ratio:g} x as much as {model.host.kind}: an assumption, not measured",
    )


def record(one: Projected, argv: Sequence[str], created: str) -> Record:
    """Return the modelled record of a projection; a cell that cannot be predicted is skipped with its reason."""
    source, got = one.cell.record, one.prediction
    return Record(
        key=hashlib.sha256(f"{source.key} {source.machine} {one.target.word}".encode()).hexdigest()[:KEY_DIGITS],
        group=source.group,
        created=created,
        status="ok" if got else "skipped",
        reason=one.reason,
        label="modelled",
        engine="gpu",
        note=notes(one),
        geometry=source.geometry,
        batch=dict(source.batch),
        ranks=source.ranks,
        variant=dict(source.variant),
        providers=dict(source.providers),
        samples_ns=_samples(source, got) if got else {},
        projection=_projection(one, got) if got else None,
        flags=[LAUNCH_BOUND] if got and got.launch_bound else [],
        environment={
            "gpu": f"{one.target.word.upper()} (modelled)",
            "modelled_from": source.machine,
            **{name: source.environment[name] for name in KEPT if name in source.environment},
        },
        argv=list(argv),
    )


def _samples(source: Record, got: Prediction) -> dict[str, list[int]]:
    return {str(source.step_metric): [round(got.step_ns)], "host_submit": [round(got.host_ns)]}


def notes(one: Projected) -> list[str]:
    """Return what must be read with a projection: that it is modelled, what was scaled by what, and the error."""
    told = [scaled_text(one), one.model.errors_text, one.model.elsewhere_text, *one.model.left_out_text]
    return [*told, *([one.assumed] if one.assumed else [])]


def scaled_text(one: Projected) -> str:
    """Return the line that says of a projection that it is modelled, and what was scaled by what."""
    device, target = one.model.fit.device, one.target
    rates = [f"{name} {device.figures[key].text} -> {target.figures[key].text}" for name, key in RATES.items()]
    cycles = f"SMs x clock x {target.cycles_per_s / device.cycles_per_s:.3g}"
    return f"modelled from {one.model.fit.machine}, not measured: {'; '.join(rates)}; {cycles}"


def _projection(one: Projected, got: Prediction) -> dict[str, Any]:
    rows = [
        {"op": op, "kv_source": source, "device_ns": ns, "bound": bound}
        for (op, source), (ns, bound) in sorted(got.operations.items(), key=lambda item: -item[1][0])
    ]
    return {
        "how": "max(bytes / rate, FLOPs / rate) / share + launches x a fixed cost, fitted on measured device times",
        "from": one.model.fit.machine,
        "device_ns": got.device_ns,
        "host_ns": got.host_ns,
        "steady": one.model.fit.steady,
        "operations": rows,
        "errors": {
            what: {"median": error.median, "p90": error.most, "cells": error.cells}
            for what, error in one.model.errors.items()
        },
    }
