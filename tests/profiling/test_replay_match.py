"""Records of a replay find their nodes: by id, by order, or not at all."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.replay_match import BY_ID, BY_NAME, BY_ORDER, NOT_AT_ALL, match_replay
from dsv4bench.profiling.traces.kineto_reader import read
from tests.profiling.replays import EXEC, Replay, node, numbered
from tests.profiling.traces.shared_traces import FOLDER, needs_traces

ROPE, STORE, COPY, FILL = (
    node("q_rope", "_rope"),
    node("store", "_store", layer=3),
    node("store", "Memcpy", "copies", layer=3),
    node("o_proj_a", "Memset", "sets", layer=3),
)
FIRST = numbered(ROPE, STORE, COPY, node(None, "EventRecord", "others"), ROPE)
SECOND = numbered(FILL, node("o_proj_a", "at::native::add"), STORE)
LEDGER = (FIRST, SECOND)


def written(ids=False, replays=1):
    replay = Replay(ids)
    for _ in range(replays):
        for graph in LEDGER:
            replay.graph(graph)
    return replay


def ops(replayed):
    return [[one.node and one.node.op for one in launch.matched] for launch in replayed.launches]


def counts(replayed):
    return replayed.attributed, replayed.unattributed, replayed.ambiguous, replayed.missing


WHOLE = [["q_rope", "store", "store", "q_rope"], ["o_proj_a", "o_proj_a", "store"]]


@pytest.mark.parametrize(("ids", "method"), [(True, BY_ID), (False, BY_ORDER)], ids=["with ids", "without ids"])
def test_every_record_of_a_replay_finds_its_node(ids, method):
    found = match_replay(written(ids).trace, LEDGER)
    assert (ops(found), counts(found), found.method) == (WHOLE, (7, 0, 0, 0), method)


def test_two_graphs_launched_twice_are_two_replays():
    found = match_replay(written(replays=2).trace, LEDGER)
    assert (ops(found), counts(found)) == (WHOLE * 2, (14, 0, 0, 0))


def test_another_number_of_launches_than_of_graphs_says_nothing():
    found = match_replay(written().trace, LEDGER[:1] * 3)
    assert (found.method, counts(found)) == (NOT_AT_ALL, (0, 7, 0, 0))
    assert found.why[0] == "segment 0: 2 graph launches, 3 graphs captured"


def test_a_kernel_is_known_by_its_mangled_and_its_plain_name():
    replay = written()
    found = match_replay(renamed(replay.trace, "at::native::add", "void at::native::add<float>(int)"), LEDGER)
    assert counts(found) == (7, 0, 0, 0)


def renamed(trace, old, new):
    return replace(trace, strings=[new if name == old else name for name in trace.strings])


@pytest.mark.parametrize("ids", [True, False], ids=["with ids", "without ids"])
def test_a_foreign_kernel_is_nobodys_and_hides_no_other(ids):
    replay = Replay(ids)
    replay.graph(FIRST)
    replay.ran("somebody_elses", number=99)
    replay.graph(SECOND)
    found = match_replay(replay.trace, LEDGER)
    assert ops(found) == [[*WHOLE[0], None], WHOLE[1]]
    assert counts(found) == (7, 1, 0, 0)


def test_a_kernel_beside_the_graphs_is_in_no_launch():
    replay = written()
    replay.eager(None, "philox_fill")
    found = match_replay(replay.trace, LEDGER)
    assert counts(found) == (7, 0, 0, 0)


def test_a_copy_that_ran_under_a_name_of_its_own_is_told():
    trace = renamed(written().trace, "memcpy128", "copy_in_disguise")
    found = match_replay(trace, LEDGER)
    assert found.why == ["segment 0: copies or fills ran 0 times, 1 captured; beside them ran copy_in_disguise"]


@pytest.mark.parametrize(
    ("ids", "expected", "why"),
    [
        (True, (6, 0, 0, 1), []),
        (False, (3, 3, 0, 0), ["segment 0: kernels _store ran 0 times, 1 captured"]),
    ],
    ids=["with ids", "without ids"],
)
def test_a_dropped_record_leaves_no_full_coverage(ids, expected, why):
    trace = written(ids).trace
    found = match_replay(replace(trace, operations=trace.operations.drop(index=1)), LEDGER)
    assert (counts(found), found.why) == (expected, why)


MOVES = numbered(
    FILL,
    node("o_proj_a", "gemm"),
    node("moe_route", "Memcpy", "copies"),
    node("moe_route", "reverse"),
    node("moe_route", "Memset", "sets"),
    node("moe_route", "sort"),
    node("moe_route", "Memcpy", "copies"),
    node("moe_experts", "gather"),
)
COPY_NAME, FILL_NAME = "memcpy32_post", "memset32"


def moved(*names, ids=False, streams=()):
    """A replay of MOVES as the profiler writes it: four of its copies and fills under these names, on these streams."""
    replay, left = Replay(ids), iter(names)
    replay.host("cudaGraphLaunch")
    for one in MOVES:
        replay.ran(one.name if one.metric == "kernels" else next(left), number=one.number)
    for row, stream in zip(replay.operations, streams, strict=False):
        row["stream"] = stream
    return replay.trace


@pytest.mark.parametrize("ids", [True, False], ids=["with ids", "without ids"])
@pytest.mark.parametrize(
    ("names", "misnamed"),
    [
        ([FILL_NAME, COPY_NAME, FILL_NAME, COPY_NAME], 0),
        ([FILL_NAME, FILL_NAME, FILL_NAME, COPY_NAME], 1),
        ([FILL_NAME, COPY_NAME, COPY_NAME, COPY_NAME], 1),
        ([FILL_NAME, COPY_NAME, COPY_NAME, FILL_NAME], 2),
        ([COPY_NAME, FILL_NAME, COPY_NAME, FILL_NAME], 4),
    ],
    ids=["as captured", "3 fills of 2", "3 copies of 2", "as many of each, elsewhere", "all"],
)
def test_a_copy_or_fill_under_the_others_name_is_the_node_in_its_place(names, misnamed, ids):
    found = match_replay(moved(*names, ids=ids), (MOVES,))
    assert [one.node for one in found.matched] == list(MOVES)
    assert (found.why, counts(found), found.misnamed) == ([], (8, 0, 0, 0), misnamed)


def test_a_kernel_under_the_name_of_a_fill_is_no_fill():
    trace = renamed(moved(FILL_NAME, COPY_NAME, FILL_NAME, COPY_NAME), "gather", FILL_NAME)
    found = match_replay(trace, (MOVES,))
    assert counts(found) == (0, 8, 0, 0)
    assert found.why == [
        "segment 0: copies or fills ran 5 times, 4 captured; kernels gather ran 0 times, 1 captured",
    ]


def test_a_copy_in_the_place_of_a_kernel_is_not_attributed():
    other = (*MOVES[:2], MOVES[3], MOVES[2], *MOVES[4:])
    found = match_replay(moved(FILL_NAME, COPY_NAME, FILL_NAME, COPY_NAME), (other,))
    assert found.why == ["segment 0: record 2 is copies or fills, kernels reverse was captured there"]
    assert counts(found) == (0, 8, 0, 0)


@pytest.mark.parametrize(
    ("streams", "expected"),
    [((7, 8), (8, 0, 0, 0)), ((7, 7, 8), (4, 0, 4, 0))],
    ids=["a kernel on another stream", "a copy on another stream"],
)
def test_copies_and_fills_of_several_places_are_told_by_their_order_on_one_stream_alone(streams, expected):
    trace = moved(FILL_NAME, COPY_NAME, COPY_NAME, FILL_NAME, streams=streams)
    found = match_replay(trace, (MOVES,))
    assert (found.method, counts(found)) == (BY_NAME, expected)


def test_a_swapped_order_on_one_stream_is_not_attributed():
    found = match_replay(written().trace, (numbered(STORE, ROPE, COPY, ROPE), SECOND))
    assert found.why == ["segment 0: record 0 is kernels _rope, kernels _store was captured there"]
    assert (ops(found), counts(found)) == ([[None] * 4, WHOLE[1]], (3, 4, 0, 0))


@pytest.mark.parametrize(("ids", "method"), [(True, BY_ID), (False, BY_ORDER)], ids=["with ids", "without ids"])
def test_a_kernel_without_a_captured_name_is_any_kernel_in_its_place(ids, method):
    nameless = (replace(FIRST[0], name="unknown"), *FIRST[1:])
    found = match_replay(written(ids).trace, (nameless, SECOND))
    assert (ops(found), found.method) == (WHOLE, method)


def test_a_nameless_kernel_does_not_take_the_place_of_a_foreign_or_dropped_one():
    nameless = (replace(FIRST[0], name="unknown"), *FIRST[1:])
    replay = Replay()
    replay.graph(FIRST)
    replay.ran("somebody_elses")
    found = match_replay(replay.trace, (nameless,))
    assert found.why == ["segment 0: 1 captured kernels have no name; 5 records, 4 nodes"]
    copy_first = match_replay(written().trace, ((COPY, *nameless[1:]), SECOND))
    assert ops(copy_first)[0] == [None] * 4


def test_ids_that_do_not_fit_the_names_are_not_believed():
    trace = written(ids=True).trace
    shifted = EXEC | (trace.operations["graph_node"] + 1) & 0xFF
    found = match_replay(replace(trace, operations=trace.operations.assign(graph_node=shifted)), LEDGER)
    assert (found.method, ops(found)) == (BY_ORDER, WHOLE)


def test_nodes_of_a_child_graph_have_no_number_and_are_matched_by_order():
    child = (*FIRST[:2], replace(FIRST[2], number=None), *FIRST[3:])
    found = match_replay(written(ids=True).trace, (child, SECOND))
    assert [launch.method for launch in found.launches] == [BY_ORDER, BY_ID]
    assert found.method == f"{BY_ORDER}, {BY_ID}"
    assert counts(found) == (7, 0, 0, 0)


def test_a_node_outside_every_range_is_matched_and_not_attributed():
    loose = numbered(node(None, "_rope", layer=None, kv_source=None), *FIRST[1:])
    assert counts(match_replay(written().trace, (loose, SECOND))) == (6, 1, 0, 0)


def on_streams(graph, streams):
    replay = Replay()
    replay.graph(graph)
    for row, stream in zip(replay.operations, streams, strict=True):
        row["stream"] = stream
    return replay.trace


def test_a_graph_of_several_streams_is_matched_name_by_name():
    graph = numbered(ROPE, STORE, COPY, ROPE)
    trace = on_streams(graph, [7, 8, 8, 7])
    earlier = trace.operations["start_ns"].where(trace.operations["stream"] == 7, trace.operations["start_ns"] - 500)
    moved = trace.operations.assign(start_ns=earlier).sort_values("start_ns", ignore_index=True)
    found = match_replay(replace(trace, operations=moved), (graph,))
    assert (found.method, counts(found)) == (BY_NAME, (4, 0, 0, 0))


def test_a_name_that_two_streams_and_two_places_share_is_ambiguous():
    graph = numbered(ROPE, replace(ROPE, layer=5), STORE)
    found = match_replay(on_streams(graph, [7, 8, 7]), (graph,))
    assert (ops(found), counts(found)) == ([[None, None, "store"]], (1, 0, 2, 0))


def test_overlapping_kernels_are_ordered_by_start():
    replay = written()
    for place in range(len(replay.operations)):
        replay.last(500, place)
    trace = replay.trace
    found = match_replay(replace(trace, operations=trace.operations[::-1]), LEDGER)
    assert ops(found) == WHOLE


@given(st.permutations([0, 1, 2, 3]), st.lists(st.integers(1, 99), min_size=4, max_size=4))
def test_equal_kernels_of_one_operation_keep_its_total_in_any_order(order, spent):
    graph = numbered(ROPE, ROPE, ROPE, ROPE)
    replay = Replay()
    replay.graph(graph)
    for place, spent_ns in enumerate(spent):
        replay.last(spent_ns, place)
    trace = replay.trace
    found = match_replay(replace(trace, operations=trace.operations.iloc[order]), (graph,))
    totals = Counter()
    for one in found.matched:
        totals[one.node.op] += one.operation.duration_ns
    assert totals == {"q_rope": sum(spent)}


@needs_traces
def test_replays_of_an_h200_are_matched_by_order_copies_in_disguise_included():
    names = ["k_scale"] * 3 + ["at::native::vectorized_elementwise_kernel"]
    each = [("kernels", name) for name in names] + [("copies", "Memcpy"), ("kernels", names[3])]
    graph = numbered(*[node("probe", name, metric, None, source) for source in (2, 8, 14, 20) for metric, name in each])
    found = match_replay(read(FOLDER / "h200" / "probe_kineto.json.gz"), (graph,))
    assert (found.method, counts(found)) == (BY_ORDER, (48, 0, 0, 0))
    spent = Counter()
    for one in found.launches[0].matched:
        spent[one.node.kv_source] += one.operation.duration_ns
    # by hand from the file: 2303 + 2015 + 2015 + 2432 + 1984 + 1824 of the first source, and so on
    assert spent == {2: 12573, 8: 12608, 14: 12704, 20: 12672}
