"""A drawing as SVG within a page: its colours follow those of the page, and its points and bars say their values."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from dsv4bench.dashboards.drawing import UNSEEN, Drawing, make_printable, printable_lines, salted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SVG, LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
HREF = f"{{{LINK}}}href"
REFERENCE = re.compile(r"url\(#")
# black, white and greys become those of the page, which is light or dark
PAGE_COLOURS = {
    **dict.fromkeys(("#000000", "black"), "currentColor"),
    **dict.fromkeys(("#ffffff", "white"), "var(--paper)"),
    **dict.fromkeys(("#555555", "#888888"), "var(--soft)"),
    **dict.fromkeys(("#dddddd", "#bbbbbb", "#b0b0b0"), "var(--faint)"),
}
COLOUR = re.compile("|".join(PAGE_COLOURS))
PIXELS_PER_POINT = 96 / 72


def inline_svg(drawing: Drawing) -> str:
    """Return a drawing as an <svg> for a page that defines --paper, --soft and --faint.

    Text stays text, ids begin with the drawing's name, and points and bars have a <title> with their values. The same
    drawing gives the same bytes.
    """
    make_printable(drawing.figure)
    hovers = _hovers(drawing.figure)
    stream = io.StringIO()
    with salted(fonttype="none"):
        drawing.figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", LINK)
    root = ET.fromstring(stream.getvalue())
    for parent in list(root.iter()):
        for child in [one for one in parent if one.tag in (_tag("metadata"), _tag("style"))]:
            parent.remove(child)  # a style would be that of the whole page
        _say(parent, hovers.get(parent.get("id", ""), []))
    for element in root.iter():
        _fit_in(element, drawing.name)
    _head(root, drawing)
    return ET.tostring(root, encoding="unicode")


def _tag(name: str) -> str:
    return f"{{{SVG}}}{name}"


def _head(root: ET.Element, drawing: Drawing) -> None:
    """Give the drawing its name for who cannot see it, and its size."""
    width = float(root.attrib.pop("width").removesuffix("pt")) * PIXELS_PER_POINT
    del root.attrib["height"]
    root.set("style", f"width: {width:.0f}px")
    root.set("role", "img")
    root.set("aria-label", printable_lines(f"{drawing.says} {drawing.title}"))


def _fit_in(element: ET.Element, name: str) -> None:
    """Give an element ids of its own drawing, and the colours of the page."""
    for key, value in element.attrib.items():
        if key == "id":
            element.set(key, f"{name}-{value}")
        elif key == HREF:
            element.set(key, f"#{name}-{value.removeprefix('#')}")
        else:
            value = REFERENCE.sub(f"url(#{name}-", value)
            element.set(key, COLOUR.sub(lambda found: PAGE_COLOURS[found[0]], value) if key == "style" else value)


def _say(group: ET.Element, texts: list[str]) -> None:
    """Add a text to each mark of a group; to none where the group draws another number of them.

    Marks that are filled by half are drawn twice: one half of all, then the other of all.
    """
    marks = list(group.iter(_tag("use"))) or group.findall(_tag("path"))
    if len(marks) in (len(texts), 2 * len(texts)):
        for mark, text in zip(marks, texts * 2, strict=False):
            ET.SubElement(mark, _tag("title")).text = printable_lines(text)


def _hovers(figure: Figure) -> dict[str, list[str]]:
    """Name the points and bars of a figure and return what each of them says."""
    from matplotlib.container import BarContainer, ErrorbarContainer

    found: dict[str, list[str]] = {}
    for place, axes in enumerate(figure.axes):
        for number, one in enumerate(axes.containers):
            name = f"values-{place}-{number}"
            if isinstance(one, ErrorbarContainer) and one.lines[0] is not None:
                one.lines[0].set_gid(name)
                found[name] = _points(axes, one)
            elif isinstance(one, BarContainer):
                for bar, patch in enumerate(one.patches):
                    patch.set_gid(f"{name}-{bar}")
                    size = patch.get_width() if one.orientation == "horizontal" else patch.get_height()
                    found[f"{name}-{bar}"] = [_text(one, f"{size:.5g}")]
        for number, line in enumerate(axes.lines):
            if str(line.get_label()).startswith(UNSEEN):
                line.set_gid(f"point-{place}-{number}")
                found[f"point-{place}-{number}"] = [str(line.get_label()).removeprefix(UNSEEN)]
    return found


def _points(axes: Axes, container: Any) -> list[str]:
    """Return what each point of an errorbar says: its label, place, value and bounds."""
    line, _, stems = container.lines
    bounds = [sorted(end[1] for end in segment) for segment in stems[0].get_segments()]
    across, what = _shared(axes, "x"), _shared(axes, "y")
    points = zip(line.get_xdata(), line.get_ydata(), bounds, strict=True)
    return [
        _text(container, f"{y:.5g} ({low:.5g} to {high:.5g}): {what}\nat {x:.4g}: {across}")
        for x, y, (low, high) in points
    ]


def _text(container: Any, value: str) -> str:
    label = str(container.get_label())
    return value if label.startswith("_") else f"{label}\n{value}"


def _shared(axes: Axes, axis: str) -> str:
    """Return the label of an axis, or of one of the panels that share it."""
    grouper = axes.get_shared_x_axes() if axis == "x" else axes.get_shared_y_axes()
    panels = [axes, *grouper.get_siblings(axes)]
    labels = (one.get_xlabel() if axis == "x" else one.get_ylabel() for one in panels)
    return next((label for label in labels if label), "")
