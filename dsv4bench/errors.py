"""Every error that dsv4bench raises on purpose.

DsvError
├── UsageError            the user asked for something impossible: one line, exit code 2
├── CellError             one cell cannot be measured: it becomes a record with a status and a reason
│   ├── CellSkipped       it cannot run here (no device, provider missing, refused by a graph's rules)
│   └── CellWrong         what it computes is wrong, so that it gets no time
├── CaptureError          something that a CUDA graph cannot hold
├── RecordError           a results file that cannot be read: names the file and the line
└── TraceFormatError      a trace that cannot be read: names the file, the place and what was expected
"""

from difflib import get_close_matches
from pathlib import Path


class DsvError(Exception):
    """The root of all errors that dsv4bench raises on purpose."""


class UsageError(DsvError):
    """A request that cannot be met; the message is one line for the user."""


class CellError(DsvError):
    """A cell that cannot be measured; `status` is the word that its record carries."""

    status = "failed"


class CellSkipped(CellError):
    """A cell that cannot run here, with the reason."""

    status = "skipped"


class CellWrong(CellError):
    """A cell that computes something wrong, with what."""

    status = "wrong"


class CaptureError(DsvError):
    """Something in a step that a CUDA graph cannot hold."""


class RecordError(DsvError):
    """A results file that cannot be read; the message names file and line."""


class TraceFormatError(DsvError):
    """A trace that cannot be read; the message names the file, the place and what was expected."""


def nearest(value: str, known: list[str] | tuple[str, ...]) -> str:
    """Return " (did you mean X?)" for the known word nearest to `value`, or "" where none shares half its letters."""
    found = get_close_matches(value, known, n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def nearest_path(path: Path) -> str:
    """Return " (did you mean X?)" for the nearest name beside where the missing `path` would be, or "" for none.

    Names are held against each other without their suffix, which all files of a folder may share; and more closely than
    words are, since a folder may hold anything.
    """
    try:
        beside = {one.stem: one for one in sorted(path.parent.iterdir())}
    except OSError:
        return ""
    found = get_close_matches(path.stem, beside, n=1, cutoff=0.75)
    return f" (did you mean '{beside[found[0]]}'?)" if found else ""
