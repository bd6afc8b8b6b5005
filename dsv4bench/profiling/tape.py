"""A tape: the semantics of a CUDA graph on a CPU.

What was captured runs again on the same storages, and Python does not run again: a number that the step computed, a
tensor that it was handed and a branch that it took stay what they were at capture. What the capture of a CUDA graph
refuses (`tape_rules`) is a CaptureError that names the piece, the file and the line.

The tape holds nodes. A catalogue kernel's call is one, however many torch operations its reference takes: the
reference stands for a kernel, and may do what a kernel may. Any other torch operation is a node of its own, a kernel
with no other provider than torch (`compress_pool`) therefore as many as it dispatches. Views and bare allocations are
no nodes: the storages are those of the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dsv4bench.errors import CaptureError
from dsv4bench.kernels.contract import Kernel, Provider
from dsv4bench.profiling.dispatch_mode import DispatchMode
from dsv4bench.profiling.tape_nodes import (
    Call,
    Node,
    Storages,
    Writes,
    address,
    into,
    stands_for_a_kernel,
    tensors_of,
    writes_of_exchange,
    writes_of_kernel,
    writes_of_operation,
)
from dsv4bench.profiling.tape_rules import (
    Finding,
    Rule,
    broken_rule,
    fresh_memory,
    made_on_the_host,
    name_of,
    place_of_step,
    reads_the_host,
)
from dsv4bench.ranges import Mark, Range, Several
from dsv4bench.workloads.ops import Audit, Exchange

NOUN = "tape"
_ATEN = torch.ops.aten
_ALLOCATIONS = (_ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided)


class Operations(Protocol):
    """Where a step calls its operations: `workloads.ops.Ops`."""

    audit: Audit | None
    exchange: Exchange | None
    mark: Mark


class Tape:
    """One captured segment, with the interface that `torch.cuda.CUDAGraph` has for `capture.py`."""

    def __init__(self, engine: TapeEngine) -> None:
        self.storages = engine.storages
        self.nodes: list[Node] = []
        self.kernels: set[str] = set()  # of the catalogue, by name, whoever ran them
        self._engine = engine
        self._recorder: _Recorder | None = None
        # tensors that were there before, with the shape and place of their first use
        self._given: dict[int, tuple[torch.Tensor, torch.Size, Finding]] = {}

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "") -> None:
        """Record, and execute, what follows; `pool` and `capture_error_mode` say nothing on a CPU."""
        self._recorder = _Recorder(self, self._engine)
        self._recorder.begin()

    def capture_end(self) -> None:
        """Stop recording."""
        assert self._recorder is not None, "begin a capture first"
        self._recorder.end()
        self._recorder = None

    def replay(self) -> None:
        """Run every node again; CaptureError where a tensor has another shape now."""
        for tensor, shape, finding in self._given.values():
            if tensor.shape != shape:
                detail = f"{tuple(shape)} at capture, {tuple(tensor.shape)} now"
                rule = Rule("has another shape than at capture", finding.rule.mend, detail)
                raise CaptureError(Finding(finding.piece, finding.place, rule).text)
        for node in self.nodes:
            node.run()

    def reset(self) -> None:
        """Forget everything that was captured."""
        self.nodes.clear()
        self._given.clear()

    def given(self, tensor: torch.Tensor, piece: str, place: str) -> None:
        """Note a tensor that was there before the capture, at its first use."""
        if id(tensor) not in self._given:
            finding = Finding(piece, place, Rule("", "replays need the storages and shapes of the capture"))
            self._given[id(tensor)] = (tensor, tensor.shape, finding)


class TapeEngine:
    """Makes the tapes of one capture of a step whose operations are called through `ops`.

    With `findings` what a graph refuses is added to them and recorded nevertheless; without it is a CaptureError.
    """

    noun = NOUN
    executes = True  # recording runs what it records
    pool = None

    def __init__(self, ops: Operations, findings: list[Finding] | None = None) -> None:
        self.ops = ops
        self.storages = Storages()
        self.piece = ""
        self._findings = findings

    def graph(self) -> Tape:
        """Return an empty tape."""
        self.storages.begin_tape()
        return Tape(self)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Do all captures inside this: without gradients, under which other operations would be dispatched."""
        with torch.no_grad():
            yield

    def hear(self, piece: str) -> None:
        """Hear the name of the piece that is captured next."""
        self.piece = piece

    def settle(self) -> None:
        """Do nothing: a CPU has no queue to wait for."""

    def reserved_bytes(self) -> int:
        """Return the bytes that the tapes made so far hold for themselves."""
        return self.storages.bytes

    def refuse(self, rule: Rule) -> None:
        """Keep what a graph refuses, or raise it as a CaptureError."""
        finding = Finding(self.piece, place_of_step(), rule)
        if self._findings is None:
            raise CaptureError(finding.text)
        self._findings.append(finding)


class _HostReads(TorchFunctionMode):
    """Refuses what touches host memory and dispatches nothing that says so, and knows when an item is assigned."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self.assigning = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, keywords = getattr(func, "__name__", ""), kwargs or {}
        self._recorder.refuse(reads_the_host(name, args, keywords))
        self.assigning += name == "__setitem__"
        try:
            result = func(*args, **keywords)
        finally:
            self.assigning -= name == "__setitem__"
        self._recorder.refuse(made_on_the_host(name, keywords, result))
        return result


class _Recorder(DispatchMode):
    """Writes one tape: hears torch operations as a dispatch mode, kernels as the audit, ranges as a mark."""

    def __init__(self, tape: Tape, engine: TapeEngine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._engine = engine
        self._reads = _HostReads(self)
        self._own: dict[int, torch.Tensor] = {}  # tensors that operations of this tape returned
        self._numbers: dict[int, torch.Tensor] = {}  # tensors of one number that an assignment brought
        self._open: list[Range] = []
        self._opaque = False
        self._before: tuple[Audit | None, Exchange | None, Mark] | None = None

    def begin(self) -> None:
        """Listen."""
        ops = self._engine.ops
        self._before = ops.audit, ops.exchange, ops.mark
        ops.audit, ops.exchange, ops.mark = self.call, self.exchange, Several(ops.mark, self)
        self._reads.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Stop listening; who heard the operations before hears them again."""
        assert self._before is not None
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._reads.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._engine.ops.audit, self._engine.ops.exchange, self._engine.ops.mark = self._before

    def enter(self, rng: Range) -> None:
        """Open the range."""
        self._open.append(rng)

    def exit(self, rng: Range) -> None:
        """Close the innermost range."""
        self._open.pop()

    def refuse(self, rule: Rule | None) -> None:
        """Refuse what the step does, if it breaks a rule outside a reference that stands for a kernel."""
        if rule is not None and not self._opaque:
            self._engine.refuse(rule)

    def call(self, rng: Range, kernel: Kernel, provider: Provider, tensors: dict[str, Any], call: Call) -> None:
        """Launch a kernel: one node where a reference stands for the kernel that it defines."""
        self._tape.kernels.add(kernel.name)
        if not stands_for_a_kernel(kernel, provider):
            call()
            return
        self._unheard(call)
        self._write(kernel.name, tensors, call, writes_of_kernel(kernel), kernel=True)

    def exchange(self, name: str, tensors: dict[str, torch.Tensor], call: Call) -> None:
        """Run a collective, one node: a replay exchanges again, from and into the same storages."""
        self._unheard(call)
        self._write(name, tensors, call, writes_of_exchange(tensors), kernel=True)

    def _unheard(self, call: Call) -> None:
        self._opaque = True
        try:
            call()
        finally:
            self._opaque = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._opaque:
            return func(*args, **kwargs)
        names = (one.name for one in func._schema.arguments)
        arguments = dict(zip(names, args, strict=False)) | kwargs
        self.refuse(broken_rule(func, arguments) or self._fresh(func, arguments))
        # an alias keeps its shape when the step changes that of the original in place
        again = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        result = func(*args, **kwargs)
        self._keep(func, arguments, partial(func, *again[0], **again[1]), tensors_of(result))
        return result

    def _fresh(self, func: Any, arguments: Mapping[str, Any]) -> Rule | None:
        """Return the rule that host memory in a copy breaks; a number that fills a slice or a mask is no copy."""
        if func.overloadpacket is _ATEN.lift_fresh:
            number = arguments["self"].dim() == 0 and self._reads.assigning
            return None if number else fresh_memory("torch.tensor or the like")
        if func.overloadpacket is _ATEN.copy_ and id(arguments["src"]) in self._numbers:
            return fresh_memory("a number assigned to one element: use fill_")
        return None

    def _keep(self, func: Any, arguments: Mapping[str, Any], call: Call, outputs: list[torch.Tensor]) -> None:
        """Write what a replay must do again, and number the storages that came to be."""
        storages = self._engine.storages
        taken = {address(one) for one in tensors_of(arguments)}
        made = [one for one in outputs if address(one) not in taken]
        operation = func.overloadpacket
        if operation is _ATEN.lift_fresh:
            self._numbers |= {id(one): one for one in outputs if self._reads.assigning}
            made = outputs
        for one in made:
            storages.make(one)
        if func._schema.is_mutable:
            if torch.Tag.inplace_view not in func.tags:
                self._write(name_of(func), arguments, call, writes_of_operation(func))
        elif made and operation not in (*_ALLOCATIONS, _ATEN.lift_fresh):
            self._write(name_of(func), arguments, into(made, call), writes_of_operation(func), made)
        self._own |= {id(one): one for one in outputs}

    def _write(
        self,
        name: str,
        arguments: Mapping[str, Any],
        call: Call,
        writes: Writes,
        made: Sequence[torch.Tensor] = (),
        kernel: bool = False,
    ) -> None:
        piece, place, storages = self._engine.piece, place_of_step(), self._engine.storages
        for tensor in tensors_of(arguments):
            if id(tensor) not in self._own:
                self._tape.given(tensor, piece, place)
        seen = tuple(
            (label, storages.operand(leaf) if isinstance(leaf, torch.Tensor) else leaf)
            for label, value in arguments.items()
            for leaf in tree_leaves(value)
        )
        opened, results = self._open[-1] if self._open else None, tuple(map(storages.operand, made))
        node = Node(name, kernel, piece, place, opened, seen, results, call, writes.all, writes.unread)
        self._tape.nodes.append(node)
