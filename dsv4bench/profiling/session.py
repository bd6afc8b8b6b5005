"""What all groups of one run share: the device, how to time, and what every record says about where it was made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from dsv4bench.profiling.clocks import Nvml, open_nvml
from dsv4bench.profiling.environment import environment
from dsv4bench.profiling.peers import Peers
from dsv4bench.profiling.timing import QUICK, Clock, StopRule, clock
from dsv4bench.ranges import Mark, timing_mark
from dsv4bench.workloads.memory import free_bytes


@dataclass(frozen=True, slots=True)
class Session:
    """One run of the command."""

    device: torch.device
    clock: Clock
    rule: StopRule
    mark: Mark
    environment: dict[str, Any]
    argv: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nvml: Nvml | None = None
    peers: Peers | None = None  # the other ranks, where each is a process
    free_bytes: int = 0  # of device memory before anything was loaded, of ranks the least; 0: not asked yet

    @property
    def commit(self) -> str:
        """What a cell's key names as the code: commit, hash of how the tree differs from it, the tree of `--src`."""
        own, src = self.environment, self.environment.get("src")
        code = _with_changes(own.get("commit") or f"version {own.get('dsv4bench')}", own)
        return f"{code}, src {src['name']} {_with_changes(src['commit'], src)}" if src else code

    @property
    def own_threads(self) -> int | None:
        """The threads of this run on the CPU that is timed; None where a GPU is, and on all ranks but one."""
        peers = self.peers
        if self.device.type != "cpu" or (peers and peers.rank):
            return None
        return torch.get_num_threads() * (peers.size if peers else 1)

    def with_free_bytes(self) -> Session:
        """Return this session with the memory that is free now, before anything is loaded, unless it has been asked.

        Asking takes a context on a GPU, which the processes that measure there would count: who starts them must not.
        """
        return self if self.free_bytes else replace(self, free_bytes=free_bytes(self.device.type))


def open_session(
    device: str,
    samples: int | None,
    quick: bool,
    argv: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    src: dict[str, Any] | None = None,
) -> Session:
    """Look at this machine and decide how to time on it; no context is taken, and a CPU is set to one thread.

    `src` are the facts of a source tree whose packages come before the installed ones.
    The operations of the CPU reference are small: their threads wait for each other more than they share work, by
    tenfold where the machine is not idle (docs/measured-facts.md).
    """
    if device == "cpu":
        torch.set_num_threads(1)
    rule = replace(QUICK, samples=samples or QUICK.samples) if quick else StopRule(samples=samples)
    mark, name = timing_mark()
    return Session(
        device=torch.device(device),
        clock=clock(device),
        rule=rule,
        mark=mark,
        environment=environment(device) | {"timing_mark": name, "src": src},
        argv=argv,
        notes=notes,
        nvml=open_nvml() if device == "cuda" else None,
    )


def _with_changes(commit: str | None, state: dict[str, Any]) -> str:
    return f"{commit}+{state.get('diff') or 'changes'}" if state.get("dirty") else str(commit)
