"""Progress of a sweep on stderr: a bar with the time left on a terminal, a line per group in a pipe, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dsv4bench.workloads.cells import Group

Report = Callable[[Group, str], None]
PASSES = 6  # of a group, see profiling/passes.py


@contextmanager
def progress(groups: int, quiet: bool) -> Iterator[Report]:
    """Yield a function that is told a group and the name of its pass."""
    if quiet:
        yield lambda _group, _name: None
    elif sys.stderr.isatty():
        with _bar(groups) as report:
            yield report
    else:
        yield _Lines(groups).report


class _Lines:
    """One line per group on stderr."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._seen = 0
        self._group: Group | None = None

    def report(self, group: Group, name: str) -> None:
        """Print a line when a group begins."""
        if group is not self._group:
            self._group = group
            self._seen += 1
            print(f"[{self._seen}/{self._groups}] {_title(group)}", file=sys.stderr, flush=True)


@contextmanager
def _bar(groups: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=groups * PASSES)

        def report(group: Group, name: str) -> None:
            bar.update(task, advance=1, description=f"{_title(group)}: {name}")

        yield report


def _title(group: Group) -> str:
    load = group[0].load
    return f"batch {len(load.requests)}, {load.rows} rows, {group[0].variant.kv.name}"
