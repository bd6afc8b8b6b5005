"""Where graphs are captured: what `capture.py` asks of CUDA, which a tape answers as well (`tape.TapeEngine`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Graph(Protocol):
    """What a capture fills: a CUDA graph or a tape."""

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        """Capture what follows."""

    def capture_end(self) -> None:
        """Stop capturing."""

    def replay(self) -> None:
        """Do again what was captured."""

    def reset(self) -> None:
        """Free what was captured."""


class Engine(Protocol):
    """Where graphs are captured; `executes` says whether capturing also runs what it captures."""

    @property
    def noun(self) -> str:
        """What it calls a graph."""

    @property
    def executes(self) -> bool:
        """Whether capturing runs what it captures."""

    @property
    def pool(self) -> Any:
        """The memory pool that its graphs share."""

    def graph(self) -> Graph:
        """Return an empty graph."""

    def around(self) -> AbstractContextManager[None]:
        """Do all captures of one step inside this."""

    def hear(self, piece: str) -> None:
        """Hear the name of the piece that is captured next."""

    def settle(self) -> None:
        """Wait for the device."""

    def reserved_bytes(self) -> int:
        """Return what its allocator holds."""


@dataclass(frozen=True, slots=True)
class CudaEngine:
    """Captures CUDA graphs on `stream` into the memory pool `pool`."""

    stream: torch.cuda.Stream
    pool: Any
    noun: str = "CUDA graph"
    executes: bool = False

    def graph(self) -> Graph:
        """Return an empty CUDA graph."""
        return torch.cuda.CUDAGraph()

    def around(self) -> AbstractContextManager[None]:
        """Make the stream the current one."""
        return on_stream(self.stream)

    def hear(self, piece: str) -> None:
        """Ignore the name: a refused capture says only that it was refused, and `_named` adds where."""

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def reserved_bytes(self) -> int:
        """Return what the allocator has reserved, its cache emptied."""
        return torch.cuda.memory_reserved()


@contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Make `stream` the current one, after what is queued on the current stream, which then waits for it."""
    around = torch.cuda.current_stream()
    stream.wait_stream(around)
    with torch.cuda.stream(stream):
        yield
    around.wait_stream(stream)
