"""The main job from Python on a small model: plan, run, frame. New: cells, sweep, comparison_frame."""

from dataclasses import replace

from dsv4bench.profiling import sweep
from dsv4bench.profiling.session import open_session
from dsv4bench.results.frame import comparison_frame, counts_frame
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.options import PrefillArguments, prefill_options

small = replace(
    V41_FLASH_MINI,
    name="five layers",
    ratios=(0, 2, 2, 1, 1),
    kv_sources=(1, 3),
    index_sources=(1, 3),
    candidate_source=3,
)
options = replace(prefill_options(PrefillArguments(batch="2", graph=False, device="cpu")), geometry=(small,))

plan = cells(options)
records = [record for group in sweep.run(plan, open_session("cpu", samples=3, quick=True)) for record in group]
frame = comparison_frame(records)

print(frame[["requests", "rows", "before_status", "after_status", "nothing_added"]].to_string(index=False))
counts = counts_frame(records).query("op == 'dequant_compressed'")
print(counts.pivot_table("calls", "kv_source", "reuse", aggfunc="sum").to_string())
