"""The ceilings: operations that read and write what they say, in the mix that a kernel has."""

import pytest
import torch

from dsv4bench.kernels.contract import Cost
from dsv4bench.profiling.ceilings import MIXES, Mover, even_mover, large_mover, matmul, mixed_mover

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("read", "written", "mix"),
    [
        (296, 1024, (1, 4)),  # FP4: reads 22 %
        (536, 1024, (1, 2)),  # V41: reads 34 %
        (1000, 1000, (1, 1)),
        (5200, 1600, (3, 1)),
        (2000, 1000, (2, 1)),
        (0, 10, (1, 4)),
        (10, 0, (3, 1)),
    ],
)
def test_the_mix_is_the_nearest(read, written, mix):
    mover = mixed_mover(Cost(0, 1000 * read, 1000 * written))
    assert (mover.reads, mover.writes) == mix
    assert mover.bytes_moved == pytest.approx(1000 * (read + written), rel=0.01, abs=2000)


@pytest.mark.parametrize("mix", MIXES)
def test_a_mover_holds_the_bytes_that_it_moves_and_writes_all_of_them(mix):
    mover = Mover(*mix, chunks=3)
    tensors = mover.tensors(CPU)
    sizes = {name: 4 * tensor.numel() for name, tensor in tensors.items()}
    assert sum(sizes.values()) == mover.bytes_moved
    assert mover.read_share == pytest.approx(1 - sizes["out"] / mover.bytes_moved)
    for number, name in enumerate(name for name in tensors if name != "out"):
        tensors[name].copy_(torch.arange(3 * 64).view(3, 1, 64) + 1000 * number)
    tensors["out"].fill_(float("nan"))
    mover.build(tensors)()
    base = torch.arange(3.0 * 64).view(3, 1, 64)
    wanted = {1: base + 1, 2: 2 * base + 1000, 3: base + (base + 1000) * (base + 2000)}[mix[0]]
    assert torch.equal(tensors["out"], wanted.expand(3, mix[1], 64))


def test_the_even_mover_is_one_contiguous_pass():
    mover = even_mover(512 * 10)
    assert (mover.reads, mover.writes, mover.chunks, mover.bytes_moved) == (1, 1, 10, 5120)
    assert large_mover(torch.device("cuda")).bytes_moved == 4 * 1024**3


def test_a_tiny_kernel_still_has_a_mover():
    assert mixed_mover(Cost(0, 4, 4)).chunks == 1


def test_the_product_is_written_and_counted():
    call, flops = matmul(CPU)
    call()
    assert flops == 2 * 256**3
