"""All tables of a set of records, and the formats in which they are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from dsv4bench.dashboards.compressor_tables import compressor_tables
from dsv4bench.dashboards.count_tables import dequant_tables, operation_tables
from dsv4bench.dashboards.device_tables import device_tables
from dsv4bench.dashboards.exchange_tables import exchange_tables
from dsv4bench.dashboards.graph_tables import graph_tables
from dsv4bench.dashboards.kernel_tables import kernel_tables
from dsv4bench.dashboards.memory_tables import memory_tables
from dsv4bench.dashboards.rank_launch_tables import rank_launch_tables
from dsv4bench.dashboards.rank_tables import rank_tables
from dsv4bench.dashboards.redundancy_tables import redundancy_tables
from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.slack_tables import slack_tables
from dsv4bench.dashboards.table import Table
from dsv4bench.dashboards.time_tables import step_tables
from dsv4bench.dashboards.verdict_tables import verdict_tables
from dsv4bench.errors import UsageError, nearest
from dsv4bench.results.compare import latest, pairs
from dsv4bench.results.noise_floor import noise_floor
from dsv4bench.results.record import Record
from dsv4bench.results.schema import encode, to_plain
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import judge

FORMATS = ("table", "md", "csv", "json", "jsonl")


def tables(records: Sequence[Record]) -> list[Table]:
    """Return every table that the records can fill, the headline first.

    A cell that was run again is shown once, by its last record; a cell that could not run is a row with its reason.
    """
    last = [record for record in latest(records) if record.kernel is None]
    reuse = pairs(last, "reuse", "off", "on")
    return [
        *verdicts(records),
        *dequant_tables(reuse),
        *operation_tables(reuse),
        *step_tables(reuse),
        *device_tables(reuse),
        *redundancy_tables(reuse),
        *memory_tables(reuse),
        *slack_tables(reuse),
        *graph_tables(reuse),
        *rank_tables(reuse),
        *exchange_tables(reuse),
        *rank_launch_tables(reuse),
        *compressor_tables(pairs(last, "compressor", "torch", "fused")),
        *kernel_tables(records),
    ]


def verdicts(records: Sequence[Record]) -> list[Table]:
    """Return the tables of verdicts of records of `dsv4bench ab`, those of all its sessions; none of other records."""
    found = trials(records)
    return verdict_tables(judge(found), noise_floor(found))


def show(records: Sequence[Record], form: str, stream: TextIO) -> None:
    """Write the records to `stream` in one of `FORMATS`; "json" and "jsonl" write the records themselves, all of them.

    A "table" is coloured where the stream is a terminal and plain text for 80 columns elsewhere. The same records give
    the same bytes. UsageError for a format that does not exist.
    """
    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected one of {', '.join(FORMATS)}{nearest(form, FORMATS)}")
    if form == "json":
        stream.write(json.dumps([to_plain(record) for record in records], indent=1, allow_nan=False) + "\n")
    elif form == "jsonl":
        stream.writelines(map(encode, records))
    else:
        show_tables(tables(records), form, stream)
