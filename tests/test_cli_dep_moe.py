"""`prefill --dep --moe` on real processes over gloo: a run of all forms, and a rank that fails inside a step."""

import json
import subprocess
import time

import pytest

from dsv4bench.results.store import read_records
from tests.command_line import CONFIG
from tests.source_tree import ROOT
from tests.test_cli_dep import command, ranks_left

MOES = ("off", "collectives", "experts")
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
# of layer 1 alone, behind the exchange of layer 0: the other rank waits in that of layer 1
FAILS = """
import torch
import torch.distributed as dist

calls = 0

def norm(x, weight, eps, out):
    global calls
    calls += x.shape == (8, 64)
    if dist.get_rank() == {rank} and calls == 4:
        raise {error}
    y = x.float()
    out.copy_(y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.float())
"""
FULL = 'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 139.72 GiB.")'
FULL_REASON = "CUDA out of memory. Tried to allocate 2.00 GiB"


def with_experts(folder, *words):
    """The command of two ranks, on a model with experts."""
    line = command(folder, *words)
    (folder / "experts.json").write_text(json.dumps(CONFIG | EXPERTS))
    return [str(folder / "experts.json") if word == str(folder / "tiny.json") else word for word in line]


@pytest.mark.slow
def test_two_processes_exchange_rows_in_every_form(tmp_path):
    words = ("--batch", "1,3", "--moe", "off,collectives,experts", "--reuse", "on")
    done = subprocess.run(with_experts(tmp_path, *words), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = read_records(tmp_path / "run").records
    modes = [(moe, batch, mode) for moe in MOES for batch in (1, 3) for mode in ("eager", "tape")]
    assert [(one.variant["moe"], one.batch["requests"], one.mode) for one in found] == modes
    for one in found:
        checks = [check for check in one.checks if check["name"].startswith("stand-in of the MoE")]
        assert (one.status, one.reason) == ("ok", None)
        assert bool(checks) == (one.variant["moe"] != "off")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "error", "status", "reason"),
    [
        (0, FULL, "out_of_memory", FULL_REASON),
        (1, FULL, "out_of_memory", FULL_REASON),
        (1, 'RuntimeError("no more room")', "failed", "RuntimeError: no more room"),
    ],
    ids=["rank 0 is out of memory", "rank 1 is out of memory", "rank 1 fails"],
)
def test_a_rank_that_fails_between_two_exchanges_strands_nobody(tmp_path, rank, error, status, reason):
    (tmp_path / "own.py").write_text(FAILS.format(rank=rank, error=error))
    provider = f"rms_norm={tmp_path / 'own.py'}:norm"
    words = ("--batch", "4,2", "--moe", "experts", "--reuse", "on", "--no-graph", "--provider", provider)
    started = time.monotonic()
    done = subprocess.run(with_experts(tmp_path, *words), cwd=ROOT, capture_output=True, text=True, check=False)
    assert time.monotonic() - started < 90
    assert done.returncode == (1 if status == "failed" else 0)  # as where one process runs out of memory
    first, second = read_records(tmp_path / "run").records
    assert (first.batch["requests"], first.status) == (4, status)
    assert first.reason.startswith(f"rank {rank}: ")
    assert first.reason.endswith(reason)
    assert (second.batch["requests"], second.status) == (2, "ok")
    assert ranks_left(tmp_path) == []
