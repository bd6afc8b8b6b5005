"""Trials made by hand with verdicts made by hand, for the tables of verdicts and the PR block.

`python -m tests.dashboards.verdict_scenes` writes their golden files anew; read the difference before it is committed.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from dsv4bench.dashboards.pr_block import pr_block
from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.verdict_tables import verdict_tables
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.noise_floor import Floor
from dsv4bench.results.stats import Interval
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import Verdict
from tests.results.synthetic import GPU, cpu_sweep, lost, record, sweep, with_side

FILES = [("h200", "txt"), ("h200", "csv"), ("h200", "md"), ("cpu", "txt"), ("trees", "md")]
GOLDEN = Path(__file__).parents[1] / "data" / "verdicts"
EQUAL = "41 layer outputs and 51 caches and rings are byte-equal"
HEADS = "34 reused heads equal a fresh dequant byte for byte"
CHECKS = {
    "off": [("kernels against torch", "79 outputs in layers [0, 2] within their kernels' tolerances")],
    "on": [("reused heads", HEADS), ("outputs, reuse on and off", EQUAL), ("reused heads, after timing", HEADS)],
}


def around(value, half_width):
    return Interval(value, value - half_width, value + half_width, 0.95)


def verdict(trial, word, a_ms, b_ms, difference_us, predicted_us, marks=()):
    """A verdict on 9 pairs; the bounds are 0.2 % and, of the difference, the second number of `difference_us`."""
    middle, half_width = difference_us
    ratio = 1 + middle / (a_ms * 1e3)
    return Verdict(
        trial, word, f"decided: {word}", 9,
        around(a_ms * 1e6, a_ms * 2e3), around(b_ms * 1e6, b_ms * 2e3),
        Interval(ratio, ratio - half_width / (a_ms * 1e3), ratio + half_width / (a_ms * 1e3), 0.95),
        around(middle * 1e3, half_width * 1e3),
        None if predicted_us is None else predicted_us * 1e3,
        0.0039, 0.0195, MinEffect(relative=0.005), marks,
    )  # fmt: skip


def sided(records, switch="reuse", a="off", **changes):
    """The records as sides of trials, by a switch whose value `a` is side a."""
    return [with_side(one, "a" if one.variant[switch] == a else "b", **changes) for one in records]


def checked(one):
    """The record of a cell that ran, with the checks of a real one."""
    checks = [{"name": name, "passed": True, "detail": detail} for name, detail in CHECKS[one.variant["reuse"]]]
    return replace(one, checks=checks) if one.status == "ok" else one


def h200():
    """Batches 1, 8 and 64, eager and in a graph; each word once, every mark once, and the largest graph refused."""
    records = sided([checked(one) for one in sweep()], sm_mhz=[1900, 1905])
    found = trials(records)
    said = [
        ("FASTER", 20.0, 19.5, (-503.2, 12.4), -400.0, ("unexplained",)),
        ("SAME", 19.0, 18.97, (-31.0, 45.0), -400.0, ("not resolvable here",)),
        ("INCONCLUSIVE", 160.0, 159.2, (-790.0, 1145.8), -3200.0, ("clock",)),
        ("SLOWER", 152.0, 156.0, (4021.0, 310.0), -3200.0, ("unexplained", "implausible")),
        ("FASTER", 220.8, 216.5, (-4217.0, 402.0), -5031.0),
    ]
    given = [verdict(trial, *one) for trial, one in zip(found, said, strict=False)]
    refused = "both sides: refused: context 20000 is over the graph's limit of 16384"
    return records, [*given, Verdict(found[5], None, refused, 0, min_effect=MinEffect(relative=0.005))]


def cpu():
    """Batches 1 and 2 on a CPU, eager and on a tape, one sample of each side a pair."""
    records = sided([checked(one) for one in cpu_sweep()], block=1)
    return records, [verdict(trial, "SAME", 19.5, 19.5, (0.4, 0.8), None) for trial in trials(records)]


TREES = ("src=main", "src=<b>|@user #12")


def trees():
    """Two source trees, the second with local changes and a name that must not become markup; one output is wrong."""
    src = [
        {"name": name, "commit": commit * 40, "dirty": bool(diff), "diff": diff}
        for name, commit, diff in (("main", "a", None), ("<b>|@user #12", "b", "0123456789ab"))
    ]
    ran = [
        replace(
            checked(record(batch, key=f"{batch}-{side}", environment={**GPU, "src": facts})),
            providers={"dequant": "<b>|", "combine": "triton"},
        )
        for batch in (1, 8)
        for side, facts in zip("ab", src, strict=True)
    ]
    failed = [
        {"name": "outputs, reuse on and off", "passed": False, "detail": "2 of 41 layer outputs differ | see #12"}
    ]
    wrong = replace(
        lost("wrong", "2 of 41 layer outputs differ | see #12"),
        checks=failed,
        environment=ran[-1].environment,
        batch=ran[-1].batch,
    )
    sides = [with_side(one, side, TREES) for one, side in zip([*ran[:3], wrong], "abab", strict=True)]
    found = trials(sides)
    return sides, [
        verdict(found[0], "FASTER", 19.5, 19.1, (-402.0, 30.0), None),
        Verdict(found[1], None, "b: wrong: 2 of 41 layer outputs differ | see #12", 0, min_effect=MinEffect(0.005)),
    ]


def floors():
    """An A/A of two cells: noise of 0.1 and 0.2 %, the second of which was called a difference."""
    cells = [
        with_side(record(batch, key=f"{batch}{side}"), side, ("reuse=on", "reuse=on"), aa=True, session="s2")
        for batch in (1, 8)
        for side in "ab"
    ]
    said = [("SAME", 20.0, 20.01, (5.0, 20.0), None), ("SLOWER", 160.0, 160.2, (160.0, 160.0), None)]
    return [Floor(verdict(trial, *one)) for trial, one in zip(trials(cells), said, strict=True)]


SCENES = {"h200": h200, "cpu": cpu, "trees": trees}


def drawn(name, form):
    """What a scene looks like as "txt", "csv" or "md" (the PR block); floors in the first scene alone."""
    records, verdicts = SCENES[name]()
    noise = floors() if name == "h200" else []
    if form == "md":
        return pr_block(records, verdicts, noise)
    stream = io.StringIO()
    show_tables(verdict_tables(verdicts, noise), {"txt": "table", "csv": "csv"}[form], stream)
    return stream.getvalue()


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, form in FILES:
        (GOLDEN / f"{name}.{form}").write_text(drawn(name, form), encoding="utf-8")
