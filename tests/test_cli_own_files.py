"""Kernels from a file of the user's own, in both commands: edits, errors, and what a record says of the file."""

from pathlib import Path

import pytest

from dsv4bench.results.store import read_records
from dsv4bench.workloads import providers
from tests.command_line import command_line, tiny_config

RIGHT = """
def fn(**tensors):
    from dsv4bench.kernels.{name} import reference
    {first}
    reference(**tensors)
"""
# a command of each kind that calls one kernel of own.py, and the name of that kernel
COMMANDS = {
    "kernels": ("rms_norm", ("rms_norm", "--case", "width 512", "--rows", "2", "--provider", "own.py:fn")),
    "prefill": ("dequant", ("--no-graph", "--reuse", "on", "--provider", "dequant=own.py:fn")),
}
LENGTHS = ("--extend", "4", "--prefix", "60", "--samples", "1")
CACHES = (providers.own_file, providers._module, providers._source)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, config):
    """Run a command as a fresh process would, which reads own.py anew."""
    monkeypatch.chdir(tmp_path)
    command = command_line(monkeypatch, capsys)
    more = {"kernels": ("--device", "cpu"), "prefill": ("--geometry", config, *LENGTHS)}

    def fresh(name, *arguments):
        forget()
        return command(name, *more[name], *arguments)

    yield fresh
    forget()


def forget():
    for cache in CACHES:
        cache.cache_clear()


def write(name, first="pass"):
    Path("own.py").write_text(RIGHT.format(name=name, first=first))


def hashes(folder):
    return [record.environment["own_files"] for record in read_records(Path(folder)).records]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_resumed_run_measures_an_edited_file_again_and_an_untouched_one_not(run, command):
    name, arguments = COMMANDS[command]
    write(name)
    assert run(command, *arguments, "--out", "here").code == 0
    assert run(command, *arguments, "--resume", "here").code == 0
    write(name, first="raise RuntimeError('edited')")
    found = run(command, *arguments, "--resume", "here")
    assert (found.code, "RuntimeError: edited" in found.out) == (1, True)
    assert [set(one) for one in hashes("here")] == [{name}] * 2
    assert len({one[name] for one in hashes("here")}) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_the_hash_of_the_file_stands_under_the_table(run, command):
    name, arguments = COMMANDS[command]
    write(name)
    found = run(command, *arguments, "--out", "here")
    assert hashes("here")[0][name] in found.out
    torch_alone = [
        argument.replace("dequant=own.py:fn", "torch").replace("own.py:fn", "torch") for argument in arguments
    ]
    run(command, *torch_alone, "--out", "there")
    assert "own_files" not in read_records(Path("there")).records[0].environment


@pytest.mark.parametrize("raised", ["raise SystemExit(3)", "raise RuntimeError('boom')", "raise GeneratorExit"])
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_the_function_raises_is_a_failed_cell_with_the_line(run, command, raised):
    name, arguments = COMMANDS[command]
    write(name, raised)
    found = run(command, *arguments, "--out", "here")
    assert found.code == 1
    (record,) = read_records(Path("here")).records
    assert record.status == "failed"
    assert record.reason.startswith("own.py:4: ")
    assert raised.split()[1].split("(")[0] in record.reason


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_in_the_function_is_still_ctrl_c(run, command):
    name, arguments = COMMANDS[command]
    write(name, "raise KeyboardInterrupt")
    assert run(command, *arguments, "--out", "here").code == 130


@pytest.mark.parametrize("idle", ["fake_quant=torch", "plan_prefill=torch"])
def test_a_kernel_that_the_step_never_calls_is_named(run, idle):
    found = run("prefill", "--no-graph", "--provider", f"dequant=torch/{idle}", "--out", "here")
    assert found.code == 0
    assert f"not called in this step: {idle}" in " ".join(found.out.split())
    assert all(f"not called in this step: {idle}" in record.note for record in read_records(Path("here")).records)
