"""The command of nsys, and exports that keep settings and lose environments."""

import sqlite3
from contextlib import closing
from pathlib import Path

from dsv4bench.profiling.nsys import export_command, keep_settings, profile_command

SECRET = "TOKEN=hunter2"


def test_on_a_gpu_nodes_are_traced_between_profiler_start_and_stop():
    assert profile_command("nsys", Path("out/step"), ["python", "x.py"], "cuda") == [
        "nsys", "profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "-c", "cudaProfilerApi",
        "--capture-range-end=stop", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", "out/step", "python", "x.py",
    ]  # fmt: skip


def test_without_a_gpu_ranges_are_recorded_throughout():
    command = profile_command("nsys", Path("step"), ["python"], "cpu")
    assert command[2:4] == ["-t", "nvtx"]
    assert not [word for word in command if "cuda" in word.lower()]


def test_an_export_lies_beside_its_report_even_if_the_name_has_a_dot():
    command = export_command("nsys", Path("out/kv.v41"))
    assert command[-2:] == ["out/kv.v41.sqlite", "out/kv.v41.nsys-rep"]


TABLES = {
    "META_DATA_CAPTURE": [
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE_3", SECRET),
        ("PROCESS_0:ARGUMENT_0", "/home/somebody/run.py"),
        ("SOMETHING_MODE", SECRET),
        (None, SECRET),
    ],
    "META_DATA_EXPORT": [
        ("EXPORT_PRODUCT_VERSION", "2023.4.4"),
        ("EXPORT_SCHEMA_VERSION_MAJOR", "3"),
        ("EXPORT_HOST", "somebody"),
        ("EXPORT_PARAM_INPUT_PATH_ABS", "/home/somebody"),
    ],
    "TARGET_INFO_SYSTEM_ENV": [
        ("NvDriverVersion", "58015903"),
        ("DeviceEnvironment", f"HOME=/home/somebody;{SECRET}"),
        ("Hostname", "somebody"),
    ],
    "ProcessStreams": [("stdout", "somebody printed")],
    "NVTX_EVENTS": [("dsv4bench:step=0 rank=0", "a range")],
}


def made(path, tables):
    with closing(sqlite3.connect(path)) as file:
        for table, rows in tables.items():
            file.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            file.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
        file.commit()
    return path


def test_settings_stay_and_environment_paths_and_people_go_for_good(tmp_path):
    path = made(tmp_path / "export.sqlite", TABLES)
    assert keep_settings(path) == 4 + 2 + 2 + 1
    with closing(sqlite3.connect(path)) as file:
        left = {table: file.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
    assert left == {
        "META_DATA_CAPTURE": TABLES["META_DATA_CAPTURE"][:2],
        "META_DATA_EXPORT": TABLES["META_DATA_EXPORT"][:2],
        "TARGET_INFO_SYSTEM_ENV": TABLES["TARGET_INFO_SYSTEM_ENV"][:1],
        "ProcessStreams": [],
        "NVTX_EVENTS": TABLES["NVTX_EVENTS"],
    }
    assert not [word for word in (b"hunter2", b"somebody") if word in path.read_bytes()]


def test_an_export_without_these_tables_stays_as_it_is(tmp_path):
    assert keep_settings(made(tmp_path / "export.sqlite", {"NVTX_EVENTS": TABLES["NVTX_EVENTS"]})) == 0
