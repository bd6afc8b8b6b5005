"""The command of nsys, and exports that keep events and settings and lose environments."""

import sqlite3
from contextlib import closing
from pathlib import Path

from dsv4bench.profiling.nsys import export_command, keep_events, profile_command

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


OURS, OTHER = 7 << 24, 9 << 24  # global ids of two processes
TABLES = {
    "META_DATA_CAPTURE (name, value)": [
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE_3", SECRET),
        ("PROCESS_0:ARGUMENT_0", "/home/somebody/run.py"),
        ("SOMETHING_MODE", SECRET),
        (None, SECRET),
    ],
    "META_DATA_EXPORT (name, value)": [
        ("EXPORT_PRODUCT_VERSION", "2023.4.4"),
        ("EXPORT_SCHEMA_VERSION_MAJOR", "3"),
        ("EXPORT_HOST", "somebody"),
        ("EXPORT_PARAM_INPUT_PATH_ABS", "/home/somebody"),
    ],
    "EXPORT_META_DATA (name, value)": [("EXPORT_PRODUCT_VERSION", "2022.4.2"), ("EXPORT_HOST", "somebody")],
    "TARGET_INFO_SYSTEM_ENV (name, value)": [
        ("NvDriverVersion", "58015903"),
        ("DeviceEnvironment", f"HOME=/home/somebody;{SECRET}"),
        ("Hostname", "somebody"),
    ],
    "StringIds (id, value)": [
        (1, "_dequant"),
        (2, "void _dequant<int>()"),
        (3, "cuLaunchKernelEx"),
        (4, "main thread"),
        (5, "a range"),
        (6, f"{SECRET}\0PWD=/home/somebody"),  # of another process, and no row says whose
        (7, "a thread of somebody"),
        (8, "what somebody printed"),
    ],
    "ProcessStreams (globalPid, filenameId, contentId)": [(OURS, 8, 8)],
    "PROCESSES (globalPid, pid, name)": [(OURS, 7, "/home/somebody/venv/bin/python3")],
    "ThreadNames (nameId, priority, globalTid)": [(4, 20, OURS + 7), (7, 20, OTHER + 9)],
    "CUPTI_ACTIVITY_KIND_KERNEL (start, globalPid, demangledName, shortName, deviceId)": [(10, OURS, 2, 1, 6)],
    "CUPTI_ACTIVITY_KIND_RUNTIME (start, globalTid, nameId)": [(5, OURS + 7, 3)],
    "NVTX_EVENTS (eventType, text, textId, globalTid)": [
        (75, "dsv4bench", None, OURS + 7),
        (59, None, 5, OURS + 7),
        (59, "dsv4bench:step=0 rank=0", None, OURS + 7),
    ],
    "DIAGNOSTIC_EVENT (severity, text)": [(2, "events were lost"), (1, "see /home/somebody/stdout.log")],
    "SOMETHING_NEW (value)": [(SECRET,)],
}
# how many rows of each table stay, the first ones
KEPT = {
    "META_DATA_CAPTURE": 2,
    "META_DATA_EXPORT": 2,
    "EXPORT_META_DATA": 1,
    "TARGET_INFO_SYSTEM_ENV": 1,
    "StringIds": 5,
    "ThreadNames": 1,
    "CUPTI_ACTIVITY_KIND_KERNEL": 1,
    "CUPTI_ACTIVITY_KIND_RUNTIME": 1,
    "NVTX_EVENTS": 3,
    "DIAGNOSTIC_EVENT": 1,
}


def made(path, tables):
    with closing(sqlite3.connect(path)) as file:
        for table, rows in tables.items():
            name = table.split()[0]
            file.execute(f"CREATE TABLE {table}")
            file.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        file.commit()
    return path


def contents(path):
    with closing(sqlite3.connect(path)) as file:
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
        return {name: file.execute(f"SELECT * FROM {name}").fetchall() for name in names}


def test_events_and_settings_stay_and_environments_paths_and_other_processes_go_for_good(tmp_path):
    path = made(tmp_path / "export.sqlite", TABLES)
    assert keep_events(path) == 2
    assert contents(path) == {
        name: rows[: KEPT[name]] for table, rows in TABLES.items() if (name := table.split()[0]) in KEPT
    }
    assert not [word for word in (b"hunter2", b"somebody") if word in path.read_bytes()]


def test_an_export_of_ranges_alone_loses_nothing_and_one_without_has_none(tmp_path):
    events = {name: rows for name, rows in TABLES.items() if name.startswith("NVTX")}
    path = made(tmp_path / "export.sqlite", events)
    assert keep_events(path) == 2
    assert contents(path) == {"NVTX_EVENTS": events["NVTX_EVENTS (eventType, text, textId, globalTid)"]}
    strings = {name: rows for name, rows in TABLES.items() if name.startswith("StringIds")}
    path = made(tmp_path / "strings.sqlite", strings)
    assert keep_events(path) == 0
    assert contents(path) == {"StringIds": []}
