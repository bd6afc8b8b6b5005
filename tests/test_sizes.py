"""The size of things: a file or a function that outgrows these limits says where a room is missing."""

import ast
from statistics import median

import pytest

from tests.source_tree import functions, is_jit, sources

FILE_LINES = 300
FUNCTION_LINES = 50
JIT_LINES = 120
MEDIAN_FUNCTION_LINES = 10


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return function.end_lineno - function.lineno + 1


def too_long(tree: ast.AST) -> list[str]:
    limits = {f: JIT_LINES if is_jit(f) else FUNCTION_LINES for f in functions(tree)}
    return [f"{f.name}: {lines_of(f)} lines, at most {limit}" for f, limit in limits.items() if lines_of(f) > limit]


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.module)
def test_a_file_fits_in_a_head(source):
    assert len(source.text.splitlines()) <= FILE_LINES


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.module)
def test_a_function_fits_on_a_screen(source):
    assert too_long(source.tree) == []


def test_the_median_function_is_short():
    lengths = [lines_of(function) for source in sources() for function in functions(source.tree)]
    assert median(lengths) < MEDIAN_FUNCTION_LINES


@pytest.mark.parametrize(
    ("decorator", "body_lines", "fits"),
    [("", 49, True), ("", 50, False), ("@triton.jit\n", 119, True), ("@triton.jit\n", 120, False)],
    ids=["host-50", "host-51", "jit-120", "jit-121"],
)
def test_one_line_too_many_is_seen(decorator, body_lines, fits):
    text = f"{decorator}def f():\n" + "    pass\n" * body_lines
    assert (too_long(ast.parse(text)) == []) is fits
