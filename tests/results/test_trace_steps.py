"""Steps of a trace as cells: what of a file they cannot answer, and where they differ from one another."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.results.expectation_check import check
from dsv4bench.results.expectations import parse_expectations
from dsv4bench.results.trace_steps import (
    TraceStep,
    asks_sources,
    numbers,
    refuse_calls,
    refuse_untold,
    taken,
    unequal,
)


def row(op, source, kernels, copies=0, **more):
    place = {"op": op, "kv_source": source, "where": "eager"}
    return {**place, "kernels": kernels, "copies": copies, "sets": 0, "operations": kernels + copies, **more}


def step(number, *rows, **more):
    fields = {"source": "a.sqlite", "rank": None, "mode": "eager", "device": "NVIDIA H200", "variant": {"graph": False}}
    return TraceStep(number=number, counts=list(rows), **{**fields, **more})


def file(text):
    return parse_expectations(text, "a.toml")


# what a trace does not hold


@pytest.mark.parametrize("counted", ["calls", "aten_ops"])
def test_a_class_that_no_trace_holds_is_refused_with_those_that_it_does(counted):
    with pytest.raises(UsageError) as caught:
        refuse_calls(file(f"[[expect]]\nkernels = 1\n[[expect]]\n{counted} = 1"))
    assert str(caught.value) == (
        f"--expect a.toml: entry 2: {counted}: a trace holds no {counted};"
        " expected kernels, copies, sets or operations (--allow-uncounted passes it over)"
    )


def test_calls_of_a_cpu_are_none_of_a_traces_business():
    refuse_calls(file('[[expect]]\nengine = ["cpu-reference", "tape"]\ncalls = 1\n[[expect]]\nkernels = 1'))


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("kernels = 1", False),
        ("kv_source = 2\nkernels = 1", True),
        ('by = ["op", "kv_source"]\nkernels = 1', True),
        ('by = "kv_source"\nengine = "tape"\ncalls = 1', False),
    ],
    ids=["no", "one-of-them", "each-of-them", "on-a-tape"],
)
def test_whether_sources_are_asked_for(text, asked):
    assert asks_sources(file(f"[[expect]]\n{text}")) is asked


# what a trace does not tell


def test_a_typed_switch_that_a_trace_does_not_tell_is_refused():
    expectations = file("[[expect]]\nkernels = 1")
    refuse_untold(expectations, ["graph"], [step(0)])
    with pytest.raises(UsageError) as caught:
        refuse_untold(expectations, ["graph", "kv"], [step(0)])
    assert str(caught.value) == "--kv: a.sqlite does not tell kv, so nothing can be chosen by it; it tells graph"


def test_so_is_one_of_a_variant_unless_the_entry_is_about_another_engine():
    of_kv = '[[expect]]\nvariant = { kv = "v4" }\nkernels = 1'
    told = step(0, variant={"graph": True, "kv": "v4"})
    refuse_untold(file(of_kv), [], [told])
    refuse_untold(file(of_kv + '\nengine = "tape"'), [], [step(0)])
    with pytest.raises(UsageError, match=r"a\.toml: entry 1: variant: a\.sqlite does not tell kv"):
        refuse_untold(file(of_kv), [], [told, step(0)])
    with pytest.raises(UsageError, match="it tells no switch"):
        refuse_untold(file(of_kv), [], [step(0, variant={})])


def test_the_cells_of_a_file_are_taken_on_trust_where_the_trace_does_not_tell():
    cells = {"reuse": ("on",), "graph": (False,), "kv": ()}
    assert taken(cells, [step(0)]) == {"reuse": ("on",)}
    assert taken(cells, [step(0, variant={"reuse": "on", "graph": False})]) == {}


# several steps


def test_equal_steps_are_nothing_to_speak_of():
    rows = [row("store", 2, 1), row("combine", None, 3)]
    assert unequal([step(0, *rows), step(1, *reversed(rows))]) == []
    assert unequal([step(0, *rows)]) == []


def test_unequal_steps_are_named_with_the_first_sum():
    usual = [row("store", 2, 1)]
    found = unequal([step(3, *usual), step(4, row("store", 2, 4, copies=1)), step(5, *usual), step(6), step(7, *usual)])
    assert found == ["steps differ (4 6 from most): store of kv_source 2: 0..4 kernels, and 1 more"]


@pytest.mark.parametrize(
    ("found", "text"), [([3], "3"), ([5, 3, 4], "3-5"), ([0, 2, 3, 7], "0 2-3 7"), ([None], ""), ([], "")], ids=str
)
def test_numbers_of_steps_are_short(found, text):
    assert numbers(found) == text


def test_operations_that_a_row_tells_are_taken_at_its_word():
    rows = [
        row("index_k_proj", 2, 2, operations=1),
        row("store", 2, 1, copies=1),
        row("q_proj", None, 2, operations=None),
    ]
    expectations = file(
        '[[expect]]\nkv_source = 2\noperations = 3\n[[expect]]\nop = "q_proj"\noperations = 1\n'
        '[[expect]]\nop = "other"\noperations = 0'
    )
    assert [one.holds for one in check(expectations, [step(0, *rows)]).findings] == [True, None, True]
