"""Which correlation ids were used again: ids of 32 bits wrap, and a process may have the number of one that ended."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pandas as pd

Rows = npt.NDArray[Any]


def reused(keys: Rows, starts_ns: Rows, ends_ns: Rows) -> Rows:
    """Return the keys of calls that follow one another; calls inside one another are one launch with one id.

    All calls given launch work; `keys` tell process and correlation id. Which of them launched an operation with that
    id cannot be told.
    """
    calls = pd.DataFrame({"key": keys, "start_ns": starts_ns, "end_ns": ends_ns})
    calls = calls[calls.duplicated("key", keep=False)].sort_values(["key", "start_ns"], kind="stable")
    ended = calls.groupby("key")["end_ns"].cummax().groupby(calls["key"]).shift()
    return calls["key"][calls["start_ns"] > ended].unique()
