"""Our dispatch modes hear every operation and bring no compiler along."""

import subprocess
import sys

from tests.source_tree import sources

SCRIPT = """
import sys, torch
from dsv4bench.profiling.dispatch_mode import DispatchMode
class Heard(DispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print(func.__name__)
        return func(*args, **(kwargs or {}))
with Heard():
    torch.ones(2) + 1
print("torch._dynamo" in sys.modules)
"""


def test_every_operation_is_heard_and_no_compiler_is_imported():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["ones.default", "add.Tensor", "False"]


def test_all_of_ours_are_such_modes():
    own = [source.name for source in sources() if "(TorchDispatchMode)" in source.path.read_text()]
    assert own == ["dsv4bench/profiling/dispatch_mode.py"]
