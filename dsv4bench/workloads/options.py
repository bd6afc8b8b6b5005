"""The options of `dsv4bench prefill`: from what was typed to what was meant, or one clear line saying why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch

from dsv4bench.errors import UsageError
from dsv4bench.workloads.axis import ascending_axis, number_axis, word_axis
from dsv4bench.workloads.dep import alignment
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI, Geometry, geometry
from dsv4bench.workloads.memory_options import memory_notes, memory_plan
from dsv4bench.workloads.model import MOE_ROUTED
from dsv4bench.workloads.moe_choice import Beside, moe_axis
from dsv4bench.workloads.pool_size import MemoryPlan
from dsv4bench.workloads.providers import choice
from dsv4bench.workloads.rank_weights import recipe_of
from dsv4bench.workloads.variant import (
    BREAK_OUTPUTS,
    BREAKS,
    COMPRESSORS,
    FAULTS,
    GRAPH_MODES,
    MHC,
    PATHS,
    REPLAYS,
    REUSE,
    KVPair,
    kv_pair,
)

Texts = str | Sequence[str]  # one axis, or one per repetition of the flag; empty where the flag was not given

DEVICES = ("auto", "cpu", "cuda")
BEFORE_FIRST = tuple(reversed(REUSE))  # "both" runs the before, reuse off, first
CHUNK = 8192  # tokens of a forward by default
CPU_DIVIDE = 64  # recorded lengths are divided by this on a CPU
GPU_LENGTHS = {"extend": "1k", "prefix": "8k"}
CPU_LENGTHS = {"extend": "8", "prefix": "120"}
QUICK_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class PrefillArguments:
    """What was typed, text by text; an empty text takes the default, some of which depend on the device."""

    batch: Texts = "1"
    extend: Texts = ""
    prefix: Texts = ""
    requests: str = ""
    chunk: Texts = ""
    graph: bool | None = None
    graph_mode: Texts = "breakable"
    breaks: Texts = "sm100"
    break_outputs: Texts = "copy"
    buckets: Texts = ""
    reuse: Texts = "both"
    kv: Texts = "v41+fp4"
    compressor: Texts = "fused"
    provider: Texts = "auto"
    replay: Texts = "off"
    path: Texts = "sparse"
    moe: Texts = "off"
    mhc: bool | Texts = False
    geometry: Texts = ""
    dep_simulated: Texts = "1"
    dep: int | str = ""
    align: str = "barrier"
    device: str = "auto"
    seed: int | str = 0
    samples: int | str | None = None
    quick: bool = False
    fault: str = ""
    mem_fraction: str = ""
    recipe: str = ""
    device_memory: str = ""


@dataclass(frozen=True, slots=True)
class PrefillOptions:
    """What was meant: every axis as its values, the device decided.

    `buckets` is no axis but one list, empty where that of specification 6.6 is meant; `divide` is what recorded lengths
    are divided by; `samples` is None where sampling stops by its own rule; `notes` are the lines about defaults that an
    output must show. `dep`: `ranks` is one number, of processes.
    """

    batch: tuple[int, ...]
    extend: tuple[int, ...]
    prefix: tuple[int, ...]
    requests: str
    divide: int
    chunk: tuple[int, ...]
    graph: tuple[bool, ...]
    graph_mode: tuple[str, ...]
    breaks: tuple[str, ...]
    break_outputs: tuple[str, ...]
    buckets: tuple[int, ...]
    reuse: tuple[str, ...]
    kv: tuple[KVPair, ...]
    compressor: tuple[str, ...]
    provider: tuple[str, ...]
    replay: tuple[str, ...]
    path: tuple[str, ...]
    moe: tuple[str, ...]
    mhc: tuple[str, ...]
    geometry: tuple[Geometry, ...]
    ranks: tuple[int, ...]
    dep: bool
    align: str
    device: str
    seed: int
    samples: int | None
    quick: bool
    fault: str | None
    memory: MemoryPlan | None
    notes: tuple[str, ...]


def prefill_options(typed: PrefillArguments, ran_on: str = "") -> PrefillOptions:
    """Return what `typed` means on this machine; UsageError, one line, for anything impossible.

    `ran_on` is the device, "cpu" or "cuda", of a machine on which it was run; none: one of this machine's.
    """
    typed = _filled(typed)
    device = ran_on or resolve_device(typed.device)
    quick = typed.quick or (device == "cpu" and typed.samples is None)
    divide = CPU_DIVIDE if typed.requests and device == "cpu" else 1
    reuse = word_axis("--reuse", typed.reuse, BEFORE_FIRST, every="both")
    geometries = _geometries(typed.geometry, device)
    recipe, ranks = recipe_of(typed.recipe), _ranks(typed)
    memory = memory_plan(typed, recipe, ranks, bool(typed.dep), device)
    return PrefillOptions(
        batch=number_axis("--batch", typed.batch),
        extend=_lengths(typed, "extend", device, least=1),
        prefix=_lengths(typed, "prefix", device, least=0),
        requests=typed.requests,
        divide=divide,
        chunk=number_axis("--chunk", typed.chunk or str((recipe.chunk if recipe else CHUNK) // divide)),
        graph=(False, True) if typed.graph is None else (typed.graph,),
        graph_mode=word_axis("--graph-mode", typed.graph_mode, GRAPH_MODES),
        breaks=word_axis("--breaks", typed.breaks, BREAKS, every="both"),
        break_outputs=word_axis("--break-outputs", typed.break_outputs, BREAK_OUTPUTS, every="both"),
        buckets=ascending_axis("--buckets", typed.buckets) if typed.buckets else (),
        reuse=reuse,
        kv=tuple(kv_pair(word) for word in _words(typed.kv)),
        compressor=word_axis("--compressor", typed.compressor, COMPRESSORS, every="both"),
        provider=_providers(typed.provider, device),
        replay=_replays(typed.replay, geometries),
        path=word_axis("--path", typed.path, PATHS),
        moe=_moes(typed, geometries),
        mhc=_mhc(typed.mhc),
        geometry=geometries,
        ranks=ranks,
        dep=bool(typed.dep),
        align=alignment(typed.align, bool(typed.dep)),
        device=device,
        seed=whole("--seed", typed.seed, least=0),
        samples=_samples(typed.samples, quick),
        quick=quick,
        fault=_fault(typed.fault, reuse, geometries),
        memory=memory,
        notes=(*_notes(typed, device, divide, quick), *memory_notes(memory, recipe)),
    )


def _ranks(typed: PrefillArguments) -> tuple[int, ...]:
    """Return how many ranks requests are dealt to; ranks of `--dep` share the routed experts evenly (8.1)."""
    simulated = number_axis("--dep-simulated", typed.dep_simulated)
    if not typed.dep:
        return simulated
    count = whole("--dep", typed.dep, least=1)
    if simulated != (1,):
        raise UsageError(f"--dep {count}: --dep-simulated {_joined(typed.dep_simulated)} runs ranks too; expected one")
    if MOE_ROUTED % count:
        fits = [size for size in range(1, count) if MOE_ROUTED % size == 0]
        raise UsageError(f"--dep {count}: {MOE_ROUTED} experts are not dealt evenly to {count} ranks; try {fits[-1]}")
    return (count,)


def _filled(typed: PrefillArguments) -> PrefillArguments:
    """Return `typed` with the default of every field that was left empty."""
    default = PrefillArguments()
    empty = [field.name for field in fields(typed) if getattr(typed, field.name) in ("", [], (), None)]
    return replace(typed, **{name: getattr(default, name) for name in empty})


def resolve_device(text: str) -> str:
    """Return "cpu" or "cuda" for "auto", "cpu" or "cuda"; UsageError where CUDA is asked for and not there."""
    (word,) = word_axis("--device", text, DEVICES)
    has_cuda = torch.cuda.is_available()
    if word == "cuda" and not has_cuda:
        raise UsageError("--device cuda: no CUDA device on this machine; expected cpu or auto")
    if word == "auto":
        return "cuda" if has_cuda else "cpu"
    return word


def _lengths(typed: PrefillArguments, name: str, device: str, least: int) -> tuple[int, ...]:
    """Return the axis of extend or prefix; a requests file brings lengths of its own."""
    text: Texts = getattr(typed, name)
    if typed.requests and text:
        raise UsageError(
            f"--{name} {_joined(text)}: the lengths come from --requests {typed.requests}; expected one of both"
        )
    defaults = CPU_LENGTHS if device == "cpu" else GPU_LENGTHS
    return number_axis(f"--{name}", text or defaults[name], least)


def _providers(text: Texts, device: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(choice(word, device).text for word in _words(text)))


def _replays(text: Texts, geometries: tuple[Geometry, ...]) -> tuple[str, ...]:
    """Return the values of --replay; the recipe's own is "on" (specification 1.2)."""
    words = word_axis("--replay", text, ("recipe", *REPLAYS))
    for model in geometries if set(words) != {"off"} else ():
        if model.late_start is None:
            raise UsageError(f"--replay {_joined(text)}: layers behind the last kv_source of {model.name} read others")
        if model.late_start == 0:
            raise UsageError(f"--replay {_joined(text)}: no layer of {model.name} lies before its last kv_source")
    return tuple(dict.fromkeys("on" if word == "recipe" else word for word in words))


def _moes(typed: PrefillArguments, geometries: tuple[Geometry, ...]) -> tuple[str, ...]:
    replays = _replays(typed.replay, geometries)
    full = typed.graph is not False and "full" in word_axis("--graph-mode", typed.graph_mode, GRAPH_MODES)
    return moe_axis(typed.moe, Beside(geometries, _ranks(typed), bool(typed.dep), replays, full))


def _mhc(typed: bool | Texts) -> tuple[str, ...]:
    """Return the values of mhc: a switch on the command line, words where two sides set it."""
    return (MHC[typed],) if isinstance(typed, bool) else word_axis("--mhc", typed, MHC)


def _geometries(text: Texts, device: str) -> tuple[Geometry, ...]:
    default = V41_FLASH_MINI.name if device == "cpu" else V41_FLASH.name
    return tuple(geometry(word) for word in _words(text or default))


def _fault(text: str, reuse: tuple[str, ...], geometries: tuple[Geometry, ...]) -> str | None:
    """Return the fault to plant; where it could have no effect a plan would look right, so there it is refused."""
    if not text:
        return None
    (fault,) = word_axis("--fault", text, FAULTS)
    if "on" not in reuse:
        raise UsageError(f"--fault {fault}: --reuse off has nothing to plant it in; expected --reuse on or both")
    for model in geometries if fault == "stale-head" else ():
        # without the cache's pointer, two heads are told apart by their gather ids, which all sources of a ratio share
        if not any(a.ratio and a.ratio == b.ratio and a.kv_source != b.kv_source for a, b in pairwise(model.layers)):
            raise UsageError(f"--fault stale-head: {model.name} has no kv_source right after another of its ratio")
    return fault


def _samples(samples: int | str | None, quick: bool) -> int | None:
    if samples is None:
        return QUICK_SAMPLES if quick else None
    return whole("--samples", samples, least=1)


def whole(option: str, value: int | str, least: int) -> int:
    """Return one whole number; UsageError names the option, the value and the least that is expected."""
    try:
        number = int(value)
    except ValueError:
        raise UsageError(f"{option} {value}: expected a whole number of at least {least}") from None
    if number < least:
        raise UsageError(f"{option} {value}: expected at least {least}")
    return number


def _notes(typed: PrefillArguments, device: str, divide: int, quick: bool) -> tuple[str, ...]:
    """Return what was decided for the user because of the device."""
    if device != "cpu":
        return ()
    lengths = [
        f"--{name} {value}" for name, value in CPU_LENGTHS.items() if not (getattr(typed, name) or typed.requests)
    ]
    mini = [] if typed.geometry else [f"--geometry {V41_FLASH_MINI.name}"]
    pace = ["one warm-up and three samples"] if quick and not typed.quick else []
    chosen = mini + lengths + pace
    notes = [f"defaults on a CPU: {', '.join(chosen)}"] if chosen else []
    if divide > 1:
        what = "lengths" if typed.chunk else "lengths and the chunk of 8192"
        notes.append(f"{what} of {typed.requests} are divided by {divide} on a CPU")
    return tuple(notes)


def _words(texts: Texts) -> tuple[str, ...]:
    parts = [texts] if isinstance(texts, str) else list(texts)
    return tuple(dict.fromkeys(word.strip() for part in parts for word in part.split(",")))


def _joined(texts: Texts) -> str:
    return texts if isinstance(texts, str) else " ".join(texts)
