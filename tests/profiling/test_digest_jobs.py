"""What two trees are given: the same tensors, saved as they are, one of them perturbed for the control."""

import hashlib
import json

import pytest
import torch

from dsv4bench.errors import UsageError
from dsv4bench.profiling.digest_child import main, sha256
from dsv4bench.profiling.digest_jobs import digest_cells, job, perturb, save_jobs, subject
from dsv4bench.results.digests import Subject
from dsv4bench.workloads.kernel_cells import KernelArguments, kernel_cells


def torch_cells(*names, **typed):
    plan = kernel_cells(KernelArguments(names, ("4",), provider=("torch",), device="cpu", **typed))
    return digest_cells(plan)[0]


def outcomes(cells, folder, control=None):
    save_jobs(cells, folder / "jobs.pt", control)
    main(folder / "jobs.pt", folder / "results.json")
    return json.loads((folder / "results.json").read_text())["outcomes"]


def test_the_hash_is_of_the_elements_in_order_whatever_the_strides():
    wide = torch.arange(12, dtype=torch.int32).view(3, 4)
    wanted = hashlib.sha256(wide[:, 1:3].contiguous().numpy().tobytes()).hexdigest()
    assert sha256(wide[:, 1:3]) == wanted
    assert sha256(wide[:, 1:3].bfloat16()) != wanted
    assert sha256(torch.empty(0)) == hashlib.sha256(b"").hexdigest()


def test_a_call_gives_a_hash_of_every_output_and_the_same_one_again(tmp_path):
    cells = torch_cells("c2", "dequant", kv=("fp4",))
    first, again = outcomes(cells, tmp_path), outcomes(cells, tmp_path)
    assert first == again
    assert [set(one["digests"]) for one in first] == [{"latent", "cache", "ring"}, {"out"}]


def test_another_seed_gives_other_bytes(tmp_path):
    first = outcomes(torch_cells("dequant", kv=("fp4",)), tmp_path)
    assert outcomes(torch_cells("dequant", kv=("fp4",), seed="1"), tmp_path) != first


def test_a_perturbed_input_changes_what_depends_on_it(tmp_path):
    cells = torch_cells("c2", kv=("fp4",))
    (same,), (other,) = outcomes(cells, tmp_path), outcomes(cells, tmp_path, control=0.5)
    assert all(same["digests"][name] != other["digests"][name] for name in ("cache", "ring"))


def test_a_kernel_that_a_tree_lacks_is_an_error_of_that_job_only(tmp_path):
    cells = torch_cells("rms_norm", case=("width 512",))
    jobs = [job(cells[0]), job(cells[0]) | {"kernel": "from_the_future"}, job(cells[0]) | {"provider": "cuda"}]
    torch.save(jobs, tmp_path / "jobs.pt")
    main(tmp_path / "jobs.pt", tmp_path / "results.json")
    found = json.loads((tmp_path / "results.json").read_text())["outcomes"]
    assert set(found[0]) == {"digests"}
    assert [one["error"].split(":")[0] for one in found[1:]] == ["KeyError", "KeyError"]


def test_a_layout_travels_by_its_name():
    (cell,) = torch_cells("dequant", kv=("v41_new",))
    assert job(cell)["tensors"]["layout"] == {"layout": "v41_new"}


def test_the_first_input_of_floats_is_perturbed_and_no_output():
    tensors = {"out": torch.zeros(2), "ids": torch.arange(2), "x": torch.ones(2), "y": torch.ones(2)}
    assert perturb(tensors, ["out"], 0.25, "k") == "x"
    assert [tensors[name].tolist() for name in ("out", "ids", "x", "y")] == [[0, 0], [0, 1], [1.25, 1.25], [1, 1]]


def test_a_kernel_of_bytes_has_their_lowest_bits_flipped():
    tensors = {"ids": torch.arange(2), "cache": torch.tensor([4, 7], dtype=torch.uint8)}
    assert perturb(tensors, [], 0.25, "k") == "cache"
    assert tensors["cache"].tolist() == [5, 6]


def test_a_kernel_of_integers_has_no_control():
    with pytest.raises(UsageError, match=r"--control 0.1: k reads no floats and no bytes"):
        perturb({"ids": torch.arange(2)}, [], 0.1, "k")


def test_providers_that_cannot_run_are_named_once():
    plan = kernel_cells(KernelArguments(("rms_norm",), device="cpu"))
    able, reasons = digest_cells(plan)
    assert {cell.provider for cell in able} == {"torch"}
    assert len(reasons) == len(set(reasons)) >= 1
    assert subject(able[0]) == Subject("rms_norm", "width 512", 64, "torch")
