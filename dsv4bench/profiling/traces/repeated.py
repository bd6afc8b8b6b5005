"""What a trace shows of work done twice: inferred, since a trace tells what ran and not on which inputs.

Two operations of a step read what only their kv_source decides: the dequant of its compressed rows, until its cache is
written, and combine, until the source's top-k is computed again. Another layer's kernel of the same name for the same
source, with no such writer in between, is taken for a repetition. Where layers fall again another forward began.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dsv4bench.profiling.traces.columns import KERNEL, NO_ID
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.results.redundant import InferredRow

# an operation, what changes its inputs, and whether a trace must show such a writer to say anything
READERS = (
    ("dequant_compressed", ("compress_c1", "compress_c2", "compress_pool", "store"), False),
    ("combine", ("index_topk",), True),
)
_STEP = ["process", "step"]
_SOURCE = [*_STEP, "device", "kv_source"]


def repeated(ranks: Sequence[Placed]) -> list[InferredRow]:
    """Return what the steps of a run repeat, by operation and kv_source, those of all ranks together.

    Only kernels inside steps whose layer, source and operation are known are looked at; what is never repeated has no
    row. `per_step` is the smallest and the largest number of a step.
    """
    found = [_of_rank(placed).assign(rank=number) for number, placed in enumerate(ranks)]
    rows = pd.concat(found, ignore_index=True)
    steps = rows[["rank", *_STEP]].drop_duplicates()
    return [_row(same, steps) for _, same in rows.groupby(["op", "kv_source"]) if same["again"].any()]


def _of_rank(placed: Placed) -> pd.DataFrame:
    """Return the kernels of all readers, by the name of their operation, with `again`: whether it is a repetition."""
    codes = {op: code for code, op in enumerate(placed.ops)}
    rows = placed.rows
    known = (rows["kind"] == KERNEL) & (rows[["layer", "kv_source", "op", "step"]] != NO_ID).all(axis=1)
    rows = rows[known].sort_values("start_ns", kind="stable")
    found = [_readers(rows, codes, *one) for one in READERS]
    return pd.concat(found, ignore_index=True)


def _readers(rows: pd.DataFrame, codes: dict[str, int], op: str, writers: Sequence[str], must: bool) -> pd.DataFrame:
    """Return the kernels of one operation, each with whether it repeats the one before it of the same source."""
    writes = rows["op"].isin([codes[name] for name in writers if name in codes])
    chosen = rows[writes | (rows["op"] == codes.get(op, NO_ID))]
    writes = writes[chosen.index]
    epoch = writes.groupby([chosen[name] for name in _SOURCE]).cumsum()
    readers = chosen[~writes].assign(epoch=epoch[~writes], op=op)
    before = readers.groupby([*_SOURCE, "name"])[["layer", "epoch"]].shift(fill_value=NO_ID)
    again = (before["layer"] != NO_ID) & (before["layer"] < readers["layer"]) & (before["epoch"] == readers["epoch"])
    return readers.assign(again=again & ((readers["epoch"] > 0) | (not must)))


def _row(rows: pd.DataFrame, steps: pd.DataFrame) -> InferredRow:
    again = rows[rows["again"]]
    each = again.groupby(["rank", *_STEP]).size()
    counts = each.reindex(pd.MultiIndex.from_frame(steps), fill_value=0)
    return InferredRow(
        op=str(rows["op"].iloc[0]),
        kv_source=int(rows["kv_source"].iloc[0]),
        kernels=len(rows),
        repeated=len(again),
        per_step=(int(counts.min()), int(counts.max())),
        time_ns=int((again["end_ns"] - again["start_ns"]).sum()),
    )
