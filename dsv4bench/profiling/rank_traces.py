"""Traces of one step of a cell on every rank: each rank records its own, in a process of its own, all at once.

These processes meet as the ranks themselves did, at a port of their own. Rank 0 keeps the traces of a cell in a folder,
a file a rank, which `dsv4bench trace review` reads as one run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from dsv4bench.errors import DsvError
from dsv4bench.profiling.peers import LOST, Peers, exchange
from dsv4bench.profiling.profile_pass import Job, in_words
from dsv4bench.workloads.cells import Cell

Recorder = Callable[[Job, str, int], tuple[str, bytes]]  # job, device, port -> name of the trace's file, its content
Tried = tuple[str, bytes] | str  # what was recorded, or why nothing was


def record_ranks(peers: Peers, cell: Cell, job: Job, record: Recorder, folder: Path | None) -> str | None:
    """Record a step of the cell on all ranks, and keep the traces in `folder`, which rank 0 alone knows.

    Returns why there is no trace, or None; a folder with traces of some ranks is not made.
    """
    (port, *_) = exchange(peers, "port of the traces", None if peers.rank else free_port())
    found = exchange(peers, "traces", _tried(record, job, cell.device, port))
    failed = [f"rank {rank}: {one}" for rank, one in enumerate(found) if isinstance(one, str)]
    if failed:
        causes = [one for one in failed if LOST not in one]
        return f"no trace of {in_words(cell)}: {(causes or failed)[0]}"
    if folder is not None:
        _keep(folder, [one for one in found if not isinstance(one, str)])
    return None


def _tried(record: Recorder, job: Job, device: str, port: int) -> Tried:
    try:
        return record(job, device, port)
    except DsvError as error:
        return str(error)


def _keep(folder: Path, traces: Sequence[tuple[str, bytes]]) -> None:
    folder.mkdir(exist_ok=True)
    for old in folder.glob("rank*"):  # of a run that ended before it had a record of this cell
        old.unlink()
    for name, content in traces:
        (folder / name).write_bytes(content)


def free_port() -> int:
    """Return a port of this host that nobody uses now."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
