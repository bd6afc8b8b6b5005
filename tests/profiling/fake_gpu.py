"""Real steps on a fake GPU: their tensors stay on the CPU, and every piece of a step is one launch of the fake.

So a group runs all that it would run on a GPU, captures included: what is captured runs only when it is replayed.
"""

from collections import Counter

import torch

from dsv4bench.profiling import counting
from dsv4bench.profiling.graph_nodes import GraphNodes
from dsv4bench.profiling.ledger import Ledger
from dsv4bench.profiling.traces.attribute import Attribution, Coverage
from dsv4bench.ranges import Range
from dsv4bench.workloads.step import Piece, Step
from tests.profiling.fake_cuda import Bindings, FakeCuda

PEAK_BYTES = 4096


def fake_gpu(monkeypatch):
    """Install the fake, and a profiler that sees its launches; return the device."""
    device = FakeCuda().install(monkeypatch)
    launches = Launches(device)
    bindings = Bindings(device)
    honest = Step.layer
    monkeypatch.setattr(Step, "layer", lambda step, *args: [launches.of(step, piece) for piece in honest(step, *args)])
    monkeypatch.setattr(counting, "load_graph_nodes", lambda: GraphNodes(bindings, bindings))
    monkeypatch.setattr(counting, "profile_counts", launches.profile)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: PEAK_BYTES)
    return device


class Launches:
    """Makes each piece one kernel, under a range that has the piece's name for its operation."""

    def __init__(self, device):
        self.device = device
        self.eager = []

    def of(self, step, piece):
        """The piece, launched; what a graph replays runs unseen by an observer, who looks from eager breaks only."""
        rng = Range(layer=0, op=piece.name)

        def unseen():
            observer, step.observer = step.observer, None
            piece.run()
            step.observer = observer

        def run():
            step.ops.mark.enter(rng)
            if self.device.capturing:
                self.device.launch(piece.name, unseen)
            else:
                self.eager.append(rng)
                self.device.launch(piece.name, piece.run)
            step.ops.mark.exit(rng)

        return Piece(piece.part, piece.kind, run, piece.layer)

    def profile(self, run, device, where="eager"):
        """What a profiler sees of a run: the kernels launched outside of graphs by range, those of graphs in a sum."""
        launched, logged = len(self.eager), len(self.device.log)
        run()
        ledger = Ledger()
        ledger.declare(where, "kernels", "copies", "sets")
        for rng in self.eager[launched:]:
            ledger.add(rng, where, "kernels")
        graphs = [int(line.split()[-1]) for line in self.device.log[logged:] if line.startswith("launch graph")]
        replayed = sum(len(self.device.graph_nodes[10_000 + graph]) for graph in graphs)
        cover = Coverage(len(self.eager) - launched, 0, replayed, 0, 0, "fake profiler")
        return Attribution(ledger, cover, Counter(kernels=replayed))
