"""What was run and on what, as tables."""

from dataclasses import replace

from dsv4bench.dashboards.run_tables import environment_table, run_table
from tests.results.synthetic import GPU, cpu_sweep, lost, record

TYPED = ["dsv4bench", "prefill", "--requests", "a b.jsonl"]


def run(**changes):
    return [replace(record(batch), **changes) for batch in (1, 8)]


def texts(table):
    columns, rows = table.shown()
    return [column.title for column in columns], rows


def test_a_command_on_a_machine_is_a_row():
    refused = lost("refused", "too long", batch=64, argv=TYPED)
    titles, rows = texts(run_table([*run(argv=[*TYPED, "--out", "x"]), refused]))
    assert titles == ["machine", "label", "commit", "records", "made", "command"]
    ((*what, made, command),) = rows
    assert what == ["NVIDIA H200", "measured", "c0ffeec0ffee", "2 ok, 1 refused"]
    assert (made, command) == ("2026-11-30 12:01 to 12:64", "dsv4bench prefill --requests 'a b.jsonl'")


def test_other_machines_commits_labels_and_commands_have_rows_of_their_own():
    other = {**GPU, "commit": "d" * 40, "dirty": True}
    _, rows = texts(
        run_table([*run(), *cpu_sweep(), *run(environment=other), *run(label="simulated"), *run(argv=TYPED)])
    )
    assert [row[:4] for row in rows] == [
        ["NVIDIA H200", "measured", "c0ffeec0ffee", "2 ok"],
        ["two cores", "measured", "c0ffeec0ffee with changes", "8 ok"],  # eager and tape
        ["NVIDIA H200", "measured", "dddddddddddd with changes", "2 ok"],
        ["NVIDIA H200", "simulated", "c0ffeec0ffee", "2 ok"],
        ["NVIDIA H200", "measured", "c0ffeec0ffee", "2 ok"],
    ]


def test_a_run_over_midnight_says_both_days_and_one_minute_is_said_once():
    over = run()
    over[1] = replace(over[1], created="2026-12-01T00:10:00+00:00")
    assert texts(run_table(over))[1][0][4] == "2026-11-30 12:01 to 2026-12-01 00:10"
    assert texts(run_table(over[:1]))[1][0][4] == "2026-11-30 12:01"


def test_a_fact_is_a_row_and_values_that_differ_are_listed():
    tree = {"name": "sglang", "commit": "abc", "dirty": True, "diff": None}
    one = replace(record(1), environment={**GPU, "ecc": True, "gpu_other_processes": 0, "mig": None, "src": tree})
    two = replace(one, environment={**one.environment, "gpu_other_processes": 2})
    titles, rows = texts(environment_table([one, two, *cpu_sweep()]))
    assert titles == ["fact", "NVIDIA H200, c0ffeec0ffee", "two cores, c0ffeec0ffee with changes"]
    found = {name: values for name, *values in rows}
    assert found["cpu"] == ["a CPU", "two cores"]
    assert found["gpu_other_processes"] == ["0, 2", ""]
    assert (found["ecc"][0], found["dirty"][1]) == ("true", "true")
    assert found["src"][0] == "name=sglang commit=abc dirty=true"
    assert "mig" not in found
