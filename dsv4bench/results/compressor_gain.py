"""What another ratio-2 compressor saves a step, by what each takes alone: the prediction of such a change."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from dsv4bench.results.record import Record
from dsv4bench.units import format_ns

ALONE = "compressor"  # the metric: one source's, captured alone and timed beside the steps
OPS = ("compress_pool", "compress_c2")  # the torch path and the fused kernels


@dataclass(frozen=True, slots=True)
class CompressorGain:
    """What one ratio-2 source's compressor takes alone before and after, and how many sources a step has."""

    sources: int
    before_ns: float
    after_ns: float

    @property
    def difference_ns(self) -> float:
        """The predicted time of a step after minus before."""
        return self.sources * (self.after_ns - self.before_ns)

    @property
    def text(self) -> str:
        """How the difference comes about, e.g. "3 sources x (433.6 us -> 22.20 us alone)"."""
        return f"{self.sources} sources x ({format_ns(self.before_ns)} -> {format_ns(self.after_ns)} alone)"


def compressor_gain(before: Record | None, after: Record | None) -> CompressorGain | None:
    """Return the gain of two cells of one forward on one rank that were timed in turn; None where it is not known.

    Only cells in segments of a graph have the metric: what the host takes to submit an eager compressor is no part of
    it.
    """
    sides = [_alone_ns(record) for record in (before, after) if record is not None]
    if before is None or after is None or sides[0] is None or sides[1] is None:
        return None
    return CompressorGain(len(_sources(before) | _sources(after)), sides[0], sides[1])


def _alone_ns(record: Record) -> float | None:
    samples = record.samples_ns.get(ALONE)
    return median(samples) if samples and record.ranks == 1 and record.batch.get("forwards") == 1 else None


def _sources(record: Record) -> set[object]:
    return {row.get("kv_source") for row in record.counts if row.get("op") in OPS}
