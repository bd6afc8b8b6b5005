"""All figures of a set of records, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4bench.dashboards.cells import both_ran, records_of
from dsv4bench.dashboards.compressor_plot import compressor_figure
from dsv4bench.dashboards.compressor_tables import timed_alone
from dsv4bench.dashboards.drawing import Drawing, save_figure
from dsv4bench.dashboards.kernel_plots import kernel_figures
from dsv4bench.dashboards.launches_plot import counted, launches_figure
from dsv4bench.dashboards.machine_plot import machines_figure
from dsv4bench.dashboards.memory_plot import memory_figure, with_memory
from dsv4bench.dashboards.mode_plot import mode_figure
from dsv4bench.dashboards.panels import MACHINE, sections
from dsv4bench.dashboards.plots import REUSE, step_time_figure, titled
from dsv4bench.dashboards.verdict_plot import speed_up_figure
from dsv4bench.results.compare import Pair, pairs
from dsv4bench.results.frame import comparison_frame, verdict_frame
from dsv4bench.results.noise_floor import noise_floor
from dsv4bench.results.record import Record
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import Verdict, judge

if TYPE_CHECKING:
    import pandas as pd

SIDES = {"reuse": REUSE, "compressor": ("torch path", "fused")}
# what of the cells of an A/B has a figure of its own, beside their settings
OF_TRIALS = ("session", "aa", "before_side", "after_side", "reuse")
STEP_TIME = "Step time against batch, before and after, with intervals; below it the difference and the predicted one."
BY_MODE = "Step time against batch, a line for each launch mode, with intervals; below it the difference to the first."
SPEED_UP = "Change of step time of every cell with its interval and verdict, over the noise floor where A/A trials ran."
LAUNCHES = "Launches of a forward for each kv_source, before and after, stacked by operation."
MEMORY = "Peak memory and workspace of every batch, before and after."
COMPRESSOR = "Time of one ratio-2 compressor alone against rows, torch path and fused, and the speed-up."
MACHINES = "Step time against batch on each machine, before and after, and the change; modelled machines are hatched."


def draw(records: Sequence[Record], folder: Path, with_model: bool = False) -> Iterator[Path]:
    """Save every figure that the records can fill in `folder` and yield its files, each as soon as it is there."""
    for one in figures(records, with_model):
        yield from save_figure(one.figure, folder / one.name)


def figures(records: Sequence[Record], with_model: bool = False) -> Iterator[Drawing]:
    """Yield every figure that the records can fill; modelled records are left out unless `with_model`.

    Of an A/B step time, speed-up, launches and memory; of other steps the same without a verdict, or step time by
    launch mode where one side was run; the compressor alone, where both were timed; several machines beside each
    other, modelled ones among them; kernels by all providers.
    """
    measured = [record for record in records if record.label != "modelled"]
    steps = [record for record in measured if record.kernel is None and record.ab is None]
    yield from _trial_figures(judge(trials(measured)), [floor.verdict for floor in noise_floor(trials(measured))])
    yield from _step_figures(steps)
    alone = records_of(timed_alone(pairs(steps, "compressor", "torch", "fused")))
    for end, _, same in _parts(alone, "compressor", "torch", "fused", "reuse", "mode", "breaks", "break-outputs"):
        yield Drawing(f"compressor-torch-and-fused{end}", COMPRESSOR, compressor_figure(same))
    yield from _machine_figures(records if with_model else measured)
    yield from kernel_figures(measured)


def _trial_figures(verdicts: Sequence[Verdict], floors: Sequence[Verdict]) -> Iterator[Drawing]:
    """Yield the figures of each set of trials; A/A trials alone have one of the noise, else they lie behind others."""
    compared = [one for one in verdicts if not one.trial.aa]
    frame, noise = verdict_frame(compared or floors), verdict_frame(floors)
    for end, part in sections(frame, *OF_TRIALS):
        same = [(compared or floors)[place].trial for place in part.index]
        beside, sides, switched = [Pair(trial.a, trial.b) for trial in same], same[0].sides, same[0].switched
        found = records_of(beside)
        if same[0].aa:
            title = titled(f"A/A, {sides[0]} on both sides", found)
            yield Drawing(f"ab-noise-floor{end}", SPEED_UP, speed_up_figure(part, noise.iloc[:0], title))
            continue
        title = titled(f"{sides[0]} against {sides[1]}", found, *switched)
        yield Drawing(f"ab-speed-up{end}", SPEED_UP, speed_up_figure(part, noise, title))
        yield Drawing(f"ab-step-time{end}", STEP_TIME, step_time_figure(part, title))
        yield from _what_it_takes(beside, sides, f"{end}", "ab-", *switched)


def _step_figures(steps: Sequence[Record]) -> Iterator[Drawing]:
    for end, frame, same in _parts(steps, "reuse", "off", "on"):
        if both_ran(same):
            yield Drawing(f"step-time{end}", STEP_TIME, step_time_figure(frame))
        else:
            yield Drawing(f"step-time{_by(frame)}{end}", BY_MODE, mode_figure([pair.any for pair in same]))
    switch, before, after = _switch(steps)
    for end, _, same in _parts(steps, switch, before, after):
        yield from _what_it_takes(same, SIDES[switch], end, "", switch)


def _what_it_takes(
    same: Sequence[Pair], sides: tuple[str, str], end: str, begin: str, *switched: str
) -> Iterator[Drawing]:
    """Yield launches and memory of the cells of one section, where they are known."""
    if found := counted(same):
        yield Drawing(f"{begin}launches{end}", LAUNCHES, launches_figure(found, sides, *switched))
    if found := with_memory(same):
        yield Drawing(f"{begin}memory{end}", MEMORY, memory_figure(found, sides, *switched))


def _machine_figures(records: Sequence[Record]) -> Iterator[Drawing]:
    """Yield a figure for each set of settings that several machines ran, reuse off and on, or that has a model."""
    steps = [record for record in records if record.kernel is None and record.ab is None]
    judged = [one for one in judge(trials(records)) if one.trial.switched == {"reuse"} and not one.trial.aa]
    frames = [one for one in (comparison_frame(steps), verdict_frame(judged)) if not one.empty]
    if not frames:
        return
    frame = _stacked(frames).dropna(subset=["before_ns", "after_ns"], how="all")
    for end, part in sections(frame, together=MACHINE):
        # simulated ranks of one machine are no other machine, and stand beside its real ones in no figure
        if part["machine"].nunique() > 1 or "modelled" in set(part["label"]):
            first = part.iloc[0]
            title = f"Attention stack of {first['geometry']} on several machines: kv {first['kv']}, reuse off and on"
            yield Drawing(f"machines{end}", MACHINES, machines_figure(part, title))


def _stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return frames one under the other, without the names of sides, which are reuse off and on in all."""
    import pandas as pd

    return pd.concat(frames, ignore_index=True).drop(columns=["before_side", "after_side"], errors="ignore")


def _parts(
    records: Sequence[Record], switch: str, before: str, after: str, *apart: str
) -> list[tuple[str, pd.DataFrame, list[Pair]]]:
    """Return the parts of a comparison that have a figure each: the end of its name, its frame and its pairs."""
    found = pairs(records, switch, before, after)
    frame = comparison_frame(records, switch, before, after)
    return [(end, part, [found[place] for place in part.index]) for end, part in sections(frame, *apart)]


def _switch(steps: Sequence[Record]) -> tuple[str, str, str]:
    """Return the switch whose two sides both ran: reuse before the compressor, and reuse where neither has both."""
    switches = (("reuse", "off", "on"), ("compressor", "torch", "fused"))
    return next((one for one in switches if both_ran(pairs(steps, *one))), switches[0])


def _by(frame: pd.DataFrame) -> str:
    """Return by what the lines of a run of one side differ, for the name of its file."""
    modes = [name for name in ("mode", "breaks", "break-outputs") if name in frame]
    several = {"mode": len(frame[modes].drop_duplicates()) > 1, "compressor": frame["compressor"].nunique() > 1}
    words = [name for name, differs in several.items() if differs]
    return f"-by-{'-and-'.join(words)}" if words else ""
