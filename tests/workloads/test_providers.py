"""Whose kernel does each operation: how it is spelt, who takes whose place, and kernels from a user's own file."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.errors import CellError, CellSkipped, UsageError
from dsv4bench.kernels import kernel
from dsv4bench.kernels.contract import Needs, Provider
from dsv4bench.workloads import providers
from dsv4bench.workloads.providers import Choice, choice, parse, why_not


@pytest.mark.parametrize(
    ("text", "device", "spelt"),
    [
        ("auto", "cpu", "torch"),
        ("auto", "cuda", "triton"),
        ("sglang", "cpu", "sglang"),
        ("dequant=sglang", "cuda", "triton/dequant=sglang"),
        ("store=sglang/attention=flash_mla", "cuda", "triton/sparse_attention=flash_mla/store=sglang"),
        ("sglang/c1=triton", "cuda", "sglang/compress_c1=triton"),
        ("dequant=a/b.py:fast/c2=torch", "cuda", "triton/compress_c2=torch/dequant=a/b.py:fast"),
    ],
)
def test_a_choice_has_one_spelling(text, device, spelt):
    assert parse(text, device).text == spelt
    assert parse(spelt, device) == parse(text, device)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sglnag", "--provider sglnag: not known (did you mean 'sglang'?); known: auto, torch"),
        ("dequant=", "--provider : not known"),
        ("dequnt=torch", "--provider dequnt=: no kernel 'dequnt' (did you mean 'dequant'?)"),
        ("triton", "--provider triton: needs a CUDA device"),
        ("dequant=triton", "--provider triton: needs a CUDA device"),
        ("dequant=nowhere.py:fn", "--provider nowhere.py: no such file"),
        (
            "/abs/my.py:right",
            "--provider /abs/my.py:right: a function is one kernel's; expected KERNEL=FILE.py:FUNCTION",
        ),
        ("my.py:right/c1=torch", "--provider my.py:right: a function is one kernel's; expected KERNEL="),
        ("dequant=torch/dequant=my.py:right", "--provider dequant=torch/dequant=my.py:right: dequant is named twice"),
        ("c1=torch/rope=torch/compress_c1=sglang", "--provider c1=torch/rope=torch/compress_c1=sglang: compress_c1 is"),
    ],
)
def test_a_mistake_is_named(text, said):
    with pytest.raises(UsageError) as caught:
        choice(text, "cpu")
    assert str(caught.value).startswith(said)


def with_providers(monkeypatch, **needs: Needs):
    """Give the catalogue's dequant providers of these names beside torch."""
    made = replace(kernel("dequant"), providers=(kernel("dequant").provider("torch"),))
    made = replace(made, providers=made.providers + tuple(Provider(name, None, need) for name, need in needs.items()))
    monkeypatch.setattr(providers, "kernel", lambda name: made if name == "dequant" else kernel(name))


ABSENT = Needs(packages=("no_such_package",))


def test_ours_takes_the_place_of_a_kernel_that_a_provider_lacks(monkeypatch):
    with_providers(monkeypatch, sglang=Needs(), triton=Needs())
    assert Choice("sglang").resolve("dequant", "cuda")[1].name == "sglang"
    assert Choice("flash_mla").resolve("dequant", "cuda")[1].name == "triton"
    assert Choice("flash_mla").resolve("dequant", "cpu")[1].name == "torch"
    with_providers(monkeypatch, sglang=ABSENT, triton=Needs())
    assert Choice("sglang").resolve("dequant", "cuda")[1].name == "triton"


def test_a_provider_named_for_one_kernel_never_gives_way(monkeypatch):
    with_providers(monkeypatch, sglang=ABSENT, triton=Needs())
    assert Choice("triton", (("dequant", "torch"),)).resolve("dequant", "cuda")[1].name == "torch"
    with pytest.raises(CellSkipped, match="provider sglang of dequant: the package 'no_such_package' is not installed"):
        Choice("triton", (("dequant", "sglang"),)).resolve("dequant", "cuda")
    with pytest.raises(CellSkipped, match="dequant has no provider 'flash_mla'; it has torch, sglang, triton"):
        Choice("triton", (("dequant", "flash_mla"),)).resolve("dequant", "cuda")


def test_ours_takes_a_call_that_the_provider_of_all_refuses(monkeypatch):
    with_providers(monkeypatch, sglang=Needs(), triton=Needs())
    theirs = providers.kernel("dequant").provider("sglang")
    assert Choice("sglang").instead(theirs, "takes 64 heads", "dequant", "cuda").name == "triton"
    assert Choice("sglang").instead(theirs, "takes 64 heads", "dequant", "cpu").name == "torch"
    assert (
        Choice("sglang", (("store", "triton"),)).instead(theirs, "takes 64 heads", "dequant", "cuda").name == "triton"
    )


@pytest.mark.parametrize(
    ("chosen", "name"),
    [(Choice("sglang", (("dequant", "sglang"),)), "sglang"), (Choice("triton"), "triton")],
    ids=["named for one kernel", "our own"],
)
def test_nobody_takes_the_place_of_these(monkeypatch, chosen, name):
    with_providers(monkeypatch, sglang=Needs(), triton=Needs())
    refused = providers.kernel("dequant").provider(name)
    with pytest.raises(CellSkipped, match=rf"^provider {name} of dequant: takes 64 heads, not 4$"):
        chosen.instead(refused, "takes 64 heads, not 4", "dequant", "cuda")


def test_the_torch_path_of_the_compressor_is_always_torch():
    assert Choice("triton").resolve("compress_pool", "cuda")[1].name == "torch"


def test_a_provider_that_can_run_nothing_here_says_why(monkeypatch):
    assert why_not(Choice("torch"), "cpu") is None
    with_providers(monkeypatch, mine=ABSENT)
    assert why_not(Choice("mine"), "cpu") == "provider mine: the package 'no_such_package' is not installed"
    assert why_not(Choice("nobody"), "cpu") == "provider nobody: no kernel of the catalogue has it"


OWN = """
def twice(x, out, **rest):
    out.copy_(2 * x)

number = 3
"""


def test_a_function_of_a_users_own_file_is_called_with_the_tensors(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    found = choice(f"rms_norm={tmp_path}/own.py:twice", "cpu")
    subject, provider = found.resolve("rms_norm", "cpu")
    x, out = torch.ones(1, 2).bfloat16(), torch.zeros(1, 2).bfloat16()
    tensors = {"x": x, "out": out, "weight": torch.ones(2).bfloat16(), "eps": 0.0}
    provider.build(tensors)()
    assert (subject.name, out.tolist()) == ("rms_norm", [[2.0, 2.0]])
    with pytest.raises(ValueError, match=r"^out: float32 \[1, 2\], expected bfloat16 \[1, 2\]$"):
        provider.build(tensors | {"out": out.float()})


@pytest.mark.parametrize(
    ("function", "text", "said"),
    [
        ("thrice", OWN, "defines no function 'thrice'"),
        ("number", OWN, "defines no function 'number'"),
        ("twice", "\nimport no_such_module_of_mine", r"own.py:2: ModuleNotFoundError: No module named .*importing it"),
        ("twice", "\n\ndef twice(:", "own.py:3: SyntaxError"),
        ("twice", "raise SystemExit(3)", r"own.py:1: SystemExit: 3 \(while importing it\)"),
    ],
    ids=["no-such-function", "not-a-function", "import-fails", "syntax", "exits"],
)
def test_a_file_that_cannot_be_used_is_a_usage_error(tmp_path, function, text, said):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(UsageError, match=said):
        choice(f"rms_norm={tmp_path}/own.py:{function}", "cpu")


FAILING = """
def deeper(kind):
    raise kind


def raises(x, **rest):
    deeper(rest["weight"])


def wants(other):
    pass
"""


@pytest.mark.parametrize(
    ("function", "raised", "said"),
    [
        ("raises", RuntimeError("boom\nand more"), ":3: RuntimeError: boom"),
        ("raises", SystemExit(3), ":3: SystemExit: 3"),
        ("raises", GeneratorExit(), ":3: GeneratorExit: no message"),
        ("wants", None, ":10: TypeError: wants() got an unexpected keyword argument"),
    ],
    ids=["an error", "it exits", "without a message", "it takes other tensors"],
)
def test_whatever_a_users_function_raises_ends_its_cell_with_the_line(tmp_path, function, raised, said):
    (tmp_path / "own.py").write_text(FAILING)
    call = providers.own_file(f"{tmp_path}/own.py", function).build({"x": None, "weight": raised})
    with pytest.raises(CellError) as caught:
        call()
    assert str(caught.value).startswith(f"{tmp_path}/own.py{said}")
    assert caught.value.status == "failed"


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), CellSkipped("not here"), torch.OutOfMemoryError("none left")])
def test_what_ends_more_or_says_more_than_that_passes(tmp_path, raised):
    (tmp_path / "own.py").write_text(FAILING)
    with pytest.raises(type(raised)):
        providers.own_file(f"{tmp_path}/own.py", "raises").build({"x": None, "weight": raised})()


def test_a_file_has_a_hash_of_what_is_in_it(tmp_path):
    for name, text in (("a", OWN), ("b", OWN), ("c", OWN + "# other\n")):
        (tmp_path / f"{name}.py").write_text(text)
    found = providers.own_files([(name, f"{tmp_path}/{name}.py:twice") for name in "abc"] + [("d", "torch")])
    assert list(found) == ["a", "b", "c"]
    assert found["a"] == found["b"] != found["c"]
    assert {len(one) for one in found.values()} == {16}


def test_the_text_that_has_the_hash_is_the_one_that_runs(tmp_path):
    """An edit while a run goes on neither changes a key nor what runs."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    before = providers.own_files([("rms_norm", f"{file}:twice")])
    file.write_text(OWN.replace("2 * x", "3 * x"))
    out = torch.zeros(2)
    providers.own_file(str(file), "twice").build({"x": torch.ones(2), "out": out})()
    assert out.tolist() == [2, 2]
    assert providers.own_files([("rms_norm", f"{file}:twice")]) == before
