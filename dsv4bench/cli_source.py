"""`--src DIR`: a source tree before the installed packages, in a fresh process, and what a record says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4bench.errors import UsageError

OWN_ROOT = Path(__file__).resolve().parents[1]
ENTERED = "DSV4BENCH_SRC"  # the tree whose packages this process takes first
EXPECTED = "expected a folder that holds a package (sglang, flash_mla, dsv4bench, ...), itself or in its folder python"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A tree by the name of its folder, the folder to import from, and the packages that lie there."""

    name: str
    root: Path
    packages: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return what a record says of this tree: its folder's name, and commit, changes and their hash from git."""
        from dsv4bench.profiling.environment import source_state

        return {"name": self.name, **source_state(self.root, self.packages)}


def enter(directory: Path | None) -> SourceTree | None:
    """Return the tree whose packages come first here; a process without it begins anew, with the same command line.

    The new process takes this one's place, so that Ctrl-C and the exit code are its own.
    """
    if directory is None:
        return None
    tree = source_tree(directory)
    if os.environ.get(ENTERED) != str(tree.root):
        sys.stdout.flush()
        command = [sys.executable, "-m", "dsv4bench", *sys.argv[1:]]
        os.execve(sys.executable, command, source_environment(tree.root) | {ENTERED: str(tree.root)})
    return tree


def source_tree(directory: Path, option: str = "--src") -> SourceTree:
    """Return the tree at `directory`, whose packages lie in its folder `python` (as SGLang's) or in itself.

    UsageError where neither holds a package. What else a checkout like SGLang's has beside `python` is not meant.
    """
    if not directory.is_dir():
        raise UsageError(f"{option} {directory}: no such directory; {EXPECTED}")
    whole = directory.resolve()
    for root in (whole / "python", whole):
        found = tuple(sorted(file.parent.name for file in root.glob("*/__init__.py")))
        if found:
            return SourceTree(whole.name, root, found)
    raise UsageError(f"{option} {directory}: no package there; {EXPECTED}")


def source_environment(root: Path | None, *, own: bool = True, **more: str) -> dict[str, str]:
    """Return this environment with `root` first on the path of Python and, if `own`, this package's own folder last."""
    first, last = str(root.resolve()) if root else "", str(OWN_ROOT) if own else ""
    path = os.pathsep.join(filter(None, [first, os.environ.get("PYTHONPATH"), last]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **more}


def unpack(checkout: Path, revision: str, folder: Path, *paths: str) -> str | None:
    """Unpack the files of a git revision, of `paths` alone if given, in the new `folder`; return why it cannot be."""
    folder.mkdir()
    archive = folder.with_name(f"{folder.name}.tar")
    command = ["git", "-C", str(checkout), "archive", "--output", str(archive), revision, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["git is not there"])[0]
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    archive.unlink()
    return None
