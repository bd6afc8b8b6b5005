"""Where the two sides of an A/B run: source trees, git revisions of them, and other Python environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4bench.cli_source import OWN_ROOT, SourceTree, source_environment, source_tree, unpack
from dsv4bench.errors import DsvError, UsageError
from dsv4bench.profiling.child import child_command
from dsv4bench.profiling.process import run_process
from dsv4bench.results.trials import SIDES

CHILD = "dsv4bench.profiling.ab_child"
CHECK_S = 300  # for a Python to import what measures
DIGITS = 12  # of a commit


@dataclass(frozen=True, slots=True)
class Place:
    """Where a side runs: a tree whose packages come first (with what a record says of it), and a Python; or neither.

    `editable`: the tree is the user's folder, and no revision of it that was unpacked for this run.
    """

    tree: Path | None = None
    packages: tuple[str, ...] = ()
    facts: Mapping[str, Any] | None = None
    python: str = ""
    caches: Path | None = None
    editable: bool = False

    @property
    def elsewhere(self) -> bool:
        """Whether it is not the installed packages of this Python, so that it needs a process of its own."""
        return bool(self.tree or self.python)

    @property
    def measures_itself(self) -> bool:
        """Whether the code that measures there may be another than here."""
        return bool(self.python) or "dsv4bench" in self.packages

    def facts_now(self) -> dict[str, Any] | None:
        """Return what a record says of the tree, as it lies there now."""
        if self.tree is None or self.facts is None:
            return None
        now = SourceTree(str(self.facts["name"]), self.tree, self.packages).facts() if self.editable else self.facts
        return dict(now)

    def differs_from(self, other: Place) -> bool:
        """Return whether other code, or another Python, runs there; trees without git differ by where they lie."""
        return (self.python, self._code) != (other.python, other._code)

    @property
    def _code(self) -> object:
        known = self.facts and self.facts["commit"]
        return [self.facts[name] for name in ("commit", "dirty", "diff")] if self.facts and known else self.tree

    @property
    def command(self) -> tuple[str, ...]:
        """The command that does a job there, without its job."""
        return child_command(self.python or sys.executable, CHILD)

    def environment(self) -> dict[str, str]:
        """Return the environment of its processes; of a tree with compilers' caches of its own.

        Another Python has its own packages: it is told where this package lies only if none lie beside it.
        """
        own = not self.python or (OWN_ROOT / "pyproject.toml").is_file()
        caches = (
            {"TRITON_CACHE_DIR": str(self.caches / "triton"), "XDG_CACHE_HOME": str(self.caches)} if self.caches else {}
        )
        return source_environment(self.tree, own=own, **caches)


def places(trees: Mapping[str, str], pythons: Mapping[str, str], scratch: Path) -> dict[str, Place]:
    """Return where each side runs, revisions unpacked in `scratch`; UsageError, one line, for what is not there."""
    found = {side: _place(side, trees[side], pythons[side], scratch) for side in SIDES}
    texts = place_texts(found)
    if texts["a"] == texts["b"] and found["a"].differs_from(found["b"]):  # copies of one name
        return {side: _told_apart(place, Path(trees[side])) for side, place in found.items()}
    return found


def place_texts(found: Mapping[str, Place]) -> dict[str, str]:
    """Return what a table says of each place: "" for both where neither has a tree or a Python of its own."""
    trees, pythons = any(place.facts for place in found.values()), any(place.python for place in found.values())
    return {
        side: ",".join(
            [
                *([f"src={_words(place.facts) if place.facts else 'installed'}"] if trees else []),
                *([f"env={_name(place.python or sys.executable)}"] if pythons else []),
            ]
        )
        for side, place in found.items()
    }


@contextmanager
def at_hand(where: Mapping[str, Place]) -> Iterator[None]:
    """Let a provider's file import what lies only in a side's tree, while this process plans and measures nothing.

    The trees come last on the path, and those with code of this project not at all. UsageError, saying what to do, for
    an import that fails nevertheless.
    """
    before = sys.path
    trees = [place.tree for place in where.values() if place.tree and "dsv4bench" not in place.packages]
    sys.path = [*before, *map(str, trees)]
    try:
        yield
    except UsageError as error:
        if any(place.elsewhere for place in where.values()) and _lacks_a_module(error):
            raise UsageError(f"{error}; expected the import inside the function, or the package here too") from error
        raise
    finally:
        sys.path = before


def _lacks_a_module(error: BaseException | None) -> bool:
    """Return whether an import that failed lies behind an error."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__ or error.__context__
    return error is not None


def _told_apart(place: Place, tree: Path) -> Place:
    """Return a place whose tree is named by its parent's folder too."""
    facts = place.facts and {**place.facts, "name": f"{tree.resolve().parent.name}/{place.facts['name']}"}
    return replace(place, facts=facts)


def _place(side: str, tree: str, python: str, scratch: Path) -> Place:
    found, facts = _tree(f"--{side}-src", tree, scratch / side) if tree else (None, None)
    caches = scratch / f"caches-{side}" if found else None
    if caches:
        caches.mkdir()
    root, packages = (found.root, found.packages) if found else (None, ())
    editable = bool(tree) and Path(tree).is_dir()
    place = Place(root, packages, facts, _python(f"--{side}-env", python) if python else "", caches, editable)
    if python:
        _check(f"--{side}-env {python}", place)
    return place


def _tree(option: str, text: str, folder: Path) -> tuple[SourceTree, dict[str, Any]]:
    """Return the tree of "DIR", "DIR@REV", or "REV" of the checkout of the current directory, and its facts."""
    if Path(text).is_dir():
        tree = source_tree(Path(text), option)
        return tree, tree.facts()
    before, at, after = text.rpartition("@")
    checkout, revision = (Path(before), after) if at and Path(before).is_dir() else (Path(), text)
    reason = unpack(checkout, revision, folder)
    if reason is not None:
        gone = f" ({before} is no directory)" if at and not Path(before).is_dir() else ""
        what = f"neither a directory nor a git revision of {checkout.resolve().name}{gone}"
        raise UsageError(f"{option} {text}: {what}: {reason}")
    tree = source_tree(folder, option)
    name = ["git", "-C", str(checkout), "rev-parse", f"{revision}^{{commit}}"]
    commit = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
    return tree, {"name": f"{checkout.resolve().name}@{revision}", "commit": commit, "dirty": False, "diff": None}


def _python(option: str, text: str) -> str:
    """Return the Python of an environment: the file itself, or that of its folder."""
    path = Path(text)
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.is_file():
        raise UsageError(f"{option} {text}: no such file; expected the Python of an environment, e.g. DIR/bin/python")
    return str(found.absolute())


def _check(typed: str, place: Place) -> None:
    """Raise UsageError unless this version can measure there."""
    try:
        run_process([place.command[0], "-c", f"import {CHILD}"], place.environment(), CHECK_S)
    except (DsvError, OSError) as error:
        raise UsageError(f"{typed}: cannot measure there: {error}") from None


def _words(facts: Mapping[str, Any]) -> str:
    """Return the name of a tree, with its commit where the name does not hold a revision."""
    name = str(facts["name"]).replace(",", " ")
    if "@" in name or not facts["commit"]:
        return name
    return f"{name}@{facts['commit'][:DIGITS]}" + (f"+{facts['diff'] or 'changes'}" if facts["dirty"] else "")


def _name(python: str) -> str:
    """Return the name of an environment: that of its folder."""
    path = Path(python)
    return (path.parent.parent.name if path.parent.name == "bin" else path.name).replace(",", " ")
