"""How a cell is called in tables: its batch, its mode, the settings that it shares with others."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from dsv4bench.dashboards.style import arrow
from dsv4bench.dashboards.table import joined
from dsv4bench.results.compare import Pair
from dsv4bench.results.record import Record

Thing = TypeVar("Thing")
# what two sentences may differ in and still say the same
_AMOUNT = re.compile(r"\d+%|\d+(?= attributed)|\d+\.\d(?= of \d+ cores)")
# named by the table's own columns or, the last one, as the number of ranks
SHOWN_SWITCHES = ("reuse", "graph", "graph-mode", "breaks", "break-outputs", "dep-simulated")
PADDED = "rows live/padded: new tokens, and what they are with the padding of graphs, of all forwards and ranks"
# what a switch puts into the step behind attention, in the words of the records' notes
IN_STEP = {
    "mhc": {"on": "residual streams"},
    "moe": {"collectives": "the exchange of a MoE", "experts": "a MoE"},
}


def heading(what: str, record: Record, *switched: str) -> str:
    """Return a title: what is shown, what is in the step but for what is `switched`, and what `seen_where` says."""
    return f"{what}, {in_step(record.variant, *switched)} of {seen_where(record)}"


def seen_where(record: Record) -> str:
    """Return of which geometry, how, by what and where a record was seen, e.g. "v41-flash: measured, gpu, NVIDIA H200".

    A tape plays the CPU's reference again, so both stand in one table; the mode tells them apart.
    """
    engine = "cpu-reference" if record.engine == "tape" else record.engine
    return f"{record.geometry}: {record.label}, {engine}, {record.machine}"


def in_step(switches: Mapping[str, Any], *without: str) -> str:
    """Return what is in a step but for what hangs on `without`, e.g. "attention stack, residual streams and a MoE".

    Records from before there was such a switch have attention alone.
    """
    said = {name: str(switches.get(name)) for name in IN_STEP if name not in without}
    more = [IN_STEP[name][value] for name, value in said.items() if value in IN_STEP[name]]
    return " and ".join([", ".join(["attention stack", *more[:-1]]), *more[-1:]])


def mode_text(record: Record) -> str:
    """Return how a cell was launched and the form of its breaks, e.g. "eager", "graph sm100", "graph hopper static".

    A break's output is copied unless it is said to be static.
    """
    return mode_words(record.mode, record.variant.get("breaks"), record.variant.get("break-outputs"))


def mode_words(mode: str, breaks: object, outputs: object) -> str:
    """Return the text of a mode, its form of breaks and what becomes of their outputs; anything but words is left out.

    For rows of frames, which hold NaN where a cell has no breaks.
    """
    form = [breaks] if isinstance(breaks, str) else []
    return " ".join([mode, *form, *(["static"] if outputs == "static" else [])])


def short_modes(records: Sequence[Record]) -> Callable[[Record], str]:
    """Return how a table of these records calls their modes: by the form of breaks only where a mode has several."""
    return _plain_mode if _one_form_each(records) else mode_text


def mode_notes(records: Sequence[Record]) -> list[str]:
    """Return the form of breaks that `short_modes` left out, e.g. "graph: breaks sm100, their outputs static"."""
    forms = [
        f"{record.mode}: breaks {record.variant['breaks']}, their outputs {record.variant.get('break-outputs')}"
        for record in (records if _one_form_each(records) else ())
        if record.variant.get("breaks")
    ]
    return list(dict.fromkeys(forms))


def _plain_mode(record: Record) -> str:
    return record.mode


def _one_form_each(records: Sequence[Record]) -> bool:
    return len({mode_text(record) for record in records}) == len({record.mode for record in records})


def batch_text(record: Record) -> str:
    """Return "64 x 128" for 64 requests of 128 new tokens each, "64" where their lengths differ."""
    requests, extend = record.batch.get("requests"), record.batch.get("extend")
    return f"{requests} x {extend}" if extend else f"{requests}"


def rows_text(record: Record) -> str:
    """Return the rows of a cell's forwards on all ranks, as live/padded where padding adds some."""
    rows, padded = record.batch.get("rows"), record.batch.get("padded_rows")
    if rows is None:
        return ""
    return f"{rows}/{padded}" if padded and padded > rows else f"{rows}"


def rows_notes(records: Iterable[Record]) -> list[str]:
    """Return what the two numbers of `rows_text` are, where some record has two."""
    return [PADDED] if any("/" in rows_text(record) for record in records) else []


def rows_beside(record: Record) -> str:
    """Return the rows where the batch does not say them, "" where it does: requests of several lengths, and padding.

    A cell that did not run has no padding to tell of.
    """
    rows, padded = record.batch.get("rows"), record.batch.get("padded_rows")
    return "" if record.batch.get("extend") is not None and padded in (None, rows) else rows_text(record)


def rank_rows(record: Record) -> list[int] | None:
    """Return the live rows of each rank, or None where the record does not say."""
    rows = record.batch.get("rank_rows")
    return list(rows) if rows else None


def settings(record: Record, *without: str) -> str:
    """Return what holds for a whole table, e.g. "kv v41+fp4, compressor fused, provider triton, prefix 8192"."""
    hidden = {*SHOWN_SWITCHES, *without}
    said = {name: value for name, value in record.variant.items() if name not in hidden and value is not None}
    words = [f"{name} {value}" for name, value in said.items() if (name in IN_STEP, value) != (True, "off")]
    prefix, source = record.batch.get("prefix"), record.batch.get("source")
    words += [] if prefix is None else [f"prefix {prefix}"]
    words += [] if source in (None, "uniform") else [f"requests from {source}"]
    words += [] if record.ranks == 1 else [f"{record.ranks} ranks"]
    return ", ".join(words)


def providers_text(record: Record) -> list[str]:
    """Return one line naming what ran on another provider than most kernels did; empty where all (or none) ran."""
    ran = list(record.providers.values())
    names = sorted(dict.fromkeys(ran), key=lambda name: -ran.count(name))
    if len(names) < 2 or not (record.counts or record.samples_ns):
        return []
    others = [f"{', '.join(k for k, v in record.providers.items() if v == name)} on {name}" for name in names[1:]]
    return [f"kernels ran on {names[0]}, but {'; '.join(others)}"]


def both_ran(pairs: Sequence[Pair]) -> bool:
    """Return whether there are records of both sides."""
    return any(pair.before for pair in pairs) and any(pair.after for pair in pairs)


def sides_run(pairs: Sequence[Pair]) -> str:
    """Return "reuse off -> on", or the one side that was run, e.g. "reuse on"."""
    if both_ran(pairs):
        return "reuse off -> on"
    return f"reuse {'off' if pairs[0].before else 'on'}"


def sides_text(both: bool, before: object, after: object, *, always: bool = False) -> str:
    """Return "before -> after" in a table of both sides, and the one value there is in a table of one."""
    if both:
        return arrow(before, after, always=always)
    only = after if before is None else before
    return arrow(only, only)


def section(pair: Pair) -> tuple[str, ...]:
    """Return what the cells of one table have in common: all but the batch and the mode."""
    one = pair.any
    return (heading("", one), settings(one), str(one.environment.get("commit")), str(one.environment.get("src")))


def provenance(records: Iterable[Record]) -> list[str]:
    """Return one line for each set of versions that measured the records: commit, source tree, torch, driver, ..."""
    return list(dict.fromkeys(line for record in records if (line := _versions(record))))


def grouped(things: Iterable[Thing], key: Callable[[Thing], Hashable]) -> list[list[Thing]]:
    """Return the things that share a key as lists, in the order of first appearance."""
    found: dict[Hashable, list[Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return list(found.values())


def cells_text(records: Sequence[Record]) -> str:
    """Return which cells are meant, e.g. "eager, batch 1 x 1024 2 x 1024; graph, batch 1 x 1024"."""
    parts = [
        f"{mode_text(same[0])}, batch {', '.join(dict.fromkeys(batch_text(record) for record in same))}"
        for same in grouped(records, mode_text)
    ]
    return "; ".join(parts)


def said_of(
    records: Sequence[Record],
    sentences: Callable[[Record], Iterable[str]],
    parts: Mapping[str, Sequence[Record]] = MappingProxyType({}),
) -> list[str]:
    """Return every distinct sentence that is said of some record, with its cells unless it is said of all that ran.

    Sentences that differ in shares or counts alone are one, from the least number to the greatest. One that is said of
    all that ran of a part, and of no cell of another, has that part's name instead of its cells.
    """
    said = grouped([(text, record) for record in records for text in sentences(record)], lambda one: _skeleton(one[0]))
    ran = _ran(records)
    found = []
    for same in said:
        ones = list({id(record): record for _, record in same}.values())
        text = _from_least_to_greatest([text for text, _ in same])
        of = frozenset(map(id, ones))
        found.append(text if ran <= of else f"{text} ({_part(of, parts) or cells_text(ones)})")
    return found


def _part(of: frozenset[int], parts: Mapping[str, Sequence[Record]]) -> str | None:
    """Return the name of the part of which these are all that ran, or all where nothing of it did; and no other."""
    for name, part in parts.items():
        every = frozenset(map(id, part))
        if every and (_ran(part) or every) <= of <= every:
            return name
    return None


def _ran(records: Iterable[Record]) -> frozenset[int]:
    return frozenset(id(record) for record in records if record.status in ("ok", "wrong"))


def _skeleton(text: str) -> str:
    return _AMOUNT.sub("#", text)


def _from_least_to_greatest(texts: Sequence[str]) -> str:
    """Return the one text of which these, which are alike but for their amounts, are examples."""
    amounts = zip(*(_AMOUNT.findall(text) for text in texts), strict=True)
    spans = iter([(min(one, key=_number), max(one, key=_number)) for one in amounts])

    def span(_: re.Match[str]) -> str:
        least, greatest = next(spans)
        return least if least == greatest else f"{least} to {greatest}"

    return _AMOUNT.sub(span, texts[0])


def _number(amount: str) -> float:
    return float(amount.rstrip("%"))


def notes_of(records: Sequence[Record], parts: Mapping[str, Sequence[Record]] = MappingProxyType({})) -> list[str]:
    """Return what must be read with every number of the records: share of the FLOPs, how and on what they ran."""
    return said_of(records, lambda record: [*record.note, *providers_text(record)], parts)


def records_of(pairs: Iterable[Pair]) -> list[Record]:
    """Return the records of all pairs, pair by pair, before first."""
    return [record for pair in pairs for record in pair.records]


def status_of(pair: Pair) -> str:
    """Return the statuses that are not "ok", for a list of cells."""
    return joined([record.status for record in pair.records if record.status != "ok"])


def _versions(record: Record) -> str:
    environment, src = record.environment, record.environment.get("src")
    words = [_commit(environment)] if environment.get("commit") else []
    words += [f"src {src['name']} at {_commit(src) if src['commit'] else 'no commit'}"] if src else []
    words += [f"{name} {environment[name]}" for name in ("torch", "triton", "driver") if environment.get(name)]
    return ", ".join(words)


def _commit(state: Mapping[str, Any]) -> str:
    return f"commit {str(state['commit'])[:12]}{' with local changes' if state.get('dirty') else ''}"
