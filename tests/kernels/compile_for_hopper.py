"""Compile the Triton kernels of the catalogue for an H200 on a machine without a GPU; one JSON line per launch.

The interpreter takes programs that the compiler refuses. Here the compiler itself runs, for compute capability 9.0, on
a driver that only says what the target is; nothing is launched. A process of its own: one process cannot do both.

    python -m tests.kernels.compile_for_hopper [all]
"""

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.kernels.contract import Provider


class PaperDriver:
    """A driver for a device that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(found: list[Any]) -> None:
    """Let every launch compile, keep what was compiled in `found`, and launch nothing."""
    original = jit.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        found.append(original(self, *args, grid=grid, warmup=True, **kwargs))
        return found[-1]

    jit.JITFunction.run = run


def launches(provider: Provider, tensors: dict[str, Any], found: list[Any]) -> list[Any]:
    found.clear()
    provider.build(tensors)()
    return list(found)


def main(examples: int | None) -> None:
    """Compile the first `examples` of every kernel (None: all), and say what became of them."""
    found: list[Any] = []
    driver.set_active(PaperDriver())
    compile_only(found)
    for name in CATALOGUE:
        for provider in kernel(name).providers:
            for example in kernel(name).examples[:examples] if "triton" in provider.needs.packages else ():
                tensors = kernel(name).inputs(example, torch.Generator().manual_seed(0))
                for compiled in launches(provider, tensors, found):
                    made = {"kernel": name, "function": compiled.metadata.name, "example": str(example)}
                    made["shared_bytes"] = compiled.metadata.shared
                    made["target"] = compiled.metadata.target.arch
                    sys.stdout.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main(None if sys.argv[1:] == ["all"] else 1)
