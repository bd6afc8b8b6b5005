"""The lifeline: who is lost and why, heard at once by rank 0, and the end of everybody else."""

import queue
import socket
from threading import Thread

import pytest

from dsv4bench.profiling import lifeline
from dsv4bench.profiling.lifeline import GONE, Lifeline
from tests.profiling.thread_peers import on_ranks

WAIT_S = 20


@pytest.fixture
def ended(monkeypatch):
    """What would have ended the process, in place of ending it, and no waiting for that."""
    found = queue.Queue()
    monkeypatch.setattr(lifeline.os, "_exit", lambda code: found.put(("ended", code)))
    monkeypatch.setattr(lifeline, "GRACE_S", 0)
    return found


def connected(peers, lost):
    return Lifeline(peers, "localhost", lambda *said: lost.put(said))


def test_ranks_that_are_done_let_go_in_silence(ended):
    lost = queue.Queue()

    def work(peers):
        connected(peers, lost).close()
        return "done"

    assert on_ranks(3, work) == ["done"] * 3
    assert lost.empty()
    assert ended.empty()


@pytest.mark.parametrize(
    ("leave", "status", "reason"),
    [
        (lambda line: line.fail("failed", "RuntimeError: of two\nlines"), "failed", "RuntimeError: of two lines"),
        (lambda line: line.fail("out_of_memory", "no more room"), "out_of_memory", "no more room"),
        (lambda line: line._sockets[0].shutdown(2), "failed", GONE),  # as the system does for a process that is killed
    ],
    ids=["it says why", "it is out of memory", "it is killed"],
)
def test_rank_0_hears_who_is_lost_and_why(ended, leave, status, reason):
    lost = queue.Queue()

    def work(peers):
        line = connected(peers, lost)
        if peers.rank == 2:
            leave(line)
        return line

    lines = on_ranks(3, work)
    assert lost.get(timeout=WAIT_S) == (2, status, reason)
    assert ended.get(timeout=WAIT_S) == ("ended", 1)
    for line in lines:
        line._over.set()
        for connection in line._sockets.values():
            connection.close()


@pytest.mark.parametrize("failing", [{0}, {0, 1, 2}], ids=["rank 0", "all at once"])
def test_only_the_first_loss_is_one(ended, failing):
    """Or each would take one more group with it, as the others do that end with rank 0."""
    lost = queue.Queue()

    def work(peers):
        line = connected(peers, lost)
        if peers.rank in failing:
            # a second loss waits for the end of the process, which does not come here
            Thread(target=line.fail, args=("out_of_memory", f"no room for {peers.rank}"), daemon=True).start()
        return line

    lines = on_ranks(3, work)
    rank, *why = lost.get(timeout=WAIT_S)
    assert rank in failing
    assert why == ["out_of_memory", f"no room for {rank}"]
    assert ended.get(timeout=WAIT_S) == ("ended", 1)
    for line in lines[1:]:
        line._sockets[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(queue.Empty):
        lost.get(timeout=0.5)
    for line in lines:
        for connection in line._sockets.values():
            connection.close()


def test_a_host_that_is_gone_is_missed_within_half_a_minute(ended):
    """Nothing ends a connection then: the system has to ask."""

    def asked(connection):
        idle_s, apart_s, times = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        return connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), idle_s + apart_s * times <= 30

    def work(peers):
        line = connected(peers, queue.Queue())
        found = [asked(connection) for connection in line._sockets.values()]
        line.close()
        return found

    assert on_ranks(3, work) == [[(1, True)] * 2, [(1, True)], [(1, True)]]


def test_every_rank_ends_with_rank_0(ended):
    lost = queue.Queue()

    def work(peers):
        line = connected(peers, lost)
        if peers.rank == 0:
            line._over.set()  # rank 0 is gone, and hears nothing any more
            for connection in line._sockets.values():
                connection.shutdown(2)
        return line

    lines = on_ranks(3, work)
    assert [ended.get(timeout=WAIT_S) for _ in range(2)] == [("ended", 1)] * 2
    assert lost.empty()
    for line in lines:
        for connection in line._sockets.values():
            connection.close()
