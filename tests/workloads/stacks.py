"""What tests of a step share: small stacks, weights that round nothing, prepared cells, and a mark that listens."""

from collections import Counter
from dataclasses import fields, replace
from functools import cache

import torch

from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.prefill import prepare
from dsv4bench.workloads.variant import KV_PAIRS, Variant
from dsv4bench.workloads.weights import make_model

CPU = torch.device("cpu")

# every kind of layer once or twice: window only, two ratio-2 sources with a sharer each, the candidate source with a
# sharer, and an index source that consumes its candidates
SHORT = replace(
    V41_FLASH_MINI,
    name="short",
    hidden=64,
    heads=2,
    q_rank=32,
    o_rank=16,
    index_heads=2,
    index_topk=16,
    candidate_blocks=2,
    ratios=(0, 2, 2, 2, 2, 1, 1, 1),
    kv_sources=(1, 3, 5),
    index_sources=(1, 3, 5, 7),
    candidate_source=5,
)

# the 40 layers of v41-flash at the widths of `SHORT`
DEEP = replace(
    SHORT,
    name="deep",
    ratios=V41_FLASH_MINI.ratios,
    kv_sources=V41_FLASH_MINI.kv_sources,
    index_sources=V41_FLASH_MINI.index_sources,
    candidate_source=V41_FLASH_MINI.candidate_source,
)


class Heard:
    """A mark that remembers the ranges it entered."""

    def __init__(self):
        self.ranges = []

    def enter(self, rng):
        self.ranges.append(rng)

    def exit(self, rng):
        pass

    def ops(self, layer=None):
        return [rng.op for rng in self.ranges if layer in (None, rng.layer)]

    def calls(self, *ops):
        return Counter(rng.op for rng in self.ranges if not ops or rng.op in ops)

    def per_source(self, op):
        return dict(Counter(rng.kv_source for rng in self.ranges if rng.op == op))


class Slots:
    """Slots of a token by the definitions of the glossary, one token at a time."""

    def __init__(self, tables):
        self._pages = tables.page_table.tolist()
        self._swa = tables.full_to_swa.tolist()

    def full(self, request, position):
        return self._pages[request][position // 256] * 256 + position % 256

    def swa(self, request, position):
        return self._swa[self.full(request, position)]

    def compressed(self, request, column, ratio):
        return self.full(request, column * ratio) // ratio


def batch(*requests, bucket=None):
    """Return a batch of (prefix, extend) pairs, in a bucket of rows where one is given."""
    made = Batch(tuple(Request(index, *lengths) for index, lengths in enumerate(requests)))
    return made if bucket is None else made.padded(bucket)


def cell(geometry, *batches, kv="v41+fp4", torch_path=False, exact=False, seed=0, break_copies=False, **switches):
    """Prepare a cell of one rank whose forwards are `batches`."""
    return prepare(model_of(geometry, exact, seed), variant(kv=kv, **switches), (batches,), torch_path, break_copies)


@cache
def model_of(geometry, exact=False, seed=0):
    """Return the random model of a seed, or the one that rounds nothing."""
    model = make_model(geometry, CPU, seed)
    return picking(model) if exact else model


def picking(model):
    """Return `model` with matrices that pick one channel, halved, for each output.

    Such a product rounds nothing, so it is the same at any row count: what is left of a difference is no GEMM's.
    """
    generator = torch.Generator().manual_seed(model.seed)
    return replace(model, weights=tuple(_picking(weights, generator) for weights in model.weights))


def _picking(weights, generator):
    found = {}
    for name in (f.name for f in fields(weights)):
        value = getattr(weights, name)
        if name in ("source", "index"):
            found[name] = None if value is None else _picking(value, generator)
        elif value.dim() > 1:
            found[name] = _pick(value.shape, generator)
    return replace(weights, **found)


def _pick(shape, generator):
    chosen = torch.randint(shape[-2], (*shape[:-2], 1, shape[-1]), generator=generator)
    return torch.zeros(shape, dtype=torch.bfloat16).scatter_(-2, chosen, 0.5)


def run(step, forward, rows=None):
    """Run one forward from the rings as the prefix left them; return its output rows."""
    step.pools.restore_rings()
    return follow(step, forward, rows)


def follow(step, forward, rows=None):
    """Run one forward on top of what ran before it."""
    step.load(forward)
    rows = forward.batch.rows if rows is None else rows
    for piece in step.pieces(rows):
        piece.run()
    return step.output(rows).clone()


def hear(step, forward):
    """Run one forward and return what its mark heard."""
    step.ops.mark = heard = Heard()
    run(step, forward)
    return heard


def bits(tensor):
    """Return a tensor's bits as integers, so that NaN equals NaN and -0.0 does not equal 0.0."""
    if not tensor.is_floating_point():
        return tensor.clone()
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()]).clone()


def written(pools):
    """Return the bits of every cache and ring, the reserved page 0 apart."""
    return [bits(tensor) for tensor in pools.written()]


def same(first, second):
    """Return whether two lists of tensors are equal, one by one."""
    return [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == [True] * len(first)


def variant(**switches):
    """Return a variant of the torch provider with a KV pair by its name."""
    return Variant(**{**switches, "kv": KV_PAIRS[switches.get("kv", "v41+fp4")]})
