"""Markdown as GitHub reads it: a name stays text whatever is in it, beside what a markdown reader makes of it."""

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dsv4bench.dashboards.markdown import code, item, markdown, prose, table_lines
from dsv4bench.dashboards.table import Column, Table, cell, printable

READER = MarkdownIt("gfm-like", {"linkify": False, "html": True})
NO_WIDTH = "\u200b"
HARD = st.text(st.sampled_from("ab1 _*`~<>&#;[]()!|\\$@:/-+=.\n\t\u202eü"), max_size=12)


def seen(html):
    """What a reader sees of a piece of HTML, white space told as one space."""
    text = unescape(re.sub(r"</?(?:p|ul|li|span|table|thead|tbody|tr|t[dh][^>]*|code)>", "", html))
    return " ".join(text.replace(NO_WIDTH, "").split())


def words(text):
    return " ".join(printable(text).split())


@pytest.mark.parametrize(
    "text",
    [
        "<b>|",
        "a_b*c* ~~x~~ `k`",
        "[x](y) ![i](z)",
        "&lt; &#35; AT&T",
        "1. x",
        "10) x",
        "- y",
        "> z",
        "### q",
        "\\",
        "$x$",
    ],
)
def test_a_sentence_is_shown_as_it_is(text):
    html = READER.render(f"{item(text)}\n")
    assert seen(html) == text
    assert not re.search(r"<(?!/?(?:ul|li|span)>)", html)


@given(HARD)
def test_no_sentence_becomes_markup(text):
    html = READER.render(f"{item(text)}\n")
    assert not re.search(r"<(?!/?(?:ul|li|span)>)", html)
    assert seen(html) == words(text)


@given(HARD)
def test_no_name_becomes_markup_in_a_table(text):
    lines = table_lines([Column("name", ("name",))], [[code(text)], [prose(text)]])
    rows = re.findall(r"<td[^>]*>(.*?)</td>", READER.render("\n".join(lines)))
    assert [seen(row) for row in rows] == [words(text)] * 2
    assert re.fullmatch(r"<code>[^<]*</code>", rows[0])


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("by @user", f"by @{NO_WIDTH}user"),
        ("see #12 or a/b#7", f"see #{NO_WIDTH}12 or a/b#{NO_WIDTH}7"),
        ("gh-3", f"gh-{NO_WIDTH}3"),
        ("https://a.b and www.a.b", f"https:{NO_WIDTH}//a.b and www{NO_WIDTH}.a.b"),
        ("a :tada: b", f"a :{NO_WIDTH}tada: b"),
        ("me@there.org", f"me@{NO_WIDTH}there.org"),
        ("# of rows: 12, at 3 us", "# of rows: 12, at 3 us"),
    ],
)
def test_no_mention_reference_link_or_emoji_is_made_by_accident(text, apart):
    assert unescape(READER.renderInline(prose(text))) == apart


def test_a_dollar_begins_no_formula():
    assert prose("$HOME and $x$") == "<span>$</span>HOME and <span>$</span>x<span>$</span>"


def test_a_plain_name_is_plain_code():
    assert code("reuse=off") == "`reuse=off`"
    assert code("a|b") == "<code>a&#124;b</code>"
    assert code("") == "<code></code>"


def test_a_table_has_a_title_columns_and_notes():
    table = Table("a_b", (Column("x|y", ("x",)), Column("", ("y",))), ((cell(1), cell(2)),), ("- note",))
    assert markdown(table) == "**a\\_b**\n\n| x\\|y |\n| ---: |\n| 1 |\n\n- \\- note\n"
