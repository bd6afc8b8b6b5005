"""Errors of single operations on other GPUs, on a fit whose every number is known."""

from dataclasses import replace

import pytest

from dsv4bench.results.peaks import read_peaks
from dsv4bench.results.projected import models
from dsv4bench.results.published import Published, errors_elsewhere, read_published
from tests.results.projections import PEAKS, run

# on fast-2, of twice the HBM rate and SMs and four times the FLOPs, the model says
PREDICTED_US = {
    "bytes": ("read", 0, 10**9, 10, 1_010),  # 0.5 ms at the ceiling, half of which is reached, 10 launches of 1 us
    "FLOPs": ("multiply", 10**11, 0, 0, 312.5),  # 0.25 ms at the ceiling, 0.8 of which is reached
    "cycles": ("sort", 0, 10**8, 0, 500),  # 0.1 ms at the ceiling here, a tenth of which is reached, twice the cycles
}


def fit():
    (model,) = models(run(), PEAKS)
    return model.fit


def figure(op="read", flops=0, moved=10**9, launches=10, time_us=1_010.0, device="fast2"):
    return Published(device, op, flops, moved, launches, time_us * 1e3, "a page", "2026-11")


@pytest.mark.parametrize(("op", "flops", "moved", "launches", "time_us"), PREDICTED_US.values(), ids=PREDICTED_US)
@pytest.mark.parametrize("times", [1, 2, 0.8], ids=["as predicted", "twice as long", "shorter"])
def test_the_error_is_predicted_over_published_time(op, flops, moved, launches, time_us, times):
    one = figure(op, flops, moved, launches, time_us * times)
    ((found, error),) = errors_elsewhere(fit(), PEAKS, [one])
    assert found is one
    assert error == pytest.approx(1 / times - 1)


@pytest.mark.parametrize(
    "changes", [{"device": "fast1"}, {"device": "fast9"}, {"op": "write"}], ids=["the GPU itself", "no GPU", "no op"]
)
def test_what_was_not_fitted_on_another_gpu_has_no_error(changes):
    assert errors_elsewhere(fit(), PEAKS, [replace(figure(), **changes)]) == []


def test_a_model_says_its_errors_by_gpu_and_operation():
    (model,) = models(run(), PEAKS)
    figures = [figure(), figure(time_us=2_020), figure("sort", 0, 10**8, 0, 400), figure(device="fast3", time_us=255)]
    said = replace(model, elsewhere=errors_elsewhere(model.fit, PEAKS, figures)).elsewhere_text
    # fast-3 reads 4 times as fast: 500 us and 10 of launches
    assert said.endswith(": FAST2 read +0 % and -50 %, sort +25 %; FAST3 read +100 %")


def test_the_shipped_figures_are_of_known_gpus_with_a_source_and_a_date():
    found = read_published()
    assert {one.device for one in found} <= set(read_peaks().devices)
    assert all(one.source and one.date and one.time_ns > 0 and one.flops + one.moved_bytes > 0 for one in found)
    fill = next(one for one in found if one.op == "break_copy")
    assert (fill.device, fill.moved_bytes, fill.launches, fill.time_ns) == ("b300", 260 * 2**20, 1, 44_000)
