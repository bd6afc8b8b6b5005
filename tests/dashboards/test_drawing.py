"""Figures as files."""

from matplotlib.figure import Figure

from dsv4bench.dashboards.drawing import Drawing, make_printable, save_figure
from dsv4bench.dashboards.plots import styled


def figure(title):
    with styled():
        found = Figure()
        found.subplots().set_title(title)
    return found


def test_a_drawing_has_the_title_of_its_figure_on_one_line():
    found = figure("only panel")
    assert Drawing("x", "says", found).title == "only panel"
    found.suptitle("of all\npanels")
    assert Drawing("x", "says", found).title == "of all panels"


def test_what_no_file_may_hold_is_taken_out_of_names_and_lines_stay(tmp_path):
    bad = figure("a\x00b\x1b\nc\ud800")
    make_printable(bad)
    assert bad.axes[0].get_title() == "a b \nc "
    save_figure(bad, tmp_path / "bad")


def test_a_dollar_sign_begins_no_formula(tmp_path):
    for path in save_figure(figure(r"my$\frac$.py"), tmp_path / "formula"):
        assert path.stat().st_size > 1000
