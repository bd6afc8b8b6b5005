"""One record: all that was seen of one cell, as plain values; docs/records.md explains every field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dsv4bench.errors import nearest

SCHEMA = 1
Status = Literal["ok", "skipped", "refused", "failed", "wrong", "out_of_memory"]
Label = Literal["measured", "modelled", "simulated"]
Engine = Literal["gpu", "tape", "cpu-reference"]
Place = Literal["eager", "segment", "break"]
STATUSES, LABELS, ENGINES, PLACES = map(get_args, (Status, Label, Engine, Place))
ROWS = ("counts", "checks", "rank_samples_ns")  # lists of objects
CLASSES = ("calls", "kernels", "copies", "sets", "aten_ops")
# the metric that stands for a cell's step time: the first of these that was measured
STEP_METRICS = ("graph_replay", "step_period", "kernel_cold")
BESIDE = (
    "outputs beside provider "  # how the note begins that compares them with another provider's of the same process
)
LAUNCH_BOUND = "launch-bound"  # the flag of a step whose whole time the host needs to enqueue it

Samples = dict[str, list[int]]


class Derived:
    """What follows from the fields of a record."""

    __slots__ = ()
    engine: str
    variant: dict[str, Any]
    samples_ns: Samples
    environment: dict[str, Any]

    @property
    def machine(self) -> str:
        """The device that ran the cell: the GPU's name, or the processor's where no GPU was used."""
        kind = "gpu" if self.engine == "gpu" else "cpu"
        return str(self.environment.get(kind) or f"unknown {kind}")

    @property
    def mode(self) -> str:
        """How the step was launched: "eager", "graph", "full graph" or, without a GPU, "tape", "full tape"."""
        if not self.variant.get("graph"):
            return "eager"
        graph = "graph" if self.engine == "gpu" else "tape"
        return f"full {graph}" if self.variant.get("graph-mode") == "full" else graph

    @property
    def step_metric(self) -> str | None:
        """The metric that stands for the step time, or None where the cell has no time."""
        return next((metric for metric in STEP_METRICS if metric in self.samples_ns), None)

    @property
    def step_samples_ns(self) -> list[int]:
        """All samples of the step time; empty where the cell has no time."""
        return self.samples_ns.get(self.step_metric or "", [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Derived):
    """What was seen of one cell; TypeError for a value of another kind, ValueError for values that contradict.

    A record holds samples if and only if its status is "ok"; any other status has a reason. Times are in nanoseconds,
    memory in bytes. `extra` keeps the keys of a file that this version does not know.
    """

    key: str
    status: str
    schema: int = SCHEMA
    group: str = ""
    created: str = ""
    reason: str | None = None
    label: str = "measured"
    engine: str = "cpu-reference"
    note: list[str] = field(default_factory=list)
    geometry: str = ""
    batch: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    variant: dict[str, Any] = field(default_factory=dict)
    providers: dict[str, Any] = field(default_factory=dict)
    kernel: dict[str, Any] | None = None
    samples_ns: Samples = field(default_factory=dict)
    rank_samples_ns: list[Samples] | None = None
    rank_launches: list[list[dict[str, Any]]] | None = None
    timing: dict[str, Any] | None = None
    predicted: dict[str, Any] | None = None
    counts: list[dict[str, Any]] = field(default_factory=list)
    counted_forwards: int | None = None
    coverage: dict[str, Any] | None = None
    graph: dict[str, Any] | None = None
    capture_ledger: dict[str, Any] | None = None
    device_time: dict[str, Any] | None = None
    redundant: list[dict[str, Any]] | None = None
    ab: dict[str, Any] | None = None
    projection: dict[str, Any] | None = None
    traces: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    clocks: dict[str, Any] | None = None
    flags: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise _wrong_kind(name, value, kind)
        for name in ROWS:
            for row in getattr(self, name) or ():
                if not isinstance(row, dict):
                    raise _wrong_kind(f"a row of {name}", row, dict)
        _check_word("status", self.status, STATUSES)
        _check_word("label", self.label, LABELS)
        _check_word("engine", self.engine, ENGINES)
        _check_status(self)
        for samples in (self.samples_ns, *(self.rank_samples_ns or [])):
            _check_samples(samples)
        for row in self.counts:
            _check_count(row)


KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("key", "status", "group", "created", "label", "engine", "geometry"), str),
    **dict.fromkeys(("schema", "ranks"), int),
    **dict.fromkeys(("note", "counts", "checks", "flags", "argv", "traces"), list),
    **dict.fromkeys(("batch", "variant", "providers", "samples_ns", "memory", "environment", "extra"), dict),
    **dict.fromkeys(("kernel", "timing", "predicted", "coverage", "graph", "clocks"), (dict, type(None))),
    **dict.fromkeys(("capture_ledger", "device_time", "ab", "projection"), (dict, type(None))),
    "reason": (str, type(None)),
    "counted_forwards": (int, type(None)),
    **dict.fromkeys(("rank_samples_ns", "rank_launches", "redundant"), (list, type(None))),
}


def _wrong_kind(name: str, value: Any, kind: type | tuple[type, ...]) -> TypeError:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    wanted = " or ".join("null" if one is type(None) else one.__name__ for one in kinds)
    return TypeError(f"{name}: expected {wanted}, found {value!r:.80}")


def _check_word(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(known)}{nearest(value, known)}")


def _check_status(record: Record) -> None:
    ok = record.status == "ok"
    if ok != bool(record.samples_ns):
        raise ValueError(f"status {record.status!r} {'without' if ok else 'with'} samples: only an ok cell has a time")
    if not ok and not record.reason:
        raise ValueError(f"status {record.status!r} without a reason")
    failed = [check.get("name") for check in record.checks if not check.get("passed")]
    if ok and failed:
        raise ValueError(f"status 'ok' with a failed check: {failed[0]}")


def _check_samples(samples: Samples) -> None:
    for metric, values in samples.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{metric}: expected a list of samples, found {values!r:.80}")
        if not all(type(value) is int and value >= 0 for value in values):
            raise ValueError(f"{metric}: a sample is a whole number of nanoseconds, not negative")


def _check_count(row: dict[str, Any]) -> None:
    if row.get("where") not in PLACES:  # a store has a million of these rows
        _check_word("counts.where", str(row.get("where")), PLACES)
    for name in CLASSES:
        value = row.get(name)
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(f"counts.{name} of {row.get('op')}: expected a whole number or null, found {value!r}")
