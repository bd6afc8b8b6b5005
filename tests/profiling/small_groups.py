"""Groups of a six-layer model that run in a fraction of a second, and a session without clocks of a machine.

Sources 1 and 3 have ratio 2, source 4 has ratio 1: 2, 1 and 2 layers read them, so reuse turns 5 compressed dequants
into 3. Layer 5 consumes the candidate blocks that layer 4 publishes, and 4 blocks of 8 do not cover the context.
"""

from dataclasses import replace
from functools import cache

import torch

from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.timing import QUICK
from dsv4bench.ranges import Silent
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.weights import make_model

SMALL = replace(
    V41_FLASH_MINI,
    name="small",
    hidden=64,
    q_rank=32,
    o_rank=16,
    ratios=(0, 2, 2, 2, 1, 1),
    kv_sources=(1, 3, 4),
    index_sources=(1, 3, 4, 5),
    candidate_source=4,
    candidate_blocks=4,
    index_topk=8,
)
# three layers of ratio 2: layers 0 and 1 read source 0, layer 2 is a source of its own; reuse turns 3 dequants into 2
TINY = replace(SMALL, name="tiny", ratios=(2, 2, 2), kv_sources=(0, 2), index_sources=(0, 2), candidate_source=None)
COMMIT = "c0ffee" * 6


class FakeClock:
    """A clock on which every run takes `tick_ns`, whatever it does; it writes down what it was asked to measure."""

    name = "fake"
    enqueues = False

    def __init__(self, events=None, tick_ns=1_000_000):
        self.events = [] if events is None else events
        self.tick_ns = tick_ns
        self.time_ns = 0

    def now_ns(self):
        return self.time_ns

    def synchronize(self):
        """Nothing is queued."""

    def measure(self, run, repeat):
        run()
        self.events.append("measure")
        self.time_ns += self.tick_ns * repeat
        return self.tick_ns * repeat, self.tick_ns


def groups(geometry=SMALL, **typed):
    """The groups of a command line with the options `typed`, 8 new tokens on 60 cached ones by default."""
    lengths = {} if "requests" in typed else {"extend": "8", "prefix": "60"}
    arguments = PrefillArguments(**{**lengths, "device": "cpu", **typed})
    return cells(replace(prefill_options(arguments), geometry=(geometry,)))


def group(**typed):
    """The only group of a command line."""
    (only,) = groups(**typed)
    return only


def session(**changes):
    """A session on the CPU with two samples of one run each."""
    made = Session(
        device=torch.device("cpu"),
        clock=FakeClock(),
        rule=replace(QUICK, samples=2, sample_ns=1),
        mark=Silent(),
        environment={"cpu": "a CPU", "commit": COMMIT, "dirty": False},
        argv=("dsv4bench", "prefill"),
        notes=("a note of the session",),
    )
    return replace(made, **changes)


@cache
def model(geometry=SMALL):
    """The weights of the small model; no pass writes to them."""
    return make_model(geometry, torch.device("cpu"), seed=0)


def allocated(opened=None, geometry=SMALL, cells=None, **typed):
    """A group whose first pass is over; its cells are those of the options `typed`, or the ones given."""
    with torch.no_grad():
        run = GroupRun(cells or group(geometry=geometry, **typed), model(geometry), opened or session())
        run.allocate()
    return run


def requests_file(folder, *lengths):
    """A file of recorded requests without a cached prefix, of these lengths once a CPU has divided them by 64."""
    file = folder / "requests.jsonl"
    file.write_text("".join(f'{{"input_length": {64 * length}, "hash_ids": []}}\n' for length in lengths))
    return str(file)
