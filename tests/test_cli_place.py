"""Who this process is among the ranks of a run, and which of them say what is wrong with the command."""

import pytest

from dsv4bench.cli_place import Place, is_rank, place_of
from tests.command_line import command_line

SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        (TORCHRUN, Place(5, 8, 1, 4)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, Place(0, 2, 0, 1)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, Place(3, 8, 1, 4)),
        (SRUN, Place(3, 8, 1, 2)),
        ({**SRUN, **TORCHRUN}, Place(5, 8, 1, 4)),
        ({name: SRUN[name] for name in ("SLURM_PROCID", "SLURM_NTASKS")}, None),
        ({**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
    ],
    ids=[
        "alone",
        "torchrun",
        "env://",
        "srun",
        "an older srun",
        "torchrun in srun",
        "the script of a batch job",
        "a shell of srun",
    ],
)
def test_the_environment_says_which_rank_this_is(environment, place):
    assert place_of(environment) == place
    assert is_rank(environment) == (place is not None)


def test_a_place_that_makes_no_sense_makes_no_rank():
    assert not is_rank({"RANK": "one", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("environment", "mistyped", "impossible"),
    [
        ({"RANK": "0", "LOCAL_RANK": "0"}, True, True),
        ({"RANK": "1", "LOCAL_RANK": "1"}, False, False),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False, True),
        ({"RANK": "one"}, True, True),
    ],
    ids=["the first rank", "another one", "the first one of another host", "no number"],
)
def test_a_mistake_is_said_once_for_all_ranks_or_by_one_on_each_host(
    monkeypatch, capsys, environment, mistyped, impossible
):
    """What was mistyped is so everywhere; a file or a GPU may be missing on one host alone."""
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", **environment}.items():
        monkeypatch.setenv(name, value)
    run = command_line(monkeypatch, capsys)
    found = [run("prefill", "--bach", "3"), run("prefill", "--batch", "0")]
    assert [(one.code, one.out) for one in found] == [(2, "")] * 2
    assert [one.err for one in found] == [
        "dsv4bench prefill --bach: no such option (did you mean '--batch'?)\n" if mistyped else "",
        "dsv4bench: --batch 0: expected at least 1\n" if impossible else "",
    ]
