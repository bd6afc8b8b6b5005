"""A script for a fresh process: run kernels of whatever source tree comes first on the path, and hash their outputs.

`python child.py STARTER digest_child.py RESULTS JOB...`. It is run as a file, not as a module of the package, so that
an older tree can be asked too: of the tree it uses `kernels.kernel`, a provider's `build`, the layouts, and the classes
that a job names. RESULTS is written line by line, as JSON: where the tree is, then what came of each job. The process
ends early where an error has spoilt the device: the jobs behind it need another one.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from dsv4bench import kernels
from dsv4bench.kernels import layout


def main(results: Path, jobs: Sequence[Path]) -> None:
    """Run the jobs that `digest_jobs.save_jobs` wrote, one after another, and write a line for each."""
    with results.open("w", encoding="utf-8") as file:
        for line in chain([{"root": str(Path(kernels.__file__).resolve().parents[2])}], map(outcome, jobs)):
            file.write(json.dumps(line) + "\n")
            file.flush()
            if "error" in line and spoilt():
                return


def outcome(path: Path) -> dict[str, Any]:
    """Return {"digests": output -> sha256}, or {"error": why there are none}."""
    job: dict[str, Any] = {}
    try:
        job = torch.load(path, weights_only=True)
        return {"digests": digests(job)}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a function of the user's may even exit
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{frame.filename}:{frame.lineno}: " for frame in frames if frame.filename == job.get("file")]
        return {"error": f"{own[-1] if own else ''}{type(error).__name__}: {error}".splitlines()[0]}


def spoilt() -> bool:
    """Return whether an earlier error has left the device unable to do anything."""
    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own gap
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def digests(job: dict[str, Any]) -> dict[str, str]:
    """Make one call and return the sha256 of every output."""
    tensors = {name: made(value) for name, value in job["tensors"].items()}
    with torch.no_grad():
        call(job, tensors)
    return {name: sha256(tensors[name]) for name in job["outputs"]}


def call(job: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Make the call: of a kernel's provider, or of a function in a file of the user's."""
    if "file" in job:
        spec = importlib.util.spec_from_file_location("own", job["file"])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        getattr(module, job["provider"])(**tensors)
    else:
        kernels.kernel(job["kernel"]).provider(job["provider"]).build(tensors)()


def made(value: Any) -> Any:
    """Return what `digest_jobs.plain` made plain, as this tree has it."""
    if not isinstance(value, dict):
        return value
    if "layout" in value:
        return {one.name: one for one in vars(layout).values() if isinstance(one, layout.KVLayout)}[value["layout"]]
    return getattr(importlib.import_module(value["module"]), value["class"])(**value["fields"])


def sha256(tensor: torch.Tensor) -> str:
    """Return the hash of a tensor's elements, byte for byte, in the order of its indices."""
    # torch calls one element contiguous at any stride
    flat = tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,))
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
