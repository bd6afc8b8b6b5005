"""The list of mutations cannot rot: it covers every Triton kernel, and each text stands once, in a Triton body."""

import ast
import subprocess

import pytest

from dsv4bench.kernels import CATALOGUE, kernel
from tests.mutations import MUTATIONS, ROOT, first_failure
from tests.source_tree import read

IDS = [f"{mutation.kernel}-{number}" for number, mutation in enumerate(MUTATIONS)]


def triton_bodies(path) -> str:
    source = read(path)
    functions = [node for node in source.tree.body if isinstance(node, ast.FunctionDef)]
    jitted = [node for node in functions if "triton.jit" in map(ast.unparse, node.decorator_list)]
    return "\n".join(ast.get_source_segment(source.text, node) for node in jitted)


def test_every_triton_kernel_has_a_mutation():
    triton = {name for name in CATALOGUE if any(provider.name == "triton" for provider in kernel(name).providers)}
    assert {mutation.kernel for mutation in MUTATIONS} == triton


@pytest.mark.parametrize("mutation", MUTATIONS, ids=IDS)
def test_a_mutation_changes_one_place_of_a_triton_body(mutation):
    path = ROOT / mutation.path
    assert path.read_text(encoding="utf-8").count(mutation.old) == 1
    assert triton_bodies(path).count(mutation.old) == 1
    assert mutation.new != mutation.old


@pytest.mark.parametrize("mutation", MUTATIONS, ids=IDS)
def test_a_mutation_has_a_test_file(mutation):
    assert (ROOT / mutation.test_path).is_file()


def pytest_exits(monkeypatch, code: int, output: str = "") -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code, output))


@pytest.mark.parametrize(
    ("code", "output", "failure"),
    [
        (0, "3 passed", None),
        (1, "E  boom\nFAILED test_it.py::test_it[4] - assert 1 == 2\n1 failed", "test_it.py::test_it[4]"),
        (-11, "", "signal 11 in test_it.py"),
    ],
    ids=["green", "red", "crash"],
)
def test_a_red_test_or_a_crash_kills_a_mutation(monkeypatch, tmp_path, code, output, failure):
    pytest_exits(monkeypatch, code, output)
    assert first_failure(tmp_path, "test_it.py") == failure


def test_a_run_without_tests_kills_nothing(monkeypatch, tmp_path):
    pytest_exits(monkeypatch, 5)
    with pytest.raises(RuntimeError, match="exited 5"):
        first_failure(tmp_path, "test_it.py")
