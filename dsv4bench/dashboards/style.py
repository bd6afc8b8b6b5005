"""How values and colours look, on a terminal and in figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv4bench.units import format_in_unit, format_plus_minus

if TYPE_CHECKING:
    from dsv4bench.results.stats import Interval

HEAD = "bold"
ALARM = "bold red"
GAIN, DOUBT = "bold green", "yellow"
# the statuses that must be seen, a sentence that came out false, and verdicts
WORDS = {
    ALARM: ("WRONG", "wrong", "failed", "out_of_memory", "false", "SLOWER", "unexplained", "implausible"),
    GAIN: ("FASTER",),
    DOUBT: ("INCONCLUSIVE",),
}

# from the palette of Okabe and Ito, told apart by colour-blind readers and in grey
BEFORE_COLOUR = "#D55E00"
AFTER_COLOUR = "#0072B2"
PREDICTED_COLOUR = "#555555"
MUTED_COLOUR = "#888888"
# lines of one figure: colour, marker, size of the mark (the first is a ring around the marks of others), dash
LINES = (
    (BEFORE_COLOUR, "o", 8, "-"),
    (AFTER_COLOUR, "s", 4, "-"),
    ("#009E73", "^", 5, "--"),
    ("#CC79A7", "D", 4, "-."),
    ("#E69F00", "v", 5, ":"),
    ("#56B4E9", "P", 5, "--"),
    ("#000000", "X", 5, "-."),
)
# colour, and which part of its marks is filled; "": a function of the user's own
PROVIDERS = {
    "triton": (AFTER_COLOUR, "full"),
    "sglang": (BEFORE_COLOUR, "none"),
    "flash_mla": ("#009E73", "left"),
    "deep_gemm": ("#CC79A7", "right"),
    "gluon": ("#E69F00", "bottom"),
    "torch": (MUTED_COLOUR, "top"),
    "": ("#56B4E9", "full"),
}
# colours of stacked parts from the first on: neighbours differ in grey, too
STACK = ("#0072B2", "#E69F00", "#009E73", "#F0E442", "#D55E00", "#56B4E9", "#000000", "#CC79A7", "#666666")
OTHERS_COLOUR = "#DDDDDD"
# of one side, or of what changed; lines that lean are those of modelled panels alone
SIDE_HATCH, MODELLED_HATCH = "--", "//"  # dots would be a path each, 150 kB in an SVG


def grey(colour: str) -> float:
    """Return the grey that a colour "#RRGGBB" is printed as, from 0 for black to 1 for white (ITU-R BT.601)."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), parts, strict=True)) / 255


def highlights() -> dict[str, str]:
    """Return the style of words on a terminal, by a pattern that finds them."""
    return {rf"\b({'|'.join(words)})\b": style for style, words in WORDS.items()}


def plus_minus(interval: Interval | None, scale: int, signed: bool = False) -> str:
    """Return "12.34 ±0.05" in the unit of `scale` nanoseconds: the median and the distance to its farther bound.

    One value has no bounds: a single sample, or a modelled time.
    """
    if interval is None:
        return ""
    if interval.confidence == 0:
        return format_in_unit(interval.value, scale, signed)
    return format_plus_minus(interval.value, interval.half_width, scale, signed)


def arrow(before: object, after: object, *, always: bool = False) -> str:
    """Return "before -> after", or one value where both are the same (unless `always`); "-" for a side not there."""
    sides = ["-" if side is None else str(side) for side in (before, after)]
    if sides == ["-", "-"]:
        return ""
    return sides[0] if sides[0] == sides[1] and not always else " -> ".join(sides)


def yes(value: bool | None, otherwise: str) -> str:
    """Return "true" or "false", or `otherwise` for None."""
    return otherwise if value is None else str(value).lower()
