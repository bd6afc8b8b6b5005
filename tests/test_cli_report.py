"""`dsv4bench plot` and `dsv4bench report`, as a user types them."""

from dataclasses import replace

import pytest

from dsv4bench.results.schema import encode
from tests.command_line import command_line
from tests.results.synthetic import record


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
