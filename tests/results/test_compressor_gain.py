"""What a change of the ratio-2 compressor is predicted to save: what it takes alone, times its sources."""

from dataclasses import replace

import pytest

from dsv4bench.results.compressor_gain import compressor_gain
from dsv4bench.results.explanation import explained
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import judge
from tests.results.synthetic import ramp, record, row, with_side, with_variant

ALONE_NS = {"torch": [433_600] * 9 + [10**9], "fused": [22_200] * 10}  # one sample is an outlier
SOURCES = (2, 8, 14)


def side(compressor, **changes):
    op = {"torch": "compress_pool", "fused": "compress_c2"}[compressor]
    step = ramp(20_000_000 if compressor == "torch" else 18_800_000, count=20)
    made = record(
        samples_ns={"graph_replay": step, "compressor": ALONE_NS[compressor]},
        graph=True,
        counts=[row("compress_c1", 20, "segment", 1), *(row(op, source, "segment", 1) for source in SOURCES)],
    )
    return with_variant(replace(made, **changes), compressor=compressor)


def test_each_source_saves_what_one_takes_less_alone():
    gain = compressor_gain(side("torch"), side("fused"))
    assert (gain.sources, gain.before_ns, gain.after_ns) == (3, 433_600, 22_200)
    assert gain.difference_ns == -1_234_200
    assert gain.text == "3 sources x (433.6 us -> 22.20 us alone)"
    assert compressor_gain(side("fused"), side("torch")).difference_ns == 1_234_200


@pytest.mark.parametrize(
    "changes",
    [
        {"samples_ns": {"step_period": [20_000_000] * 9}},
        {"ranks": 2},
        {"batch": {**record().batch, "forwards": 2}},
    ],
    ids=["eager: nothing alone", "the slowest of two ranks", "two forwards"],
)
@pytest.mark.parametrize("other", [False, True], ids=["a", "b"])
def test_where_the_alone_time_is_not_a_step_s_nothing_is_predicted(changes, other):
    sides = [side("torch", **({} if other else changes)), side("fused", **(changes if other else {}))]
    assert compressor_gain(*sides) is None
    assert compressor_gain(sides[0], None) is None


def test_the_prediction_stands_beside_the_measured_difference():
    switches = ("compressor=torch", "compressor=fused")
    cells = [with_side(side(name), letter, switches) for name, letter in (("torch", "a"), ("fused", "b"))]
    (verdict,) = judge(trials(cells))
    assert verdict.predicted_ns == -1_234_200
    said = explained(verdict)
    assert "predicted -1.234 ms (3 sources x (433.6 us -> 22.20 us alone)): the removed work explains 103%" in said
    assert "less (modelled)" not in said  # bytes are predicted of reuse alone
