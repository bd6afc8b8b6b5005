"""The documents tell the truth: links lead somewhere, tables agree with the code, examples run."""

import re
import runpy
import shlex
from collections import Counter
from importlib import import_module

import pytest
import typer

from dsv4bench.cli import app
from dsv4bench.results.counts import OPERATIONS
from dsv4bench.workloads.axis import number_axis
from dsv4bench.workloads.geometry import geometry
from tests.source_tree import ROOT, is_module

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")

SAYS = {
    "00_one_kernel": "torch: runs on a CPU",
    "01_layers_and_sources": "together 38\nafter, one per source: {2: 1, 8: 1, 14: 1, 20: 1} together 4",
    "02_a_shared_head": "layer 3: reuse the head of (427, 1, 512)\nlayer 8: dequantise the head of (427, 1, 512)",
    "03_plan_run_frame": "1            2   1\n3            2   1",
    "04_a_slow_kernel": "27 us in each of 80 calls add 1% to a step of 216 ms",
}


def table_rows(page: str, first_column: str) -> list[list[str]]:
    """Return the cells of the table of a page whose head begins with a word."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    body = lines[begin + 2 :]
    rows = body[: next((i for i, line in enumerate(body) if not line.startswith("|")), len(body))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_that_a_page_names_exists(page):
    named = re.findall(r"`((?:dsv4bench|tests|docs|examples)/[\w./]+)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_imports_that_a_page_shows_work(page):
    shown = re.findall(r"^from (dsv4bench[\w.]*) import (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    wanted = [(module, name) for module, names in shown for name in names.split(", ")]
    real = [name for module, name in wanted if is_module(f"{module}.{name}") or hasattr(import_module(module), name)]
    assert real == [name for _, name in wanted]


def commands(group: typer.core.TyperGroup, before: str = "") -> dict[str, typer.core.TyperCommand]:
    """Return every command by what is typed, those of a group too: "show", "check counts"."""
    found = {}
    for name, command in group.commands.items():
        inner = commands(command, f"{before}{name} ") if isinstance(command, typer.core.TyperGroup) else {}
        found |= {f"{before}{name}": command} | inner
    return found


COMMANDS = commands(typer.main.get_command(app))
WORKFLOW = ROOT / "examples" / "github-actions.yml"
TYPED = [
    (page.relative_to(ROOT).as_posix(), re.split(" #| [|] ", line)[0])
    for page in [*PAGES, WORKFLOW]
    for line in re.findall(r"^ *(?:\$ )?(dsv4bench .+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize(("page", "line"), TYPED, ids=[line.strip() for _, line in TYPED])
def test_a_command_that_a_page_shows_can_be_typed(page, line):
    _, *words = shlex.split(line)
    command = next(name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS)
    arguments = words[len(command.split()) :]
    known = {option for parameter in COMMANDS[command].params for option in parameter.opts + parameter.secondary_opts}
    assert {word.split("=")[0] for word in arguments if word.startswith("-")} <= known | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_that_a_page_names_exist(page):
    ours = {
        option for command in COMMANDS.values() for one in command.params for option in one.opts + one.secondary_opts
    }
    others = {"--help", "--version", "--install-completion", "--torch-backend"}
    named = set(re.findall(r"`(--[a-z][a-z-]+)", page.read_text(encoding="utf-8")))
    assert named - ours - others == set()


@pytest.mark.parametrize("row", table_rows("docs/cli.md", "written"), ids=lambda row: row[0])
def test_the_axis_table_is_what_the_parser_does(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.txt").write_text("7 9\n", encoding="utf-8")
    written, meaning = row[0].strip("`"), row[1]
    expected = [7, 9] if written.startswith("@") else [int(number) for number in re.findall(r"\d+", meaning)]
    assert list(number_axis("--batch", [written])) == expected


def test_the_layer_table_is_the_geometry():
    found = []
    for span, ratio, kv_source, index_sources in table_rows("docs/step.md", "layers"):
        first, last = (int(end) for end in re.split("-|, ", span))
        sources = set() if index_sources == "none" else {int(source) for source in index_sources.split(", ")}
        found += [
            (layer, int(ratio.split()[0]), None if kv_source == "none" else int(kv_source), layer in sources)
            for layer in range(first, last + 1)
        ]
    layers = geometry("v41-flash").layers
    assert found == [(kind.layer, kind.ratio, kind.kv_source, kind.owns_index) for kind in layers]


def test_the_dequant_table_is_the_geometry():
    layers = geometry("v41-flash").layers
    before = Counter(kind.kv_source for kind in layers if kind.ratio)
    off, on = table_rows("docs/step.md", "kv_source")
    assert [int(cell) for cell in off[1:]] == [*before.values(), before.total(), len(layers)]
    assert [int(cell) for cell in on[1:]] == [1] * len(before) + [len(before), len(layers)]


def operations_of_the_step() -> set[str]:
    """Return the operations that the files of the step name: the word after the layer, or the first of a product."""
    names = ("step.py", "attention_core.py", "packed_core.py", "sources.py", "projections.py", "mhc.py")
    files = [ROOT / "dsv4bench" / "workloads" / name for name in names]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return set(re.findall(r'\(\s*kind,\s*"(\w+)"', text)) | set(re.findall(r'\("(\w+)", \w+, weights', text))


def test_the_operations_of_the_step_are_listed():
    listed = {name for row in table_rows("docs/step.md", "who") for name in re.findall(r"`(\w+)`", row[1])}
    assert listed == operations_of_the_step() - {"load_input", "zero_padding"}


def test_an_expectation_can_name_every_operation_of_the_step():
    moe = (ROOT / "dsv4bench" / "workloads" / "moe.py").read_text(encoding="utf-8")
    behind = set(re.findall(r'"(moe_\w+)"', moe))
    assert sorted(OPERATIONS) == sorted(operations_of_the_step() | behind | {"break_copy", "other"})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_what_it_should(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert SAYS[path.stem] in capsys.readouterr().out


def test_examples_are_numbered_without_a_gap():
    assert [int(path.stem[:2]) for path in EXAMPLES] == list(range(len(EXAMPLES)))
