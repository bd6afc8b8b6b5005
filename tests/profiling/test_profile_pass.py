"""The profiled step of a cell: its ranges in a Chrome trace, and what nsys is to see of it, in order."""

import gzip
import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from dsv4bench.errors import CellSkipped
from dsv4bench.profiling import profile_pass
from dsv4bench.profiling.profile_pass import Job, main, parse_job, profile_cell
from dsv4bench.ranges import Range, parse_range
from dsv4bench.workloads.options import PrefillArguments
from tests.profiling.small_groups import COMMIT, group, model


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The weights of the small model are made once, and the machine is not looked at."""
    monkeypatch.setattr(profile_pass, "make_model", lambda geometry, *_: model(geometry))
    monkeypatch.setattr("dsv4bench.profiling.session.environment", lambda device: {"commit": COMMIT})


def cell(**typed):
    (found,) = group(**typed)
    return found


def ranges(file):
    """How often each operation's range was entered in a Chrome trace, and the ranges of steps."""
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    found = [parse_range(event["name"]) for event in events if event.get("cat") == "user_annotation"]
    assert None not in found
    return Counter(rng.op for rng in found if rng.op), [rng for rng in found if not rng.op and rng.layer is None]


# six layers; reuse turns 5 compressed dequants into 3 (small_groups)
@pytest.mark.parametrize(("reuse", "dequants"), [("off", 5), ("on", 3)])
def test_an_eager_step_is_recorded_whole_with_its_ranges(tmp_path, reuse, dequants):
    file = tmp_path / "step.json.gz"
    profile_cell(cell(reuse=reuse, graph=False), "torch", file)
    ops, steps = ranges(file)
    assert ops["dequant_compressed"] == dequants
    assert ops["sparse_attention"] == ops["o_proj_b"] == 6
    assert steps == [Range()]
    trace = json.loads(gzip.decompress(file.read_bytes()))
    assert {trace.get(name, "") for name in ("host_name", "traceName")} == {""}  # no machine, no path


def test_of_a_replay_python_runs_the_breaks_alone(tmp_path):
    file = tmp_path / "replay.json.gz"
    profile_cell(cell(reuse="on", graph=True), "torch", file)
    ops, steps = ranges(file)
    assert ops["sparse_attention"] == 6
    assert ops["o_proj_b"] == 0
    assert steps == [Range()]


def test_a_cell_that_cannot_run_says_why(tmp_path):
    with pytest.raises(CellSkipped, match=r"needs a CUDA device|is not installed"):
        profile_cell(cell(reuse="on", graph=False, provider="flash_mla"), "torch", tmp_path / "none.json.gz")


class Heard:
    """Writes down what happens, in order."""

    def __init__(self, monkeypatch):
        self.events = []
        profiler = SimpleNamespace(start=lambda: self.add("start"), stop=lambda: self.add("stop"))
        monkeypatch.setattr(torch.cuda, "profiler", profiler)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.add("wait"))
        monkeypatch.setattr(profile_pass, "open_pool", lambda device: SimpleNamespace(stream="side"))
        monkeypatch.setattr(profile_pass, "warm_up", lambda pieces, stream, times: self.add(f"warm up on {stream}"))
        monkeypatch.setattr(profile_pass, "run_pieces", lambda pieces: self.add("run"))
        monkeypatch.setattr(profile_pass, "capture_alone", self.capture)
        monkeypatch.setattr(profile_pass, "timing_mark", lambda: (self, "nvtx"))
        monkeypatch.setattr(profile_pass, "TorchNvtx", lambda: Torchs(self))
        self.ops = SimpleNamespace(mark=None, rank=0)
        self.step = SimpleNamespace(ops=self.ops, inputs=SimpleNamespace(positions=SimpleNamespace(device=CUDA)))

    def add(self, event):
        self.events.append(event)

    def capture(self, graph, step, pieces, pool):
        step.ops.mark.enter(Range(layer=2))
        self.add("capture")
        step.ops.mark.exit(Range(layer=2))
        return SimpleNamespace(replay=lambda: self.add("replay"))

    def enter(self, rng):
        self.add(f"enter {rng.text()}")

    def exit(self, rng):
        self.add("exit")


class Torchs:
    """The ranges of torch, written down where the other ones are."""

    def __init__(self, heard):
        self.heard = heard

    def enter(self, rng):
        self.heard.add("torch's too")

    def exit(self, rng):
        self.heard.add("torch's exit")


CUDA = torch.device("cuda")
STEP = ["enter dsv4bench:step=0 rank=0", "torch's too"]
LAYER = ["enter dsv4bench:step=0 layer=2 rank=0", "torch's too"]
EXIT = ["torch's exit", "exit"]


def test_nsys_sees_the_capture_of_a_graph_and_then_one_replay(monkeypatch):
    heard = Heard(monkeypatch)
    profile_pass._under_nsys(object(), heard.step, [])
    assert [event for event in heard.events if event != "wait"] == [
        "warm up on side", "start", *LAYER, "capture", *EXIT, *STEP, "replay", *EXIT, "stop",
    ]  # fmt: skip
    assert heard.events[-2] == "wait"  # for the device, before the collection ends


def test_nsys_sees_one_eager_step_and_no_warm_up(monkeypatch):
    heard = Heard(monkeypatch)
    profile_pass._under_nsys(None, heard.step, [])
    assert [event for event in heard.events if event != "wait"] == [
        "run", "run", "start", *STEP, "run", *EXIT, "stop",
    ]  # fmt: skip


def test_collection_ends_after_an_error_too(monkeypatch):
    heard = Heard(monkeypatch)
    monkeypatch.setattr(profile_pass, "capture_alone", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        profile_pass._under_nsys(object(), heard.step, [])
    assert heard.events[-1] == "stop"


ARGUMENTS = PrefillArguments(device="cpu", batch=["1", "2"], graph=False, reuse="both")


def test_a_job_survives_its_text():
    job = Job(ARGUMENTS, 1, 0, "nsys", "")
    assert parse_job(job.text()) == job


def test_a_job_names_its_cell_by_place(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(profile_pass, "profile_cell", lambda *given: seen.append(given))
    assert main(Job(ARGUMENTS, 1, 1, "torch", str(tmp_path / "x")).text()) == 0
    ((found, tool, file),) = seen
    assert (len(found.load.requests), found.variant.reuse, tool, file) == (2, "on", "torch", tmp_path / "x")


def test_what_cannot_run_is_one_line_and_exit_code_1(monkeypatch, capsys):
    def skip(*_):
        raise CellSkipped("no such device\nand more")

    monkeypatch.setattr(profile_pass, "profile_cell", skip)
    assert main(Job(ARGUMENTS, 0, 0, "nsys").text()) == 1
    assert capsys.readouterr().err == "no such device\n"
