"""`dsv4bench check counts` on traces: recorded ones of an H200 and made ones, what is printed and the exit codes."""

import gzip
import json
import re
import shutil
from dataclasses import replace

import pytest

from dsv4bench.results.ledger_table import to_plain
from dsv4bench.results.schema import encode
from tests.command_line import command_line
from tests.profiling.replays import Replay, node, numbered
from tests.profiling.traces.timed_steps import OURS, Timed, dequants, kineto_text
from tests.results.synthetic import record
from tests.source_tree import ROOT

RECORDED = ROOT / "tests" / "data" / "traces"
FILES = {
    "one.toml": '[cells]\nreuse = "on"\n[[expect]]\nop = "dequant_compressed"\nby = "kv_source"\n'
    'kernels = { max = 1 }\nbecause = "one a source"\n',
    "two.toml": '[[expect]]\nop = "dequant_compressed"\nkernels = { min = 1, max = 2 }\n',
    "calls.toml": '[[expect]]\nop = "dequant_compressed"\nby = "kv_source"\ncalls = { max = 1 }\n',
    "kv.toml": '[[expect]]\nvariant = { kv = "v4" }\nkernels = 1\n',
    "graph.toml": "[cells]\ngraph = true\n[[expect]]\nkernels = 1\n",
    "sets.toml": "[[expect]]\nsets = 0\n",
}
ALL = frozenset({"kernels", "copies", "sets", "launches", "annotations"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of traces, recorded and made, and of expectations."""
    path = tmp_path_factory.mktemp("traces")
    for packed in RECORDED.glob("v41-flash-*.sqlite.gz"):
        (path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    for packed in RECORDED.glob("v41-flash-*.json.gz"):
        shutil.copy(packed, path / packed.name.removesuffix(".json.gz"))  # whatever the name
    odd = dequants((2,), steps=5)
    odd.range(OURS.format(layer=3, source=2), 32_000, 32_800).launched("dequant", 32_010, 32_100, 32_200)
    lost = dequants((2,))
    lost.call("cudaLaunchKernel", 9_500)
    made = {
        "three": dequants((2,)),
        "odd": odd,
        "unplaced": dequants((2,)).launched("setup", 8_000, 8_100, 8_200),
        "lost": lost,
        "host": Timed().range("step0", 0, 900),
        "foreign": Timed().range("model.layers.21", 0, 900).launched("_dequant", 10, 100, 200),
    }
    for name, one in made.items():
        (path / f"{name}.json").write_text(kineto_text(one.trace()))
    (path / "ranks").mkdir()
    for rank, layers in enumerate([(2, 3), (2,)]):
        (path / "ranks" / f"rank{rank}.json").write_text(kineto_text(dequants(layers).trace(rank=rank)))
    for name, text in FILES.items():
        (path / name).write_text(text)
    (path / "empty.json").touch()
    (path / "records").mkdir()
    (path / "records" / "records.jsonl").write_text(encode(record(1, "on")))
    (path / "records" / "three.json").write_text((path / "three.json").read_text())
    return path


@pytest.fixture
def run(monkeypatch, capsys, folder):
    """Run the command in the folder."""
    monkeypatch.chdir(folder)
    command = command_line(monkeypatch, capsys)
    return lambda *arguments: command("check", "counts", "--expect", *arguments)


# recorded on an H200


def recorded(provider, mode, reuse):
    return f"v41-flash-{provider}-{mode}-reuse-{reuse}" + (".sqlite" if provider == "triton" else "")


@pytest.mark.parametrize("mode", ["eager", "breakable"])
@pytest.mark.parametrize("provider", ["triton", "sglang"])
def test_reuse_after_holds_with_reuse_and_breaks_without(run, provider, mode):
    held = run("reuse_after", recorded(provider, mode, "on"))
    assert held.out.startswith(
        "reuse_after: all 4 expectations hold, in 1 step\nnot checked: entries 1, 2, 3, 4, about "
    )
    # torch.profiler tells no ranges of a replay, and some of SGLang's small kernels have no name that tells them
    assert held.code == (3 if (provider, mode) == ("sglang", "breakable") else 0)
    broken = run("reuse_after", recorded(provider, mode, "off"))
    assert broken.code == 1
    head, table = broken.out.split("\n\n")
    assert head.startswith("reuse_after: 2 of 4 expectations broken, in 1 of 1 step\n")
    title, columns, *rows = table.splitlines()
    how = "eager" if mode == "eager" else "graphs"
    assert title == f"Broken, {recorded(provider, mode, 'off')}: {how}, NVIDIA H200"
    assert columns.split() == ["entry", "op", "kv_source", "class", "expected", "found"]
    assert [line.split() for line in rows[:5]] == [
        *(["5", "dequant_compressed", str(source), "kernels", "1", "6"] for source in (2, 8, 14)),
        ["5", "dequant_compressed", "20", "kernels", "1", "20"],
        ["6", "dequant_compressed", "all", "kernels", "4", "38"],
    ]
    assert rows[5].startswith("entry 5: the layers of a kv_source reuse the rows")
    assert max(map(len, broken.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "reuse", "code"),
    [
        ("reuse_before", "off", 0),
        ("reuse_before", "on", 1),
        ("compressor_after", "on", 0),
        ("compressor_before", "on", 1),
    ],
)
@pytest.mark.parametrize("mode", ["eager", "breakable"])
def test_the_other_shipped_files_on_traces_of_ours(run, name, mode, reuse, code):
    assert run(name, recorded("triton", mode, reuse)).code == code


def test_the_fused_compressor_of_sglang_takes_two_kernels_where_ours_takes_one(run):
    found = run("compressor_after", recorded("sglang", "eager", "on"))
    assert found.code == 1
    assert re.findall(r"^ +4  (\w+) +(\d+)  operations +1 +(\d+)$", found.out, re.M) == [
        ("compress_c2", source, "2") for source in ("2", "8", "14")
    ]


def test_operations_without_a_place_are_named_and_may_be_allowed(run):
    asked = ("reuse_after", recorded("sglang", "breakable", "on"))
    found = run(*asked)
    assert found.err == "136 of 1044 operations have no place: --allow-unattributed accepts that\n"
    assert (
        "places: 908 of 1044 operations; method: launch correlation + kernel sequence\n"
        "  (inferred)\n"
        "without an operation or kv_source of the step: 60 vectorized_elementwise_kernel,\n"
        "  32 memcpy32_post, 12 elementwise_kernel_with_index, 32 others\n"
    ) in found.out
    allowed = run(*asked, "--allow-unattributed")
    assert (allowed.code, allowed.out, allowed.err) == (0, found.out, "")


def test_where_nothing_tells_layers_the_reason_is_said(run):
    found = run("one.toml", "foreign.json", "--infer", "off")
    assert (found.code, found.out) == (3, "")
    assert found.err == "foreign.json: no operation of it has a kv_source, which entries ask for\n"


# made by hand


def test_every_whole_step_is_checked(run):
    assert run("one.toml", "three.json").out == (
        "one.toml: the expectation holds, in 3 steps\n"
        "taken from the file, since the trace does not tell: reuse on\n"
        "places: 3 of 3 operations; method: launch correlation\n"
    )


def test_the_step_that_breaks_is_named_with_the_least_and_the_most(run):
    found = run("one.toml", "odd.json")
    assert found.code == 1
    assert found.out == (
        "one.toml: 1 of 1 expectation broken, in 1 of 5 steps\n"
        "taken from the file, since the trace does not tell: reuse on\n"
        "steps differ (3 from most): dequant_compressed of kv_source 2: 1..2 kernels\n"
        "places: 6 of 6 operations; method: launch correlation\n"
        "\n"
        "Broken, odd.json: eager, NVIDIA H200\n"
        "entry  op                  kv_source  class     expected  found  in steps\n"
        "    1  dequant_compressed          2  kernels  at most 1   1..2  3\n"
        "entry 1: one a source\n"
    )


def test_steps_that_differ_within_a_bound_hold_and_are_told(run):
    found = run("two.toml", "odd.json")
    assert found.code == 0
    assert "steps differ (3 from most): dequant_compressed of kv_source 2: 1..2 kernels\n" in found.out


def test_steps_can_be_chosen(run):
    found = run("one.toml", "odd.json", "--steps", "0-2")
    assert found.code == 0
    assert found.out.startswith("one.toml: the expectation holds, in 3 steps\n")
    assert "3 operations outside of the checked steps are not counted\n" in found.out


def test_every_rank_of_a_folder_is_checked(run):
    found = run("one.toml", "ranks")
    assert found.code == 1
    assert found.out.startswith("one.toml: 1 of 1 expectation broken, in 3 of 6 steps\n")
    assert "Broken, rank0.json: eager, NVIDIA H200, rank 0\n" in found.out
    assert re.search(r"kernels +at most 1 +2 +all\n", found.out)
    assert "rank1" not in found.out


def test_markdown_and_json(run):
    assert (
        "| 1 | dequant\\_compressed | 2 | kernels | at most 1 | 1..2 | 3 |"
        in run("one.toml", "odd.json", "--format", "md").out
    )
    found = json.loads(run("one.toml", "odd.json", "--json").out)
    assert (found["broken"], found["trusted"], found["method"]) == (1, {"reuse": ["on"]}, "launch correlation")
    assert [(one["cell"]["step"], one["found"], one["holds"]) for one in found["findings"]] == [
        (0, 1, True), (1, 1, True), (2, 1, True), (3, 2, False), (4, 1, True),
    ]  # fmt: skip
    first = found["steps"][0]
    assert (first["trace"], first["variant"], first["operations"], first["unplaced"]) == (
        "odd.json", {"graph": False}, 1, {},
    )  # fmt: skip


def test_records_win_in_a_folder_that_has_traces_beside_them(run):
    found = run("one.toml", "records")
    assert (found.code, found.out) == (0, "one.toml: the expectation holds, in 1 cell\n")


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        ("one.toml unplaced.json", 3, "1 of 4 operations have no place: --allow-unattributed accepts that"),
        ("one.toml lost.json", 3, "lost.json: its counts are wrong (launches-without-kernels: 1 kernel launches"),
        ("one.toml host.json", 4, "host.json: nothing to check: no device operation in a whole step (kernels-not-"),
        ("one.toml unplaced.json --allow-unattributed", 0, ""),
        ("one.toml lost.json --allow-unattributed", 0, ""),
        ("calls.toml three.json --allow-uncounted", 0, ""),
        ("sets.toml three.json", 0, ""),
        ("one.toml three.json --no-graph --reuse both", 0, ""),
    ],
)
def test_the_exit_code_says_what_came_of_it(run, typed, code, said):
    found = run(*typed.split())
    assert found.code == code
    assert found.err.startswith(said)
    assert len(found.err.splitlines()) == bool(said)


BAD = {
    "calls.toml three.json": "--expect calls.toml: entry 1: calls: a trace holds no calls; expected kernels, copies,",
    "kv.toml three.json": "--expect kv.toml: entry 1: variant: three.json does not tell kv, so nothing can be chosen",
    "graph.toml three.json": "three.json: no cell with graph true; here graph is false",
    "one.toml three.json --graph": "three.json: no cell with graph true; here graph is false",
    "one.toml three.json --reuse on": "--reuse: three.json does not tell reuse, so nothing can be chosen by it; it",
    "one.toml three.json --batch 3": "--batch: three.json is a trace, of a run that was made; expected no such option",
    "one.toml three.json --out new": "--out: three.json is a trace, of a run that was made; expected no such option",
    "one.toml three.json --geometry v41-flash --geometry a": "--geometry v41-flash,a: expected one for a trace",
    "one.toml three.json --infer v41": "--infer v41: no such geometry (did you mean 'v41-flash'?); known: off,",
    "one.toml three.json --map absent.toml": "--map absent.toml: cannot be read as TOML",
    "one.toml three.json --steps 9": "--steps 9-9: no such step; this trace has 0 to 2",
    "one.toml empty.json": "empty.json: byte 0: expected an SQLite export of nsys or the JSON of torch.profiler, found",
    "one.toml records --steps 3": "--steps: is about a trace; expected the PATH of one",
}


@pytest.mark.parametrize("typed", BAD)
def test_bad_input_gets_one_line_and_exit_code_2(run, typed):
    assert run(*typed.split()).slip.startswith(BAD[typed])


def test_a_record_that_names_the_trace_tells_its_places_and_switches(run, folder):
    graph, replay = (
        numbered(node("q_norm", "_rms_norm", layer=3), node("store", "_store", layer=8, kv_source=8)),
        Replay(),
    )
    replay.graph(graph)
    (folder / "replay.json").write_text(kineto_text(replay.trace))
    kept = record(capture_ledger=to_plain((graph,)), traces=["replay.json"])
    (folder / "replay.jsonl").write_text(encode(replace(kept, variant={**kept.variant, "graph": True})))
    (folder / "store.toml").write_text(
        '[[expect]]\nop = "store"\nvariant = { kv = "v41+fp4" }\nkv_source = 8\nkernels = 1\n'
    )
    asked = ("store.toml", "replay.json", "--ledger", "replay.jsonl")
    assert run(*asked, "--reuse", "on").code == 0
    found = run(*asked, "--reuse", "off")
    assert (found.code, found.err) == (2, "dsv4bench: replay.json: no cell with reuse off; here reuse is on\n")
    assert run(*asked[:2]).code != 0


def test_the_workflow_of_the_examples_checks_a_trace(run):
    text = (ROOT / "examples" / "github-actions.yml").read_text()
    found = re.findall(r"dsv4bench check counts (--expect reuse_after tests/data/traces/\S+) --format md [|] tee", text)
    ((_, name, path),) = [one.split() for one in found]
    assert run(name, ROOT / path).code == 0
