"""How much of a difference the removed work explains, in one line."""

from dataclasses import replace

import pytest

from dsv4bench.results.explanation import explained
from dsv4bench.results.verdict import judge
from tests.results.synthetic import CPU, counts, lost, with_side
from tests.results.test_verdict import around, trial

COUNTED = "34 launches less a forward"  # 38 dequants without reuse, 4 with it


def line(ppm, saved_ns, before=(), after=(), scatter=None, **changes):
    one = trial(around(ppm, *(scatter or [])), saved_ns=saved_ns, **changes)
    before, after = before or counts("off"), after or counts("on")
    return explained(judge([replace(one, a=replace(one.a, counts=before), b=replace(one.b, counts=after))])[0])


def test_where_the_host_paces_both_sides_its_time_is_what_explains():
    one = trial(around(-20_000), saved_ns=100_000)
    flags, calls = ["launch-bound"], {"saved_calls": 10, "submit_ns_a_call": 30_000}
    a, b = (replace(side, flags=flags, predicted=side.predicted | calls) for side in (one.a, one.b))
    (verdict,) = judge([replace(one, a=a, b=b)])
    assert (verdict.predicted_ns, verdict.marks) == (-300_000, ())  # the bytes alone would leave it unexplained
    assert explained(verdict).endswith(
        "measured -400.0 us [-410.0 us, -390.0 us], predicted -300.0 us (launch-bound: 10 dequants x 30.0 us to submit"
        " one): the removed work explains 75% of it"
    )


def test_one_pair_has_no_interval():
    (verdict,) = judge([trial([-20_000], saved_ns=300_000)])
    assert "measured -400.0 us, predicted -300.0 us" in explained(verdict)


WILD = [[-80, -60, -40, -20, 0, 20, 40, 60, 80]]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            line(-20_000, 300_000),
            f"{COUNTED}, 1.000 MiB less (modelled): measured -400.0 us [-410.0 us, -390.0 us], predicted -300.0 us:"
            " the removed work explains 75% of it",
        ),
        (
            line(20_000, 300_000),
            f"{COUNTED}, 1.000 MiB less (modelled): measured 400.0 us [390.0 us, 410.0 us], predicted -300.0 us:"
            " the removed work explains the opposite",
        ),
        (
            line(0, 300_000, scatter=WILD),
            f"{COUNTED}, 1.000 MiB less (modelled): measured 0 ns [-100.0 us, 100.0 us], predicted -300.0 us:"
            " the interval covers 0, nothing to explain",
        ),
        (
            line(-20_000, None),
            f"{COUNTED}: measured -400.0 us [-410.0 us, -390.0 us]; no time is predicted for this change",
        ),
    ],
    ids=["gain", "loss", "nothing", "no prediction"],
)
def test_a_difference_stands_beside_the_removed_work(said, text):
    assert said == text


@pytest.mark.parametrize(
    ("before", "after", "start"),
    [
        (counts("on"), counts("off"), "34 launches more a forward"),
        (counts("on"), counts("on"), "0 launches less a forward"),
        (counts("off", device=False), counts("on", device=False), "34 calls less a forward"),
        (counts("off"), counts("on", device=False), "launches not counted"),
        ([{"op": "store", "kv_source": 2, "where": "eager"}], counts("on"), "launches not counted"),
    ],
    ids=["more", "none", "calls", "unlike", "uncounted"],
)
def test_launches_are_counted_as_far_as_both_sides_were(before, after, start):
    assert line(-20_000, 300_000, before, after).startswith(f"{start}, 1.000 MiB less")


def test_bytes_grow_where_reuse_goes_away():
    one = trial(around(20_000), saved_ns=300_000)
    back = replace(one, a=one.b, b=one.a)
    assert "1.000 MiB more (modelled)" in explained(judge([back])[0])


def test_a_side_that_was_wrong_explains_nothing():
    one = trial([])
    wrong = with_side(lost("wrong", "differs", environment=CPU), "b")
    assert explained(judge([replace(one, b=wrong)])[0]) == "nothing to explain: b: wrong: differs"
