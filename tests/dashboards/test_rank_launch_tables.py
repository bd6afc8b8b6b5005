"""The table of what each real rank launched."""

from dataclasses import replace

from dsv4bench.dashboards.rank_launch_tables import rank_launch_tables
from dsv4bench.results.compare import pairs
from tests.results.synthetic import record


def launched(*calls, **more):
    """Launches of sources 2, 20 and none, in that order."""
    return [{"kv_source": source, "calls": count, **more} for source, count in zip((20, 2, None), calls, strict=False)]


def shown(records):
    (table,) = rank_launch_tables(pairs(records, "reuse", "off", "on"))
    columns, rows = table.shown()
    names = [column.title for column in columns]
    first = names.index("kv_source")
    return names[first:], [row[first:] for row in rows], table


def real(reuse, *ranks):
    return replace(record(4, reuse), ranks=len(ranks), rank_launches=list(ranks))


def test_ranks_stand_side_by_side_before_and_after():
    before = real("off", launched(20, 6, 9), launched(20, 6, 10))
    after = real("on", launched(1, 1, 9), launched(1, 1, 10))
    names, rows, table = shown([before, after])
    assert names == ["kv_source", "rank 0", "rank 1"]
    assert rows == [
        ["2", "6 -> 1", "6 -> 1"],
        ["20", "20 -> 1", "20 -> 1"],
        ["all", "35 -> 11", "36 -> 12"],
        ["none", "9", "10"],
    ]
    assert table.title.startswith("Launches of each rank, reuse off -> on, attention stack of")


def test_a_gpu_counts_what_its_device_did_and_an_idle_rank_did_nothing():
    one = real("on", launched(1, 2, kernels=3, copies=1, sets=0), [])
    _, rows, _ = shown([one])
    assert rows == [["2", "4", "0"], ["20", "4", "0"], ["all", "8", "0"]]


def test_one_rank_is_equal_to_no_other():
    _, rows, table = shown([real("off", launched(20, 6)), real("on", launched(1, 1))])
    assert rows == [["2", "6 -> 1"], ["20", "20 -> 1"], ["all", "26 -> 2"]]
    assert table.title.startswith("Launches of the one rank, reuse off -> on")
    assert not any("ranks" in note for note in table.notes)


def test_cells_without_real_ranks_have_no_such_table():
    assert rank_launch_tables(pairs([record(4, "off"), record(4, "on")], "reuse", "off", "on")) == []
