"""Folders of shards: every process of a sweep writes in a folder of its own; whoever reads the sweep reads all.

Shard 2 of 4 of the sweep DIR writes in DIR/shard-2-of-4. The rules of the store hold there: a new run takes no folder
that holds something, so that no shard is measured twice by mistake.
"""

from __future__ import annotations

import re
from pathlib import Path

from dsv4bench.errors import UsageError
from dsv4bench.results.store import begun_directory, new_directory, record_files

NAME = re.compile(r"shard-[0-9]+-of-([0-9]+)")


def shard_folder(directory: Path, number: int, count: int) -> Path:
    """Return where a shard of the sweep `directory` writes; a folder that has the shard's own name is that place."""
    name = f"shard-{number}-of-{count}"
    return directory if directory.resolve().name == name else directory / name


def new_shard(out: Path, number: int, count: int) -> Path:
    """Make the folder of a shard and return it, beside other shards of the same `count`.

    UsageError if it holds something, if the sweep `out` has records of anything but such shards, or if it cannot be
    written.
    """
    folder = shard_folder(out, number, count)
    if folder != out and out.is_dir():
        strangers = [file for file in record_files(out) if not _of_count(file.relative_to(out), count)]
        if strangers:
            raise UsageError(
                f"--out {out}: {strangers[0].relative_to(out)} is of no shard of {count} (go on with --resume {out}, or"
                " name a new one)"
            )
    return new_directory(folder)


def begun_shard(directory: Path, number: int, count: int) -> Path:
    """Return the folder of a shard in a sweep that has begun, made if it is not there."""
    folder = shard_folder(begun_directory(directory), number, count)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"--resume {folder}: cannot make this directory: {error.strerror}") from None
    return begun_directory(folder)


def _of_count(file: Path, count: int) -> bool:
    """Return whether a file lies in the folder of a shard of `count`."""
    found = NAME.fullmatch(file.parts[0])
    return found is not None and int(found[1]) == count
