"""Text, terminal, markdown and CSV of a small table."""

import io

import pytest

from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.render import csv_text, plain, write_terminal
from dsv4bench.dashboards.style import arrow, plus_minus, yes
from dsv4bench.dashboards.table import Cell, Column, Table, cell, empty, joined
from dsv4bench.results.stats import Interval

TABLE = Table(
    "A title",
    (
        Column("op", ("op",), right=False),
        Column("calls", ("before", "after")),
        Column("", ("hidden",)),
        Column("void", ("void",)),
    ),
    ((cell("a|b"), Cell("38 -> 4", (38, 4)), cell(True, ""), empty()), (cell("c"), empty(2), cell(None), empty())),
    ("same bytes: true", "other bytes: false"),
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch, table=TABLE, **environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", **environment}.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    write_terminal([table], stream)
    return stream.getvalue()


def test_plain_text_aligns_and_hides_what_is_empty():
    assert plain(TABLE) == "A title\nop     calls\na|b  38 -> 4\nc\nsame bytes: true\nother bytes: false\n"


def test_a_table_that_is_too_wide_comes_closer_and_loses_nothing():
    assert "a|b 38 -> 4" in plain(TABLE, width=11)
    assert "a|b 38 -> 4" in plain(TABLE, width=5)


WIDE = Table(
    "A title",
    (Column("kernel", ("kernel",), right=False), Column("where", ("where",), right=False), Column("us", ("us",))),
    (
        (cell("a_kernel_of_twenty_one"), cell("eager"), cell(7)),
        (cell("another"), cell("eager"), cell(12)),
    ),
    ("a note",),
)


CLOSER = """\
A title
kernel                 where us
a_kernel_of_twenty_one eager  7
another                eager 12
a note
"""
WITHOUT_WHAT_ALL_SHARE = """\
A title
kernel                  us
a_kernel_of_twenty_one   7
another                 12
in every row: where eager
a note
"""
NAMES_CUT = """\
A title
kernel           us
a_kerne..nty_one  7
another          12
in every row: where
  eager
a note
"""


@pytest.mark.parametrize(
    ("width", "text"),
    [(31, CLOSER), (30, WITHOUT_WHAT_ALL_SHARE), (26, WITHOUT_WHAT_ALL_SHARE), (19, NAMES_CUT)],
    ids=["closer", "what-all-share", "just-fits", "names-cut"],
)
def test_a_table_that_is_too_wide(width, text):
    assert plain(WIDE, width) == text


def test_a_name_is_not_cut_to_nothing():
    assert "a_kernel_of_twenty_one  7" in plain(WIDE, 18)


def test_csv_and_markdown_keep_what_text_has_no_room_for():
    assert "a_kernel_of_twenty_one,eager,7" in csv_text([WIDE])
    assert "| a\\_kernel\\_of\\_twenty\\_one | eager | 7 |" in markdown(WIDE)


def test_a_long_note_is_wrapped_and_indented():
    table = Table("t", (), (), ("a note of words " * 8,))
    lines = plain(table).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("  ")


def test_a_terminal_shows_the_same_lines_in_colours(monkeypatch):
    text = on_terminal(monkeypatch)
    assert "\x1b[1;31mfalse\x1b[0m" in text  # an answer that is false is bold and red
    assert "\x1b[1;31mtrue" not in text


@pytest.mark.parametrize(
    ("word", "colour"),
    [("SLOWER", "1;31"), ("unexplained", "1;31"), ("FASTER", "1;32"), ("INCONCLUSIVE", "33")],
)
def test_a_verdict_has_its_colour(monkeypatch, word, colour):
    told = Table("t", (Column("verdict", ("verdict",), right=False),), ((cell(word),), (cell(f"{word}X"),)))
    text = on_terminal(monkeypatch, told)
    assert f"\x1b[{colour}m{word}\x1b[0m\n{word}X" in text


def test_no_color_is_honoured(monkeypatch):
    assert "31m" not in on_terminal(monkeypatch, NO_COLOR="1")


def test_a_dumb_terminal_gets_the_plain_lines(monkeypatch):
    assert on_terminal(monkeypatch, TERM="dumb") == plain(TABLE)


def test_markdown_escapes_what_it_would_read():
    assert markdown(TABLE) == (
        "**A title**\n\n| op | calls |\n| --- | ---: |\n| a\\|b | 38 -> 4 |\n| c |  |\n\n"
        "- same bytes: true\n- other bytes: false\n"
    )


@pytest.mark.parametrize("write", [plain, markdown], ids=["text", "markdown"])
def test_a_name_of_a_trace_moves_no_cursor_and_breaks_no_line(write):
    strange = Table("t\x1b[2J", (Column("kernel", ("kernel",), right=False),), ((cell("a\x1b[31m\nb\0"),),), ("n\x07",))
    shown = write(strange)
    assert not {"\x1b", "\0", "\x07"} & set(shown)
    assert sum("b" in line for line in shown.splitlines()) == sum("a" in line for line in shown.splitlines()) == 1


def test_csv_has_every_column_and_plain_values():
    assert csv_text([TABLE, TABLE]).split("\n\n")[0] == (
        "# A title\nop,before,after,hidden,void\na|b,38,4,true,\nc,,,,\n# same bytes: true\n# other bytes: false"
    )


@pytest.mark.parametrize(
    ("interval", "scale", "signed", "text"),
    [
        (Interval(253_123_456, 252_700_000, 253_400_000, 0.95), 10**6, False, "253.1 ±0.4"),
        (Interval(1_280_000_000, 1_279_960_000, 1_280_040_000, 0.95), 10**6, False, "1280.00 ±0.04"),
        (Interval(12_340, 12_340, 12_340, 0.95), 10**3, False, "12.34 ±0.00"),
        (Interval(-1_900_000, -2_200_000, -1_700_000, 0.95), 10**3, True, "-1900 ±300"),
        (Interval(45_230, 42_000, 46_000, 0.95), 10**3, True, "+45.2 ±3.2"),
        (Interval(0, -500, 400, 0.95), 10**3, True, "0.0 ±0.5"),
        (Interval(5_000_000, 5_000_000, 5_000_001, 0.95), 10**6, False, "5.000 ±0.000"),
        (Interval(12_340, 12_340, 12_340, 0.0), 10**3, True, "+12.34"),
        (None, 1, False, ""),
    ],
)
def test_a_median_is_shown_with_its_farther_bound(interval, scale, signed, text):
    assert plus_minus(interval, scale, signed) == text


def test_small_words():
    assert (arrow(1, 1), arrow(1, 1, always=True), arrow(1, 2), arrow(None, 2), arrow(None, None)) == (
        "1",
        "1 -> 1",
        "1 -> 2",
        "- -> 2",
        "",
    )
    assert (yes(True, "?"), yes(False, "?"), yes(None, "?")) == ("true", "false", "?")
    assert joined([1, 1, "2"]) == "1 2"
