"""Slots that a forward is to write are spoilt, all others are left as they are."""

import torch

from dsv4bench.workloads.poison import POISON, poison_slots
from dsv4bench.workloads.variant import Variant
from tests.workloads.stacks import SHORT, batch, cell


def test_only_the_slots_of_live_rows_are_spoilt():
    made = cell(SHORT, batch((3, 2), (10, 1), bucket=4))
    (forward,) = made.all_forwards()
    before = [tensor.clone() for tensor in (*made.pools.swa, *made.pools.compressed.values())]
    poison_slots(SHORT, Variant(), made.pools, forward)
    after = [*made.pools.swa, *made.pools.compressed.values()]
    # V41 window rows of 528 bytes: three new tokens; FP4 rows of 288: three at ratio 1, at ratio 2 only position 3
    written = dict.fromkeys(range(len(SHORT.ratios)), 3 * 528)
    compressed = [288 * (3 if SHORT.ratios[source] == 1 else 1) for source in made.pools.compressed]
    for expected, old, new in zip([*written.values(), *compressed], before, after, strict=True):
        changed = old != new
        assert (new[changed] == POISON).all()
        assert int((new == POISON).sum()) >= expected
        assert int(changed.sum()) <= expected


def test_index_keys_are_spoilt_too_and_padding_is_not():
    made = cell(SHORT, batch((3, 2), bucket=4))
    (forward,) = made.all_forwards()
    for cache in made.pools.index_k.values():
        cache.zero_()
    poison_slots(SHORT, Variant(), made.pools, forward)
    sizes = {source: int((cache == POISON).sum()) for source, cache in made.pools.index_k.items()}
    assert sizes == {source: 68 * (2 if SHORT.ratios[source] == 1 else 1) for source in made.pools.index_k}


def test_an_idle_forward_spoils_nothing():
    made = cell(SHORT, batch((3, 2)))
    before = [tensor.clone() for tensor in made.pools.written()]
    (forward,) = made.all_forwards()
    poison_slots(SHORT, Variant(), made.pools, made.forward(type(forward.batch)((), bucket=4).padded(4)))
    assert all(torch.equal(old, new) for old, new in zip(before, made.pools.written(), strict=True))
