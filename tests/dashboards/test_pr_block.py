"""The PR block: golden markdown, the same bytes each time, no markup out of names, and its numbers one by one."""

import re
import subprocess
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dsv4bench.dashboards.pr_block import pr_block
from dsv4bench.profiling.verify import Watch
from dsv4bench.results.noise_floor import noise_floor
from dsv4bench.results.store import read_records
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import Verdict, judge
from tests.dashboards.verdict_scenes import FILES, GOLDEN, SCENES, TREES, drawn, floors, h200, sided, trees, verdict
from tests.results.synthetic import GPU, counts, lost, record, row, with_side, with_variant
from tests.source_tree import ROOT

RUNS = sorted(file.parent for file in (ROOT / "results").glob("*/pr.md"))
READER = MarkdownIt("gfm-like", {"linkify": False, "html": True})
TAGS = {"p", "strong", "code", "pre", "h4", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "br", "span"}
TAGS |= {"details", "summary"}


def block(cells, noise=(), **changes):
    """The block of cells that are sides of trials, each with the same verdict."""
    found = [replace(verdict(one, "FASTER", 20.0, 19.5, (-500.0, 10.0), None), **changes) for one in trials(cells)]
    return pr_block(cells, found, noise)


def lines_after(text, heading):
    return text.split(f"#### {heading}\n\n")[1].split("\n\n")[0].splitlines()


def launches(text):
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines_after(text, "Launches")[2:]]


@pytest.mark.parametrize("name", [name for name, form in FILES if form == "md"])
def test_blocks_are_those_that_were_read_and_agreed(name):
    assert drawn(name, "md") == (GOLDEN / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCENES)
def test_the_same_records_give_the_same_bytes_whenever_they_were_written(name):
    records, verdicts = SCENES[name]()
    later = {id(one): replace(one, created="2030-01-01T00:00:00+00:00") for one in records}
    moved = [
        replace(one, trial=replace(one.trial, a=later[id(one.trial.a)], b=later[id(one.trial.b)])) for one in verdicts
    ]
    assert pr_block(list(later.values()), moved, ()) == pr_block(records, verdicts, ())


OWN = ("provider=triton", "provider=own.py:fn")
RAN = {"dequant": "triton", "rope": "triton"}
SILENT = "by whom is not known, no cell of it ran to its end; `own.py:fn` was asked for"


@pytest.mark.parametrize(
    ("of_b", "said"),
    [
        ([("failed", {})], [f"- kernels of `provider=own.py:fn`: {SILENT}"]),
        ([("failed", {"dequant": "own.py:fn"})], [f"- kernels of `provider=own.py:fn`: {SILENT}"]),
        ([("failed", {}), ("ok", RAN | {"rope": "torch"})], ["- rope by: `triton` -> `torch`"]),
        ([("ok", RAN)], []),
    ],
    ids=["none-ran", "none-ran-to-its-end", "one-ran", "alike"],
)
def test_who_runs_the_kernels_of_a_side_that_never_ran_is_not_guessed(of_b, said):
    cells = []
    for number, (status, providers) in enumerate(of_b):
        batch = 2**number
        b = record(batch) if status == "ok" else lost(status, "a reason", batch=batch)
        b = replace(with_variant(b, provider="own.py:fn"), providers=providers)
        both = replace(record(batch), providers=RAN), b
        cells += [with_side(one, side, OWN) for one, side in zip(both, "ab", strict=True)]
    lines = block(cells).splitlines()
    assert [line for line in lines if " by: " in line or "kernels of" in line] == said


def of_every_kind():
    """Two sessions and an A/A: eager, in a graph, in fresh processes, one of which is wrong and one was run again."""
    switched = [
        replace(
            one, providers={"dequant": one.variant["provider"], "store": f"own-{number}"}, flags=[f"flag {number % 3}"]
        )
        for number, one in enumerate(
            sided([record(b, r, g) for b in (8, 1) for g in (True, False) for r in ("on", "off")])
        )
    ]
    fresh = [
        with_side(
            record(batch, environment={**GPU, "torch": f"2.{pair}"}, created=f"2026-12-0{pair + 1}"),
            side, ("kv=v4", "kv=v41"), session="s0", pair=pair,
        )
        for pair in (1, 0) for batch in (1, 2) for side in "ab"
    ]  # fmt: skip
    again = replace(fresh[0], created="2026-12-03", samples_ns={"step_period": [10**7] * 5})
    wrong = replace(
        lost("wrong", "one bit"), batch=fresh[2].batch, environment=GPU, ab=fresh[2].ab, created="2026-12-04"
    )
    noise = [with_side(record(key=side), side, ("reuse=on", "reuse=on"), aa=True, session="s3") for side in "ab"]
    return [*switched, *fresh, again, wrong, *noise]


def written(records):
    found = trials(records)
    return pr_block(records, judge(found), noise_floor(found))


EVERY_KIND = of_every_kind()


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(len(EVERY_KIND))))
def test_the_same_records_give_the_same_bytes_in_whatever_order_they_are_read(order):
    assert written([EVERY_KIND[place] for place in order]) == written(EVERY_KIND)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_committed_blocks_are_those_that_this_version_writes_of_their_records_in_any_order(run):
    records = list(read_records(run).records)
    Random(0).shuffle(records)
    assert written(records) == (run / "pr.md").read_text(encoding="utf-8")


def test_a_block_of_no_verdicts_is_refused():
    with pytest.raises(ValueError, match="no verdicts"):
        pr_block([], [], ())


# markers


def markers(text):
    first, *_, last = text.splitlines()
    begin = re.fullmatch(r"<!-- dsv4bench:begin ([\w=+.-]+) -->", first)
    end = re.fullmatch(r"<!-- dsv4bench:end ([\w=+.-]+) -->", last)
    assert begin[1] == end[1]
    return begin[1]


@pytest.mark.parametrize("name", SCENES)
def test_a_block_stands_between_markers_of_one_name(name):
    assert "--" not in markers(drawn(name, "md"))


def test_a_tree_s_block_keeps_its_name_from_commit_to_commit():
    named = [
        markers(block([with_side(record(key=side), side, sides) for side in "ab"]))
        for sides in (("src=sglang@main", "src=sglang@1234"), ("src=sglang@main", "src=sglang@5678"))
    ]
    assert named == ["ab-src-NVIDIA-H200"] * 2
    assert markers(drawn("h200", "md")) == "ab-reuse=off-reuse=on-NVIDIA-H200"


# names


@pytest.mark.parametrize("name", SCENES)
def test_nothing_but_the_block_s_own_markup_comes_out(name):
    html = READER.render(drawn(name, "md"))
    assert set(re.findall(r"</?(\w+)", html)) <= TAGS
    assert "<table>" in html


def test_a_hostile_name_stays_a_name():
    html = READER.render(drawn("trees", "md"))
    assert "<code>src=&lt;b&gt;|@user #12</code>" in html
    assert "<b>" not in html
    outside = re.sub(r"<(code|pre)[^>]*>.*?</\1>", "", html, flags=re.DOTALL)
    assert not re.search(r"@\w|#\d", outside)


@settings(max_examples=25)
@given(st.text(st.sampled_from("ab<>|`*_~@#1[]()!\\$:/-&;\n"), min_size=1, max_size=10))
def test_no_name_breaks_the_block(name):
    cells = [
        replace(
            with_side(record(key=side), side, ("src=main", f"src={name}")),
            providers={"dequant": name, "combine": "triton"},
            environment={**GPU, "gpu": name, "src": {"name": name, "commit": None}},
            argv=["dsv4bench", name],
            note=[name],
            flags=[name],
            checks=[{"name": name, "passed": True, "detail": name}],
        )
        for side in "ab"
    ]
    text = block(cells)
    html = READER.render(text)
    assert set(re.findall(r"<(?!!--)/?(\w+)", html)) <= TAGS
    assert html.count("<details>") == html.count("</details>") == 4
    assert html.count("<table>") == 4  # verdicts, launches, memory, environment
    markers(text)


def test_no_command_closes_its_fence():
    cells = [
        with_side(record(reuse=reuse, argv=["dsv4bench", "```", "x"]), side)
        for reuse, side in (("off", "a"), ("on", "b"))
    ]
    assert "````sh\ngit checkout " + GPU["commit"] + "\ndsv4bench '```' x\n````" in block(cells)


def test_no_command_holds_more_than_it_says(tmp_path):
    """Commands are pasted into a shell: a commit or a name of a stranger's record must not run."""
    nasty = "x; touch owned\ntouch owned $(touch owned)"
    here = {**GPU, "commit": nasty, "dirty": True, "diff": nasty, "src": {"name": nasty, "commit": nasty}}
    cells = [
        with_side(record(reuse=reuse, environment=here, argv=["dsv4bench", nasty]), side)
        for reuse, side in (("off", "a"), ("on", "b"))
    ]
    commands = block(cells).split("```sh\n")[1].split("\n```")[0]
    subprocess.run(["sh", "-c", "git() { :; }; dsv4bench() { :; }\n" + commands], cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())


# what ran on what


def test_the_first_line_names_engine_providers_device_modes_replay_and_formats():
    own = {"dsv4bench": "0.1.0", "sglang": "0.5.23", "dirty": True, "diff": "d1ff"}
    cells = [
        replace(
            with_variant(one, replay="off", breaks="sm100" if one.variant["graph"] else None),
            providers={"dequant": "sglang", "combine": "sglang", "sparse_attention": "gluon"},
            environment={**GPU, **own},
        )
        for one in (record(reuse=reuse, graph=graph) for graph in (False, True) for reuse in ("off", "on"))
    ]
    assert block(sided(cells)).splitlines()[1] == (
        "**dsv4bench 0.1.0** at `c0ffeec0ffee` with local changes `d1ff` · engine gpu ·"
        " `sglang` 0.5.23, `gluon` 3.6.0 (sparse\\_attention) · NVIDIA H200 (driver 580.1) · eager, graph sm100 ·"
        " replay off · kv v41+fp4"
    )


def test_trees_are_named_with_commits_and_hashes_of_their_changes():
    text = drawn("trees", "md")
    assert "- source tree: `main` at `aaaaaaaaaaaa` -> <code>" in text
    assert "at `bbbbbbbbbbbb` with local changes `0123456789ab`" in text
    assert f"| `src.commit` | `{'a' * 40}` | `{'b' * 40}` |" in text


def test_what_two_environments_do_not_share_is_named_before_the_times():
    sides = [("a", {**GPU, "gpu_other_processes": 0}), ("b", {**GPU, "torch": "2.12.0", "gpu_other_processes": 1})]
    cells = [with_side(record(key=side, environment=env), side, ("env=x", "env=y")) for side, env in sides]
    before_times = block(cells).split("| batch |")[0]
    assert "- torch: `2.11.0` -> `2.12.0`" in before_times
    assert "gpu" not in before_times.split("####")[1]


def test_code_of_ours_that_changed_between_the_sides_is_named():
    sides = [("a", {**GPU, "dsv4bench": "0.1.0"}), ("b", {**GPU, "dsv4bench": "0.1.0", "dirty": True, "diff": "d1ff"})]
    cells = [with_side(record(key=side, environment=env), side) for side, env in sides]
    assert "- code of dsv4bench: at `c0ffeec0ffee` -> at `c0ffeec0ffee` with local changes `d1ff`" in block(cells)


def test_an_aa_is_no_change():
    found = floors()
    cells = [side for one in found for side in (one.verdict.trial.a, one.verdict.trial.b)]
    text = pr_block(cells, [one.verdict for one in found], found)
    assert "#### A/A, `reuse=on` on both sides" in text
    assert "Changed" not in text


def test_beside_a_change_its_aa_is_told_as_the_floor_alone():
    records, verdicts = h200()
    noise = floors()
    text = pr_block(records, [*verdicts, *(one.verdict for one in noise)], noise)
    assert text.count("#### Changed") == 1
    assert "#### A/A" not in text
    assert "- A/A floor: noise alone made -0.07 % to +0.20 %" in text


# launches


def test_sources_that_changed_alike_share_a_row():
    assert launches(drawn("h200", "md")) == [
        ["dequant_compressed", "2, 8, 14 (each)", "6 -> 1", "0", "6 -> 1"],
        ["dequant_compressed", "20", "20 -> 1", "0", "20 -> 1"],
        ["dequant_compressed", "all", "38 -> 4", "0", "38 -> 4"],
        ["dequant_swa", "all", "40 -> 40", "0", "40 -> 40"],
        ["every kernel", "all", "198 -> 164", "80 -> 80", "118 -> 84"],
    ]


def test_another_operation_that_changed_has_its_rows_and_turns_the_line_false():
    more = [row("store", source, "eager", 1, copies=copies) for source, copies in ((2, 1), (8, 0))]
    text = block(sided([record(reuse="off"), record(counts=counts("on", extra=more))]))
    assert launches(text)[4:] == [
        ["store", "2", "0 -> 2"],
        ["store", "8", "0 -> 1"],
        ["store", "all", "0 -> 3"],
        ["every kernel", "all", "198 -> 166"],
        ["every copy", "all", "0 -> 1"],
    ]
    assert "- no other kernel or copy added: **false**" in text
    assert "- added: store (kv\\_source 2, eager): copies 0 -> 1" in text


def test_cells_that_count_differently_are_a_span():
    more = [row("store", None, "eager", 5)]
    cells = [record(1, "off"), record(1), record(8, "off", counts=counts("off", extra=more)), record(8)]
    assert launches(block(sided(cells)))[-2:] == [
        ["store", "all", "0..5 -> 0"],
        ["every kernel", "all", "198..203 -> 164"],
    ]


def test_a_graph_beside_an_eager_step_adds_nothing_by_its_place():
    cells = [
        with_side(record(graph=graph), side, ("graph=off", "graph=on")) for graph, side in ((False, "a"), (True, "b"))
    ]
    text = block(cells)
    assert "- no other kernel or copy added: **true**" in text
    assert launches(text)[-1] == ["every kernel", "all", "164 -> 0", "0 -> 80", "0 -> 84"]


def test_of_a_side_without_counts_nothing_but_the_dequants_and_sums_is_listed():
    before = record(reuse="off", counts=counts("off", extra=[row("store", 2, "eager", 3)]))
    found = block(sided([before, lost("failed", "a reason")]))
    assert {operation for operation, *_ in launches(found)} == {"dequant_compressed", "dequant_swa", "every kernel"}
    assert ["dequant_compressed", "all", "38 -> -"] in launches(found)


def test_a_cpu_counts_calls_and_says_so():
    text = drawn("cpu", "md")
    assert launches(text)[-1][:2] == ["every call", "all"]
    assert "calls of operations, not launches: nothing ran on a GPU" in text


def test_counts_that_disagree_or_found_no_range_are_said():
    seen = {**record().coverage, "attributed": 150, "unattributed": 50, "disagreement": "store: 3 and 4"}
    text = block(sided([record(reuse="off", coverage=seen), record(coverage=seen)]))
    assert "- coverage 75.00 % of what was launched, by profiler" in text
    assert "- the sources of counts disagree: store: 3 and 4" in text


# correctness


def heads(*details, after=False):
    name = "reused heads, after timing" if after else "reused heads"
    return [{"name": name, "passed": "equal" in detail, "detail": detail} for detail in details]


@pytest.mark.parametrize(
    ("found", "stale", "said"),
    [
        (34, [], "- **34 of 34** reused heads byte-equal to a fresh dequant"),
        (34, [8, 9], "- **32 of 34** reused heads byte-equal to a fresh dequant"),
        (12, [], "- **12 of 34** reused heads byte-equal to a fresh dequant"),
    ],
    ids=["all", "two are stale", "too few were reused"],
)
def test_reused_heads_are_counted_as_the_check_says(found, stale, said):
    check = Watch(heads=found, stale=stale).check(34)
    plain = {"name": check.name, "passed": check.passed, "detail": check.detail}
    status = {} if check.passed else {"status": "wrong", "reason": check.detail, "samples_ns": {}}
    cells = sided([record(reuse="off"), record(checks=[plain], **status)])
    assert said in pr_block(cells, judge(trials(cells)), ())


def test_heads_are_summed_over_cells_and_those_after_timing_apart():
    checks = heads("34 reused heads equal a fresh dequant") + heads("30 reused heads equal a fresh dequant", after=True)
    cells = sided([record(1, "off"), record(1, checks=checks), record(8, "off"), record(8, checks=checks)])
    assert "- **68 of 68** reused heads byte-equal to a fresh dequant; after timing 60 of 60" in block(cells)


def test_without_such_a_check_no_head_is_claimed():
    assert "- reused heads: not checked" in block(sided([record(reuse="off"), record()]))


def test_outputs_of_two_providers_are_correctness_and_not_a_thing_that_was_not_measured():
    equal = "outputs beside provider triton: 41 layer outputs and 51 caches and rings are byte-equal"
    text = block(sided([record(reuse="off"), record(note=[equal])]))
    assert f"- {equal} (b)" in lines_after(text, "Correctness")
    assert "beside" not in text.split("#### Not measured")[1]


def test_a_wrong_cell_has_no_verdict_no_time_and_comes_first():
    records, verdicts = trees()
    text = pr_block(records, verdicts, ())
    assert "| 8 x 1024 | eager | none | ok | **WRONG** |  |  |" in text
    first = lines_after(text, "Correctness")[0]
    assert first.startswith("- **WRONG** outputs, reuse on and off: 2 of 41 layer outputs differ")
    assert "no verdict: b: wrong: 2 of 41" in text.split("#### Not measured")[1]


def test_the_accuracy_run_is_a_slot():
    assert "- GSM8K: not run by this tool: ____\n" in drawn("h200", "md")


# memory, what was not measured, how to repeat


def test_memory_is_the_most_of_each_side_and_every_cell_folded():
    sizes = [(2**30, 2**20), (2**31, 2**20), (2**30, 2**21), (2**30, 2**22)]
    cells = [
        record(batch, reuse, memory={"peak_bytes": peak, "workspace_bytes": workspace})
        for (batch, reuse), (peak, workspace) in zip([(1, "off"), (1, "on"), (8, "off"), (8, "on")], sizes, strict=True)
    ]
    text = block(sided(cells))
    assert lines_after(text, "Memory")[:2] == [
        "- peak: at most 1.000 GiB -> 2.000 GiB",
        "- workspace: at most 2.000 MiB -> 4.000 MiB",
    ]
    assert "| 8 x 1024 | eager | 1.000 GiB -> 1.000 GiB | 2.000 MiB -> 4.000 MiB |" in text


def test_one_process_says_that_its_peak_holds_both_and_fresh_ones_do_not():
    shared = "- the peak holds both sides"
    cells = [record(reuse="off"), record()]
    assert shared in block(sided(cells))
    assert shared not in block(sided(cells, pair=0, place=0))


def test_memory_that_nobody_measured_has_no_part():
    assert "#### Memory" not in block(sided([record(reuse="off", memory={}), record(memory={})]))


def test_what_was_not_measured_is_listed():
    assert lines_after(drawn("h200", "md"), "Not measured") == [
        "- attention stack only: about 40 % of a layer's FLOPs",
        "- one rank: no communication, no other ranks to wait for",
        "- no verdict: both sides: refused: context 20000 is over the graph's limit of 16384 (graph, batch 64 x 128)",
        "- effects smaller than these pairs can name (not resolvable here) (graph, batch 1 x 1024)",
    ]


def test_ranks_that_ran_one_after_another_are_called_that():
    text = block(sided([record(reuse="off", ranks=4), record(ranks=4)]))
    assert "- 4 ranks, run one after another on one device" in text
    assert "one rank" not in text


def test_rows_that_the_batch_does_not_say_stand_beside_it():
    batch = {**record().batch, "extend": None, "requests": 4, "rows": 1000}
    text = block(sided([replace(one, batch=batch) for one in (record(reuse="off"), record())]))
    assert "| 4 (1000/1024 rows) | eager |" in text


def test_commands_are_said_once_and_without_where_they_wrote():
    argv = ["dsv4bench", "ab", "prefill", "--a", "reuse=off", "--out", "results/x"]
    cells = sided([record(reuse="off", argv=argv), record(argv=[*argv[:-1], "results/y"])])
    text = block(cells)
    assert text.count("dsv4bench ab prefill --a reuse=off\n") == 1
    assert "results/" not in text


def test_code_that_no_checkout_holds_is_named_beside_the_commands():
    own = {**GPU, "dirty": True, "diff": "d1ff", "src": {"name": "sglang", "commit": "a" * 40, "dirty": False}}
    sides = (own, {**own, "src": {"name": "sglang", "commit": None, "dirty": None}})
    cells = [
        with_side(record(key=side, environment=env), side, ("src=x", "src=y"))
        for side, env in zip("ab", sides, strict=True)
    ]
    commands = block(cells).split("```sh\n")[1].split("\n```")[0]
    assert commands.splitlines() == [
        f"git checkout {GPU['commit']}",
        "# with local changes d1ff",
        f"# a: sglang at {'a' * 40}",
        "# b: sglang at no commit",
        "dsv4bench prefill",
    ]


def test_a_command_names_the_commits_of_the_revisions_that_were_typed():
    argv = ["dsv4bench", "ab", "prefill", "--a-src", "../sglang@main", "--b-src=HEAD"]
    trees = {"a": ("sglang@main", "a" * 40), "b": ("bench@HEAD", "b" * 40)}
    cells = [
        with_side(
            record(key=side, argv=argv, environment={**GPU, "src": {"name": name, "commit": commit}}), side, ("", "")
        )
        for side, (name, commit) in trees.items()
    ]
    command = block(cells).split("```sh\n")[1].split("\n```")[0].splitlines()[-1]
    assert command == f"dsv4bench ab prefill --a-src ../sglang@{'a' * 40} --b-src={'b' * 40}"


def test_a_cell_of_two_versions_names_both():
    cells = [
        record(1, "off"),
        record(1),
        *(record(8, reuse, environment={**GPU, "driver": "590.2"}) for reuse in ("off", "on")),
    ]
    assert "| `driver` | `580.1, 590.2` |" in block(sided(cells))


def test_a_side_that_never_ran_is_a_dash():
    (trial,) = trials(sided([record(reuse="off")]))
    text = pr_block([trial.a], [Verdict(trial, None, "b: not run", 0)], ())
    assert "| 1 x 1024 | eager | none | ok | - |  |  |" in text
    assert TREES[0] not in text
