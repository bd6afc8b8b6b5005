"""The table of how long ranks worked and waited where they exchange rows."""

from dataclasses import replace

from dsv4bench.dashboards.exchange_tables import exchange_tables
from dsv4bench.results.compare import pairs
from tests.results.synthetic import record


def exchanging(reuse, *ranks):
    names = ("device_ns", "work_ns", "wait_ns")
    found = [dict(zip(names, times, strict=True)) for times in ranks]
    return replace(record(4, reuse), ranks=len(ranks), device_time={"rows": [], "exchange": found})


def shown(*records):
    (table,) = exchange_tables(pairs(records, "reuse", "off", "on"))
    columns, rows = table.shown()
    names = [column.title for column in columns]
    first = names.index("rank")
    return names[first:], [row[first:] for row in rows], table


def test_waiting_before_and_after():
    before = exchanging("off", (5_000_000, 4_000_000, 1_000_000), (4_000_000, 4_000_000, 0))
    after = exchanging("on", (4_500_000, 4_000_000, 500_000), (4_000_000, 4_000_000, 0))
    names, rows, table = shown(before, after)
    assert names == ["rank", "exchange ms", "work ms", "wait ms"]
    assert rows == [
        ["0", "5.000 -> 4.500", "4.000", "1.000 -> 0.5000"],
        ["1", "4.000", "4.000", "0"],
    ]
    assert table.title.startswith("Exchange of rows, reuse off -> on, attention stack of")


def test_one_side_alone_has_one_value():
    _, rows, _ = shown(exchanging("on", (300_000, 200_000, 100_000)))
    assert rows == [["0", "300.0", "200.0", "100.0"]]


def test_times_of_ranks_that_did_not_place_all_are_left_out():
    before = exchanging("off", (5_000_000, 4_000_000, 1_000_000), (4_000_000, 4_000_000, 0))
    after = exchanging("on", (3_600_000, 1_400_000, 2_200_000), (1_400_000, 1_400_000, 0))
    partial = replace(after, coverage=after.coverage | {"unattributed": 7})
    _, rows, table = shown(before, partial)
    assert rows == [["0", "5.000 -> -", "4.000 -> -", "1.000 -> -"], ["1", "4.000 -> -", "4.000 -> -", "0 -> -"]]
    assert any(note.startswith("left out: times of an exchange") for note in table.notes)
    assert not any(note.startswith("left out") for note in shown(before, after)[2].notes)
    assert exchange_tables(pairs([partial], "reuse", "off", "on")) == []


def test_ranks_that_exchange_nothing_have_no_such_table():
    plain = [record(4, "off"), replace(record(4, "on"), device_time={"rows": []})]
    assert exchange_tables(pairs(plain, "reuse", "off", "on")) == []
