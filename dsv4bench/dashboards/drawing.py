"""A figure with its name and what it shows, and its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.style import grey
from dsv4bench.dashboards.table import printable
from dsv4bench.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXELS_PER_INCH = 150
UNSEEN = "_says "  # matplotlib leaves labels that begin with a line out of legends


NUMBER_POINTS = 7
DARK = 0.41  # of white: on a part below this its number is white


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with the name of its file and a sentence that says what it shows to who cannot see it."""

    name: str
    says: str
    figure: Figure

    @property
    def title(self) -> str:
        """The title of the figure itself, on one line."""
        title = self.figure.get_suptitle() or next((axes.get_title() for axes in self.figure.axes), "")
        return " ".join(title.split())


def hover(text: str) -> str:
    """Return the label of a single point that says `text` where a reader points at it, and is in no legend."""
    return f"{UNSEEN}{text}"


def number_part(axes: Axes, place: tuple[float, float], number: int, colour: str) -> None:
    """Write the number of an operation into a part of it, with a rim that keeps stripes off it."""
    from matplotlib.patheffects import withStroke

    style: dict[str, Any] = {"fontsize": NUMBER_POINTS, "path_effects": [withStroke(linewidth=2, foreground=colour)]}
    ink = "white" if grey(colour) < DARK else "#111111"  # which stays dark on a dark page, as the part stays light
    axes.text(*place, str(number), ha="center", va="center_baseline", color=ink, **style)


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Save a figure as `stem`.png and `stem`.svg and return their paths; the same figure gives the same bytes.

    UsageError if the files cannot be written.
    """
    make_printable(figure)
    paths = [stem.with_name(f"{stem.name}{ending}") for ending in (".png", ".svg")]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        with salted():
            figure.savefig(paths[0], dpi=PIXELS_PER_INCH, metadata={"Software": None})
            figure.savefig(paths[1], metadata={"Date": None})
    except OSError as error:
        raise UsageError(f"{stem.parent}: cannot write the figure: {error.strerror}") from None
    return paths


def make_printable(figure: Figure) -> None:
    """Take out of all texts what no file of SVG may hold; names in records may hold anything."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(printable_lines(text.get_text()))


def printable_lines(text: str) -> str:
    """Return a text of several lines without what no file of SVG may hold."""
    return "\n".join(map(printable, text.split("\n")))


@contextmanager
def salted(fonttype: str = "path") -> Iterator[None]:
    """Let matplotlib give the same ids to the same figure; with `fonttype` "none" text of an SVG stays text."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "dsv4bench", "svg.fonttype": fonttype}):
        yield
