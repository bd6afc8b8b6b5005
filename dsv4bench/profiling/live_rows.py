"""What padding does to the rows that are live: nothing where work runs at the live row count, and rounding elsewhere.

Source projections run at the live row count (specification 6.6). So on equal inputs a source's latents, compressed rows
and ring are the same bytes with and without padding. All other GEMMs run over the padding too and round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.verify import Check
from dsv4bench.workloads.break_forms import ATTENTION, EAGER, Form
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.late_layers import early
from dsv4bench.workloads.poison import source_rows
from dsv4bench.workloads.step import Step

TOPK_RECALL = 0.99  # specification 6.5
LAYER_TOLERANCE = 2e-2  # of the norm of a layer's attention output: bf16 GEMMs round otherwise at another row count


@dataclass(frozen=True, slots=True)
class _Difference:
    """How a layer over live rows differs from the same over padded ones; `error` and top-k agreement are shares."""

    layer: int
    error: float
    agreement: float
    changed: tuple[str, ...]  # what must be byte-equal and is not


def compare_live_rows(step: Step, forward: Forward, form: Form = EAGER) -> Check:
    """Check, layer by layer on equal inputs, that padding changes the live rows by no more than a GEMM's rounding.

    Latents, compressed rows and rings must be equal byte for byte. Top-k is a choice, which a rounding step near a tie
    turns over: both runs of a layer read the padded run's choice, and how much of it the live run would have chosen is
    a bound of its own.
    """
    step.pools.restore_rings()
    step.poison()
    step.load(forward)
    found = list(_differences(step, forward, form)) if forward.live else []
    worst = max(found, key=lambda one: one.error, default=_Difference(0, 0.0, 1.0, ()))
    recall = min((one.agreement for one in found), default=1.0)
    changed = [name for one in found for name in one.changed]
    detail = (
        f"attention outputs differ by {worst.error:.2g} of their norm at most (layer {worst.layer}), allowed"
        f" {LAYER_TOLERANCE:g}; top-k agrees to {recall:.3f} at least, expected {TOPK_RECALL:g};"
        f" latents, compressed rows and rings are byte-equal{f' but for {changed[0]}' if changed else ''}"
    )
    passed = worst.error <= LAYER_TOLERANCE and recall >= TOPK_RECALL and not changed
    return Check("padded rows against live rows", passed, detail)


def _differences(step: Step, forward: Forward, form: Form) -> Iterator[_Difference]:
    rows = forward.batch.rows
    for kind in early(step.geometry, step.variant):
        yield _layer_against_live(step, kind, rows, forward, form)
    if step.tail is not None and forward.tail is not None:
        tail_rows = forward.tail.batch.rows
        run_pieces(step.tail_pieces(rows, tail_rows, form))
        for kind in step.late_layers:
            yield _layer_against_live(step.tail, kind, tail_rows, forward.tail, form)


def _layer_against_live(step: Step, kind: LayerKind, rows: int, forward: Forward, form: Form) -> _Difference:
    """Run one layer over padded rows, then over live rows from the same inputs.

    The padded run's results are what the next layer reads.
    """
    live, residual = forward.live, step.buffers.residual[:rows]
    raw = (step.buffers.raw_1 if kind.ratio == 1 else step.buffers.raw_2)[:live]
    source = _Source(step, kind, forward) if kind.owns_kv else None
    before = (step.inputs.hidden[:rows] if kind.layer == 0 else residual).clone()
    run_pieces(step.layer(kind, rows, form))
    padded, choice, expected = residual.clone(), raw.clone(), step.buffers.attention[:live].clone()
    if source is not None:
        source.keep()
    residual.copy_(before)
    pieces = step.layer(kind, live, form)
    attention = next(place for place, piece in enumerate(pieces) if piece.part == ATTENTION)
    run_pieces(pieces[:attention])
    agreement = _agreement(raw, choice) if kind.owns_index else 1.0
    raw.copy_(choice)
    run_pieces(pieces[attention:])
    error = _relative(step.buffers.attention[:live].float() - expected.float(), expected.float())
    residual.copy_(padded)
    changed = tuple(source.changed()) if source is not None else ()
    return _Difference(kind.layer, float("inf") if error != error else error, agreement, changed)


class _Source:
    """What a source leaves behind, made anew by a second run from the same ring."""

    def __init__(self, step: Step, kind: LayerKind, forward: Forward) -> None:
        self._layer = kind.layer
        self._rows = source_rows(step.geometry, step.pools, kind.layer, forward)
        self._ring = step.pools.rings.get(kind.layer)
        self._latent = step.buffers.latent[: forward.live]
        # the fused compressor writes no latent of an even position
        pairs = forward.inputs.pair_loc[: forward.live] >= 0
        self._latents = pairs if kind.ratio == 2 else torch.ones_like(pairs)
        self._parked = None if self._ring is None else self._ring.clone()
        self._kept: dict[str, torch.Tensor] = {}
        self._spoil()

    def keep(self) -> None:
        """Keep what the first run left, spoil it, and put the ring back as that run found it."""
        self._kept = {name: tensor.clone() for name, tensor in self._left().items()}
        self._spoil()
        if self._ring is not None and self._parked is not None:
            self._ring.copy_(self._parked)

    def changed(self) -> Iterator[str]:
        """Yield the names of what the second run left otherwise."""
        for name, tensor in self._left().items():
            if not torch.equal(tensor.view(torch.uint8), self._kept[name].view(torch.uint8)):
                yield f"{name} of layer {self._layer}"

    def _spoil(self) -> None:
        """Spoil what a run is to write; bytes that no run writes (of V4, specification 2.1) are then equal."""
        self._latent.fill_(float("nan"))
        for rows in self._rows:
            rows.spoil()

    def _left(self) -> dict[str, torch.Tensor]:
        compressed, _ = self._rows
        found = {"latents": self._latent[self._latents], "compressed rows": compressed.read()}
        return found if self._ring is None else found | {"ring": self._ring}


def _agreement(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the share of the chosen positions of `want` [rows, k] that `got` chose too; -1 is no position.

    Where there is none to choose, in a first token at ratio 2, both agree if neither chose any.
    """
    chosen = want >= 0
    if not chosen.any().item():
        return float(not (got >= 0).any().item())
    tiles = zip(torch.split(want, 64), torch.split(got, 64), strict=True)
    found = torch.cat([(one[:, :, None] == other[:, None, :]).any(dim=2) for one, other in tiles])
    return ((found & chosen).sum() / chosen.sum().clamp(min=1)).item()


def _relative(difference: torch.Tensor, of: torch.Tensor) -> float:
    norm = of.norm().item()
    return difference.norm().item() / norm if norm else 0.0
