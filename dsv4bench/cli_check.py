"""`dsv4bench check`: what must hold, one command a promise. Each lives in a file of its own, cli_check_NAME.py.

Such a file holds one function NAME with its options, heavy imports inside; it gets its import and one line here, like
`check.command("NAME", epilog=EPILOG)(cli_check_NAME.NAME)`.
"""

from __future__ import annotations

import typer

from dsv4bench import cli_check_capture, cli_check_counters, cli_check_counts, cli_check_replay

EPILOG = (
    "Exit codes: 0 it holds; 1 it does not; 2 usage; 3 not everything that ran could be attributed;"
    " 4 there was nothing to check."
)

check = typer.Typer(
    name="check",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@check.callback()
def group() -> None:
    """Check what must hold; --help lists the checks."""


check.command("capture", epilog=EPILOG)(cli_check_capture.capture)
check.command("counters", epilog=EPILOG)(cli_check_counters.counters)
check.command("counts", epilog=EPILOG)(cli_check_counts.counts)
check.command("replay", epilog=EPILOG)(cli_check_replay.replay)
