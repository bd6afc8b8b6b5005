"""The text of a file, gzipped or not, whatever its name, and as much of it as is there."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from dsv4bench.errors import TraceFormatError

GZIP_MAGIC = b"\x1f\x8b"
_HEAD_BYTES = 65_536
_STEP_BYTES = 65_536
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"


def head_of(path: Path) -> bytes:
    """Return the first bytes of the text of a file, nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(_HEAD_BYTES)
    except OSError:
        return b""
    text = inflated(raw)[0] if raw.startswith(GZIP_MAGIC) else raw
    return _unmarked(text, [])


def text_of(path: Path, repairs: list[str]) -> bytes:
    """Return the text of a file as UTF-8 without marks, and add to `repairs` what had to be done for it.

    Raises TraceFormatError for a file that cannot be opened or is empty.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    packed = raw.startswith(GZIP_MAGIC)
    if path.suffix == ".gz" and raw and not packed:
        repairs.append("the file is named .gz and is not compressed; it was read as it is")
    text = _unpacked(raw, repairs) if packed else raw
    if not text:
        raise TraceFormatError(f"{path}: byte 0: expected JSON, found {'no data in it' if raw else 'an empty file'}")
    return _unmarked(text, repairs)


def _unpacked(raw: bytes, repairs: list[str]) -> bytes:
    """Return the text of a gzip stream, of a damaged one what stands before the damage."""
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error):
        text, read_bytes, why = inflated(raw)
        repairs.append(
            f"the gzip stream {why} after {read_bytes} of its {len(raw)} bytes; the {len(text)} bytes of text before it"
            " were read"
        )
        return text


def inflated(raw: bytes) -> tuple[bytes, int, str]:
    """Return the text of one or more gzip streams up to their end or damage, the bytes used, and what is wrong there.

    The end of `raw` inside a stream is "ends early".
    """
    parts: list[bytes] = []
    inflater, position = zlib.decompressobj(wbits=31), 0
    while position < len(raw):
        before = inflater.copy()
        try:
            parts.append(inflater.decompress(raw[position : position + _STEP_BYTES]))
        except zlib.error:
            rest, used = _up_to_damage(before, raw[position : position + _STEP_BYTES])
            return b"".join([*parts, rest]), position + used, "is damaged"
        position = min(position + _STEP_BYTES, len(raw)) - len(inflater.unused_data)
        if inflater.eof:
            inflater = zlib.decompressobj(wbits=31)
    return b"".join(parts), position, "ends early"


def _up_to_damage(inflater: zlib._Decompress, raw: bytes) -> tuple[bytes, int]:
    """Return the text before the damage in these bytes, and how many of them gave it."""
    parts: list[bytes] = []
    for index in range(len(raw)):
        try:
            parts.append(inflater.decompress(raw[index : index + 1]))
        except zlib.error:
            return b"".join(parts), index
    return b"".join(parts), len(raw)


def _unmarked(text: bytes, repairs: list[str]) -> bytes:
    """Return the text as UTF-8 without a byte order mark."""
    if text.startswith(_UTF8_MARK):
        repairs.append("a byte order mark stands before the JSON; it was skipped")
        return text[len(_UTF8_MARK) :]
    if text.startswith(_UTF16_MARKS):
        repairs.append("the text is UTF-16; it was read as such")
        return text.decode("utf-16", "replace").encode("utf-8", "replace")
    return text
