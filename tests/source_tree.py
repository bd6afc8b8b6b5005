"""Reads the package's source for the tests that pin its shape."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dsv4bench"


@dataclass(frozen=True)
class Source:
    """One Python file of the repository."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@cache
def read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path, text, ast.parse(text, filename=str(path)))


def sources(folder: Path = PACKAGE) -> list[Source]:
    return [read(path) for path in sorted(folder.rglob("*.py"))]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def is_jit(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator).split("(")[0].split(".") for decorator in function.decorator_list)


def own_imports(tree: ast.AST) -> set[str]:
    """Return every module of dsv4bench that a tree imports, at any depth, by statement or by import_module("...")."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            found.update(imported(node))
        elif isinstance(node, ast.Call) and called(node.func).endswith("import_module") and node.args:
            found.add(literal_start(node.args[0]).rstrip("."))
    return {name for name in found if name.split(".")[0] == "dsv4bench"}


def called(function: ast.expr) -> str:
    """Return the last part of the name that is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def imported(node: ast.ImportFrom) -> Iterator[str]:
    """Return the modules that a from-import names: `from a.b import c` is a.b.c where that is a module, else a.b."""
    base = node.module or ""
    for alias in node.names:
        whole = f"{base}.{alias.name}"
        yield whole if is_module(whole) else base


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def literal_start(node: ast.expr) -> str:
    """Return the constant text with which an expression begins, or an empty string."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return literal_start(node.values[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
