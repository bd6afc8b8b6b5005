"""What reading a large nsys export costs: seconds and peak memory, beside pandas' SQL on the same question.

Usage: python benchmarks/nsys_reading.py [kernels]. Writes the same export in every run (a million kernels, 110 MB, all
columns of nsys 2024.5) into a temporary folder, and reads it in a process of its own each time.
"""

import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pandas as pd

from dsv4bench.profiling.traces import columns, nsys_reader

KERNELS = 1_000_000
KERNELS_OF_A_RANGE = 20
PROCESS = (1 << 56) | (1 << 48) | (529 << 24)
REST = (None, 0, 0, 32, 1024, 1, 1, 128, 1, 1, 0, 49_152, 0, 0, 1, 65_536, None, 0)  # of a kernel, read by nobody
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
    cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
    staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
    localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
    sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,
    text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""


def write_export(path: Path, kernels: int) -> None:
    """Write an export with this many launched kernels and a range around every twenty of them."""
    thread = PROCESS | 529

    def starts(every: int) -> Iterator[tuple[int, int]]:
        return ((one, 3_000 * one) for one in range(0, kernels, every))

    names = [(one, f"void kernel_{one}<int, float>(int const*, float*)") for one in range(1, 200)]
    of_kernels = (
        (start + 500, start + 2_000 + one % 997, 0, 1, None, 7, one + 1, PROCESS, one % 150 + 1, one % 150 + 1, *REST)
        for one, start in starts(1)
    )
    of_calls = ((start, start + 900, 0, thread, one + 1, 160, 0, None) for one, start in starts(1))
    of_ranges = (
        (start, start + 59_000, 59, None, None, None, f"layer.{one // KERNELS_OF_A_RANGE % 61}", thread, None, None, 0)
        for one, start in starts(KERNELS_OF_A_RANGE)
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
        rows = {
            "StringIds": names,
            "CUPTI_ACTIVITY_KIND_KERNEL": of_kernels,
            "CUPTI_ACTIVITY_KIND_RUNTIME": of_calls,
            "NVTX_EVENTS": of_ranges,
        }
        for table, values in rows.items():
            width = len(connection.execute(f"PRAGMA table_info({table})").fetchall())
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", values)
        connection.commit()


def read_ours(path: Path) -> dict[str, int]:
    """Return kernels, how many have a call, their time in ns and the ranges, by the reader of the package."""
    trace = nsys_reader.read(path)
    rows = trace.operations[trace.operations["kind"] == columns.KERNEL]
    launched = int(rows["correlation"].isin(trace.launches["correlation"]).sum())
    lasts_ns = int((rows["end_ns"] - rows["start_ns"]).sum())
    named = len(trace.names(rows["name"]))
    return {"kernels": named, "launched": launched, "ns": lasts_ns, "ranges": len(trace.annotations)}


def read_plainly(path: Path) -> dict[str, int]:
    """Return the same by `pandas.read_sql` of the columns that are needed, names joined in SQL."""
    with closing(sqlite3.connect(path)) as connection:
        rows = pd.read_sql(
            'SELECT start, "end", deviceId, streamId, correlationId, globalPid, graphNodeId, value AS name '
            "FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON demangledName = id",
            connection,
        )
        calls = pd.read_sql(
            'SELECT start, "end", globalTid, correlationId, value AS name '
            "FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id",
            connection,
        )
        ranges = pd.read_sql('SELECT start, "end", eventType, text, globalTid FROM NVTX_EVENTS', connection)
    launched = int(rows["correlationId"].isin(calls["correlationId"]).sum())
    lasts_ns = int((rows["end"] - rows["start"]).sum())
    return {"kernels": len(rows), "launched": launched, "ns": lasts_ns, "ranges": len(ranges)}


WAYS = {"dsv4bench": read_ours, "pandas SQL": read_plainly}


def measure(way: str, path: Path) -> None:
    """Print what one way takes, in this process."""
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    start, start_cpu = time.perf_counter(), time.process_time()
    answer = WAYS[way](path)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{way:10} {seconds:6.2f} s (CPU {cpu_seconds:.2f} s)  peak {peak_mb} MB (imports {before_mb} MB)  {answer}",
        flush=True,
    )


def main(kernels: int) -> None:
    """Write the export and read it in every way, twice in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        write_export(path, kernels)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {kernels} kernels", flush=True)
        for way in [*WAYS, *WAYS]:
            subprocess.run([sys.executable, __file__, way, str(path)], check=True)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in WAYS:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else KERNELS)
