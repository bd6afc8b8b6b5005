"""The text of a file, gzipped or not, whole or damaged."""

import gzip
import random

import pytest

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.trace_text import head_of, inflated, text_of
from tests.profiling.traces.kineto_files import written

# digits that do not compress away, so that a part of the stream gives a part of the text
TEXT = "".join(random.Random(7).choices("0123456789", k=200_000)).encode()
PACKED = gzip.compress(TEXT)


@pytest.mark.parametrize(
    ("content", "name", "repairs"),
    [
        (TEXT, "trace.json", []),
        (PACKED, "trace.json.gz", []),
        (PACKED, "trace.json", []),
        (gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:]), "trace.gz", []),
        (TEXT, "trace.json.gz", ["the file is named .gz and is not compressed; it was read as it is"]),
        (b"\xef\xbb\xbf" + TEXT, "trace.json", ["a byte order mark stands before the JSON; it was skipped"]),
        (TEXT.decode().encode("utf-16"), "trace.json", ["the text is UTF-16; it was read as such"]),
    ],
    ids=["plain", "gzip", "gzip named otherwise", "two streams", "named gz", "mark", "UTF-16"],
)
def test_the_text_is_known_by_its_bytes(tmp_path, content, name, repairs):
    found = []
    assert text_of(written(tmp_path, content, name), found) == TEXT
    assert found == repairs


@pytest.mark.parametrize("kept", [50, len(PACKED) // 2, len(PACKED) - 1])
def test_a_cut_stream_gives_the_text_before_the_cut(tmp_path, kept):
    repairs = []
    text = text_of(written(tmp_path, PACKED[:kept], "cut.gz"), repairs) if kept > 50 else inflated(PACKED[:kept])[0]
    assert TEXT.startswith(text)
    assert len(text) >= len(TEXT) * (kept - 2000) / len(PACKED)
    if repairs:
        assert repairs[0].startswith(f"the gzip stream ends early after {kept} of its {kept} bytes; the {len(text)} ")


def test_a_damaged_stream_gives_the_text_before_the_damage(tmp_path):
    place = len(PACKED) // 2
    repairs = []
    damaged = PACKED[:place] + b"\xff" * 64 + PACKED[place + 64 :]
    text = text_of(written(tmp_path, damaged, "bad.gz"), repairs)
    same = next(index for index, (a, b) in enumerate(zip(text, TEXT, strict=False)) if a != b) if text != TEXT else 0
    assert same > len(TEXT) * 0.45
    assert repairs[0].startswith("the gzip stream is damaged after ")


def test_a_wrong_checksum_loses_no_text(tmp_path):
    repairs = []
    assert text_of(written(tmp_path, PACKED[:-8] + bytes(8), "sum.gz"), repairs) == TEXT
    assert repairs[0].startswith("the gzip stream is damaged after ")


def test_no_text_is_an_error(tmp_path):
    with pytest.raises(TraceFormatError, match=r"byte 0: expected JSON, found an empty file"):
        text_of(written(tmp_path, b""), [])


def test_the_head_of_a_large_or_broken_file_is_its_first_text(tmp_path):
    assert TEXT.startswith(head_of(written(tmp_path, PACKED[:100])))
    assert head_of(tmp_path / "none") == b""
