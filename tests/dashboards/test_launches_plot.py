"""The figure of launches, read by its data."""

from itertools import pairwise

import pytest

from dsv4bench.dashboards.launches_plot import counted, launches_figure
from dsv4bench.dashboards.style import MODELLED_HATCH, OTHERS_COLOUR, SIDE_HATCH, STACK, grey
from dsv4bench.results.compare import pairs
from tests.dashboards.drawn import modes
from tests.results.synthetic import cpu_sweep, lost, record, row, sweep

SIDES = ("reuse off", "reuse on")


def drawn(records):
    return launches_figure(counted(pairs(records, "reuse", "off", "on")), SIDES, "reuse")


def lengths(axes):
    """Return the pieces of each bar: what it is of -> operation -> length."""
    names = dict(zip(axes.get_yticks(), (label.get_text() for label in axes.get_yticklabels()), strict=True))
    found = {name: {} for name in names.values()}
    for container in axes.containers:
        (patch,) = container.patches
        name = names[patch.get_y() + patch.get_height() / 2]
        found[name][container.get_label()] = patch.get_width()
    return found


def test_each_kv_source_has_a_bar_a_side_stacked_by_operation():
    eager, graph = drawn(sweep()).axes
    found = lengths(eager)
    # 6 layers before, 1 after; 6 window dequants and 6 attentions of one kernel each
    assert found["kv_source 2, reuse off"] == {"dequant_compressed": 6, "dequant_swa": 6, "sparse_attention": 6}
    assert found["kv_source 20, reuse on"] == {"dequant_compressed": 1, "dequant_swa": 20, "sparse_attention": 20}
    # 2 layers without a source, and 40 products of two kernels
    assert found["no kv_source, reuse off"] == {"dequant_swa": 2, "sparse_attention": 2, "qkv_proj": 80}
    assert [text.get_text() for text in eager.texts if text.get_text() not in "1234"][:2] == ["18", "13"]
    assert eager.get_title() == "eager, batch 64 x 128: 198 -> 164 in all"  # 38 + 40 + 40 + 80
    assert lengths(graph) == found


def test_what_changed_comes_first_and_is_striped():
    figure = drawn(sweep())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "1 dequant_compressed: 38 -> 4",
        "2 qkv_proj: 80",
        "3 dequant_swa: 40",
        "4 sparse_attention: 40",
    ]
    hatches = {one.get_label(): one.patches[0].get_hatch() for one in figure.axes[0].containers}
    assert {op: hatch for op, hatch in hatches.items() if hatch} == {"dequant_compressed": SIDE_HATCH}
    assert "/" in MODELLED_HATCH
    assert not {"/", "\\"} & {*SIDE_HATCH}  # lines that lean are of modelled panels alone
    assert "reuse off and reuse on" in figure.get_suptitle()


def test_parts_with_room_have_the_number_that_their_operation_has_in_the_legend():
    (axes,) = drawn([record(1, "on", counts=[row("much", None, "eager", 990), row("few", None, "eager", 10)])]).axes
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [("1", (495, 0)), ("1000", (4, 0))]


def test_neighbours_of_a_stack_differ_in_grey():
    shades = [*map(grey, STACK), grey(OTHERS_COLOUR)]
    assert min(abs(a - b) for a, b in pairwise(shades)) > 0.1


def test_the_tenth_operation_on_is_among_others():
    many = [row(f"op_{place}", None, "eager", 20 - place) for place in range(11)]
    (axes,) = drawn([record(1, "on", counts=many)]).axes
    pieces = lengths(axes)["no kv_source, reuse on"]
    assert pieces == {**{f"op_{place}": 20 - place for place in range(9)}, "others": 11 + 10}


@pytest.mark.parametrize(("reuse", "name"), [("on", "reuse on"), ("off", "reuse off")])
def test_one_side_alone_has_one_bar(reuse, name):
    (axes,) = drawn(modes("eager", batches=(1,), reuse=(reuse,))).axes
    assert {label.rpartition(", ")[2] for label in lengths(axes)} == {name}


def test_a_cpu_counts_calls_and_says_so():
    eager, tape = drawn(cpu_sweep()).axes
    assert lengths(eager)["kv_source 2, reuse off"]["dequant_compressed"] == 6
    assert tape.get_xlabel().startswith("calls of a forward (CPU reference)")


def test_cells_that_were_not_counted_are_left_out():
    assert counted(pairs([lost("failed", "broke"), lost("failed", "broke", reuse="off")], "reuse", "off", "on")) == []
