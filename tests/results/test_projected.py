"""Projections as records: labelled, with their measured error, and out of every comparison and verdict."""

from dataclasses import replace

import pytest

from dsv4bench.results.compare import compare, latest, pairs
from dsv4bench.results.frame import frame
from dsv4bench.results.projected import held_out, measured_hosts, models, project, record
from dsv4bench.results.projection import Cell
from dsv4bench.results.schema import decode, encode
from dsv4bench.results.trials import trials
from tests.results.projections import FAST_1, FAST_2, PEAKS, SAME_HOST, cell, run
from tests.results.synthetic import with_side, with_variant

ARGV, CREATED = ("dsv4bench", "project", "results/run"), "2026-11-30T12:00:00+00:00"


def projected(target=FAST_2, cells=None):
    cells = cells or run()
    (model,) = models(cells, PEAKS)
    return project(model, target, PEAKS, measured_hosts(cells, PEAKS))


def records(target=FAST_2, cells=None):
    return [record(one, ARGV, CREATED) for one in projected(target, cells)]


def test_a_record_says_that_it_is_modelled_and_from_what():
    measured, found = cell(8).record, records()[-2]
    assert (found.label, found.engine, found.status, found.machine) == ("modelled", "gpu", "ok", "FAST2 (modelled)")
    assert found.environment["modelled_from"] == "Fast 1"
    assert found.environment["commit"] == measured.environment["commit"]
    assert (found.geometry, found.batch, found.variant) == (measured.geometry, measured.batch, measured.variant)
    assert found.samples_ns == {"step_period": [15_983_000], "host_submit": [900_000]}  # 1.1 x 14.53 ms; 3 x 30 x 10 us
    assert found.note[0] == (
        "modelled from Fast 1, not measured: bytes 1e+12 -> 2e+12; FLOPs 1e+14 -> 4e+14; SMs x clock x 2"
    )
    assert found.note[1].startswith("error on Fast 1 itself, of cells that the fit had not seen: eager median 0.00 %")
    assert found.note[2] == "error on other GPUs: of steps not known"
    assert found.note[3] == "launches cost grace 3 x as much as x86: an assumption, not measured"
    assert (found.argv, found.created) == (list(ARGV), CREATED)
    assert (found.counts, found.checks, found.memory, found.device_time) == ([], [], {}, None)


def test_a_record_holds_its_operations_and_survives_its_file():
    found = records()[-2]
    assert [(one["op"], one["bound"], round(one["device_ns"])) for one in found.projection["operations"]] == [
        ("read", "bytes", 8_010_000),
        ("sort", "cycles", 4_000_000),
        ("multiply", "FLOPs", 2_520_000),
    ]
    assert found.projection["device_ns"] == pytest.approx(15_983_000)
    assert decode(encode(found), "here") == found


def test_a_host_of_the_same_kind_is_not_scaled():
    found = records(SAME_HOST)[-2]
    assert found.samples_ns["host_submit"] == [300_000]
    assert len(found.note) == 3


def test_a_host_that_was_measured_is_no_assumption():
    """A Grace machine without device times gives what launches cost there: twice as much, not the assumed 3 x."""
    elsewhere = {"gpu": "Fast 2", "cpu": "Grace"}
    grace = [cell(k, graph, timed=False, environment=elsewhere) for k in (1, 2) for graph in (False, True)]
    grace = [Cell(replace(one.record, samples_ns=twice(one.record.samples_ns)), one.costs) for one in grace]
    peaks = replace(PEAKS, devices={**PEAKS.devices, "fast2": replace(FAST_2, names=("Fast 2",))})
    cells = [*run(), *grace]
    (model,) = models(cells, peaks)
    found = project(model, peaks.device("fast2"), peaks, measured_hosts(cells, peaks))
    assert {one.assumed for one in found} == {None}
    assert {round(one.prediction.host_ns) for one in found} == {600_000, 2 * (100_000 + 100_000)}


def twice(samples):
    return {**samples, "host_submit": [2 * one for one in samples["host_submit"]]}


def test_launch_bound_is_flagged():
    found = records(cells=[*run(), cell(0.05)])
    assert [one.flags for one in found[-2:]] == [[], ["launch-bound"]]


def test_a_cell_that_cannot_be_predicted_is_a_row_with_its_reason():
    found = records(cells=[*run(), cell(16, timed=False, providers={"sorter": "triton"})])[-1]
    assert (found.status, found.label, found.samples_ns) == ("skipped", "modelled", {})
    assert found.reason == "sorter ran on triton, the fit is of gluon"


def test_other_providers_have_a_model_of_their_own():
    """Two cells whose sorter is another one, twice as fast, do not change the model of the rest."""
    quick = [cell(k, providers={"sorter": "triton"}) for k in (1, 4)]
    quick = [Cell(replace(one.record, device_time=halved(one.record.device_time)), one.costs) for one in quick]
    first, second = models([*run(), *quick], PEAKS)
    assert [model.fit.operations["sort"].share for model in (first, second)] == pytest.approx([0.1, 0.2])
    assert [len(model.cells) for model in (first, second)] == [8, 2]


def halved(seen):
    return {
        "rows": [{**one, "device_ns": one["device_ns"] // (2 if one["op"] == "sort" else 1)} for one in seen["rows"]]
    }


def test_device_times_that_are_not_whole_are_left_out_and_said():
    torn = cell(16, coverage={"attributed": 20, "unattributed": 10})
    said = (
        "device times left out of the fit (1 cell): a part of what ran in their profiled step has no place, so times"
        " of its operations are missing"
    )
    (model,) = models([*run(), torn], PEAKS)
    assert (model.fit.cells, model.left_out_text) == (8, [said])
    assert said in records(cells=[*run(), torn])[0].note
    assert models(run(), PEAKS)[0].left_out_text == []
    assert models([torn], PEAKS) == []


def test_every_target_has_records_of_its_own():
    keys = [one.key for target in (FAST_1, FAST_2) for one in records(target)]
    assert len(set(keys)) == len(keys) == 16


def test_nothing_is_modelled_without_device_times():
    assert models([cell(k, timed=False) for k in (1, 2)], PEAKS) == []


# how wrong the model is, where that can be measured


def test_the_error_is_that_of_cells_which_the_fit_has_not_seen():
    """Sizes 1 and 4 predict 2 and 8, and the other way round: exactly, but for the one that took 10 % longer."""
    slow = cell(8)
    step = slow.record.samples_ns["step_period"][0]
    late = replace(slow.record, samples_ns={**slow.record.samples_ns, "step_period": [round(1.1 * step)]})
    cells = [cell(1), cell(2), cell(4), Cell(late, slow.costs), cell(1, graph=True), cell(2, graph=True)]
    found = held_out(cells, FAST_1)
    assert {what: error.cells for what, error in found.items()} == {"eager": 4, "graph": 2, "host submit": 6}
    assert found["graph"].median == pytest.approx(0, abs=1e-6)
    # 0, 0, 0 and 1 - 1 / 1.1: the 90th percentile lies 0.7 of the way from the third to the fourth
    assert found["eager"].median == pytest.approx(0, abs=1e-6)
    assert found["eager"].most == pytest.approx(0.7 * (1 - 1 / 1.1))
    assert found["host submit"].most == pytest.approx(0, abs=1e-6)


def test_one_workload_measures_no_error():
    (model,) = models([cell(4), cell(4, graph=True)], PEAKS)
    assert model.errors == {}
    assert "not measured, which needs two workloads" in model.errors_text


# no comparison, no verdict


def sides():
    """The same cells with reuse off and on, measured, as the sides of a trial."""
    off = [with_variant(one.record, reuse="off") for one in run()]
    on = [one.record for one in run()]
    made = [with_side(one, "a") for one in off] + [with_side(one, "b") for one in on]
    return [Cell(one, cell(4).costs) for one in made]


def test_a_projection_is_no_side_of_a_trial():
    cells = sides()
    measured = trials([one.record for one in cells])
    assert len(measured) == len(run())
    found = records(cells=cells)
    assert [one.ab for one in found] == [None] * len(cells)
    assert trials(found) == []
    forged = [replace(one, ab=two.record.ab) for one, two in zip(found, cells, strict=True)]
    assert trials(forged) == []
    assert trials([*(one.record for one in cells), *forged]) == measured


def test_a_projection_never_pairs_with_a_measurement():
    cells = sides()
    found = records(cells=cells)
    both = latest([*(one.record for one in cells), *found])
    assert len(both) == len(cells) + len(found)
    for pair in pairs(both, "reuse", "off", "on"):
        assert len({one.label for one in pair.records}) == 1


def test_a_modelled_difference_is_never_resolved():
    modelled = pairs(records(cells=sides()), "reuse", "off", "on")
    assert {compare(pair).unresolved for pair in modelled} == {"modelled, not measured"}


def test_the_frame_says_which_rows_are_modelled():
    found = frame([*(one.record for one in run()), *records()])
    assert found["label"].value_counts().to_dict() == {"measured": 8, "modelled": 8}
