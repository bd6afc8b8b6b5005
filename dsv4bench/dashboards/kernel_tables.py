"""Tables of kernels: every provider's time side by side, its rate, and its share of what the device gives."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.cells import grouped, provenance
from dsv4bench.dashboards.style import plus_minus
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.compare import latest, without_place
from dsv4bench.results.plausibility import IMPLAUSIBLE, flagged, implausible
from dsv4bench.results.record import Record
from dsv4bench.results.speed import Speed, peer, provider, ratio, speed
from dsv4bench.results.stats import Interval
from dsv4bench.units import NS_PER_US, format_flop_rate, format_rate, significant

COLUMNS = (
    Column("case", ("case",), right=False),
    Column("rows", ("rows",)),
    Column("provider", ("provider",), right=False),
    Column("cold us", ("cold_ns", "cold_low_ns", "cold_high_ns")),
    Column("hot us", ("hot_ns", "hot_low_ns", "hot_high_ns")),
    Column("rate", ("rate", "bound")),
    Column("share", ("share", "ceiling")),
    Column("faster", ("ratio", "ratio_low", "ratio_high", "than")),
    *(Column("", (name,)) for name in ("status", "reason", "flops", "bytes_read", "bytes_written", "sets", "samples")),
    Column("", ("launches",)),
)
MEANING = (
    "cold: buffer sets rotate beyond 3 times the L2; hot: one set over and over; median and farther bound of its 95 %"
    " interval",
    "share: of the elementwise ceiling at the same bytes (the faster of half read and the kernel's own mix of reads and"
    " writes), or of the bf16 matmul ceiling where the rate is FLOP/s; cold",
)


def kernel_tables(records: Sequence[Record]) -> list[Table]:
    """Return one table per kernel, machine and command of those records that are of kernels."""
    kernels = [flagged(record) for record in latest(records) if record.kernel is not None]
    return [_table(same) for same in grouped(kernels, _section)]


def _section(record: Record) -> tuple[str, ...]:
    code = [str(record.environment.get(name)) for name in ("commit", "src")]
    return (_name(record), record.engine, record.machine, *code, *without_place(record.argv))


def _name(record: Record) -> str:
    return str((record.kernel or {}).get("name"))


def _table(same: Sequence[Record]) -> Table:
    first = same[0]
    title = f"{_name(first)}: {first.label}, {first.engine}, {first.machine}"
    rows = [row for group in grouped(same, lambda record: record.group) for row in _rows(group)]
    timed = [record for record in same if record.samples_ns]
    notes = [*MEANING, *_ceilings(timed[0])] if timed else []
    notes += [*_than(same), *_launches(timed)]
    said = list(dict.fromkeys(note for record in same for note in record.note))
    return Table(title, COLUMNS, tuple(rows), (*notes, *said, *_flags(same), *_reasons(same), *provenance(same)))


def _rows(group: Sequence[Record]) -> list[tuple[Cell, ...]]:
    other = peer(list(group))
    return [_row(record, other) for record in group]


def _row(record: Record, other: Record | None) -> tuple[Cell, ...]:
    found, seen = record.kernel or {}, speed(record)
    faster = ratio(record, other)
    return (
        cell(found.get("case")),
        cell(found.get("rows")),
        cell(found.get("provider")),
        _time(seen.cold if seen else None, otherwise=_status(record)),
        _time(seen.hot if seen else None),
        _rate(seen),
        _share(record, seen),
        _faster(faster, other),
        *(cell(value, "") for value in (record.status, record.reason)),
        *(cell(found.get(name), "") for name in ("flops", "bytes_read", "bytes_written", "sets")),
        cell(len(record.step_samples_ns), ""),
        cell(found.get("launches"), ""),
    )


def _time(interval: Interval | None, otherwise: str = "") -> Cell:
    if interval is None:
        return Cell(otherwise, (None, None, None))
    return Cell(plus_minus(interval, NS_PER_US), (interval.value, interval.low, interval.high))


def _rate(seen: Speed | None) -> Cell:
    if seen is None:
        return Cell("", (None, None))
    text = format_rate(seen.rate) if seen.bound == "memory" else format_flop_rate(seen.rate)
    return Cell(text, (seen.rate, seen.bound))


def _share(record: Record, seen: Speed | None) -> Cell:
    if seen is None:
        return Cell("", (None, None))
    mark = " !" if implausible(record) else ""
    return Cell(significant(seen.share, 3) + mark, (seen.share, seen.ceiling))


def _faster(faster: Interval | None, other: Record | None) -> Cell:
    if faster is None or other is None:
        return Cell("", (None, None, None, None))
    return Cell(f"{faster.value:.2f}x", (faster.value, faster.low, faster.high, provider(other)))


def _than(same: Sequence[Record]) -> list[str]:
    groups = grouped(same, lambda record: record.group)
    named = [
        provider(other) for group in groups if (other := peer(list(group))) and any(ratio(r, other) for r in group)
    ]
    names = list(dict.fromkeys(named))
    return [f"faster: times faster than {' or '.join(names)}, cold, by neighbouring samples"] if names else []


def _launches(timed: Sequence[Record]) -> list[str]:
    """Return one line with the launches of a call by each provider, a range where shapes differ; none where unknown."""
    said = []
    for same in grouped(timed, provider):
        known = [value for record in same if (value := (record.kernel or {}).get("launches")) is not None]
        if known:
            low, high = (f"{value:g}" for value in (min(known), max(known)))
            said.append(f"{provider(same[0])} {low if low == high else f'{low} to {high}'}")
    return [f"launches of a call (kernels, copies, sets): {', '.join(said)}"] if said else []


def _ceilings(record: Record) -> list[str]:
    best = (record.kernel or {})["ceilings"]
    copy, product = format_rate(best["copy_bytes_per_s"]), format_flop_rate(best["matmul_flops_per_s"])
    return [f"this device in this run: {copy} elementwise over large buffers, {product} bf16 matmul"]


def _flags(same: Sequence[Record]) -> list[str]:
    timed = [record for record in same if record.samples_ns]
    said = grouped([(flag, record) for record in timed for flag in record.flags], lambda pair: pair[0])
    marks = ["! " if pairs[0][0].startswith(IMPLAUSIBLE) else "" for pairs in said]
    return [
        f"{mark}{pairs[0][0]}{_who([one for _, one in pairs], timed)}" for mark, pairs in zip(marks, said, strict=True)
    ]


def _reasons(same: Sequence[Record]) -> list[str]:
    lost = [record for record in same if record.status != "ok"]
    said = grouped(lost, lambda record: (record.status, record.reason))
    return [f"{_status(records[0])}: {records[0].reason}{_who(records, same)}" for records in said]


def _status(record: Record) -> str:
    return "WRONG" if record.status == "wrong" else record.status


def _who(records: Sequence[Record], of: Sequence[Record]) -> str:
    """Return " (whose rows these are)": a provider alone stands for all its rows, nothing for all rows."""
    if len(records) == len(of):
        return ""
    names: list[str] = []
    for name, own in {name: [one for one in of if provider(one) == name] for name in map(provider, records)}.items():
        mine = [one for one in records if provider(one) == name]
        names += [name] if len(mine) == len(own) else [f"{name} {_where(one)}" for one in mine]
    return f" ({', '.join(names)})"


def _where(record: Record) -> str:
    found = record.kernel or {}
    return " ".join(str(word) for word in (found.get("case"), found.get("rows")) if word)
