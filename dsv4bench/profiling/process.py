"""A fresh process: run to its end, or to a time limit, with all that it started; and the line that says what failed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from dsv4bench.errors import DsvError

STOPS = (signal.SIGINT, signal.SIGTERM)
NAMES_AN_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


def run_process(command: Sequence[str], environment: Mapping[str, str] | None, timeout_s: float) -> None:
    """Run a command and wait for it; DsvError with the line that says why where it fails or is not done in time."""
    with (
        _HeldInterrupt() as held,  # until there is a process to end
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        try:
            held.release()
            said, _ = process.communicate(timeout=timeout_s)
        except BaseException as error:  # Ctrl-C and SIGTERM too: the new session does not hear them
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DsvError(f"not done after {timeout_s:g} s") from None
            raise
    if process.returncode:
        raise DsvError(said_last(said) or f"exit code {process.returncode}")


class _HeldInterrupt:
    """Keeps a Ctrl-C or SIGTERM until `release`; only the main thread hears one."""

    def __enter__(self) -> _HeldInterrupt:
        self._came: list[int] = []
        main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, self._keep) for number in STOPS} if main else {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}

    def _keep(self, number: int, _: object) -> None:
        self._came.append(number)

    def release(self) -> None:
        """Let both do again what they did before, for the first one that came meanwhile too."""
        self.__exit__()
        if self._came:
            signal.raise_signal(self._came[0])


def said_last(text: str) -> str:
    """Return the line that names the last error of a traceback, or else the last line; "" where nothing was said."""
    lines = text.strip().splitlines()
    return next((line for line in reversed(lines) if NAMES_AN_ERROR.match(line)), lines[-1] if lines else "")
