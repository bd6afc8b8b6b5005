"""The list of mutations cannot rot: it covers every Triton kernel, and each text stands once, in a Triton body."""

import ast

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


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("assert True", None),
        ("assert False", "test_it.py::test_it"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11 in test_it.py"),
    ],
    ids=["green", "red", "crash"],
)
def test_a_red_test_or_a_crash_kills_a_mutation(tmp_path, body, failure):
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {body}\n")
    assert first_failure(tmp_path, "test_it.py") == failure


def test_a_run_without_tests_kills_nothing(tmp_path):
    (tmp_path / "test_it.py").write_text("")
    with pytest.raises(RuntimeError, match="exited 5"):
        first_failure(tmp_path, "test_it.py")
