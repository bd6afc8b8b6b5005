"""Drawings within a page: what stands in the SVG."""

import re
from functools import cache
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure

from dsv4bench.dashboards.drawing import Drawing
from dsv4bench.dashboards.inline_svg import inline_svg
from dsv4bench.dashboards.kernel_plots import roofline_figure, timed_kernels
from dsv4bench.dashboards.launches_plot import launches_figure
from dsv4bench.dashboards.plots import step_time_figure, styled
from dsv4bench.results.compare import pairs
from dsv4bench.results.frame import comparison_frame
from tests.results.kernel_records import kernel_record
from tests.results.synthetic import record

SIDES = [record(batch, reuse) for batch in (1, 8) for reuse in ("off", "on")]


@cache
def drawn(name="step-time"):
    return inline_svg(Drawing(name, "What it shows.", step_time_figure(comparison_frame(SIDES))))


def said(svg):
    return [one.text for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]


def test_it_has_a_role_a_name_and_a_width():
    root = ET.fromstring(drawn())
    assert root.get("role") == "img"
    assert root.get("aria-label").startswith("What it shows. Attention stack of v41-flash")
    assert root.get("style") == "width: 806px"  # 8.4 inches
    assert root.get("viewBox")
    assert root.get("height") is None


def test_ids_are_those_of_the_drawing_and_lead_somewhere():
    text = drawn()
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert all(one.startswith("step-time-") for one in ids)
    used = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert used
    assert set(used) <= set(ids)


def test_colours_are_those_of_the_page_and_no_style_reaches_out_of_the_drawing():
    text = drawn()
    assert "currentColor" in text
    assert "var(--paper)" in text
    assert not re.search(r"#000000|#ffffff|<style|<metadata|<!", text)


def test_points_say_their_values_with_both_bounds():
    first = said(drawn())[0]
    assert (
        first == "before: reuse off\n20 (19.96 to 20.04): step time, ms (median, interval)\nat 1: requests in the batch"
    )


def test_bars_say_their_operation_and_number():
    figure = launches_figure(pairs(SIDES, "reuse", "off", "on"), ("reuse off", "reuse on"))
    assert "dequant_compressed\n20" in said(inline_svg(Drawing("launches", "", figure)))


def test_points_of_the_roofline_say_kernel_provider_and_rate():
    timed = timed_kernels([kernel_record("sglang", cold=2_000, flops=4 * 10**6)])
    (only,) = said(inline_svg(Drawing("roofline", "", roofline_figure(timed))))
    assert only.startswith("dequant fp4 4096 rows, sglang\n2.00 TFLOP/s, ")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a"b', "a\x00b", "a$b$", "]]>"])
def test_a_name_of_a_record_stays_text(name):
    with styled():
        figure = Figure(figsize=(2, 1))
        figure.suptitle(f"provider {name}")
    text = inline_svg(Drawing("x", name, figure))
    assert "<script" not in text
    assert f"provider {name.replace(chr(0), ' ')}" in "".join(ET.fromstring(text).itertext())


def test_the_same_figure_gives_the_same_bytes():
    assert drawn() == drawn.__wrapped__()


def test_both_halves_of_a_mark_say_the_same():
    timed = timed_kernels([kernel_record("flash_mla", cold=2_000, flops=4 * 10**6)])
    one, other = said(inline_svg(Drawing("roofline", "", roofline_figure(timed))))
    assert one == other
    assert one.startswith("dequant fp4 4096 rows, flash_mla\n")
