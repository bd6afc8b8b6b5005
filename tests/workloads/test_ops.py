"""How a step calls an operation: ranges, providers, audits and GEMMs."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.errors import CellSkipped
from dsv4bench.kernels import kernel
from dsv4bench.kernels.contract import Provider
from dsv4bench.ranges import Range
from dsv4bench.workloads import providers
from dsv4bench.workloads.ops import Ops
from tests.workloads.stacks import SHORT, Heard, bits

WINDOW, SOURCE, SHARER = SHORT.layers[0], SHORT.layers[3], SHORT.layers[4]


class Diary:
    """A mark and an audit that write down what happens, in order."""

    def __init__(self, launches=True):
        self.lines = []
        self._launches = launches

    def enter(self, rng):
        self.lines.append(f"enter {rng.op}")

    def exit(self, rng):
        self.lines.append(f"exit {rng.op}")

    def audit(self, rng, kernel, provider, tensors, call):
        self.lines.append(f"{kernel.name} by {provider.name} in layer {rng.layer}: {', '.join(tensors)}")
        if self._launches:
            call()


def norm_tensors():
    x = torch.tensor([[3.0, -4.0], [0.0, 0.0]]).bfloat16()
    return {"x": x, "weight": torch.tensor([1.0, 2.0]).bfloat16(), "eps": 1e-20, "out": torch.full_like(x, 9.0)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (WINDOW, Range(0, 0, 0, None, "combine", 2)),
        (SOURCE, Range(0, 3, 2, 3, "combine", 2)),
        (SHARER, Range(0, 4, 2, 3, "combine", 2)),
    ],
    ids=["window only", "source", "sharer"],
)
def test_a_range_says_whose_rows_a_layer_reads(kind, expected):
    assert Ops("torch", "cpu", rank=2).range(kind, "combine") == expected


def test_a_range_is_the_same_object_every_time():
    ops = Ops("torch", "cpu")
    assert ops.range(SOURCE, "combine") is ops.range(SOURCE, "combine")
    assert ops.range(SOURCE, "combine") is not ops.range(SHARER, "combine")
    assert ops.range(SOURCE, None) is not ops.range(SOURCE, "combine")


def test_run_computes_inside_its_range():
    ops, diary, tensors = Ops("torch", "cpu"), Diary(), norm_tensors()
    ops.mark = diary
    ops.run(SOURCE, "q_norm", "rms_norm", **tensors)
    assert diary.lines == ["enter q_norm", "exit q_norm"]
    # the root mean square of (3, -4) is 5 / sqrt(2); eps leaves a zero row zero
    expected = torch.tensor([[3 * 2**0.5 / 5, -8 * 2**0.5 / 5], [0, 0]])
    torch.testing.assert_close(tensors["out"].float(), expected, rtol=2**-7, atol=0)


def test_an_audit_is_asked_in_place_of_the_launch():
    ops, diary, tensors = Ops("torch", "cpu"), Diary(launches=False), norm_tensors()
    ops.mark, ops.audit = diary, diary.audit
    ops.run(SOURCE, "q_norm", "rms_norm", **tensors)
    assert diary.lines == ["enter q_norm", "rms_norm by torch in layer 3: x, weight, eps, out", "exit q_norm"]
    assert (tensors["out"] == 9.0).all()


def test_an_audit_may_launch():
    ops, diary, tensors = Ops("torch", "cpu"), Diary(), norm_tensors()
    ops.audit = diary.audit
    ops.run(SOURCE, "q_norm", "rms_norm", **tensors)
    assert (tensors["out"] != 9.0).all()


def test_ops_say_what_each_kernel_ran_on():
    ops = Ops("torch", "cpu")
    assert ops.ran_on == {}
    ops.run(SOURCE, "q_norm", "rms_norm", **norm_tensors())
    assert ops.ran_on == {"rms_norm": "torch"}


@pytest.fixture
def picky(monkeypatch):
    """Give rms_norm a provider "sglang" that fills `out` with 7 and takes two rows alone; return what it was asked."""
    asked = []

    def refuses(tensors):
        asked.append(len(tensors["x"]))
        return None if len(tensors["x"]) == 2 else f"takes 2 rows, not {len(tensors['x'])}"

    own = kernel("rms_norm")
    theirs = Provider("sglang", lambda tensors: lambda: tensors["out"].fill_(7.0), refuses=refuses)
    made = replace(own, providers=(own.provider("torch"), theirs))
    monkeypatch.setattr(providers, "kernel", lambda name: made if name == "rms_norm" else kernel(name))
    return asked


def one_row():
    return {name: value[:1] if name in ("x", "out") else value for name, value in norm_tensors().items()}


def test_ours_runs_a_call_that_the_provider_of_all_refuses(picky):
    ops, diary = Ops("sglang", "cpu"), Diary()
    ops.audit = diary.audit
    calls = [norm_tensors(), one_row(), one_row(), norm_tensors()]
    for tensors in calls:
        ops.run(SOURCE, "q_norm", "rms_norm", **tensors)
    assert [bool((tensors["out"] == 7.0).all()) for tensors in calls] == [True, False, False, True]
    assert [line.split(" in ")[0] for line in diary.lines] == [
        "rms_norm by sglang",
        "rms_norm by torch",
        "rms_norm by torch",
        "rms_norm by sglang",
    ]
    assert picky == [2, 1, 1, 2]  # once a call


@pytest.mark.parametrize(
    ("calls", "ran_on"),
    [
        ([norm_tensors], "sglang"),
        ([one_row], "torch"),
        ([norm_tensors, one_row], "sglang, torch"),
        ([one_row, norm_tensors], "sglang, torch"),
    ],
    ids=["taken", "refused", "taken, then refused", "refused, then taken"],
)
def test_ops_name_all_that_a_kernel_ran_on(picky, calls, ran_on):
    ops = Ops("sglang", "cpu")
    for tensors in calls:
        ops.run(SOURCE, "q_norm", "rms_norm", **tensors())
    assert ops.ran_on == {"rms_norm": ran_on}


def test_a_provider_named_for_a_kernel_skips_the_cell_that_it_refuses(picky):
    ops, diary, tensors = Ops("rms_norm=sglang", "cpu"), Diary(), one_row()
    ops.mark = diary
    with pytest.raises(CellSkipped, match=r"^provider sglang of rms_norm: takes 2 rows, not 1$"):
        ops.run(SOURCE, "q_norm", "rms_norm", **tensors)
    assert diary.lines == []  # no range is left open
    assert (tensors["out"] == 9.0).all()


def test_an_operation_outside_the_catalogue_is_refused():
    with pytest.raises(KeyError, match="no_such_kernel"):
        Ops("torch", "cpu").run(SOURCE, "no_such_op", "no_such_kernel")


def test_within_leaves_its_range_when_the_work_fails():
    ops, diary = Ops("torch", "cpu"), Diary()
    ops.mark = diary

    def work():
        with ops.within(SOURCE, "zero_padding"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert diary.lines == ["enter zero_padding", "exit zero_padding"]


def product(out_dtype):
    """Multiply rows of 1 + 2^-7 + 2^-14 as a product: its last bit does not fit into bf16."""
    ops, heard = Ops("torch", "cpu"), Heard()
    ops.mark = heard
    near_one = torch.full((3, 4), 1 + 2**-7).bfloat16()
    weight = torch.zeros(4, 2).bfloat16()
    weight[0, 0], weight[1, 1] = 1 + 2**-7, -1.0
    out = torch.full((3, 2), 9.0, dtype=out_dtype)
    ops.matmul(SOURCE, "compress_proj", near_one, weight, out)
    assert heard.ops() == ["compress_proj"]
    return out


def test_an_f32_product_is_not_rounded():
    assert product(torch.float32).tolist() == [[1 + 2**-6 + 2**-14, -(1 + 2**-7)]] * 3


def test_a_bf16_product_is_rounded_once():
    assert product(torch.bfloat16).tolist() == [[1 + 2**-6, -(1 + 2**-7)]] * 3


def test_a_product_writes_where_it_is_told(generator):
    """A view of a wider buffer takes the product, and its neighbours keep their bits."""
    wide = torch.full((3, 6), float("nan"))
    x = torch.randn(3, 8, generator=generator, device=generator.device).bfloat16().cpu()
    weight = torch.randn(8, 2, generator=generator, device=generator.device).bfloat16().cpu()
    before = bits(wide)
    Ops("torch", "cpu").matmul(SOURCE, "compress_proj", x, weight, wide[:, 2:4])
    torch.testing.assert_close(wide[:, 2:4].double(), x.double() @ weight.double(), rtol=1e-5, atol=1e-6)
    assert torch.equal(bits(wide)[:, [0, 1, 4, 5]], before[:, [0, 1, 4, 5]])
