"""What the golden tables show: a few sets of records, each named by what it is for.

`python -m tests.dashboards.scenes` writes tests/data/tables anew; read the difference before it is committed.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from dsv4bench.dashboards.tables import show
from tests.results.synthetic import NOTHING, SHARE, counts, cpu_sweep, lost, ramp, record, row, sweep, with_variant

GOLDEN = Path(__file__).parents[1] / "data" / "tables"
ENDINGS = {"table": "txt", "md": "md", "csv": "csv"}


def both_compressors():
    """Two batches with the torch path and fused: 61 launches against 4 for each of three ratio-2 sources."""
    torch_ops = [("compress_pool", 51, 3), ("latent_norm", 1, 0), ("index_k_norm", 1, 0), ("fake_quant", 1, 0)]
    torch_ops += [("index_k_proj", 2, 0), ("index_pack", 2, 0), ("store", 1, 0)]
    ops = {"torch": torch_ops, "fused": [("compress_c2", 2, 0), ("index_k_proj", 1, 0), ("index_key", 1, 0)]}
    found = []
    for batch in (1, 8):
        for reuse in ("off", "on"):
            for compressor, launched in ops.items():
                rows = [row(op, one, "segment", 1, each, copies) for one in (2, 8, 14) for op, each, copies in launched]
                cell = record(batch, reuse, graph=True, counts=counts(reuse, "break", extra=rows))
                slower = {"graph_replay": [time + 600_000 for time in cell.samples_ns["graph_replay"]]}
                cell = replace(cell, samples_ns=slower) if compressor == "torch" else cell
                found.append(with_variant(cell, compressor=compressor))
    return found


def dealt():
    """A batch of 4 dealt to 2 ranks that take turns in being the slower one."""
    found = []
    for reuse, middle in (("off", 80_000_000), ("on", 78_000_000)):
        first, second = (
            ramp(middle, 10_000),
            [middle - 900_000, middle + 2_100_000, middle + 300_000] * 3 + [middle + 1_000_000] * 2,
        )
        times = {"step_period": [max(both) for both in zip(first, second, strict=True)]}
        ranks = [{"step_period": first}, {"step_period": second}]
        note = [SHARE, "ranks ran one after another on this device"]
        cell = record(4, reuse, label="simulated", ranks=2, samples_ns=times, rank_samples_ns=ranks, note=note)
        found.append(replace(cell, batch={**cell.batch, "padded_rows": 4096, "rank_rows": [2048, 2048]}))
    return found


def wrong():
    """A planted fault: an extra copy and a wrong head; a cell that ran out of memory; one that only one side ran."""
    check = [{"name": "reused heads", "passed": False, "detail": "layer 8: row 3 differs from a fresh dequant"}]
    copied = counts("on", extra=[row("other", 8, "eager", 0, copies=5)])
    bad = replace(record(2), status="wrong", reason="a check failed", **{**NOTHING, "checks": check, "counts": copied})
    full = lost("out_of_memory", "needs 150 GiB, 120 GiB are free", batch=64, reuse="off")
    return [record(2, "off", flags=["launch-bound"]), bad, full, record(8, "on")]


SCENES = {"h200": sweep, "cpu": cpu_sweep, "compressor": both_compressors, "ranks": dealt, "wrong": wrong}


def drawn(name, form):
    stream = io.StringIO()
    show(SCENES[name](), form, stream)
    return stream.getvalue()


def golden_file(name, form):
    return GOLDEN / f"{name}.{ENDINGS[form]}"


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in SCENES:
        for form in ENDINGS:
            golden_file(name, form).write_text(drawn(name, form))
