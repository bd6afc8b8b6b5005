import getpass
import json
import platform
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dsv4bench.profiling import environment as module
from dsv4bench.profiling.clocks import Nvml
from dsv4bench.profiling.environment import anonymous, cpu_model, environment, injected, machine_id, source_state

ABC = "ba7816bf8f01"  # FIPS 180-2, appendix B.1: the SHA-256 of "abc"
SOURCE = ("dsv4bench", "pyproject.toml")
CPU_INFO = "processor\t: 0\nvendor_id\t: X\nmodel name\t: Fast CPU 9 @ 3:1 GHz\nprocessor\t: 1\nmodel name\t: Other\n\n"


def git(root, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "dsv4bench").mkdir()
    (tmp_path / "dsv4bench" / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_a_cpu_environment_is_plain_and_tells_no_names_or_paths():
    facts = environment("cpu")
    text = json.dumps(facts)
    assert facts["gpu"] is None
    assert facts["torch"] == torch.__version__
    assert facts["cpu_cores"] >= 1
    assert platform.node() not in text.split('"')
    assert getpass.getuser() not in text.split('"')
    assert str(Path(module.__file__).parent) not in text


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"abc\n", "abc"), (b"", None), (b"uninitialized\n", None), (b"\xff", None), (None, None)],
    ids=["an id", "empty", "at the first start", "no text", "no file"],
)
def test_a_host_is_told_from_others_by_a_hash_of_its_id(monkeypatch, tmp_path, content, found):
    file = tmp_path / "machine-id"
    if content is not None:
        file.write_bytes(content)
    assert machine_id(file) == found
    monkeypatch.setattr(module, "_MACHINE_ID", file)
    facts = environment("cpu")
    assert (facts["host_id"], "gpu_chip" in facts) == (found and ABC, False)


def test_a_name_is_the_start_of_its_hash():
    assert (anonymous("abc"), anonymous(None)) == (ABC, None)


def test_packages_whose_kernels_are_called_are_named_with_their_versions(monkeypatch):
    installed = {"sglang": "0.5.23", "sgl-flash-mla": "1.0.0"}

    def version(package):
        if package not in installed:
            raise module.importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(module.importlib.metadata, "version", version)
    facts = environment("cpu")
    assert [facts[name] for name in ("sglang", "flash_mla", "deep_gemm")] == ["0.5.23", "1.0.0", None]


def test_a_clean_checkout_has_a_commit(checkout):
    state = source_state(checkout, SOURCE)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    assert state["diff"] is None


@pytest.mark.parametrize(
    ("path", "dirty"),
    [("dsv4bench/a.py", True), ("dsv4bench/new.py", True), ("notes.txt", False)],
    ids=["source changed", "source added", "something else added"],
)
def test_dirty_is_about_the_source(checkout, path, dirty):
    (checkout / path).write_text("2")
    assert source_state(checkout, SOURCE)["dirty"] is dirty


def test_two_trees_that_differ_from_their_commit_differ_from_each_other(checkout):
    found = []
    for path, text in [("a.py", "2"), ("a.py", "3"), ("new.py", "4"), ("new.py", "5"), ("newer.py", "5")]:
        (checkout / "dsv4bench" / path).write_text(text)
        found.append(source_state(checkout, SOURCE)["diff"])
    assert len(set(found)) == 5
    assert all(re.fullmatch("[0-9a-f]{12}", one) for one in found)
    assert source_state(checkout, SOURCE)["diff"] == found[-1]


def test_a_source_that_is_no_text_counts_as_a_difference(checkout):
    (checkout / "dsv4bench" / "a.py").write_bytes(b"\xff")
    assert source_state(checkout, SOURCE)["dirty"] is True
    assert source_state(checkout, SOURCE)["diff"]


def test_a_folder_that_is_no_checkout_of_its_own_has_no_commit(checkout, tmp_path_factory):
    nothing = {"commit": None, "dirty": None, "diff": None}
    assert source_state(tmp_path_factory.mktemp("plain"), SOURCE) == nothing
    assert source_state(checkout / "dsv4bench", SOURCE) == nothing  # installed inside somebody else's checkout


def test_packages_in_a_folder_of_a_checkout_have_its_commit(checkout):
    inner = checkout / "python" / "sglang"
    inner.mkdir(parents=True)
    (inner / "__init__.py").write_text("1")
    assert source_state(checkout / "python", ("sglang",))["commit"] is None  # git does not know it
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "two")
    (checkout / "dsv4bench" / "a.py").write_text("another package's change")
    clean = source_state(checkout / "python", ("sglang",))
    assert (len(clean["commit"]), clean["dirty"], clean["diff"]) == (40, False, None)
    (inner / "new.py").write_text("2")
    added = source_state(checkout / "python", ("sglang",))
    (inner / "new.py").write_text("3")
    changed = source_state(checkout / "python", ("sglang",))
    assert (added["dirty"], changed["dirty"]) == (True, True)
    assert len({None, added["diff"], changed["diff"]}) == 3


def test_without_git_there_is_no_commit(monkeypatch, checkout):
    def missing(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(module.subprocess, "run", missing)
    assert source_state(checkout, SOURCE) == {"commit": None, "dirty": None, "diff": None}


@pytest.mark.parametrize(("info", "model"), [(CPU_INFO, "Fast CPU 9 @ 3:1 GHz"), ("Hardware\t: X\n", None), ("", None)])
def test_the_cpus_name(info, model):
    assert cpu_model(info) == model


class FakeNvml:
    class NVMLError(Exception):
        pass

    def nvmlSystemGetDriverVersion(self):
        return "580.159"

    def nvmlDeviceGetUUID(self, handle):
        return "abc"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def nvmlDeviceGetEccMode(self, handle):
        return [1, 1]

    def nvmlDeviceGetMigMode(self, handle):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=1), SimpleNamespace(pid=2)]


@pytest.fixture
def h200(monkeypatch):
    properties = SimpleNamespace(
        name="NVIDIA H200",
        multi_processor_count=132,
        L2_cache_size=60 * 1024**2,
        total_memory=150_109_880_320,
        major=9,
        minor=0,
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


def test_a_gpu_environment(monkeypatch, h200):
    monkeypatch.setattr(module, "open_nvml", lambda: Nvml(FakeNvml(), "handle"))
    facts = environment("cuda")
    assert {
        key: facts[key] for key in facts if key.startswith("gpu") or key in ("driver", "power_limit_mw", "ecc", "mig")
    } == {
        "gpu": "NVIDIA H200",
        "gpu_sms": 132,
        "gpu_l2_bytes": 62_914_560,
        "gpu_memory_bytes": 150_109_880_320,
        "gpu_capability": "9.0",
        "gpu_chip": ABC,
        "driver": "580.159",
        "power_limit_mw": 700_000,
        "ecc": True,
        "mig": None,
        "gpu_other_processes": 1,
    }


def test_older_nvml_packages_give_a_uuid_as_bytes_or_refuse(monkeypatch, h200):
    class Bytes(FakeNvml):
        def nvmlDeviceGetUUID(self, handle):
            return b"abc"

    class Refuses(FakeNvml):
        def nvmlDeviceGetUUID(self, handle):
            raise self.NVMLError("not supported")

    for fake, chip in ((Bytes(), ABC), (Refuses(), None)):
        monkeypatch.setattr(module, "open_nvml", lambda fake=fake: Nvml(fake, "handle"))
        facts = environment("cuda")
        assert (facts["gpu_chip"], "host_id" in facts) == (chip, False)


def test_without_nvml_its_facts_are_none(monkeypatch, h200):
    monkeypatch.setattr(module, "open_nvml", lambda: None)
    facts = environment("cuda")
    assert [facts[key] for key in ("gpu_chip", "driver", "power_limit_mw", "ecc", "mig", "gpu_other_processes")] == [
        *[None] * 6
    ]
    assert facts["gpu"] == "NVIDIA H200"


def test_libraries_that_a_profiler_put_into_a_process_are_named():
    maps = (
        "7f00-7f10 r-xp 00000000 08:01 17                         /opt/injection/lib/libtorch.so\n"
        "7f10-7f20 r-xp 00000000 08:01 18                         /opt/nvidia/nsight systems/libToolsInjection64.so\n"
        "7f20-7f30 r--p 00000000 08:01 18                         /opt/nvidia/nsight systems/libToolsInjection64.so\n"
        "7f30-7f40 rw-p 00000000 00:00 0 \n"
        "7f40-7f50 rw-p 00000000 00:00 0                          [heap]\n"
    )
    assert injected(maps) == ["libToolsInjection64.so"]
    assert environment("cpu")["injected"] in ([], None)
