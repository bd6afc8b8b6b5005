"""What the commands of `dsv4bench trace` do: read, join, compute, print."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.dashboards.finding_table import finding_table
from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.review_tables import review_tables
from dsv4bench.dashboards.table import Table
from dsv4bench.dashboards.trace_diff_tables import diff_tables, likeness_table
from dsv4bench.errors import UsageError, nearest
from dsv4bench.profiling.replay_match import fitting
from dsv4bench.profiling.traces.columns import PUSH_POP, START_END
from dsv4bench.profiling.traces.diff import compared, diff
from dsv4bench.profiling.traces.doctor import examine
from dsv4bench.profiling.traces.groups import NEEDS_ATTRIBUTION, OP_AND_SOURCE
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.open_trace import open_trace
from dsv4bench.profiling.traces.placed import Placed, place
from dsv4bench.profiling.traces.processes import all_ranks
from dsv4bench.profiling.traces.range_patterns import KNOWN, read_map
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.profiling.traces.review import chosen_operations, review
from dsv4bench.results.ledger_table import Graph, read_ledger
from dsv4bench.results.reviews import Finding
from dsv4bench.results.store import read_records
from dsv4bench.results.trace_diffs import TraceDiff
from dsv4bench.workloads.geometry import Geometry, geometry

Flags = npt.NDArray[np.bool_]
OK, FAILED, UNATTRIBUTED, NOTHING = 0, 1, 3, 4
REVIEW_AXES = ("layer", "kv_source", "op", "kernel", "range", "stream")
DIFF_AXES = {"kv_source": OP_AND_SOURCE, "op": "op", "layer": "layer", "kernel": "kernel"}  # asked for -> shown
KINDS = {"push-pop": PUSH_POP, "start-end": START_END}
STEPS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
OFF = "off"
MOST = 0.5  # of the operations


@dataclass(frozen=True, slots=True)
class Reading:
    """How ranges are read: a file of patterns, geometries by name, the kind of NVTX ranges, records with ledgers."""

    patterns: Path | None
    geometry: str
    infer: str
    nvtx_kind: str
    ledger: Path | None = None

    def placed(self, path: Path) -> list[Placed]:
        """Return the traces of a file or folder with everything joined, one a rank (of one host: a process)."""
        kind = _one_of("--nvtx-kind", self.nvtx_kind, tuple(KINDS))
        patterns = KNOWN if self.patterns is None else read_map(self.patterns)
        layers = geometry(self.geometry) if self.geometry else None
        inferred = None if self.infer == OFF else _inferred(self.infer)
        ledgers = [] if self.ledger is None else _ledgers(self.ledger)
        found = []
        for trace in all_ranks(open_trace(path)):
            ranges = ranges_of(trace, KINDS[kind])
            labels = label(trace, ranges, patterns, layers, inferred, fitting(trace, ledgers))
            found.append(place(ranges, labels, kind == "start-end"))
        return found


def run_review(path: Path, reading: Reading, by: str, steps: str, form: str, allow: bool, plot: Path | None) -> int:
    """Print a review; return 3 if operations have no place on the axis that was asked for, 4 if there are none."""
    asked = _one_of("--by", by, REVIEW_AXES) if by else ""
    only = steps_asked(steps)
    ranks = reading.placed(path)
    found = review(ranks, _axes(ranks, asked), examine(ranks), only)
    if plot is not None:
        _draw(ranks[0], only, plot)
    if form == "json":
        print(json.dumps(found.plain(), indent=1, allow_nan=False))
    else:
        show_tables(review_tables(found, asked or None, form == "csv"), form, sys.stdout)
    counted = [(placed, chosen_operations(placed, only)) for placed in ranks]
    return _incomplete(asked, counted, allow) if asked in NEEDS_ATTRIBUTION else OK


def run_diff(
    paths: Mapping[str, tuple[Path, int | None]], reading: Reading, by: str, form: str, allow: bool, unlike: bool
) -> int:
    """Print a comparison; return 3 for unlike traces and, where the answer needs it, for operations without a place."""
    asked = _one_of("--by", by, tuple(DIFF_AXES)) if by else ""
    sides = {name: _one_rank(name, path, rank, reading) for name, (path, rank) in paths.items()}
    told = all((placed.known("kv_source") & compared(placed)).any() for placed in sides.values())
    axis = asked or ("kv_source" if told else "kernel")
    findings = {name: [one for one in examine([placed]) if one.wrong] for name, placed in sides.items()}
    found = diff(sides["before"], sides["after"], DIFF_AXES[axis], findings)
    refused = bool(found.unlike) and not unlike
    _print_diff(found, form, refused)
    if refused:
        whats = " and ".join(one.what for one in found.unlike)
        print(f"refused: different {whats}, so numbers say nothing; --allow-unlike shows them", file=sys.stderr)
        return UNATTRIBUTED
    asking = sides.items() if axis in NEEDS_ATTRIBUTION else ()
    places = (_incomplete(axis, [(placed, compared(placed))], allow, f"{side}: ") for side, placed in asking)
    return max([_wrong(findings, allow), *places])


def run_doctor(path: Path, reading: Reading, as_json: bool) -> int:
    """Print the findings; return 1 if some make counts wrong."""
    findings = examine(reading.placed(path))
    if as_json:
        print(
            json.dumps({"source": str(path), "findings": [one.plain() for one in findings]}, indent=1, allow_nan=False)
        )
    else:
        show_tables([finding_table(findings)], "table", sys.stdout)
    return FAILED if any(one.wrong for one in findings) else OK


def _ledgers(path: Path) -> list[tuple[Graph, ...]]:
    """Return the capture ledgers of a file or folder of records; UsageError where no record has one."""
    records = read_records(path).records
    found = [read_ledger(record.capture_ledger) for record in records if record.capture_ledger]
    if not found:
        raise UsageError(f"--ledger {path}: no record of {len(records)} holds a capture ledger; --graph keeps one")
    return found


def _axes(ranks: Sequence[Placed], asked: str) -> list[str]:
    """Return the axes of a review: the one asked for, operations where they are known, and kernels."""
    known = any(map(_tells_sources, ranks))
    return list(dict.fromkeys([*([asked] if asked else [OP_AND_SOURCE] if known else []), "kernel"]))


def _tells_sources(placed: Placed) -> bool:
    """Return whether a table by operation and source says something: some source, or most operations, are known."""
    return len(placed.rows) > 0 and bool(placed.known("kv_source").any() or placed.known("op").mean() > MOST)


def _incomplete(axis: str, counted: Sequence[tuple[Placed, Flags]], allow: bool, side: str = "") -> int:
    """Return 3 and say so if some of the operations that count have no place on an axis, 4 if there is none."""
    total = sum(int(chosen.sum()) for _, chosen in counted)
    if not total:
        print(f"{side}nothing to group: no device operation was recorded", file=sys.stderr)
        return NOTHING
    missing = sum(int((chosen & ~placed.known(axis)).sum()) for placed, chosen in counted)
    lost = sum(placed.coverage.lost for placed, _ in counted)
    if allow or not (missing or lost):
        return OK
    said = f"{missing} of {total} operations have no {axis}" if missing else f"{lost} launches have no kernel"
    print(f"{side}{said}: --allow-unattributed accepts that", file=sys.stderr)
    return UNATTRIBUTED


def _wrong(findings: Mapping[str, Sequence[Finding]], allow: bool) -> int:
    """Return 3 and say so if the doctor calls the counts of a side wrong."""
    codes = [f"{side}: {one.code}" for side, found in findings.items() for one in found]
    if allow or not codes:
        return OK
    print(f"counts are wrong ({', '.join(codes)}): --allow-unattributed accepts that", file=sys.stderr)
    return UNATTRIBUTED


def _one_rank(side: str, path: Path, rank: int | None, reading: Reading) -> Placed:
    """Return the only trace of a path, or that of the rank; UsageError where neither is clear."""
    ranks = reading.placed(path)
    if rank is None and len(ranks) == 1:
        return ranks[0]
    known = {place if one.trace.rank is None else one.trace.rank: one for place, one in enumerate(ranks)}
    if rank not in known:
        asked = "" if rank is None else f" and no rank {rank}"
        raise UsageError(f"{side} {path}: has ranks {', '.join(map(str, known))}{asked}; --rank N compares one")
    return known[rank]


def _print_diff(found: TraceDiff, form: str, refused: bool) -> None:
    if form == "json":
        plain: dict[str, Any] = found.plain()
        hidden = ("rows", "totals", "new", "gone", "more", "nothing_added") if refused else ()
        print(
            json.dumps(
                {key: None if key in hidden else value for key, value in plain.items()}, indent=1, allow_nan=False
            )
        )
        return
    tables: list[Table] = [likeness_table(found)] if refused else diff_tables(found, form == "csv")
    if found.unlike and not refused:
        tables = [Table(f"UNLIKE: {one.title}", one.columns, one.rows, one.notes) for one in tables]
    show_tables(tables, form, sys.stdout)


def _draw(placed: Placed, only: tuple[int, int] | None, file: Path) -> None:
    from dsv4bench.dashboards.timeline_plot import save_timeline
    from dsv4bench.profiling.traces.timeline import timeline

    save_timeline(timeline(placed, only), file)
    print(file, file=sys.stderr)


def _inferred(name: str) -> Geometry:
    try:
        return geometry(name)
    except UsageError as error:
        raise UsageError(str(error).replace("--geometry", "--infer").replace("known: ", f"known: {OFF}, ")) from None


def steps_asked(text: str) -> tuple[int, int] | None:
    """Return the first and last number of "3-5" or "4"; None for ""."""
    if not text:
        return None
    match = STEPS.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise UsageError(f"--steps {text}: expected numbers of steps like 3-5 or 4")
    return first, last


def _one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"{option} {value}: expected one of {', '.join(known)}{nearest(value, known)}")
    return value
