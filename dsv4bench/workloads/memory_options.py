"""`--mem-fraction`, `--recipe` and `--device-memory`: from what was typed to a plan of memory, or why there is none."""

from __future__ import annotations

from typing import Protocol

from dsv4bench.errors import UsageError
from dsv4bench.units import GIB, MIB, format_bytes, parse_quantity
from dsv4bench.workloads.pool_size import MemoryPlan
from dsv4bench.workloads.rank_weights import Recipe

UNITS = {"GiB": float(GIB), "MiB": float(MIB), "GB": 1e9, "MB": 1e6, "": 1.0}


class MemoryArguments(Protocol):
    """What was typed of it; an empty text was not."""

    @property
    def mem_fraction(self) -> str:
        """The fraction."""

    @property
    def device_memory(self) -> str:
        """A size of memory."""


def memory_plan(
    typed: MemoryArguments, recipe: Recipe | None, ranks: tuple[int, ...], dep: bool, device: str
) -> MemoryPlan | None:
    """Return the plan without its batches, or None where none was asked for; a fraction that was typed goes first.

    Without a recipe the routed experts are shared by the ranks of `--dep`.
    """
    if not typed.mem_fraction and recipe is None:
        if typed.device_memory:
            raise UsageError(f"--device-memory {typed.device_memory}: expected with --mem-fraction or --recipe")
        return None
    fraction = _fraction(typed.mem_fraction) if typed.mem_fraction else recipe.fraction if recipe else 0.0
    asked = MemoryPlan(
        fraction=fraction,
        ranks=recipe.ranks if recipe else ranks[0],
        recipe=recipe.name if recipe else "",
        device_bytes=_device_bytes(typed.device_memory),
    )
    if not dep and ranks != (1,):
        raise UsageError(f"{asked.words}: ranks of --dep-simulated share one device's pools; expected --dep")
    if device == "cpu" and asked.device_bytes is None:
        raise UsageError(f"{asked.words}: a CPU has no device memory; expected --device-memory, e.g. 4GiB")
    return asked


def memory_notes(plan: MemoryPlan | None, recipe: Recipe | None) -> tuple[str, ...]:
    """Return what must be read with every figure of a plan: where a recipe comes from, and that a size was given."""
    if plan is None:
        return ()
    known = (
        [f"recipe {recipe.name}: experts on {recipe.ranks} ranks; {recipe.source} of the specification"]
        if recipe
        else []
    )
    given = format_bytes(plan.device_bytes)
    return tuple(known if plan.device_bytes is None else [*known, f"device memory {given}: given, not measured"])


def refuse_given_memory(plan: MemoryPlan | None, device: str) -> None:
    """Raise UsageError where a run on a GPU, whose memory is what it is, was given a size."""
    if plan is not None and plan.device_bytes is not None and device == "cuda":
        size = format_bytes(plan.device_bytes)
        raise UsageError(f"--device-memory {size}: a run takes the GPU's own; expected --dry-run or --device cpu")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"--mem-fraction {text}: expected a number between 0 and 1, e.g. 0.7") from None
    if not 0 < value < 1:
        nearest = f" (did you mean {value / 100:g}?)" if 10 <= value < 100 else ""
        raise UsageError(f"--mem-fraction {text}: expected more than 0 and less than 1{nearest}")
    return value


def _device_bytes(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(parse_quantity(text, UNITS))
    except ValueError:
        raise UsageError(f"--device-memory {text}: expected bytes, or a number of GiB, MiB, GB or MB") from None
