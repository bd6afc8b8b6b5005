"""Rows read from the pages of an SQLite file against the rows that SQLite reads from it."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.nsys_tables import open_tables
from dsv4bench.profiling.traces.sqlite_pages import NotSimple, read_pages
from tests.profiling.traces import nsys_exports as made
from tests.profiling.traces.shared_traces import FOLDER, needs_traces

BORDERS = [
    0,
    1,
    -1,
    *(sign * 2**bits + by for bits in (7, 8, 15, 16, 23, 31, 47) for sign in (1, -1) for by in (-1, 0)),
]
BORDERS += [2**63 - 1, -(2**63), 2**62]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("pages") / "rows.sqlite"


def write(path, rows, columns="a, b, c", table="CREATE TABLE t ({})", page_bytes=512, more=()):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        connection.execute(table.format(columns))
        connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(columns.split(',')))})", rows)
        for statement in more:
            connection.execute(statement)
        connection.commit()
        return connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0]


def by_sqlite(path, columns="a, b, c"):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT rowid, {columns} FROM t").fetchall()


def allowed(row, may_be_null):
    return all(
        isinstance(value, int) or (value is None and null) for value, null in zip(row[1:], may_be_null, strict=True)
    )


values = st.one_of(
    st.sampled_from(BORDERS),
    st.integers(-(2**63), 2**63 - 1),
    st.none(),
    st.sampled_from([1.5, "text", "a longer text of the file", b"bytes"]),
)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(values, values, values), max_size=120),
    st.tuples(*[st.booleans()] * 3),
    st.sampled_from([512, 1024, 65536]),
    st.integers(1, 40),
)
def test_rows_are_those_of_sqlite(path, rows, may_be_null, page_bytes, deletes):
    root = write(path, rows, page_bytes=page_bytes, more=[f"DELETE FROM t WHERE rowid % {deletes} = 1"])
    expected = by_sqlite(path)
    good = [row for row in expected if allowed(row, may_be_null)]
    found = read_pages(path, root, list(enumerate(may_be_null)))
    assert found.values.tolist() == [[NO_ID if value is None else value for value in row] for row in good]
    assert (found.left_out, found.damaged_pages, found.damaged_rows) == (len(expected) - len(good), 0, 0)


@pytest.mark.parametrize("border", BORDERS)
def test_an_integer_of_every_size_is_exact(path, border):
    root = write(path, [(border, 7, border)] * 3)
    assert read_pages(path, root, [(2, False), (1, True)]).values.tolist() == [[key, border, 7] for key in (1, 2, 3)]


def test_a_tree_of_several_levels_is_read_from_left_to_right(path):
    root = write(path, [(one, -one, one * one) for one in range(20_000)])
    found = read_pages(path, root, [(0, False), (2, False)])
    assert np.array_equal(found.values[:, 1], np.arange(20_000))
    assert np.array_equal(found.values[:, 2], np.arange(20_000) ** 2)


@pytest.mark.parametrize("key", [1, 127, 128, 2**31, 2**55])
def test_row_numbers_of_every_length(path, key):
    root = write(path, [], more=[f"INSERT INTO t (rowid, a, b, c) VALUES ({key}, 1, 2, 3)"])
    assert read_pages(path, root, [(1, False)]).values.tolist() == [[key, 2]]


@pytest.mark.parametrize(
    ("rows", "table", "more"),
    [
        ([(1, "long " * 20, 3)], "CREATE TABLE t ({})", ()),
        ([(1, 2, "x" * 2000)], "CREATE TABLE t ({})", ()),
        ([(1, 2, 3)], "CREATE TABLE t ({}, PRIMARY KEY (a)) WITHOUT ROWID", ()),
        ([(1, 2, 3)], "CREATE TABLE t ({})", ["ALTER TABLE t ADD COLUMN d DEFAULT 5"]),
        ([(1, 2, 3)], "CREATE TABLE t ({})", ["COMMIT", "PRAGMA journal_mode = wal"]),
    ],
    ids=["long-text", "overflow", "without-rowid", "added-column", "write-ahead-log"],
)
def test_what_is_not_simple_is_left_to_sqlite(path, rows, table, more):
    root = write(path, rows, table=table, more=more)
    with pytest.raises(NotSimple):
        read_pages(path, root, [(0, False), (2, False), (3, False)][: 3 if "DEFAULT" in str(more) else 2])


@pytest.mark.parametrize("head", ["0d000000000000", "0d000000000190"], ids=["zeros", "no-cells"])
def test_a_page_that_lost_its_cells_is_no_empty_one(path, head):
    root = write(path, [(1, 2, 3)])
    content = bytearray(path.read_bytes())
    content[(root - 1) * 512 : (root - 1) * 512 + 7] = bytes.fromhex(head)
    path.write_bytes(content)
    found = read_pages(path, root, [(0, False)])
    assert (len(found.values), found.damaged_pages) == (0, 1)


@pytest.mark.parametrize("page_bytes", [512, 65536])
def test_a_table_that_was_emptied_is_empty(path, page_bytes):
    root = write(path, [(one, 2, 3) for one in range(100)], page_bytes=page_bytes, more=["DELETE FROM t WHERE a >= 0"])
    found = read_pages(path, root, [(0, False)])
    assert (len(found.values), found.damaged_pages) == (0, 0)


def test_a_long_text_behind_the_wanted_columns_is_passed_over(path):
    root = write(path, [(1, 2, "long " * 40)], page_bytes=4096)
    assert read_pages(path, root, [(1, False)]).values.tolist() == [[1, 2]]


@pytest.mark.parametrize("text", ["short", "long " * 20], ids=["from-pages", "by-sqlite"])
def test_both_ways_give_a_table_the_same_columns(tmp_path, text):
    rows = [made.pushed(one, 2 * one, text, textId=None if one % 2 else 7) for one in range(1, 300)]
    export = made.export(tmp_path / "export.sqlite", {"NVTX_EVENTS": rows})
    with open_tables(export) as tables:
        found = tables.integers("NVTX_EVENTS", ("start",), ("end", "textId", "domainId"))
    assert found["start"].tolist() == [row["start"] for row in rows]
    assert found["end"].tolist() == [row["end"] for row in rows]
    assert found["textId"].tolist() == [NO_ID if row["textId"] is None else 7 for row in rows]
    assert tables.repairs == []


def exports():
    return sorted(FOLDER.rglob("*.sqlite")) if FOLDER.exists() else []


@needs_traces
@pytest.mark.corpus
@pytest.mark.parametrize(
    "export", [path for path in exports() if path.parent.name != "broken"], ids=lambda path: path.stem
)
def test_tables_of_real_exports_are_those_of_sqlite(export):
    compared = 0
    with open_tables(export) as tables:
        for name in tables.names:
            wanted = {column: null for column, null in tables.columns(name).items() if "text" not in column.lower()}
            try:
                values, left_out, damage = tables._pages(name, wanted)
            except NotSimple:
                continue
            expected, left_out_by_sqlite, _ = tables._scan(name, wanted)
            assert np.array_equal(values, expected), name
            assert (left_out, damage) == (left_out_by_sqlite, None)
            compared += len(values)
    assert compared > 0
