"""Work and waiting of ranks where they exchange rows."""

from dsv4bench.results.ranks import exchange_times

OPS = ("moe_gather", "moe_return")


def row(op, source, device_ns, where="segment"):
    return {"op": op, "kv_source": source, "where": where, "device_ns": device_ns}


def test_the_fastest_rank_works_and_what_others_take_longer_they_wait():
    first = [row("moe_gather", 2, 50), row("moe_gather", 20, 30), row("moe_return", 2, 10), row("o_proj_b", 2, 900)]
    second = [row("moe_gather", 2, 20), row("moe_gather", 20, 70), row("moe_return", 2, 10)]
    assert exchange_times([first, second], OPS) == [
        {"device_ns": 90, "work_ns": 60, "wait_ns": 30},
        {"device_ns": 100, "work_ns": 60, "wait_ns": 40},
    ]


def test_ranks_that_exchange_nothing_have_no_times():
    assert exchange_times([[row("o_proj_b", 2, 1)], [row("moe_gather", 2, 1)]], OPS) == []
    assert exchange_times([], OPS) == []
