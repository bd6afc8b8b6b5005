"""The test set-up: Triton's interpreter where there is no GPU, the device, and one seed."""

import gc
import os
from importlib.util import find_spec

import pytest
import torch
from hypothesis import settings

from dsv4bench.kernels.contract import TRITON, Needs
from tests import interpreter

interpreter.switch_on_without_gpu()  # before anything imports triton, whose library is decorated at import

# examples are the same in every run, and slow machines share the suite
settings.register_profile("dsv4bench", deadline=None, derandomize=True)
settings.load_profile("dsv4bench")

torch.set_num_threads(1)  # small tensors gain nothing from threads, and tests may run side by side

os.getloadavg = lambda: (0.0, 0.0, 0.0)  # what else this machine does must not decide what is flagged

HAVE_GPU = torch.cuda.is_available() and not interpreter.switched_on()


def pytest_collection_modifyitems(config, items):
    """Skip tests marked `gpu` where kernels do not run on a GPU, `slow` and `browser` ones unless -m asks for them."""
    reasons = {} if HAVE_GPU else {"gpu": "needs an NVIDIA GPU"}
    for mark in ("slow", "browser"):
        if mark not in config.option.markexpr:
            reasons[mark] = f"runs with -m {mark}"
    for item in items:
        for mark in reasons.keys() & item.keywords.keys():
            item.add_marker(pytest.mark.skip(reason=reasons[mark]))


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays():
    """Keep what was there before the tests of a file, a million objects, out of their `gc.collect`s: 0.6 s each."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Let the end of the process collect all: bindings warn of what is left then."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def device() -> str:
    """The device that tests compute on: "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if HAVE_GPU else "cpu"


@pytest.fixture(scope="session")
def triton_device(device) -> str:
    """The device for Triton kernels: a GPU runs them as they are, a CPU in the patched and checked interpreter."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if device == "cpu":
        interpreter.install()
        reason = interpreter.why_not()
        if reason:
            pytest.skip(reason)
    return device


@pytest.fixture
def generator(device) -> torch.Generator:
    """A seeded generator on the device."""
    return torch.Generator(device).manual_seed(20)


@pytest.fixture
def interpreted(triton_device, monkeypatch) -> str:
    """The device of a step on the Triton provider, which a CPU has in the interpreter only."""
    if triton_device == "cpu":
        reasons = Needs.why_not
        monkeypatch.setattr(Needs, "why_not", lambda self, on: None if self == TRITON else reasons(self, on))
    return triton_device
