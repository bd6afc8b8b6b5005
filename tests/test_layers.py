"""The house: which folders exist, who imports whom, and what is said only in one place."""

import ast

import pytest

from tests.source_tree import PACKAGE, ROOT, Source, functions, is_jit, own_imports, read, sources

FOUNDATION = {"", "errors", "units", "ranges"}
MAY_IMPORT = {
    "foundation": set(),
    "kernels": {"kernels"},
    "workloads": {"workloads", "kernels"},
    "profiling": {"profiling", "workloads", "kernels", "results"},
    "results": {"results"},
    "dashboards": {"dashboards", "results"},
    "cli": {"cli", "profiling", "workloads", "kernels", "results", "dashboards"},
}
FOLDERS = {"kernels", "workloads", "profiling", "profiling/traces", "results", "dashboards", "dashboards/templates"}
FOLDERS_OF_DATA = {"expectations"}
SHARED_BY_KERNELS = {
    "arguments",
    "attend",
    "attend_triton",
    "codec",
    "codec_index",
    "codec_index_triton",
    "codec_triton",
    "compress_plan",
    "compress_ring",
    "contract",
    "jit",
    "layout",
    "mhc",
    "paged",
    "paged_triton",
    "pair_pooling",
    "pair_pooling_triton",
    "row_triton",
    "sparse_attention_gluon",
    "window_pooling",
    "window_pooling_triton",
}
BANNED_FILE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
READS_ENVIRONMENT = {"tests/conftest.py", "tests/interpreter.py"}


def room(module: str) -> str:
    """Return the folder of a module of dsv4bench; "cli" for the command line, "foundation" for the rest of the root."""
    first = [*module.split("."), ""][1]
    if first in FOUNDATION:
        return "foundation"
    return "cli" if first == "__main__" or first.split("_")[0] == "cli" else first


def is_kernel_file(source: Source) -> bool:
    return source.path.parent.name == "kernels" and not source.is_package


def forbidden(source: Source) -> set[str]:
    """Return the modules of ours that a file imports and must not."""
    allowed = MAY_IMPORT[room(source.module)] | {"foundation"}
    wrong = {name for name in own_imports(source.tree) if room(name) not in allowed}
    if room(source.module) == "foundation":
        wrong = own_imports(source.tree)
    if is_kernel_file(source):
        wrong |= {f"dsv4bench.kernels.{name}" for name in other_kernels(source)}
    return wrong


def other_kernels(source: Source) -> set[str]:
    """Return the kernel files that a kernel file imports and must not; adapters to packages may share theirs."""
    inside = {name for name in own_imports(source.tree) if name.startswith("dsv4bench.kernels")}
    others = {name.removeprefix("dsv4bench.kernels").lstrip(".") for name in inside} - SHARED_BY_KERNELS
    adapters = source.path.stem.startswith("upstream")
    return {name for name in others if not (adapters and name.startswith("upstream_"))}


def pretend(name: str, text: str) -> Source:
    return Source(ROOT / name, text, ast.parse(text))


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.module)
def test_imports_follow_the_arrows(source):
    assert forbidden(source) == set()


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("dsv4bench/units.py", "import dsv4bench.errors", {"dsv4bench.errors"}),
        ("dsv4bench/results/x.py", "def f():\n    import dsv4bench.kernels", {"dsv4bench.kernels"}),
        ("dsv4bench/dashboards/x.py", "from dsv4bench.profiling import traces", {"dsv4bench.profiling.traces"}),
        ("dsv4bench/workloads/x.py", "from dsv4bench import results", {"dsv4bench.results"}),
        ("dsv4bench/kernels/x.py", "from dsv4bench.kernels.y import z", {"dsv4bench.kernels.y"}),
        ("dsv4bench/kernels/x.py", "import_module(f'dsv4bench.kernels.{n}')", {"dsv4bench.kernels."}),
        ("dsv4bench/kernels/x.py", "from dsv4bench.kernels import contract, layout", set()),
        ("dsv4bench/kernels/x.py", "import dsv4bench.kernels.upstream", {"dsv4bench.kernels.upstream"}),
        ("dsv4bench/kernels/upstream.py", "import dsv4bench.kernels.upstream_sglang", set()),
        ("dsv4bench/kernels/upstream_sglang.py", "import dsv4bench.kernels.store", {"dsv4bench.kernels.store"}),
        ("dsv4bench/profiling/x.py", "import dsv4bench.cli", {"dsv4bench.cli"}),
        ("dsv4bench/profiling/x.py", "import dsv4bench.workloads.batch, torch", set()),
        ("dsv4bench/cli_show.py", "def f():\n    import dsv4bench.dashboards.tables", set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_arrow_is_seen(name, text, wrong):
    assert forbidden(pretend(name, text)) == wrong


def test_the_folders_are_those_of_the_house():
    folders = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.is_dir()}
    assert {name for name in folders if "__pycache__" not in name} <= FOLDERS | FOLDERS_OF_DATA
    assert {"kernels", "workloads", "profiling", "results", "dashboards"} <= folders


def test_the_root_holds_the_command_line_and_the_foundation_only():
    assert {room(read(path).module) for path in PACKAGE.glob("*.py")} <= {"foundation", "cli"}
    assert (PACKAGE / "py.typed").is_file()


def test_tests_mirror_the_package():
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders <= FOLDERS | {"."}


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.module)
def test_names_say_what_a_file_holds(source):
    assert source.path.stem not in BANNED_FILE_NAMES
    classes = [node.name for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    assert [name for name in classes if name.startswith("Base") or name.endswith("Manager")] == []


def calls_print(tree: ast.AST) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id == "print" for function in calls)


def reads_environment(tree: ast.AST) -> bool:
    attributes = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return bool(attributes & {"os.environ", "os.getenv", "os.putenv"} or names & {"environ", "getenv"})


@pytest.mark.parametrize("source", [s for s in sources() if room(s.module) != "cli"], ids=lambda source: source.module)
def test_only_the_command_line_prints_and_reads_the_environment(source):
    assert not calls_print(source.tree)
    assert not reads_environment(source.tree)


def test_only_the_test_set_up_reads_the_environment():
    readers = {source.name for source in sources(ROOT / "tests") if reads_environment(source.tree)}
    assert readers <= READS_ENVIRONMENT


@pytest.mark.parametrize(
    "text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"], ids=str
)
def test_reading_the_environment_is_seen(text):
    assert reads_environment(ast.parse(text))


@pytest.mark.parametrize("source", [s for s in sources() if room(s.module) == "cli"], ids=lambda source: source.module)
def test_commands_read_what_was_typed_from_their_arguments(source):
    """Some versions of typer leave a context's `params` unconverted: a path stays a text."""
    asked = [name.attr for name in ast.walk(source.tree) if isinstance(name, ast.Attribute) and name.attr == "Context"]
    assert asked == []


def loaded_by(module: str) -> set[str]:
    """Return the modules of ours that importing a module of the command line loads, outside functions."""
    path = PACKAGE / f"{module.removeprefix('dsv4bench.')}.py"
    outside = [node for node in read(path).tree.body if not isinstance(node, ast.FunctionDef)]
    direct = {name for node in outside for name in own_imports(node)} - {module}
    return direct.union(*(loaded_by(name) for name in direct if room(name) == "cli"))


@pytest.mark.parametrize("module", ["dsv4bench.cli", "dsv4bench.__main__"])
def test_the_command_line_imports_ours_inside_functions(module):
    assert {name for name in loaded_by(module) if room(name) not in {"cli", "foundation"}} == set()


def test_an_import_of_the_command_line_outside_functions_is_seen():
    assert "dsv4bench.profiling.sweep" in loaded_by("dsv4bench.cli_prefill")


def unannotated(source: Source) -> list[str]:
    def whole(function):
        named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        own = [argument for argument in named if argument.arg not in {"self", "cls"}]
        return function.returns is not None and all(argument.annotation is not None for argument in own)

    nested = {inner for f in functions(source.tree) if is_jit(f) for inner in functions(f)}
    return [f.name for f in functions(source.tree) if f not in nested and not whole(f)]


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.module)
def test_every_function_but_a_jit_body_is_annotated(source):
    assert unannotated(source) == []


def test_a_missing_annotation_is_seen():
    text = "@triton.jit\ndef kernel(x_ptr): pass\ndef host(x): pass\ndef good(self, x: int) -> None: pass"
    assert unannotated(pretend("dsv4bench/kernels/x.py", text)) == ["host"]
