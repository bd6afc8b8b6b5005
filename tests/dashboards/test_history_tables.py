"""Histories as tables: rows over time, changes of versions, and cells that were measured once."""

from dataclasses import replace

from dsv4bench.dashboards.history_tables import history_name, history_tables
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.results.frame import frame
from dsv4bench.results.histories import histories
from tests.results.synthetic import GPU, lost, ramp, record, with_side, with_variant


def at(day, middle_us, commit, **changes):
    here = {**GPU, "commit": commit * 40, **changes.pop("environment", {})}
    samples = {"step_period": ramp(middle_us * 1000)}
    return record(created=f"2026-12-{day:02d}T08:30:00+00:00", samples_ns=samples, environment=here, **changes)


def shown(records):
    return list(map(plain, history_tables(histories(frame(records), {}))))


def test_a_cell_is_a_table_over_time():
    lines = (
        shown(
            [
                at(1, 20_000, "a"),
                replace(lost("failed", "no memory"), created="2026-12-02T08:30:00+00:00"),
                at(3, 19_000, "b", environment={"dirty": True, "torch": "2.12.0"}),
            ]
        )[0]
    ).splitlines()
    assert lines[:6] == [
        "History of eager, batch 1 x 1024, reuse on, kv v41+fp4, attention stack of",
        "v41-flash: measured, gpu, NVIDIA H200",
        "UTC               commit          step ms   change  launches  key",
        "2026-12-01 08:30  aaaaaaa   20.000 ±0.004                164  gpu-1-Fa",
        "2026-12-02 08:30  c0ffeec          failed                     gpu-1-Fa",
        "2026-12-03 08:30  bbbbbbb+  19.000 ±0.004  -5.00 %       164  gpu-1-Fa",
    ]
    assert "2026-12-03 08:30: torch 2.11.0 -> 2.12.0" in lines
    assert "failed: no memory" in lines


def of_runs(runs):
    """The frame of several run folders, as it is read."""
    records = [one for ones in runs.values() for one in ones]
    whole = frame(records)
    whole["run"] = [name for name, ones in runs.items() for _ in ones]
    return whole


def test_every_row_says_of_which_run_it_is():
    """Folders are too long for a column: a number, the same in all tables, and the folders below."""
    batches = [[at(day, 20_000, "a", batch=batch) for day in (1, 2)] for batch in (1, 8)]
    runs = {"results/20261201T083000Z-prefill": [], "old runs/b": [], "results/c": [at(3, 30_000, "a", batch=8)]}
    for first, second in batches:
        runs["results/20261201T083000Z-prefill"].append(first)
        runs["old runs/b"].append(second)
    eight, one = map(plain, history_tables(histories(of_runs(runs), {})))
    assert [line.split()[-2:] for line in eight.splitlines()[2:6]] == [
        ["run", "key"],
        ["1", "gpu-8-Fa"],
        ["2", "gpu-8-Fa"],
        ["3", "gpu-8-Fa"],
    ]
    assert "run: 1=results/20261201T083000Z-prefill, 2=old runs/b, 3=results/c" in " ".join(eight.splitlines())
    assert "run: 1=results/20261201T083000Z-prefill, 2=old runs/b\n" in one
    rows = csv_text(history_tables(histories(of_runs(runs), {}))).splitlines()
    assert rows[1].endswith(",launches,run,key")
    assert rows[3].split(",")[-2:] == ["old runs/b", "gpu-8-False-on"]


def test_cells_that_two_runs_measured_once_have_a_table_each():
    runs = {"a": [at(1, 20_000, "a"), at(1, 20_000, "a", batch=8)], "b": [at(2, 20_000, "b", batch=16)]}
    tables = list(map(plain, history_tables(histories(of_runs(runs), {}))))
    assert [text.splitlines()[-1] for text in tables] == ["run: a", "run: b"]
    assert [sum("gpu-" in line for line in text.splitlines()) for text in tables] == [2, 1]
    assert "run  key" not in tables[0]  # said below, once


def test_a_time_of_another_chip_is_no_change():
    chips = ("1111", None, "3333", "3333")
    times = (20_000, 19_000, 30_000, 33_000)
    rows = [at(n + 1, us, "a", environment={"gpu_chip": chips[n]}) for n, us in enumerate(times)]
    lines = shown(rows)[0].splitlines()
    assert [line.split()[5] if "%" in line else "" for line in lines[3:7]] == ["", "-5.00", "", "+10.00"]
    assert lines[-1] == "2026-12-03 08:30: gpu_chip 1111 -> 3333: two machines, no change is given"


def test_cells_that_were_measured_once_share_a_table():
    (text,) = shown([at(1, 20_000, "a"), at(1, 30_000, "a", batch=8)])
    assert text.splitlines()[:4] == [
        "Measured once, attention stack of v41-flash: measured, gpu, NVIDIA H200",
        "   batch  mode   reuse  UTC               commit              ms  key",
        "1 x 1024  eager  on     2026-12-01 08:30  aaaaaaa  20.000 ±0.004  gpu-1-Fa",
        "8 x 1024  eager  on     2026-12-01 08:30  aaaaaaa  30.000 ±0.004  gpu-8-Fa",
    ]
    assert "kv v41+fp4, compressor fused" in text


def test_a_title_says_what_is_in_the_step():
    (text,) = shown([with_variant(at(1, 20_000, "a"), moe="experts", mhc="on")])
    title = "Measured once, attention stack, residual streams and a MoE of v41-flash: measured,"
    assert " ".join(text.splitlines()[:2]).startswith(title)


def test_kernels_stand_by_their_case():
    kernel = {"name": "dequant", "case": "fp4", "rows": 512, "provider": "triton"}
    alone = replace(
        at(1, 20_000, "a"), kernel=kernel, batch={}, geometry="", variant={"provider": "triton", "seed": 0}, counts=[]
    )
    (text,) = shown([alone])
    assert text.startswith("Measured once, dequant alone: measured, gpu, NVIDIA H200\ncase  rows  provider")
    (one,) = histories(frame([alone]), {})
    assert history_name(one) == "dequant by triton, fp4 512"


def test_csv_has_whole_keys_commits_and_times():
    text = csv_text(history_tables(histories(frame([at(1, 20_000, "a"), at(2, 20_200, "b")]), {})))
    rows = text.splitlines()
    assert rows[1] == "created,commit,dirty,time_ns,time_low_ns,time_high_ns,change,launches,run,key"
    assert rows[3].startswith(f"2026-12-02T08:30:00+00:00,{'b' * 40},,20200000.0,")
    assert rows[3].endswith(",164,,gpu-1-False-on")


def test_tables_fit_80_columns():
    wide = [at(day, 20_000, "a", batch=batch) for batch in (1, 64) for day in (1, 2)]
    runs = {"r" * 70: [*wide, at(1, 9_000, "c", batch=16)]} | {f"run-{n}": [at(n, 9_000, "c")] for n in range(3, 15)}
    tables = list(map(plain, history_tables(histories(of_runs(runs), {}))))
    assert max(len(line) for text in tables for line in text.splitlines()) <= 80


def session(day, name, a_us, b_us, pairs=3):
    """An A/B of two trees in fresh processes, 4 us apart: both sides are one cell."""
    return [
        with_side(at(day, us + 4 * (pair - pairs // 2), "a"), side, session=name, pair=pair, place=place)
        for pair in range(pairs)
        for place, (side, us) in enumerate((("a", a_us), ("b", b_us)))
    ]


def test_an_ab_is_a_row_a_side_and_has_no_change_within_a_session():
    lines = shown([*session(1, "s1", 20_000, 19_000), *session(2, "s2", 20_900, 19_000, pairs=1)])[0].splitlines()
    assert [line.split() for line in lines[2:7]] == [
        ["UTC", "commit", "step", "ms", "change", "launches", "A/B", "key"],
        ["2026-12-01", "08:30", "aaaaaaa", "20.000", "±0.004", "164", "a", "(3)", "gpu-1-Fa"],
        ["2026-12-01", "08:30", "aaaaaaa", "19.000", "±0.004", "164", "b", "(3)", "gpu-1-Fa"],
        ["2026-12-02", "08:30", "aaaaaaa", "20.900", "±0.004", "+10.00", "%", "164", "a", "gpu-1-Fa"],
        ["2026-12-02", "08:30", "aaaaaaa", "19.000", "±0.004", "164", "b", "gpu-1-Fa"],
    ]
    assert "no change in a session" in " ".join(lines)
    assert max(map(len, lines)) <= 80


def test_a_cell_of_one_session_says_of_how_many_processes_its_time_is():
    cells = [
        with_side(at(1, 20_000, "a", batch=batch), "a", pair=pair, place=0)
        for batch, pairs in ((1, 3), (8, 2))
        for pair in range(pairs)
    ]
    (text,) = shown(cells)
    assert "the time of a row is the median of 2 to 3 processes of an A/B" in text
