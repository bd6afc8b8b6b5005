"""A script for a fresh process: run kernels of whatever source tree comes first on the path, and hash their outputs.

`python digest_child.py JOBS RESULTS`. It is run as a file, not as a module of the package, so that an older tree can be
asked too: of the tree it uses `kernels.kernel`, a provider's `build`, and the layouts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from dsv4bench import kernels
from dsv4bench.kernels import layout


def main(jobs: Path, results: Path) -> None:
    """Run every job of a file that `digest_jobs.save_jobs` wrote and write a JSON list of what came out."""
    found = [outcome(job) for job in torch.load(jobs, weights_only=True)]
    root = str(Path(kernels.__file__).resolve().parents[1].parent)
    results.write_text(json.dumps({"root": root, "outcomes": found}), encoding="utf-8")


def outcome(job: dict[str, Any]) -> dict[str, Any]:
    """Return {"digests": output -> sha256}, or {"error": why there are none}."""
    try:
        return {"digests": digests(job)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def digests(job: dict[str, Any]) -> dict[str, str]:
    """Make one call and return the sha256 of every output."""
    layouts = {one.name: one for one in vars(layout).values() if isinstance(one, layout.KVLayout)}
    tensors: dict[str, Any] = {
        name: layouts[value["layout"]] if isinstance(value, dict) else value for name, value in job["tensors"].items()
    }
    provider = kernels.kernel(job["kernel"]).provider(job["provider"])
    with torch.no_grad():
        provider.build(tensors)()
    return {name: sha256(tensors[name]) for name in job["outputs"]}


def sha256(tensor: torch.Tensor) -> str:
    """Return the hash of a tensor's elements, byte for byte, in the order of its indices."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
