"""The other ranks of a run: every exchange says where a rank is, so that one that failed leaves nobody waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from dsv4bench.errors import CellError, UsageError
from dsv4bench.workloads.moe import Ranks

JOIN = timedelta(minutes=5)  # until all ranks are there: one may have ended over a slip of its own
TIMEOUT = timedelta(minutes=30)  # of an exchange: the slowest rank may be compiling all its kernels
LOST = "a collective failed"  # how a process ends that cannot say which rank is gone
GRACE_S = 10  # for the lifeline to say which rank is gone, and to end this process


# torch 2.13 has new names for these and warns of the old
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class OutOfStep(CellError):
    """Another rank is elsewhere: something failed there or here."""


class Peers(Ranks, Protocol):
    """The ranks that run together, this one being number `rank` of `size`."""

    def all_gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, in the order of ranks, when all have called this."""

    def barrier(self) -> None:
        """Let the devices of all ranks begin what is queued next at the same time."""


def exchange(peers: Peers, place: str, value: Any = None) -> list[Any]:
    """Return the value of every rank; OutOfStep where another rank is at another place of its work."""
    found = peers.all_gather((place, value))
    for rank, (where, _) in enumerate(found):
        if where != place:
            raise OutOfStep(f"left behind at {place} by rank {rank}, which is at {where}")
    return [value for _, value in found]


def meet(peers: Peers, place: str, value: Any = None) -> list[Any]:
    """Return the value of every rank once all are here; ranks that are out of step are sent here by their errors.

    There may be one such place ahead at any time, or ranks could wait at two of them for ever.
    """
    while True:
        try:
            return exchange(peers, place, value)
        except OutOfStep:
            continue


class ProcessGroup:
    """The ranks of torch's default process group: gloo on the hosts, and NCCL between GPUs."""

    def __init__(self, device: str) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._token = torch.zeros(1, device=device)

    def all_gather(self, value: Any) -> list[Any]:
        """Gather by gloo; where a rank is gone, wait for the lifeline, which knows it, to end this process."""
        found: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(found, value)
        except RuntimeError as error:
            time.sleep(GRACE_S)
            raise SystemExit(f"{LOST}: {error}") from error
        return found

    def barrier(self) -> None:
        """Reduce one number: on GPUs a kernel in the current stream that waits for those of all ranks."""
        _collective(dist.all_reduce, self._token)

    def tell(self, place: str, value: Any) -> list[Any]:
        """Return what every rank tells at this place; OutOfStep where another is elsewhere."""
        return exchange(self, place, value)

    def all_gather_rows(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        """Gather equal slices in the current stream."""
        _collective(_ALL_GATHER, out, rows)

    def reduce_scatter_rows(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        """Add up in the current stream and keep this rank's slice."""
        _collective(_REDUCE_SCATTER, out, rows)

    def all_reduce(self, rows: torch.Tensor) -> None:
        """Add up in place in the current stream."""
        _collective(dist.all_reduce, rows)


def _collective(run: Callable[..., Any], *rows: torch.Tensor) -> None:
    """Run a collective of the current stream; the lifeline has the first word about one that misses a rank."""
    try:
        run(*rows)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        time.sleep(GRACE_S)
        raise


def open_peers(device: str) -> ProcessGroup:
    """Join the process group that the environment describes; UsageError where that cannot be."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    try:
        store, rank, size = next(rendezvous("env://", timeout=JOIN))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        peers = ProcessGroup(device)
        peers.barrier()
    except (RuntimeError, ValueError) as error:
        raise UsageError(_why_not(str(error).splitlines()[0])) from error
    return peers


def _why_not(said: str) -> str:
    if "EADDRINUSE" in said or "in use" in said:
        return f"--dep: the port of the rendezvous is in use ({said}); expected a free MASTER_PORT"
    return f"--dep: the ranks found no way to each other: {said}"
