"""RMSNorm of rows: hand-made rows, float64, rows of wider buffers, and arguments that are refused."""

import pytest
import torch

from dsv4bench.kernels.rms_norm import KERNEL, Shape, cost, inputs

NAN = float("nan")


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider over a poisoned output that is a slice of a wider buffer; return the buffer on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(x, weight, eps=1e-20):
        rows, width = x.shape
        buffer = torch.full((rows + 1, width + 8), NAN, dtype=torch.bfloat16, device=where)
        out = buffer[:rows, :width]
        KERNEL.provider(request.param).build({"x": x.to(where), "weight": weight.to(where), "eps": eps, "out": out})()
        return buffer.cpu()

    return call


def test_rows_by_hand(run):
    """(3, 4, 0, 0) has the mean square 6.25; eps = 9 makes that of (0, 8, 0, 0), 16, a 25; a zero row stays zero."""
    weight = torch.tensor([1.0, 2.0, -1.0, 0.5]).bfloat16()
    rows = torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]).bfloat16()
    assert run(rows, weight)[:2, :4].tolist() == [[1.203125, 3.203125, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    assert run(torch.tensor([[0.0, 8.0, 0.0, 0.0]]).bfloat16(), weight, 9.0)[0, :4].tolist() == [0.0, 3.203125, 0, 0]


@pytest.mark.parametrize("shape", [Shape(3, 512, 512), Shape(4, 96, 160), Shape(1, 1280, 1792)], ids=str)
def test_float64_and_nothing_beside_the_rows(shape, run):
    made = inputs(shape, torch.Generator().manual_seed(9))
    x, weight = made["x"].double(), made["weight"].double()
    want = x / (x.square().mean(dim=1, keepdim=True) + made["eps"]).sqrt() * weight
    buffer = run(made["x"], made["weight"], made["eps"])
    got = buffer[: shape.rows, : shape.width].double()
    torch.testing.assert_close(got, want, rtol=2**-8 + 1e-6, atol=1e-30)  # half a step of bf16, and an f32 error
    assert buffer[shape.rows :].isnan().all()
    assert buffer[:, shape.width :].isnan().all()


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        pytest.param(
            "x", lambda x: x.repeat(1, 2)[:, ::2], r"x: dimension 1 has stride 2, expected 1", id="x-channels-apart"
        ),
        pytest.param(
            "out", lambda out: out[:2], r"out: bfloat16 \[2, 64\], expected bfloat16 \[3, 64\]", id="out-rows"
        ),
        pytest.param(
            "out",
            lambda out: out.T.contiguous().T,
            r"out: dimension 1 has stride 3, expected 1",
            id="out-channels-apart",
        ),
    ],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = inputs(Shape(3, 64, 80), torch.Generator().manual_seed(9))
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


def test_the_cost_counts_each_row_once_each_way(generator):
    found = cost(inputs(Shape(3, 64, 80), generator))
    assert (found.flops, found.bytes_read, found.bytes_written) == (4 * 192, 2 * (192 + 64), 2 * 192)
