"""The table of an Nsight Compute report: what binds each launch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.units import NS_PER_S, NS_PER_US, format_bytes, format_in_unit, format_rate

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    Column("kernel", ("kernel",), right=False),
    Column("us", ("time_ns",)),
    Column("read", ("dram_read_bytes",)),
    Column("written", ("dram_written_bytes",)),
    Column("rate", ("bytes_per_s",)),
    Column("dram", ("dram_share",)),
    Column("l2", ("l2_share",)),
    Column("sm", ("sm_share",)),
    Column("warps", ("occupancy",)),
    Column("regs", ("registers",)),
)
NOTE = (
    "dram, l2, sm: share of the peak sustained; warps: active ones of those an SM holds. ncu slows kernels down,"
    " empties caches and lowers clocks by default: these times stand beside measured ones, never for them"
)
NAME_WIDTH = 22


def ncu_table(launches: pd.DataFrame, title: str) -> Table:
    """Return one row per launch of a frame of `results.ncu.read_ncu`."""
    return Table(title, COLUMNS, tuple(_row(dict(row)) for _, row in launches.iterrows()), (NOTE,))


def _row(row: dict[str, object]) -> tuple[Cell, ...]:
    name = str(row.pop("kernel"))
    found = {key: None if math.isnan(value := float(str(number))) else value for key, number in row.items()}
    moved = [found["dram_read_bytes"], found["dram_written_bytes"]]
    time_ns = found["time_ns"]
    rate = None if None in moved or not time_ns else sum(filter(None, moved)) * NS_PER_S / time_ns
    shares = [found[key] for key in ("dram_share", "l2_share", "sm_share", "occupancy")]
    registers = found["registers"]
    return (
        cell(name, name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 2]}.."),
        cell(time_ns, format_in_unit(time_ns, NS_PER_US)),
        *(cell(size, "" if size is None else format_bytes(size)) for size in moved),
        cell(rate, "" if rate is None else format_rate(rate)),
        *(cell(share, "" if share is None else f"{share:.2f}") for share in shares),
        cell(registers, "" if registers is None else f"{registers:.0f}"),
    )
