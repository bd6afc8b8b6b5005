"""Tables of projections, on cells whose every number is known."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.projection_tables import projection_tables
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.results.projected import measured_hosts, models, project
from tests.results.projections import FAST_2, PEAKS, SAME_HOST, cell, run


@pytest.fixture(scope="module")
def tables():
    """Sizes 1 to 8 and one that is launch-bound, on a GPU with another host and on one with the same; one unlike."""
    cells = [*run(), cell(0.05), cell(16, timed=False, providers={"sorter": "triton"})]
    hosts = measured_hosts(cells, PEAKS)
    found = models(cells, PEAKS)
    return projection_tables(
        [one for model in found for target in (FAST_2, SAME_HOST) for one in project(model, target, PEAKS, hosts)]
    )


def test_steps_stand_beside_what_was_measured(tables):
    lines = plain(tables[0]).splitlines()
    assert lines[0] == "Step time projected on FAST2, FAST3 (modelled) from Fast 1"
    assert lines[1].split() == ["batch", "rows", "mode", "FAST1", "ms", "FAST2", "ms", "FAST3", "ms"]
    assert [line.strip() for line in lines if "1 x 8000" in line] == [
        "1 x 8000       8000  eager     37.43        15.98        24.23",
        "1 x 8000       8000  graph     37.43        15.98        24.23",
    ]
    assert "   1 x 50    50/1024  eager    0.3000  0.9000 host  0.3000 host" in lines


def test_what_could_not_be_projected_is_a_row_with_a_reason(tables):
    text = plain(tables[0])
    assert "1 x 16000      16000  eager     74.83            -            -" in text
    assert "not projected (1 cell): sorter ran on triton, the fit is of gluon" in " ".join(text.split())
    last = next(line for line in csv_text(tables[:1]).splitlines() if line.startswith("1,16000"))
    assert last.endswith(
        ',,,skipped,"sorter ran on triton, the fit is of gluon",,,skipped,"sorter ran on triton, the fit is of gluon"'
    )


def test_what_was_scaled_and_the_error_are_said_once(tables):
    text = " ".join(plain(tables[0]).split())
    assert text.count("modelled from Fast 1, not measured") == 2  # of each GPU
    assert text.count("error on Fast 1 itself") == 1
    assert "FAST2: launches cost grace 3 x as much as x86: an assumption, not measured" in text
    assert "FAST3: launches" not in text
    assert "assumed of the other GPU" in text


def test_the_model_is_shown(tables):
    """Of 30.05 units of work on 9 cells, read takes 60.19 ms, multiply 37.7425 ms and sort 30.05 ms."""
    lines = plain(tables[1]).splitlines()
    assert [line.split() for line in lines[3:6]] == [
        ["read", "47.03", "%", "bytes", "0.500", "1.000", "2.00", "4.00"],
        ["multiply", "29.49", "%", "FLOPs", "0.800", "2.000", "4.00", "1.00"],
        ["sort", "23.48", "%", "cycles", "0.100", "0.0000", "2.00", "1.00"],
    ]
    assert "fitted on 9 profiled steps; a step takes 1.1" in plain(tables[1])


def test_peaks_are_shown_with_their_sources(tables):
    text = plain(tables[2])
    assert [line.split()[0] for line in text.splitlines()[3:8]] == ["hbm_rate", "bf16", "sms", "sm_clock", "host"]
    assert "FAST2 bf16: made up (2026-11)" in text


def test_a_peak_without_a_date_has_no_brackets():
    undated = replace(FAST_2.figures["bf16"], source="mine.toml", date="")
    target = replace(FAST_2, figures=FAST_2.figures | {"bf16": undated})
    cells = run()
    (model,) = models(cells, PEAKS)
    *_, peaks = projection_tables(project(model, target, PEAKS, measured_hosts(cells, PEAKS)))
    lines = plain(peaks).splitlines()
    assert "FAST2 bf16: mine.toml" in lines
    assert "FAST2 sms: made up (2026-11)" in lines
