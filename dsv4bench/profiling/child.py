"""A process that ends with the one that started it: `python child.py STARTER MODULE|FILE ARGUMENT...`.

It is run as a file and imports nothing of ours: so it can run what measures in any version of this package, and ends
with its starter from the beginning, while heavy packages are imported too.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence

LOOK_S = 0.5
FAILED = 1  # as of the command line


def child_command(python: str, what: str) -> tuple[str, ...]:
    """Return the command, without arguments, by which `python` runs a module or a file as a child of this process.

    The environment must have PYTHONSAFEPATH, or what lies beside this file would be found as modules.
    """
    return (python, __file__, str(os.getpid()), what)


def end_with(starter: int, look_s: float, exit_code: int) -> None:
    """End this process soon after the one that started it, by its number, is gone: a killed one cannot end others.

    It may be gone before anybody looks, so its number must come from itself. Where it started this process through
    another program (nsys), it is no parent.
    """
    parent = os.getppid() == starter

    def watch() -> None:
        while os.getppid() == starter if parent else _is_there(starter):
            time.sleep(look_s)
        os._exit(exit_code)

    threading.Thread(target=watch, daemon=True).start()


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:  # nobody's, or by now the number of another user's process
        return False
    return True


def main(starter: int, what: str, arguments: Sequence[str]) -> None:
    """Run a module or a file as a program.

    Ctrl-C and SIGTERM, which SLURM sends to all processes, are the starter's to hear: it ends this one when it has to,
    and else would take one that had ended by itself for one that failed.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with(starter, LOOK_S, FAILED)
    sys.argv = [what, *arguments]
    if what.endswith(".py"):
        runpy.run_path(what, run_name="__main__")
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
