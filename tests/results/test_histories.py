"""Histories: which records are one cell, in which order, and how options choose among them."""

from dataclasses import replace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.results.frame import frame
from dsv4bench.results.frame_cache import read_frame
from dsv4bench.results.histories import histories
from dsv4bench.results.store import NO_TIME_LEFT
from tests.results.synthetic import GPU, lost, ramp, record, with_side, with_variant
from tests.source_tree import ROOT


def at(minute, commit="a", **changes):
    return record(
        created=f"2026-11-30T12:{minute:02d}:00+00:00",
        environment={**GPU, "commit": commit * 40, **changes.pop("environment", {})},
        **changes,
    )


def found(records, **wanted):
    return histories(frame(records), wanted)


def test_records_of_a_cell_are_one_history_whatever_the_commit():
    first, second = found([at(3, "b"), at(1), at(2, batch=8)])
    assert [row["commit"][0] for row in first.rows] == ["b", "a"]  # in the order of the frame
    assert (first.cell["requests"], second.cell["requests"], len(second.rows)) == (1, 8, 1)
    assert first.rows[0]["time_ns"] == 19_500_000
    assert first.rows[0]["launches"] == 164
    assert "breaks" not in first.cell  # what a cell does not have is not said of it


def test_a_cell_of_another_machine_or_switch_is_another_history():
    records = [at(1), at(2, environment={"gpu": "NVIDIA B300"}), with_variant(at(3), kv="v4"), at(4, label="simulated")]
    assert len(found(records)) == 4


def test_pools_of_a_fraction_are_another_history():
    sized = [with_variant(at(minute), **{"mem-fraction": share}) for minute, share in ((2, 0.7), (3, 0.7), (4, 0.8))]
    first, *_ = cells = found([at(1), *sized])
    assert sorted(len(one.rows) for one in cells) == [1, 1, 2]
    assert first.cell["mem-fraction"] == 0.7
    assert sum("mem-fraction" in one.cell for one in cells) == 2


@pytest.mark.parametrize("changed", [{"align": "free"}, {"dep": 2}], ids=["ranks that align nothing", "real ranks"])
def test_ranks_that_run_in_another_way_are_another_history(changed):
    first, second = found([at(1), with_variant(at(2), **changed)])
    assert [name in one.cell for one in (first, second) for name in changed] == [False, True]


def test_the_folder_of_a_requests_file_is_no_part_of_a_cell():
    records = [at(1), at(2)]
    for one, source in zip(records, ("here/lengths.jsonl", "lengths.jsonl"), strict=True):
        one.batch["source"] = source
    (one,) = found(records)
    assert one.cell["source"] == "lengths.jsonl"


def test_a_record_without_a_time_is_a_row_with_its_reason():
    (one,) = found([at(1), lost("failed", "no memory", created="2026-11-30T12:02:00+00:00")])
    assert [(row["status"], row["reason"], row["time_ns"]) for row in one.rows][1] == ("failed", "no memory", None)


def test_what_a_time_limit_left_out_and_a_later_command_measured_is_one_row():
    left_out = [lost("skipped", NO_TIME_LEFT, created=f"2026-11-30T12:0{minute}:00+00:00") for minute in (1, 2)]
    (one,) = found([*left_out, at(3)])
    assert [row["status"] for row in one.rows] == ["ok"]
    (never,) = found(left_out)
    assert [(row["status"], row["created"].minute) for row in never.rows] == [("skipped", 2)]
    (other,) = found([at(1), replace(left_out[1], key="of another commit")])
    assert [row["status"] for row in other.rows] == ["ok", "skipped"]


def test_options_choose_cells():
    records = [at(1, batch=batch, reuse=reuse) for batch in (1, 8) for reuse in ("off", "on")]
    (one,) = found(records, batch=[8], reuse=["on"])
    assert (one.cell["requests"], one.cell["reuse"]) == (8, "on")
    assert len(found(records, batch=[1, 8])) == 4
    assert len(found(records, mode=["eager"])) == 4


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kv": ["v5"]}, r"--kv v5: no such record; there are: v41\+fp4"),
        ({"reuse": ["ON"]}, r"--reuse ON: no such record; there are: on"),
        ({"batch": [2]}, "--batch 2: no such record; there are: 1"),
        ({"kernel": ["dequant"]}, "--kernel dequant: no such record; these have none"),
        ({"mode": ["eagr"]}, r"--mode eagr: no such record \(did you mean 'eager'\?\); there are: eager"),
    ],
    ids=["word", "case", "number", "column", "nearest"],
)
def test_a_value_that_no_record_has_is_named(wanted, message):
    with pytest.raises(UsageError, match=message):
        found([at(1)], **wanted)


def test_kernels_are_cells_too():
    kernel = {"name": "dequant", "case": "fp4", "rows": 512, "provider": "triton"}
    alone = replace(at(1), kernel=kernel, batch={}, geometry="", variant={"provider": "triton", "seed": 0}, counts=[])
    (one,) = found([alone, replace(alone, created="2026-11-30T13:00:00+00:00")])
    assert (one.cell["kernel"], one.cell["case"], one.cell["rows"], len(one.rows)) == ("dequant", "fp4", 512, 2)


def test_committed_runs_have_histories(tmp_path):
    whole = read_frame([ROOT / "results" / name for name in ("h200-default", "h200-graph-static")], tmp_path).frame
    several = [one for one in histories(whole, {"reuse": ["on"]}) if len(one.rows) > 1]
    assert [one.cell["requests"] for one in several] == [1, 2, 4, 8, 16, 32]
    assert all([row["commit"][:7] for row in one.rows] == ["4867f65", "c7f3677"] for one in several)


def process(minute, side, pair, middle_us, session="s1"):
    """One fresh process of a side of an A/B."""
    one = at(minute, samples_ns={"step_period": ramp(middle_us * 1000)})
    return with_side(one, side, session=session, pair=pair, place=0)


def test_the_processes_of_a_side_are_one_row_with_the_median_of_their_times():
    times = {"a": (20, 24, 21), "b": (18, 17, 19)}
    records = [process(2 * pair + (side == "b"), side, pair, times[side][pair]) for pair in range(3) for side in "ab"]
    (one,) = found([*records, process(9, "a", 0, 30, session="s2"), at(10)])
    seen = [tuple(row[name] for name in ("session", "side", "processes", "time_ns")) for row in one.rows]
    assert seen == [
        ("s1", "a", 3, 21_000),
        ("s1", "b", 3, 18_000),
        ("s2", "a", 1, 30_000),
        (None, None, None, 19_500_000),
    ]
    assert [one.rows[0][name] for name in ("time_low_ns", "time_high_ns")] == [20_000, 24_000]  # 3 reach no 95 %
    assert one.rows[1]["created"].minute == 1


def test_a_process_that_failed_is_a_row_of_its_own():
    gone = with_side(lost("failed", "boom", created="2026-11-30T12:02:00+00:00"), "a", pair=1, place=0)
    (one,) = found([process(1, "a", 0, 20), gone, process(3, "a", 2, 22)])
    assert [(row["status"], row["processes"], row["time_ns"]) for row in one.rows] == [
        ("ok", 2, 21_000),
        ("failed", 1, None),
    ]
