import importlib

import pytest

from dsv4bench.errors import CaptureError
from dsv4bench.profiling import graph_nodes
from dsv4bench.profiling.graph_nodes import GraphNodes, load_graph_nodes
from tests.profiling.fake_cuda import CHILD, CONDITIONAL, COPY, HOST, SET, Bindings, Error, FakeCuda, FakeStream


@pytest.fixture
def device():
    fake = FakeCuda()
    fake.current = FakeStream(fake, 7)
    return fake


def nodes_of(device, form="13"):
    bindings = Bindings(device, form)
    return GraphNodes(bindings, bindings)


@pytest.mark.parametrize("form", ["13", "12", "v2"])
def test_every_release_tells_the_graph_of_the_capturing_stream(device, form):
    nodes = nodes_of(device, form)
    assert nodes.capturing(7) is None
    graph = device.begin()
    assert nodes.capturing(7) == (1, graph)
    assert nodes.capturing(8) is None
    device.end()
    assert nodes.capturing(7) is None
    assert nodes_of(device, form).capturing(7) is None
    assert device.begin() != graph
    assert nodes.capturing(7)[0] == 2


def test_a_release_without_any_form_that_tells_the_graph_is_refused(device):
    bindings = Bindings(device, form="without")
    device.begin()
    with pytest.raises(CaptureError, match="does not tell the graph"):
        GraphNodes(bindings, bindings).capturing(7)


@pytest.mark.parametrize(
    ("launch", "described"),
    [
        ({"name": "_dequant"}, [("kernels", "_dequant")]),
        ({"name": "runtime_fill"}, [("kernels", "runtime_fill")]),
        ({"name": "_ZN2at6native4fillIfEEvT_"}, [("kernels", "at::native::fill")]),
        ({"name": None}, [("kernels", "unknown")]),
        ({"kind": COPY}, [("copies", "Memcpy")]),
        ({"kind": SET}, [("sets", "Memset")]),
        ({"kind": HOST}, [("others", "Host")]),
        ({"kind": CONDITIONAL}, [("dynamic", "Conditional")]),
    ],
    ids=[
        "kernel",
        "kernel of the runtime",
        "mangled kernel",
        "kernel without a name",
        "copy",
        "set",
        "host call",
        "conditional",
    ],
)
def test_nodes_are_described_by_class_and_name(device, launch, described):
    graph = device.begin()
    device.launch(**launch)
    nodes = nodes_of(device)
    assert [nodes.describe(node) for node in nodes.nodes(graph)] == [described]


def test_a_child_graph_is_what_it_holds_at_any_depth(device):
    device.add_node(2, "inner")
    device.add_node(1, "first")
    device.add_node(1, "child", CHILD, child=2)
    device.add_node(1, "c", COPY)
    graph = device.begin()
    device.launch(kind=CHILD, child=1)
    nodes = nodes_of(device)
    assert nodes.count(graph) == 1
    (node,) = nodes.nodes(graph)
    assert nodes.describe(node) == [("kernels", "first"), ("kernels", "inner"), ("copies", "Memcpy")]


def test_a_driver_that_tells_no_ids_is_asked_once_and_ordinals_stand_for_them(device):
    bindings, asked = Bindings(device), []

    def cudaGraphNodeGetToolsId(node):
        asked.append(node)
        return (Error.invalid, 0)

    bindings.cudaGraphNodeGetToolsId = cudaGraphNodeGetToolsId
    graph = device.begin()
    device.launch()
    device.launch()
    nodes = GraphNodes(bindings, bindings)
    assert [nodes.number(node, ordinal) for ordinal, node in enumerate(nodes.nodes(graph))] == [0, 1]
    assert len(asked) == 1


def test_an_empty_graph_has_no_nodes(device):
    assert nodes_of(device).nodes(device.begin()) == []


def test_a_failing_call_is_named(device):
    bindings = Bindings(device)

    def cudaGraphGetNodes(graph, count=0):
        return (Error.invalid, None, None)

    bindings.cudaGraphGetNodes = cudaGraphGetNodes
    with pytest.raises(CaptureError, match="cudaGraphGetNodes failed: invalid"):
        GraphNodes(bindings, bindings).count(device.begin())


def test_loading_asks_for_the_package_by_name(monkeypatch, device):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(graph_nodes.importlib, "import_module", missing)
    with pytest.raises(CaptureError, match="needs the package cuda-bindings"):
        load_graph_nodes()


def test_loading_takes_runtime_and_driver(monkeypatch, device):
    asked, bindings, real = [], Bindings(device), importlib.import_module

    def imported(name):
        if name.startswith("cuda."):
            asked.append(name)
            return bindings
        return real(name)

    monkeypatch.setattr(graph_nodes.importlib, "import_module", imported)
    graph = device.begin()
    assert load_graph_nodes().capturing(7) == (1, graph)
    assert asked == ["cuda.bindings.runtime", "cuda.bindings.driver"]
