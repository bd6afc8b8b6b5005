"""The model of a step: what it is fitted to comes back, and another GPU by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.results.peaks import read_peaks
from dsv4bench.results.projection import Cell, ceiling_ns, fit, fit_host, predict, two_terms
from tests.results.projections import FAST_1, FAST_2, SAME_HOST, cell, device_ns, run, timed_row


@pytest.fixture(scope="module")
def fitted():
    return fit(run(), FAST_1)


@pytest.fixture(scope="module")
def host():
    return fit_host(run(), "x86")


def test_shares_and_fixed_costs_come_back(fitted):
    found = {op: (one.share, one.launch_ns, one.bound) for op, one in fitted.operations.items()}
    assert found["read"] == (pytest.approx(0.5), pytest.approx(1000), "bytes")
    assert found["multiply"] == (pytest.approx(0.8), pytest.approx(2000), "FLOPs")
    assert found["sort"] == (pytest.approx(0.1), pytest.approx(0, abs=1e-3), "cycles")  # below a third of both ceilings
    assert fitted.steady == pytest.approx(1.1)
    assert (fitted.machine, fitted.cells) == ("Fast 1", 8)


def test_launches_cost_the_host_what_they_did(host):
    assert (host.launch_ns, host.graph_launch_ns, host.cells) == (pytest.approx(10_000), pytest.approx(50_000), 8)


def test_a_step_on_the_same_gpu_is_what_was_measured(fitted, host):
    for one in run():
        assert predict(one, fitted, host, FAST_1).step_ns == pytest.approx(one.step_ns, rel=1e-6)


def test_another_gpu_by_hand(fitted, host):
    """Twice the bytes a second, four times the FLOPs, twice the SMs: read 8 + 0.01 ms, multiply 2.5 + 0.02, sort 4."""
    got = predict(cell(8), fitted, host, FAST_2)
    assert got.operations["read", None] == (pytest.approx(8_010_000), "bytes")
    assert got.operations["multiply", 2] == (pytest.approx(2_520_000), "FLOPs")
    assert got.operations["sort", 2] == (pytest.approx(4_000_000), "cycles")
    assert got.device_ns == pytest.approx(1.1 * 14_530_000)
    assert (got.step_ns, got.launch_bound) == (got.device_ns, False)


def test_bytes_do_not_help_what_is_bound_by_flops_or_cycles(fitted, host):
    got = predict(cell(8), fitted, host, SAME_HOST)  # four times the bytes a second, nothing else
    assert [round(ns) for ns, _ in got.operations.values()] == [4_010_000, 10_020_000, 8_000_000]


def test_an_operation_may_change_what_bounds_it():
    """An operation of 1e9 bytes and 9e10 FLOPs takes 1 ms of bytes on the first GPU, 0.9 ms of FLOPs on the third."""
    cost = (9e10, 1e9)
    assert ceiling_ns(cost, FAST_1) == (pytest.approx(1e6), "bytes")
    assert ceiling_ns(cost, SAME_HOST) == (pytest.approx(9e5), "FLOPs")


def test_a_step_is_as_long_as_the_host_needs(fitted, host):
    small = predict(cell(0.05), fitted, host, FAST_2)
    assert small.device_ns == pytest.approx(1.1 * (50_000 + 10_000 + 15_625 + 20_000 + 25_000))
    assert (small.step_ns, small.host_ns, small.launch_bound) == (small.host_ns, pytest.approx(300_000), True)
    in_graph = predict(cell(0.05, graph=True), fitted, host, FAST_2)  # ten launches and two graphs
    assert in_graph.host_ns == pytest.approx(200_000)


def test_a_launch_bound_cell_does_not_pull_at_what_a_steady_step_takes():
    """The small cell takes 300 us of host time, 2.6 times its operations: its step says nothing of the GPU."""
    small = cell(0.01)
    assert small.step_ns > 2.5 * device_ns(0.01)
    assert fit([*run(), *[small] * 9], FAST_1).steady == pytest.approx(1.1)


def test_cells_without_device_times_still_tell_the_step():
    slower = [replace_step(cell(k, timed=False), 1.3 * device_ns(k)) for k in (1, 2, 4, 8)]
    assert fit([cell(1), cell(8), *slower], FAST_1).steady == pytest.approx(1.3)
    assert fit(slower, FAST_1) is None


PARTIAL = {
    "an operation without a range": {"coverage": {"attributed": 20, "unattributed": 10}},
    "launches without a kernel": {"coverage": {"attributed": 30, "lost": 1}},
    "two counts that disagree": {"coverage": {"attributed": 30, "disagreement": "20 and 30 of sort"}},
    "a graph's nodes without a place": {"coverage": {"attributed": 30, "unattributed": 0}, "unattributed_ns": 5},
}


@pytest.mark.parametrize("seen", PARTIAL.values(), ids=PARTIAL)
def test_device_times_that_are_not_whole_are_left_out_of_the_fit(seen):
    """A step with all counts but a tenth of the times would pull every share up; its own step time still tells."""
    times = [{**one, "device_ns": one["device_ns"] // 10} for one in cell(2).record.device_time["rows"]]
    unattributed = {"unattributed_ns": seen.get("unattributed_ns", 0)}
    torn = cell(2, coverage=seen["coverage"], device_time={"rows": times, **unattributed})
    assert (torn.timed, torn.partial, cell(2).timed, cell(2).partial) == (False, True, True, False)
    found, clean = fit([*run(), torn], FAST_1), fit(run(), FAST_1)
    assert (found.operations, found.cells, found.steady) == (clean.operations, 8, pytest.approx(1.1))
    assert fit([torn], FAST_1) is None


def replace_step(one, step_ns):
    samples = {**one.record.samples_ns, "step_period": [round(step_ns)]}
    return Cell(replace(one.record, samples_ns=samples), one.costs)


def test_a_time_that_does_not_grow_has_no_share():
    """Ten launches take 10 us whatever they do."""
    fixed = {"rows": [{**timed_row(1, "read", None, "eager"), "device_ns": 10_000}]}
    made = [Cell(replace(cell(k).record, device_time=fixed), cell(k).costs) for k in (1, 2, 4)]
    one = fit(made, FAST_1).operations["read"]
    assert (one.share, one.launch_ns) == (None, pytest.approx(1000))
    assert predict_only(made[0], one).operations["read", None][0] == pytest.approx(10_000)


def predict_only(made, operation):
    only = replace(made.record, counts=[one for one in made.record.counts if one["op"] == "read"])
    fitted = replace(fit([made], FAST_1), operations={"read": operation})
    return predict(Cell(only, made.costs), fitted, fit_host([made], "x86"), FAST_2)


@given(
    st.lists(
        st.tuples(st.floats(1, 1e6), st.integers(1, 1000)), min_size=3, max_size=8, unique_by=lambda pair: pair[0]
    ),
    st.floats(0.1, 50),
    st.floats(0, 1e4),
)
def test_two_terms_are_never_negative_and_exact_where_they_can_be(pairs, slope, offset):
    first, second = [one for one, _ in pairs], [two for _, two in pairs]
    times = [slope * one + offset * two for one, two in pairs]
    found = two_terms(first, second, times)
    assert min(found) >= 0
    assert [found[0] * one + found[1] * two for one, two in pairs] == pytest.approx(times, rel=1e-4)


def test_two_terms_where_a_fit_would_be_negative():
    """Times that grow faster than their work: the best with a fixed cost of at least 0 has none."""
    slope, offset = two_terms([1, 2, 4], [1, 1, 1], [1, 3, 9])
    assert offset == 0
    ratios = [1 / 1, 2 / 3, 4 / 9]
    assert slope == pytest.approx(sum(ratios) / sum(one * one for one in ratios))


REFUSED = {
    "kernels of unknown origin": ({"providers": {}}, "does not say whose kernels ran"),
    "another provider": ({"providers": {"sorter": "triton"}}, "sorter ran on triton, the fit is of gluon"),
    "not counted": ({"counts": []}, "does not say how many kernels ran"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_cell_that_the_fit_does_not_speak_of(fitted, changes, reason):
    assert reason in fitted.why_not(cell(1, **changes))


def test_an_operation_that_nobody_timed(fitted):
    new = cell(1)
    counts = [*new.record.counts, {**new.record.counts[0], "op": "sorted"}]
    reason = fitted.why_not(Cell(replace(new.record, counts=counts), new.costs))
    assert reason == "operation sorted was in no profiled step of the fit (did you mean 'sort'?)"
    counts = [*new.record.counts, {**new.record.counts[0], "kv_source": 8}]
    reason = fitted.why_not(Cell(replace(new.record, counts=counts), new.costs))
    assert reason == "the model has no cost of operation read of kv_source 8"
    assert fitted.why_not(Cell(new.record, {}, "its lengths are not known")) == "its lengths are not known"
    assert fitted.why_not(new) is None


# What others published of one kernel on two GPUs: the share of the first carried over to the second. docs/projection.md
PUBLISHED = {
    "FlashMLA sparse prefill, H800 to B200": (640e12, "h100", 1450e12, "b200", 0.01),
    "torch Linear, H100 to GB200": (686.7e12, "h100", 1644e12, "gb200", 0.06),
    "our GEMMs at 0.74, H200 to GB300": (0.74 * 989.4e12, "h200", 1755e12, "gb300", 0.06),  # 1,665 to 1,845
}


@pytest.mark.parametrize(("rate", "of", "other_rate", "other", "within"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_shares_carry_over(rate, of, other_rate, other, within):
    peaks = read_peaks()
    scaled = rate / peaks.device(of).value("bf16") * peaks.device(other).value("bf16")
    assert scaled == pytest.approx(other_rate, rel=within)
