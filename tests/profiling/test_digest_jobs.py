"""What two trees are given: the same tensors, saved as they are, one of them perturbed for the control."""

import hashlib
import json

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.profiling import digest_child, digest_jobs
from dsv4bench.profiling.digest_child import main, sha256
from dsv4bench.profiling.digest_jobs import digest_cells, job, plain, save_jobs, subject
from dsv4bench.results.digests import Subject
from dsv4bench.workloads.kernel_cells import KernelArguments, kernel_cells


def torch_cells(*names, rows=("4",), **typed):
    plan = kernel_cells(KernelArguments(names, rows, **{"provider": ("torch",), "device": "cpu", **typed}))
    return digest_cells(plan)[0]


def results(jobs, folder):
    main(folder / "results", jobs)
    root, *found = map(json.loads, (folder / "results").read_text().splitlines())
    assert set(root) == {"root"}
    return found


def outcomes(cells, folder, control=None):
    """What came of the jobs of some cells, or of their perturbed twins."""
    saved = save_jobs(cells, folder, control)
    return results([one.control or one.job for one in saved], folder)


def inputs(cell):
    return kernel(cell.kernel).inputs(cell.shape, torch.Generator().manual_seed(cell.seed))


def test_the_hash_is_of_the_elements_in_order_whatever_the_strides():
    wide = torch.arange(12, dtype=torch.int32).view(3, 4)
    wanted = hashlib.sha256(wide[:, 1:3].contiguous().numpy().tobytes()).hexdigest()
    assert sha256(wide[:, 1:3]) == wanted
    assert sha256(wide[:, 1:3].bfloat16()) != wanted
    assert sha256(wide[:1, 0]) == sha256(torch.zeros(1, dtype=torch.int32))
    assert sha256(torch.arange(4)[::4]) == sha256(torch.zeros(1, dtype=torch.int64))
    assert sha256(torch.empty(0)) == hashlib.sha256(b"").hexdigest()


def test_a_call_gives_a_hash_of_every_output_and_the_same_one_again(tmp_path):
    cells = torch_cells("c2", "dequant", kv=("fp4",))
    first, again = outcomes(cells, tmp_path), outcomes(cells, tmp_path)
    assert first == again
    assert [set(one["digests"]) for one in first] == [{"latent", "cache", "ring"}, {"out"}]


def test_another_seed_gives_other_bytes(tmp_path):
    first = outcomes(torch_cells("dequant", kv=("fp4",)), tmp_path)
    assert outcomes(torch_cells("dequant", kv=("fp4",), seed="1"), tmp_path) != first


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_kernel_of_the_catalogue_travels_and_shows_its_control(name, tmp_path):
    """Both with the control's twin: from one draw, so that only what was perturbed can differ."""
    cells = torch_cells(name, rows=())
    saved = save_jobs(cells, tmp_path, 0.5)
    assert [one.error for one in saved] == [None] * len(cells)
    found = results([one.job for one in saved], tmp_path)
    assert found == results([one.job for one in saved], tmp_path)
    assert [set(one["digests"]) for one in found] == [set(kernel(name).outputs)] * len(cells)
    assert [one.perturbed for one in saved if one.control is None] == []
    perturbed = results([one.control for one in saved], tmp_path)
    assert [same for same, other in zip(found, perturbed, strict=True) if same == other] == []


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_a_job_carries_comes_back_equal(name):
    for example in kernel(name).examples:
        for key, value in kernel(name).inputs(example, torch.Generator().manual_seed(0)).items():
            if not isinstance(value, torch.Tensor):
                assert digest_child.made(json.loads(json.dumps(plain(value)))) == value, key


def test_a_perturbed_input_changes_what_depends_on_it(tmp_path):
    cells = torch_cells("c2", kv=("fp4",))
    (same,), (other,) = outcomes(cells, tmp_path), outcomes(cells, tmp_path, control=0.5)
    assert all(same["digests"][name] != other["digests"][name] for name in ("cache", "ring"))


def test_a_job_that_cannot_be_run_is_an_error_of_that_job_only(tmp_path):
    (cell,) = torch_cells("rms_norm", case=("width 512",))
    whole = job(cell, inputs(cell))
    (tmp_path / "broken.pt").write_bytes(b"no job")
    paths = [tmp_path / "broken.pt"]
    for change in ({"kernel": "from_the_future"}, {"provider": "cuda"}, {"tensors": {}}, {}):
        paths.append(tmp_path / f"{len(paths)}.pt")
        torch.save(whole | change, paths[-1])
    *failed, last = results(paths, tmp_path)
    assert set(last) == {"digests"}
    assert [one["error"].split(":")[0] for one in failed[1:]] == ["KeyError"] * 3
    assert set(failed[0]) == {"error"}


def test_a_kernel_whose_inputs_cannot_be_drawn_does_not_lose_the_others(tmp_path, monkeypatch):
    class Broken:
        def inputs(self, shape, generator):
            raise RuntimeError("no such page\nand more")

    monkeypatch.setattr(digest_jobs, "kernel", lambda name: Broken() if name == "rope" else kernel(name))
    found = save_jobs([*torch_cells("rope"), *torch_cells("dequant", kv=("fp4",))], tmp_path)
    assert [one.error for one in found] == ["drawing its inputs: RuntimeError: no such page", None]
    assert [one.job is None for one in found] == [True, False]


def test_after_an_error_that_spoilt_the_device_the_process_ends(tmp_path, monkeypatch):
    cells = torch_cells("rms_norm")
    saved = [one.job for one in save_jobs(cells * 2, tmp_path)]
    torch.save({}, saved[1])
    assert len(results(saved, tmp_path)) == len(saved)
    monkeypatch.setattr(digest_child, "spoilt", lambda: True)
    assert [set(one) for one in results(saved, tmp_path)] == [{"digests"}, {"error"}]


def test_a_layout_travels_by_its_name_and_a_ring_by_its_fields():
    (cell,) = torch_cells("dequant", kv=("v41_new",))
    assert job(cell, inputs(cell))["tensors"]["layout"] == {"layout": "v41_new"}
    ring = inputs(torch_cells("plan_decode", case=("c128",))[0])["ring"]
    assert plain(ring) == {
        "module": "dsv4bench.kernels.compress_ring",
        "class": "StateRing",
        "fields": {"ratio": 128, "ring_size": ring.ring_size, "swa_page": ring.swa_page, "request_ring": False},
    }


def test_a_function_of_a_file_is_read_by_the_process(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def fill(x, weight, eps, out):\n    out.fill_(3)\n\ndef leave(**rest):\n    raise SystemExit(3)\n")
    cells = torch_cells("rms_norm", case=("width 512",), provider=(f"{file}:fill", f"{file}:leave"))
    filled, left = outcomes(cells, tmp_path)
    assert filled == {"digests": {"out": sha256(torch.full((4, 512), 3, dtype=torch.bfloat16))}}
    assert left == {"error": f"{file}:5: SystemExit: 3"}


def test_providers_that_cannot_run_are_named_once():
    plan = kernel_cells(KernelArguments(("rms_norm",), device="cpu"))
    able, reasons = digest_cells(plan)
    assert {cell.provider for cell in able} == {"torch"}
    assert len(reasons) == len(set(reasons)) >= 1
    assert subject(able[0]) == Subject("rms_norm", "width 512", 64, "torch")
