"""What a mistyped command gets: one line that names what was typed, what was expected and the nearest right one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import typer

from dsv4bench.errors import nearest

# what parsing raises: click's UsageError, which newer versions of typer have inside themselves
NOT_TYPED_SO: type[Exception] = typer.BadParameter.__mro__[1]
NO_COMMAND = re.compile(r"No such command '(.*?)'")
EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")
KIND = re.compile(r"\bvalid (int|integer|float|number)\b")
MOST_OWNERS = 4  # an option of more commands is none that only another one has
KINDS = {"int": "a whole number", "integer": "a whole number", "float": "a number", "number": "a number"}


def mistake(error: Any, root: Any, typed: Sequence[str]) -> str:
    """Return the line for `error`, one of `NOT_TYPED_SO`, that parsing `typed` for the command `root` raised.

    E.g. "dsv4bench prefill --time-limt: no such option (did you mean '--time-limit'?)". What kind of error it is and
    what it names are click's, as much as all versions of it have in common; the command is found in `typed`, since not
    every version says it.
    """
    path, command = _command(root, typed)
    what, why = _slip(error, root, command, typed)
    return f"{' '.join(['dsv4bench', *path, *filter(None, [what])])}: {why}"


def _command(root: Any, typed: Sequence[str]) -> tuple[list[str], Any]:
    """Return the words of the command that was typed, as far as there is one, and the command."""
    path, command = [], root
    for word in typed:
        if word not in _commands(command):
            break
        path.append(word)
        command = _commands(command)[word]
    return path, command


def _commands(command: Any) -> Mapping[str, Any]:
    """Return the commands of a group, by name; a command has none."""
    return getattr(command, "commands", {})


def _slip(error: Any, root: Any, command: Any, typed: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong of what was typed behind the command, "" where it cannot be named, and why."""
    kind, said = type(error).__name__, str(error.message)
    if kind == "NoSuchOption":
        name = _as_typed(error.option_name, typed)
        owners = _owners(name, root)
        if 0 < len(owners) <= MOST_OWNERS:
            return name, f"no such option here, but of {', '.join(owners)}"
        return name, f"no such option{nearest(name, _options(command))}"
    if (kind == "BadOptionUsage" or EXTRA.match(said)) and (switched := _switched(command, typed)):
        return switched
    if kind == "BadOptionUsage":
        return error.option_name, "takes no value" if "not take" in said else "expected a value after it"
    if kind == "MissingParameter" and error.param is not None:
        return "", f"{_name(error.param)} is missing"
    if kind == "BadParameter" and error.param is not None:
        return _wrong_value(error.param, said, typed)
    if found := NO_COMMAND.match(said):
        return found[1], f"no such command{nearest(found[1], list(_commands(command)))}"
    if found := EXTRA.match(said):
        return found[1], "not expected here"
    return "", _in_a_line(said)


def _switched(command: Any, typed: Sequence[str]) -> tuple[str, str] | None:
    """Return a switch with the "on" or "off" typed behind it, which it does not take, and what was meant, or None."""
    flags = [param for param in command.params if getattr(param, "is_flag", False)]
    for name, value in pairwise(part for word in typed for part in word.split("=", 1)):
        flag = next((flag for flag in flags if name in (*flag.opts, *flag.secondary_opts)), None)
        if flag and value in ("on", "off"):
            meant = flag.opts if (name in flag.opts) == (value == "on") else flag.secondary_opts
            hint = f" (did you mean '{max(meant, key=len)}'?)" if meant else ", and is off where it is not typed"
            return f"{name} {value}", f"takes no value{hint}"
    return None


def _as_typed(name: str, typed: Sequence[str]) -> str:
    """Return the option as it was typed: of `-batch` click reads `-b`."""
    if name.startswith("--"):
        return name
    return next((word for word in typed if word.startswith(name)), name)


def _owners(option: str, command: Any) -> list[str]:
    """Return the commands below `command` that have exactly this option, each with the group it is in."""
    found = []
    for name, one in _commands(command).items():
        has_it = option in _options(one) and option != "--help"
        found += [name] * has_it + [f"{name} {inner}" for inner in _owners(option, one)]
    return found


def _options(command: Any) -> list[str]:
    """Return all names of a command's options."""
    params = [param for param in command.params if param.param_type_name == "option"]
    return [*(name for param in params for name in (*param.opts, *param.secondary_opts)), "--help"]


def _name(param: Any) -> str:
    """Return what a parameter is called on the command line, e.g. "--expect" or "PATH"."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name).strip("[]").upper()


def _wrong_value(param: Any, said: str, typed: Sequence[str]) -> tuple[str, str]:
    """Return an option with its value, or an argument's name, and what was expected."""
    values = [word for name in param.opts for word in _values(name, typed)]
    kind = KIND.search(said)
    return " ".join([_name(param), *values[-1:]]), f"expected {KINDS[kind[1]]}" if kind else _in_a_line(said)


def _values(option: str, typed: Sequence[str]) -> list[str]:
    """Return the values that were typed for an option, `--name value` or `--name=value`."""
    apart = [part for word in typed for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word])]
    return [after for word, after in pairwise(apart) if word == option]


def _in_a_line(said: str) -> str:
    return " ".join(said.split()).rstrip(".")
