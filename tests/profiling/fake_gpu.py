"""Real steps on a fake GPU: their tensors stay on the CPU, and every piece of a step is one launch of the fake.

So a group runs all that it would run on a GPU, captures included: what is captured runs only when it is replayed.
"""

import torch

from dsv4bench.profiling import counting
from dsv4bench.profiling.graph_nodes import GraphNodes
from dsv4bench.ranges import Range
from dsv4bench.workloads.step import Piece, Step
from tests.profiling.fake_cuda import Bindings, FakeCuda
from tests.profiling.replays import Replay

PEAK_BYTES = 4096


def fake_gpu(monkeypatch):
    """Install the fake, and a profiler that sees its launches; return the device."""
    device = FakeCuda().install(monkeypatch)
    launches = Launches(device)
    bindings = Bindings(device)
    honest = Step.layer
    monkeypatch.setattr(Step, "layer", lambda step, *args: [launches.of(step, piece) for piece in honest(step, *args)])
    monkeypatch.setattr(counting, "load_graph_nodes", lambda: GraphNodes(bindings, bindings))
    monkeypatch.setattr(counting, "profile_trace", launches.profile)
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
        name = piece.name.replace(" ", "_")
        rng = Range(layer=0, op=name)

        def unseen():
            observer, step.observer = step.observer, None
            piece.run()
            step.observer = observer

        def run():
            step.ops.mark.enter(rng)
            if self.device.capturing:
                self.device.launch(name, unseen)
            else:
                self.device.log.append(f"eager {len(self.eager)}")
                self.eager.append(rng)
                self.device.launch(name, piece.run)
            step.ops.mark.exit(rng)

        return Piece(piece.part, piece.kind, run, piece.layer)

    def profile(self, run, device):
        """What a profiler sees of a run: each kernel launched outside of graphs, and the records of each graph."""
        begun = len(self.device.log)
        run()
        replay = Replay()
        for line in self.device.log[begun:]:
            if line.startswith("launch graph"):
                replay.host("cudaGraphLaunch")
                for handle in self.device.graph_nodes[10_000 + int(line.split()[-1])]:
                    replay.ran(self.device.nodes[handle][1])
            elif line.startswith("eager "):
                rng = self.eager[int(line.split()[-1])]
                replay.eager(rng, rng.op)
        return replay.trace
