"""`--src DIR`: which folder it means, the fresh process, and what the record and the table say of the tree."""

import json
import subprocess
import sys

import pytest

from dsv4bench import cli_source
from dsv4bench.cli_source import ENTERED, enter, source_environment, source_tree
from dsv4bench.dashboards.cells import provenance
from dsv4bench.dashboards.kernel_tables import kernel_tables
from dsv4bench.errors import UsageError
from dsv4bench.results.compare import pairs
from dsv4bench.results.store import read_records
from tests.command_line import command_line, tiny_config
from tests.results.kernel_records import kernel_record
from tests.results.synthetic import record
from tests.source_tree import ROOT

KERNEL = """
import only_in_the_tree

def copy(x, weight, eps, out):
    from dsv4bench.kernels.rms_norm import reference
    reference(x=x, weight=weight, eps=eps, out=out)
"""
SRC = {"name": "sglang", "commit": "5" * 40, "dirty": True, "diff": "d"}


def package(root, name):
    (root / name).mkdir(parents=True)
    (root / name / "__init__.py").write_text("")
    return root


def git(root, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    done = subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("packages", "root", "found"),
    [
        (["flash_mla"], ".", ("flash_mla",)),
        (["python/sglang"], "python", ("sglang",)),
        (["python/sglang", "python/sgl_more", "test"], "python", ("sgl_more", "sglang")),
        (["python/deep/inside", "dsv4bench"], ".", ("dsv4bench",)),
    ],
    ids=["itself", "under python", "python before what lies beside it", "not deeper"],
)
def test_a_tree_holds_packages_itself_or_under_python(tmp_path, packages, root, found):
    for name in packages:
        package(tmp_path / "tree", name)
    tree = source_tree(tmp_path / "tree")
    assert (tree.name, tree.root, tree.packages) == ("tree", (tmp_path / "tree" / root).resolve(), found)


def test_a_tree_has_the_name_of_its_folder_however_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(package(tmp_path / "tree", "sglang"))
    assert source_tree(cli_source.Path()).name == "tree"


@pytest.mark.parametrize("command", ["prefill", "kernels"])
@pytest.mark.parametrize(
    ("value", "said"), [("missing", "no such directory"), ("empty", "no package there"), ("file", "no such directory")]
)
def test_a_directory_without_a_package_is_a_slip(tmp_path, monkeypatch, capsys, command, value, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    found = command_line(monkeypatch, capsys)(command, "--src", value)
    assert found.code == 2
    assert found.err == (
        f"dsv4bench: --src {value}: {said}; expected a folder that holds a package (sglang, flash_mla, dsv4bench, ...),"
        " itself or in its folder python\n"
    )


def test_another_option_is_named_in_its_stead(tmp_path):
    with pytest.raises(UsageError, match=r"^--a-src "):
        source_tree(tmp_path, "--a-src")


class Begun(Exception):
    """The process was to begin anew."""


@pytest.fixture
def begun(monkeypatch):
    """Return the calls of execve, none of which returns."""
    asked = []

    def execve(*call):
        asked.append(call)
        raise Begun

    monkeypatch.setattr(cli_source.os, "execve", execve)
    monkeypatch.delenv(ENTERED, raising=False)
    return asked


@pytest.mark.parametrize("command", ["prefill", "kernels"])
def test_a_command_begins_anew_with_the_tree_first(tmp_path, monkeypatch, capsys, begun, command):
    root = package(tmp_path / "tree" / "python", "sglang").resolve()
    monkeypatch.setenv("PYTHONPATH", "before")
    with pytest.raises(Begun):
        command_line(monkeypatch, capsys)(command, f"--src={tmp_path}/tree", "--quick")
    ((program, words, environment),) = begun
    assert (program, words[0]) == (sys.executable, sys.executable)
    assert words[1:] == ["-m", "dsv4bench", command, f"--src={tmp_path}/tree", "--quick"]  # a record tells them all
    assert environment["PYTHONPATH"].split(":") == [str(root), "before", str(ROOT)]
    assert (environment["PYTHONSAFEPATH"], environment[ENTERED]) == ("1", str(root))


def test_only_the_process_of_that_tree_goes_on(tmp_path, monkeypatch, begun):
    first, second = (package(tmp_path / name, "sglang") for name in "ab")
    monkeypatch.setenv(ENTERED, str(first.resolve()))
    assert enter(first).name == "a"
    with pytest.raises(Begun):
        enter(second)
    assert enter(None) is None
    assert len(begun) == 1


def test_more_settings_join_the_environment(tmp_path):
    assert source_environment(tmp_path, TRITON_CACHE_DIR="fresh")["TRITON_CACHE_DIR"] == "fresh"


def run(folder, *arguments):
    """Run a command in a process of its own, in `folder`, on the CPU."""
    words = [sys.executable, "-m", "dsv4bench", *map(str, arguments), "--device", "cpu", "-q"]
    done = subprocess.run(words, cwd=folder, env=source_environment(ROOT), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ["prefill", "kernels"])
def test_a_kernel_imports_from_the_tree_and_the_record_names_it(tmp_path, command):
    tree = package(tmp_path / "a tree" / "python", "only_in_the_tree").parent
    (tree / ".gitignore").write_text("__pycache__/\n")  # Python writes there unless it is told not to
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "one")
    (tmp_path / "own.py").write_text(KERNEL)
    if command == "prefill":
        words = ("--geometry", tiny_config(tmp_path), "--extend", "4", "--prefix", "60", "--samples", "1", "--no-graph")
        words += ("--provider", "rms_norm=own.py:copy")
    else:
        words = ("rms_norm", "--case", "width 512", "--rows", "2", "--provider", "own.py:copy")
    out = run(tmp_path, command, *words, "--src", "a tree", "--out", "here")
    commit = git(tree, "rev-parse", "HEAD")
    found = read_records(tmp_path / "here").records
    assert {one.status for one in found} == {"ok"}
    for one in found:
        assert one.environment["src"] == {"name": "a tree", "commit": commit, "dirty": False, "diff": None}
        assert str(tmp_path) not in json.dumps(one.environment)
    assert f"src a tree at commit {commit[:12]}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("src", "said"),
    [
        (SRC, "src sglang at commit 555555555555 with local changes, torch 2.11.0"),
        (SRC | {"dirty": False}, "src sglang at commit 555555555555, torch 2.11.0"),
        (SRC | {"commit": None, "dirty": None}, "src sglang at no commit, torch 2.11.0"),
        (None, "torch 2.11.0"),
    ],
    ids=["changes", "clean", "no checkout", "installed"],
)
def test_tables_tell_the_tree(src, said):
    one = record()
    lines = provenance([record(environment=one.environment | {"src": src})])
    assert lines == [f"commit c0ffeec0ffee, {said}, triton 3.6.0, driver 580.1"]


def test_two_trees_are_never_compared():
    before, after = (
        record(reuse=reuse, environment=record().environment | {"src": SRC | {"diff": diff}})
        for reuse, diff in (("off", "one"), ("on", "another"))
    )
    assert [len(pair.records) for pair in pairs([before, after], "reuse", "off", "on")] == [1, 1]


def test_kernels_of_two_trees_have_tables_of_their_own():
    found = [kernel_record(key=diff, environment={"src": SRC | {"diff": diff}}) for diff in ("one", "another")]
    assert len(kernel_tables(found)) == 2
