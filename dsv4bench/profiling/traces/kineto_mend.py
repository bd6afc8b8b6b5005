"""Mend the JSON of one event: what profilers write into texts and numbers that JSON does not allow.

Only pieces that do not decode come here, so a file with correct backslashes keeps them as they are.
"""

from __future__ import annotations

import re
from collections import Counter

# A text ends at its quotation mark; the loose reading lets only a mark before , : } or ] end one. What is right is
# matched in long stretches (no group), because each match costs a call.
_RIGHT_TEXT = r'"[^"\\\x00-\x1f]*"'
_AN_END = r"\s*[,:}\]]"
_RIGHT_REST = r'[^"a-z+-]|[+-](?![in])|\b(?:true|false|null)\b'
_TEXT = r'"(?:[^"\\]|\\.)*"'
_TEXT_WITH_MARKS = rf'"(?:[^"\\]|\\(?!"{_AN_END})[^"]|\\"(?!{_AN_END})|"(?!{_AN_END}))*\\?"'
_LITERAL = r"[-+]?\b(?:nan|inf(?:inity)?)\b(?:\([a-z]*\))?"
_FLAGS = re.DOTALL | re.IGNORECASE
_STRICT = re.compile(rf"(?:{_RIGHT_TEXT}|{_RIGHT_REST})+|({_TEXT})|({_LITERAL})", _FLAGS)
_LOOSE = re.compile(rf"(?:{_RIGHT_TEXT}(?={_AN_END})|{_RIGHT_REST})+|({_TEXT_WITH_MARKS})|({_LITERAL})", _FLAGS)
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_MARK = re.compile(r'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|"')
_CONTROL = re.compile(r"[\x00-\x1f]")
_HALF = re.compile(r"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}", re.IGNORECASE)

# what is mended, and what becomes of it
MENDED = {
    "literal": "inf or nan literals, read as missing values: {}",
    "control": "raw control characters in texts, kept as they stand: {}",
    "escape": "backslashes in texts that escape nothing, kept as they stand: {}",
    "half": "halves of surrogate pairs in texts, replaced: {}",
    "mark": "quotation marks inside texts, kept as they stand: {}",
    "field": "fields of events of another type than theirs, not read: {}",
}


def mended(text: str, loose: bool, counts: Counter[str]) -> str:
    """Return the text with its mistakes mended and count them; `loose` also mends quotation marks inside texts."""

    def mend(match: re.Match[str]) -> str:
        inside, literal = match.groups()
        if inside is not None:
            return _mended_text(inside[1:-1], loose, counts)
        return match.group() if literal is None else _replaced(counts, "literal", "null")

    return (_LOOSE if loose else _STRICT).sub(mend, text)


def _mended_text(inside: str, loose: bool, counts: Counter[str]) -> str:
    """Return a text with its quotation marks, mended between them."""
    escaped = _ESCAPE.sub(lambda match: _counted(match, counts, "escape", "\\\\"), inside)
    if loose:
        escaped = _MARK.sub(lambda match: _counted(match, counts, "mark", '\\"'), escaped)
    whole = _HALF.sub(lambda match: _replaced(counts, "half", "\\ufffd"), escaped)
    plain = _CONTROL.sub(lambda match: _replaced(counts, "control", f"\\u{ord(match.group()):04x}"), whole)
    return f'"{plain}"'


def _counted(match: re.Match[str], counts: Counter[str], kind: str, instead: str) -> str:
    """Return what is right (group 1) as it is, and count and replace what is not."""
    return match.group() if match.group(1) else _replaced(counts, kind, instead)


def _replaced(counts: Counter[str], kind: str, instead: str) -> str:
    counts[kind] += 1
    return instead
