"""Which kernels, shapes and providers a command means."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.errors import CellSkipped, UsageError
from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.workloads.kernel_cells import KernelArguments, chosen, kernel_cells, kernel_names, shapes


def cells(*names, **typed):
    plan = kernel_cells(KernelArguments(names, device="cpu", **typed))
    return [(cell.kernel, cell.case, cell.rows, cell.provider) for group in plan for cell in group]


def test_names_are_short_long_repeated_or_all():
    assert kernel_names(["c1,c2", "attention", "c1"]) == ("compress_c1", "compress_c2", "sparse_attention")
    assert kernel_names([]) == tuple(CATALOGUE)


@pytest.mark.parametrize(
    ("names", "typed", "message"),
    [
        (["dequnt"], {}, r"no kernel 'dequnt' \(did you mean 'dequant'\?\)"),
        (["dequant"], {"kv": ["v42"]}, r"--kv v42: not known \(did you mean"),
        (["dequant"], {"provider": ["slang"]}, r"--provider slang: not known \(did you mean 'sglang'\?\)"),
        (["dequant", "store"], {"provider": ["my.py:f"]}, "--provider my.py:f: a function of a file is one kernel's"),
        (["dequant"], {"provider": ["missing.py:f"]}, "--provider missing.py: no such file"),
        (["dequant"], {"rows": ["0"]}, "--rows 0: expected at least 1"),
        (
            ["attention", "dequant"],
            {"case": ["width 680"], "kv": ["fp4"]},
            r"--case width 680: not known \(did you mean 'width 640'\?\); known: width 640, width 128, fp4$",
        ),
        (["compress_pool"], {"provider": ["sglang"]}, "no shape of compress_pool is left"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_slip_is_one_line(names, typed, message):
    with pytest.raises(UsageError, match=message):
        cells(*names, **typed)


def test_axes_multiply_and_providers_of_a_shape_stay_together():
    found = cells("dequant", rows=["8,16"], kv=["fp4", "v41_new"], provider=["triton,torch"])
    assert found == [
        ("dequant", case, rows, provider)
        for case in ("fp4", "v41_new")
        for rows in (8, 16)
        for provider in ("triton", "torch")
    ]


def test_a_kernel_without_layouts_ignores_kv_and_a_case_picks_one():
    assert {case for _, case, _, _ in cells("attention", kv=["fp4"])} == {"width 640", "width 128"}
    assert {case for _, case, _, _ in cells("attention", case=["width 128"])} == {"width 128"}


def test_a_cpu_has_fewer_rows_unless_cells_run_elsewhere():
    typed = KernelArguments(("dequant",), device="cpu")
    assert {group[0].rows for group in kernel_cells(typed)} == {64}
    assert {group[0].rows for group in kernel_cells(typed, elsewhere=True)} == {4096, 65536, 524288}
    long_rows = replace(kernel("dequant"), bench=replace(kernel("dequant").bench, cpu_rows=4))
    assert {rows for _, rows, _ in shapes(long_rows, (), (), "cpu")} == {4}
    assert {rows for _, rows, _ in shapes(long_rows, (8,), (), "cpu")} == {8}


def test_every_kernel_of_the_catalogue_says_its_shapes():
    assert [name for name in CATALOGUE if kernel(name).bench is None] == []


def test_a_kernel_that_names_no_shapes_is_timed_on_its_examples():
    bare = replace(kernel("rms_norm"), bench=None)
    assert list(shapes(bare, (), (), "cuda")) == [
        (f"example {number}", None, shape) for number, shape in enumerate(bare.examples, start=1)
    ]


def test_auto_leaves_torch_out_where_another_provider_runs(monkeypatch):
    rms_norm = kernel("rms_norm")
    own = tuple(provider.name for provider in rms_norm.providers)
    assert chosen(rms_norm, ["auto"], "cpu") == own  # nobody else can run
    monkeypatch.setattr("dsv4bench.kernels.contract.Needs.why_not", lambda needs, device: None)
    assert chosen(rms_norm, ["auto"], "cuda") == own[1:]
    assert chosen(rms_norm, ["all"], "cuda") == own
    assert chosen(rms_norm, ["auto", "torch"], "cuda") == (*own[1:], "torch")
    assert chosen(rms_norm, ["flash_mla"], "cuda") == ()


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_case_of_a_kernel_makes_a_shape(name):
    bench = kernel(name).bench
    made = [bench.shape(rows, case) for case in bench.cases for rows in bench.rows]
    assert len({repr(shape) for shape in made}) == len(made) > 0


def test_a_group_is_one_shape_and_a_key_one_provider_and_commit():
    (group,) = kernel_cells(KernelArguments(("rms_norm",), case=("width 512",), device="cpu"))
    other = kernel_cells(KernelArguments(("rms_norm",), case=("width 512",), device="cpu", seed="1"))[0]
    assert len({cell.group for cell in group}) == 1
    assert len({cell.key("a") for cell in group}) == len(group)
    assert group[0].key("a") != group[0].key("b")
    assert group[0].group != other[0].group


def test_a_provider_that_cannot_run_says_why():
    (group,) = kernel_cells(KernelArguments(("rms_norm",), case=("width 512",), device="cpu"))
    by_name = {cell.provider: cell for cell in group}
    assert by_name["torch"].of().name == "torch"
    with pytest.raises(CellSkipped, match=r"needs a CUDA device|the package 'triton' is not installed"):
        by_name["triton"].of()


def test_a_function_of_a_users_file_is_held_to_the_kernels_arguments(tmp_path):
    (tmp_path / "own.py").write_text("def norm(**tensors):\n    tensors['out'].zero_()\n")
    own = (f"{tmp_path}/own.py:norm",)
    ((cell,),) = kernel_cells(KernelArguments(("rms_norm",), ("2",), case=("width 512",), provider=own, device="cpu"))
    tensors = {name: torch.ones(2, 512) for name in ("x", "weight", "out")} | {"eps": 0.0}
    with pytest.raises(ValueError, match=r"^x: float32 \[2, 512\], expected bfloat16 \[rows, width\]$"):
        cell.of().to_time(tensors)
