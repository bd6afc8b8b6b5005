"""Two stored runs: which records meet, what is refused, and what times and launches earn which word."""

from dataclasses import replace

import pytest

from dsv4bench.results.store import NO_TIME_LEFT, read_records
from dsv4bench.results.stored import LEAST, TWO_MACHINES, compare_stored
from tests.results.synthetic import GPU, counts, lost, ramp, record, row, sweep, with_side, with_variant
from tests.source_tree import ROOT

COMMITS = {"old": "a" * 40, "new": "b" * 40}


def run(middle_ns=20_000_000, commit="old", step_ns=1000, number=11, **changes):
    """One cell, batch 1 eager, that took `middle_ns`."""
    here = {**GPU, "commit": COMMITS.get(commit, commit), **changes.pop("environment", {})}
    return record(samples_ns={"step_period": ramp(middle_ns, step_ns, number)}, environment=here, **changes)


def only(before, after, **asked):
    (cell,) = compare_stored(before, after, **asked)
    return cell


WORDS = {
    "slower": (20_600_000, 1000, "SLOWER"),
    "faster": (19_400_000, 1000, "FASTER"),
    "same": (20_020_000, 1000, "SAME"),
    "between": (20_400_000, 40_000, "INCONCLUSIVE"),
    "noisy": (20_000_000, 400_000, "INCONCLUSIVE"),
}


@pytest.mark.parametrize(("middle", "step", "word"), WORDS.values(), ids=WORDS)
def test_the_word_is_what_the_interval_of_the_ratio_allows(middle, step, word):
    cell = only([run(step_ns=step)], [run(middle, "new", step)])
    assert cell.word == word
    assert cell.ratio.value == pytest.approx(middle / 20_000_000)
    assert (cell.before_ns.value, cell.after_ns.value, cell.least) == (20_000_000, middle, LEAST)
    assert "2.00 %" in cell.reason


def test_the_least_effect_is_the_one_that_was_asked_for():
    assert only([run()], [run(20_200_000, "new")], least=0.005).word == "SLOWER"
    assert only([run()], [run(20_600_000, "new")], least=0.05).word == "SAME"


def test_few_samples_tell_nothing():
    cell = only([run(number=5)], [run(30_000_000, "new")])
    assert (cell.word, cell.reason) == ("INCONCLUSIVE", "5 samples: too few to tell")


def test_records_meet_by_cell_whatever_the_commit():
    cells = compare_stored(sweep(), [replace(one, key=f"other-{one.key}", argv=["x"]) for one in reversed(sweep())])
    assert len(cells) == 12
    assert all(cell.before.variant == cell.after.variant for cell in cells)
    assert [cell.word for cell in cells].count("SAME") == 10
    refused = [cell for cell in cells if cell.word is None]
    assert {cell.reason for cell in refused} == {
        "before and after: refused: context 20000 is over the graph's limit of 16384"
    }
    assert not any(cell.lost or cell.refused for cell in cells)


def test_a_cell_of_one_side_is_said():
    first, second = compare_stored([run()], [with_variant(run(), kv="v4")])
    assert (first.reason, second.reason) == ("not run after", "not run before")
    assert (first.after, second.before, first.word) == (None, None, None)


@pytest.mark.parametrize(
    "other",
    [{"geometry": "mini"}, {"ranks": 2}, {"batch": {"requests": 2}}, {"kernel": {"name": "dequant", "case": "fp4"}}],
    ids=["geometry", "ranks", "batch", "kernel"],
)
def test_other_cells_do_not_meet(other):
    assert len(compare_stored([run()], [replace(run(), **other)])) == 2


def test_an_eager_step_has_no_form_of_breaks_and_a_requests_file_no_folder():
    old = with_variant(run(batch=1), breaks="sm100")
    old.batch["source"] = "here/lengths.jsonl"
    new = with_variant(run(batch=1), breaks="hopper")
    new.batch["source"] = "elsewhere/lengths.jsonl"
    assert only([old], [new]).word == "SAME"


def test_two_machines_are_a_view():
    there = {"gpu": "NVIDIA B300", "driver": "590.1"}
    cell = only([run()], [run(10_000_000, "new", environment=there)])
    assert (cell.word, cell.reason, cell.two_machines, cell.refused) == (None, TWO_MACHINES, True, False)
    assert (cell.before_ns.value, cell.after_ns.value, cell.ratio, cell.added) == (20_000_000, 10_000_000, None, None)


@pytest.mark.parametrize("times", [1, 6], ids=["single runs", "pairs of runs"])
@pytest.mark.parametrize("which", [0, 1], ids=["before", "after"])
def test_a_rate_that_cannot_be_true_earns_no_word(which, times):
    sides = [sessions([20_000_000] * times), sessions([30_000_000] * times)]
    assert only(*sides).word == "SLOWER"
    sides[which] = [replace(one, predicted={"dequant_bytes_per_s": 2e13}) for one in sides[which]]
    cell = only(*sides)
    said = f"{('before', 'after')[which]}: implausible: 417 % of the peak HBM rate (4.8 TB/s)"
    assert (cell.word, cell.reason) == ("INCONCLUSIVE", said)
    assert cell.ratio.value == pytest.approx(1.5)


def test_two_chips_of_one_model_are_two_machines():
    cell = only([run(environment={"gpu_chip": "1111"})], [run(30_000_000, "new", environment={"gpu_chip": "3333"})])
    assert (cell.word, cell.ratio, cell.two_machines, cell.refused) == (None, None, True, False)
    assert [str(found) for found in cell.differences] == ["GPU chip: 1111 before, 3333 after"]


@pytest.mark.parametrize("chips", [(None, None), ("1111", None), (None, "3333")], ids=["both", "after", "before"])
def test_chips_that_are_not_known_are_compared_as_ever(chips):
    before, after = ({"gpu_chip": chip} for chip in chips)
    cell = only([run(environment=before)], [run(30_000_000, "new", environment=after)])
    assert (cell.word, cell.unknown) == ("SLOWER", ("GPU chip",))


def test_runs_of_a_chip_that_both_sides_know_are_compared():
    here, there, third = ({"environment": {"gpu_chip": chip}} for chip in ("1111", "2222", "3333"))
    before = [run(**here), run(9_000_000, **there)]
    cell = only(before, [run(30_000_000, "new", **here), run(90_000_000, "new", **third)])
    assert (cell.word, cell.before, cell.left_out) == ("SLOWER", before[0], 2)
    assert cell.ratio.value == pytest.approx(1.5)


def test_another_driver_is_refused_with_both_values():
    cell = only([run()], [run(environment={"driver": "590.1"})])
    assert (cell.word, cell.ratio, cell.refused) == (None, None, True)
    assert cell.reason == "not comparable: driver: 580 before, 590 after"


def test_like_meets_like_where_a_folder_holds_two_machines():
    there = {"environment": {"gpu": "NVIDIA B300"}}
    cells = compare_stored([run(), run(9_000_000, **there)], [run(9_900_000, "new", **there), run(commit="new")])
    assert [(cell.any.machine, cell.word) for cell in cells] == [("NVIDIA H200", "SAME"), ("NVIDIA B300", "SLOWER")]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("measured", "modelled", "not comparable: label: measured before, modelled after"),
        ("modelled", "measured", "not comparable: label: modelled before, measured after"),
        ("modelled", "modelled", "not comparable: label: modelled before, modelled after"),
        ("measured", "simulated", "not comparable: label: measured before, simulated after"),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_a_model_is_like_nothing(old, new, reason, times):
    sides = [[replace(one, label=label) for one in sessions([20_000_000] * times)] for label in (old, new)]
    cell = only(*sides)
    assert (cell.word, cell.reason, cell.refused) == (None, reason, True)
    assert [one.reason for one in compare_stored(sides[0], [])] == ["not run after"]


def test_only_the_newest_code_of_a_side_counts():
    cell = only([run(10_000_000, "older"), run()], [run(commit="new")])
    assert (cell.word, len(cell.old), cell.left_out) == ("SAME", 1, 1)


def test_what_a_time_limit_left_out_is_no_record_of_other_code_once_it_was_measured():
    left_out = lost("skipped", NO_TIME_LEFT)
    for records in ([left_out, left_out, run()], [run(), left_out]):
        cell = only(records, [run(commit="new")])
        assert (cell.word, len(cell.old), cell.left_out) == ("SAME", 1, 0)
    never = only([left_out, left_out], [run(commit="new")])
    assert (never.word, never.reason, never.left_out) == (None, f"before: skipped: {NO_TIME_LEFT}", 0)


def test_a_cell_that_is_wrong_now_is_lost():
    wrong = lost("wrong", "a byte differs")
    cell = only([run()], [run(commit="new"), replace(wrong, environment={**GPU, "commit": COMMITS["new"]})])
    assert (cell.word, cell.lost, cell.reason) == (None, True, "after: wrong: a byte differs")
    assert not only([wrong], [wrong]).lost


def test_launches_are_compared_exactly():
    more = counts("on", extra=[row("sparse_attention", 2, "eager", 0, copies=3)])
    added = ["sparse_attention (kv_source 2, eager): copies 0 -> 3"]
    assert only([run()], [run(commit="new", counts=more)]).added == added
    assert only([run(counts=more)], [run(commit="new")]).added == []
    assert only([run()], [run(counts=[])]).added is None


@pytest.mark.parametrize(
    ("before", "after", "added"),
    [(1, 2, ["dequant: launches a call 1 -> 2"]), (2, 1, []), (None, 1, None)],
    ids=["more", "fewer", "unknown"],
)
def test_launches_of_a_kernel_are_compared_exactly(before, after, added):
    sides = [
        replace(run(), counts=[], batch={}, kernel={"name": "dequant", "case": "c", "rows": 4, "launches": launches})
        for launches in (before, after)
    ]
    assert only([sides[0]], [sides[1]]).added == added


def test_a_slower_clock_is_no_slower_code():
    clocks = [{"sm_mhz": [mhz] * 3, "reasons": []} for mhz in (1900, 1800)]
    cell = only([run(clocks=clocks[0])], [run(20_900_000, "new", clocks=clocks[1])])
    assert cell.word == "INCONCLUSIVE"
    assert cell.reason == "the SM clock went from 1900 to 1800 MHz, which may have made it"
    assert only([run(clocks=clocks[0])], [run(22_000_000, "new", clocks=clocks[1])]).word == "SLOWER"


MIDDLES = ((20_000_000, "old"), (20_400_000, "new"))


def sessions(middles, commit="old"):
    return [run(middle, commit, created=f"2026-11-30T12:{place:02d}:00+00:00") for place, middle in enumerate(middles)]


def test_six_runs_of_both_sides_are_judged_as_pairs():
    noise = [0, 40_000, -30_000, 70_000, -60_000, 20_000, -20_000]
    old = sessions([20_000_000 + one for one in noise])
    new = sessions([20_600_000 + one for one in reversed(noise)], "new")
    cell = only(old, new)
    assert (cell.word, len(cell.old), len(cell.new)) == ("SLOWER", 7, 7)
    assert "corrected for 1 cell" in cell.reason
    assert cell.ratio.value == pytest.approx(1.03, abs=0.002)
    assert only(old[:6], new[:3]).reason == "the whole interval is beyond 2.00 %"


# of 7 runs of +1.90 % [-3.08 %, +7.57 %]: ln(1.0757 / 1.0190) = 0.0541, 5.41 times half of 2 %; 7 x 5.41 ** 2
@pytest.mark.parametrize(
    ("scatter", "reason"),
    [(100_000, "is too near the least effect of 2 %"), (1_000_000, "about 206 pairs would do")],
    ids=["steady", "noisy"],
)
def test_runs_that_cannot_tell_say_why(scatter, reason):
    noise = [0, 1, -2, 2, -1, 1, -1]
    old, new = (sessions([middle + scatter * one for one in noise], name) for middle, name in MIDDLES)
    cell = only(old, list(reversed(new)))
    assert cell.word == "INCONCLUSIVE"
    assert reason in cell.reason


def test_copies_of_a_run_are_one_run():
    old, new = ([run(middle, name)] * 6 for middle, name in MIDDLES)
    cell = only(old, new)
    assert (len(cell.old), len(cell.new), cell.left_out) == (1, 1, 0)
    assert "corrected" not in cell.reason


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_step_of_0_ns_is_no_time(side):
    nothing = replace(run(commit="new"), samples_ns={"step_period": [0] * 11})
    cell = only(*([nothing], [run()]) if side == "before" else ([run()], [nothing]))
    assert (cell.word, cell.ratio) == (None, None)
    assert cell.reason == f"{side}: a step of 0 ns: nothing was measured"
    assert cell.lost == (side == "after")
    assert only([run()], [run(commit="new"), nothing]).word == "SAME"


def test_noise_between_runs_is_seen_where_there_are_several():
    """A single pair of runs is sure of 3 %; two runs a side that differ by 5 % among themselves are not."""
    assert only([run()], [run(20_600_000, "new")]).word == "SLOWER"
    cell = only(sessions([19_500_000, 20_500_000]), sessions([20_100_000, 21_100_000], "new"))
    assert cell.word == "INCONCLUSIVE"
    assert (cell.before_ns.value, cell.after_ns.value) == (20_000_000, 20_600_000)
    assert cell.ratio.value == pytest.approx(1.03)


def test_of_an_aa_run_alone_one_side_counts():
    aa = [with_side(run(middle), side, ("", ""), aa=True) for side, middle in (("a", 20_000_000), ("b", 25_000_000))]
    cell = only(aa, [run(commit="new")])
    assert (len(cell.old), cell.before_ns.value, cell.left_out) == (1, 20_000_000, 1)


def test_aa_trials_raise_the_least_effect():
    """Both sides of eight pairs take 20.0 or 20.8 ms, in half of the pairs the other one: noise and nothing else."""
    jumps = {"a": [0, 1] * 4, "b": [0, 1, 0, 1, 1, 0, 1, 0]}
    samples = {side: [20_000_000 + 800_000 * jump for jump in each for _ in range(5)] for side, each in jumps.items()}
    aa = [
        with_side(replace(run(), samples_ns={"step_period": samples[side]}), side, ("", ""), aa=True) for side in "ab"
    ]
    plain = only([run()], [run(20_440_000, "new")])
    raised = only([*aa, run()], [run(20_440_000, "new")])
    assert (plain.word, plain.least) == ("SLOWER", LEAST)
    assert raised.least == pytest.approx(400_000 / 20_400_000 + 0.005)  # half of the middle 95 %, and what `ab` names
    assert (raised.word, raised.left_out) == ("SAME", 2)


def test_aa_trials_of_fresh_processes_say_the_least_effect_where_none_is_asked_for():
    aa = [
        with_side(run(20_000_000 + 4000 * pair), side, ("", ""), aa=True, pair=pair, block=11)
        for pair in range(8)
        for side in "ab"
    ]
    assert only([*aa, run()], [run(20_300_000, "new")]).word == "SLOWER"
    cell = only([*aa, run()], [run(20_300_000, "new")], least=0.02)
    assert (cell.word, cell.least) == ("SAME", 0.02)


def test_committed_runs_of_two_commits_meet():
    """`h200-default` was written before breaks had names; it ran what `--break-outputs static` runs now."""
    before, after = (read_records(ROOT / "results" / name).records for name in ("h200-default", "h200-graph-static"))
    met = [cell for cell in compare_stored(before, after) if cell.word]
    assert [cell.any.batch["requests"] for cell in met] == [1, 2, 4, 8, 16, 32]
    assert {cell.any.variant["break-outputs"] for cell in met} == {"static"}
    assert all(cell.added == [] and 0.9 < cell.ratio.value < 1.1 for cell in met)
