"""Our Triton kernels inside a real step, each audited against its reference on the step's own inputs."""

import pytest
import torch

from dsv4bench.profiling import verify
from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.verify import KernelAudit
from dsv4bench.workloads.variant import KV_PAIRS, Variant
from tests.workloads.stacks import SHORT, batch, cell


@pytest.mark.parametrize(
    ("kv", "compressor"),
    [
        ("v4", "fused"),
        ("v41", "fused"),
        ("v41+fp4", "fused"),
        ("v41+fp4", "torch"),
        pytest.param("v41_new+fp4_new", "fused", marks=pytest.mark.slow),
        pytest.param("uniform", "torch", marks=pytest.mark.slow),
    ],
)
def test_every_kernel_of_a_step_is_within_its_tolerance(interpreted, kv, compressor):
    made = cell(SHORT, batch((7, 2), (130, 2), bucket=8), kv=kv, torch_path=True)
    step = made.step(Variant(kv=KV_PAIRS[kv], compressor=compressor, provider="triton"))
    audit = step.ops.audit = KernelAudit(SHORT)
    (forward,) = made.all_forwards()
    with torch.no_grad():
        _, watch = verify.observe(step, [forward], lambda _: run_pieces(step.pieces(forward.batch.rows)))
    assert audit.wrong == []
    assert audit.compared >= 40
    assert watch.check(expected=4).passed  # layers 2 and 4 read their neighbours' heads, 6 and 7 that of layer 5
