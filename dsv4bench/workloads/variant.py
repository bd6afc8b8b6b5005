"""The switches of a step: KV formats, reuse, compressor, graph, its breaks, provider, and what is around attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsv4bench.errors import UsageError, nearest
from dsv4bench.kernels.layout import UNIFORM_FP8, V4, V41, V41_FP4, V41_FP4_NEW, V41_NEW, KVLayout

FAULTS = ("stale-head", "wrong-row", "extra-copy")
REUSE = ("on", "off")
COMPRESSORS = ("torch", "fused")
GRAPH_MODES = ("breakable", "full")
REPLAYS = ("off", "on")
PATHS = ("sparse", "recipe")
BREAKS = ("sm100", "hopper")
BREAK_OUTPUTS = ("copy", "static")
MOES = ("off", "collectives", "experts")
MHC = ("off", "on")


@dataclass(frozen=True, slots=True)
class KVPair:
    """The layouts of the main (sliding window) and the extra (compressed) caches."""

    main: KVLayout
    extra: KVLayout

    @property
    def name(self) -> str:
        """The command-line word: "v41" where both are the same, else both names, "v41+fp4"."""
        return self.main.name if self.main == self.extra else f"{self.main.name}+{self.extra.name}"


# specification 2.1: identical layouts, or V41 with an FP4 extra cache of its arrangement; FP4 is never a main cache
_PAIRS = (
    KVPair(V4, V4),
    KVPair(V41, V41),
    KVPair(V41, V41_FP4),
    KVPair(V41_NEW, V41_NEW),
    KVPair(V41_NEW, V41_FP4_NEW),
    KVPair(UNIFORM_FP8, UNIFORM_FP8),
)
KV_PAIRS = {pair.name: pair for pair in _PAIRS}


def kv_pair(text: str) -> KVPair:
    """Return the pair called `text`; UsageError names the nearest one, and says why FP4 cannot stand alone."""
    if text in KV_PAIRS:
        return KV_PAIRS[text]
    known = ", ".join(KV_PAIRS)
    if text.split("+")[0] in (V41_FP4.name, V41_FP4_NEW.name):
        raise UsageError(f"--kv {text}: FP4 is extra-only (compressed rows), never a main cache; known: {known}")
    raise UsageError(f"--kv {text}: no such KV pair{nearest(text, tuple(KV_PAIRS))}; known: {known}")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a step; before and after are two variants that differ in one switch."""

    kv: KVPair = KV_PAIRS["v41+fp4"]
    reuse: Literal["on", "off"] = "on"
    compressor: Literal["torch", "fused"] = "fused"
    graph: bool = False
    graph_mode: Literal["breakable", "full"] = "breakable"
    provider: str = "torch"  # as `providers.Choice` spells it
    fault: str | None = None
    replay: Literal["off", "on"] = "off"
    path: Literal["sparse", "recipe"] = "sparse"
    breaks: Literal["sm100", "hopper"] = "sm100"
    break_outputs: Literal["copy", "static"] = "copy"
    moe: Literal["off", "collectives", "experts"] = "off"
    mhc: Literal["off", "on"] = "off"

    @property
    def breakable(self) -> bool:
        """Whether segments are captured with breaks between them."""
        return self.graph and self.graph_mode == "breakable"

    def switches(self) -> dict[str, str | bool | None]:
        """Return the switches by their command-line names and values.

        `graph` is true or false; what is said of breaks is None where there are none.
        """
        return {
            "kv": self.kv.name,
            "reuse": self.reuse,
            "compressor": self.compressor,
            "graph": self.graph,
            "graph-mode": self.graph_mode,
            "provider": self.provider,
            "fault": self.fault,
            "replay": self.replay,
            "path": self.path,
            "breaks": self.breaks if self.breakable else None,
            "break-outputs": self.break_outputs if self.breakable else None,
            "moe": self.moe,
            "mhc": self.mhc,
        }


def variant_of(switches: Mapping[str, Any]) -> Variant:
    """Return the variant whose `switches` these are, as a record holds them; what an older record lacks is default.

    UsageError for a KV pair that this version does not know.
    """
    default = Variant()
    form = {
        name: switches.get(name.replace("_", "-")) or getattr(default, name) for name in ("breaks", "break_outputs")
    }
    names = ("reuse", "compressor", "graph", "graph_mode", "provider", "fault", "replay", "path", "moe", "mhc")
    plain = {name: switches.get(name.replace("_", "-"), getattr(default, name)) for name in names}
    return Variant(kv=kv_pair(switches["kv"]), **plain, **form)
