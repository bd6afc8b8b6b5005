"""What the capture of a CUDA graph refuses, told from the torch operation that asks for it, on any device.

Three kinds of things: a value that the host reads, an output whose size depends on data, and a copy of fresh host
memory to the device. Torch tags its operations with the first two; the third shows as `lift_fresh`, which is how a
tensor made of Python data enters.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# whose frames are never the step's: torch, the tape and what calls it, and the dispatch of operations
_NOT_THE_STEP = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "workloads" / "ops.py"),
)
# what reads a tensor on the host without dispatching an operation on a CPU
HOST_READS = frozenset({"tolist", "numpy", "__array__", "__repr__", "cpu"})
# what makes a tensor where `device` says
FACTORIES = frozenset(
    {"arange", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "zeros"}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Why something does not fit in a graph, and how to mend it, in a few words each.

    `detail` are the names or values of one occurrence; two rules that differ only there are the same.
    """

    what: str
    mend: str
    detail: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """What is wrong, with the detail."""
        return f"{self.what} ({self.detail})" if self.detail else self.what


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a step that a graph cannot hold: `place` is file and line, `piece` the part of the step."""

    piece: str
    place: str
    rule: Rule

    @property
    def text(self) -> str:
        """One line for an error."""
        return f"{self.piece}: {self.place}: {self.rule.text}; {self.rule.mend}"


HOST_READ_MEND = "keep the value on the device, or make this part a break"
DATA_SIZE_MEND = "use a fixed size and a mask (torch.where, masked_fill), or make this part a break"
_PUTS = (torch.ops.aten.index_put_, torch.ops.aten.index_put)
FRESH_MEMORY_MEND = "build the tensor before capture and refresh it in place, or fill one on the device"


def host_read(name: str) -> Rule:
    """Return the rule that a call of `name` (e.g. "tolist") breaks."""
    return Rule("reads a value to the host", HOST_READ_MEND, name)


def reads_the_host(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Rule | None:
    """Return the rule that a call breaks which reads a tensor on the host and dispatches nothing on a CPU, or None."""
    moved = name == "to" and any(isinstance(one, str) and one == "cpu" for one in (*arguments, *keywords.values()))
    return host_read(name) if moved or name in HOST_READS else None


def made_on_the_host(name: str, keywords: Mapping[str, Any], made: Any) -> Rule | None:
    """Return the rule that a call breaks which makes a tensor on the host where a GPU runs the step, or None.

    That is one without a device, or with the word "cpu": a step names the device of its inputs. A tensor of one number
    may lie on the host, where torch takes it for a number.
    """
    if name not in FACTORIES or "out" in keywords or keywords.get("device") not in (None, "cpu") or not made.dim():
        return None
    return Rule("makes a tensor in host memory", "name the device of the inputs: device=x.device", name)


def fresh_memory(name: str) -> Rule:
    """Return the rule that an operation breaks which copies host memory that a replay does not refresh."""
    return Rule("copies fresh host memory to the device", FRESH_MEMORY_MEND, name)


def name_of(func: Any) -> str:
    """Return what an aten operation is called, without the name of its default overload."""
    return str(func.__name__).removesuffix(".default")


def broken_rule(func: Any, arguments: Mapping[str, Any]) -> Rule | None:
    """Return the rule that an aten operation with these arguments breaks, by torch's tags, or None."""
    name = name_of(func)
    if torch.Tag.data_dependent_output in func.tags:
        return host_read(name)
    sized = torch.Tag.dynamic_output_shape in func.tags or func.overloadpacket in _PUTS
    if sized and _size_depends_on_data(func.overloadpacket, arguments):
        return Rule("has a size that depends on data", DATA_SIZE_MEND, name)
    return None


def _size_depends_on_data(operation: Any, arguments: Mapping[str, Any]) -> bool:
    aten = torch.ops.aten
    if operation is aten.index:
        return _has_mask(arguments["indices"])
    if operation in _PUTS:  # with one value a mask is a masked fill, which has no size
        return arguments["values"].numel() != 1 and _has_mask(arguments["indices"])
    return not (operation is aten.repeat_interleave and arguments.get("output_size") is not None)


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def place_of_step() -> str:
    """Return "file:line" of the innermost code that is neither torch's nor the tape's, relative to the project."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_STEP):
        frame = frame.f_back
    return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _short(name: str) -> str:
    for root in (PACKAGE_ROOT, Path.cwd()):
        if Path(name).is_relative_to(root):
            return str(Path(name).relative_to(root))
    return name
