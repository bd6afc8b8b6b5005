"""A report of Nsight Compute as it prints it: `ncu --import FILE --csv --page raw`.

The first line names the columns, the second their units, and every other line is one kernel launch. Numbers may have
thousands separators. Lines before the header (ncu's own `==PROF==` messages) are left out.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import pandas as pd

from dsv4bench.errors import TraceFormatError

NAME = "Kernel Name"
# what is shown: our name, ncu's metric, and its value in our unit for every unit that ncu may choose
TIME = {"nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
SIZE = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}
SHARE = {"%": 0.01}
COUNT = {"register/thread": 1.0, "": 1.0, "register/thread/block": 1.0}


@dataclass(frozen=True, slots=True)
class Metric:
    """One column that is read: its name here, ncu's name, and the factor of every unit."""

    name: str
    of_ncu: str
    units: dict[str, float]


METRICS = (
    Metric("time_ns", "gpu__time_duration.sum", TIME),
    Metric("dram_read_bytes", "dram__bytes_read.sum", SIZE),
    Metric("dram_written_bytes", "dram__bytes_write.sum", SIZE),
    Metric("dram_share", "dram__throughput.avg.pct_of_peak_sustained_elapsed", SHARE),
    Metric("l2_share", "lts__throughput.avg.pct_of_peak_sustained_elapsed", SHARE),
    Metric("sm_share", "sm__throughput.avg.pct_of_peak_sustained_elapsed", SHARE),
    Metric("occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active", SHARE),
    Metric("registers", "launch__registers_per_thread", COUNT),
)


def read_ncu(text: str, where: str) -> pd.DataFrame:
    """Return one row per launch: `kernel` and the columns of `METRICS`, NaN where the report lacks one.

    TraceFormatError names `where` for a text that is no such table, or has a unit that is not known.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if NAME in line and "," in line), None)
    if start is None:
        raise TraceFormatError(f"{where}: no line names the column {NAME!r}; expected ncu --csv --page raw")
    try:
        table = pd.read_csv(io.StringIO("\n".join(lines[start:])), dtype=str, keep_default_na=False).fillna("")
    except pd.errors.ParserError as error:
        raise TraceFormatError(f"{where}: not a CSV table: {error}") from error
    if NAME not in table:
        raise TraceFormatError(f"{where}: no column is called {NAME!r}; expected ncu --csv --page raw")
    if table.empty:
        raise TraceFormatError(f"{where}: a header without a line of units")
    units, launches = table.iloc[0], table.iloc[1:]
    found = pd.DataFrame({"kernel": launches[NAME].tolist()})
    for metric in METRICS:
        found[metric.name] = _values(metric, launches, units, where)
    return found


def _values(metric: Metric, launches: pd.DataFrame, units: pd.Series, where: str) -> list[float]:
    if metric.of_ncu not in launches:
        return [float("nan")] * len(launches)
    unit = units[metric.of_ncu]
    if unit not in metric.units:
        raise TraceFormatError(f"{where}: {metric.of_ncu} has the unit {unit!r}; expected {', '.join(metric.units)}")
    return [_number(value) * metric.units[unit] for value in launches[metric.of_ncu]]


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")  # "n/a", or nothing
