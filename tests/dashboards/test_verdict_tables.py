"""Tables of verdicts: golden text for 80 columns and CSV, and what must be read with a verdict."""

import csv
from dataclasses import replace

import pytest

from dsv4bench.dashboards.cells import PADDED
from dsv4bench.dashboards.pr_block import pr_block
from dsv4bench.dashboards.verdict_tables import verdict_tables
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.noise_floor import Floor
from dsv4bench.results.stats import Interval
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import Verdict, judge
from tests.dashboards.verdict_scenes import FILES, GOLDEN, SCENES, drawn, floors, h200, sided, verdict
from tests.results.synthetic import GPU, ramp, record, with_side, with_variant


def only(verdicts, noise=()):
    (table,) = verdict_tables(verdicts, noise)
    return table


def column(table, title):
    columns, texts = table.shown()
    place = [one.title for one in columns].index(title)
    return [row[place] for row in texts]


def one_trial(records):
    (trial,) = trials(records)
    return trial


def both(switch="reuse", a="off", b="on", sides=None, ab=None, facts=None, more=None, **changes):
    """The trial of two cells that differ in a switch."""
    batch = {**record().batch, **(facts or {})}
    one = with_variant(replace(record(**changes), batch=batch), **(more or {}))
    cells = [with_variant(one, **{switch: value}) for value in (a, b)]
    named = sides or (f"{switch}={a}", f"{switch}={b}")
    return one_trial([with_side(one, side, named, **(ab or {})) for one, side in zip(cells, "ab", strict=True)])


def judged(trial, word="SAME", **changes):
    return replace(verdict(trial, word, 20.0, 20.0, (0.0, 1.0), None), **changes)


@pytest.mark.parametrize(("name", "form"), [one for one in FILES if one[1] != "md"])
def test_tables_are_those_that_were_read_and_agreed(name, form):
    assert drawn(name, form) == (GOLDEN / f"{name}.{form}").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCENES)
def test_a_terminal_of_80_columns_shows_every_line_whole(name):
    assert max(map(len, drawn(name, "txt").splitlines())) <= 80


@pytest.mark.parametrize(
    ("trial", "stack"),
    [
        (both(more={"moe": "experts"}), "attention stack and a MoE of v41-flash"),
        (both("moe", "off", "experts"), "attention stack of v41-flash"),
    ],
    ids=["both sides", "one side"],
)
def test_a_title_says_what_both_sides_have_in_the_step(trial, stack):
    assert f", {stack}: measured, gpu" in only([judged(trial)]).title


def test_csv_holds_every_number_of_a_verdict_under_its_name():
    lines = [line for line in drawn("h200", "csv").splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    first = {
        name: float(rows[0][name]) for name in ("a_ns", "b_high_ns", "difference_low_ns", "p_holm", "predicted_ns")
    }
    assert first == {
        "a_ns": 20e6,
        "b_high_ns": 19.539e6,
        "difference_low_ns": -515.6e3,
        "p_holm": 0.0195,
        "predicted_ns": -400e3,
    }
    assert float(rows[0]["change_low"]) == pytest.approx(-0.02578)
    assert [row["marks"] for row in rows[2:4]] == ["clock", "unexplained, implausible"]
    assert (rows[5]["verdict"], rows[5]["a_status"], rows[5]["a_ns"]) == ("", "refused", "")


def test_an_interval_that_is_not_in_the_middle_is_shown_as_it_is():
    """-325 with -762 and -229 as bounds is FASTER; as "-325 ±437" it would look as if it held 0."""
    lopsided = judged(both(), "FASTER", difference_ns=Interval(-325e3, -762e3, -229e3, 0.95))
    table = only([lopsided])
    assert [column(table, title) for title in ("a ms", "b ms", "diff us")] == [
        ["20.00"],
        ["20.00"],
        ["-325 [-762, -229]"],
    ]
    assert "| -325 \\[-762, -229] |" in pr_block([], [lopsided], [])


def test_what_judge_says_of_records_fills_the_table():
    slow, fast = ([time + noise for noise in range(0, 900, 10)] for time in (20_000_000, 19_000_000))
    cells = [record(reuse="off", samples_ns={"step_period": slow}), record(samples_ns={"step_period": fast})]
    table = only(judge(trials(sided(cells))))
    assert column(table, "verdict") == ["FASTER !"]  # 1 ms was saved, 0.4 ms predicted
    assert column(table, "change") == ["-5.00 %"]


def test_cells_of_two_formats_of_breaks_say_theirs_and_those_of_one_do_not():
    cells = [
        with_variant(record(reuse=reuse, graph=True), breaks=breaks, **{"break-outputs": outputs})
        for breaks, outputs in (("sm100", "copy"), ("hopper", "static"))
        for reuse in ("off", "on")
    ]
    found = [judged(trial) for trial in trials(sided(cells))]
    assert column(only(found), "mode") == ["graph sm100", "graph hopper static"]
    assert column(only(found[:1]), "mode") == ["graph"]


def test_sides_that_differ_in_the_launch_say_both_modes():
    cells = [
        with_side(record(graph=graph), side, ("graph=off", "graph=on")) for graph, side in ((False, "a"), (True, "b"))
    ]
    assert column(only([judged(one_trial(cells))]), "mode") == ["eager -> graph"]


def test_rows_are_shown_where_the_batch_does_not_say_them():
    plain, padded = both(), both(facts={"extend": 1000, "rows": 1000})
    mixed = both(facts={"requests": 4, "extend": None, "source": "lengths.jsonl"})
    assert "rows" not in [one.title for one in only([judged(plain)]).shown()[0]]
    table = only([judged(plain), judged(padded)])
    assert column(table, "rows") == ["", "1000/1024"]
    assert PADDED in table.notes
    assert column(only([judged(mixed)]), "batch") == ["4"]
    assert column(only([judged(mixed)]), "rows") == ["1024"]


@pytest.mark.parametrize(
    ("ab", "said"),
    [
        ({"block": 1}, "9 pairs a cell of 1 sample of each side, in one process by turns (A B, B A, ...)"),
        ({"pair": 0}, "9 pairs of fresh processes a cell; a ran first, then b in turn (A B, B A, ...)"),
    ],
    ids=["one process", "fresh processes"],
)
def test_how_pairs_were_made_is_said(ab, said):
    assert said in only([judged(both(ab=ab))]).notes


def test_two_least_effects_are_said_with_their_modes():
    effects = (("eager", False, 0.01), ("graph", True, 0.005))
    found = [judged(both(graph=graph), min_effect=MinEffect(relative=least)) for _, graph, least in effects]
    assert any(
        "least effect named: eager 1 %, graph 0.5 %; alpha 0.05, Holm over 2 cells" in n for n in only(found).notes
    )


def test_holm_counts_the_cells_of_the_session_and_no_others():
    here = [
        judged(both()),
        judged(both(facts={"requests": 8})),
        Verdict(both(facts={"requests": 64}), None, "b: failed: no", 0),
    ]
    other = judged(both(facts={"requests": 2}, ab={"session": "s2"}))
    notes = [table.notes for table in verdict_tables([*here, other], [])]
    assert [next(note[note.index("Holm") :] for note in one if "Holm" in note) for one in notes] == [
        "Holm over 2 cells",
        "Holm over 1 cell",
    ]


def test_a_switch_that_no_side_names_is_a_setting_and_one_that_a_side_names_is_not():
    table = only([judged(both("compressor", "torch", "fused"))])
    assert "reuse on, kv v41+fp4, provider triton, chunk 8192, seed 0, prefix 8192" in table.notes


def test_cells_of_another_session_commit_or_kv_have_a_table_of_their_own():
    ran = [
        both(),
        both(ab={"session": "s2"}),
        both(environment={**GPU, "commit": "b" * 40}),
        both(key="v4", variant={**record().variant, "kv": "v4"}),
    ]
    assert len(verdict_tables([judged(trial) for trial in ran], [])) == 4


def test_a_floor_is_told_to_verdicts_of_its_machine_alone():
    _, verdicts = h200()
    said = [note for note in only(verdicts, floors()).notes if note.startswith("A/A floor")]
    assert said == [
        "A/A floor: noise alone made -0.07 % to +0.20 % and was called a difference in 1 of 2 cells;"
        " 0.70 % would have been named in each"
    ]
    first, second = floors()
    (note,) = [note for note in only(verdicts, [first, replace(second, names=False)]).notes if note.startswith("A/A")]
    assert note.endswith("; 0.62 % would have been named in 1 of them (the others have too few pairs)")
    elsewhere = [judged(both(environment={**GPU, "gpu": "NVIDIA B300"}))]
    assert not any(note.startswith("A/A floor") for note in only(elsewhere, floors()).notes)
    assert not any(note.startswith("A/A floor") for note in only(verdicts).notes)


def test_an_aa_table_says_so():
    table, *_ = verdict_tables([floor.verdict for floor in floors()], [])
    assert table.title.startswith("Verdicts: A/A, reuse=on on both sides, attention stack of v41-flash: measured, gpu")


def test_a_floor_that_was_not_judged_says_nothing():
    trial = floors()[0].verdict.trial
    assert not any("A/A floor" in note for note in only([judged(both())], [Floor(Verdict(trial, None, "no", 0))]).notes)


def test_a_mark_that_is_new_is_shown_all_the_same():
    table = only([judged(both(), marks=("strange",))])
    assert column(table, "verdict") == ["SAME *"]
    assert "* strange" in table.notes


def test_flags_of_either_side_and_clocks_are_shown():
    cells = [
        with_side(
            record(reuse="off", samples_ns={"step_period": ramp(20_000_000, count=10)}), "a", sm_mhz=[1900, 1710]
        ),
        with_side(record(flags=["throttled: sw_power_cap"], samples_ns={"step_period": ramp(10**7, count=10)}), "b"),
    ]
    other = [with_side(one, side) for one, side in zip([record(8, "off"), record(8)], "ab", strict=True)]
    notes = only([judged(one_trial(cells)), judged(one_trial(other))]).notes
    assert "SM clock around the pairs: a 1710 to 1900 MHz" in notes  # NVML told neither power nor heat
    assert "throttled: sw_power_cap (eager, batch 1 x 1024)" in notes


def test_the_most_power_and_heat_of_every_process_is_said():
    seen = [(699_500, 61), (690_000, 66), (650_400, None), (None, 50)]
    cells = [
        with_side(
            record(
                key=f"{place}", clocks={"power_mw_max": power, "temperature_celsius_max": heat}, flags=[f"no {place}"]
            ),
            side,
            pair=pair,
            sm_mhz=[1900],
        )
        for place, ((power, heat), side, pair) in enumerate(zip(seen, "abab", (0, 0, 1, 1), strict=True))
    ]
    notes = only([judged(one_trial(cells))]).notes
    assert "SM clock around the pairs: a 1900 to 1900 MHz, b 1900 to 1900 MHz; at most 700 W, 66 C" in notes
    assert {f"no {place}" for place in range(4)} <= set(notes)  # of processes of the first pair, too


def test_power_and_heat_are_said_without_a_clock_and_of_no_device_not_at_all():
    clocks = {"power_mw_max": 650_400, "temperature_celsius_max": None}
    told, none = (
        [note for note in only([judged(both(clocks=one))]).notes if "at most" in note] for one in (clocks, None)
    )
    assert (told, none) == (["at most 650 W"], [])


def test_what_ran_on_other_kernels_on_one_side_names_the_side():
    cells = [
        with_side(record(batch, reuse, providers={"dequant": provider, "store": "triton", "combine": "triton"}), side)
        for batch in (1, 8)
        for side, reuse, provider in (("a", "off", "torch"), ("b", "on", "mine.py:fn"))
    ]
    notes = only([judged(trial) for trial in trials(cells)]).notes
    assert [note for note in notes if note.startswith("kernels ran on")] == [
        "kernels ran on triton, but dequant on torch (a)",
        "kernels ran on triton, but dequant on mine.py:fn (b)",
    ]


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        ((-400e3, -200e3), "the removed work explains 40 % to 80 % of the difference (predicted / measured)"),
        ((-400e3, None), "34 launches less a forward"),
        ((None, None), ""),
    ],
    ids=["two cells", "one cell: its whole line", "nothing predicted"],
)
def test_how_much_the_removed_work_explains_is_one_line(predicted, said):
    found = trials(sided([record(1, "off"), record(1), record(8, "off"), record(8)]))
    named = [
        replace(verdict(trial, "FASTER", 20.0, 19.5, (-500.0, 10.0), None), predicted_ns=ns)
        for trial, ns in zip(found, predicted, strict=True)
    ]
    lines = [note for note in only(named).notes if "explains" in note]
    assert [line[: len(said)] for line in lines] == [said] * bool(said)


def test_what_a_prediction_is_depends_on_what_was_changed():
    said = {
        switch: [note for note in only([judged(both(*changed), predicted_ns=-4e5)]).notes if note.startswith("pred")]
        for switch, changed in {"reuse": ("reuse",), "compressor": ("compressor", "torch", "fused")}.items()
    }
    assert "rows not dequantised again" in said["reuse"][0]
    assert said["compressor"] == [
        "pred (modelled): ratio-2 sources x what the compressor of one takes alone, measured here, b - a;"
        " in graphs only"
    ]


@pytest.mark.parametrize("turned", [False, True], ids=["reuse on is b", "reuse on is a"])
def test_a_verdict_says_where_its_prediction_is_the_hosts_time(turned):
    calls = {"saved_ns": 141_000.0, "saved_bytes": 2**20, "saved_calls": 34, "submit_ns_a_call": 30_000.0}
    values = ("on", "off") if turned else ("off", "on")
    (one,) = judge([both("reuse", *values, predicted=calls, flags=["launch-bound"])])
    assert one.predicted_ns == (34 * 30_000 if turned else -34 * 30_000)
    said = "pred, launch-bound: not bytes but 34 dequants x 30.0 us to submit one"
    assert [said in note for note in only([one]).notes if note.startswith("pred")] == [True]


def test_reasons_that_differ_in_numbers_alone_are_told_by_an_example():
    def undecided(requests, reason):
        return judged(both(facts={"requests": requests}), "INCONCLUSIVE", reason=reason)

    said = [f"about {pairs} pairs would do" for pairs in (11, 29, 46)]
    few = [undecided(requests, reason) for requests, reason in zip((1, 2), said, strict=False)]
    assert [note for note in only(few).notes if note.startswith("INCONCLUSIVE")] == [
        "INCONCLUSIVE: about 11 pairs would do (eager, batch 1 x 1024)",
        "INCONCLUSIVE: about 29 pairs would do (eager, batch 2 x 1024)",
    ]
    many = [*few, undecided(4, said[2]), undecided(8, "the clock may have made it")]
    assert [note for note in only(many).notes if note.startswith("INCONCLUSIVE")] == [
        "INCONCLUSIVE: 3 cells, e.g. about 11 pairs would do (eager, batch 1 x 1024)",
        "INCONCLUSIVE: the clock may have made it (eager, batch 8 x 1024)",
    ]


def test_a_clock_that_fell_is_said_once_for_all_cells_and_how_far_in_csv():
    fell = [f"throttled: SM clock fell from {top} to 1600 MHz" for top in (1900, 1905)]
    found = [judged(both(facts={"requests": n}, flags=[flag])) for n, flag in zip((1, 2), fell, strict=True)]
    table = only(found)
    assert [note for note in table.notes if "SM clock" in note] == ["throttled: SM clock fell"]
    assert [row[-1].values[-1] for row in table.rows] == fell


def test_one_pair_has_no_bound_and_few_have_their_extremes():
    one, two = (judge([trial]) for trial in (both(ab={"block": 11}), both(ab={"block": 5})))
    assert column(only(one), "diff us") == ["0"]
    assert not any("[ ]" in note for note in only(one).notes)
    assert any(note.startswith("1 pair a cell of 11 samples of each side") for note in only(one).notes)
    assert any(
        note.startswith("[ ]: the 95 % interval over pairs (of fewer than 6: the extremes);")
        for note in only(two).notes
    )
    nine = [judged(both())]
    assert not any("extremes" in note for note in only(nine).notes)
