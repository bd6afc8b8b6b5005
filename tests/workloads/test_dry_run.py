"""The plan of a cell before it runs: forwards, refusals, times and savings add up over forwards and ranks."""

from dataclasses import replace

import pytest

from dsv4bench.workloads.batch import Batch, Request, equal_requests
from dsv4bench.workloads.cells import Cell, Load
from dsv4bench.workloads.dry_run import as_plain, plan_notes, planned
from dsv4bench.workloads.geometry import V41_FLASH
from dsv4bench.workloads.memory import estimate
from dsv4bench.workloads.model import H200_CEILINGS, forward_ns, reuse_saving
from dsv4bench.workloads.step_scope import layer_shares
from dsv4bench.workloads.variant import Variant

ONE = Cell(V41_FLASH, Load(equal_requests(1, 8192, 0, 8192)), 8192, Variant(), device="cuda")


def ns(*requests, bucket=None):
    return forward_ns(V41_FLASH, Batch(requests, bucket=bucket), Variant(), H200_CEILINGS)


def test_one_forward():
    (found,) = planned((ONE,), samples=12)
    assert (found.rows, found.forwards, found.refusals) == (8192, 1, ())
    assert found.step_ns == ns(Request(0, 0, 8192))
    assert found.cell_ns == pytest.approx(20 * found.step_ns)
    assert (found.saved_rows, found.saved_bytes) == (237_568 - 20_480, (237_568 - 20_480) * 1312)
    assert found.memory == estimate((ONE,))
    assert found.saved_ns == pytest.approx((237_568 - 20_480) * 1312 / 4.24e12 * 1e9)
    assert (found.stack_share, found.stack_bytes_share) == layer_shares(ONE.forwards[0], Variant())


def test_a_saving_is_a_share_of_the_step_without_reuse_on_both_sides():
    off, on = (planned((replace(ONE, variant=Variant(reuse=reuse)),), 1)[0] for reuse in ("off", "on"))
    assert off.step_ns > on.step_ns
    assert off.saved_share == on.saved_share == off.saved_ns / off.step_ns


def test_sampling_by_its_own_rule_takes_ten():
    assert planned((ONE,), None)[0].cell_ns == planned((ONE,), 10)[0].cell_ns


def test_forwards_add_up_and_graph_refusals_are_told():
    load = Load((Request(0, 0, 20_480),))
    cell = replace(ONE, load=load, variant=Variant(graph=True, break_outputs="static"))
    (found,) = planned((cell,), 3)
    chunks = [Request(0, 0, 8192), Request(0, 8192, 8192), Request(0, 16_384, 4096)]
    assert found.refusals == ("context 20480 is over the graph's limit of 16384",)
    assert (found.buckets, found.padded_rows) == ((8192, 8192), 20_480)
    assert found.step_ns == pytest.approx(sum(ns(chunk) for chunk in chunks))
    assert found.saved_rows == sum(reuse_saving(V41_FLASH, Batch((c,)), Variant()).rows for c in chunks)


def test_copies_of_what_breaks_return_take_time_in_a_graph_alone():
    def step_ns(**switches):
        (found,) = planned((replace(ONE, variant=Variant(**switches)),), 3)
        return found.step_ns

    assert step_ns(graph=True, break_outputs="copy") > step_ns(graph=True, break_outputs="static") == step_ns()


def test_ranks_run_one_after_another_and_the_slowest_makes_the_step():
    load = Load((Request(0, 0, 8192), Request(1, 0, 1024), Request(2, 0, 512)))
    (found,) = planned((replace(ONE, load=load, ranks=4),), samples=2)
    times = [ns(request) for request in load.requests]
    assert found.step_ns == max(times)
    assert found.cell_ns == pytest.approx(10 * sum(times))


def test_a_graph_runs_the_rows_of_its_bucket():
    cell = replace(ONE, load=Load((Request(0, 0, 4200),)), variant=Variant(graph=True, break_outputs="static"))
    (found,) = planned((cell,), 1)
    assert found.step_ns == ns(Request(0, 0, 4200), bucket=4608)
    assert (found.rows, found.buckets, found.padded_rows) == (4200, (4608,), 4608)
    plain = as_plain(found)
    assert (plain["buckets"], plain["breaks"], plain["break_outputs"]) == ([4608], "sm100", "static")


@pytest.mark.parametrize(
    ("prefix", "mode", "refused"),
    [(0, "breakable", False), (16_384, "breakable", True), (16_384, "full", False)],
    ids=["in a bucket", "refused", "full graphs take any length"],
)
def test_a_cell_whose_every_forward_is_refused_has_no_time(prefix, mode, refused):
    load = Load(equal_requests(1, 4096, prefix, 8192))
    (found,) = planned((replace(ONE, load=load, variant=Variant(graph=True, graph_mode=mode)),), 3)
    assert found.refused is refused
    assert (found.step_ns is None, found.cell_ns is None) == (refused, refused)
    assert found.saved_rows > 0
    assert as_plain(found)["status"] == ("refused" if refused else "planned")


def test_ranks_save_their_rows_together_and_the_time_of_the_one_that_saves_most():
    load = Load((Request(0, 0, 8192), Request(1, 0, 1024), Request(2, 0, 512)))
    (found,) = planned((replace(ONE, load=load, ranks=4),), samples=2)
    savings = [reuse_saving(V41_FLASH, Batch((request,)), Variant()) for request in load.requests]
    assert found.saved_rows == sum(saving.rows for saving in savings)
    assert found.saved_ns == pytest.approx(savings[0].ns(4.24e12))


def test_a_plan_as_plain_values_is_labelled_and_names_every_axis():
    load = Load((Request(0, 0, 8192), Request(1, 0, 1024)), source="requests.jsonl")
    found = as_plain(planned((replace(ONE, load=load, ranks=2),), 1)[0])
    assert (found["label"], found["status"], found["refusals"]) == ("modelled", "planned", [])
    assert (found["requests"], found["extend"], found["prefix"], found["source"]) == (2, "mixed", 0, "requests.jsonl")
    assert (found["geometry"], found["chunk"], found["ranks"], found["provider"]) == ("v41-flash", 8192, 2, "torch")
    assert (found["mode"], found["reuse"], found["kv"], found["fault"]) == ("eager", "on", "v41+fp4", None)
    assert (found["buckets"], found["padded_rows"], found["breaks"], found["break_outputs"]) == ([], 9216, None, None)
    assert found["memory_bytes"] == estimate((replace(ONE, load=load, ranks=2),)).total_bytes


def test_a_moe_takes_time_and_its_exchange_is_told_in_bytes():
    """Two ranks of 1024 rows: 40 layers exchange 2048 rows of 10 240 bytes twice."""
    cell = replace(ONE, load=Load(equal_requests(2, 1024, 0, 8192)), ranks=2, dep=True)
    off, collectives, experts = (
        planned((replace(cell, variant=Variant(moe=moe)),), 1)[0] for moe in ("off", "collectives", "experts")
    )
    # each rank holds 192 experts: 40 layers read them at 4.24 TB/s
    weights_ns = 40 * 192 * 3 * 5120 * 2304 * 2 / 4.24e12 * 1e9
    assert off.step_ns <= collectives.step_ns < experts.step_ns
    assert weights_ns < experts.step_ns - off.step_ns < 2 * weights_ns
    assert off.exchanged_bytes == {}
    assert collectives.exchanged_bytes == as_plain(experts)["exchanged_bytes"] == {"all-reduce": 40 * 2 * 2048 * 10_240}
    assert plan_notes([off, experts])[1:] == [
        "exchange of rows, in no time above, as no link's rate is known here: all-reduce 1.562 GiB a step"
    ]


def test_the_notes_name_the_assumed_rates_and_each_refusal_once():
    long = Load(equal_requests(1, 4096, 16_384, 8192))
    group = tuple(replace(ONE, load=long, variant=Variant(reuse=reuse, graph=True)) for reuse in ("off", "on"))
    assert plan_notes(planned(group, 1)) == [
        "modelled at assumed H200 rates, nothing of it measured here: 4.24 TB/s of bytes moved, 10 us a launch",
        "the graph refuses: context 20480 is over the graph's limit of 16384",
    ]
    assert plan_notes([]) == []
