"""Recorded lengths: cached prefixes from block hashes, division, and complaints with file and line."""

import json
from pathlib import Path
from statistics import median

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.batch import Request
from dsv4bench.workloads.requests import Recorded, read_requests, recorded_requests

SHARED = Path(__file__).parents[3] / "shared" / "data" / "mooncake-conversation-1000.jsonl"


def written(folder, *lines):
    file = folder / "requests.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(file)


def line(length, *ids):
    return {"timestamp": 0, "input_length": length, "output_length": 3, "hash_ids": list(ids)}


def test_prefix_is_the_leading_run_of_seen_ids(tmp_path):
    path = written(
        tmp_path,
        line(1100, 0, 1, 2),  # nothing seen: no prefix
        line(1500, 0, 1, 7),  # two blocks seen: 1024
        line(1500, 0, 9, 2),  # a miss ends the run: 512
        line(1500, 8, 0, 1),  # the first block is new: 0
        line(1400, 0, 1, 2),  # all three blocks seen: 1399 short of the last token, down to a page: 1280
        line(513, 0, 1),  # covers the input: min(1024, 512) = 512
        line(512, 0),  # min(512, 511) -> 256
        line(200, 0),  # less than a page: 0
    )
    assert [(one.prefix, one.input) for one in read_requests(path)] == [
        (0, 1100),
        (1024, 1500),
        (512, 1500),
        (0, 1500),
        (1280, 1400),
        (512, 513),
        (256, 512),
        (0, 200),
    ]


def test_ids_of_a_line_do_not_count_for_itself(tmp_path):
    assert read_requests(written(tmp_path, line(1024, 5, 5)))[0].prefix == 0


def test_blank_lines_and_lines_without_hashes(tmp_path):
    path = written(tmp_path, {"input_length": 9}, "", {"input_length": 7}, "")
    assert read_requests(path) == (Recorded(0, 9), Recorded(0, 7))


@pytest.mark.parametrize(
    ("recorded", "divide", "want"),
    [
        (Recorded(1024, 1500), 1, (1024, 476)),
        (Recorded(1024, 1500), 64, (16, 7)),
        (Recorded(256, 320), 64, (4, 1)),
        (Recorded(256, 300), 64, (2, 2)),  # 4 of 4 cached: at least one token stays new, and the prefix even
        (Recorded(0, 20), 64, (0, 1)),
        (Recorded(768, 1000), 100, (6, 4)),
    ],
    ids=["whole", "by 64", "one new token", "prefix gives way", "shorter than the divisor", "odd prefix"],
)
def test_division_keeps_a_new_token_and_an_even_prefix(recorded, divide, want):
    assert recorded.request(3, divide) == Request(3, *want)


def test_the_first_requests_in_order(tmp_path):
    path = written(tmp_path, line(600, 1, 2), line(700, 1, 3), line(800, 9))
    assert recorded_requests(path, 2) == (Request(0, 0, 600), Request(1, 512, 188))


def test_more_requests_than_the_file_holds(tmp_path):
    path = written(tmp_path, line(600), line(700))
    with pytest.raises(UsageError, match=r"--batch 3: .*requests\.jsonl holds only 2 requests"):
        recorded_requests(path, 3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected a JSON object"),
        ({"hash_ids": []}, "line 2: input_length is missing"),
        (line(-4), "line 2: input_length is -4, expected a whole number from 1"),
        (line(0), "line 2: input_length is 0"),
        (line("8"), "line 2: input_length is '8'"),
        (line(True), "line 2: input_length is True"),
        (line(1048577), "line 2: input_length is 1048577, expected a whole number from 1 to 1048576"),
        (line(8) | {"output_length": -1}, "line 2: output_length is -1"),
        (line(8) | {"hash_ids": "x"}, "line 2: hash_ids is not a list"),
        (line(8) | {"hash_ids": [1.5]}, "line 2: hash_ids is not a list of whole numbers"),
    ],
    ids=[
        "torn",
        "not an object",
        "missing length",
        "negative",
        "zero",
        "text",
        "bool",
        "too long",
        "negative output",
        "hashes",
        "hash kind",
    ],
)
def test_a_bad_line_is_named(tmp_path, bad, message):
    path = written(tmp_path, line(8), bad)
    with pytest.raises(UsageError) as caught:
        read_requests(path)
    assert f"--requests {path} {message}" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n"], ids=["nothing", "blank lines"])
def test_an_empty_file(tmp_path, content):
    file = tmp_path / "empty.jsonl"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"empty\.jsonl: the file is empty"):
        read_requests(str(file))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"none\.jsonl: No such file"):
        read_requests(str(tmp_path / "none.jsonl"))
    with pytest.raises(UsageError, match="Is a directory"):
        read_requests(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a text file"):
        read_requests(str(tmp_path / "binary"))


@pytest.mark.skipif(not SHARED.exists(), reason="the shared request recording is not beside this checkout")
def test_the_recorded_conversation():
    recorded = read_requests(str(SHARED))
    lengths = [one.input for one in recorded]
    assert (len(recorded), median(lengths), max(lengths), min(lengths)) == (1000, 8430, 121_924, 891)
    assert sum(one.prefix for one in recorded) / sum(lengths) == pytest.approx(0.22, abs=0.005)
    assert sum(one.input - one.prefix > 8192 for one in recorded) == 397
