"""`dsv4bench compare`: two stored runs, cell by cell; with `--gate` for continuous integration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dsv4bench import cli_options as options

EPILOG = (
    "Exit codes: 0 ok; 1 (--gate) a cell is SLOWER, launches more or has no time any more; 2 usage; 3 runs that must"
    " not be compared, and with --gate two machines, with --strict an INCONCLUSIVE cell or one of BEFORE that was not"
    " run; 4 no cell is on both sides."
)
GATE_PERCENT = "2"

Before = Annotated[Path, typer.Argument(metavar="BEFORE", help="A results directory or a .jsonl file.")]
After = Annotated[Path, typer.Argument(metavar="AFTER", help="The run of after.")]
By = Annotated[str, typer.Option("--by", metavar="AXIS", help="A row for each cell, mode, batch or kv.")]
Gate = Annotated[
    str | None,
    typer.Option(
        "--gate", metavar="[PCT]", help="Exit with 1 if a cell is slower beyond PCT % or launches more. [off; PCT: 2]"
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="With --gate: exit with 3 if a cell is INCONCLUSIVE. [off]")]


class Compare(TyperCommand):
    """The command, whose option --gate may stand without its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed, with 2 for the value of a bare --gate."""
        return super().parse_args(ctx, with_percent(args))


def with_percent(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the default of --gate behind one that no number follows."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        found.append(argument)
        if argument == "--gate" and _percent(arguments[place + 1] if place + 1 < len(arguments) else "") is None:
            found.append(GATE_PERCENT)
    return found


def compare(
    before: Before,
    after: After,
    by: By = "cell",
    gate: Gate = None,
    strict: Strict = False,
    form: options.Format = "table",
    as_json: options.Json = False,
) -> None:
    """Compare two stored runs: launches exactly, times by medians, like with like only.

    Cells meet by geometry, batch, switches and ranks, whatever the commit. Runs of two machines are shown side by side.
    """
    from dsv4bench.cli import output_format
    from dsv4bench.cli_compare_run import Request, run_compare
    from dsv4bench.errors import UsageError

    if strict and gate is None:
        raise UsageError("--strict: only --gate has something to be strict about; expected --gate [PCT] --strict")
    request = Request(before, after, by, _least(gate), gate is not None, strict, output_format(form, as_json))
    raise typer.Exit(run_compare(request))


def _least(gate: str | None) -> float | None:
    """Return the share that --gate names; UsageError for anything but a percentage."""
    from shlex import quote

    from dsv4bench.errors import UsageError

    if gate is None:
        return None
    percent = _percent(gate)
    if percent is None or not 0 < percent < 100:
        raise UsageError(f"--gate {quote(gate)}: expected a percentage above 0 and below 100, e.g. --gate 2")
    return percent / 100


def _percent(text: str) -> float | None:
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        return None
