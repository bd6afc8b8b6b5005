"""The axis syntax: what each form means, and one clear line for what is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import UsageError
from dsv4bench.workloads.axis import ascending_axis, number_axis, word_axis


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ("8", (8,)),
        ("1,2,8", (1, 2, 8)),
        ("8, 2,8 ,1", (8, 2, 1)),
        ("1..64", (1, 2, 4, 8, 16, 32, 64)),
        ("3..50", (3, 6, 12, 24, 48)),
        ("5..5", (5,)),
        ("1..64:+8", (1, 9, 17, 25, 33, 41, 49, 57)),
        ("1..64:x4", (1, 4, 16, 64)),
        ("1k..4k:+1k", (1024, 2048, 3072, 4096)),
        ("64k", (65_536,)),
        ("1M", (1_048_576,)),
        (["1,2", "2..8", "64"], (1, 2, 4, 8, 64)),
    ],
    ids=str,
)
def test_forms(texts, values):
    assert number_axis("--batch", texts) == values


@pytest.mark.parametrize(
    ("texts", "values"), [("64,128,8k", (64, 128, 8192)), ("4..32:+4", tuple(range(4, 33, 4))), (["8", "9"], (8, 9))]
)
def test_an_ascending_list(texts, values):
    assert ascending_axis("--buckets", texts) == values


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("64,32", "--buckets 64,32: expected an ascending list without doubles, but 32 follows 64"),
        ("8,64,64", "--buckets 8,64,64: expected an ascending list without doubles, but 64 follows 64"),
        ("4..16,8", "--buckets 4..16,8: expected an ascending list without doubles, but 8 follows 16"),
        ("0,4", "--buckets 0: expected at least 1"),
        ("4,x", "--buckets x: expected a number, a list"),
        ("4,,8", "--buckets 4,,8: expected a number, a list"),
    ],
)
def test_a_list_that_does_not_ascend(texts, said):
    with pytest.raises(UsageError) as caught:
        ascending_axis("--buckets", texts)
    assert str(caught.value).startswith(said)


def test_zero_where_it_is_allowed():
    assert number_axis("--prefix", "0,8", least=0) == (0, 8)
    assert number_axis("--prefix", "0..8:+4", least=0) == (0, 4, 8)


def test_values_from_a_file(tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text("1 2\n4,8\n\n16..64 1k\n")
    assert number_axis("--extend", f"@{file},3") == (1, 2, 4, 8, 16, 32, 64, 1024, 3)


SYNTAX = "a number, a list 1,2,8, a range 1..64 (doubling), 1..64:+8 or 1..64:x4, or @file"


@pytest.mark.parametrize(
    ("text", "quoted", "expected"),
    [
        ("0", "0", "at least 1"),
        ("-3", "-3", "at least 1"),
        ("-4k", "-4k", "at least 1"),
        ("1048577", "1048577", "at most 1048576"),
        ("2m", "2m", "at most 1048576"),
        ("64..1", "64..1", "the smaller end first"),
        ("0..8", "0..8", "at least 1"),
        ("x", "x", SYNTAX),
        ("", "''", SYNTAX),
        ("1,,2", "1,,2", SYNTAX),
        ("1.5", "1.5", SYNTAX),
        ("1e3", "1e3", SYNTAX),
        ("1..", "1..", SYNTAX),
        ("1..2..3", "1..2..3", SYNTAX),
        ("1..x", "1..x", SYNTAX),
        ("1..8:*2", "1..8:*2", SYNTAX),
        ("1..8:+0", "1..8:+0", "a step of at least 1 after :+"),
        ("1..8:+x", "1..8:+x", "a step of at least 1 after :+"),
        ("1..8:x1", "1..8:x1", "a factor of at least 2 after :x"),
        ("1..1m:+1", "1..1m:+1", "at most 4096 values, not 1048576"),
        ("1٣", "1٣", SYNTAX),
    ],
)
def test_refusals(text, quoted, expected):
    with pytest.raises(UsageError) as caught:
        number_axis("--batch", text)
    assert str(caught.value) == f"--batch {quoted}: expected {expected}"


def test_a_range_from_zero_cannot_multiply():
    with pytest.raises(UsageError, match=r"--prefix 0\.\.8: expected a range that multiplies to begin at 1 or more"):
        number_axis("--prefix", "0..8", least=0)


@pytest.mark.parametrize("content", ["", "1 x", "@other"], ids=["empty", "a word", "another file"])
def test_a_file_of_no_axis(tmp_path, content):
    file = tmp_path / "a.txt"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"--batch .*: expected a"):
        number_axis("--batch", f"@{file}")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"--batch @.*none: No such file or directory; expected a file of numbers"):
        number_axis("--batch", f"@{tmp_path / 'none'}")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not a text file"):
        number_axis("--batch", f"@{tmp_path / 'binary'}")


@given(st.lists(st.integers(1, 1_048_576), min_size=1, max_size=20))
def test_a_list_reads_back_in_order_without_duplicates(values):
    once = tuple(dict.fromkeys(values))
    assert number_axis("--batch", ",".join(map(str, values))) == once
    assert number_axis("--batch", [str(value) for value in values]) == once


@given(st.integers(1, 1000), st.integers(0, 2000), st.integers(2, 9))
def test_ranges_start_at_the_first_and_stay_within_the_last(first, more, step):
    last = first + more
    added = number_axis("--batch", f"{first}..{last}:+{step}")
    assert added == tuple(range(first, last + 1, step))
    multiplied = number_axis("--batch", f"{first}..{last}:x{step}")
    assert multiplied[0] == first
    assert all(after == before * step for before, after in pairwise(multiplied))
    assert multiplied[-1] <= last < multiplied[-1] * step


@given(st.text(max_size=12))
def test_any_text_is_an_axis_or_one_line(text):
    if text.lstrip().startswith("@") or ",@" in text.replace(" ", ""):
        return
    try:
        outcome = str(number_axis("--batch", text)[0])
    except UsageError as error:
        outcome = str(error)
    assert outcome.startswith("--batch ") or 1 <= int(outcome) <= 1_048_576


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("on", ("on",)),
        ("on,off", ("on", "off")),
        ("both", ("off", "on")),
        (["on", "both"], ("on", "off")),
        (" on , on", ("on",)),
    ],
    ids=str,
)
def test_words(texts, words):
    assert word_axis("--reuse", texts, ("off", "on"), every="both") == words


def test_an_unknown_word_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        word_axis("--provider", "tritn", ("torch", "triton"))
    assert str(caught.value) == "--provider tritn: not known (did you mean 'triton'?); known: torch, triton"


def test_every_is_a_word_only_where_it_is_given():
    with pytest.raises(UsageError, match="--provider both: not known"):
        word_axis("--provider", "both", ("torch", "triton"))
