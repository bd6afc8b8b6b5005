"""A GPU made up for the tests, and measured cells that follow the model exactly, so that every number is known.

On `fast-1` (1 TB/s, 100 TFLOP/s, 10 SMs at 1 GHz) a cell of size k takes, with 10 launches of each operation:
read 2 k ms + 10 us (half of the bytes' ceiling), multiply 1.25 k ms + 20 us (0.8 of the FLOPs'), sort 1 k ms (a tenth
of the bytes'). A step takes 1.1 times their sum, and the host 10 us a launch and 50 us a graph launch.
"""

from dataclasses import replace

from dsv4bench.results.peaks import Device, Figure, Peaks
from dsv4bench.results.projection import Cell
from tests.results.synthetic import record, row

COSTS = {("read", None): (0, 10**9), ("multiply", 2): (10**11, 0), ("sort", 2): (0, 10**8)}
TIMES_NS = {"read": (2_000_000, 10_000), "multiply": (1_250_000, 20_000), "sort": (1_000_000, 0)}  # per k, and fixed
STEADY = 1.1
LAUNCHES = 10  # of each operation


def device(word, names, host, rates):
    units = ("hbm_rate", "bf16", "sms", "sm_clock")
    figures = {
        name: Figure(value, f"{value:g}", "made up", "2026-11") for name, value in zip(units, rates, strict=True)
    }
    return Device(word, names, host, figures)


FAST_1 = device("fast1", ("Fast 1",), "x86", (1e12, 100e12, 10, 1e9))
FAST_2 = device("fast2", (), "grace", (2e12, 400e12, 20, 1e9))
SAME_HOST = device("fast3", (), "x86", (4e12, 100e12, 10, 1e9))
HOSTS = {"x86": Figure(1, "1", "", ""), "grace": Figure(3, "3", "", "")}
PEAKS = Peaks({one.word: one for one in (FAST_1, FAST_2, SAME_HOST)}, HOSTS)


def device_ns(k):
    return sum(slope * k + fixed for slope, fixed in TIMES_NS.values())


def cell(k, graph=False, timed=True, **changes):
    """A measured cell of size k; in a graph two operations lie in segments and two graphs are launched."""
    where = {
        "read": "break" if graph else "eager",
        **dict.fromkeys(("multiply", "sort"), "segment" if graph else "eager"),
    }
    host_ns = (LAUNCHES if graph else 3 * LAUNCHES) * 10_000 + (2 * 50_000 if graph else 0)
    step_ns = max(round(STEADY * device_ns(k)), host_ns)
    values = {
        "key": f"{k}-{graph}",
        "samples_ns": {"graph_replay" if graph else "step_period": [step_ns] * 3, "host_submit": [host_ns] * 3},
        "counts": [row(op, source, where[op], LAUNCHES) for op, source in COSTS],
        "graph": {"graph_launches": 2} if graph else None,
        "device_time": {"rows": [timed_row(k, op, source, where[op]) for op, source in COSTS]} if timed else None,
        "providers": {"reader": "triton", "sorter": "gluon"},
        "environment": {"gpu": "Fast 1", "cpu": "a CPU", "commit": "c0ffee" * 6},
    }
    made = record(batch=1, graph=graph)
    batch = {**made.batch, "extend": round(1000 * k), "rows": round(1000 * k)}
    costs = {place: (flops * k, moved * k) for place, (flops, moved) in COSTS.items()}
    return Cell(replace(made, **{"batch": batch, **values, **changes}), costs)


def timed_row(k, op, source, where):
    slope, fixed = TIMES_NS[op]
    return {
        "op": op,
        "kv_source": source,
        "where": where,
        "device_ns": round(slope * k) + fixed,
        "operations": LAUNCHES,
    }


def run():
    """Sizes 1, 2, 4 and 8, eager and in a graph."""
    return [cell(k, graph) for k in (1, 2, 4, 8) for graph in (False, True)]
