"""What was typed of --mem-fraction, --recipe and --device-memory, and what it makes of cells."""

from dataclasses import replace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.units import GIB
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.memory_options import memory_notes, refuse_given_memory
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.pool_size import MemoryPlan
from dsv4bench.workloads.rank_weights import RECIPES


def options(**typed):
    return prefill_options(PrefillArguments(**{"device": "cpu", **typed}))


@pytest.mark.parametrize(
    ("typed", "plan", "chunk"),
    [
        ({}, None, 8192),
        ({"mem_fraction": "0.5", "device_memory": "4GiB"}, MemoryPlan(0.5, 1, device_bytes=4 * GIB), 8192),
        ({"mem_fraction": ".5", "device_memory": "4e9", "dep": "2"}, MemoryPlan(0.5, 2, device_bytes=4 * 10**9), 8192),
        ({"recipe": "dep4", "device_memory": "4 GB"}, MemoryPlan(0.7, 4, 0, 0, "dep4", 4 * 10**9), 4096),
        (
            {"recipe": "b200-dep2", "mem_fraction": "0.3", "device_memory": "1024 MiB", "chunk": "256"},
            MemoryPlan(0.3, 2, 0, 0, "b200-dep2", GIB),
            256,
        ),
    ],
    ids=["nothing", "fraction", "ranks", "recipe", "what is typed goes first"],
)
def test_what_was_meant(typed, plan, chunk):
    found = options(**typed)
    assert (found.memory, found.chunk) == (plan, (chunk,))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"mem_fraction": "1"}, "--mem-fraction 1: expected more than 0 and less than 1"),
        ({"mem_fraction": "0"}, "--mem-fraction 0: expected more than 0 and less than 1"),
        ({"mem_fraction": "nan"}, "--mem-fraction nan: expected more than 0 and less than 1"),
        ({"mem_fraction": "70"}, "--mem-fraction 70: expected more than 0 and less than 1 (did you mean 0.7?)"),
        ({"mem_fraction": "most"}, "--mem-fraction most: expected a number between 0 and 1, e.g. 0.7"),
        ({"device_memory": "4GiB"}, "--device-memory 4GiB: expected with --mem-fraction or --recipe"),
        (
            {"mem_fraction": "0.7"},
            "--mem-fraction 0.7: a CPU has no device memory; expected --device-memory, e.g. 4GiB",
        ),
        (
            {"mem_fraction": "0.7", "device_memory": "4 GiG"},
            "--device-memory 4 GiG: expected bytes, or a number of GiB, MiB, GB or MB",
        ),
        (
            {"recipe": "dep4", "device_memory": "4GiB", "dep_simulated": "2"},
            "--mem-fraction 0.7 --recipe dep4: ranks of --dep-simulated share one device's pools; expected --dep",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_one_line(typed, said):
    with pytest.raises(UsageError) as caught:
        options(**typed)
    assert str(caught.value) == said


def test_a_run_on_a_gpu_takes_its_own_memory():
    given = MemoryPlan(0.7, 4, device_bytes=4 * GIB)
    refuse_given_memory(None, "cuda")
    refuse_given_memory(given, "cpu")
    refuse_given_memory(replace(given, device_bytes=None), "cuda")
    with pytest.raises(UsageError, match=r"--device-memory 4\.000 GiB: a run takes the GPU's own"):
        refuse_given_memory(given, "cuda")


def test_notes_say_what_is_known_and_what_was_given():
    recipe = RECIPES["dep4"]
    measured = memory_notes(MemoryPlan(0.7, 4, recipe="dep4"), recipe)
    assert measured == (f"recipe dep4: experts on 4 ranks; {recipe.source} of the specification",)
    given = memory_notes(MemoryPlan(0.7, 4, device_bytes=GIB), None)
    assert given == ("device memory 1.000 GiB: given, not measured",)
    assert memory_notes(None, None) == ()


def sweep(**typed):
    return cells(options(batch="1,3", graph=False, reuse="on", **typed))


def test_all_batches_of_a_sweep_have_the_same_pools():
    one, three = (cell for (cell,) in sweep(recipe="dep4", device_memory="4GiB"))
    # 120 + 8 tokens in one page each, and page 0
    assert one.memory == three.memory == MemoryPlan(0.7, 4, 3, 4, "dep4", 4 * GIB)
    told = {"mem-fraction": 0.7, "recipe": "dep4", "device-memory": "4GiB"}
    assert {name: one.switches()[name] for name in told} == told


def test_ranks_hold_their_own_requests():
    _, three = (cell for (cell,) in sweep(mem_fraction="0.7", device_memory="4GiB", dep="2"))
    assert [len(requests) for requests in three.device_requests] == [2, 1]
    assert (three.memory.requests, three.memory.window_pages, three.memory.ranks) == (2, 3, 2)


def test_a_fraction_is_part_of_the_key_only_where_it_was_given():
    plain, sized, other = (
        sweep(**typed)[0][0]
        for typed in (
            {"chunk": "4096"},
            {"recipe": "dep4", "device_memory": "4GiB"},
            {"recipe": "dep4", "device_memory": "5GiB"},
        )
    )
    assert len({cell.key("commit") for cell in (plain, sized, other)}) == 3
    assert len({cell.group for cell in (plain, sized, other)}) == 3
    assert not {"mem-fraction", "recipe", "device-memory"} & set(plain.switches())
    assert replace(sized, memory=None).key("commit") == plain.key("commit")
