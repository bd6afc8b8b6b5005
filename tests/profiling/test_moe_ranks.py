"""The stand-in of the MoE over ranks: what they exchange in eager steps and in graphs, with idle and uneven ranks."""

from collections import Counter
from dataclasses import replace

import pytest

from dsv4bench.profiling.passes import run_group
from dsv4bench.profiling.rank_recording import with_exchange
from tests.profiling.small_groups import TINY, FakeClock, group, model, session
from tests.profiling.thread_peers import on_ranks
from tests.results.synthetic import record

EXCHANGES = ("moe_norm", "moe_gather", "moe_return", "moe_add")
EXPERTS = ("moe_router_proj", "moe_route", "moe_experts", "moe_shared_proj")


def run(size=2, **typed):
    """Return rank 0's records; all ranks return the same."""
    cells = group(geometry=TINY, dep=str(size), **{"reuse": "on", **typed})
    found = on_ranks(size, lambda peers: run_group(cells, model(TINY), session(clock=FakeClock(), peers=peers)))
    assert not [one for one in found if isinstance(one, BaseException)], found
    return found[0]


def moe_checks(record):
    return [check["detail"] for check in record.checks if check["name"].startswith("stand-in of the MoE")]


@pytest.fixture(scope="module")
def experts():
    """Three requests of 8 rows on two ranks: 16 and 8 rows."""
    return run(batch="3", moe="experts")


@pytest.fixture(scope="module")
def collectives():
    """One request on two ranks: the second is idle."""
    return run(batch="1", moe="collectives")


def test_uneven_ranks_run_experts_in_eager_steps_and_in_a_graph(experts):
    for one in experts:
        assert (one.status, one.reason, one.variant["moe"]) == ("ok", None, "experts")
        assert one.batch["rank_rows"] == [16, 8]
        assert set(moe_checks(one)) == {"experts over 2 ranks equal an oracle"}
        calls = Counter({row["op"]: 0 for row in one.counts})
        for row in one.counts:
            calls[row["op"]] += row["calls"]
        assert {calls[op] for op in (*EXCHANGES, *EXPERTS)} == {3}


def test_an_idle_rank_takes_part_in_every_exchange(collectives):
    eager, taped = collectives
    for one in collectives:
        assert (one.status, one.reason, one.batch["rank_rows"]) == ("ok", None, [8, 0])
        assert set(moe_checks(one)) == {"rows of 2 ranks arrive and return"}
        assert {row["op"] for row in one.counts if row["op"].startswith("moe_")} == set(EXCHANGES)
    assert sum(row["calls"] for row in eager.rank_launches[1]) == 2 * 3  # gather and return of three layers
    assert sum(row["calls"] for row in taped.rank_launches[1]) > 4 * 3
    assert eager.rank_samples_ns[1] == eager.rank_samples_ns[0]  # it waits as long as the step takes


@pytest.mark.slow
@pytest.mark.parametrize("moe", ["collectives", "experts"])
@pytest.mark.parametrize(
    ("size", "batch", "rows"), [(4, "6", [16, 16, 8, 8]), (4, "2", [8, 8, 0, 0]), (3, "4", [16, 8, 8])]
)
def test_more_ranks(size, batch, rows, moe):
    for one in run(size, batch=batch, moe=moe, reuse="both"):
        assert (one.status, one.reason, one.batch["rank_rows"]) == ("ok", None, rows)
        assert len(moe_checks(one)) == (2 if one.mode == "eager" else 3 if one.variant["reuse"] == "on" else 2) * size


def test_a_record_holds_how_long_each_rank_worked_and_waited():
    rows = [
        [{"op": op, "kv_source": 2, "where": "segment", "device_ns": ns} for op in ("moe_gather",)] for ns in (30, 20)
    ]
    one, two = (replace(record(4, "on"), device_time={"rows": found, "span_ns": 9}) for found in rows)
    assert with_exchange([one, two]) == {
        **one.device_time,
        "exchange": [
            {"device_ns": 30, "work_ns": 20, "wait_ns": 10},
            {"device_ns": 20, "work_ns": 20, "wait_ns": 0},
        ],
    }
    assert with_exchange([one, replace(two, device_time=None)]) == one.device_time
    assert with_exchange([replace(one, device_time=None), two]) is None
