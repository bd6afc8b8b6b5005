"""Files that are not JSON as a whole: what is read of them, and the sentence that says what was mended or lost."""

import json
import time

import pytest

from dsv4bench.profiling.traces.columns import KERNEL
from dsv4bench.profiling.traces.kineto_mend import mended
from dsv4bench.profiling.traces.kineto_reader import read
from tests.profiling.traces import kineto_files as files
from tests.profiling.traces.kineto_files import EVENTS, LAUNCH, RANGE, document, written

WHOLE = document(*EVENTS, traceName="whole.json")
SHORT = json.dumps(list(EVENTS))


def named(name, text=WHOLE):
    """Return a text in which the kernel has this name, as it stands in the file."""
    return text.replace('"_dequant"', f'"{name}"')


CASES = {
    "nan": (WHOLE.replace('"cbid": 652', '"cbid": nan'), "_dequant", "inf or nan literals, read as missing values: 1"),
    "Infinity": (WHOLE.replace("652", "-Infinity"), "_dequant", "inf or nan literals, read as missing values: 1"),
    "more than one value": (WHOLE.replace("652", "inf, -nan"), None, "1 place in the list of events lost"),
    "nan in a name stays": (named("nan", WHOLE.replace("652", "inf")), "nan", "inf or nan literals, read as missing"),
    "path": (named(r"C:\Users\x"), r"C:\Users\x", "backslashes in texts that escape nothing, kept as they stand: 2"),
    "right backslashes": (named(r"C:\\new", WHOLE.replace("652", "nan")), r"C:\new", "inf or nan literals"),
    "right and wrong": (named(r"a\\b\c"), r"a\b\c", "backslashes in texts that escape nothing, kept as they stand: 1"),
    "half an escape": (named(r"\u12"), r"\u12", "backslashes in texts that escape nothing, kept as they stand: 1"),
    "raw newline": (named("a\nb\tc"), "a\nb\tc", "raw control characters in texts, kept as they stand: 2"),
    "half a pair": (
        named(r"\ud800 \ud83d\ude00"),
        "\ufffd \U0001f600",
        "halves of surrogate pairs in texts, replaced",
    ),
    "marks": (
        named('operator ""_s"(int)'),
        'operator ""_s"(int)',
        "quotation marks inside texts, kept as they stand",
    ),
    "last backslash": (named("C:\\dir\\"), "C:\\dir\\", "backslashes in texts that escape nothing"),
    "latin-1": (named("Mo\xe9").encode("latin-1"), "Mo\xe9", "1 byte not UTF-8, read as Latin-1, the first at byte"),
    "cut off character": (
        named("a", document(*EVENTS, RANGE)).encode()[:-40] + b"\xe2\x82",
        "a",
        "2 bytes not UTF-8, read as Latin-1",
    ),
    "trailing comma": (
        SHORT[:-1] + ",\n]",
        "_dequant",
        "commas between events that were missing, doubled or trailing",
    ),
    "leading comma": ("[," + SHORT[1:], "_dequant", "commas between events that were missing, doubled or trailing"),
    "doubled comma": (SHORT.replace("}}, {", "}},, {"), "_dequant", "missing, doubled or trailing: 2"),
    "no commas": (SHORT.replace("}}, {", "}}\n{"), "_dequant", "missing, doubled or trailing: 2"),
    "not closed": (SHORT[:-1], "_dequant", "the list of events is not closed where the file ends, at byte"),
    "not closed, comma": (SHORT[:-1] + ",\n", "_dequant", "the list of events is not closed where the file ends"),
    "mapping not closed": (WHOLE[: WHOLE.rindex("]")], "_dequant", "the list of events is cut where the file ends"),
    "arguments of another type": (
        document(*EVENTS, LAUNCH | {"args": [1]}, RANGE | {"cat": 7}),
        "_dequant",
        "fields of events of another type than theirs, not read: 2",
    ),
    "an event that is none": (
        document(7, *EVENTS, "x"),
        "_dequant",
        "2 places in the list of events lost",
    ),
    "something between": (SHORT.replace("}}, {", "}}, null, {", 1), "_dequant", "1 place in the list of events lost"),
    "twice": (
        WHOLE + WHOLE,
        "_dequant",
        "bytes after the list of events could not be read, with events of another trace left out",
    ),
}


@pytest.mark.parametrize(("text", "name", "sentence"), CASES.values(), ids=CASES)
def test_what_is_mended_is_read_and_said(tmp_path, text, name, sentence):
    trace = read(written(tmp_path, text))
    assert trace.operations["kind"].tolist() == [KERNEL]
    if name is not None:
        assert trace.names(trace.operations["name"]).tolist() == [name]
        assert trace.operations["start_ns"].tolist() == [5140677167474000]
        assert trace.operations["correlation"].tolist() == [5]
    assert any(sentence in repair for repair in trace.repairs), trace.repairs


def test_an_event_that_cannot_be_mended_is_lost_and_the_others_are_read(tmp_path):
    text = document(*EVENTS, RANGE, *EVENTS)
    place = text.index('"name": "kv_source=2"', text.index("_dequant"))
    trace = read(written(tmp_path, text[:place] + "}}}" + text[place:]))
    assert len(trace.operations) == 2
    assert len(trace.annotations) == 2
    start = text.rindex("{", 0, place)
    assert trace.repairs[-1].startswith(f"1 place in the list of events lost, the first at byte {start} ")


def test_a_file_without_its_last_brace_has_all_its_events(tmp_path):
    trace = read(written(tmp_path, document(*EVENTS)[:-1]))
    assert len(trace.operations) + len(trace.launches) + len(trace.annotations) == 3
    assert trace.repairs == ("the file ends without its closing brace, after the list of events, which is whole",)


@pytest.mark.parametrize("lost", [3, 30, 100])
def test_a_cut_file_gives_the_events_before_the_cut(tmp_path, lost):
    text = document(*EVENTS * 20)
    trace = read(written(tmp_path, text[:-lost]))
    kept = text[:-lost].count("}}")
    assert len(trace.operations) + len(trace.launches) + len(trace.annotations) == kept
    assert trace.repairs[-1].startswith("the list of events is cut where the file ends, at byte")
    assert f"the {kept} events before it were read" in trace.repairs[-1]


def test_what_stands_around_the_events_of_a_broken_file_is_read(tmp_path):
    text = (
        '{"schemaVersion": 1, "x": nan, "traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "y": nan}],\n'
    )
    trace = read(
        written(tmp_path, text + '"distributedInfo": {"rank": 4}, "deviceProperties": [{"id": 0}, {"id": 1}]}')
    )
    assert trace.facts["schemaVersion"] == "1"
    assert trace.rank == 4
    assert len(trace.devices) == 2


def test_what_cannot_be_read_around_the_events_is_said(tmp_path):
    text = '{"schemaVersion": 1, ?, "traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "y": nan}], ?}'
    trace = read(written(tmp_path, text))
    assert len(trace.operations) == 1
    assert [repair for repair in trace.repairs if "could not be read" in repair] == [
        "the 23 bytes before the list of events could not be read",
        "the 3 bytes after the list of events could not be read",
    ]


def test_an_event_that_holds_objects_in_a_list_or_such_a_text_stays_whole(tmp_path):
    held = RANGE | {"name": "a }, { b", "args": {"x": [{"y": 1}, {"z": "}, {"}, {}]}}
    trace = read(
        written(tmp_path, document(*[held] * 3, files.KERNEL).replace("5140677167474.0", '5140677167474.0, "q": nan'))
    )
    assert trace.names(trace.annotations["text"]).tolist() == ["a }, { b"] * 3
    assert trace.repairs == ("inf or nan literals, read as missing values: 1",)


def test_a_lost_nanosecond_is_read_from_the_text_in_a_mended_file_too(tmp_path):
    text = WHOLE.replace("5140677167474.0", "1712000000000000.4").replace("652", "nan")
    assert read(written(tmp_path, text)).operations["start_ns"].tolist() == [1712000000000000400]


def test_a_mistake_in_every_event_costs_time_in_proportion(tmp_path):
    def seconds(count):
        path = written(tmp_path, document(*EVENTS * count).replace("652", "nan"))
        start = time.process_time()
        assert len(read(path).operations) == count
        return time.process_time() - start

    seconds(10)
    assert seconds(2000) < 20 * max(seconds(400), 0.02)


@pytest.mark.parametrize(
    "deep", ["[" * 100_000, '{"a":' * 100_000, '[{"args":' * 50_000], ids=["lists", "objects", "events"]
)
def test_no_depth_ends_in_a_traceback(tmp_path, deep):
    trace = read(written(tmp_path, document(*EVENTS)[:-2] + ', {"ph": "X", "cat": "kernel", "args": ' + deep))
    assert len(trace.operations) >= 1
    assert trace.repairs


def test_mending_leaves_right_text_as_it_is():
    right = r'{"a": "C:\\x \"nan\" é \n \u00e9", "b": [1, -2.5e3, true, null]}'
    counts = {}
    assert mended(right, False, counts) == right
    assert counts == {}
