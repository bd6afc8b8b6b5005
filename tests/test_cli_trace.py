"""`dsv4bench trace` from end to end: what is printed, in which format, and the exit codes."""

import csv
import io
import json
import re

import pytest

from tests.command_line import command_line
from tests.profiling.traces.timed_steps import Timed, dequants, kineto_text, steps_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of small traces and one of two ranks."""
    path = tmp_path_factory.mktemp("traces")
    outside = dequants((2, 3, 4)).launched("setup", 50_000, 50_100, 50_200)
    unplaced = dequants((2, 3, 4)).launched("setup", 8_000, 8_100, 8_200)
    sources = Timed().range("kv_source=8", 0, 900).launched("a", 10, 100, 200).launched("b", 30, 300, 400)
    warmed = steps_of(3).range("kv_source=8", 50_000, 50_900).launched("a", 50_010, 50_100, 50_200)
    layers = Timed().range("model.layers.21", 0, 900).launched("a", 10, 100, 200).launched("b", 30, 300, 400)
    lost = steps_of(4)
    lost.call("cudaLaunchKernel", 9_000)
    graph = Timed().range("step0", 0, 900)
    replay = graph.call("cudaGraphLaunch", 10)
    graph.op("dequant", 100, 200, replay)
    traces = {
        "before": dequants((2, 3, 4)),
        "after": dequants((2,)),
        "outside": outside,
        "unplaced": unplaced,
        "sources": sources,
        "layers": layers,
        "warmed": warmed,
        "plain": steps_of(4, kernels=3, last_kernels=1),
        "lost": lost,
        "graph": graph,
    }
    for name, made in traces.items():
        (path / f"{name}.json").write_text(kineto_text(made.trace()))
    (path / "b300.json").write_text(kineto_text(dequants((2,)).trace(), device="NVIDIA B300"))
    (path / "notes.txt").write_text("hello")
    (path / "ranks").mkdir()
    for rank in (0, 1):
        (path / "ranks" / f"rank{rank}.json").write_text(kineto_text(steps_of(3, kernels=2 + rank).trace(rank=rank)))
    return path


@pytest.fixture
def run(monkeypatch, capsys, folder):
    """Run the command in the folder of traces."""
    monkeypatch.chdir(folder)
    command = command_line(monkeypatch, capsys)
    return lambda *arguments: command("trace", *arguments)


# review


def test_a_review_shows_the_head_then_findings_then_steps_and_groups(run):
    done = run("review", "before.json")
    assert done.code == 0
    order = [
        "Trace before.json",
        "device: NVIDIA H200, 132 SMs",
        "coverage: 100.00 % of 9",
        "Findings:",
        "Steps: 3, 0 cut",
    ]
    places = [done.out.index(text) for text in [*order, "By op and kv_source", "By kernel"]]
    assert places == sorted(places)
    assert re.search(r"dequant_compressed +2 +9 +3 ", done.out)


@pytest.mark.parametrize("name", ["before", "plain", "lost", "graph", "ranks"])
def test_tables_fit_eighty_columns(run, name):
    path = name if name == "ranks" else f"{name}.json"
    done = run("review", path)
    assert max(map(len, done.out.splitlines())) <= 80
    assert "\x1b" not in done.out


def test_a_cut_step_is_marked_and_no_median_counts_it(run):
    out = run("review", "plain.json").out
    assert re.search(r"^step3 .* cut$", out, re.MULTILINE)
    assert re.search(r"^median +3 ", out, re.MULTILINE)
    assert "step 3 is cut: 1 kernels, the others at least 3" in out


def test_json_has_the_keys_that_scripts_read(run):
    found = json.loads(run("review", "before.json", "--json").out)
    assert {"totals", "steps", "by", "findings", "coverage"} <= found.keys()
    totals = {"kernels": 9, "copies": 0, "sets": 0, "graph_launches": 0, "kernels_in_graphs": 0, "kernel_sum_ns": 900}
    assert totals.items() <= found["totals"].items()
    assert [step["kernels"] for step in found["steps"]] == [3, 3, 3]
    (row,) = found["by"]["op and kv_source"]
    assert (row["op"], row["kv_source"], row["kernels"], row["per_step"]) == ("dequant_compressed", 2, 9, [3, 3])
    assert found["coverage"]["share"] == 1


@pytest.mark.parametrize(
    ("axis", "keys"),
    [
        ("layer", {2, 3, 4}),
        ("kv_source", {2}),
        ("op", {"dequant_compressed"}),
        ("kernel", {"dequant"}),
        ("stream", {7}),
    ],
)
def test_by_groups_by_an_axis(run, axis, keys):
    done = run("review", "before.json", "--by", axis, "--json")
    assert done.code == 0
    assert {row[axis] for row in json.loads(done.out)["by"][axis]} == keys


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 0),
        (("--by", "kv_source"), 3),
        (("--by", "kernel"), 0),
        (("--by", "kv_source", "--allow-unattributed"), 0),
        (("--by", "kv_source", "--steps", "0-2"), 0),
    ],
    ids=["plain", "needs-places", "needs-none", "allowed", "steps-without-it"],
)
def test_operations_without_a_place_matter_where_the_answer_needs_it(run, arguments, code):
    done = run("review", "outside.json", *arguments)
    assert done.code == code
    assert ("1 of 10 operations have no kv_source" in done.err) is (code == 3)


def test_chosen_steps_only(run):
    found = json.loads(run("review", "plain.json", "--steps", "1-2", "--json").out)
    assert [step["number"] for step in found["steps"]] == [1, 2]


def test_csv_has_every_row_and_plain_numbers(run):
    out = run("review", "before.json", "--by", "layer", "--csv").out
    block = next(part for part in out.split("\n\n") if part.startswith("# By layer"))
    rows = list(csv.DictReader(line for line in io.StringIO(block) if not line.startswith("#")))
    assert {(row["layer"], row["kernels"], row["time_ns"]) for row in rows} == {(str(n), "3", "300") for n in (2, 3, 4)}


def test_markdown_is_markdown(run):
    assert "| dequant\\_compressed | 2 | 9 |" in run("review", "before.json", "--md").out


def test_a_folder_of_ranks_has_a_straggler(run):
    done = run("review", "ranks")
    assert done.code == 0
    assert re.search(r"^ +1 +3 +9 .* 100.00 %$", done.out, re.MULTILINE)


@pytest.mark.parametrize("name", ["step.png", "step.svg"])
def test_plot_draws_a_step(run, tmp_path, name):
    assert run("review", "before.json", "--plot", tmp_path / name).code == 0
    head = (tmp_path / name).read_bytes()[:5]
    assert head in (b"\x89PNG\r", b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "kv_sorce"), "--by kv_sorce: expected one of .* (did you mean 'kv_source'?)"),
        (("--steps", "5-3"), "--steps 5-3: expected numbers of steps like 3-5 or 4"),
        (("--steps", "9" * 5_000), "--steps 99999"),
        (("--steps", "7"), "--steps 7-7: no such step; this trace has 0 to 2"),
        (("--json", "--csv"), "--json --csv: expected one format at a time"),
        (("--nvtx-kind", "both"), "--nvtx-kind both: expected one of push-pop, start-end"),
        (("--geometry", "v41flash"), "--geometry v41flash: no such geometry (did you mean 'v41-flash'?)"),
        (("--infer", "v42-flash"), "--infer v42-flash: no such geometry (did you mean 'v41-flash'?)"),
        (("--map", "none.toml"), "--map none.toml: "),
        (("--plot", "step.pdf"), "--plot step.pdf: expected a file that ends in .png or .svg"),
    ],
    ids=lambda value: "-".join(value).strip("-")[:40] if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line(run, arguments, said):
    done = run("review", "before.json", *arguments)
    assert done.code == 2
    start, _, end = said.partition(".*")
    assert done.err.startswith(f"dsv4bench: {start}")
    assert end in done.err
    assert done.err.count("\n") == 1


def test_a_file_that_is_no_trace_is_one_line_with_its_name(run):
    done = run("review", "notes.txt")
    assert done.code == 1
    assert re.match(r"dsv4bench: notes\.txt: .*\n$", done.err)


# diff


def test_diff_shows_launches_time_and_that_nothing_was_added(run):
    done = run("diff", "before.json", "after.json")
    assert done.code == 0
    assert re.search(r"^dequant_compressed +2 +3 -> 1 +0.3000 -> 0.1000 +-0.2000 ", done.out, re.MULTILINE)
    assert "no other kernel or copy added: true" in done.out
    assert done.out.index("devices") < done.out.index("dequant_compressed")
    assert max(map(len, done.out.splitlines())) <= 80


def test_diff_the_other_way_round_adds_a_launch(run):
    done = run("diff", "after.json", "before.json", "--by", "kernel")
    assert "no other kernel or copy added: false" in done.out
    assert "Launched more often: 1" in done.out


@pytest.mark.parametrize("axis", ["kv_source", "op", "layer", "kernel"])
def test_diff_by_an_axis(run, axis):
    done = run("diff", "before.json", "after.json", "--by", axis, "--json")
    found = json.loads(done.out)
    assert (done.code, found["nothing_added"]) == (0, True)
    assert all(axis in row for row in found["rows"])


@pytest.mark.parametrize(("after", "what"), [("b300.json", "devices"), ("graph.json", "graph mode")])
def test_unlike_traces_are_refused_before_any_number(run, after, what):
    done = run("diff", "before.json", after)
    assert done.code == 3
    assert "->" not in done.out
    assert f"refused: different {what}, so" in done.err
    plain = json.loads(run("diff", "before.json", after, "--json").out)
    assert (plain["comparable"], plain["rows"]) == (False, None)


def test_unlike_traces_are_shown_on_request_and_labelled(run):
    done = run("diff", "before.json", "b300.json", "--allow-unlike")
    assert done.code == 0
    assert "UNLIKE: By op and kv_source" in done.out


def test_diff_needs_places_unless_told_otherwise(run):
    done = run("diff", "unplaced.json", "after.json", "--by", "op")
    assert (done.code, done.err) == (3, "before: 1 of 10 operations have no op: --allow-unattributed accepts that\n")
    assert run("diff", "unplaced.json", "after.json", "--by", "op", "--allow-unattributed").code == 0


def test_diff_says_what_lies_outside_of_the_steps_it_compares_and_needs_no_place_for_it(run):
    done = run("diff", "outside.json", "after.json", "--by", "op")
    assert done.code == 0
    assert "before: 1 operations outside of whole steps are not compared" in done.out


@pytest.mark.parametrize("axis", [(), ("--by", "kv_source")], ids=["as-is", "by-kv-source"])
def test_a_diff_by_source_needs_sources_and_no_operations(run, axis):
    done = run("diff", "sources.json", "sources.json", *axis)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^- +8 +2 ", done.out, re.MULTILINE)
    assert run("diff", "sources.json", "sources.json", "--by", "op").code == 3


def test_a_diff_goes_by_kernel_where_only_what_it_leaves_out_has_sources(run):
    done = run("diff", "warmed.json", "warmed.json")
    assert (done.code, done.err) == (0, "")
    assert "By kernel, a step" in done.out


def test_a_layer_without_a_geometry_has_no_source_and_a_diff_of_such_traces_goes_by_kernel(run):
    done = run("review", "layers.json", "--by", "kv_source")
    assert (done.code, done.err) == (3, "2 of 2 operations have no kv_source: --allow-unattributed accepts that\n")
    assert run("review", "layers.json", "--by", "kv_source", "--geometry", "v41-flash").code == 0
    assert "By kernel, a step" in run("diff", "layers.json", "layers.json").out


def test_diff_trusts_no_wrong_counts(run):
    done = run("diff", "plain.json", "lost.json")
    assert done.code == 3
    assert "counts are wrong (after: launches-without-kernels)" in done.err


def test_diff_compares_one_rank(run):
    done = run("diff", "ranks", "ranks")
    assert done.code == 2
    assert "before ranks: has ranks 0, 1; --rank N compares one" in done.err
    assert "has ranks 0, 1 and no rank 2" in run("diff", "ranks", "ranks", "--rank", "2").err
    assert run("diff", "ranks", "ranks", "--rank", "1").code == 0


# doctor


@pytest.mark.parametrize(("name", "code"), [("lost", 1), ("graph", 0)])
def test_the_doctor_fails_where_counts_are_wrong(run, name, code):
    assert run("doctor", f"{name}.json").code == code


def test_a_finding_has_code_evidence_and_command(run):
    out = run("doctor", "lost.json").out
    assert out.startswith("Findings: 1, 1 of which make counts wrong\nwrong: launches-without-kernels: ")
    assert "kernel_launches=1" in out
    assert "-> torch.profiler" in out


def test_the_doctor_as_json(run):
    done = run("doctor", "lost.json", "--json")
    (finding,) = json.loads(done.out)["findings"]
    assert (finding["code"], finding["wrong"], finding["evidence"]["kernel_launches"]) == (
        "launches-without-kernels",
        True,
        1,
    )


@pytest.mark.parametrize("command", [(), ("review",), ("diff",), ("doctor",)], ids=" ".join)
def test_help_says_the_exit_codes(run, command):
    out = " ".join(run(*command, "--help").out.split())
    assert "Exit codes: 0 ok;" in out
