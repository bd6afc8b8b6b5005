"""Peaks: what each GPU can do at best and what host it stands on, figure by figure with its source and date.

`peaks.toml` beside this file holds them; a user's file of the same form replaces or extends them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4bench.errors import UsageError, nearest
from dsv4bench.units import BYTE_RATES, CLOCKS, COUNT, FLOP_RATES, POWERS, SIZES, parse_quantity, split_quantity

SHIPPED = Path(__file__).with_name("peaks.toml")
# every figure of a device with the units that it may be written in
FIGURES: dict[str, Mapping[str, float]] = {
    "hbm_rate": BYTE_RATES,
    "hbm_size": SIZES,
    "bf16": FLOP_RATES,
    "fp8": FLOP_RATES,
    "fp4": FLOP_RATES,
    "sms": COUNT,
    "l2_size": SIZES,
    "sm_clock": CLOCKS,
    "power": POWERS,
}
HOST_FIGURES: dict[str, Mapping[str, float]] = {"submit_ratio": COUNT}
PARTS = ("value", "source", "date")
TABLES = ("device", "host")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its value in bytes, bytes/s, FLOP/s, Hz, watts or as a plain number, and where it is from."""

    value: float
    text: str
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: the word that names it here, what its driver calls it, its kind of host, and its figures."""

    word: str
    names: tuple[str, ...]
    host: str
    figures: Mapping[str, Figure]

    def value(self, figure: str) -> float:
        """Return a figure's value; UsageError where it is not known, saying how to give it."""
        found = self.figures.get(figure)
        if found is None:
            unit = next(iter(FIGURES[figure]))
            example = f'{figure} = "8 {unit}"' if unit else f'{figure} = "148"'
            raise UsageError(f"peaks of {self.word}: no figure {figure}; expected it in --peaks FILE, as {example}")
        return found.value

    @property
    def cycles_per_s(self) -> float:
        """Clock cycles of all SMs together in a second, at the highest clock."""
        return self.value("sms") * self.value("sm_clock")


@dataclass(frozen=True, slots=True)
class Peaks:
    """All devices and kinds of host that are known."""

    devices: Mapping[str, Device]
    hosts: Mapping[str, Figure]

    def device(self, word: str) -> Device:
        """Return the device called `word`; UsageError names the nearest one."""
        found = self.devices.get(word.lower())
        if found is None:
            known = tuple(self.devices)
            raise UsageError(f"--to {word}: no such device{nearest(word.lower(), known)}; known: {', '.join(known)}")
        return found

    def of_machine(self, name: str) -> Device:
        """Return the device whose driver calls it `name`; UsageError where no one is, saying how to add it."""
        found = next((device for device in self.devices.values() if name in device.names), None)
        if found is None:
            known = ", ".join(name for device in self.devices.values() for name in device.names)
            raise UsageError(f"{name}: no peaks of this GPU; name it under `names` in --peaks FILE; known: {known}")
        return found


def read_peaks(file: Path | None = None) -> Peaks:
    """Return the shipped peaks, with those of a user's `file` over them.

    UsageError, one line, for a file that cannot be read, and for a table, a key or a unit that is not known.
    """
    peaks = _merged(Peaks({}, {}), _toml(SHIPPED), SHIPPED.name, SHIPPED.name)
    return peaks if file is None else _merged(peaks, _toml(file), f"--peaks {file}", file.name)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--peaks {file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--peaks {file}: not TOML: {error}") from None


def _merged(peaks: Peaks, found: dict[str, Any], where: str, source: str) -> Peaks:
    _check_keys(found, TABLES, where)
    devices, hosts = dict(peaks.devices), dict(peaks.hosts)
    for word, table in _tables(found, "host", where):
        _check_keys(table, HOST_FIGURES, f"{where}: host.{word}")
        hosts[word] = _figure(table, "submit_ratio", HOST_FIGURES, f"{where}: host.{word}", source)
    for word, table in _tables(found, "device", where):
        devices[word] = _device(devices.get(word), word, table, f"{where}: device.{word}", source)
        if devices[word].host not in hosts:
            hint = nearest(devices[word].host, tuple(hosts))
            raise UsageError(
                f"{where}: device.{word}.host: no such host {devices[word].host!r}{hint}; known: {', '.join(hosts)}"
            )
    return Peaks(devices, hosts)


def _tables(found: dict[str, Any], name: str, where: str) -> list[tuple[str, dict[str, Any]]]:
    tables = found.get(name, {})
    wrong = (
        [word for word, table in tables.items() if not isinstance(table, dict)] if isinstance(tables, dict) else [""]
    )
    if wrong:
        raise UsageError(f"{where}: {name}: expected tables such as [{name}.b300]")
    return [(word.lower(), table) for word, table in tables.items()]


def _device(known: Device | None, word: str, table: dict[str, Any], where: str, source: str) -> Device:
    _check_keys(table, ("names", "host", *FIGURES), where)
    if known is None and "host" not in table:
        raise UsageError(f'{where}: a new device needs its kind of host; expected host = "x86" or another')
    device = known or Device(word, (), "", {})
    names, host = table.get("names", device.names), table.get("host", device.host)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{where}.names: expected a list of what the driver calls it, found {names!r}")
    if not isinstance(host, str):
        raise UsageError(f"{where}.host: expected a word, found {host!r}")
    own = {name: _figure(table, name, FIGURES, where, source) for name in FIGURES if name in table}
    return replace(device, names=tuple(names), host=host, figures={**device.figures, **own})


def _figure(
    table: dict[str, Any], name: str, units: Mapping[str, Mapping[str, float]], where: str, source: str
) -> Figure:
    """Read a figure: a text such as "8 TB/s", or a table of value, source and date."""
    found = table.get(name)
    parts: dict[str, Any] = (
        found if isinstance(found, dict) else {"value": str(found) if type(found) in (int, float) else found}
    )
    _check_keys(parts, PARTS, f"{where}.{name}")
    if "value" not in parts or not all(isinstance(text, str) for text in parts.values()):
        raise UsageError(
            f'{where}.{name}: expected a text such as "8 TB/s", or value, source and date; found {found!r}'
        )
    try:
        value = parse_quantity(parts["value"], units[name])
    except ValueError as error:
        raise UsageError(f"{where}.{name}: {error}{_unit_hint(parts['value'], tuple(units[name]))}") from None
    return Figure(value, parts["value"], parts.get("source", source), parts.get("date", ""))


def _unit_hint(text: str, known: tuple[str, ...]) -> str:
    """Return the nearest unit to the one written, where that is not the fault of the number."""
    unit = split_quantity(text)[1]
    same = [name for name in known if name.lower() == unit.lower()]
    return "" if unit in known else nearest(unit, same or known)


def _check_keys(table: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            words = tuple(known)
            raise UsageError(f"{where}: no key {key!r}{nearest(key, words)}; known: {', '.join(words)}")
