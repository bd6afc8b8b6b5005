"""Which rank of how many this process is, as torchrun or srun say it in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsv4bench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank of how many the environment makes of this process, and on its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def place_of(environment: Mapping[str, str]) -> Place | None:
    """Return the rank that torchrun or srun gave to this process, or None where nobody did.

    The script of a SLURM batch job has a rank too, but no step, and a shell in a step of one task (`srun --pty bash`)
    is alone: there nobody else would come.
    """
    torchrun = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    slurm = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
    if {"RANK", "WORLD_SIZE"} <= environment.keys():
        names = torchrun
    elif {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"} <= environment.keys() and environment["SLURM_NTASKS"] != "1":
        names = slurm
    else:
        return None
    rank, size = (_number(name, environment[name]) for name in names[:2])
    local_rank = _number(names[2], environment.get(names[2], "0"))
    local_size = _number(names[3], environment.get(names[3], str(local_rank + 1)).split("(")[0].split(",")[0])
    return Place(rank, size, local_rank, local_size)


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun or srun made this process a rank, by names and numbers that make sense."""
    try:
        return place_of(environment) is not None
    except UsageError:
        return False


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{name}={text}: expected a whole number, as torchrun and srun set it")
    return int(text)
