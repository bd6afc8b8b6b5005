"""torch's own annotation of captured nodes, where torch, the bindings and the driver have it: a count of another make.

torch walks the graph from the frontier of the stream and names nodes by the ids that a trace has. The capture ledger
asks the graph for its nodes and knows the same ids, so torch's annotations serve to check it.
"""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

from dsv4bench.profiling.ledger import OUTSIDE_OPS
from dsv4bench.ranges import Range, parse_range

Key = tuple[str, int | None]  # operation, kv_source
MODULE = "torch.cuda._graph_annotations"
ANNOTATED = ("kernels", "copies")  # the classes of nodes that torch annotates
NO_MODULE = "torch's own graph annotations: this torch has none"
NO_IDS = "torch's own graph annotations: they need cuda-bindings and a driver from 13.1 on"


class GraphAnnotations:
    """A mark, and a listener of captures, that lets torch annotate the nodes of every range."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._open: list[Any] = []
        module.clear_kernel_annotations()
        module.enable_annotations()

    def enter(self, rng: Range) -> None:
        """Open an annotation; torch's do nothing outside a capture."""
        opened = self._module.mark_kernels(rng.text())
        opened.__enter__()
        self._open.append(opened)

    def exit(self, rng: Range) -> None:
        """Close the innermost annotation."""
        self._open.pop().__exit__(None, None, None)

    def begin_graph(self) -> None:
        """Nothing is to be done at the beginning of a capture."""

    def end_graph(self) -> None:
        """Give the nodes of this capture their annotations."""
        self._module.resolve_pending_annotations()

    def take(self) -> Counter[Key]:
        """Return how many nodes of each operation are annotated, and end the annotating."""
        texts = [annotations[0]["str"] for annotations in self._module.get_kernel_annotations().values()]
        self._module.clear_kernel_annotations()
        self._module.disable_annotations()
        ranges = [rng for rng in map(parse_range, texts) if rng is not None]
        return Counter((rng.op or OUTSIDE_OPS, rng.kv_source) for rng in ranges)


def load_graph_annotations() -> GraphAnnotations | str:
    """Return torch's annotations, or one sentence saying why there are none here."""
    try:
        module = importlib.import_module(MODULE)
        unavailable = module._is_tools_id_unavailable()
    except (ImportError, AttributeError):
        return NO_MODULE
    return NO_IDS if unavailable else GraphAnnotations(module)
