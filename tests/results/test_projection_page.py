"""The figures of docs/projection.md are those of the committed runs and of the peaks that come with this project."""

from functools import cache

import pytest

from dsv4bench.kernels.layout import HEAD_DIM, V4
from dsv4bench.results.compare import latest
from dsv4bench.results.peaks import read_peaks
from dsv4bench.results.projected import measured_hosts, models, project
from dsv4bench.results.projection import Cell
from dsv4bench.results.store import read_records
from dsv4bench.units import MIB, format_percent
from dsv4bench.workloads.operation_costs import recorded_costs
from tests.source_tree import ROOT

RUNS = ("h200-default", "h200-graph-forms", "h200-graph-static", "h200-compressor")
PAGE = " ".join((ROOT / "docs" / "projection.md").read_text(encoding="utf-8").split())
PEAKS = read_peaks()
DEQUANT_BYTES = V4.used_bytes + 2 * HEAD_DIM  # of a row, read and written


@cache
def model():
    records = [one for run in RUNS for one in read_records(ROOT / "results" / run).records]
    (found,) = models(
        [Cell(one, recorded_costs(one.geometry, one.batch, one.variant, one.ranks)) for one in latest(records)], PEAKS
    )
    return found


def percent(share, sign=""):
    return f"{100 * share:{sign}.0f} %"


def operation(name):
    return model().fit.operations[name]


def rate(name, device, peak):
    """The rate that an operation's share of an H200 gives on another device."""
    return operation(name).share * PEAKS.device(device).value(peak)


def us(name, device, moved_bytes):
    return moved_bytes / rate(name, device, "hbm_rate") * 1e6 + operation(name).launch_ns / 1e3


def error_row(title, what):
    error = model().errors[what]
    return f"| {title} | {error.cells} | {format_percent(error.median)} | {format_percent(error.most)} |"


def bound_by_cycles():
    timed_ns = {name: found.timed_ns for name, found in model().fit.operations.items()}
    logits, topk = (operation(name).share for name in ("index_logits", "index_topk"))
    together = (timed_ns["index_logits"] + timed_ns["index_topk"]) / sum(timed_ns.values())
    return (
        f"`index_logits` ({logits:.2f} of the ceiling) and `index_topk` ({topk:.2f}), together {percent(together)} of"
    )


def one_that_waits_for_the_host():
    """The first record of one request of 1024, eager, with reuse: what its step takes here and there."""
    b300 = project(model(), PEAKS.device("b300"), PEAKS, measured_hosts(model().cells, PEAKS))
    one = next(
        one
        for one in b300
        if one.cell.record.batch["requests"] == 1
        and not one.cell.record.variant["graph"]
        and one.cell.record.variant["reuse"] == "on"
    )
    here, there = one.cell.step_ns / 1e6, one.prediction.step_ns / 1e6
    return f"took {here:.2f} ms on the H200, and on B300, with the same kind of host, {there:.2f} ms are modelled"


def carried(share_of, name, predicted, published, unit):
    shown = f"{predicted:.1f}" if unit == "us" else f"{predicted:.0f}"
    error = percent(predicted / published - 1, "+")
    return f"| `{share_of}` on H200, {operation(name).share:.3f} | {shown} {unit} | {published:g} {unit} | {error} |"


def a_gemm_on_gb300():
    """Published are 1665 to 1845 TFLOP/s."""
    tflops = rate("q_proj", "gb300", "bf16") / 1e12
    errors = f"{round(100 * (tflops / 1845 - 1))} to {percent(tflops / 1665 - 1, '+')}"
    share = operation("q_proj").share
    return f"| `q_proj` on H200, {share:.3f} | {tflops:.0f} TFLOP/s | 1665 to 1845 TFLOP/s | {errors} |"


def printed_elsewhere():
    """The errors as `project` prints them; those of rates are here of times."""
    return model().elsewhere_text.split("their kernels and sizes: ")[1]


SAID = {
    "eager steps": lambda: error_row("step time, eager", "eager"),
    "graph steps": lambda: error_row("step time, in graphs", "graph"),
    "host": lambda: error_row("host submit", "host submit"),
    "profiled steps": lambda: f"({model().fit.cells} profiled steps)",
    "bound by cycles": bound_by_cycles,
    "waits for the host": one_that_waits_for_the_host,
    "a fill on B300": lambda: carried("break_copy", "break_copy", us("break_copy", "b300", 260 * MIB), 44, "us"),
    "32000 rows on GB200": lambda: carried(
        "dequant", "dequant_compressed", us("dequant_compressed", "gb200", 32000 * DEQUANT_BYTES), 11.8, "us"
    ),
    "8192 rows on GB200": lambda: carried(
        "dequant", "dequant_compressed", us("dequant_compressed", "gb200", 8192 * DEQUANT_BYTES), 5.19, "us"
    ),
    "a GEMM on B300": lambda: carried("q_proj", "q_proj", rate("q_proj", "b300", "bf16") / 1e12, 2259, "TFLOP/s"),
    "a GEMM on GB300": a_gemm_on_gb300,
    "what is printed of other GPUs": printed_elsewhere,
}


@pytest.mark.parametrize("say", SAID.values(), ids=SAID)
def test_the_page_says_what_the_committed_runs_give(say):
    assert say() in PAGE
