"""What must be equal is compared kv_source by kv_source; a matrix product may be split as a library likes."""

import pytest

from dsv4bench.results.agreement import Agreement, Source

MAP = Source("layer map", {("store", 2): (1,), ("store", 8): (1,), ("q_proj", None): (4,)})
CALLS = Source("calls", dict(MAP.counts))
PROFILER = Source("profiler", {("store", 2): (1, 0, 0), ("store", 8): (1, 0, 0), ("q_proj", None): (4, 0, 4)})
LEDGER = Source("ledger", {("store", 2): (1, 0, 0), ("store", 8): (1, 0, 0), ("q_proj", None): (8, 0, 0)})


def agreement(*sources, **changes):
    equal = (("layer map", "calls"),)
    return Agreement({}, sources, equal, (("profiler", "ledger"),), **changes)


def test_sources_that_found_the_same_agree_however_a_product_is_split():
    one = agreement(MAP, CALLS, PROFILER, LEDGER)
    assert (one.agreed, one.ops) == (True, ["q_proj", "store"])
    assert [source.of("store") for source in one.sources] == [(2,), (2,), (2, 0, 0), (2, 0, 0)]
    assert PROFILER.of("rope") == (0, 0, 0)


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (
            Source("calls", {("store", 2): (2,), ("q_proj", None): (4,)}),
            [
                "store (kv_source 2): layer map 1, calls 2",
                "store (kv_source 8): layer map 1, calls 0",
            ],
        ),
        (
            Source("ledger", {("store", 2): (1, 1, 0), ("store", 8): (1, 0, 0)}),
            ["store (kv_source 2): profiler 1/0/0, ledger 1/1/0"],
        ),
    ],
    ids=["the same total of other sources", "a copy more"],
)
def test_each_difference_is_a_sentence(changed, difference):
    sources = [changed if one.name == changed.name else one for one in (MAP, CALLS, PROFILER, LEDGER)]
    one = agreement(*sources)
    assert not one.agreed
    assert one.differences("store") == difference
    assert one.differences("q_proj") == []


def test_an_operation_without_a_source_is_named_without_one():
    one = agreement(MAP, Source("calls", {("store", 2): (1,), ("store", 8): (1,)}))
    assert one.differences("q_proj") == ["q_proj: layer map 4, calls 0"]


def test_what_is_wrong_as_a_whole_is_no_agreement_and_neither_is_nothing():
    assert not agreement(MAP, CALLS, other=("3 operations of the replay unattributed",)).agreed
    assert not agreement().agreed
