"""One side of one pair of `dsv4bench ab` in a fresh process: all cells of the side, into a file of the same store.

`python child.py STARTER dsv4bench.profiling.ab_child JOB` takes a `Job` as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsv4bench.errors import DsvError
from dsv4bench.profiling import sweep
from dsv4bench.profiling.ab_experiment import Experiment, cell_of
from dsv4bench.profiling.session import open_session
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.store import Store, resume_store
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.sides import Switches, Two, in_groups, two_sides


@dataclass(frozen=True, slots=True)
class Job:
    """Which side of which pair to measure: the plan of both sides, what each of them sets, and where records go.

    `src` are the facts of the source tree whose packages this process takes first, or None.
    """

    experiment: Experiment
    arguments: PrefillArguments
    switches: dict[str, Switches]
    side: str
    pair: int
    place: int
    directory: str
    argv: tuple[str, ...]
    notes: tuple[str, ...]
    src: dict[str, Any] | None = None

    def text(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))

    def twos(self) -> list[Two]:
        """Return the cells of both sides."""
        return two_sides(cells(prefill_options(self.arguments)), self.switches["a"], self.switches["b"])


def parse_job(text: str) -> Job:
    """Read a job back from its text."""
    fields = json.loads(text)
    experiment = fields["experiment"]
    effect = experiment["min_effect"]
    fields["experiment"] = Experiment(**{**experiment, "min_effect": effect and MinEffect(**effect)})
    fields["arguments"] = PrefillArguments(**fields["arguments"])
    return Job(**{**fields, "argv": tuple(fields["argv"]), "notes": tuple(fields["notes"])})


def run_job(job: Job, store: Store) -> None:
    """Measure the side's cells, group after group, and keep each group's records at once."""
    options = prefill_options(job.arguments)
    session = open_session(options.device, options.samples, options.quick, job.argv, job.notes, job.src)
    in_turn = in_groups(job.twos())
    groups = [tuple(cell_of(two, job.side) for two in group) for group in in_turn]
    for records, group in zip(sweep.run(groups, session), in_turn, strict=True):
        for record, two in zip(records, group, strict=True):
            store.append(job.experiment.stamped(record, two, job.side, job.pair, job.place))


def main(text: str) -> int:
    """Do a job; what it cannot do at all is one line on stderr and exit code 1."""
    job = parse_job(text)
    try:
        with resume_store(Path(job.directory)) as store:
            run_job(job, store)
    except DsvError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
