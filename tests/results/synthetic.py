"""Records made by hand for the tests: a small sweep whose every number is known."""

from __future__ import annotations

from dataclasses import replace

from dsv4bench.results.record import Record

GPU = {
    "gpu": "NVIDIA H200",
    "cpu": "a CPU",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "driver": "580.1",
    "commit": "c0ffee" * 6,
}
CPU = {"cpu": "two cores", "torch": "2.13.0", "commit": "c0ffee" * 6, "dirty": True}
SOURCES = {2: 6, 8: 6, 14: 6, 20: 20}
SHARE = "attention stack only: about 40 % of a layer's FLOPs"


def counts(reuse="on", where="eager", device=True, extra=()):
    """A step's counts: 38 or 4 compressed dequants, 40 window dequants, 40 attentions, 40 products of two kernels."""
    rows = []
    for source, layers in SOURCES.items():
        calls = 1 if reuse == "on" else layers
        rows.append(row("dequant_compressed", source, where, calls, device=device))
        rows.append(row("dequant_swa", source, where, layers, device=device))
        rows.append(row("sparse_attention", source, where, layers, device=device))
    rows.append(row("dequant_swa", None, where, 2, device=device))
    rows.append(row("sparse_attention", None, where, 2, device=device))
    rows.append(row("qkv_proj", None, "segment" if where == "break" else where, 40, each=2, device=device))
    return [*rows, *extra]


def row(op, kv_source, where, calls, each=1, copies=0, sets=0, device=True):
    """One count row: `each` kernels a call on a GPU, three times as many aten operations on a CPU."""
    own = (
        {"kernels": calls * each, "copies": copies, "sets": sets}
        if device
        else dict.fromkeys(("kernels", "copies", "sets"))
    )
    aten = {"aten_ops": None if device else calls * each * 3 + copies}
    return {"op": op, "kv_source": kv_source, "where": where, "calls": calls, **own, **aten}


def ramp(middle_ns, step_ns=1000, count=11):
    """Samples around `middle_ns`, `step_ns` apart: the median is the middle, the 95 % bounds are 4 steps away."""
    half = count // 2
    return [middle_ns + step_ns * place for place in range(-half, half + 1)]


def record(batch=1, reuse="on", graph=False, engine="gpu", **changes):
    """One measured cell of the sweep; `changes` replace fields."""
    on_gpu = engine == "gpu"
    where = "eager" if not graph or not on_gpu else "break"
    extend = min(1024, 8192 // batch)
    switches = {
        "kv": "v41+fp4", "reuse": reuse, "compressor": "fused", "graph": graph, "graph-mode": "breakable",
        "provider": "triton" if on_gpu else "torch", "fault": None,
        "breaks": None, "break-outputs": None, "moe": "off", "mhc": "off", "chunk": 8192, "dep-simulated": 1, "seed": 0,
    }  # fmt: skip
    values = {
        "key": f"{engine}-{batch}-{graph}-{reuse}",
        "group": f"{engine}-{batch}",
        "created": f"2026-11-30T12:{batch:02d}:00+00:00",
        "status": "ok",
        "engine": engine,
        "note": [SHARE],
        "geometry": "v41-flash" if on_gpu else "v41-flash-mini",
        "batch": {"requests": batch, "extend": extend, "prefix": 8192, "rows": batch * extend,
                  "padded_rows": batch * extend, "forwards": 1, "source": "uniform"},
        "variant": switches,
        "samples_ns": samples(batch, reuse, graph, on_gpu),
        "predicted": {"saved_rows": 1000 * batch, "saved_bytes": 10**6, "dequant_bytes_per_s": 3e12,
                      "saved_ns": 400_000.0 * batch, "how": "rows x bytes / rate"},
        "counts": counts(reuse, where, device=on_gpu),
        "coverage": {"attributed": 200, "unattributed": 0, "replayed": 0, "outside_ops": 0, "lost": 0,
                     "method": "profiler", "ambiguous": 0, "disagreement": None} if on_gpu else None,
        "graph": {"segments": 49, "breaks": 48, "graph_launches": 49, "capture_ns": 10**9, "memory_bytes": 2**20}
        if graph and on_gpu else None,
        "checks": [{"name": "output", "passed": True, "detail": ""}, {"name": "heads", "passed": True, "detail": ""}],
        "memory": {"peak_bytes": 3 * 2**30, "workspace_bytes": 64 * 2**20},
        "environment": GPU if on_gpu else CPU,
        "argv": ["dsv4bench", "prefill"],
    }  # fmt: skip
    return Record(**{**values, **changes})


def samples(batch, reuse, graph, on_gpu):
    """Step times: 20 ms a request eager, 19 ms in a graph, 0.5 ms a request less with reuse."""
    middle = (19_000_000 if graph else 20_000_000) * batch - (500_000 * batch if reuse == "on" else 0)
    step = ramp(middle, -9_000 if reuse == "on" else 10_000)
    return {"graph_replay" if graph and on_gpu else "step_period": step, "host_submit": ramp(900_000)}


NOTHING = {
    "samples_ns": {},
    "counts": [],
    "checks": [],
    "memory": {},
    "coverage": None,
    "graph": None,
    "predicted": None,
}


def lost(status, reason, **changes):
    """A cell of the sweep that has no time."""
    return replace(record(**changes), status=status, reason=reason, **NOTHING)


def sweep():
    """Batches 1, 8 and 64, eager and in a graph, before and after; the largest graph is refused."""
    refused = ("refused", "context 20000 is over the graph's limit of 16384")
    cells = [(batch, reuse, graph) for batch in (1, 8, 64) for graph in (False, True) for reuse in ("off", "on")]
    return [
        lost(*refused, batch=batch, reuse=reuse, graph=graph) if graph and batch == 64 else record(batch, reuse, graph)
        for batch, reuse, graph in cells
    ]


def cpu_sweep():
    """Batches 1 and 2 on a CPU, eager and on a tape."""
    notes = {False: [SHARE], True: [SHARE, "tape: the semantics of a CUDA graph on a CPU, no GPU time"]}
    cells = [(batch, reuse, graph) for batch in (1, 2) for graph in (False, True) for reuse in ("off", "on")]
    return [record(*cell, engine="tape" if cell[2] else "cpu-reference", note=notes[cell[2]]) for cell in cells]


def with_variant(one, **switches):
    """The record with other switches and a key of its own."""
    variant = {**one.variant, **switches}
    return replace(one, variant=variant, key=f"{one.key}-{sorted(switches.items())}")


def with_side(one, side, sides=("reuse=off", "reuse=on"), **changes):
    """The record as side "a" or "b" of a trial in one process, 5 samples of either side a pair; `changes` of `ab`."""
    named = {"a": sides[0], "b": sides[1]}
    ab = {"session": "s1", "side": side, "sides": named, "pair": None, "place": None, "block": 5, "aa": False,
          "min_effect": {"relative": 0.005}, "sm_mhz": None, **changes}  # fmt: skip
    return replace(one, ab=ab)
