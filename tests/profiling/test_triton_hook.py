"""Triton's own hook: launches under the innermost range, only while it listens."""

from types import SimpleNamespace

import pytest

from dsv4bench.profiling.triton_hook import TritonLaunches
from dsv4bench.ranges import Range

triton = pytest.importorskip("triton")
STORE = Range(layer=2, op="store", kv_source=2)


def launch(name="_store"):
    """What Triton does on a launch."""
    triton.knobs.runtime.launch_enter_hook(SimpleNamespace(get=lambda: {"name": name, "stream": 7}))


def test_launches_are_counted_under_the_innermost_range():
    hook = TritonLaunches()
    launch("before")
    with hook.listening():
        hook.enter(Range(layer=2))
        launch("_fill")
        hook.enter(STORE)
        launch()
        launch()
        hook.exit(STORE)
        launch("_fill")
        hook.exit(Range(layer=2))
        launch("_loose")
    launch("after")
    assert hook.take() == {("other", None): 3, ("store", 2): 2}
    assert hook.names == {"_fill", "_store", "_loose"}
    assert hook.take() == {}


def test_an_error_inside_stops_the_listening():
    hook = TritonLaunches()
    with pytest.raises(RuntimeError, match="boom"), hook.listening():
        raise RuntimeError("boom")
    launch()
    assert hook.take() == {}
