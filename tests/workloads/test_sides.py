"""The sides of an A/B: what their switches mean, which two cells belong together, and what is said of a slip."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.sides import both_sides, check_sides, in_groups, parse_side, side_text, two_sides


def side(text):
    return parse_side("--a", text, "cpu")


def twos(a, b, **typed):
    """The cells two by two of a command line on the small model of a CPU."""
    first, second = side(a), side(b)
    arguments = both_sides(PrefillArguments(device="cpu", **typed), first, second)
    return two_sides(cells(prefill_options(arguments)), first, second)


def differing(two):
    """The switches in which the two cells differ, with both values."""
    a, b = (cell.variant.switches() for cell in (two.a, two.b))
    return {name: (a[name], b[name]) for name in a if a[name] != b[name]}


def modes(found):
    return [(two.a.variant.graph, len(two.a.load.requests)) for two in found]


# what is typed


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        ("", {}),
        ("reuse=off", {"reuse": "off"}),
        ("reuse=on,compressor=torch", {"reuse": "on", "compressor": "torch"}),
        ("graph=on,graph-mode=full", {"graph": "on", "graph-mode": "full"}),
        ("kv=v41+fp4", {"kv": "v41+fp4"}),
        ("replay=recipe", {"replay": "on"}),
        ("provider=auto", {"provider": "torch"}),
        ("provider=store=torch/dequant=torch", {"provider": "torch/dequant=torch/store=torch"}),
    ],
    ids=str,
)
def test_a_side_is_switches_as_a_variant_spells_them(text, switches):
    assert side(text) == switches


def test_a_side_is_written_as_it_is_typed():
    assert side_text({"reuse": "off", "graph-mode": "full"}) == "reuse=off,graph-mode=full"
    assert side_text({}) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reus=off", "--a reus=off: no such switch (did you mean 'reuse'?); known: reuse, compressor, graph"),
        ("reuse=of", "--a reuse=of: not known (did you mean 'off'?); known: on, off"),
        ("reuse=both", "--a reuse=both: not known; known: on, off"),
        ("reuse", "--a reuse: expected reuse=VALUE, VALUE one of on, off"),
        ("provider=", "--a provider=: expected provider=VALUE"),
        ("graph=on,graph=off", "--a graph=on,graph=off: graph is named twice; expected one value for it"),
        ("graph-mode=half", "--a graph-mode=half: not known; known: breakable, full"),
        ("kv=v42", "--a kv=v42: no such KV pair (did you mean 'v4'?); known: v4, v41"),
        ("provider=tritn", "--a provider=tritn: not known (did you mean 'triton'?); known: auto"),
        ("provider=triton", "--a provider=triton: needs a CUDA device"),
        ("provider=store=nowhere.py:f", "--a provider=nowhere.py: no such file"),
    ],
    ids=lambda value: value.split(":")[0],
)
def test_a_slip_is_one_line_with_the_nearest_right_one(text, said):
    with pytest.raises(UsageError) as error:
        side(text)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("reuse=off", "", "--a reuse=off: expected both to name the same switches; only one names reuse"),
        (
            "reuse=off",
            "reuse=on,kv=v4",
            "--a reuse=off --b reuse=on,kv=v4: expected both to name the same switches; only one names kv",
        ),
        ("reuse=off", "reuse=off", "--a reuse=off --b reuse=off: a and b are the same; add --aa to measure the noise"),
        ("", "", "ab: a and b are the same; add --aa"),
    ],
    ids=["only one", "one more", "the same", "nothing"],
)
def test_sides_that_cannot_be_compared_are_refused(a, b, said):
    with pytest.raises(UsageError) as error:
        check_sides(side(a), side(b), elsewhere=False)
    assert str(error.value).startswith(said)


def test_sides_may_differ_in_their_tree_or_environment_alone():
    check_sides({}, {}, elsewhere=True)
    check_sides(side("reuse=on"), side("reuse=on"), elsewhere=True)
    check_sides(side("reuse=on"), side("reuse=off"), elsewhere=False)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"reuse": ["on"]}, "--reuse: --a and --b already say reuse; expected one of both"),
        ({"graph": False}, "--no-graph: --a and --b already say graph"),
        ({"graph": True}, "--graph: --a and --b already say graph"),
        ({"break_outputs": "static"}, "--break-outputs: --a and --b already say break-outputs"),
    ],
    ids=["reuse", "no graph", "graph", "break outputs"],
)
def test_an_axis_does_not_say_what_the_sides_say(typed, said):
    (field,) = typed
    name = field.replace("_", "-")
    switches = {name: {"reuse": "off", "graph": "on"}.get(name, "copy")}
    with pytest.raises(UsageError, match=said):
        both_sides(PrefillArguments(**typed), switches, switches)


@pytest.mark.parametrize("default", ["both", ["both"], ("both",), [], ()], ids=repr)
def test_an_axis_that_has_its_default_says_nothing(default):
    found = both_sides(PrefillArguments(reuse=default), {"reuse": "off"}, {"reuse": "on"})
    assert found.reuse == ("off", "on")


# which cells


def test_every_cell_of_a_has_the_one_of_b_that_differs_in_the_switch_alone():
    found = twos("reuse=off", "reuse=on", batch="1,2")
    assert modes(found) == [(False, 1), (True, 1), (False, 2), (True, 2)]
    assert all(differing(two) == {"reuse": ("off", "on")} for two in found)
    assert all(two.together for two in found)
    assert [len(group) for group in in_groups(found)] == [2, 2]


def test_what_the_sides_do_not_name_is_an_axis():
    found = twos("compressor=torch", "compressor=fused", graph=False, kv="v4,v41")
    assert [(two.a.variant.reuse, two.a.variant.kv.name) for two in found] == [
        (reuse, kv) for kv in ("v4", "v41") for reuse in ("off", "on")
    ]


def test_several_switches_go_together():
    (two,) = twos("reuse=off,compressor=torch", "reuse=on,compressor=fused", graph=False)
    assert differing(two) == {"reuse": ("off", "on"), "compressor": ("torch", "fused")}


def test_two_providers_share_pools_and_so_a_process(tmp_path):
    (tmp_path / "own.py").write_text("def fn(**tensors): pass")
    (two,) = twos("provider=torch", f"provider=dequant={tmp_path}/own.py:fn", graph=True, reuse="on")
    assert two.together
    assert two.a.group != two.b.group
    assert set(differing(two)) == {"provider"}


def test_one_side_twice_is_the_same_cell_twice():
    (two,) = twos("reuse=off", "reuse=off", graph=True)
    assert two.a is two.b
    assert two.together


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        ("kv=v4", "kv=v41", {"kv"}),
        ("path=sparse", "path=recipe", {"path"}),
        ("mhc=off", "mhc=on", {"mhc"}),
        ("replay=off", "replay=recipe", {"replay"}),
        ("graph=off", "graph=on", {"graph", "breaks", "break-outputs"}),
        ("graph=off,graph-mode=breakable", "graph=on,graph-mode=breakable", None),
    ],
    ids=["kv", "path", "mhc", "replay", "graph", "eager has no graph mode"],
)
def test_what_cannot_share_a_process_says_so(a, b, differ):
    if differ is None:
        with pytest.raises(UsageError, match="no cell of this plan has graph and graph-mode on both sides"):
            twos(a, b)
        return
    (two,) = twos(a, b, reuse="on", graph=None if "graph" in a else False)
    assert not two.together
    assert set(differing(two)) == differ


@pytest.mark.parametrize(
    ("a", "b"),
    [("graph-mode=breakable", "graph-mode=full"), ("breaks=sm100", "breaks=hopper")],
    ids=["graph-mode", "breaks"],
)
def test_cells_that_have_none_of_the_switches_are_left_out(a, b):
    found = twos(a, b, reuse="on")
    assert modes(found) == [(True, 1)]
    assert found[0].together
    with pytest.raises(UsageError, match=r"no cell of this plan has graph-mode|no cell of this plan has breaks"):
        twos(a, b, graph=False)


def test_several_cells_for_one_of_the_other_side_are_refused():
    with pytest.raises(UsageError, match=r"^graph=on: two cells of this side belong to one of the other, breakable"):
        twos("graph=off", "graph=on", breaks="both", reuse="on")


def test_a_fault_is_planted_on_both_sides_of_a_plan():
    (two,) = twos("reuse=off", "reuse=on", graph=False, fault="wrong-row")
    assert (two.a.variant.fault, two.b.variant.fault) == ("wrong-row", "wrong-row")
