"""How much of a gain the removed work explains: fewer launches and bytes, the predicted difference and the measured."""

from __future__ import annotations

from dsv4bench.results.compare import calls_left_out
from dsv4bench.results.compressor_gain import compressor_gain
from dsv4bench.results.counts import DEVICE, add, sums
from dsv4bench.results.record import Record
from dsv4bench.results.trials import Trial
from dsv4bench.results.verdict import Verdict
from dsv4bench.units import format_bytes, format_ns


def explained(verdict: Verdict) -> str:
    """Return one line: how many launches and bytes B has less than A, and how much of the difference that predicts.

    Times are predicted for a change of reuse or of the compressor alone, bytes for one of reuse. Launches are those of
    one forward: kernels, copies and sets, or calls of operations where there is no GPU.
    """
    difference = verdict.difference_ns
    if difference is None:
        return f"nothing to explain: {verdict.reason}"
    work = ", ".join(filter(None, [_launches(verdict.trial), _bytes(verdict)]))
    span = f" [{format_ns(difference.low)}, {format_ns(difference.high)}]" if difference.confidence else ""
    measured = f"measured {format_ns(difference.value)}{span}"
    if verdict.predicted_ns is None:
        return f"{work}: {measured}; no time is predicted for this change"
    return f"{work}: {measured}, predicted {format_ns(verdict.predicted_ns)}{_how(verdict.trial)}: {_share(verdict)}"


def _how(trial: Trial) -> str:
    """Return what the prediction is made of where it is not bytes."""
    if trial.switched == {"compressor"}:
        gain = compressor_gain(trial.a, trial.b)
        return f" ({gain.text})" if gain else ""
    calls = calls_left_out(trial.a, trial.b)
    return f" (launch-bound: {calls.text})" if calls else ""


def _share(verdict: Verdict) -> str:
    """Return how much of the difference is predicted, where there is one."""
    difference, predicted_ns = verdict.difference_ns, verdict.predicted_ns or 0.0
    if difference is None or difference.covers_zero:
        return "the interval covers 0, nothing to explain"
    if predicted_ns * difference.value < 0:
        return "the removed work explains the opposite"
    return f"the removed work explains {predicted_ns / difference.value:.0%} of it"


def _launches(trial: Trial) -> str:
    """Return how many launches a forward of B has less, or more, than one of A."""
    sides = [_launched(record) for record in (trial.a, trial.b)]
    if sides[0] is None or sides[1] is None or sides[0][0] != sides[1][0]:
        return "launches not counted"
    (one, many), before, after = *sides[0], sides[1][1]
    fewer = abs(after - before)
    return _fewer(f"{fewer} {one if fewer == 1 else many}", after - before) + " a forward"


def _launched(record: Record | None) -> tuple[tuple[str, str], int] | None:
    """Return what a record counts (one, many), and how many: device operations, or calls where no device was there."""
    total = sums(record.counts if record else []).get(())
    if total is None:
        return None
    launches = add(total[name] for name in DEVICE)
    if launches is not None:
        return ("launch", "launches"), launches
    return None if total["calls"] is None else (("call", "calls"), total["calls"])


def _bytes(verdict: Verdict) -> str | None:
    """Return how many bytes fewer the predicted difference stands for."""
    records = [record for record in (verdict.trial.b, verdict.trial.a) if record is not None]
    saved = [record.predicted["saved_bytes"] for record in records if record.predicted]
    if verdict.predicted_ns is None or verdict.trial.switched != {"reuse"} or not saved:
        return None
    return f"{_fewer(format_bytes(saved[0]), verdict.predicted_ns)} (modelled)"


def _fewer(amount: str, sign: float) -> str:
    return f"{amount} {'more' if sign > 0 else 'less'}"
