"""`prefill --profile torch|nsys`: a trace of one step of each cell of the largest group, each in its own process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dsv4bench.errors import DsvError, UsageError, nearest
from dsv4bench.profiling.nsys import (
    EXPORT,
    NO_NSYS,
    NO_NVTX,
    NO_RANGES,
    NO_REPORT,
    REPORT,
    export_command,
    keep_events,
    profile_command,
)
from dsv4bench.profiling.process import run_process
from dsv4bench.profiling.profile_pass import TOOLS, Job, Tool, in_words, jobs_of, trace_name
from dsv4bench.profiling.rank_traces import Recorder
from dsv4bench.workloads.cells import Cell, Group
from dsv4bench.workloads.options import PrefillArguments

TIMEOUT_S = 600
CPU_NOTE = "--profile {tool} on a CPU: ranges{more}, no device operation"
# what a process under nsys is given of the environment, all of which nsys writes into its report
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "VIRTUAL_ENV")
KEPT_PREFIXES = ("CUDA", "NVIDIA_", "TRITON_", "TORCH", "PYTHON", "OMP_", "DSV4BENCH_", "SGLANG_", "DG_", "FLASH")
KEPT_OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
KEPT_PREFIXES_OF_A_RANK = ("NCCL_", "GLOO_")
LAUNCHER = "TORCHELASTIC_"  # who has these meets others where torch's launcher says


@dataclass(frozen=True, slots=True)
class Profiles:
    """The names of the traces by the key of their cell, and what went wrong, one line a cell."""

    files: Mapping[str, Sequence[str]]
    failures: Sequence[str]


def check_profile(tool: str, device: str) -> str | None:
    """Return a line that must be told about `--profile tool` on this device; UsageError where it cannot be done."""
    if tool not in TOOLS:
        raise UsageError(f"--profile {tool}: expected one of {', '.join(TOOLS)}{nearest(tool, tuple(TOOLS))}")
    if tool == "nsys":
        missing = NO_NSYS if shutil.which("nsys") is None else None
        if device == "cpu" and importlib.util.find_spec("nvtx") is None:
            missing = missing or NO_NVTX
        if missing is not None:
            raise UsageError(f"--profile nsys: {missing}")
    return (
        CPU_NOTE.format(tool=tool, more=" and aten operations" if tool == "torch" else "") if device == "cpu" else None
    )


def profile_largest(
    plan: Sequence[Group],
    left: Sequence[Group],
    typed: PrefillArguments,
    tool: Tool,
    folder: Path,
    key: Callable[[Cell], str],
) -> Profiles:
    """Profile the cells of the group of most rows among those that are `left`, one process a cell."""
    files: dict[str, list[str]] = {}
    failures = []
    for cell, job in jobs_of(plan, left, typed, tool):
        try:
            files[key(cell)] = [_profiled(job, folder, trace_name(cell, key(cell)), cell.device)]
        except DsvError as error:
            failures.append(f"no trace of {in_words(cell)}: {error}")
    return Profiles(files, failures)


def recorder(host: str, environment: Mapping[str, str] = os.environ) -> Recorder:
    """Return what records a step of the rank that `environment` names; rank 0's processes are on `host`."""

    def record(job: Job, device: str, port: int) -> tuple[str, bytes]:
        meeting = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
        started = {name: text for name, text in environment.items() if not name.startswith(LAUNCHER)}
        with TemporaryDirectory() as folder:
            name = _profiled(job, Path(folder), f"rank{environment['RANK']}", device, started | meeting)
            return name, (Path(folder) / name).read_bytes()

    return record


def _profiled(job: Job, folder: Path, name: str, device: str, environment: Mapping[str, str] = os.environ) -> str:
    """Make one trace and return the name of its file in `folder`; DsvError says why there is none."""
    program, job = [sys.executable, "-m", "dsv4bench.profiling.profile_pass"], replace(job, starter=os.getpid())
    if job.tool == "torch":
        made = folder / f"{name}.json.gz"
        run_process([*program, replace(job, file=str(made)).text()], environment, TIMEOUT_S)
        return made.name
    nsys = str(shutil.which("nsys"))
    with TemporaryDirectory() as scratch:  # a report holds environment variables: only what is clean leaves it
        report = Path(scratch) / name
        run_process(profile_command(nsys, report, [*program, job.text()], device), reduced(environment), TIMEOUT_S)
        made = _export(nsys, report)
        shutil.move(made, folder / made.name)
    return made.name


def _export(nsys: str, report: Path) -> Path:
    """Return the cleaned export of a report."""
    if not report.with_name(report.name + REPORT).exists():
        raise DsvError(NO_REPORT)
    run_process(export_command(nsys, report), reduced(os.environ), TIMEOUT_S)
    made = report.with_name(report.name + EXPORT)
    if not keep_events(made):
        raise DsvError(NO_RANGES)
    return made


def reduced(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment a process under nsys needs."""
    names, prefixes = (*KEPT, *KEPT_OF_A_RANK), (*KEPT_PREFIXES, *KEPT_PREFIXES_OF_A_RANK)
    return {name: text for name, text in environment.items() if name in names or name.startswith(prefixes)}
