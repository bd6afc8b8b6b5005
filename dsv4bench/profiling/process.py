"""A fresh process: run to its end, or to a time limit, with all that it started; and the line that says what failed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from dsv4bench.errors import DsvError

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
        except BaseException as error:  # Ctrl-C too: the new session does not hear it
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DsvError(f"not done after {timeout_s:g} s") from None
            raise
    if process.returncode:
        raise DsvError(said_last(said) or f"exit code {process.returncode}")


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
    except ProcessLookupError:
        return False
    return True


class _HeldInterrupt:
    """Keeps a Ctrl-C until `release`; only the main thread hears one."""

    def __enter__(self) -> _HeldInterrupt:
        self._came = False
        main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, self._keep) if main else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _keep(self, *_: object) -> None:
        self._came = True

    def release(self) -> None:
        """Let Ctrl-C do again what it did before, and raise the one that came meanwhile."""
        self.__exit__()
        if self._came:
            raise KeyboardInterrupt


def said_last(text: str) -> str:
    """Return the line that names the last error of a traceback, or else the last line; "" where nothing was said."""
    lines = text.strip().splitlines()
    return next((line for line in reversed(lines) if NAMES_AN_ERROR.match(line)), lines[-1] if lines else "")
