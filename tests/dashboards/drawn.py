"""What a figure shows, read from its data; and the records of runs that several figures are drawn of."""

from dataclasses import replace

import numpy as np
from matplotlib.container import ErrorbarContainer

from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.stats import Interval
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import Verdict
from tests.results.synthetic import ramp, record, sweep, with_side, with_variant

NO_BREAKS = {"breaks": None, "break-outputs": None}
# launch modes as tables call them: whether a graph, and its switches
MODES = {
    "eager": (False, NO_BREAKS),
    "graph sm100": (True, {"breaks": "sm100", "break-outputs": "copy"}),
    "graph hopper": (True, {"breaks": "hopper", "break-outputs": "copy"}),
    "graph sm100 static": (True, {"breaks": "sm100", "break-outputs": "static"}),
    "full graph": (True, {"graph-mode": "full", **NO_BREAKS}),
}


def bars(axes):
    """Return the points of each errorbar: label -> (x, y, low, high)."""
    found = {}
    for place, container in enumerate(axes.containers):
        assert isinstance(container, ErrorbarContainer)
        line, _, (stems,) = container
        segments = np.array(stems.get_segments())  # [points, 2 ends, xy]
        label = container.get_label()
        name = place if label.startswith("_") else label
        found[name] = (line.get_xdata(), line.get_ydata(), segments[:, 0, 1], segments[:, 1, 1])
    return found


def modes(*names, batches=(1, 8), reuse=("on",)):
    """Cells of some launch modes of one group a batch."""
    return [
        with_variant(record(batch, side, MODES[name][0]), **MODES[name][1])
        for batch in batches
        for side in reuse
        for name in names
    ]


def compressors(extends=(64, 1024), reuse=("on",), modes=("eager", "graph sm100")):
    """One request of some lengths on the torch path and fused: alone, ramps around 100 and 10 us a 64 rows."""
    found = []
    for extend in extends:
        for side in reuse:
            for mode in modes:
                for compressor, alone_ns in (("torch", 100_000), ("fused", 10_000)):
                    graph, switches = MODES[mode]
                    one = with_variant(record(1, side, graph), compressor=compressor, **switches)
                    alone = {"compressor": ramp(alone_ns * extend // 64, 1000 if compressor == "torch" else 0)}
                    samples = {**one.samples_ns, **(alone if graph else {})}
                    batch = {**one.batch, "extend": extend, "rows": extend, "padded_rows": extend}
                    found.append(
                        replace(one, key=f"{one.key}-{extend}", group=f"{extend}", samples_ns=samples, batch=batch)
                    )
    return found


def judged():
    """Verdicts on the sweep, given by hand: batch -> word, change with its half width in %, predicted us, eager first.

    Times are those of the records, 20 and 19 ms a request; the largest graph is refused.
    """
    sides = [with_side(one, "a" if one.variant["reuse"] == "off" else "b") for one in sweep()]
    said = {
        ("eager", 1): ("FASTER", -2.5, 0.1, -400),
        ("graph", 1): ("SAME", -0.2, 0.2, -400),
        ("eager", 8): ("INCONCLUSIVE", -0.5, 0.8, -3200),
        ("graph", 8): ("SLOWER", 2.5, 0.2, -3200),
        ("eager", 64): ("FASTER", -2.0, 0.1, -25600),
    }
    return [
        _verdict(trial, *said.get((trial.any.mode, trial.any.batch["requests"]), (None,))) for trial in trials(sides)
    ]


def _verdict(trial, word, change=0.0, half_width=0.0, predicted_us=0.0):
    effect = MinEffect(relative=0.005)
    if word is None:
        return Verdict(trial, None, "both sides: refused", 0, min_effect=effect)
    a_ns = (19e6 if trial.any.mode == "graph" else 20e6) * trial.any.batch["requests"]
    ends = [change / 100, (change - half_width) / 100, (change + half_width) / 100]
    ratio = Interval(*(1 + end for end in ends), 0.95)
    times = [Interval(time, time - 1e5, time + 1e5, 0.95) for time in (a_ns, a_ns * ratio.value)]
    difference = Interval(*(a_ns * end for end in ends), 0.95)
    return Verdict(trial, word, "decided", 9, *times, ratio, difference, predicted_us * 1e3, 0.004, 0.02, effect)
