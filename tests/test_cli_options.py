"""Options of the command line carry their names: typer up to 0.27 took `metavar="KV"` for an option named --KV."""

import typing

import pytest

from dsv4bench import cli_check_counts, cli_options

OPTIONS = {name: alias for name, alias in vars(cli_options).items() if typing.get_origin(alias) is typing.Annotated}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_names_itself_in_lower_case(name):
    (option,) = OPTIONS[name].__metadata__
    names = [option.default, *option.param_decls]  # inside Annotated, typer keeps the first name where a default stood
    assert all(isinstance(one, str) and one == one.lower() for one in names), "no name: it would be derived"
    assert any(one.startswith("--") for one in names)


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("Samples", "[until the median is known to 1 %; on a CPU 3]"),
        ("Chunk", "[8192; recorded lengths on a CPU: 128]"),
    ],
)
def test_a_default_that_depends_on_the_device_is_told(name, default):
    (option,) = OPTIONS[name].__metadata__
    assert option.help.endswith(default)


def test_there_are_options():
    assert {"Batch", "Kv", "Fault", "Format"} <= set(OPTIONS)


def words(module, name):
    """The words of an option's metavar, `a|b`."""
    aliases = (alias for alias in vars(module).values() if typing.get_origin(alias) is typing.Annotated)
    options = (alias.__metadata__[0] for alias in aliases)
    return {word for one in options if one.default == name for word in (one.metavar or "").split("|")}


@pytest.mark.parametrize("name", ["--reuse", "--compressor", "--breaks", "--break-outputs", "--replay", "--path"])
def test_check_counts_asks_for_words_that_prefill_knows(name):
    assert words(cli_check_counts, name)
    assert words(cli_check_counts, name) <= words(cli_options, name)
