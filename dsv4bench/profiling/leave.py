"""The end of a process that has been a rank.

torch's profiler never lets go of the process group of a collective that it has seen (2.13), so destroying the group
leaves gloo's threads where they are. One that drops a tensor while Python takes itself apart aborts the process,
and what the rank did looks lost.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn

FAILED = 1  # as of the command line
UNSAID = 120  # Python's own, where what was printed could not be written


def leave_after(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end this process with its exit code as Python would, but without taking Python apart."""
    code: object
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = FAILED
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    atexit._run_exitfuncs()  # Python has no other name for it
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = UNSAID
    os._exit(code if isinstance(code, int) else 0 if code is None else FAILED)
