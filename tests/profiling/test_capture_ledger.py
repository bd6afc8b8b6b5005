import pytest

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.capture_ledger import CaptureLedger, current_stream
from dsv4bench.profiling.graph_nodes import GraphNodes
from dsv4bench.profiling.ledger import Ledger
from dsv4bench.ranges import Range
from dsv4bench.results.ledger_table import Node
from tests.profiling.fake_cuda import CHILD, COPY, HOST, SET, Bindings, FakeCuda, FakeStream

LAYER, OUTER, INNER = (
    Range(layer=2),
    Range(layer=2, op="compress_c2", kv_source=2),
    Range(layer=2, op="store", kv_source=2),
)


@pytest.fixture
def device():
    fake = FakeCuda()
    fake.current = FakeStream(fake, 7)
    return fake


@pytest.fixture
def bindings(device):
    return Bindings(device)


@pytest.fixture
def mark(device, bindings):
    return CaptureLedger(Ledger(), GraphNodes(bindings, bindings), stream=lambda: device.current.cuda_stream)


def counts(mark):
    return {
        rng and rng.text(): {metric: count for metric, count in found.items() if count}
        for rng, where, found in mark.ledger.entries()
        if where == "segment"
    }


def test_new_nodes_belong_to_the_innermost_open_range_exclusively(device, mark):
    device.begin()
    mark.begin_graph()
    device.launch("stray")
    mark.enter(LAYER)
    device.launch("of_the_layer")
    mark.enter(OUTER)
    device.launch("before")
    mark.enter(INNER)
    device.launch("_store")
    device.launch(kind=COPY)
    mark.exit(INNER)
    device.launch("after")
    device.launch(kind=SET)
    mark.exit(OUTER)
    mark.exit(LAYER)
    device.launch("late")
    mark.end_graph()
    assert counts(mark) == {
        None: {"kernels": 2},
        LAYER.text(): {"kernels": 1},
        OUTER.text(): {"kernels": 2, "sets": 1},
        INNER.text(): {"kernels": 1, "copies": 1},
    }
    assert mark.graphs == (
        (
            Node(None, None, None, "kernels", "stray", 0),
            Node(2, None, None, "kernels", "of_the_layer", 1),
            Node(2, 2, "compress_c2", "kernels", "before", 2),
            Node(2, 2, "store", "kernels", "_store", 3),
            Node(2, 2, "store", "copies", "Memcpy", 4),
            Node(2, 2, "compress_c2", "kernels", "after", 5),
            Node(2, 2, "compress_c2", "sets", "Memset", 6),
            Node(None, None, None, "kernels", "late", 7),
        ),
    )


def test_rows_have_zeros_for_what_was_counted_and_not_found(device, mark):
    device.begin()
    mark.enter(INNER)
    device.launch()
    mark.exit(INNER)
    assert [(r["where"], r["calls"], r["kernels"], r["copies"], r["sets"]) for r in mark.ledger.rows()] == [
        ("segment", None, 1, 0, 0)
    ]


def test_eager_breaks_between_two_graphs_add_nothing(device, mark):
    for launches in (1, 2):
        device.begin()
        mark.begin_graph()
        mark.enter(INNER)
        for _ in range(launches):
            device.launch()
        mark.exit(INNER)
        mark.end_graph()
        device.end()
        mark.enter(OUTER)
        device.launch("eager")
        mark.exit(OUTER)
    assert counts(mark) == {INNER.text(): {"kernels": 3}}


def test_a_range_open_since_before_the_capture_takes_its_nodes(device, mark):
    mark.enter(OUTER)
    device.launch("eager")
    device.begin()
    mark.begin_graph()
    device.launch()
    mark.end_graph()
    device.end()
    mark.exit(OUTER)
    assert counts(mark) == {OUTER.text(): {"kernels": 1}}


def test_a_new_capture_is_known_by_its_id_without_being_told(device, mark):
    for _ in range(2):
        device.begin()
        mark.enter(INNER)
        device.launch()
        mark.exit(INNER)
        device.end()
    assert counts(mark) == {INNER.text(): {"kernels": 2}}
    node = Node(2, 2, "store", "kernels", "k", 0)
    assert mark.graphs == ((node,), (node,))


def test_nodes_have_the_numbers_that_a_trace_will_give_them(device, bindings):
    bindings.first_id = 0x5_0000_0010  # the capture's graph 5, whose first node has the number 16
    bindings.cudaGraphNodeGetToolsId = bindings.tools_id
    mark = CaptureLedger(Ledger(), GraphNodes(bindings, bindings), stream=lambda: 7)
    device.add_node(1, "in_the_child")
    device.begin()
    mark.enter(INNER)
    device.launch("a")
    device.launch(kind=CHILD, child=1)
    device.launch("b")
    mark.exit(INNER)
    assert [(node.name, node.number) for node in mark.graphs[0]] == [("a", 16), ("in_the_child", None), ("b", 18)]


def test_the_order_in_which_a_graph_lists_its_nodes_does_not_matter(device, bindings, mark):
    bindings.shuffle = True
    device.begin()
    for rng, launches in ((OUTER, 3), (INNER, 2)):
        mark.enter(rng)
        for _ in range(launches):
            device.launch()
        mark.exit(rng)
    assert counts(mark) == {OUTER.text(): {"kernels": 3}, INNER.text(): {"kernels": 2}}


def test_work_forked_to_a_side_stream_is_seen_because_the_graph_is_asked(device, mark):
    device.begin()
    mark.enter(INNER)
    capturing, device.current = device.current, FakeStream(device, 9)
    device.launch("on the side stream")
    device.current = capturing
    mark.exit(INNER)
    assert counts(mark) == {INNER.text(): {"kernels": 1}}


def test_what_is_no_launch_stands_apart(device, mark):
    device.begin()
    mark.enter(INNER)
    device.launch(kind=HOST)
    mark.exit(INNER)
    assert counts(mark) == {INNER.text(): {"others": 1}}
    assert mark.ledger.rows() == []


def test_borders_that_add_nothing_ask_only_for_the_count(device, bindings, mark):
    device.begin()
    for _ in range(10):
        mark.enter(INNER)
        mark.exit(INNER)
    assert bindings.calls == 20


def test_being_told_of_a_capture_that_is_not_there_is_an_error(mark):
    with pytest.raises(CaptureError, match="not capturing"):
        mark.begin_graph()


def test_a_graph_that_lost_nodes_is_an_error(device, mark):
    graph = device.begin()
    device.launch()
    device.launch()
    mark.begin_graph()
    device.graph_nodes[graph].pop()
    with pytest.raises(CaptureError, match="the graph has 1 nodes, the capture ledger has seen 2"):
        mark.end_graph()


def test_the_current_stream_is_asked(monkeypatch, device):
    device.install(monkeypatch)
    assert current_stream() == 7
