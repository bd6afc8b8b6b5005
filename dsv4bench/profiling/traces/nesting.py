"""Which of many ranges is the innermost one at a moment, for a million moments at once.

Ranges belong to groups (the thread that opened them, say) and need not nest: the innermost one open at a time is the
one that began last among those that have not ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.traces.columns import NO_ID

Integers = npt.NDArray[Any]


class Nesting:
    """Ranges by group, start and end (both inclusive), to be asked which one is open at a time."""

    def __init__(self, groups: Integers, starts_ns: Integers, ends_ns: Integers) -> None:
        self._rows = np.lexsort((-ends_ns, starts_ns, groups))  # of equal starts the longest is outside
        self._groups, self._starts_ns, self._ends_ns = (a[self._rows] for a in (groups, starts_ns, ends_ns))
        self._levels = _block_maxima(self._ends_ns)

    def innermost(self, groups: Integers, times_ns: Integers) -> Integers:
        """Return for each (group, time) the row of the innermost range that is open then, NO_ID where none is."""
        found = self._last_reaching(self._begun(groups, times_ns), times_ns)
        return self._row(found, groups)

    def open_count(self, groups: Integers, times_ns: Integers) -> Integers:
        """Return for each (group, time) how many ranges are open then."""
        ended = np.lexsort((self._ends_ns, self._groups))
        before = _position(self._groups[ended], self._ends_ns[ended], groups, times_ns, "left")
        return self._begun(groups, times_ns) - before

    def parents(self) -> Integers:
        """Return for each range, in the order in which they were given, the one around its start; NO_ID: none."""
        inside = self._last_reaching(np.arange(len(self._rows)), self._starts_ns + 1)
        found = np.full(len(self._rows), NO_ID, dtype=np.int64)
        found[self._rows] = self._row(inside, self._groups)
        return found

    def _begun(self, groups: Integers, times_ns: Integers) -> Integers:
        return _position(self._groups, self._starts_ns, groups, times_ns, "right")

    def _row(self, found: Integers, groups: Integers) -> Integers:
        """Return the rows of places in the sorted ranges; a range of a group before is none."""
        if not len(self._rows):
            return np.full(len(found), NO_ID, dtype=np.int64)
        return np.where((found >= 0) & (self._groups[found] == groups), self._rows[found], NO_ID)

    def _last_reaching(self, before: Integers, least: Integers) -> Integers:
        """Return for each query the last place before `before` whose end is at least `least`, else NO_ID.

        It climbs a tree of block maxima until a block to the left reaches that far, and descends into it.
        """
        block, height = np.full(len(before), NO_ID, dtype=np.int64), np.zeros(len(before), dtype=np.int8)
        at, active = before.astype(np.int64), np.arange(len(before))
        for level, maxima in enumerate(self._levels):
            active = active[at[active] > 0]
            left = active[(at[active] & 1) == 1]
            reached = left[maxima[at[left] - 1] >= least[left]]
            block[reached], height[reached] = at[reached] - 1, level
            active = active[block[active] == NO_ID]
            at[active] >>= 1
        for level in range(len(self._levels) - 1, 0, -1):
            inside = np.flatnonzero((block != NO_ID) & (height == level))
            right = 2 * block[inside] + 1
            block[inside] = right - (self._levels[level - 1][right] < least[inside])
            height[inside] = level - 1
        return block


def _block_maxima(values: Integers) -> list[Integers]:
    """Return the maxima of blocks of 1, 2, 4, ... values; the last blocks are filled up with the least value."""
    size = 1 << max(len(values) - 1, 0).bit_length()
    level = np.full(size, np.iinfo(np.int64).min, dtype=np.int64)
    level[: len(values)] = values
    found = [level]
    while len(level) > 1:
        level = level.reshape(-1, 2).max(axis=1)
        found.append(level)
    return found


def _position(
    groups: Integers, values: Integers, of_groups: Integers, of_values: Integers, side: Any
) -> npt.NDArray[np.int64]:
    """Return `searchsorted` of pairs in pairs that are sorted by (group, value)."""
    found = np.zeros(len(of_groups), dtype=np.int64)
    order = np.argsort(of_groups, kind="stable")
    wanted, firsts = np.unique(of_groups[order], return_index=True)
    for group, own in zip(wanted, np.split(order, firsts[1:]), strict=False):  # no groups still split in one
        begin, end = np.searchsorted(groups, group, "left"), np.searchsorted(groups, group, "right")
        found[own] = begin + np.searchsorted(values[begin:end], of_values[own], side)
    return found
