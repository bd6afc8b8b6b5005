"""What `dsv4bench kernels` measures: kernels x cases x rows, each a group of cells that differ only in the provider."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4bench.errors import CellSkipped, UsageError, nearest
from dsv4bench.kernels import CATALOGUE, kernel, kernel_name
from dsv4bench.kernels.contract import Kernel, Provider
from dsv4bench.kernels.layout import LAYOUTS
from dsv4bench.workloads.axis import number_axis, word_axis
from dsv4bench.workloads.options import resolve_device, whole
from dsv4bench.workloads.providers import IN_A_FILE, PROVIDERS, own_file, own_files

KEY_DIGITS = 16
AUTO = "auto"  # every provider, the torch reference only where nobody else can run


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """What was typed; an empty text takes the default."""

    names: Sequence[str] = ()
    rows: Sequence[str] = ()
    kv: Sequence[str] = ()
    case: Sequence[str] = ()
    provider: Sequence[str] = (AUTO,)
    device: str = "auto"
    seed: str = "0"
    samples: str | None = None
    quick: bool = False


@dataclass(frozen=True, slots=True)
class KernelCell:
    """One kernel at one shape by one provider; `rows` is None for an example of a kernel that names no shapes."""

    kernel: str
    case: str
    rows: int | None
    shape: Any
    provider: str
    device: str
    seed: int
    samples: int | None
    quick: bool

    @property
    def group(self) -> str:
        """The content hash that the providers of one shape share: they are timed side by side."""
        return _hash(self._content())

    def key(self, commit: str) -> str:
        """Return the content hash with the provider and the measuring code's commit in it: what a resume skips by."""
        own = {"own_files": self.own_files} if self.own_files else {}
        return _hash(self._content() | {"provider": self.provider, "commit": commit} | own)

    @property
    def own_files(self) -> dict[str, str]:
        """The hash of the file that holds the provider, by the kernel's name; empty for a provider of the catalogue."""
        return own_files([(self.kernel, self.provider)])

    def of(self) -> Provider:
        """Return the provider; CellSkipped says why it cannot run here."""
        in_a_file = IN_A_FILE.fullmatch(self.provider)
        if in_a_file:
            return kernel(self.kernel).checking(own_file(*in_a_file.groups()))
        found = kernel(self.kernel).provider(self.provider)
        reason = found.needs.why_not(self.device)
        if reason is not None:
            raise CellSkipped(reason)
        return found

    def _content(self) -> dict[str, Any]:
        names = ("kernel", "case", "rows", "device", "seed", "samples", "quick")
        return {name: getattr(self, name) for name in names} | {"shape": repr(self.shape)}


KernelGroup = tuple[KernelCell, ...]


def kernel_names(words: Sequence[str]) -> tuple[str, ...]:
    """Return the catalogue's names of `words` (all of it for none), commas allowed; UsageError names the nearest."""
    found = [word.strip() for text in words for word in text.split(",")]
    try:
        return tuple(dict.fromkeys(map(kernel_name, found))) or tuple(CATALOGUE)
    except KeyError as error:
        raise UsageError(error.args[0]) from error


def kernel_cells(typed: KernelArguments, elsewhere: bool = False, ran_on: str = "") -> tuple[KernelGroup, ...]:
    """Return the groups in the order in which they run; UsageError where nothing is left to measure.

    On a CPU there are fewer rows, unless the cells are to run `elsewhere`, on a GPU. `ran_on` is the device, "cpu" or
    "cuda", of a machine on which they were run; none: one of this machine's.
    """
    device = ran_on or resolve_device(typed.device)
    names = kernel_names(typed.names)
    rows = number_axis("--rows", typed.rows) if typed.rows else ()
    layouts = word_axis("--kv", typed.kv, tuple(LAYOUTS)) if typed.kv else ()
    wanted = provider_words(typed.provider, names)
    seed, samples = whole("--seed", typed.seed, least=0), _samples(typed)
    quick = typed.quick or (device == "cpu" and typed.samples is None)
    where = "cuda" if elsewhere else device
    all_shapes = [(name, *found) for name in names for found in shapes(kernel(name), rows, layouts, where)]
    _expect_cases(typed.case, tuple(dict.fromkeys(case for _, case, _, _ in all_shapes)))
    groups = [
        tuple(
            KernelCell(name, case, count, shape, provider, device, seed, samples, quick)
            for provider in chosen(kernel(name), wanted, device)
        )
        for name, case, count, shape in all_shapes
        if not typed.case or case in typed.case
    ]
    found = tuple(group for group in groups if group)
    if not found:
        raise UsageError(f"no shape of {', '.join(names)} is left by --kv, --case and --provider; see `dsv4bench list`")
    return found


def _expect_cases(words: Sequence[str], known: Sequence[str]) -> None:
    for word in words:
        if word not in known:
            cases = ", ".join(filter(None, known)) or "none"
            raise UsageError(f"--case {word}: not known{nearest(word, tuple(known))}; known: {cases}")


def provider_words(texts: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the words of --provider: auto, all, a provider, or FILE.py:FUNCTION beside a single kernel."""
    words = tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",")))
    known = (AUTO, "all", *PROVIDERS)
    for word in words:
        in_a_file = IN_A_FILE.fullmatch(word)
        if in_a_file and len(names) != 1:
            raise UsageError(f"--provider {word}: a function of a file is one kernel's; name that kernel")
        if in_a_file:
            own_file(*in_a_file.groups())
        elif word not in known:
            raise UsageError(
                f"--provider {word}: not known{nearest(word, known)}; known: {', '.join(known)}, or FILE.py:FUNCTION"
            )
    return words


def chosen(found: Kernel, words: Sequence[str], device: str) -> tuple[str, ...]:
    """Return the names of a kernel's providers that `words` ask for, in the order of the words."""
    own = [provider.name for provider in found.providers]
    able = [p.name for p in found.providers if p.name != "torch" and p.needs.why_not(device) is None]
    meant = {"all": own, AUTO: [name for name in own if name != "torch" or not able]}
    spread = [name for word in words for name in meant.get(word, [word] if word in own or ":" in word else [])]
    return tuple(dict.fromkeys(spread))


def shapes(
    found: Kernel, rows: Sequence[int], layouts: Sequence[str], device: str
) -> Iterator[tuple[str, int | None, Any]]:
    """Yield (case, rows, shape): what the kernel's `bench` says, changed by what was asked for, or its examples.

    `layouts` replace the cases of a kernel whose cases are layouts; other kernels know nothing of them.
    """
    bench = found.bench
    if bench is None:
        yield from ((f"example {number}", None, shape) for number, shape in enumerate(found.examples, start=1))
        return
    by_layout = all(case in LAYOUTS for case in bench.cases)
    cases = layouts if layouts and by_layout else bench.cases
    counts = rows or ((bench.cpu_rows,) if device == "cpu" else bench.rows)
    yield from ((case, count, bench.shape(count, case)) for case in cases for count in counts)


def _samples(typed: KernelArguments) -> int | None:
    return None if typed.samples is None else whole("--samples", typed.samples, least=1)


def _hash(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
