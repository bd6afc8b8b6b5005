"""From options to cells: a cell is one workload under one variant; cells that differ only in a switch form a group."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from dsv4bench.errors import UsageError
from dsv4bench.workloads.batch import Batch, Plan, Request, equal_requests
from dsv4bench.workloads.buckets import MAX_TOKENS, Refusal, buckets
from dsv4bench.workloads.dep import deal, pad_forward, plan_ranks
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.options import PrefillOptions
from dsv4bench.workloads.pool_size import MemoryPlan, most_of_batches
from dsv4bench.workloads.providers import own_files, parse
from dsv4bench.workloads.requests import recorded_requests
from dsv4bench.workloads.variant import Variant

UNIFORM = "uniform"
SAMPLED = ("device", "seed", "samples", "quick", "buckets", "dep", "align")  # alike in all cells of a command
STORED = ("kv", "fault", "replay", "path", "moe", "mhc")  # the switches that pools, buffers and forwards are made for
KEY_DIGITS = 16  # of a SHA-256 in hexadecimal: enough to tell the cells of any results folder apart


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a cell, whole and in order, before they are dealt and chunked.

    `source` is "uniform" or the requests file; `divide` is what that file's lengths were divided by.
    """

    requests: tuple[Request, ...]
    source: str = UNIFORM
    divide: int = 1

    @property
    def extend(self) -> int | None:
        """New tokens of each request, or None where requests differ."""
        lengths = {request.extend for request in self.requests}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def prefix(self) -> int | None:
        """Cached tokens of each request, or None where requests differ."""
        lengths = {request.prefix for request in self.requests}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def rows(self) -> int:
        """New tokens of all requests."""
        return sum(request.extend for request in self.requests)


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload under one variant on one device, and how it is sampled (`samples`, `quick` of `PrefillOptions`).

    `buckets` are the row counts of its graphs; none: the list of specification 6.6 up to the chunk. `dep`: its ranks
    are processes that run at the same time; else they run one after another on one device. `align` says how such
    processes begin a sample, "barrier" or "free".
    """

    geometry: Geometry
    load: Load
    chunk: int
    variant: Variant
    ranks: int = 1
    device: str = "cpu"
    seed: int = 0
    samples: int | None = None
    quick: bool = False
    buckets: tuple[int, ...] = ()
    dep: bool = False
    align: str = "barrier"
    memory: MemoryPlan | None = None

    @property
    def label(self) -> str:
        """What its times are: ranks that run one after another only simulate a step."""
        return "simulated" if self.ranks > 1 and not self.dep else "measured"

    def switches(self) -> dict[str, Any]:
        """Return what a record calls its variant; real ranks have switches of their own: `dep`, `align` where free."""
        dealt: dict[str, Any] = {"dep-simulated": 1, "dep": self.ranks} if self.dep else {"dep-simulated": self.ranks}
        if self.align != "barrier":
            dealt["align"] = self.align
        memory = self.memory.switches() if self.memory else {}
        return self.variant.switches() | {"chunk": self.chunk, **dealt, "seed": self.seed, **memory}

    @property
    def device_requests(self) -> list[tuple[Request, ...]]:
        """The requests that each device holds, of those that have any."""
        shares = deal(self.load.requests, self.ranks) if self.dep else (self.load.requests,)
        return [requests for requests in shares if requests]

    def of_rank(self, rank: int) -> Cell:
        """Return this cell with the requests of one rank, as it would run alone."""
        return replace(self, load=replace(self.load, requests=deal(self.load.requests, self.ranks)[rank]), ranks=1)

    @property
    def plan(self) -> Plan:
        """The forwards of every rank, unpadded."""
        return plan_ranks(self.load.requests, self.ranks, self.chunk)

    @property
    def forwards(self) -> tuple[tuple[Batch, ...], ...]:
        """The same plan turned: the batch of every rank, forward by forward."""
        return tuple(zip(*self.plan, strict=True))

    @property
    def graph_forwards(self) -> tuple[tuple[Batch, ...] | Refusal, ...]:
        """What this cell's graph runs of each forward: batches in their common bucket, or why it runs eagerly.

        A full graph is good for one set of lengths, so it needs no bucket (specification 6.6). Without a graph the
        forwards are as planned.
        """
        if not self.variant.graph or self.variant.graph_mode == "full":
            return self.forwards
        return tuple(pad_forward(forward, self.graph_sizes) for forward in self.forwards)

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """The row counts that a breakable graph may be captured for, ascending."""
        return self.buckets or buckets(min(MAX_TOKENS, self.chunk))

    @property
    def run_forwards(self) -> tuple[tuple[Batch, ...], ...]:
        """What this cell runs of each forward: the graph's batches, or the eager ones where the graph refuses."""
        both = zip(self.forwards, self.graph_forwards, strict=True)
        return tuple(eager if isinstance(padded, Refusal) else padded for eager, padded in both)

    @property
    def group(self) -> str:
        """The content hash that cells of one group share: all but the switches of before and after."""
        content = self._content()
        kept = {name: content["variant"][name] for name in (*STORED, "provider")}
        return _hash(content | {"variant": kept})

    @property
    def storage(self) -> str:
        """The content hash that cells share which can run on the same pools in turn, whoever their provider is."""
        content = self._content()
        content.pop("own_files", None)
        return _hash(content | {"variant": {name: content["variant"][name] for name in STORED}})

    def key(self, commit: str) -> str:
        """Return the content hash with the commit of the measuring code in it: what a resumed run skips by."""
        return _hash(self._content() | {"commit": commit})

    @property
    def mode(self) -> str:
        """How the step is launched, in the words of its record: "eager", "graph", "full graph", "tape", "full tape"."""
        if not self.variant.graph:
            return "eager"
        graph = "graph" if self.device == "cuda" else "tape"
        return f"full {graph}" if self.variant.graph_mode == "full" else graph

    @property
    def own_files(self) -> dict[str, str]:
        """The hash of each file of the user's that holds a provider, by the name of its kernel."""
        return own_files(parse(self.variant.provider, self.device).of_one)

    def _content(self) -> dict[str, Any]:
        """Return what makes this cell what it is; no part of it is where a requests or config file lay or its name."""
        widths = asdict(self.geometry)
        del widths["name"]
        own = {"own_files": self.own_files} if self.own_files else {}
        dep = {"dep": True} if self.dep else {}
        align = {} if self.align == "barrier" else {"align": self.align}
        memory = {"memory": asdict(self.memory)} if self.memory else {}
        return (
            own
            | dep
            | align
            | memory
            | {
                "geometry": widths,
                "requests": [(request.prefix, request.extend) for request in self.load.requests],
                "chunk": self.chunk,
                "variant": self.variant.switches(),
                "ranks": self.ranks,
                "device": self.device,
                "seed": self.seed,
                "samples": self.samples,
                "quick": self.quick,
                "buckets": self.buckets,
            }
        )


Group = tuple[Cell, ...]


def cells(options: PrefillOptions) -> tuple[Group, ...]:
    """Return the product of all axes as groups, in the order in which they run; equal cells appear once.

    Raises UsageError for lengths over the geometry's positions, a chunk too small for its requests, or a bad requests
    file.
    """
    groups: dict[str, Group] = {}
    axes = ("geometry", "kv", "provider", "replay", "path", "moe", "mhc", "ranks", "chunk")
    for geometry, kv, provider, replay, path, moe, mhc, ranks, chunk in product(
        *(getattr(options, name) for name in axes)
    ):
        shared = Variant(kv, provider=provider, replay=replay, path=path, moe=moe, mhc=mhc, fault=options.fault)
        for load in _loads(options, geometry, chunk, ranks):
            sampled = {
                name: getattr(options, name)
                for name in ("device", "seed", "samples", "quick", "buckets", "dep", "align")
            }
            group = tuple(
                Cell(geometry, load, chunk, variant, ranks, **sampled) for variant in _variants(options, shared)
            )
            groups.setdefault(group[0].group, group)
    return _with_memory(options.memory, tuple(groups.values()))


def _with_memory(asked: MemoryPlan | None, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return the groups with one plan of memory, whose window pool holds any of their batches."""
    if asked is None:
        return groups
    firsts = [group[0] for group in groups]
    most = [most_of_batches(cell.device_requests, cell.geometry.window) for cell in firsts]
    requests, pages = (max(found) for found in zip(*most, strict=True))
    plan = replace(asked, requests=requests, window_pages=pages)
    return tuple(tuple(replace(cell, memory=plan) for cell in group) for group in groups)


def _loads(options: PrefillOptions, geometry: Geometry, chunk: int, ranks: int) -> list[Load]:
    if options.requests:
        loads = [
            Load(recorded_requests(options.requests, count, options.divide), options.requests, options.divide)
            for count in options.batch
        ]
    else:
        loads = [
            Load(equal_requests(batch, extend, prefix, chunk, ranks))
            for prefix, extend, batch in product(options.prefix, options.extend, options.batch)
        ]
    for load in loads:
        _check_positions(load, geometry)
    return loads


def _check_positions(load: Load, geometry: Geometry) -> None:
    longest = max(load.requests, key=lambda request: request.seq)
    if longest.seq > geometry.max_positions:
        asked = f"--requests {load.source}" if load.source != UNIFORM else f"--prefix {longest.prefix}"
        raise UsageError(
            f"{asked}: {longest.prefix} cached + {longest.extend} new tokens; expected at most"
            f" {geometry.max_positions}, the positions of {geometry.name}"
        )


def _variants(options: PrefillOptions, shared: Variant) -> list[Variant]:
    """Return the variants of one group: eager before graph, before before after."""
    modes = [replace(shared, graph=graph, graph_mode=mode) for graph, mode in _modes(options)]  # type: ignore[arg-type]
    forms = [form for mode in modes for form in _forms(options, mode)]
    return [
        replace(form, reuse=reuse, compressor=compressor)  # type: ignore[arg-type]
        for form, compressor, reuse in product(forms, options.compressor, options.reuse)
    ]


def _modes(options: PrefillOptions) -> list[tuple[bool, str]]:
    return [(graph, mode) for graph in options.graph for mode in (options.graph_mode if graph else ("breakable",))]


def _forms(options: PrefillOptions, mode: Variant) -> list[Variant]:
    """Return a launch mode in every form of breaks; one that has none, once."""
    if not mode.breakable:
        return [mode]
    return [
        replace(mode, breaks=breaks, break_outputs=outputs)  # type: ignore[arg-type]
        for breaks, outputs in product(options.breaks, options.break_outputs)
    ]


def _hash(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
