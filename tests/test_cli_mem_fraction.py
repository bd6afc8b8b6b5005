"""`prefill --mem-fraction` as a user types it: a run on a CPU, the plan of another GPU, and what is refused."""

import json

import pytest

from dsv4bench.results.store import read_records
from tests.command_line import command_line, tiny_config

PAGE = 128 * (288 + 68)  # bytes of 256 tokens: the small model has one source, of ratio 2
H200 = ("--device-memory", "143771MiB", "--device", "cpu", "--geometry", "v41-flash")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return command_line(monkeypatch, capsys)


@pytest.fixture
def tiny(run, tmp_path):
    config = tiny_config(tmp_path)
    return lambda *words: run("prefill", "--geometry", config, "--extend", "4", "--prefix", "60", *words)


def test_every_batch_runs_and_says_what_is_left(tiny, tmp_path):
    found = tiny("--batch", "1,3", "--mem-fraction", "0.8", "--device-memory", "2GB", "--no-graph", "--out", "r")
    assert found.code == 0
    records = read_records(tmp_path / "r").records
    assert [record.status for record in records] == ["ok"] * 4
    for record in records:
        held = record.memory["weights_bytes"] + record.memory["pool_bytes"]
        assert 0.8 * 2e9 - PAGE < held <= 0.8 * 2e9
        assert 0 < 2 * 10**9 - held - record.memory["lowest_free_bytes"] < 10**7
    _, table = found.out.split("Memory at mem-fraction 0.8 (modelled), reuse off -> on")
    assert "no out-of-memory in 4 cells" in table
    assert "device memory 1.863 GiB: given, not measured" in table
    assert max(map(len, table.splitlines())) <= 80


def test_the_plan_of_an_h200_says_which_pools_it_would_have(run):
    words = ("--recipe", "dep4", "--dep", "2", "--batch", "64", "--prefix", "8k", "--extend", "1k", "--no-graph")
    found = run("prefill", "--dry-run", *H200, *words)
    assert found.code == 0
    _, table = found.out.split("Pools of a rank at mem-fraction 0.7, recipe dep4 (modelled)")
    values = table.splitlines()[2].split()  # by hand in tests/workloads/test_pool_size.py
    assert values == ["140.4", "GiB", "75.95", "GiB", "22.33", "GiB", "42.12", "GiB", "26253824", "28672"]
    assert max(map(len, found.out.splitlines())) <= 80
    plain = json.loads(run("prefill", "--dry-run", "--json", *H200, *words).out)
    assert {one["full_pool_tokens"] for one in plain} == {26_253_824}
    assert {one["recipe"] for one in plain} == {"dep4"}
    assert plain[0]["slack_bytes"] == plain[0]["device_bytes"] - plain[0]["weights_bytes"] - plain[0]["pool_bytes"]


def test_a_plan_without_a_fraction_says_nothing_of_pools(tiny):
    (one,) = json.loads(tiny("--dry-run", "--json", "--no-graph", "--reuse", "on").out)
    assert not {"mem_fraction", "full_pool_tokens", "slack_bytes"} & set(one)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--mem-fraction 1.5", "--mem-fraction 1.5: expected more than 0 and less than 1"),
        (
            "--mem-fraction 0.8",
            "--mem-fraction 0.8: a CPU has no device memory; expected --device-memory, e.g. 4GiB",
        ),
        (
            "--recipe dep5",
            "--recipe dep5: expected one of dep4, b200-dep4, b200-dep2, gb300-dep2 (did you mean 'dep4'?)",
        ),
    ],
    ids=["fraction", "no memory", "recipe"],
)
def test_a_slip_is_one_line(tiny, words, said):
    assert tiny("--device", "cpu", *words.split()).slip == said


def test_a_pool_too_small_names_the_batch_and_the_fraction_that_would_do(tiny):
    words = ("--device-memory", "2GB", "--recipe", "dep4", "--batch", "1,600", "--chunk", "4096")
    said = tiny(*words, "--mem-fraction", "0.2").slip
    assert said.startswith("--mem-fraction 0.2 --recipe dep4: --batch ")
    assert " takes " in said
    enough = said.rpartition("expected at least --mem-fraction ")[2]
    assert tiny("--dry-run", *words, "--mem-fraction", enough).code == 0


def test_weights_too_large_say_by_how_much(run):
    said = run("prefill", *H200, "--dep", "2", "--mem-fraction", "0.7", "--batch", "2").slip
    assert "143.2 GiB (modelled), 2.8 GiB more than the 140.4 GiB that are free" in said
