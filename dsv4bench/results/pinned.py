"""Commands of `ab` made to mean the same later: where a revision was typed, its commit, as branches move on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4bench.results.record import Record


def source_option(record: Record) -> str:
    """Return the option that named the source tree of a record: --src, or that of its side of an A/B."""
    if record.ab is None:
        return "--src"
    return "--a-src" if record.ab.get("aa") else f"--{record.ab.get('side')}-src"


def pinned(arguments: Sequence[str], record: Record) -> list[str]:
    """Return a command with the commit of the record's source tree in place of the revision that was typed for it.

    A folder, and what has no commit, stays as it was typed.
    """
    option, tree = source_option(record), record.environment.get("src") or {}
    found = list(arguments)
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            found[place] = f"{option}={_commit(argument.partition('=')[2], tree)}"
        elif place and arguments[place - 1] == option:
            found[place] = _commit(argument, tree)
    return found


def _commit(typed: str, tree: Mapping[str, Any]) -> str:
    """Return what "REV" or "DIR@REV" was; a tree of a revision is called "checkout@REV"."""
    name, commit = str(tree.get("name")), tree.get("commit")
    folder, at, revision = typed.rpartition("@")
    if commit and name.endswith(f"@{typed}"):
        return str(commit)
    return f"{folder}@{commit}" if commit and at and name.endswith(f"@{revision}") else typed
