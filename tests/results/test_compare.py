"""Before against after: who is paired with whom, and when a difference can be told from noise."""

from dataclasses import replace

import pytest

from dsv4bench.results.compare import (
    Pair,
    calls_left_out,
    compare,
    latest,
    pairs,
    predicted_difference_ns,
    reached_records,
)
from dsv4bench.results.record import Record
from dsv4bench.results.store import NO_TIME_LEFT
from tests.results.synthetic import counts, lost, ramp, record, row, sweep, with_side, with_variant


def of(pair):
    return tuple(one and one.key for one in (pair.before, pair.after))


def compared(before, after, **changes):
    sides = [
        record(reuse=reuse, samples_ns={"step_period": samples}, **changes)
        for reuse, samples in (("off", before), ("on", after))
    ]
    (pair,) = pairs(sides, "reuse", "off", "on")
    return compare(pair)


def test_records_that_differ_only_in_reuse_are_paired():
    found = [of(pair) for pair in pairs(sweep(), "reuse", "off", "on")]
    assert found == [
        (f"gpu-{batch}-{graph}-off", f"gpu-{batch}-{graph}-on") for batch in (1, 8, 64) for graph in (False, True)
    ]


@pytest.mark.parametrize(
    "other",
    [
        with_variant(record(), compressor="torch"),
        with_variant(record(), provider="torch"),
        record(batch=2),
        record(graph=True),
        record(group="another"),
        record(label="simulated"),
        record(ranks=4),
        record(environment={"gpu": "NVIDIA H100"}),
        record(environment={**record().environment, "commit": "another"}),
    ],
    ids=["compressor", "provider", "batch", "graph", "group", "label", "ranks", "machine", "commit"],
)
def test_anything_else_that_differs_keeps_them_apart(other):
    before = record(reuse="off")
    assert [of(pair) for pair in pairs([before, other], "reuse", "off", "on")] == [
        (before.key, None),
        (None, other.key),
    ]


def test_an_eager_step_has_no_graph_mode():
    after = with_variant(record(), **{"graph-mode": "full", "breaks": "hopper", "break-outputs": "copy"})
    assert len(pairs([record(reuse="off"), after], "reuse", "off", "on")) == 1


@pytest.mark.parametrize("form", [{"breaks": "hopper"}, {"break-outputs": "static"}], ids=str)
def test_graphs_of_another_form_are_kept_apart(form):
    shared = {"breaks": "sm100", "break-outputs": "copy"}
    before, after = record(reuse="off", graph=True), record(graph=True)
    sides = [with_variant(before, **shared), with_variant(after, **shared | form)]
    assert len(pairs(sides, "reuse", "off", "on")) == 2


def test_eager_is_paired_with_its_graph():
    eager = with_variant(record(), **{"breaks": None, "break-outputs": None})
    graph = with_variant(record(graph=True), **{"breaks": "sm100", "break-outputs": "copy"})
    assert pairs([eager, graph], "graph", False, True) == [Pair(eager, graph)]


def test_the_last_record_of_a_cell_counts():
    first, again = lost("failed", "a reason"), record()
    assert latest([first, again]) == [again]
    assert latest([again, first, record(batch=2)]) == [first, record(batch=2)]
    assert [pair.after for pair in pairs([first, again], "reuse", "off", "on")] == [again]


def test_what_a_time_limit_left_out_counts_only_where_there_is_nothing_else():
    left_out, measured = lost("skipped", NO_TIME_LEFT), record()
    assert latest([measured, left_out]) == latest([left_out, measured]) == [measured]
    assert latest([left_out, left_out]) == [left_out]


def test_what_a_later_command_measured_is_no_longer_left_out():
    """Whatever command measured it; a side of `ab` is measured by its own session, and the last left-out one stays."""
    left_out = lost("skipped", NO_TIME_LEFT, argv=["dsv4bench", "prefill", "--batch", "1,2"])
    measured, never = record(), lost("skipped", NO_TIME_LEFT, batch=2)
    again, failed = replace(never, created="2026-12-01T00:00:00+00:00"), lost("failed", "a reason", batch=4)
    assert reached_records([left_out, never, failed, measured, again]) == [failed, measured, again]
    sides = [with_side(one, side) for side in "ab" for one in (left_out, record())]
    assert reached_records(sides) == [sides[1], sides[3]]
    other = with_side(left_out, "a", session="s2")
    assert reached_records([*sides, other]) == [sides[1], sides[3], other]


def test_a_difference_has_its_interval_and_the_predicted_one_beside_it():
    found = compared(ramp(20_000_000, 10_000), ramp(19_500_000, -9_000))
    assert (found.before.value, found.after.value) == (20_000_000, 19_500_000)
    # pairs differ by -500 000 - 19 000 x (-5 .. 5); the bounds are the second smallest and the second largest
    assert (found.difference.value, found.difference.low, found.difference.high) == (-500_000, -576_000, -424_000)
    assert found.relative == pytest.approx(-0.025)
    assert found.predicted_ns == -400_000
    assert found.unresolved is None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (ramp(1000, 1, 5), ramp(500, 1, 5), "5 samples are too few"),
        (ramp(10_000_000, 100_000), ramp(10_000_000, -100_000), "the interval covers 0"),
        (ramp(20_000_000, 100_000), ramp(10_000_000, -100_000), "the prediction lies below the noise"),
        (ramp(1000, 1, 11), ramp(1000, 1, 13), "11 and 13 samples: not interleaved"),
    ],
    ids=["few", "zero", "noise", "unpaired"],
)
def test_a_difference_that_cannot_be_told_says_why(before, after, why):
    assert compared(before, after).unresolved == why


# 34 calls of 30 us, or bytes that take 141 us
LAUNCHES = {"saved_ns": 141_000.0, "saved_calls": 34, "submit_ns_a_call": 30_000.0}
BOUND = ["throttled: sw_power_cap", "launch-bound"]


def launch_bound(reuse, flags=BOUND, predicted=LAUNCHES, full=False, **changes):
    one = record(reuse=reuse, flags=flags, predicted=predicted, **changes)
    return with_variant(one, **{"graph-mode": "full"}) if full else one


def without(name):
    return {"predicted": {key: value for key, value in LAUNCHES.items() if key != name}}


@pytest.mark.parametrize(
    ("off", "on", "predicted_ns"),
    [
        ({}, {}, -34 * 30_000),
        ({"graph": True}, {"graph": True}, -34 * 30_000),
        ({"predicted": None}, {}, -34 * 30_000),  # fresh processes: no row is saved on the side without reuse
        ({"flags": []}, {}, -141_000),
        ({}, {"flags": []}, -141_000),
        ({"flags": ["rank 1: launch-bound"]}, {}, -141_000),
        ({"ranks": 2}, {"ranks": 2}, -141_000),
        ({"graph": True, "full": True}, {"graph": True, "full": True}, -141_000),
        (without("submit_ns_a_call"), without("submit_ns_a_call"), -141_000),
        (without("saved_calls"), without("saved_calls"), -141_000),
    ],
    ids=[
        *("eager", "graph", "known on one side", "only reuse on", "only reuse off", "one rank of several", "ranks"),
        *("full graph", "nothing submitted", "an older record"),
    ],
)
def test_where_the_host_paces_both_sides_the_calls_left_out_are_predicted_else_their_bytes(off, on, predicted_ns):
    before, after = launch_bound("off", **off), launch_bound("on", **on)
    assert predicted_difference_ns(before, after) == predicted_ns
    assert predicted_difference_ns(after, before) == -predicted_ns
    assert (calls_left_out(before, after) is None) == (predicted_ns == -141_000)


def test_the_calls_left_out_are_words_too():
    assert calls_left_out(launch_bound("off"), launch_bound("on")).text == "34 dequants x 30.0 us to submit one"
    assert calls_left_out(None, launch_bound("on")) is None


def test_samples_that_were_not_interleaved_have_no_difference():
    found = compared(ramp(1000, 1, 11), ramp(1000, 1, 13))
    assert (found.difference, found.relative) == (None, None)
    assert found.before.value == 1000


def test_a_side_without_a_time_has_none():
    (pair,) = pairs([record(reuse="off"), lost("wrong", "differs")], "reuse", "off", "on")
    found = compare(pair)
    assert (found.after, found.difference, found.unresolved, found.added) == (None, None, None, None)
    assert found.before.value == 20_000_000


def test_reuse_predicts_nothing_about_the_compressor():
    (pair,) = pairs([with_variant(record(), compressor="torch"), record()], "compressor", "torch", "fused")
    assert compare(pair).predicted_ns is None


def test_a_metric_may_be_chosen():
    (pair,) = pairs([record(reuse="off"), record()], "reuse", "off", "on")
    assert compare(pair, "host_submit").before.value == 900_000
    assert compare(pair, "graph_replay").before is None


def test_an_added_copy_is_found():
    after = replace(record(), counts=counts("on", extra=[row("other", 8, "eager", 0, copies=1)]))
    (pair,) = pairs([record(reuse="off"), after], "reuse", "off", "on")
    assert compare(pair).nothing_added is False
    assert compare(pair).added == ["other (kv_source 8, eager): copies 0 -> 1"]
    assert compare(*pairs(sweep()[:2], "reuse", "off", "on")).nothing_added is True


def test_a_cell_of_two_commands_is_paired_within_each():
    """Two runs of one cell were not interleaved with each other; a resumed run is the same command."""
    first = ["dsv4bench", "prefill", "--batch", "1", "--out", "a"]
    second = ["dsv4bench", "prefill", "--batch", "1,2", "--out=b"]
    resumed = ["dsv4bench", "prefill", "--batch", "1", "--resume", "a"]
    shared = {"group": "g", "samples_ns": {"step_period": [5] * 6}}

    def one(reuse, argv):
        return Record(key=f"key-{reuse}", status="ok", variant={"reuse": reuse}, argv=argv, **shared)

    runs = [one("off", first), one("on", first), one("on", second)]
    found = pairs(runs, "reuse", "off", "on")
    assert [(pair.before, pair.after) for pair in found] == [(runs[0], runs[1]), (None, runs[2])]
    again = [*runs[:2], one("off", resumed), one("on", resumed)]
    (pair,) = pairs(again, "reuse", "off", "on")
    assert (pair.before, pair.after) == (again[2], again[3])


@pytest.mark.parametrize("predicted", [{}, {"saved_ns": None}, {"saved_ns": "1"}], ids=str)
def test_a_prediction_without_a_number_is_none(predicted):
    sides = [replace(record(reuse=reuse), predicted=predicted) for reuse in ("off", "on")]
    assert compare(*pairs(sides, "reuse", "off", "on")).predicted_ns is None
