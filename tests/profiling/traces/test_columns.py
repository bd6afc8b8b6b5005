"""The tables of a trace: types, what is missing, names."""

import numpy as np
import pytest

from dsv4bench.profiling.traces.columns import NO_ID, TABLES, Codes, Trace, table


@pytest.mark.parametrize("name", TABLES)
def test_no_columns_are_no_rows_of_the_right_types(name):
    empty = table(name)
    assert len(empty) == 0
    assert {column: np.dtype(kind) for column, kind in TABLES[name].items()} == dict(empty.dtypes)


def test_a_column_that_a_file_lacks_is_no_id_throughout():
    found = table("operations", {"kind": [0, 1], "start_ns": [5, 7]})
    assert found["start_ns"].tolist() == [5, 7]
    assert found["graph_node"].tolist() == [NO_ID, NO_ID]
    assert found["start_ns"].dtype == np.int64


def test_a_column_that_no_table_has_is_refused():
    with pytest.raises(ValueError, match="launches: no such column: graph_node"):
        table("launches", {"graph_node": [1]})


def test_a_nanosecond_of_a_late_origin_is_kept():
    late = 1_712_000_000_000_000_123
    assert table("launches", {"start_ns": [late]})["start_ns"].tolist() == [late]


def test_names_are_those_of_the_codes():
    codes = Codes()
    operations = table("operations", {"name": [codes["add"], codes["copy"], codes["add"]]})
    trace = Trace("file", "kineto", codes.values, operations, *(table(name) for name in list(TABLES)[1:]))
    assert trace.names(operations["name"]).tolist() == ["add", "copy", "add"]
    assert codes.values == ["add", "copy"]
