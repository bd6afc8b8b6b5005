"""What is said of the cells of a table: once, and with its cells where it is not said of all that ran."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.cells import said_of
from tests.results.synthetic import NOTHING, record


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["ok x", "ok x"], ["x"]),
        (["ok x", "ok"], ["x (eager, batch 1 x 1024)"]),
        (["ok x", "skipped"], ["x"]),
        (["ok x", "ok", "skipped"], ["x (eager, batch 1 x 1024)"]),
        (["ok x", "wrong"], ["x (eager, batch 1 x 1024)"]),
        (["ok", "skipped x"], ["x (eager, batch 2 x 1024)"]),
        (["ok", "ok"], []),
    ],
    ids=["all", "one", "all that ran", "one that ran", "the one that is right", "the one that did not run", "none"],
)
def test_what_is_said_of_all_that_ran_names_no_cells(cells, said):
    records = [
        replace(record(batch), **({} if status == "ok" else NOTHING | {"reason": "why"}), status=status, note=said_here)
        for batch, (status, *said_here) in enumerate(map(str.split, cells), start=1)
    ]
    assert said_of(records, lambda one: one.note) == said
