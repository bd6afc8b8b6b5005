"""Tables of a review, of findings and of a comparison, from plain values alone."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.finding_table import finding_table
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.dashboards.review_tables import (
    MOST_KERNELS,
    between,
    coverage_text,
    group_table,
    kernel_title,
    review_tables,
    shortened,
)
from dsv4bench.dashboards.trace_diff_tables import diff_tables, nothing_added_text
from dsv4bench.results.reviews import Coverage, Finding, GroupRow, Head, RankRow, Review, StepRow, Totals
from dsv4bench.results.trace_diffs import DiffRow, KernelChange, Likeness, Span, TraceDiff

FULL = Coverage(10, 0, 0, 0, 0, "launch correlation")
HEAD = Head("trace.json", "kineto", ["NVIDIA H200"], {"cupti_version": "13"}, ["kernels"], ["sets"], "eager")
NOTHING = Totals(None, None, None, None, None, None)
FINDING = Finding("graph-mode-hides-kernels", True, "2 replays are one row each", {"graph_runs": 2}, "nsys profile")


def step(number, cut=None, **more):
    counts = dict.fromkeys(("copies", "sets", "graph_launches", "kernels_in_graphs"), 0)
    times = dict.fromkeys(("host_ns", "span_ns", "busy_ns", "kernel_sum_ns", "waiting_ns"), 5_000_000)
    return StepRow(number=number, name=f"step{number}", rank=None, cut=cut, kernels=3, **(counts | times | more))


def group(name, kernels=1):
    return GroupRow({"kernel": name}, kernels, 0, 0, 1_000, 0.5, 0, 0, (1, 1))


def review(**more):
    fields = {"totals": NOTHING, "steps": [step(0), step(1)], "marked": True, "by": {}, "findings": []}
    return Review(HEAD, **(fields | {"coverage": FULL} | more))


def text(tables):
    return "\n".join(plain(table) for table in tables)


def test_what_is_not_recorded_is_said_and_never_zero():
    shown = text(review_tables(review()))
    assert "totals: kernels not recorded, copies not recorded" in shown
    assert "not recorded: sets" in shown


def test_the_rank_of_a_step_stands_in_its_own_column_alone():
    steps = [replace(step(0), name=f"dsv4bench:step=0 rank={rank}", rank=rank) for rank in (0, 11)]
    ranks = [RankRow(rank, "trace.json", 1, 3, None, None) for rank in (0, 11)]
    lines = [line.split() for line in text(review_tables(review(steps=steps, ranks=ranks))).splitlines()]
    assert [line[:2] for line in lines if line[:1] == ["step=0"]] == [["step=0", "0"], ["step=0", "11"]]


@pytest.mark.parametrize(
    ("recorded", "more", "said"),
    [
        (["kernels"], {}, "the device is idle in 0.00 % of the span; 100.00 % waits for a launch"),
        (["kernels"], {"waiting_ns": None}, "the device is idle in 0.00 % of the span; how much waits for launches"),
        (["copies"], {}, None),
    ],
    ids=["all", "no-launches", "copies-alone"],
)
def test_idle_time_is_said_as_far_as_it_is_known(recorded, more, said):
    shown = text(review_tables(replace(review(steps=[step(0, **more)]), head=replace(HEAD, recorded=recorded))))
    assert said in shown if said else "idle" not in shown


def test_findings_stand_before_steps_and_the_asked_axis_between():
    tables = review_tables(review(by={"op": [group("a")], "layer": [group("b")]}, findings=[FINDING]), asked="layer")
    titles = [table.title.split(":")[0] for table in tables]
    assert titles == ["Trace trace.json", "Findings", "By layer", "Steps", "By op"]


def test_a_cut_step_is_marked_and_left_out_of_the_medians():
    steps = [step(0), step(1, span_ns=7_000_000), step(2, cut="1 kernels", kernel_sum_ns=0, span_ns=1)]
    lines = text(review_tables(review(steps=steps))).splitlines()
    assert next(line for line in lines if line.startswith("step2")).endswith("cut")
    median = next(line for line in lines if line.startswith("median"))
    assert "6.000" in median  # of 5 and 7 ms


def test_a_trace_without_steps_or_operations_has_tables_too():
    shown = text(review_tables(review(steps=[], coverage=Coverage(0, 0, 0, 0, 0, "none"))))
    assert "Steps: none" in shown
    assert "coverage: there is no device operation" in shown


@pytest.mark.parametrize(
    ("cover", "said"),
    [
        (FULL, "coverage: 100.00 % of 10 operations; method: launch correlation"),
        (replace(FULL, unattributed=10), "50.00 % of 20 operations, 10 unattributed;"),
        (replace(FULL, in_graphs=30, lost=2), "25.00 % of 40 operations, 30 in graphs, no range; 2 launches without"),
    ],
    ids=["full", "half", "graphs"],
)
def test_coverage_is_a_sentence(cover, said):
    assert said in coverage_text(cover)


def test_a_long_table_says_how_much_it_leaves_out_and_csv_has_all():
    rows = [group(f"k{at}") for at in range(MOST_KERNELS + 3)]
    assert "3 more rows" in plain(group_table("kernel", rows))
    whole = csv_text([group_table("kernel", rows, everything=True)])
    assert "more rows" not in whole
    assert whole.count("\nk") == MOST_KERNELS + 4  # with the head


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("short", "short"),
        ("void at::native::vectorized_elementwise_kernel<4, Fill>(int)", "vectorized_elemen..nel<4, Fill>(int)"),
        (
            "void (anonymous namespace)::softmax_forward<float, 10, half>(float*)",
            "softmax_forward<f..10, half>(float*)",
        ),
    ],
    ids=["short", "template", "anonymous"],
)
def test_a_kernel_is_called_by_what_tells_it_apart(name, title):
    assert kernel_title(name, 36) == title


def test_names_are_shortened_in_their_middle():
    assert shortened("abcdefghij", 8) == "abc..hij"
    assert [between(2, 2), between(0, 3)] == ["2", "0..3"]


def test_a_finding_has_its_code_numbers_and_command():
    shown = plain(finding_table([FINDING]))
    assert "wrong: graph-mode-hides-kernels: 2 replays are one row each [graph_runs=2]" in shown
    assert "-> nsys profile" in shown
    assert plain(finding_table([])) == "Findings: none\n"
    assert "graph-mode-hides-kernels,true," in csv_text([finding_table([FINDING])])


def span(value):
    return Span(float(value), value, value)


def comparison(**more):
    row = DiffRow({"op": "dequant", "kv_source": 2}, span(6), span(1), span(6_000), Span(1_000.0, 900, 1_300), 1.0, 1.0)
    fields = {
        "steps": (3, 2),
        "likeness": [Likeness("devices", "NVIDIA H200", "NVIDIA H200", True)],
        "totals": {"kernels": (span(6), span(1)), "copies": (span(0), None)},
        "rows": [row],
        "new": [],
        "gone": [],
        "more": [],
        "findings": {},
        "coverage": {"before": FULL, "after": FULL},
    }
    return TraceDiff("a/before.json", "b/after.json", "op and kv_source", **(fields | more))


def test_a_comparison_shows_counts_time_and_spread():
    shown = text(diff_tables(comparison()))
    assert "Before before.json, after after.json" in shown
    assert "dequant          2    6 -> 1  6.000 -> 1.000  -5.000 ±0.3000  100.00 %" in shown
    assert "no other kernel or copy added: true" in shown
    assert "not recorded" in shown


@pytest.mark.parametrize("steps", [(1, 1), (3, 1), (1, 2)], ids=str)
def test_a_side_of_one_step_has_no_spread(steps):
    shown = text(diff_tables(comparison(steps=steps)))
    assert "6.000 -> 1.000  -5.000  100.00 %" in shown
    assert "±" not in shown
    assert "one whole step of a side tells no spread of its times" in shown


def test_a_kernel_that_is_new_or_launched_more_often_is_added():
    change = KernelChange("gemm", 1, 2)
    assert nothing_added_text(comparison(more=[change])).endswith("false")
    assert nothing_added_text(comparison(new=[change])).endswith("false")
    assert nothing_added_text(comparison(gone=[change])).endswith("true")
    assert "Launched more often: 1" in text(diff_tables(comparison(more=[change])))


def test_nothing_is_said_of_kernels_that_were_not_recorded():
    unknown = comparison(totals={"kernels": (span(6), None)})
    assert nothing_added_text(unknown) == "no other kernel or copy added: not known, kernels were not recorded"
    assert unknown.plain()["nothing_added"] is None


@pytest.mark.parametrize(
    ("likeness", "verdict"),
    [
        (Likeness("devices", "H200", "B300", True), "NO"),
        (Likeness("format", "nsys", "kineto", False), "differs"),
        (Likeness("format", "nsys", "nsys", False), "yes"),
    ],
    ids=["refuses", "told", "alike"],
)
def test_what_is_compared_first_says_whether_it_refuses(likeness, verdict):
    lines = text(diff_tables(comparison(likeness=[likeness]))).splitlines()
    assert next(line for line in lines if line.startswith(likeness.what)).split()[-1] == verdict
