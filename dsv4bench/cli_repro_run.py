"""What `dsv4bench repro` does after parsing: find the record, and write down how it is made again."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsv4bench.cli_report_run import read_all
from dsv4bench.dashboards.stored_cells import cell_words
from dsv4bench.dashboards.table import printable
from dsv4bench.errors import UsageError
from dsv4bench.results.comparability import MACHINE, STATE, known
from dsv4bench.results.compare import reached, without_place
from dsv4bench.results.pinned import pinned, source_option
from dsv4bench.results.record import Record
from dsv4bench.results.schema import encode
from dsv4bench.results.store import read_records
from dsv4bench.units import format_count

MOST_KEYS = 5
MOST_RUNS = 5
WIDTH = 80
VERSIONS = ("torch", "triton", "python", "dsv4bench")
# the options of prefill whose values make groups, each with the switch or length of a record that it sets
GROUP_SWITCHES = ("kv", "provider", "replay", "path", "dep-simulated", "chunk")
GROUP_LENGTHS = {"batch": "requests", "extend": "extend", "prefix": "prefix"}


def run_repro(row: str, folder: Path) -> None:
    """Print how the row is made again."""
    record, runs = find(row, folder)
    print("\n".join([*_other_runs(record.key, runs), *script(record)]))


def find(row: str, folder: Path) -> tuple[Record, list[Path]]:
    """Return the record that a row names, and where runs of its key lie, its own first; UsageError for none.

    A row is DIR:N, which asks for no other run, or the start of a key in `folder`: that of one key alone, whose newest
    record counts, and of those that no time limit left out where there are any.
    """
    place, colon, number = row.rpartition(":")
    if colon and number.isdecimal():
        records = read_records(Path(place)).records
        if not 1 <= int(number) <= len(records):
            raise UsageError(
                f"{row}: expected a line from 1 to {len(records)} of `dsv4bench show {place} --format jsonl`"
            )
        return records[int(number) - 1], []
    if row and Path(row).exists():
        raise UsageError(f"{row}: expected a row of it, {row}:N; `dsv4bench history {row}` shows keys")
    every = [(file, record) for file, record in read_all([folder]) if row and record.key.startswith(row)]
    found = list({encode(one[1]): one for one in every}.values())  # a copy is no other run
    keys = list(dict.fromkeys(record.key for _, record in found))
    if not found:
        typed = shlex.quote(row)
        raise UsageError(f"{typed}: no key of a record in {folder} begins so; `dsv4bench history {folder}` shows keys")
    if len(keys) > 1:
        some = ", ".join(keys[:MOST_KEYS])
        raise UsageError(f"{row}: {format_count(len(keys), 'key')} in {folder} begin so: {some}; expected more of one")
    newest_first = reached(found, lambda _: None, lambda one: one[1].reason)[::-1]
    runs: dict[object, Path] = {}
    for file, record in newest_first:  # each process of an A/B in fresh ones has a file of its own, and is no run
        runs.setdefault((record.ab or {}).get("session") or file, file)
    return newest_first[0][1], _places(list(runs.values()))


def _places(files: Sequence[Path]) -> list[Path]:
    """Return the folder of each distinct file; the file itself where the folder holds another of them."""
    distinct = list(dict.fromkeys(files))
    return [
        file if sum(other.is_relative_to(file.parent) for other in distinct) > 1 else file.parent for file in distinct
    ]


def _other_runs(key: str, runs: Sequence[Path]) -> list[str]:
    """Return which run of several is shown, and how others are."""
    if len(runs) < 2:
        return []
    own, *others = runs
    more = len(others) - MOST_RUNS
    lines = _said(f"{len(runs)} runs have this key; this is the newest, of {own}; for another one")
    lines += [f"#   {shlex.join(['dsv4bench', 'repro', key, str(other)])}" for other in others[:MOST_RUNS]]
    return [printable(line) for line in (*lines, *([f"#   and {more} more"] if more > 0 else []))]


def script(record: Record) -> list[str]:
    """Return lines for a shell: what the row is, the code to check out, the command, and as comments what must hold."""
    whole, alone = without_place(record.argv), pinned(own_group(record), record)
    facts = known(record) | {"driver": str(record.environment.get("driver") or "")}
    lines = [
        *_said(f"{record.key} of {record.created or 'an unknown time'}: {cell_words(record)}; {record.status}"),
        *_code(record),
        shlex.join(alone) if alone else "# the record does not say by which command it was made",
        *([] if whole == alone else _said(f"with all that ran then: {shlex.join(whole)}")),
        *_said(f"must be as it was: {_listed(facts, (*MACHINE, *STATE))}"),
        *_said(f"and the versions: {_listed(record.environment, VERSIONS)}"),
    ]
    return list(map(printable, lines))


def own_group(record: Record) -> list[str]:
    """Return the command with only those values of a prefill's axes that this record's group has.

    Cells of a group took turns and stay together; an option with one value stays as it was typed. The pools of
    `--mem-fraction` are sized for all cells of a sweep, so there all of them stay.
    """
    arguments = without_place(record.argv)
    if arguments[1:2] != ["prefill"] or "mem-fraction" in record.variant:
        return arguments
    own = {name: record.variant.get(name) for name in GROUP_SWITCHES}
    own |= {name: record.batch.get(field) for name, field in GROUP_LENGTHS.items()}
    for name, value in own.items():
        if value is not None and _several(typed_values(arguments, name)):
            arguments = _with_value(arguments, name, str(value))
    return arguments


def typed_values(arguments: Sequence[str], name: str) -> list[str]:
    """Return the values that an option was given, as `--name value` or `--name=value`."""
    found = []
    for place, argument in enumerate(arguments):
        if argument.startswith(f"--{name}="):
            found.append(argument.partition("=")[2])
        elif argument == f"--{name}":
            found += arguments[place + 1 : place + 2]
    return found


def _several(values: Sequence[str]) -> bool:
    return len(values) > 1 or any(sign in value for value in values for sign in (",", "..", "@"))


def _with_value(arguments: Sequence[str], name: str, value: str) -> list[str]:
    """Return the arguments with one value for an option that has several, where the first of them stood."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        named = not skip and (argument == f"--{name}" or argument.startswith(f"--{name}="))
        if named and f"--{name}" not in kept:
            kept += [f"--{name}", value]
        elif not named and not skip:
            kept.append(argument)
        skip = named and argument == f"--{name}"
    return kept


def _code(record: Record) -> Iterator[str]:
    """Return what to check out, and what of the code the record does not hold."""
    here, tree = record.environment, record.environment.get("src")
    yield (
        f"git checkout {shlex.quote(here['commit'])}"
        if here.get("commit")
        else "# no commit is known: it ran an installed package"
    )
    if here.get("dirty"):
        yield from _said(f"local changes ({here.get('diff') or 'no hash'}) lay over that commit and are not kept")
    if tree:
        folder = next(iter(typed_values(record.argv, source_option(record).removeprefix("--"))), tree["name"])
        if pinned(record.argv, record) != record.argv:
            yield from _said(f"{tree['name']} was commit {tree['commit']}, which the command names")
        else:
            yield from (
                [shlex.join(["git", "-C", folder, "checkout", tree["commit"]])]
                if tree["commit"]
                else _said(f"{tree['name']}: no commit")
            )
        if tree.get("dirty"):
            yield from _said(f"local changes ({tree.get('diff')}) of {tree['name']} are not kept")
    for name, start in (here.get("own_files") or {}).items():
        yield from _said(f"the file that provided {name} had a sha256 that begins with {start}")


def _listed(facts: dict[str, str], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {facts[name]}" for name in names if facts.get(name))


def _said(text: str) -> list[str]:
    """Return a text as comments."""
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
