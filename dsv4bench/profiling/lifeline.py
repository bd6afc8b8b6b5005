"""A connection from every rank to rank 0 that tells at once which rank is gone, or why it gives up.

A collective that misses a rank tells neither, and on a GPU it waits until a watchdog comes. While ranks are well they
send nothing, so that nothing disturbs what is timed; only their systems ask each other every few seconds.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from dsv4bench.profiling.peers import GRACE_S, Peers, exchange

GONE = "its process is gone: killed, or ended by the system (out of host memory?)"
LOST = "failed"  # what the cells are that a rank takes with it without a word
CONNECT_S = 60
FAILED = 1
# a host that is gone is missed after 25 s; a system that has no such option asks as it is used to
ASKED = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}

Loss = Callable[[int, str, str], None]  # rank, status of the cells that it takes with it, and reason


class Lifeline:
    """This rank's end; `on_loss` is called on rank 0, in a thread of its own, with the first rank lost and why.

    After that call, or on any other rank when rank 0 is gone, this process ends with exit code 1, whatever it waits
    for. `host` is where the other ranks reach rank 0.
    """

    def __init__(self, peers: Peers, host: str, on_loss: Loss) -> None:
        self._peers = peers
        self._on_loss = on_loss
        self._over = threading.Event()
        self._first = threading.Lock()
        self._sockets = self._connected(host)
        for rank, connection in self._sockets.items():
            _keep_asking(connection)
            threading.Thread(target=self._watch, args=(rank, connection), daemon=True).start()

    def fail(self, status: str, reason: str) -> None:
        """Give up: as rank 0 be the first rank lost, unless another was; as another tell rank 0, and wait for the end.

        `status` is a word, that of the cells which this rank takes with it.
        """
        if self._peers.rank == 0:
            self._lose(0, status, reason)
        for connection in self._sockets.values():
            with suppress(OSError):
                connection.sendall(" ".join([status, *reason.split()]).encode() + b"\n")
        time.sleep(GRACE_S)

    def close(self) -> None:
        """Let go when all ranks are done."""
        exchange(self._peers, "nearly the end")
        self._over.set()
        exchange(self._peers, "the end")
        for connection in self._sockets.values():
            connection.close()

    def _connected(self, host: str) -> dict[int, socket.socket]:
        """Return the connections of rank 0 by rank, or of another rank the one to rank 0."""
        if self._peers.rank:
            port = exchange(self._peers, "lifeline")[0]
            connection = socket.create_connection((host, port), timeout=CONNECT_S)
            connection.settimeout(None)
            connection.sendall(f"{self._peers.rank}\n".encode())
            return {0: connection}
        with socket.create_server(("", 0), backlog=self._peers.size) as server:
            server.settimeout(CONNECT_S)
            exchange(self._peers, "lifeline", server.getsockname()[1])
            accepted = [server.accept()[0] for _ in range(1, self._peers.size)]
        return {int(_line(connection)): connection for connection in accepted}

    def _watch(self, rank: int, connection: socket.socket) -> None:
        """Wait for the connection to end, or for words; both mean that the other end gives up."""
        said = ""
        with suppress(OSError):
            said = _line(connection)
        if self._over.is_set():
            return
        if self._peers.rank == 0:
            status, _, reason = said.partition(" ")
            self._lose(rank, status or LOST, reason or GONE)
        os._exit(FAILED)

    def _lose(self, rank: int, status: str, reason: str) -> None:
        """Hear of the first rank lost and end, and all others with this process; a second loss waits here for that."""
        self._first.acquire()
        self._on_loss(rank, status, reason)
        os._exit(FAILED)


def _keep_asking(connection: socket.socket) -> None:
    """Let the system end a connection whose other host does not answer any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in ASKED.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _line(connection: socket.socket) -> str:
    """Return the line that is sent next, or "" where the connection ends."""
    said = b""
    while not said.endswith(b"\n"):
        more = connection.recv(1)
        if not more:
            break
        said += more
    return said.decode(errors="replace").strip()
