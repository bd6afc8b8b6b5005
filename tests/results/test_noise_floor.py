"""What A/A trials say of a machine, and what a cell can resolve before it runs."""

from math import sqrt

import pytest

from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.noise_floor import false_rate, noise_floor, resolvable_ns
from tests.results.test_verdict import A_NS, STEADY, around, trial

SHARE = MinEffect(relative=0.005)


def test_only_trials_of_equal_sides_tell_the_noise():
    trials = [trial(around(-20_000)), trial(around(300), aa=True), trial(around(0), aa=True)]
    assert [floor.verdict.trial for floor in noise_floor(trials)] == trials[1:]
    assert noise_floor(trials[:1]) == []


def test_a_floor_names_the_smallest_difference_that_would_have_been_named():
    (floor,) = noise_floor([trial(around(300), aa=True)])
    # 0.03 % of 20 ms and 10 us on either side: from -4 to 16 us; and the least effect of 100 us
    assert (floor.verdict.difference_ns.low, floor.verdict.difference_ns.high) == (-4_000, 16_000)
    assert floor.smallest_ns == 116_000
    assert floor.smallest == pytest.approx(116_000 / A_NS)
    assert not floor.false


def test_too_few_pairs_have_no_floor():
    (floor,) = noise_floor([trial([0] * 5, aa=True)])
    assert (floor.smallest_ns, floor.smallest, floor.false) == (None, None, False)


def test_pairs_that_could_not_name_anything_among_so_many_cells_have_no_floor():
    """Of two cells the first must have a p of 0.025: seven pairs have one of 2^-6, six one of 2^-5."""
    six, seven = (trial(around(300)[:pairs], aa=True) for pairs in (6, 7))
    assert [floor.smallest is None for floor in noise_floor([six, seven])] == [True, False]
    assert [floor.smallest is None for floor in (*noise_floor([six]), *noise_floor([seven]))] == [False, False]


def test_noise_that_was_named_is_a_false_verdict():
    floors = noise_floor([trial(around(ppm), aa=True) for ppm in (0, -20_000, 0, 20_000, 0)])
    assert [floor.false for floor in floors] == [False, True, False, True, False]
    assert false_rate(floors) == 0.4
    assert false_rate([]) is None


@pytest.mark.parametrize(
    ("effect", "pairs", "block", "expected_ns"),
    [
        # t of 8 degrees is 2.306; 1 % of 10 ms a sample, sqrt(2) of it for a difference
        (SHARE, 9, 1, 50_000 + 2.306 * 100_000 * sqrt(2 / 9)),
        (SHARE, 9, 16, 50_000 + 2.306 * 100_000 * sqrt(2 / 144) * 1.25),
        (MinEffect(absolute_ns=7_000), 64, 2, 7_000 + 1.998 * 100_000 * sqrt(2 / 128)),
        (SHARE, 1, 1, 50_000 + 12.706 * 100_000 * sqrt(2)),
    ],
    ids=["nine", "blocks", "time", "one"],
)
def test_what_a_cell_will_resolve_is_foretold(effect, pairs, block, expected_ns):
    assert resolvable_ns(10**7, effect, pairs, block, noise=0.01) == pytest.approx(expected_ns, rel=1e-3)


def test_more_noise_resolves_less():
    assert resolvable_ns(10**7, SHARE, 9, 10, noise=0.02) > resolvable_ns(10**7, SHARE, 9, 10) > 50_000
    assert len(STEADY) == 9
