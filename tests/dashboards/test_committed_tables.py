"""The tables of every committed run: read in 80 columns, and in its tables.md as this version writes them."""

import io

import pytest

from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.tables import tables
from dsv4bench.results.store import read_records
from tests.source_tree import ROOT

RUNS = sorted(file.parent for file in (ROOT / "results").glob("*/tables.md"))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_tables_fit_80_columns_and_are_those_that_are_committed(run):
    found = tables(read_records(run).records)
    text, page = io.StringIO(), io.StringIO()
    show_tables(found, "table", text)
    assert [line for line in text.getvalue().splitlines() if len(line) > 80] == []
    show_tables(found, "md", page)
    again = f"write it again with `dsv4bench show results/{run.name} --format md`"
    assert (run / "tables.md").read_text(encoding="utf-8") == page.getvalue(), again
