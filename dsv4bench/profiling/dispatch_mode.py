"""A dispatch mode of ours, which never meets torch.compile."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own gap
    """Hears torch operations; a subclass says what it does with each in `__torch_dispatch__`.

    torch wraps the `__torch_dispatch__` of other modes, to hide it from a compiler that it imports for that: some 5 s
    once a process, and part of the time of every operation (docs/measured-facts.md). Nothing is compiled under ours.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer torch's question whether to wrap; versions that do not ask it do as before."""
        return False
