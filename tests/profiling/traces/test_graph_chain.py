import pytest

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.graph_chain import captured_at
from tests.profiling.traces.made_rows import Made


def found(made):
    captured = captured_at(made.trace())
    return list(zip(captured.operation.tolist(), captured.thread.tolist(), captured.time_ns.tolist(), strict=True))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1, NO_ID, 10, 4)], [(0, 4, 10)]),
        ([(1, 2, 30, 5), (2, NO_ID, 20, 4)], [(0, 4, 20)]),
        ([(1, 2, 40, 5), (2, 3, 30, 5), (3, 4, 20, 5), (4, NO_ID, 10, 4)], [(0, 4, 10)]),
        ([(1, NO_ID, 39, 5), (1, 2, 40, 5), (2, NO_ID, 20, 4)], [(0, 4, 20)]),
        ([(1, 2, 40, 5), (1, NO_ID, 41, 5), (2, NO_ID, 20, 4), (2, NO_ID, 25, 6)], [(0, 4, 20)]),
        ([(1, 2, 40, 5)], []),
        ([(1, 2, 40, 5), (2, 1, 30, 5)], []),
        ([(1, 1, 40, 5)], []),
        ([(1, 2, 40, 5), (1, 3, 41, 5), (2, NO_ID, 20, 4), (3, NO_ID, 21, 4)], []),
        ([(9, NO_ID, 10, 4)], []),
        ([], []),
    ],
    ids=[
        "a root",
        "a clone",
        "a clone of clones",
        "a clone with a row that names no original, as 2023.4 writes it",
        "such a row behind, and a root with two rows",
        "captured before the recording",
        "a circle",
        "its own original",
        "two originals",
        "rows of other nodes",
        "no rows",
    ],
)
def test_the_chain_of_clones_is_followed_to_its_root(rows, expected):
    made = Made().ran(3, node=1)
    for node, original, time_ns, thread in rows:
        made.node(node, original, time_ns, thread)
    assert found(made) == expected


def test_a_node_id_is_of_one_process_and_operations_of_no_graph_have_none():
    made = Made().ran(1, node=5, process=0).ran(1, node=5, process=1, start_ns=11_000).ran(2, start_ns=12_000)
    made.ran(3, node=0, start_ns=13_000).node(5, NO_ID, 70, thread=2, process=1)
    assert found(made) == [(1, 2, 70)]


def test_a_thousand_levels_are_followed():
    made = Made().ran(3, node=1)
    for level in range(1, 1000):
        made.node(level, level + 1, 5000 - level)
    made.node(1000, NO_ID, 17, thread=3)
    assert found(made) == [(0, 3, 17)]
