"""Where the sides of an A/B run: trees, revisions, other Pythons, their names in tables, and what is said of slips."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench import cli_ab_sources
from dsv4bench.cli_ab_setup import _idle_trees
from dsv4bench.cli_ab_sources import Place, place_texts, places
from dsv4bench.cli_source import source_tree
from dsv4bench.errors import DsvError, UsageError
from dsv4bench.profiling import child
from dsv4bench.workloads import providers
from dsv4bench.workloads.sides import Two
from tests.command_line import command_line, tiny_config
from tests.profiling.small_groups import group
from tests.test_cli_source import git, package

NEITHER = {"a": "", "b": ""}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a checkout called sglang: two commits, the second one's package says 2."""
    monkeypatch.chdir(tmp_path)
    checkout = package(tmp_path / "sglang", "python/sglang")
    git(checkout, "init", "--initial-branch", "main")
    for number in (1, 2):
        (checkout / "python" / "sglang" / "number.py").write_text(f"NUMBER = {number}\n")
        git(checkout, "add", ".")
        git(checkout, "commit", "-m", str(number))
    git(checkout, "tag", "first", "HEAD~1")
    (tmp_path / "scratch").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp("model"))


def number(place):
    return (place.tree / "sglang" / "number.py").read_text()


def trees(here, a="", b=""):
    return places({"a": a, "b": b}, NEITHER, here / "scratch")


def test_without_a_tree_a_side_has_the_installed_packages_of_this_python(here):
    found = trees(here)
    assert found == {"a": Place(), "b": Place()}
    assert place_texts(found) == {"a": "", "b": ""}
    assert not found["a"].elsewhere
    assert not found["a"].differs_from(found["b"])
    program = (sys.executable, child.__file__, str(os.getpid()), "dsv4bench.profiling.ab_child")
    assert found["a"].command == program


def test_a_folder_and_a_revision_of_it_are_two_trees(here):
    found = trees(here, "sglang@first", "sglang")
    assert [number(found[side]) for side in "ab"] == ["NUMBER = 1\n", "NUMBER = 2\n"]
    commits = {side: git(here / "sglang", "rev-parse", revision) for side, revision in (("a", "first"), ("b", "HEAD"))}
    assert place_texts(found) == {"a": "src=sglang@first", "b": f"src=sglang@{commits['b'][:12]}"}
    assert found["a"].facts == {"name": "sglang@first", "commit": commits["a"], "dirty": False, "diff": None}
    assert found["b"].facts["commit"] == commits["b"]
    assert found["a"].packages == ("sglang",)
    assert found["a"].differs_from(found["b"])


def test_a_revision_alone_is_of_the_checkout_of_the_current_directory(here, monkeypatch):
    monkeypatch.chdir(here / "sglang")
    found = trees(here, "HEAD~1", ".")
    assert number(found["a"]) == "NUMBER = 1\n"
    assert place_texts(found)["a"] == "src=sglang@HEAD~1"


def test_one_side_may_have_the_installed_packages(here):
    found = trees(here, b="sglang@main")
    assert place_texts(found) == {"a": "src=installed", "b": "src=sglang@main"}
    assert found["a"].differs_from(found["b"])


def test_the_same_code_under_two_names_is_no_difference(here):
    found = trees(here, "sglang@main", "sglang")
    assert not found["a"].differs_from(found["b"])


def test_changes_that_are_not_committed_are_a_difference_and_are_named(here):
    (here / "sglang" / "python" / "sglang" / "number.py").write_text("NUMBER = 3\n")
    found = trees(here, "sglang@main", "sglang")
    assert found["a"].differs_from(found["b"])
    assert place_texts(found)["b"].startswith("src=sglang@")
    assert f"+{found['b'].facts['diff']}" in place_texts(found)["b"]


def test_a_folder_is_looked_at_again_and_a_revision_stays_what_it_was(here):
    found = trees(here, "sglang@main", "sglang")
    assert {side: place.facts_now() for side, place in found.items()} == {side: found[side].facts for side in "ab"}
    (here / "sglang" / "python" / "sglang" / "number.py").write_text("NUMBER = 3\n")
    assert found["a"].facts_now() == found["a"].facts
    assert found["b"].facts_now() == found["b"].facts | {"dirty": True, "diff": trees_diff(here)}
    assert Place().facts_now() is None


def trees_diff(here):
    return source_tree(here / "sglang").facts()["diff"]


def test_copies_of_one_name_without_git_are_told_apart_by_where_they_lie(here):
    for folder in ("old", "new"):
        package(here / folder / "flash-mla", "flash_mla")
    found = trees(here, "old/flash-mla", "new/flash-mla")
    assert found["a"].differs_from(found["b"])
    assert place_texts(found) == {"a": "src=old/flash-mla", "b": "src=new/flash-mla"}


def test_processes_of_a_tree_take_it_first_and_compile_into_caches_of_their_own(here, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setenv("TRITON_CACHE_DIR", "shared")
    found = trees(here, "sglang@first")
    environment = found["a"].environment()
    first, second, last = environment["PYTHONPATH"].split(":")
    assert (Path(first), second) == (found["a"].tree, "mine")
    assert (Path(last) / "dsv4bench").is_dir()
    assert environment["TRITON_CACHE_DIR"] == str(here / "scratch" / "caches-a" / "triton")
    assert Path(environment["XDG_CACHE_HOME"]).is_dir()
    assert found["b"].environment()["TRITON_CACHE_DIR"] == "shared"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere", "--a-src nowhere: neither a directory nor a git revision of "),
        ("sglang@nowhere", "--a-src sglang@nowhere: neither a directory nor a git revision of sglang: fatal: "),
        ("scratch", "--a-src scratch: no package there; expected a folder that holds a package"),
    ],
    ids=["nothing", "no such revision", "no package"],
)
def test_a_tree_that_is_not_there_is_a_slip(here, text, said):
    with pytest.raises(UsageError) as error:
        trees(here, text)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(("text", "said"), [("nowhere@main", True), ("sglang@nowhere", False), ("nowhere", False)])
def test_a_checkout_that_is_not_there_is_named(here, text, said):
    with pytest.raises(UsageError) as error:
        trees(here, text)
    assert (" (nowhere is no directory): " in str(error.value)) is said


# other Pythons


@pytest.fixture
def pythons(here, monkeypatch):
    """Two environments whose Pythons can measure; returns what was asked of them."""
    asked = []
    for name in ("old", "new"):
        (here / name / "bin").mkdir(parents=True)
        (here / name / "bin" / "python").touch()
    monkeypatch.setattr(cli_ab_sources, "run_process", lambda *given: asked.append(given[0]))
    return asked


def test_a_side_may_run_on_another_python(here, pythons):
    found = places(NEITHER, {"a": "old", "b": "new/bin/python"}, here / "scratch")
    assert [found[side].command[0] for side in "ab"] == [str(here / name / "bin" / "python") for name in ("old", "new")]
    assert [command[1:] for command in pythons] == [["-c", "import dsv4bench.profiling.ab_child"]] * 2
    assert place_texts(found) == {"a": "env=old", "b": "env=new"}
    assert found["a"].differs_from(found["b"])
    assert found["a"].elsewhere


@pytest.mark.parametrize("checkout", [True, False], ids=["a checkout", "installed"])
def test_another_python_is_told_of_this_package_only_where_nothing_else_lies_beside_it(
    here, pythons, monkeypatch, checkout
):
    own = here / "site"
    own.mkdir()
    (own / "pyproject.toml").touch() if checkout else (own / "torch").mkdir()
    monkeypatch.setattr(cli_ab_sources, "OWN_ROOT", own)
    monkeypatch.setattr("dsv4bench.cli_source.OWN_ROOT", own)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = places(NEITHER, {"a": "old", "b": ""}, here / "scratch")
    assert found["a"].environment()["PYTHONPATH"] == (str(own) if checkout else "")
    assert found["b"].environment()["PYTHONPATH"] == str(own)


def test_a_python_that_cannot_measure_says_why(here, pythons, monkeypatch):
    def fail(*_):
        raise DsvError("ModuleNotFoundError: No module named 'torch'")

    monkeypatch.setattr(cli_ab_sources, "run_process", fail)
    with pytest.raises(UsageError, match=r"^--b-env new: cannot measure there: ModuleNotFoundError: No module"):
        places(NEITHER, {"a": "", "b": "new"}, here / "scratch")
    with pytest.raises(UsageError, match=r"^--a-env scratch: no such file; expected the Python of an environment"):
        places(NEITHER, {"a": "scratch", "b": ""}, here / "scratch")


# what a file of the user's imports


def _forget():
    """Let the next test read its own file and package anew."""
    for kept in (providers.own_file, providers._module, providers._source):
        kept.cache_clear()
    sys.modules.pop("only_there", None)


@pytest.fixture
def own(here, config, monkeypatch, capsys):
    """Plan an A/B whose provider's file imports what lies only in a tree; a package of a tree is forgotten again."""
    package(here / "tree", "only_there")
    package(here / "project", "only_there")
    package(here / "project", "dsv4bench")
    (here / "own.py").write_text("import only_there\n\n\ndef fn(**_):\n    pass\n")
    (here / "old" / "bin").mkdir(parents=True)
    (here / "old" / "bin" / "python").touch()
    monkeypatch.setattr(cli_ab_sources, "run_process", lambda *_: None)
    path = [*sys.path]
    _forget()
    command = command_line(monkeypatch, capsys)
    plan = ("ab", "prefill", "--geometry", config, "--extend", "4", "--prefix", "60", "--no-graph", "--dry-run")
    yield lambda *words: command(*plan, *words)
    assert sys.path == path
    _forget()


@pytest.mark.parametrize(
    "words",
    [
        ("--provider", "rms_norm=own.py:fn", "--a-src", "sglang", "--b-src", "tree"),
        ("--a", "provider=auto", "--b", "provider=rms_norm=own.py:fn", "--a-src", "tree", "--b-src", "tree"),
    ],
    ids=["of both sides", "of one side"],
)
def test_a_provider_s_file_may_import_what_lies_only_in_a_tree(own, words):
    found = own(*words)
    assert (found.code, found.err) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ("--provider", "rms_norm=own.py:fn", "--a-src", "project", "--b-src", "sglang"),
        ("--a", "provider=auto", "--b", "provider=rms_norm=own.py:fn", "--b-env", "old"),
    ],
    ids=["a tree of this project's own", "another Python"],
)
def test_an_import_that_fails_here_says_what_to_do(own, words):
    found = own(*words)
    assert found.code == 2
    assert found.err.endswith(
        "own.py:1: ModuleNotFoundError: No module named 'only_there' (while importing it); expected the import inside"
        " the function, or the package here too\n"
    )
    assert len(found.err.splitlines()) == 1


def test_without_a_place_of_its_own_a_side_has_no_more_to_say(own):
    found = own("--provider", "rms_norm=own.py:fn", "--a", "reuse=off", "--b", "reuse=on")
    assert found.err.endswith("No module named 'only_there' (while importing it)\n")


# trees that nobody asks


@pytest.mark.parametrize(
    ("packages", "provider", "told"),
    [
        ((), "torch", False),
        (("sglang",), "torch", True),
        (("sglang",), "torch/dequant=sglang", False),
        (("flash_mla",), "torch/dequant=sglang", True),
        (("sglang",), "torch/dequant=my.py:fn", False),
        (("dsv4bench",), "torch", False),
    ],
    ids=["no tree", "not asked", "asked", "another", "a file of the user's", "this project"],
)
def test_a_tree_that_no_provider_calls_is_told(packages, provider, told):
    cells = group(graph=False, reuse="both")
    two = Two(*(replace(cell, variant=replace(cell.variant, provider=provider)) for cell in cells))
    lines = _idle_trees({"a": Place(packages=packages), "b": Place()}, [two])
    assert bool(lines) is told
    if told:
        assert lines == (f"the source trees hold {packages[0]}, and --provider {provider} calls none of it",)
