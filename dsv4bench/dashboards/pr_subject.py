"""The PR block's subject: what ran on what, with versions and commits, and what of it differs between the sides."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dsv4bench.dashboards.cells import mode_text
from dsv4bench.dashboards.markdown import code, prose
from dsv4bench.dashboards.trial_cells import side_records
from dsv4bench.results.record import Record
from dsv4bench.results.trials import SIDES
from dsv4bench.results.verdict import Verdict
from dsv4bench.units import format_count

VERSION_OF = {"gluon": "triton"}  # a provider that comes with another package
# facts that are said together as one state, or differ without anybody's doing
SAID = ("commit", "dirty", "diff", "gpu_other_processes")
DIGITS = 12  # of a commit
KERNELS = 3  # as many are named, more are counted


def first_line(verdicts: Sequence[Verdict]) -> str:
    """Return engine and providers with versions and commits, device, launch modes, replay and KV formats."""
    records = [record for verdict in verdicts for record in side_records(verdict.trial)]
    words = [
        _distinct(records, _bench),
        "engine " + _distinct(records, lambda record: record.engine),
        ", ".join(_providers(records)),
        _distinct(records, lambda record: _tree(record.environment.get("src"))),
        _distinct(records, _device),
        _distinct(records, lambda record: prose(mode_text(record))),
        _distinct(records, lambda record: prose(f"replay {record.variant.get('replay') or 'off'}")),
        "kv " + _distinct(records, lambda record: prose(str(record.variant.get("kv")))),
    ]
    return " · ".join(filter(None, words))


def difference_lines(same: Sequence[Verdict]) -> list[str]:
    """Return what both sides of a set say differently of their source, environment and providers, a point each.

    Of a side of which no cell ran nobody knows who runs its kernels: a point says which provider was asked for.
    """
    pairs = [found for one in same if len(found := side_records(one.trial)) == len(SIDES)]
    if not pairs:
        return []
    pair = max(pairs, key=lambda found: sum(map(_ran, found)))
    silent = [one for one in zip(same[0].trial.sides, pair, strict=True) if not _ran(one[1])]
    a, b = (_subject(record) | ({} if silent else _runners(record)) for record in pair)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    lines = [f"- {prose(name)}: {a.get(name) or '-'} -> {b.get(name) or '-'}" for name in names]
    return lines + [_asked_for(*one) for one in silent if len(silent) < len(SIDES)]


def _asked_for(side: str, record: Record) -> str:
    provider = code(str(record.variant.get("provider")))
    return f"- kernels of {code(side)}: by whom is not known, no cell of it ran to its end; {provider} was asked for"


def facts(record: Record) -> dict[str, str]:
    """Return what is known of a record's environment as text, by name; parts of a source tree as "src.commit"."""
    found: dict[str, object] = {}
    for name, value in record.environment.items():
        parts = {f"{name}.{part}": one for part, one in value.items()} if isinstance(value, dict) else {name: value}
        found |= {part: one for part, one in parts.items() if one not in (None, [])}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


def _subject(record: Record) -> dict[str, str]:
    """Return what may differ between the sides, as markdown: source trees whole, and other facts."""
    found = {"source tree": _tree(record.environment.get("src")), "code of dsv4bench": _state(record.environment)}
    return found | {
        name: code(text) for name, text in facts(record).items() if not name.startswith("src.") and name not in SAID
    }


def _ran(record: Record) -> bool:
    """Return whether a cell ran to its end, so that its providers are all that it calls."""
    return record.status in ("ok", "wrong")


def _runners(record: Record) -> dict[str, str]:
    """Return who runs each kernel, as markdown."""
    return {f"{kernel} by": code(provider) for kernel, provider in record.providers.items()}


def _distinct(records: Iterable[Record], text: Callable[[Record], str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, map(text, records))))


def _bench(record: Record) -> str:
    version = record.environment.get("dsv4bench")
    name = f"**dsv4bench {prose(str(version))}**" if version else "**dsv4bench**"
    return f"{name} {_state(record.environment)}".rstrip()


def _device(record: Record) -> str:
    driver = record.environment.get("driver")
    return prose(record.machine) + (f" (driver {prose(str(driver))})" if driver else "")


def _state(state: Mapping[str, Any]) -> str:
    """Return "at `c0ffee` with local changes `0123`"; nothing where no checkout is known."""
    if not state.get("commit"):
        return ""
    changes = f" with local changes {code(str(state.get('diff') or '?'))}" if state.get("dirty") else ""
    return f"at {code(str(state['commit'])[:DIGITS])}{changes}"


def _tree(src: Mapping[str, Any] | None) -> str:
    return "" if src is None else f"{code(str(src.get('name')))} {_state(src) or 'without a commit'}"


def _providers(records: Sequence[Record]) -> list[str]:
    """Return the providers with their versions, the one of most kernels first, and the kernels of the others."""
    kernels: dict[str, dict[str, None]] = {}
    for record in records:
        for kernel, provider in record.providers.items():
            kernels.setdefault(provider, {})[kernel] = None
    if not kernels:
        kernels = {str(record.variant.get("provider")): {} for record in records}
    ordered = sorted(kernels, key=lambda provider: -len(kernels[provider]))
    versions = {name: _version(records, name) for name in ordered}
    return [
        f"{code(name)}{versions[name]}" + (f" ({_kernels(list(kernels[name]))})" if number and kernels[name] else "")
        for number, name in enumerate(ordered)
    ]


def _version(records: Sequence[Record], provider: str) -> str:
    fact = VERSION_OF.get(provider, provider)
    found = _distinct(records, lambda record: prose(str(record.environment.get(fact) or "")))
    return f" {found}" if found else ""


def _kernels(names: Sequence[str]) -> str:
    return prose(", ".join(names)) if len(names) <= KERNELS else format_count(len(names), "kernel")
