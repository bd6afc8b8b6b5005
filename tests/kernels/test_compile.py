"""Every Triton kernel compiles for an H200 with the Triton that is installed, GPU or not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4bench.kernels import CATALOGUE, kernel
from tests.interpreter import compiler_environment

SHARED_BYTES = 227 * 1024  # what a block may have on Hopper
ROOT = Path(__file__).parents[2]


def compiled(*arguments: str) -> list[dict]:
    """Run the compiler in a process without the interpreter; a failure shows what it said."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.compile_for_hopper", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=compiler_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def with_triton() -> set[str]:
    return {name for name in CATALOGUE if any("triton" in p.needs.packages for p in kernel(name).providers)}


@pytest.mark.parametrize("which", [(), pytest.param(("all",), marks=pytest.mark.slow)], ids=["first-examples", "all"])
def test_kernels_compile_for_hopper(which, triton_device):
    found = compiled(*which)
    assert {made["kernel"] for made in found} == with_triton()
    assert {made["target"] for made in found} == {90}
    assert [made for made in found if made["shared_bytes"] > SHARED_BYTES] == []
