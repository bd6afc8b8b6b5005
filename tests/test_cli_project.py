"""`dsv4bench project` from end to end on runs of an H200 that are committed, and on what cannot be projected."""

import json

import pytest

from dsv4bench.results.store import Store, read_records
from tests.command_line import command_line
from tests.results.synthetic import GPU, cpu_sweep, record
from tests.source_tree import ROOT

RUN = ROOT / "results" / "h200-graph-static"  # twelve graph cells of six workloads, with device times


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `project` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    command = command_line(monkeypatch, capsys)
    return lambda *arguments: command("project", *arguments)


@pytest.fixture
def stored(tmp_path):
    """Write records as a run and return its folder."""

    def write(*records):
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        with Store(folder) as store:
            for one in records:
                store.append(one)
        return folder

    return write


def test_a_projection_is_labelled_and_kept(run, tmp_path):
    found = run(RUN)
    assert found.code == 0
    assert found.out.startswith("Step time projected on B300, GB300 (modelled) from NVIDIA H200\n")
    assert max(map(len, found.out.splitlines())) <= 80
    said = " ".join(found.out.split())
    assert (
        "B300: modelled from NVIDIA H200, not measured: bytes 4.8 TB/s -> 7.7 TB/s; FLOPs 989.4 TFLOP/s -> 2.25" in said
    )
    assert "error on NVIDIA H200 itself, of cells that the fit had not seen: graph median" in said
    assert "GB300: launches cost grace 2.75 x as much as x86: an assumption, not measured" in said
    assert "B300 hbm_rate: Verda" in said
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("Z-project")
    assert found.err == f"records: results/{folder.name}\n"
    records = read_records(folder).records
    assert {(one.label, one.status, one.machine) for one in records} == {
        ("modelled", "ok", "B300 (modelled)"),
        ("modelled", "ok", "GB300 (modelled)"),
    }
    assert len(records) == 24


def test_what_is_shown_again_has_no_interval(run, monkeypatch, capsys):
    run(RUN, "--to", "b300", "--out", "here", "-q")
    found = command_line(monkeypatch, capsys)("show", "here")
    assert found.code == 0
    assert found.out.startswith("Step time, reuse on, attention stack of v41-flash: modelled, gpu, B300\n(modelled)\n")
    assert "one modelled time each, without an interval" in found.out
    assert "±" not in found.out


def test_the_model_of_an_h200_predicts_an_h200(run):
    """Projected on itself, and cells that the fit had not seen: within a few percent."""
    found = run(RUN, "--to", "h200", "--json", "-q")
    measured = {json.dumps([one.batch, one.variant], sort_keys=True): one for one in read_records(RUN).records}
    records = json.loads(found.out)
    ratios = []
    for one in records:
        source = measured[json.dumps([one["batch"], one["variant"]], sort_keys=True)]
        ratios.append(one["samples_ns"]["graph_replay"][0] / sorted(source.step_samples_ns)[3])
    assert len(ratios) == 12
    assert max(abs(ratio - 1) for ratio in ratios) < 0.06
    error = records[0]["projection"]["errors"]["graph"]
    assert error["cells"] == 12
    assert error["median"] < 0.03


def test_figures_of_ones_own_are_used_and_named(run, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('[device.b300]\nhbm_rate = "7 TB/s"\n')
    found = run(RUN, "--to", "b300", "--peaks", mine, "--out", "here", "-q")
    assert (found.code, found.err) == (0, "")
    assert "bytes 4.8 TB/s -> 7 TB/s" in " ".join(found.out.split())
    assert "B300 hbm_rate: mine.toml" in found.out
    assert read_records(tmp_path / "here").records


def test_csv_holds_every_figure(run):
    lines = run(RUN, "--to", "b300", "--format", "csv", "-q").out.splitlines()
    assert lines[1] == (
        "requests,extend,rows,prefix,mode,kv,compressor,reuse,measured_ns,"
        "b300_ns,b300_launch_bound,b300_status,b300_reason"
    )
    assert lines[2].startswith("1,1024,1024,8192,graph sm100,v41+fp4,fused,on,")
    assert lines[2].endswith(",ok,")
    assert "op,timed_share,bound,share,launch_ns,b300_factor" in lines
    assert "figure,h200,h200_source,h200_date,b300,b300_source,b300_date" in lines


def test_records_beside_a_fit_may_be_of_an_older_version(run, stored):
    """A run without device times is projected by the fit of another whose kernels ran too; else it says why not."""
    found = run(RUN, stored(record(batch=1)), "--to", "b300", "-q")
    assert found.code == 0
    assert "not projected (1 cell): the record does not say whose kernels ran" in " ".join(found.out.split())


ERRORS = {
    "no such device": (lambda stored: [RUN, "--to", "b30"], r"--to b30: no such device (did you mean 'b300'?)"),
    "a CPU's run": (
        lambda stored: [stored(*cpu_sweep())],
        "steps of a CPU only; expected a run of `dsv4bench prefill` on",
    ),
    "no device times": (
        lambda stored: [stored(record(batch=1))],
        "no record has whole device times, which the model is fitted on",
    ),
    "nothing measured": (lambda stored: [stored()], "no measured step; expected a run of `dsv4bench prefill` on a GPU"),
    "no such run": (lambda stored: ["none"], "none: no such file or directory"),
    "a format": (
        lambda stored: [RUN, "--format", "tabel"],
        "--format tabel: expected one of table, md, csv, json, jsonl",
    ),
    "not empty": (lambda stored: [RUN, "--out", RUN], "the directory is not empty"),
}


@pytest.mark.parametrize(("arguments", "said"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_is_one_line(run, stored, arguments, said):
    found = run(*arguments(stored))
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("dsv4bench: ")
    assert said in found.err
    assert found.err.count("\n") == 1


def test_an_unknown_gpu_is_named(run, stored):
    found = run(stored(record(batch=1, environment={**GPU, "gpu": "A GPU"}, device_time={"rows": []})))
    assert found.code == 2
    assert "A GPU: no peaks of this GPU; name it under `names` in --peaks FILE" in found.err


def test_a_projection_is_not_projected_again(run, stored, tmp_path):
    assert run(RUN, "--to", "b300", "--out", "once", "-q").code == 0
    again = run("once")
    assert (again.code, "no measured step" in again.err) == (2, True)
