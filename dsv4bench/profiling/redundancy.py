"""Who did it twice: calls of a step whose kernel has had the same inputs before, unchanged since.

Inputs are told by identity, never by value: the same bytes of the same storages, in the same shape, that nothing has
written since, and equal numbers. So two equal tensors in two places are not found, and what is found is no chance. A
write is an output of a kernel, or what any other torch operation of the step changes or makes. Matrix products and
plain torch operations count as writers; only calls of kernels are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dsv4bench.kernels.contract import Call, Kernel, Provider
from dsv4bench.profiling.dispatch_mode import DispatchMode
from dsv4bench.profiling.tape import Operations
from dsv4bench.profiling.tape_nodes import Operand, Storages, address
from dsv4bench.ranges import Range
from dsv4bench.results.redundant import RepeatedRow

Span = tuple[int, int]  # first byte and the one behind the last
NEVER = 0  # the time of what the step did not write


def repeated(ops: Operations, run: Callable[[], None]) -> list[RepeatedRow]:
    """Run one step whose kernels are called through `ops` and return its repeated calls by operation and kv_source.

    Operations without any are left out. The bytes are the least that the repeated calls had to read (the kernel's
    cost). `kept` of them found the earlier result where they wrote theirs, untouched.
    """
    listener = _Listener()
    before, ops.audit = ops.audit, listener.call
    try:
        with torch.no_grad(), listener:
            run()
    finally:
        ops.audit = before
    return [row for row in listener.rows.values() if row.redundant]


@dataclass(slots=True)
class _Result:
    """What the latest call with certain inputs left: when, and where."""

    time: int
    outputs: tuple[Operand, ...]


class Writes:
    """When every byte of every storage was last written, in calls and operations since the step began."""

    def __init__(self) -> None:
        self.time = NEVER
        self._writes: dict[int, dict[Span, int]] = {}  # by storage

    def write(self, tensors: Iterator[torch.Tensor]) -> None:
        """Note that one operation wrote all of `tensors`."""
        self.time += 1
        for tensor in tensors:
            self._writes.setdefault(address(tensor), {})[_span(tensor)] = self.time

    def last(self, tensor: torch.Tensor) -> int:
        """Return when a byte between the tensor's first and last was written last; `NEVER` for none."""
        first, behind = _span(tensor)
        found = self._writes.get(address(tensor), {})
        return max((time for (start, end), time in found.items() if start < behind and first < end), default=NEVER)


class _Listener(DispatchMode):
    """Hears kernels as the audit of a step, and every other torch operation as a dispatch mode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: dict[tuple[str, int | None], RepeatedRow] = {}
        self._writes = Writes()
        self._results: dict[Hashable, _Result] = {}
        self._storages = Storages()

    def call(self, rng: Range, kernel: Kernel, provider: Provider, tensors: dict[str, Any], call: Call) -> None:
        """Launch a kernel; look for an earlier call with its inputs before, and note its outputs afterwards."""
        outputs = [tensors[name] for name in kernel.outputs if isinstance(tensors[name], torch.Tensor)]
        key = (kernel.name, provider.name, self._inputs(kernel, tensors))
        earlier = self._results.get(key)
        row = self.rows.setdefault((rng.op or "", rng.kv_source), RepeatedRow(rng.op or "", rng.kv_source, kernel.name))
        row.calls += 1
        with self._deaf():
            if earlier is not None:
                row.redundant += 1
                row.kept += self._kept(earlier, outputs)
                row.bytes_read_again += kernel.cost(tensors).bytes_read
            call()
        self._writes.write(iter(outputs))
        self._results[key] = _Result(self._writes.time, tuple(map(self._storages.operand, outputs)))

    @contextmanager
    def _deaf(self) -> Iterator[None]:
        """Hear no operation: what a reference does inside stands for its kernel."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]

    def _inputs(self, kernel: Kernel, tensors: Mapping[str, Any]) -> Hashable:
        names = [name for name in tensors if name not in kernel.outputs or name in kernel.updates]
        return tuple((name, self._identity(leaf)) for name in names for leaf in tree_leaves(tensors[name]))

    def _identity(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            return self._storages.operand(value), self._writes.last(value)
        return type(value), value

    def _kept(self, earlier: _Result, outputs: list[torch.Tensor]) -> bool:
        same = earlier.outputs == tuple(map(self._storages.operand, outputs))
        return same and all(self._writes.last(one) == earlier.time for one in outputs if one.numel())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._writes.write(_written(func, args, kwargs or {}, result))
        return result


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Iterator[torch.Tensor]:
    """Yield what an operation changed, by its schema, and the tensors that it made."""
    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | dict(kwargs)
    for one in func._schema.arguments:
        if one.alias_info is not None and one.alias_info.is_write:
            yield from _tensors(given.get(one.name))
    taken = {address(tensor) for tensor in _tensors(given)}
    fresh = func.overloadpacket is torch.ops.aten.lift_fresh  # takes what the host has just made
    yield from (tensor for tensor in _tensors(result) if fresh or address(tensor) not in taken)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _span(tensor: torch.Tensor) -> Span:
    """Return the bytes of a storage from the first to the last of a tensor; none for an empty one."""
    size, first = tensor.element_size(), int(tensor.storage_offset())
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((length - 1) * stride for length, stride in extents) if tensor.numel() else 0
    return first * size, (first + elements) * size
