"""Standard output that may be lost, while what a command does, and its exit code, still count."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from dsv4bench.errors import DsvError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Output(io.FileIO):
    """A file that swallows what nobody reads any more (`| head`); DsvError where it cannot be written otherwise."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes and return how many were taken: all of them, once the reader of a pipe has gone."""
        try:
            return super().write(data)
        except BrokenPipeError:
            self._let_go()
            return memoryview(data).nbytes
        except OSError as error:
            self._let_go()  # or else what is buffered would fail again at the end
            raise DsvError(f"standard output cannot be written: {error.strerror}") from None

    def _let_go(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def output_of(stream: IO[str] | None) -> IO[str]:
    """Return a stream as Python's own standard output `stream`, buffered alike; one to nowhere where that is closed."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")  # first of all, or a file of ours becomes stdout
    own = cast("io.TextIOWrapper", stream)
    raw = Output(own.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        cast("IO[bytes]", raw if own.write_through else io.BufferedWriter(raw)),
        encoding=own.encoding,
        errors=own.errors,
        line_buffering=own.line_buffering,
        write_through=own.write_through,
    )


def guard_output() -> None:
    """Make this process's standard output one that may be lost."""
    sys.stdout = output_of(sys.stdout)
