"""Names, processes and threads of an nsys export as the codes of a `Trace`.

Processes and threads are packed into one signed number: 8 bits of hardware, 8 of virtual machine, 24 of process, 24 of
thread (measuring.md 7). Two processes with one id, of two containers, stay two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import NO_ID, Codes
from dsv4bench.profiling.traces.nsys_tables import Integers, Tables, counted, said

Code = npt.NDArray[np.int32]
_THREAD_BITS = 24
_ID_MASK = (1 << _THREAD_BITS) - 1
_STRINGS, _STRING_COLUMNS = "StringIds", ("id", "value")
# the API's version at the end of a call's name: cudaLaunchKernel_v7000, cudaLaunchKernelExC_v11060_ptsz; not cuInit_v2
_API_VERSION = re.compile(r"(?:_v\d{4,5}|_ptsz|_ptds)+$")
# the numbers of CUPTI's enumerations, in the words of torch.profiler's traces
_COPY_KINDS = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")


class Names:
    """Gives texts codes; `codes.values` are the strings of the trace."""

    def __init__(self, tables: Tables) -> None:
        self.codes = Codes()
        self._tables = tables
        table = tables.find(_STRINGS, _STRING_COLUMNS)
        self._registered = dict(tables.texts(table, *_STRING_COLUMNS)) if table else {}

    def known(self, ids: Integers) -> npt.NDArray[np.bool_]:
        """Return which of the ids name a text."""
        inverse, distinct = pd.factorize(ids)
        return np.array([int(one) in self._registered for one in distinct], dtype=bool)[inverse]

    def registered(self, ids: Integers, table: str, unnamed: str, text: Callable[[str], str] = str) -> Code:
        """Return the codes of the texts that `ids` name, through `text`; NO_ID becomes `unnamed`.

        An id that is not there is a name of its own, and is counted among the repairs with the `table`.
        """
        inverse, distinct = pd.factorize(ids)
        lacking = [int(one) for one in distinct if one != NO_ID and int(one) not in self._registered]
        if lacking:
            count = counted(int(np.isin(ids, lacking).sum()), "row")
            which = ", ".join(str(one) for one in sorted(lacking)[:5]) + (", ..." if len(lacking) > 5 else "")
            self._tables.repairs.append(f"{said(table)}: the names of {count} are missing ({_STRINGS} lacks {which})")
        codes = [
            self.codes[unnamed if one == NO_ID else text(self._registered.get(int(one), f"name {one} (missing)"))]
            for one in distinct
        ]
        return np.array(codes, dtype=np.int32)[inverse]

    def of(self, text: str) -> int:
        """Return the code of a text."""
        return self.codes[text]


class Ids:
    """Gives processes and threads codes, from the numbers into which the file packs them."""

    def __init__(self) -> None:
        self._processes, self._threads = Codes(), Codes()

    def processes(self, packed: Integers) -> Code:
        """Return the codes of the processes of packed ids, of a process or of a thread; NO_ID stays NO_ID."""
        return _coded(np.where(packed == NO_ID, NO_ID, packed & ~_ID_MASK), self._processes)

    def threads(self, packed: Integers) -> Code:
        """Return the codes of the threads of packed ids; NO_ID stays NO_ID."""
        return _coded(packed, self._threads)

    def process_ids(self) -> list[int]:
        """Return the operating system's id of each process."""
        return [_process_id(packed) for packed in self._processes.values]

    def process_texts(self) -> list[str]:
        """Return what each process is called: its id, with the machine where two have the same."""
        ids = self.process_ids()
        times = Counter(ids)
        return [
            str(pid) if times[pid] == 1 else f"{pid} of {packed >> 2 * _THREAD_BITS & 0xFFFF:#06x}"
            for pid, packed in zip(ids, self._processes.values, strict=True)
        ]

    def thread_texts(self) -> list[tuple[str, str]]:
        """Return what each thread and its process are called."""
        return [(str(_process_id(packed)), str(packed & _ID_MASK)) for packed in self._threads.values]


def call_name(name: str) -> str:
    """Return the name of an API call without the version of the API: `cudaLaunchKernel_v7000` is cudaLaunchKernel."""
    return _API_VERSION.sub("", name)


def copy_names(kinds: Integers, sources: Integers, targets: Integers, names: Names) -> Code:
    """Return the codes of the names of copies, as torch.profiler writes them: `Memcpy HtoD (Pageable -> Device)`."""
    return _named(
        (kinds, sources, targets),
        names,
        lambda kind, source, target: (
            f"Memcpy {_word(_COPY_KINDS, kind)} ({_word(_MEMORY_KINDS, source)} -> {_word(_MEMORY_KINDS, target)})"
        ),
    )


def set_names(kinds: Integers, names: Names) -> Code:
    """Return the codes of the names of sets, as torch.profiler writes them: `Memset (Device)`."""
    return _named((kinds,), names, lambda kind: f"Memset ({_word(_MEMORY_KINDS, kind)})")


def _named(numbers: tuple[Integers, ...], names: Names, text: Callable[..., str]) -> Code:
    if not len(numbers[0]):
        return np.empty(0, dtype=np.int32)
    distinct, inverse = np.unique(np.stack(numbers), axis=1, return_inverse=True)
    return np.array([names.of(text(*map(int, one))) for one in distinct.T], dtype=np.int32)[inverse.reshape(-1)]


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else "Unknown"


def _coded(values: Integers, codes: Codes) -> Code:
    inverse, distinct = pd.factorize(values)
    return np.array([NO_ID if one == NO_ID else codes[int(one)] for one in distinct], dtype=np.int32)[inverse]


def _process_id(packed: int) -> int:
    return packed >> _THREAD_BITS & _ID_MASK
