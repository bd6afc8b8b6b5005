"""Shares of a plan: every group in exactly one of them, whole, the same for whoever plans the same sweep."""

from itertools import combinations
from random import Random
from types import SimpleNamespace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.kernel_cells import KernelArguments, kernel_cells
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.shard import Shard, dealt, shard


def plan_of(*keys):
    """Return a plan of groups of two cells that have these keys."""
    return tuple((SimpleNamespace(group=key, side="off"), SimpleNamespace(group=key, side="on")) for key in keys)


def keys(groups):
    return [group[0].group for group in groups]


def prefill(**typed):
    return cells(prefill_options(PrefillArguments(device="cpu", **typed)))


# by hand: in the order of their keys a b c d e they are dealt 1 2 3 1 2
BY_HAND = {1: ["d", "a"], 2: ["e", "b"], 3: ["c"]}


@pytest.mark.parametrize("number", BY_HAND, ids=lambda number: f"{number}-of-3")
def test_groups_are_dealt_by_key_and_run_in_the_order_of_the_plan(number):
    plan = plan_of("c", "d", "a", "e", "b")
    found = Shard(number, 3).of(plan)
    assert keys(found) == BY_HAND[number]
    assert all(group in plan and len(group) == 2 for group in found)


@pytest.mark.parametrize("groups", [0, 1, 3, 4, 7, 27])
@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_every_group_is_in_one_share_and_shares_are_even(groups, count):
    plan = plan_of(*(f"{number:02}" for number in range(groups)))
    shares = [Shard(number, count).of(plan) for number in range(1, count + 1)]
    assert sorted(key for share in shares for key in keys(share)) == keys(plan)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)  # only the last shares can be empty


def test_the_order_of_a_plan_changes_no_share():
    plan = plan_of(*"abcdefgh")
    mixed = Random(7).sample(plan, len(plan))
    assert {key: place for place in (1, 2, 3) for key in keys(Shard(place, 3).of(mixed))} == dealt(keys(plan), 3)


def test_a_prefill_typed_in_another_order_is_dealt_alike():
    one, other = prefill(batch="1,2,4", kv="v4,v41"), prefill(batch="4,2,1", kv="v41,v4", graph=False)
    assert keys(one) != keys(other)
    assert dealt(keys(one), 4) == dealt(keys(other), 4)
    shares = [set(keys(Shard(number, 4).of(one))) for number in (1, 2, 3, 4)]
    assert [len(share) for share in shares] == [2, 2, 1, 1]
    assert not any(a & b for a, b in combinations(shares, 2))


def test_the_providers_of_a_kernel_stay_together():
    plan = kernel_cells(KernelArguments(("rms_norm",), ("2,3,4",), provider=("torch", "triton"), device="cpu"))
    shares = [Shard(number, 2).of(plan) for number in (1, 2)]
    assert sorted(map(len, shares), reverse=True) == [len(plan) - len(plan) // 2, len(plan) // 2]
    assert {tuple(cell.provider for cell in group) for share in shares for group in share} == {("torch", "triton")}


@pytest.mark.parametrize("text", ["1/1", "4/4", "2/4", "1/1000000", "02/4"])
def test_what_is_written_is_what_is_meant(text):
    found = shard(text)
    assert [found.number, found.count] == [int(part) for part in text.split("/")]
    assert shard(str(found)) == found


FORM = "expected I/N, e.g. 2/4 for the second of four shares"
RANGE = "expected I/N with I from 1 to N, e.g. "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3/2", f"{RANGE}2/2"),
        ("0/4", f"{RANGE}1/4"),
        ("5/4", f"{RANGE}4/4"),
        ("0/0", f"{RANGE}1/1"),
        ("1/0", f"{RANGE}1/1"),
        *((text, FORM) for text in ("two", "2", "2/", "/4", "-1/4", "1/-4", "1/4/2", "1 / 4", "1.5/4", "²/4")),
        (f"1/{10**9}", FORM),
    ],
    ids=repr,
)
def test_what_is_no_share_is_one_line_with_the_nearest_right_one(text, expected):
    with pytest.raises(UsageError) as error:
        shard(text)
    assert str(error.value) == f"--shard {text}: {expected}"
