"""`dsv4bench kernels` from end to end: what it prints, keeps, resumes, and says by its exit code."""

import json
import re
import shlex
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from dsv4bench import cli_digest, cli_kernels, cli_ncu, cli_source
from dsv4bench.cli_kernels import exit_code
from dsv4bench.results.store import read_records
from tests.command_line import command_line
from tests.results.kernel_records import kernel_record, unable
from tests.source_tree import ROOT

WRONG = """
def half(x, weight, eps, out):
    out.zero_()

def right(**tensors):
    from dsv4bench.kernels.rms_norm import reference
    reference(**tensors)
"""
ONE = ("rms_norm", "--case", "width 512", "--rows", "2")
NCU = """==PROF== Disconnected
"ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum"
"","","usecond","Mbyte","Mbyte"
"0","_dequant","200","200","600"
"""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run kernels on the CPU in an empty directory that holds a file of the user's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(WRONG)
    command = command_line(monkeypatch, capsys)
    return lambda *arguments: command("kernels", *arguments, "--device", "cpu")


# timing


def test_a_run_prints_a_table_and_keeps_a_record_of_every_provider(run, tmp_path):
    found = run(*ONE, "--out", "here")
    assert found.code == 0
    assert found.out.startswith("rms_norm: measured, cpu-reference, a CPU\n")
    assert "a CPU: small shapes and the torch reference" in found.out
    assert "[1/1] rms_norm width 512 2" in found.err
    records = read_records(tmp_path / "here").records
    assert {record.kernel["provider"]: record.status for record in records}["torch"] == "ok"
    assert {record.status for record in records} <= {"ok", "skipped"}


def test_short_names_axes_and_json(run):
    found = run("c2_decode", "--rows", "4,8", "--kv", "fp4", "--provider", "torch", "--json", "-q")
    assert [(one["kernel"]["name"], one["kernel"]["rows"]) for one in json.loads(found.out)] == [
        ("compress_c2_decode", 4),
        ("compress_c2_decode", 8),
    ]
    assert found.err == ""


def test_a_wrong_result_has_no_speed_and_fails_the_run(run):
    found = run(*ONE, "--provider", "torch,own.py:half,own.py:right", "--out", "here")
    assert found.code == 1
    assert ["width", "512", "2", "own.py:half", "WRONG"] in [line.split() for line in found.out.splitlines()]
    assert "WRONG: against torch: out" in found.out
    status = {record.kernel["provider"]: record.status for record in read_records(Path("here")).records}
    assert status == {"torch": "ok", "own.py:half": "wrong", "own.py:right": "ok"}


def test_a_resumed_run_measures_what_is_missing(run):
    run(*ONE, "--provider", "torch", "--out", "here")
    found = run("rms_norm", "--case", "width 512", "--rows", "2,3", "--provider", "torch", "--resume", "here")
    assert found.code == 0
    assert [record.kernel["rows"] for record in read_records(Path("here")).records] == [2, 3]


def test_figures_lie_beside_the_records(run, tmp_path):
    found = run(*ONE, "--provider", "torch", "--out", "here", "--plot")
    assert {path.name for path in (tmp_path / "here").glob("*.png")} == {"roofline.png", "kernel-rms_norm.png"}
    assert "roofline.png" in found.err


def test_show_prints_the_table_again(run, monkeypatch, capsys):
    printed = run(*ONE, "--provider", "torch", "--out", "here").out
    assert command_line(monkeypatch, capsys)("show", "here").out == printed


def test_plot_draws_the_kernels_of_a_run(run, monkeypatch, capsys):
    run(*ONE, "--provider", "torch", "--out", "here")
    found = command_line(monkeypatch, capsys)("plot", "here")
    assert [Path(line).name for line in found.out.splitlines()] == [
        "roofline.png",
        "roofline.svg",
        "kernel-rms_norm.png",
        "kernel-rms_norm.svg",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dequnt",), "no kernel 'dequnt' (did you mean 'dequant'?)"),
        (("dequant", "--provider", "slang"), "--provider slang: not known (did you mean 'sglang'?)"),
        (("dequant", "--out", "a", "--resume", "b"), "--out a: --resume b already says"),
        (("dequant", "--resume", "nowhere"), "--resume nowhere: no such directory"),
        (("dequant", "--src", "missing"), "--src missing: no such directory"),
        (("dequant", "--once"), "--once: "),
        (("dequant", "--ncu-report", "missing"), "--ncu-report missing: no such file"),
        (("dequant", "--seed", "1,2", "--quick"), "--seed 1,2: expected a whole number of at least 0"),
        (("dequant", "--samples", "1,2"), "--samples 1,2: expected a whole number of at least 1"),
        (("dequant", "--samples", "0"), "--samples 0: expected at least 1"),
        *(
            ((*ONE, "--digest", "--control", text), f"--control {text}: expected a number above 0")
            for text in ("nan", "inf", "-1", "-0.5", "0", "a little")
        ),
        *(
            ((*ONE, *first, *second), f"{first[0]} and {second[0]}: expected one of them")
            for first, second in combinations((("--once",), ("--ncu",), ("--ncu-report", "r.csv"), ("--digest",)), 2)
        ),
        *(
            ((*ONE, "--digest", *given), f"{given[0]}: --digest times nothing and keeps no records")
            for given in (("--out", "a"), ("--resume", "a"), ("--plot",))
        ),
        *(
            ((*ONE, *mode, *given), f"{given[0]}: an option of --digest, which was not given")
            for mode in ((), ("--once",))
            for given in (("--a-src", "main"), ("--b-src", "."), ("--control", "1"))
        ),
        ((*ONE, "--provider", "torch", "--digest", "--a-src", "."), "--a-src .: no package there; expected"),
        (
            (*ONE, "--provider", "torch", "--digest", "--a-src", "no-such-ref"),
            "--a-src no-such-ref: neither a directory nor a git ref",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_slip_is_one_line_and_exit_code_2(run, arguments, message):
    found = run(*arguments)
    assert found.code == 2
    assert found.err.startswith(f"dsv4bench: {message}")
    assert len(found.err.splitlines()) == 1


def test_nothing_measured_is_exit_code_4(run):
    assert run(*ONE, "--provider", "sglang").code == 4


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([kernel_record(), unable()], 0),
        ([kernel_record(), unable(status="wrong", reason="x")], 1),
        ([kernel_record(), unable(status="failed", reason="x")], 1),
        ([unable(), unable("flash_mla", status="out_of_memory")], 4),
    ],
    ids=["ok", "wrong", "failed", "nothing"],
)
def test_exit_codes(records, code):
    assert exit_code(records) == code


def test_ctrl_c_keeps_what_is_finished(run, monkeypatch):
    """What is kept, where, and the command that goes on, which then measures the rest."""
    honest = cli_kernels.kernel_recording.run
    typed = ("rms_norm", "--case", "width 512", "--rows", "2,3", "--provider", "torch")

    def interrupted(*given):
        yield next(honest(*given))
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_kernels.kernel_recording, "run", interrupted)
    found = run(*typed, "--out", "here")
    assert (found.code, found.out) == (130, "")
    told, command = found.err.splitlines()[-2:]
    assert told == "interrupted: kept in here: 1 new record; go on with"
    assert command == f"  dsv4bench kernels {shlex.join(typed)} --device cpu --resume here"
    monkeypatch.setattr(cli_kernels.kernel_recording, "run", honest)
    assert run(*shlex.split(command)[2:]).code == 0
    assert len(read_records(Path("here")).records) == 2


# digests


@pytest.fixture
def changed_tree(tmp_path):
    """A copy of the package whose rms_norm adds 1 to the weight."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "dsv4bench", tree / "dsv4bench")
    file = tree / "dsv4bench" / "kernels" / "rms_norm.py"
    file.write_text(file.read_text().replace("* weight.float())", "* (1 + weight.float()))"))
    return tree


@pytest.fixture
def outcomes(monkeypatch):
    """Let the processes leave these hashes of rms_norm's output: by the name of the process."""
    found = {"a": "1" * 64, "b": "1" * 64, "control": "2" * 64}
    answer = lambda tree, folder, jobs, name: [{"digests": {"out": found[name]}} for _ in jobs]  # noqa: E731
    monkeypatch.setattr(cli_digest, "_outcomes", answer)
    return found


def test_equal_trees_are_equal_and_the_control_differs(run, outcomes):
    found = run(*ONE, "--provider", "torch", "--digest", "--a-src", ROOT, "--control", "0.5")
    assert found.code == 0, found.err
    assert "every output is equal, byte for byte" in found.out
    row = next(line.split() for line in found.out.splitlines() if line.startswith("rms_norm"))
    assert row == [
        "rms_norm",
        "width",
        "512",
        "2",
        "torch",
        "out",
        "1" * 10,
        "1" * 10,
        "=",
    ]
    assert "in every row: control differs: x + 0.5\n" in found.out


def test_a_control_too_small_to_show_fails(run, outcomes):
    outcomes["control"] = outcomes["b"]
    found = run(*ONE, "--provider", "torch", "--digest", "--a-src", ROOT, "--control", "1e-12")
    assert found.code == 1
    assert "the control did not differ" in found.out


def test_a_tree_that_computes_something_else_fails_in_processes_with_fresh_caches(run, changed_tree, monkeypatch):
    seen, honest = [], subprocess.run

    def spy(command, **options):
        if options.get("env"):
            seen.append(options["env"]["TRITON_CACHE_DIR"])
            assert not Path(seen[-1]).exists()
        return honest(command, **options)

    monkeypatch.setattr(cli_digest.subprocess, "run", spy)
    sources = ("--a-src", ROOT, "--b-src", changed_tree)
    found = run(*ONE, "--provider", "torch", "--digest", *sources, "--control", "0.5", "--json")
    assert found.code == 1, found.err
    (row,) = json.loads(found.out)
    assert row["equal"] is False
    assert len({row["a"], row["b"], row["control"]}) == 3
    assert len(set(seen)) == 3  # A, B and the control


def test_a_tree_of_which_no_process_comes_up_is_an_error_with_the_line_that_says_why(run, monkeypatch):
    stderr = "Traceback\nMemoryError: too much\nCheck the documentation of memory"
    died = subprocess.CompletedProcess([], 7, "", stderr)
    monkeypatch.setattr(cli_digest.subprocess, "run", lambda *_, **__: died)
    found = run(*ONE, "--provider", "torch", "--digest", "--a-src", ROOT)
    assert found.code == 1
    assert found.err == "dsv4bench: the process on a ended with code 7: MemoryError: too much\n"


def test_a_job_that_ends_its_process_does_not_lose_the_others(run, tmp_path):
    """The first exits at once, the second and third go on in new processes; each has a row."""
    (tmp_path / "ends.py").write_text("import os\n\ndef ends(**rest):\n    os._exit(9)\n")
    found = run(*ONE, "--provider", "ends.py:ends,torch,own.py:half", "--digest", "--a-src", ROOT, "--json")
    assert found.code == 1, found.err
    ends, torch, half = json.loads(found.out)
    assert ends["error"].startswith("A: the process on a ended with code 9: ")
    assert (torch["equal"], half["equal"], torch["a"] == half["a"]) == (True, True, False)


def test_a_kernel_of_integers_has_a_control_and_says_what_was_perturbed(run):
    found = run("plan_decode", "--case", "c4", "--provider", "torch", "--digest", "--a-src", ROOT, "--control", "1")
    assert found.code == 0, found.out
    (row,) = [line.split() for line in found.out.splitlines() if line.startswith("plan_decode")]
    assert row == ["plan_decode", "c4", "64", "torch", "plan_d", row[6], row[6], "="]
    assert re.search(r"control differs: req_pool_indices\[0\] \d+ -> \d+$", found.out, re.MULTILINE)


def test_nothing_that_can_run_is_exit_code_4_with_the_reason(run):
    found = run(*ONE, "--provider", "sglang", "--digest", "--a-src", ROOT)
    assert found.code == 4
    assert "skipped: rms_norm by sglang: " in found.err


# Nsight Compute


def test_the_command_profiles_one_call_at_a_gpus_rows(run):
    found = run("attention", "--case", "width 640", "--provider", "triton", "--ncu")
    assert found.code == 0
    assert found.out == (
        "ncu --profile-from-start off --set full --export sparse_attention-width_640-4096-triton --force-overwrite"
        " python -m dsv4bench kernels sparse_attention --case 'width 640' --rows 4096 --provider triton --seed 0"
        " --once\n"
    )
    assert run("dequant", "--kv", "fp4", "--rows", "8", "--provider", "sglang", "--ncu").out.split("kernels ")[1] == (
        "dequant --kv fp4 --rows 8 --provider sglang --seed 0 --once\n"
    )


def test_the_command_takes_the_same_source_tree(run, tmp_path, monkeypatch):
    """The tree as it was typed: the command may run on another machine, from the same folder."""
    tree = tmp_path / "my tree"
    (tree / "python" / "sglang").mkdir(parents=True)
    (tree / "python" / "sglang" / "__init__.py").touch()
    monkeypatch.setenv(cli_source.ENTERED, str((tree / "python").resolve()))  # as in the process that has begun anew
    found = run(*ONE, "--provider", "sglang", "--ncu", "--src", "my tree")
    assert found.code == 0
    assert found.out.endswith(" --provider sglang --seed 0 --src 'my tree' --once\n")


def test_where_ncu_is_missing_a_line_says_so(run, monkeypatch):
    monkeypatch.setattr(cli_ncu.shutil, "which", lambda name: None)
    assert cli_ncu.NO_NCU in run(*ONE, "--ncu").err
    Path("r.ncu-rep").touch()
    found = run("--ncu-report", "r.ncu-rep")
    assert found.code == 2
    assert "ncu is not installed here" in found.err


def test_one_call_is_made_and_several_are_refused(run):
    assert run(*ONE, "--provider", "torch", "--once").code == 0
    assert run(*ONE, "--provider", "triton", "--once").code == 4
    assert "expected one" in run("rms_norm", "--provider", "torch", "--once").err


def test_a_raw_csv_is_read_back(run):
    Path("r.csv").write_text(NCU)
    found = run("--ncu-report", "r.csv")
    assert found.code == 0
    assert ["_dequant", "200.0", "190.7", "MiB", "572.2", "MiB", "4.00", "TB/s"] in [
        line.split() for line in found.out.splitlines()
    ]
    (row,) = json.loads(run("--ncu-report", "r.csv", "--json").out)
    assert (row["time_ns"], row["dram_read_bytes"], row["registers"]) == (200_000, 2e8, None)


def test_a_report_is_read_through_ncu(run, monkeypatch):
    asked = []

    def ncu(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, NCU, "")

    monkeypatch.setattr(cli_ncu.shutil, "which", lambda name: "ncu")
    monkeypatch.setattr(cli_ncu.subprocess, "run", ncu)
    Path("r.ncu-rep").touch()
    assert "_dequant" in run("--ncu-report", "r.ncu-rep").out
    assert asked == [["ncu", "--import", "r.ncu-rep", "--csv", "--page", "raw"]]


@pytest.mark.parametrize("text", ["", "no report", "a,b\n1,2\n", NCU.replace("usecond", "fortnight"), '"Kernel Name,"'])
def test_a_csv_that_is_no_report_is_one_line_and_exit_code_2(run, text):
    Path("r.csv").write_text(text)
    found = run("--ncu-report", "r.csv")
    assert found.code == 2
    assert found.err.startswith("dsv4bench: --ncu-report r.csv: ")
    assert len(found.err.splitlines()) == 1


def test_a_report_that_ncu_cannot_read_is_one_line(run, monkeypatch):
    monkeypatch.setattr(cli_ncu.shutil, "which", lambda name: "ncu")
    failed = subprocess.CompletedProcess([], 1, "", "==ERROR== not a report\n")
    monkeypatch.setattr(cli_ncu.subprocess, "run", lambda *_, **__: failed)
    Path("r.ncu-rep").touch()
    found = run("--ncu-report", "r.ncu-rep")
    assert found.code == 2
    assert "not a report" in found.err
