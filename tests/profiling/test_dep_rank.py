"""One rank of a run: what it is told, with whom it runs together, and what rank 0 keeps."""

import os
import signal
import time

import pytest

from dsv4bench.profiling import dep_rank
from dsv4bench.profiling.dep_rank import Job, Keeper, parse_job, refused, trace_folder
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.results.store import open_store, read_records
from dsv4bench.units import GIB
from dsv4bench.workloads.options import PrefillArguments
from tests.profiling.small_groups import groups, session
from tests.profiling.thread_peers import on_ranks


def test_a_job_survives_its_text():
    job = Job(PrefillArguments(batch=["1", "2"], dep="2"), "run", ("dsv4bench", "prefill"), lost="rank 1: x")
    assert parse_job(job.text()) == job


HERE = {"dsv4bench": "1", "commit": "c", "diff": None, "torch": "2.11"}


def together(changes, typed=None, free=(GIB, GIB), monkeypatch=None, said=({}, {})):
    """Return what two ranks say to each other; rank 1's environment has `changes`."""
    plan = groups(dep="2", batch="2")

    def work(peers):
        own = HERE | (changes if peers.rank else {})
        arguments = PrefillArguments(**(typed or {} if peers.rank else {}))
        return refused(peers, session(environment=own), arguments, plan, said[peers.rank])

    monkeypatch.setattr(dep_rank, "free_bytes", lambda device: free[0])
    first, second = on_ranks(2, work)
    assert first == second
    return first


@pytest.mark.parametrize(
    ("changes", "typed", "said"),
    [
        ({}, None, None),
        ({"cpu": "another"}, None, None),
        ({"torch": "2.12"}, None, "--dep 2: rank 1 has torch 2.12, rank 0 has 2.11"),
        ({"diff": "abc"}, None, "--dep 2: rank 1 has diff abc, rank 0 has none"),
        ({}, {"dep_simulated": "3"}, "--dep 2: rank 1 has --dep-simulated 3, rank 0 has 1"),
        ({}, {"batch": ["2", "4"]}, "--dep 2: rank 1 has --batch 2,4, rank 0 has 1"),
        ({}, {"requests": "r.jsonl"}, "--dep 2: rank 1 has --requests r.jsonl, rank 0 has none"),
        ({"src": {"name": "sglang", "commit": "a"}}, None, "--dep 2: rank 1 has --src sglang a, rank 0 has none"),
    ],
    ids=[
        "alike",
        "another processor",
        "another torch",
        "other changes",
        "other arguments",
        "a list",
        "a file",
        "a tree",
    ],
)
def test_only_ranks_that_are_alike_run_together(changes, typed, said, monkeypatch):
    assert together(changes, typed, monkeypatch=monkeypatch) == said


@pytest.mark.parametrize("option", ["--shard", "--profile"])
def test_ranks_take_part_in_the_same_thing(option, monkeypatch):
    sides = ({option: "1/2"}, {option: "2/2"})
    assert together({}, monkeypatch=monkeypatch, said=sides) == f"--dep 2: rank 1 has {option} 2/2, rank 0 has 1/2"


def test_files_of_equal_names_must_hold_the_same_on_every_rank():
    """Requests of other lengths: the cells of one rank would be none of the other's."""

    def work(peers):
        own = groups(dep="2", batch="2", extend=["8", "4"][peers.rank])
        return refused(peers, session(environment=HERE), PrefillArguments(requests="r.jsonl"), own, {})

    said = "rank 1 plans other cells than rank 0; expected files of the same content (requests, geometry, kernels)"
    assert on_ranks(2, work) == [f"--dep 2: {said}"] * 2


def test_ranks_without_room_say_so_before_they_begin(monkeypatch):
    said = together({}, free=(1000,), monkeypatch=monkeypatch)
    assert said.startswith("--batch 2 --prefix 60 (8 new tokens each): about ")
    assert "500 B free" in said  # each rank of a CPU has its part of the memory


@pytest.fixture
def plan():
    return groups(dep="2", batch="1,2", reuse="on")


def test_finished_groups_are_kept_and_a_lost_rank_takes_the_next_one_with_it(plan, tmp_path):
    opened, receipt = session(), tmp_path / "receipt"
    with open_store(tmp_path / "run") as store:
        keeper = Keeper(plan, opened, store, str(receipt))
        first = [unmeasured(cell, opened, "skipped", "pretended") for cell in plan[0]]
        traces = trace_folder(tmp_path / "run", plan[0][1], first[1].key)
        traces.mkdir()
        keeper.keep(first)
        assert not receipt.exists()
        keeper.lose("rank 1: no more room", "out_of_memory")
        keeper.lose("rank 1: nothing is left to lose")
    assert receipt.exists()
    records = read_records(tmp_path / "run").records
    assert [(one.batch["requests"], one.status, one.reason) for one in records] == [
        *[(1, "skipped", "pretended")] * 2,
        *[(2, "out_of_memory", "rank 1: no more room")] * 2,
    ]
    assert {(one.ranks, one.variant["dep"], one.label) for one in records} == {(2, 2, "measured")}
    assert [one.traces for one in records] == [[], [traces.name], [], []]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("receipt", "said"), [("", 1), ("file", 0)], ids=["of torchrun", "of ours, which says it"])
def test_a_launcher_that_ends_rank_0_is_answered_with_what_is_kept(number, receipt, said, monkeypatch):
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    words, codes = [], []
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(os, "_exit", codes.append)
    job = Job(PrefillArguments(device="cpu"), "run", (), receipt=receipt)
    rank = dep_rank._Rank(job, (), None, None, dep_rank.Screen(None, words.append), None)
    try:
        dep_rank._let_rank_0_decide(0, rank._last_words)
        signal.raise_signal(number)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert codes == [1]
    assert words == [f"ended by {number.name}: finished groups are kept in run; --resume goes on"] * said
