"""`dsv4bench plot` and `dsv4bench report`, as a user types them."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.cli_trace_run import Reading
from dsv4bench.profiling.traces.doctor import examine
from dsv4bench.results.schema import encode
from tests.command_line import command_line
from tests.results.synthetic import record

TRACES = Path(__file__).parent / "data" / "traces"


@pytest.fixture
def run(monkeypatch, capsys):
    return command_line(monkeypatch, capsys)


def kept(file, records):
    """Write records to a file, whose folder is made, and return it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(map(encode, records)))
    return file


STEP = [replace(record(1, reuse), counts=[], memory={}) for reuse in ("off", "on")]
MODELLED = [
    replace(one, label="modelled", environment={"gpu": "B300 (modelled)"}, samples_ns={"step_period": [10**7]})
    for one in STEP
]


def test_plot_draws_png_and_svg_into_the_folder_or_elsewhere(run, tmp_path):
    file = kept(tmp_path / "run" / "records.jsonl", STEP)
    found = run("plot", file.parent)
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines() == [str(file.parent / f"step-time.{end}") for end in ("png", "svg")]
    elsewhere = tmp_path / "new" / "figures"
    assert run("plot", file, "--out", elsewhere).code == 0
    assert sorted(one.name for one in elsewhere.iterdir()) == ["step-time.png", "step-time.svg"]


def test_several_runs_are_read_together_and_each_file_once(run, tmp_path, monkeypatch):
    first = kept(tmp_path / "a" / "records.jsonl", STEP)
    second = kept(tmp_path / "b" / "records.jsonl", MODELLED)
    given = []
    monkeypatch.setattr("dsv4bench.cli_report_run.draw", lambda *call: iter(given.append(call) or ["drawn"]))
    assert run("plot", tmp_path / "a", second, first, "--with-model").out == "drawn\n"
    ((records, folder, with_model),) = given
    assert [one.label for one in records] == ["measured", "measured", "modelled", "modelled"]
    assert (folder, with_model) == (tmp_path / "a", True)


def test_a_torn_last_line_is_a_warning_and_not_the_end(run, tmp_path, monkeypatch):
    file = kept(tmp_path / "records.jsonl", STEP)
    file.write_text(file.read_text() + encode(record(2))[:50])
    monkeypatch.setattr("dsv4bench.cli_report_run.draw", lambda *call: iter(["drawn"]))
    found = run("plot", file)
    assert (found.code, found.out) == (0, "drawn\n")
    assert found.err.startswith(f"warning: {file}:3: left out a torn last line")


@pytest.mark.parametrize(
    ("records", "hint"),
    [
        ([replace(record(1), variant={"reuse": "other"})], ""),
        (MODELLED, "; 2 modelled records are drawn with --with-model"),
    ],
    ids=["no side of reuse", "modelled"],
)
def test_nothing_to_draw_is_one_line(run, tmp_path, records, hint):
    file = kept(tmp_path / "run.jsonl", records)
    found = run("plot", file)
    assert found.err == f"dsv4bench: {file}: no step and no kernel with a time to draw{hint}\n"
    assert (found.code, list(tmp_path.iterdir())) == (2, [file])


@pytest.fixture
def page(monkeypatch):
    """What the page was made of, call by call, instead of one."""
    calls = []
    monkeypatch.setattr("dsv4bench.cli_report_run.report", lambda *call: calls.append(call) or f"page {len(calls)} ö")
    return calls


def test_report_writes_one_page_and_says_where(run, page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept(tmp_path / "run" / "records.jsonl", STEP)
    found = run("report", "run")
    assert (found.code, found.out, found.err) == (0, "report.html\n", "")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "page 1 ö"
    assert run("report", "run", "run", "--with-model", "--out", "new/page.html").code == 0
    assert (tmp_path / "new" / "page.html").is_file()
    assert [(len(records), traces, model) for records, traces, model in page] == [(2, [], False), (2, [], True)]


@pytest.mark.parametrize(
    ("records", "typed", "expected"),
    [
        ([], (), "run.jsonl: no records here"),
        (MODELLED, (), "run.jsonl: no records here; 2 modelled ones are shown with --with-model"),
        (STEP, ("--out", "run.jsonl/x.html"), "--out run.jsonl/x.html: cannot write the page: File exists"),
    ],
    ids=["nothing", "modelled", "out"],
)
def test_what_cannot_be_reported_is_one_line(run, page, tmp_path, monkeypatch, records, typed, expected):
    monkeypatch.chdir(tmp_path)
    kept(tmp_path / "run.jsonl", records)
    found = run("report", "run.jsonl", *typed)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith(f"dsv4bench: {expected}")
    assert [file.name for file in tmp_path.iterdir()] == ["run.jsonl"]


def test_the_doctor_examines_traces_that_lie_beside_their_records(run, page, tmp_path):
    names = ["eager.json.gz", "words.json", "gone.json", "../eager.json.gz"]
    file = kept(tmp_path / "run" / "records.jsonl", [replace(one, traces=names) for one in STEP])
    shutil.copy(TRACES / "eager.json.gz", file.parent)
    shutil.copy(TRACES / "eager.json.gz", tmp_path)
    (file.parent / "words.json").write_text("hello")
    assert run("report", file, "--out", tmp_path / "x.html").code == 0
    ((_, (read, words, gone, outside), _),) = page
    assert (read.name, read.reason) == ("eager.json.gz", None)
    assert [one.code for one in read.findings] == [one.code for one in doctored_by_itself(file.parent)]
    assert words.reason.startswith("cannot be read: words.json")
    assert (gone.reason, outside.reason) == ("does not lie beside the records",) * 2


def doctored_by_itself(folder):
    return examine(Reading(None, "", "off", "push-pop").placed(folder / "eager.json.gz"))
