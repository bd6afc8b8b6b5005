"""Adapters to installed packages: what they pass, by stand-ins with the real parameters, and what they refuse."""

import ast
import importlib.util
import subprocess
import sys
import weakref
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.kernels.layout import V4
from dsv4bench.kernels.upstream import ADAPTERS, ALONE
from dsv4bench.kernels.upstream_adapter import Adapter
from dsv4bench.profiling.contract_check import deviations, expectation, made
from tests.kernels import upstream_fakes
from tests.kernels.upstream_fakes import PARAMETERS

# the examples that a package cannot run, and why
REFUSED = {
    ("norm_rope_store", "sglang"): {5: "its writer of uniform rows skips none"},
    ("compress_norm_rope_store", "sglang"): {
        3: "rounds rows to their own dtype, which for v41_new must be bfloat16",
        5: "has two kernels of its own for uniform rows",
    },
    ("dequant", "sglang"): {6: "has no dequantiser of uniform rows"},
    ("index_logits", "sglang"): {
        0: "takes a power of two of heads, at least 16, not 4",
        2: "scores whole rows behind a mask of candidates",
        3: "scores whole rows behind a mask of candidates",
    },
    ("index_candidates", "sglang"): {1: "takes rows a multiple of 8 values apart, not 100"},
    ("sparse_attention", "flash_mla"): {0: "takes 64 or 128 heads, not 4"},
    ("paged_attention", "flash_mla"): dict.fromkeys((0, 2, 3), "takes 64 or 128 heads, not 4")
    | {4: "takes 64 or 128 heads, not 16"},
}


def name_of(adapter):
    return f"{adapter.kernel}-{adapter.package}"


KNOWN = [adapter for adapter in ADAPTERS if adapter.kernel in CATALOGUE]
CASES = [
    pytest.param(adapter, number, id=f"{name_of(adapter)}-{number}")
    for adapter in KNOWN
    for number in range(len(kernel(adapter.kernel).examples))
]


@pytest.fixture
def calls(monkeypatch):
    return upstream_fakes.install(monkeypatch)


@cache
def expected(name, number):
    return expectation(kernel(name), kernel(name).examples[number], "cpu")


@pytest.mark.parametrize(("adapter", "number"), CASES)
def test_an_adapter_keeps_the_contract_or_says_why_it_cannot(adapter, number, calls):
    subject, provider = kernel(adapter.kernel), adapter.provider()
    example = subject.examples[number]
    reason = REFUSED.get((adapter.kernel, adapter.package), {}).get(number)
    refusal = provider.refuses(made(subject, example, "cpu"))
    if reason is not None:
        assert reason in refusal
        with pytest.raises(ValueError, match=f"{adapter.kernel} on {adapter.package}: "):
            provider.build(made(subject, example, "cpu"))
        return
    assert refusal is None
    assert deviations(subject, example, provider, expected(adapter.kernel, number), "cpu") == {}
    assert calls


def test_what_a_bare_call_was_given_lives_until_its_next_launch():
    """Calls of one graph would else share the memory of their results, which then never leaves the L2."""
    made = []

    def launch(tensors):
        result = torch.zeros(3)
        made.append(weakref.ref(result))
        return result

    adapter = Adapter("rope", "package", (), launch, "rows")
    first, second = (adapter.bare({"rows": torch.zeros(1)}) for _ in range(2))
    first()
    second()
    assert [result() is None for result in made] == [False, False]
    first()
    assert [result() is None for result in made] == [True, False, False]


def reached(adapter, calls):
    """Return the functions that an adapter calls over all its kernel's examples."""
    del calls[:]
    subject, provider = kernel(adapter.kernel), adapter.provider()
    for example in subject.examples:
        tensors = made(subject, example, "cpu")
        if provider.refuses(tensors) is None:
            provider.build(tensors)()
    return set(calls)


@pytest.mark.parametrize("adapter", KNOWN, ids=name_of)
def test_every_function_of_an_adapter_is_called_by_an_example(adapter, calls):
    assert reached(adapter, calls) == set(adapter.functions)


@pytest.mark.parametrize("adapter", KNOWN, ids=name_of)
def test_the_bare_call_prepares_once_and_delivers_nothing(adapter, calls):
    counts = {"prepare": 0, "deliver": 0}

    def counted(part):
        def call(*args):
            counts[part] += 1
            return getattr(adapter, part)(*args)

        return call

    seen = replace(adapter, prepare=counted("prepare"), deliver=counted("deliver"))
    subject = kernel(adapter.kernel)
    tensors = next(t for t in (made(subject, e, "cpu") for e in subject.examples) if adapter.refuses(t) is None)
    call = seen.provider().to_time(tensors)
    del calls[:]
    call()
    once = len(calls)
    call()
    assert counts == {"prepare": 1, "deliver": 0}
    assert len(calls) == 2 * once > 0
    seen.provider().build(tensors)()
    assert counts == {"prepare": 2, "deliver": 1}


@pytest.mark.parametrize("adapter", KNOWN, ids=name_of)
def test_an_empty_batch_calls_nothing(adapter, calls):
    subject = kernel(adapter.kernel)
    tensors = next(t for t in (made(subject, e, "cpu") for e in subject.examples) if adapter.refuses(t) is None)
    empty = {**tensors, adapter.rows: tensors[adapter.rows][:0]}
    adapter.provider().build(empty)()
    assert calls == []


REFUSALS = {
    "width of a norm": ("rms_norm", {"x": torch.zeros(2, 320)}, "takes rows of 64, 128, or a multiple of 256"),
    "rotated V4 rows": ("store", {"freqs": torch.zeros(1, 64)}, "the V4 store takes rows that are rotated already"),
    "rows with gaps": ("store", {"x": torch.zeros(4, 600)[:, :512]}, "x must be contiguous, not with strides (600, 1)"),
    "index rows with gaps": ("index_store_fp8", {"x": torch.zeros(4, 160)[:, :128]}, "x must be contiguous"),
    "c1 rows with gaps": ("compress_c1", {"kv": torch.zeros(4, 600)[:, :512]}, "kv must be contiguous"),
    "c2 rows with gaps": ("compress_c2", {"kv_score": torch.zeros(4, 1100)[:, :1024]}, "kv_score must be contiguous"),
    "keys with gaps": ("index_key", {"k": torch.zeros(4, 160)[:, :128]}, "k must be contiguous"),
    "top-k too wide": ("index_topk", {"topk": 2049}, "keeps 1 to 2048 positions, not 2049"),
    "columns of a top-k": ("index_topk", {"logits": torch.zeros(2, 202)}, "takes columns in multiples of 4, not 202"),
    "blocks of 16": ("index_candidates", {"candidate_block": 16}, "takes blocks of 8 positions, not 16"),
    "too many blocks": ("index_candidates", {"blocks": torch.zeros(2, 2049)}, "keeps at most 2048 blocks, not 2049"),
    "columns of packed attention": (
        "paged_attention",
        {"q": torch.zeros(1, 64, 512), "main_layout": V4, "extra": None, "main_slots": torch.zeros(1, 96)},
        "takes a multiple of 64 columns of main, not 96",
    ),
    "packed V4.1 rows": (
        "paged_attention",
        {"q": torch.zeros(1, 128, 512)},
        "reads V4 caches on compute capability 9, and main is v41",
    ),
    "columns of attention": (
        "sparse_attention",
        {"q": torch.zeros(1, 64, 512), "indices": torch.zeros(1, 96)},
        "takes a multiple of 64 columns, not 96",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_provider_says_what_upstream_cannot_take(case):
    name, changed, reason = REFUSALS[case]
    subject = kernel(name)
    provider = next(p for p in subject.providers if p.name in ("sglang", "flash_mla"))
    tensors = made(subject, subject.examples[0], "cpu") | changed
    assert provider.refuses(tensors).startswith(reason)


def test_top_k_among_candidates_is_limited():
    subject = kernel("index_topk")
    tensors = made(subject, subject.examples[2], "cpu")
    refuses = subject.provider("sglang").refuses
    assert refuses(tensors | {"logits": torch.zeros(2, 16392)}) == (
        "takes at most 16384 columns of candidates, not 16392"
    )
    assert refuses(tensors | {"logits": torch.zeros(2, 260)}) == "takes rows a multiple of 8 values apart, not 260"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_kernel_has_a_provider_of_a_package_or_a_reason(name):
    adapted = any(adapter.kernel == name for adapter in ADAPTERS)
    assert adapted != (name in ALONE), "an adapter in kernels/upstream_*.py, or a reason in ALONE of upstream.py"


@pytest.mark.parametrize("package", ["sglang", "flash_mla", "deep_gemm"])
def test_a_package_that_is_missing_is_the_reason(package, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    adapter = next(adapter for adapter in ADAPTERS if adapter.package == package)
    assert adapter.provider().needs.why_not("cuda") == f"the package {package!r} is not installed"


def test_importing_the_catalogue_imports_no_package():
    """In a process of its own: other tests put stand-ins into sys.modules."""
    text = (
        "import sys; from dsv4bench.kernels import CATALOGUE, kernel; [kernel(name).providers for name in CATALOGUE];"
        " print([name for name in sys.modules if name.split('.')[0] in ('sglang', 'flash_mla', 'deep_gemm')])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_every_function_that_is_called_has_a_stand_in():
    assert {function for adapter in ADAPTERS for function in adapter.functions} == set(PARAMETERS)


# ---- the installed packages, read and not imported


def defined(function):
    """Return the definition of "module:name" in an installed package; skips where the package is not installed."""
    module, _, name = function.partition(":")
    spec = importlib.util.find_spec(module.split(".")[0])
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{module.split('.')[0]} is not installed")
    path = Path(spec.submodule_search_locations[0]).joinpath(*module.split(".")[1:])
    path = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    return definition(path, name)


def definition(path, name):
    scope = ast.parse(path.read_text(encoding="utf-8"))
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = next((node for node in scope.body if isinstance(node, kinds) and node.name == part), None)
        if found is None:
            return definition(origin(path.parent, scope, part), name)
        scope = found
    return scope


def origin(folder, scope, name):
    """Return the sibling file from which a package's own `__init__` takes a name; skips a name of compiled code."""
    imports = [node for node in ast.walk(scope) if isinstance(node, ast.ImportFrom)]
    named = [node.module for node in imports if name in [alias.name for alias in node.names]]
    file = f"{named[0].split('.')[-1]}.py" if named else ""
    if not file or not (folder / file).is_file():
        pytest.skip(f"{name} is not written in Python")
    return folder / file


def parameters(arguments):
    """Return the names, those that are keyword-only, those that have a default, and catch-alls."""
    named = [*arguments.posonlyargs, *arguments.args]
    optional = [argument.arg for argument in named[len(named) - len(arguments.defaults) :]]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    optional += [argument.arg for argument, default in pairs if default is not None]
    free = [argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [argument.arg for argument in named], [argument.arg for argument in arguments.kwonlyargs], optional, free


@pytest.mark.upstream
@pytest.mark.parametrize("function", PARAMETERS)
def test_an_installed_function_has_the_parameters_that_its_stand_in_has(function):
    stand_in = ast.parse(f"def stand_in({PARAMETERS[function]}): pass").body[0]
    assert parameters(defined(function).args) == parameters(stand_in.args)
