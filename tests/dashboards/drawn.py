"""What a figure shows, read from its data; and the records of runs that several figures are drawn of."""

from dataclasses import replace

import numpy as np
from matplotlib.container import ErrorbarContainer

from tests.results.synthetic import ramp, record, with_variant

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
