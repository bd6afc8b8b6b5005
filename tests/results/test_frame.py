"""Frames: one row per record, per comparison, per count, with the numbers that the records hold."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dsv4bench.errors import RecordError
from dsv4bench.results.frame import comparison_frame, counts_frame, device_time_frame, frame, verdict_frame
from tests.dashboards.drawn import judged
from tests.results.synthetic import lost, record, sweep, with_variant


def test_a_record_is_a_row_with_medians_and_bounds():
    (row,) = frame([record(batch=8, graph=True)]).to_dict("records")
    assert {name: row[name] for name in ("machine", "mode", "requests", "rows", "kv", "reuse", "status")} == {
        "machine": "NVIDIA H200", "mode": "graph", "requests": 8, "rows": 8192, "kv": "v41+fp4", "reuse": "on",
        "status": "ok",
    }  # fmt: skip
    assert (row["graph_replay_ns"], row["graph_replay_low_ns"], row["graph_replay_samples"]) == (
        148_000_000,
        147_964_000,
        11,
    )
    assert (row["time_ns"], row["host_submit_ns"], row["peak_bytes"]) == (148_000_000, 900_000, 3 * 2**30)
    assert row["predicted_saved_ns"] == 3_200_000


def test_a_cell_without_a_time_is_a_row_too():
    (row,) = frame([lost("refused", "too long")]).to_dict("records")
    assert (row["status"], row["reason"]) == ("refused", "too long")
    assert math.isnan(row["time_ns"])


def test_columns_have_the_types_that_their_names_ask_for():
    tree = {"name": "sglang", "commit": "abc", "dirty": False, "diff": None}
    found = frame([record(environment={"gpu": "NVIDIA H200", "commit": "c0ffee", "dirty": True, "src": tree})])
    types = {name: str(kind) for name, kind in found.dtypes.items()}
    assert {types[name] for name in ("key", "reason", "commit")} == {"string"}
    assert {types[name] for name in ("machine", "kv", "fault", "torch")} == {"category"}
    assert (types["created"], types["graph"], types["dirty"]) == ("datetime64[ns, UTC]", "boolean", "boolean")
    assert {types[name] for name in ("rows", "chunk", "peak_bytes", "host_submit_samples", "launches")} == {"Int64"}
    assert {types[name] for name in ("time_ns", "predicted_saved_ns")} == {"float64"}
    (row,) = found.to_dict("records")
    assert (row["src"], row["dirty"], row["created"].isoformat()) == ("sglang abc", True, "2026-11-30T12:01:00+00:00")
    assert row["launches"] == 4 + 38 + 38 + 2 + 2 + 80  # dequants of sources and windows, attention, two a product


def test_a_kernel_is_a_row_with_its_case():
    of_kernel = replace(record(), kernel={"name": "dequant", "case": "fp4", "rows": 512}, batch={})
    (row,) = frame([of_kernel]).to_dict("records")
    assert (row["kernel"], row["case"], row["rows"]) == ("dequant", "fp4", 512)


def test_times_without_a_clock_and_new_columns_are_typed_too():
    new = with_variant(record(), speed=3, share=0.5, quiet=True, word="a", odd=[1])
    (row,) = frame([replace(new, created="yesterday")]).to_dict("records")
    assert (row["speed"], row["share"], row["quiet"], row["word"], row["odd"]) == (3, 0.5, True, "a", "[1]")
    assert row["created"] is pd.NaT


def test_a_value_that_does_not_fit_its_column_is_one_clear_line():
    with pytest.raises(RecordError, match=r"^rows of a record: .*many"):
        frame([replace(record(), batch={"rows": "many"})])


def test_a_comparison_is_a_row_with_both_sides():
    rows = comparison_frame(sweep())
    assert len(rows) == 6
    first = rows.iloc[0]
    assert (first["before_ns"], first["after_ns"], first["difference_ns"]) == (20_000_000, 19_500_000, -500_000)
    assert (first["difference_low_ns"], first["difference_high_ns"], first["predicted_ns"]) == (
        -576_000,
        -424_000,
        -400_000,
    )
    assert first["relative"] == pytest.approx(-0.025)
    assert bool(first["nothing_added"]) is True
    refused = rows.iloc[5]
    assert (refused["before_status"], refused["after_status"]) == ("refused", "refused")
    assert math.isnan(refused["before_ns"])


def test_counts_are_rows_with_the_cell_that_they_are_of():
    rows = counts_frame([record(reuse="off"), record(reuse="on"), lost("failed", "no", key="x")])
    compressed = rows[rows["op"] == "dequant_compressed"].groupby("reuse")["calls"].sum()
    assert compressed.to_dict() == {"off": 38, "on": 4}


def test_device_times_are_rows_with_the_cell_that_they_are_of():
    rows = [{"op": "store", "kv_source": 2, "where": "segment", "device_ns": 500, "operations": 3}]
    found = device_time_frame([record(reuse="off"), record(reuse="on", device_time={"rows": rows})])
    (one,) = found.to_dict("records")
    assert (one["reuse"], one["op"], one["kv_source"], one["where"], one["device_ns"]) == (
        "on",
        "store",
        2,
        "segment",
        500,
    )


OF_RECORDS = {
    "records": frame,
    "comparisons": comparison_frame,
    "verdicts": lambda records: verdict_frame([_judged_of(one) for one in records]),
    "device times": device_time_frame,
    "counts": counts_frame,
}
DEVICE_TIME = {"rows": [{"op": "store", "kv_source": None, "where": "segment", "device_ns": 500, "operations": 3}]}


def _judged_of(one):
    verdict = judged()[0]
    side = replace(one, ab=verdict.trial.any.ab)
    return replace(verdict, trial=replace(verdict.trial, a=side, b=side))


@pytest.mark.parametrize("made", OF_RECORDS.values(), ids=OF_RECORDS)
def test_a_whole_number_that_some_rows_lack_stays_one_in_every_frame(made):
    """Ranks of `--dep` are in records of real ranks alone, and the prefix of recorded requests in none."""
    alone = replace(record(2, device_time=DEVICE_TIME), batch={**record(2).batch, "prefix": None})
    found = made([with_variant(record(1, device_time=DEVICE_TIME), dep=4), alone])
    assert {name: str(found[name].dtype) for name in ("dep", "prefix", "rows", "graph", "kv", "key")} == {
        "dep": "Int64", "prefix": "Int64", "rows": "Int64", "graph": "boolean", "kv": "category", "key": "string",
    }  # fmt: skip
    first, last = found.iloc[0], found.iloc[-1]
    assert (str(first["dep"]), str(first["prefix"]), last["dep"], last["prefix"]) == ("4", "8192", pd.NA, pd.NA)


def test_nothing_gives_empty_frames():
    assert frame([]).empty
    assert comparison_frame([]).empty
    assert counts_frame([]).empty
    assert device_time_frame([record()]).empty


def test_a_verdict_is_a_row_like_a_comparison():
    rows = verdict_frame(judged()).to_dict("records")
    first, same, *_, refused = rows
    assert (first["before_side"], first["after_side"], first["verdict"]) == ("reuse=off", "reuse=on", "FASTER")
    assert (first["before_ns"], first["before_low_ns"], first["before_high_ns"]) == (20e6, 19.9e6, 20.1e6)
    assert (first["change"], first["change_low"], first["change_high"]) == pytest.approx((-0.025, -0.026, -0.024))
    assert (first["difference_ns"], first["predicted_ns"], first["least"]) == pytest.approx((-500e3, -400e3, 0.005))
    assert (first["machine"], first["mode"], first["requests"], first["session"]) == ("NVIDIA H200", "eager", 1, "s1")
    assert (same["mode"], same["verdict"], same["aa"]) == ("graph", "SAME", False)
    assert (refused["before_status"], refused["after_status"]) == ("refused", "refused")
    assert pd.isna(refused["verdict"])
    assert np.isnan([refused[name] for name in ("before_ns", "change", "difference_ns", "predicted_ns", "least")]).all()


def test_sides_of_two_modes_say_both():
    one = judged()[0]
    graph = replace(one.trial, b=replace(one.trial.b, variant={**one.trial.b.variant, "graph": True}))
    assert verdict_frame([replace(one, trial=graph)])["mode"].item() == "eager -> graph"


def test_a_comparison_says_what_measured():
    row = comparison_frame(sweep()).iloc[0]
    assert (row["commit"], row["torch"], row["driver"]) == ("c0ffee" * 6, "2.11.0", "580.1")
