"""Writes small exports as Nsight Systems does: the tables and columns that a version knows, and rows for them."""

import sqlite3
from contextlib import closing

PROCESS, OTHER_PROCESS = (1 << 56) | (1 << 48) | (529 << 24), (1 << 56) | (1 << 48) | (530 << 24)
THREAD, OTHER_THREAD = PROCESS | 529, PROCESS | 540
NAMES = {
    1: "void scale<int, float>(T *)",
    2: "scale",
    3: "_Z5scale",
    4: "cudaLaunchKernel_v7000",
    5: "cuLaunchKernelEx",
    6: "cudaGraphLaunch_v10000",
    7: "layer.0",
    8: "NCCL",
    9: "Graph Node Creation",
}
KERNEL, MEMCPY, MEMSET, RUNTIME, GRAPH_TRACE = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "GRAPH_TRACE")
)
COLUMNS = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    KERNEL: 'start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, '
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, "
    "mangledName INTEGER, graphNodeId INTEGER",
    MEMCPY: 'start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, '
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, "
    "dstKind INTEGER, graphNodeId INTEGER",
    MEMSET: 'start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, '
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, memKind INTEGER, graphNodeId INTEGER",
    RUNTIME: 'start INTEGER NOT NULL, "end" INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, '
    "correlationId INTEGER, nameId INTEGER NOT NULL",
    GRAPH_TRACE: 'start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER, correlationId INTEGER, '
    "globalPid INTEGER, graphId INTEGER, graphExecId INTEGER",
    "NVTX_EVENTS": 'start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, '
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER",
    "CUDA_GRAPH_NODE_EVENTS": "start INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT NULL, graphNodeId "
    "INTEGER NOT NULL, originalGraphNodeId INTEGER",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, l2CacheSize INTEGER, memoryBandwidth INTEGER, smCount INTEGER, "
    "cuDevice INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
    "DIAGNOSTIC_EVENT": "severity INTEGER, text TEXT",
    "ANALYSIS_DETAILS": "duration INTEGER",
}


def kernel(start, end, correlation, **more):
    """A row of KERNEL; what is not given is what most exports have there."""
    row = {"deviceId": 0, "streamId": 7, "globalPid": PROCESS, "demangledName": 1, "shortName": 2, "mangledName": 3}
    return {"start": start, "end": end, "correlationId": correlation, **row, **more}


def memcpy(start, end, correlation, **more):
    """A row of MEMCPY: 4 096 bytes from one place of the device to another."""
    row = {"deviceId": 0, "streamId": 7, "globalPid": PROCESS, "bytes": 4096, "copyKind": 8, "srcKind": 2, "dstKind": 2}
    return {"start": start, "end": end, "correlationId": correlation, **row, **more}


def memset(start, end, correlation, **more):
    """A row of MEMSET: 64 bytes of the device."""
    row = {"deviceId": 0, "streamId": 7, "globalPid": PROCESS, "bytes": 64, "memKind": 2}
    return {"start": start, "end": end, "correlationId": correlation, **row, **more}


def call(start, end, correlation, **more):
    """A row of RUNTIME: cudaLaunchKernel on the first thread."""
    row = {"eventClass": 0, "globalTid": THREAD, "nameId": 4}
    return {"start": start, "end": end, "correlationId": correlation, **row, **more}


def pushed(start, end, text=None, **more):
    """A row of NVTX_EVENTS: a push/pop range in the default domain."""
    return {"start": start, "end": end, "eventType": 59, "text": text, "globalTid": THREAD, "domainId": 0, **more}


def node(start, number, original=None, **more):
    """A row of CUDA_GRAPH_NODE_EVENTS."""
    row = {"globalTid": THREAD, "nameId": 9, "graphNodeId": number, "originalGraphNodeId": original}
    return {"start": start, **row, **more}


def export(path, tables, renamed=None, without=(), page_bytes=4096):
    """Write {table: rows} with the names of NAMES; `renamed` gives tables other names, `without` drops columns."""
    path.unlink(missing_ok=True)
    tables = {"StringIds": [{"id": one, "value": name} for one, name in NAMES.items()], **tables}
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        for table, rows in tables.items():
            columns = [one for one in COLUMNS[table].split(", ") if one.split()[0].strip('"') not in without]
            name = (renamed or {}).get(table, table)
            connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            names = [one.split()[0].strip('"') for one in columns]
            connection.executemany(
                f"INSERT INTO {name} VALUES ({', '.join('?' * len(names))})",
                [[row.get(column) for column in names] for row in rows],
            )
        connection.commit()
    return path
