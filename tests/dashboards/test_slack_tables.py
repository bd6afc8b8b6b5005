"""The table of what --mem-fraction leaves free, before and after reuse."""

from dataclasses import replace

from dsv4bench.dashboards.slack_tables import slack_tables, taken_bytes
from dsv4bench.dashboards.tables import tables
from dsv4bench.results.compare import pairs
from tests.results.synthetic import lost, record, with_variant

GIB, MIB = 2**30, 2**20
HOW = "device memory - (peak reserved by torch + held by others), this side alone"
GIVEN = {"device_bytes": 140 * GIB, "weights_bytes": 76 * GIB, "full_pool_tokens": 25_600, "window_pool_tokens": 512}


def sized(one, **memory):
    return with_variant(replace(one, memory=memory), **{"mem-fraction": 0.7, "recipe": "dep4"})


def seen(batch, reuse, free_bytes, how=HOW, **more):
    memory = {"slack_how": how, "lowest_free_bytes": free_bytes, "workspace_bytes": 64 * MIB, **GIVEN}
    return sized(record(batch, reuse), peak_reserved_bytes=100 * GIB, peak_allocated_bytes=99 * GIB, **memory, **more)


def shown(records):
    (table,) = slack_tables(pairs(records, "reuse", "off", "on"))
    columns, rows = table.shown()
    return [column.title for column in columns], rows, table


def test_what_change_r_does_to_the_slack():
    names, rows, table = shown(
        [
            seen(1, "off", 40 * GIB),
            seen(1, "on", 40 * GIB),
            seen(8, "off", 38 * GIB),
            seen(8, "on", 38 * GIB - 3 * MIB),
        ]
    )
    assert names == ["batch", "mode", "least free", "reuse takes", "workspace", "peak"]
    assert [row[2:] for row in rows] == [
        ["40.00 GiB", "0 B", "64.00 MiB", "100.0 GiB"],
        ["38.00 GiB", "3.000 MiB", "64.00 MiB", "100.0 GiB"],
    ]
    assert table.title.startswith("Memory at mem-fraction 0.7, recipe dep4, reuse off -> on, attention stack of")
    assert table.notes[:5] == (
        "no out-of-memory in 4 cells",
        "least free of all: 38.00 GiB (8 x 1024, eager, reuse on)",
        "reuse takes of the slack, in 2 cells: at most 3.000 MiB",
        "of 140.0 GiB: weights 76.00 GiB (modelled), pools of 25600 full and 512 window tokens",
        HOW,
    )


def test_a_cell_that_ran_out_of_memory_is_a_row():
    full = sized(lost("out_of_memory", "CUDA out of memory. Tried to allocate 20 GiB", batch=8, reuse="on"))
    names, rows, table = shown([seen(8, "off", 38 * GIB), full])
    assert rows[0][names.index("least free")] == "38.00 GiB -> -"
    assert table.notes[0] == "out of memory: eager, batch 8 x 1024"
    both = [replace(full, variant=full.variant | {"reuse": reuse}) for reuse in ("off", "on")]
    assert shown(both)[1][0][2] == "out_of_memory"


def test_ranks_are_named_and_a_model_is_called_one():
    records = [seen(8, reuse, GIB, how="modelled: all of it", lowest_free_rank=1) for reuse in ("off", "on")]
    names, rows, table = shown(records)
    assert rows[0][names.index("rank")] == "1"
    assert "least free of all: 1.000 GiB (8 x 1024, eager, reuse off, rank 1)" in table.notes
    assert "recipe dep4 (modelled), reuse off -> on" in table.title


def test_one_side_takes_nothing_from_another():
    names, _, table = shown([seen(8, "on", GIB)])
    assert "reuse takes" not in names
    assert not any("takes" in note for note in table.notes)
    (pair,) = pairs([seen(8, "on", GIB)], "reuse", "off", "on")
    assert taken_bytes(pair) is None


def test_cells_without_a_fraction_have_no_such_table():
    assert not any(table.title.startswith("Memory at") for table in tables([record(1, "off"), record(1, "on")]))
