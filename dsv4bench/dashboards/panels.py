"""Which cells share a figure, and which of them a panel: frames and pairs in parts, and what tells each from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.cells import grouped, mode_text, mode_words
from dsv4bench.dashboards.style import arrow
from dsv4bench.results.compare import Pair

if TYPE_CHECKING:
    import pandas as pd

BEST_CASE = ": best case, nobody ships it"
# launch modes in the order of their panels, and what must be read with each
MODES = {
    "eager": "",
    "graph": " (breakable)",
    "full graph": BEST_CASE,
    "tape": ", no CUDA graph",
    "full tape": ", no CUDA graph",
}
MACHINE = ("label", "machine", "commit", "diff", "src")
# what the points of one figure have in common
SECTION = (
    *MACHINE,
    *("geometry", "kv", "provider", "replay", "path", "moe", "mhc"),
    *("prefix", "source", "ranks", "align", "fault", "chunk", "seed", "mem-fraction", "recipe", "device-memory"),
)
# what tells the points of one figure apart
PLACE = ("requests", "mode", "breaks", "break-outputs", "compressor")
COMMIT_CHARACTERS = 12


def sections(frame: pd.DataFrame, *apart: str, together: Sequence[str] = ()) -> list[tuple[str, pd.DataFrame]]:
    """Split a comparison frame into parts that fit in one figure each, with what tells each from the others.

    That is the end of a file's name, "-kv-v4-prefix-8192", or "" for one part alone. Columns named in `apart` tell
    parts apart too, those in `together` do not. Cells that several commands measured are in a part for each time, of
    which the later ones are "-run-2" and so on. Parts keep the index of the frame.
    """
    if frame.empty:
        return []
    named = [name for name in (*SECTION, *apart) if name not in together]
    keys = [name for name in named if name in frame and frame[name].nunique(dropna=False) > 1]
    parts = _parts(frame, keys)
    told = _telling(keys, [values for values, _ in parts])
    found = [("".join(_words(keys[at], values[at]) for at in told), part) for values, part in parts]
    return [
        (end + "".join(map(_words, ["extend"], lengths)) + run, same)
        for end, part in found
        for lengths, of_lengths in _parts(part, _lengths(part, together))
        for run, same in _runs(of_lengths, together)
    ]


def _parts(frame: pd.DataFrame, keys: Sequence[str]) -> list[tuple[tuple[object, ...], pd.DataFrame]]:
    """Return the parts of a frame with equal `keys`, with their values."""
    return list(frame.groupby(list(keys), sort=False, dropna=False, observed=True)) if keys else [((), frame)]


def _telling(keys: Sequence[str], values: Sequence[tuple[object, ...]]) -> list[int]:
    """Return the places of the keys that are needed to tell these values apart; those of `MACHINE` go first."""
    kept = list(range(len(keys)))
    for place in range(len(keys)):
        fewer = [at for at in kept if at != place]
        if len({tuple(str(one[at]) for at in fewer) for one in values}) == len(values):
            kept = fewer
    return kept


def _lengths(part: pd.DataFrame, together: Sequence[str]) -> list[str]:
    """Return by what a part must be split further: lengths of requests, where batches of several lie at one place."""
    place = [name for name in (*PLACE, *together) if name in part]
    several = part["requests"].nunique() > 1 and part["extend"].nunique() > 1
    return ["extend"] if several and part.duplicated(place).any() else []


def _runs(part: pd.DataFrame, together: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return the first measurements of all cells, then the second ones, ...: a line passes each batch once."""
    place = [name for name in (*PLACE, "extend", *together) if name in part]
    times = part.groupby(place, dropna=False, observed=True).cumcount()
    return [("" if not time else f"-run-{time + 1}", part[times == time]) for time in range(times.max() + 1)]


def mode_panels(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the cells of each launch mode and compressor with their title, in the order of `MODES`.

    A title says the form of breaks where a mode has several, and the compressor where there are two.
    """
    rows = frame.to_dict("records")
    launches = [mode_words(row["mode"], row.get("breaks"), row.get("break-outputs")) for row in rows]
    forms = {(row["mode"], launch) for row, launch in zip(rows, launches, strict=True)}
    several = len({row["compressor"] for row in rows}) > 1
    titles = []
    for row, launch in zip(rows, launches, strict=True):
        mode = row["mode"]
        name = launch if sum(mode == one for one, _ in forms) > 1 else mode
        titles.append(name + MODES.get(mode, "") + (f", compressor {row['compressor']}" if several else ""))
    places = {title: _place(row["mode"]) for title, row in zip(titles, rows, strict=True)}
    return [(title, frame[[title == one for one in titles]]) for title in sorted(places, key=lambda one: places[one])]


def launch_panels(pairs: Sequence[Pair]) -> list[tuple[str, list[Pair]]]:
    """Return the pairs of each launch mode (and compressor, where cells have several) with their title, eager first."""
    several = len({pair.any.variant.get("compressor") for pair in pairs}) > 1

    def title(pair: Pair) -> str:
        mode = arrow(*(mode_text(pair.records[end]) for end in (0, -1)))
        return f"{mode}, compressor {pair.any.variant.get('compressor')}" if several else mode

    parts = [(title(same[0]), same) for same in grouped(pairs, title)]
    return sorted(parts, key=lambda part: _place(part[1][0].any.mode))


def largest(pairs: Sequence[Pair]) -> Pair:
    """Return the pair with the most rows; of several the last."""
    return max(reversed(pairs), key=lambda pair: int(pair.any.batch.get("rows") or 0))


def _place(mode: str) -> int:
    return [*MODES, mode].index(mode)


def _words(name: str, value: Any) -> str:
    """Return a setting as the end of a file's name, e.g. "-prefix-8192"; nothing for a value that is not there."""
    from pandas import isna

    if isna(value):
        return ""
    text = str(value)
    return file_words(f"-{name}-{text[:COMMIT_CHARACTERS] if name == 'commit' else text}")


def file_words(text: str) -> str:
    """Return a text as a part of a file's name: small letters, digits and "_", and "-" for any other sign."""
    return "".join(sign if sign.isalnum() or sign == "_" else "-" for sign in text).rstrip("-").lower()
