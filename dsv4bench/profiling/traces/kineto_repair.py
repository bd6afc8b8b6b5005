"""Read a torch.profiler file that is not JSON as a whole: event by event, mending or leaving out what is wrong.

The text is cut where one object ends and the next begins. Most cuts lie between events; a cut inside one (a list of
objects, a text with such characters) is found by its brackets and joined again. Runs of pieces are decoded at once, so
that a file with one mistake costs little more than a whole one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.kineto_events import Decoders, Document, Event
from dsv4bench.profiling.traces.kineto_mend import MENDED, mended
from dsv4bench.units import format_count

_LIST = re.compile(rb'"traceEvents"\s*:\s*')
_CUT = re.compile(rb"\}[\s,]*(?=\{)")
_RUN = 256  # pieces decoded at once
_JOINED = 16  # pieces that one event may be cut into
_SHOWN = 20  # bytes of a strange place in a message
_FILLER = " \t\r\n,"
_SCANNER = json.JSONDecoder()
_OUTSIDE_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def repaired(text: bytes, path: Path, decoders: Decoders, repairs: list[str]) -> Document:
    """Return what can be read of a text that does not decode, and add to `repairs` what was mended or left out.

    Raises TraceFormatError, with the place, where there is no list of events or none of them can be read.
    """
    text = _utf8(text, repairs)
    start = _start_of_list(text, path)
    reading = _Reading(text, start, decoders)
    reading.read()
    if not reading.events and not (reading.closed and not reading.bad):
        place, why = reading.bad[0] if reading.bad else (len(text), "the end of the file")
        raise TraceFormatError(f"{path}: byte {place}: expected an event of the list 'traceEvents', found {why}")
    said = reading.sentences()
    document = reading.document(said)
    repairs += said or ["the file is not JSON as a whole; its events were read one by one"]
    return document


def _utf8(text: bytes, repairs: list[str]) -> bytes:
    """Return the text with every byte that is not UTF-8 read as Latin-1."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        kept = text.decode("utf-8", "surrogateescape")
        wrong = re.compile("[\udc80-\udcff]")
        fixed, count = wrong.subn(lambda match: chr(ord(match.group()) - 0xDC00), kept)
        repairs.append(f"{format_count(count, 'byte')} not UTF-8, read as Latin-1, the first at byte {error.start}")
        return fixed.encode()
    return text


def _start_of_list(text: bytes, path: Path) -> int:
    """Return the index after the bracket that opens the list of events."""
    first = len(text) - len(text.lstrip())
    if text[first : first + 1] == b"[":
        return first + 1
    found = _LIST.search(text) if text[first : first + 1] == b"{" else None
    if found is None:
        word = "a list of events or a mapping with the list 'traceEvents'"
        raise TraceFormatError(f"{path}: byte {first}: expected {word}, found {_shown(text[first : first + _SHOWN])}")
    start = found.end()
    if text[start : start + 1] != b"[":
        shown = _shown(text[start : start + _SHOWN])
        raise TraceFormatError(f"{path}: byte {start}: expected the list 'traceEvents', found {shown}")
    return start + 1


def _shown(text: bytes) -> str:
    """Return the first characters of a text for a message."""
    return repr(text[:_SHOWN].decode("utf-8", "replace")) if text.strip() else "the end of the file"


class _Reading:
    """The list of events of one text, read piece by piece."""

    def __init__(self, text: bytes, start: int, decoders: Decoders) -> None:
        self.text, self.start, self.decoders = text, start, decoders
        self.bare = text.lstrip().startswith(b"[")
        self.events: list[Event] = []
        self.tail = b""
        self.closed = False
        self.cut = False
        self.bad: list[tuple[int, str]] = []
        self.counts: Counter[str] = Counter()
        cuts = list(_CUT.finditer(text, start))
        self.separators = sum(cut.group().count(b",") != 1 for cut in cuts)
        first = text.find(b"{", start)
        self.starts = [first, *(cut.end() for cut in cuts)] if first >= 0 else []
        self.ends = [*(cut.start() + 1 for cut in cuts), len(text)]

    def read(self) -> None:
        """Fill `events` and `tail`."""
        if not self._opened():
            return
        piece = 0
        while piece < len(self.starts) and not self.closed:
            last = min(piece + _RUN, len(self.starts))
            try:
                run = self.text[self.starts[piece] : self.ends[last - 1]]
                self.events += self.decoders.events.decode(b"[" + run + b"]")
                piece = last
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                while piece < last and not self.closed:
                    piece = self._whole(piece) or self._one(piece)

    def _opened(self) -> bool:
        """Look at what stands before the first event: nothing, or the end of an empty list, or something strange."""
        before = self.text[self.start : self.starts[0] if self.starts else len(self.text)].decode("utf-8", "replace")
        strange = before.strip(_FILLER)
        if strange.startswith("]"):
            self.closed = True
            self.tail = self.text[self.text.index(b"]", self.start) + 1 :]
            return False
        self.separators += "," in before
        if strange:
            self._drop(self.start, _shown(strange.encode()))
        return True

    def _whole(self, piece: int) -> int | None:
        """Read the piece if it is an event as it stands; return the piece after it."""
        try:
            self.events.append(self.decoders.event.decode(self.text[self.starts[piece] : self.ends[piece]]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return piece + 1

    def _one(self, piece: int) -> int:
        """Read the event that begins with this piece and is to be mended; return the piece after it."""
        start = self.starts[piece]
        lasts, is_open = self._last_pieces(piece)
        for last, loose in itertools.product(lasts, (False, True)):
            counts: Counter[str] = Counter()
            try:
                text = mended(self.text[start : self.ends[last]].decode(), loose, counts)
                end = _SCANNER.raw_decode(text)[1]
                event = self._event(text[:end].encode(), counts)
            except (ValueError, msgspec.MsgspecError, RecursionError):
                continue
            self.counts += counts
            self.events.append(event)
            self._after(text[end:], self.ends[last])
            return last + 1
        if is_open and self.ends[piece] == len(self.text):
            self.cut = True  # inside its last event, which is what a file that ends early looks like
        else:
            self._drop(start, _shown(self.text[start : start + _SHOWN]))
        return piece + 1

    def _last_pieces(self, piece: int) -> tuple[list[int], bool]:
        """Return the pieces that an event may end with, and whether its first piece leaves it open."""
        depth, inside = _balance(self.text[self.starts[piece] : self.ends[piece]], False)
        lasts, is_open = [piece], depth > 0 or inside
        for last in range(piece + 1, min(piece + _JOINED, len(self.starts))):
            if depth <= 0 and not inside:
                break
            change, inside = _balance(self.text[self.starts[last] : self.ends[last]], inside)
            depth += change
            if depth <= 0 and not inside:
                lasts.append(last)
        return lasts, is_open

    def _event(self, raw: bytes, counts: Counter[str]) -> Event:
        """Return an event; a field of a type that it cannot have is left out and counted."""
        try:
            return self.decoders.event.decode(raw)
        except msgspec.ValidationError:
            return _coerced(self.decoders.anything.decode(raw), counts)

    def _after(self, rest: str, end: int) -> None:
        """Look at what follows an event in its piece: nothing, the end of the list, or something strange."""
        after = rest.lstrip(_FILLER)
        if after.startswith("]"):
            self.closed = True
            self.separators += "," in rest[: len(rest) - len(after)]
            self.tail = after[1:].encode() + self.text[end:]
        elif after:
            self._drop(end - len(after.encode()), _shown(after.encode()))

    def _drop(self, place: int, why: str) -> None:
        self.bad.append((place, why))

    def sentences(self) -> list[str]:
        """Return what was mended and left out."""
        said = [sentence.format(self.counts[kind]) for kind, sentence in MENDED.items() if self.counts[kind]]
        if self.separators:
            said.append(f"commas between events that were missing, doubled or trailing: {self.separators}")
        if self.bad:
            said.append(f"{format_count(len(self.bad), 'place')} in the list of events lost, the first {self._place()}")
        if not self.closed:
            state = "is not closed" if self.bare and not self.cut else "is cut"
            said.append(
                f"the list of events {state} where the file ends, at byte {len(self.text)}: the"
                f" {format_count(len(self.events), 'event')} before it were read, later ones may be missing"
            )
        elif not self.bare and not self.tail.rstrip().endswith(b"}"):
            said.append("the file ends without its closing brace, after the list of events, which is whole")
        return said

    def _place(self) -> str:
        place, why = self.bad[0]
        return f"at byte {place} ({why})"

    def document(self, repairs: list[str]) -> Document:
        """Return the events with what stands before and after them."""
        if self.bare:
            return Document(trace_events=self.events)
        before = self.text[: self.start].lstrip()
        head = self._mapping(_LIST.sub(b"", before[1:-1]), "before", repairs)
        tail = self._mapping(self.tail.strip().removesuffix(b"}"), "after", repairs) if self.closed else {}
        document = msgspec.convert({**head, **tail}, Document)
        document.trace_events = self.events
        return document

    def _mapping(self, inside: bytes, where: str, repairs: list[str]) -> dict[str, Any]:
        """Return the keys that stand before or after the list of events, none where they cannot be read."""
        text = mended(inside.decode("utf-8", "replace").strip(_FILLER), False, Counter())
        try:
            return dict(self.decoders.anything.decode(f"{{{text}}}".encode()))
        except (ValueError, msgspec.MsgspecError, RecursionError):
            more = ", with events of another trace left out" if b'"ph"' in inside else ""
            repairs.append(f"the {len(inside)} bytes {where} the list of events could not be read{more}")
            return {}


def _balance(piece: bytes, inside: bool) -> tuple[int, bool]:
    """Return how many more objects a piece opens than it closes, and whether it ends inside a text, as it may begin."""
    outside = _OUTSIDE_TEXTS.sub(b"", b'"' + piece if inside else piece)
    before, mark, _ = outside.partition(b'"')
    return before.count(b"{") - before.count(b"}"), bool(mark)


def _coerced(given: dict[str, Any], counts: Counter[str]) -> Event:
    """Return an event of the fields that have their types."""
    kept = {}
    for field in msgspec.structs.fields(Event):
        value = given.get(field.encode_name)
        if value is None:
            continue
        try:
            kept[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError:
            counts["field"] += 1
    return Event(**kept)
