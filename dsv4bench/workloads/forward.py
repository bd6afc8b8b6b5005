"""What one forward reads besides weights and caches: rows, slots, lengths and gather tables (specification 5, 6.2).

`make_forward` builds them on the device from host lengths, so that no step ever waits for the device. `RowInputs` are
the tensors that captured kernels read: one set of static storage that `load` refreshes in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dsv4bench.kernels.layout import FULL_PAGE
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.pools import PageTables


@dataclass(frozen=True, slots=True)
class RowInputs:
    """Tensors with one entry per row, and the request offsets of the ratio-2 ring write-back (specification 5.3)."""

    hidden: torch.Tensor  # [rows, hidden] bf16: what the layers below hand to layer 0
    positions: torch.Tensor  # [rows] i64
    req: torch.Tensor  # [rows] i64: row of the page table
    loc: torch.Tensor  # [rows] i64: full slot, 0 on padding
    pair_loc: torch.Tensor  # [rows] i64: slot of ratio 2 on odd positions, else -1
    swa_loc: torch.Tensor  # [rows] i32: window slot, -1 on padding
    offsets: torch.Tensor  # [2, slots] i32: first row and rows of each request, 0 beyond the last one

    @property
    def starts(self) -> torch.Tensor:
        """The first row of each request."""
        return self.offsets[0]

    @property
    def lens(self) -> torch.Tensor:
        """The rows of each request."""
        return self.offsets[1]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return every tensor, in the order of the fields."""
        return (self.hidden, self.positions, self.req, self.loc, self.pair_loc, self.swa_loc, self.offsets)

    def load(self, other: RowInputs) -> None:
        """Copy `other` (as many rows or fewer, and as many slots) into these storages; addresses stay as they are."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine[: theirs.shape[0]].copy_(theirs)


@dataclass(frozen=True, slots=True)
class Gather:
    """Where the compressed rows of one ratio lie in the workspace, and which slots fill them."""

    rows: int
    ids: torch.Tensor  # [rows] i32: compressed slots, request by request
    bases: torch.Tensor  # [requests] i32: first workspace row of each request's compressed rows
    swa_bases: torch.Tensor  # [requests] i32: first workspace row of each request's window rows


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of one rank: its rows, and what the attention core reads by reference.

    Where the late layers are replayed, `tail` is the forward of the rows that they run on, and `tail_rows` says which
    rows of this forward those are.
    """

    batch: Batch
    inputs: RowInputs
    query_start: torch.Tensor  # [requests + 1] i32
    seq_lens: torch.Tensor  # [requests] i32
    gather_lens: torch.Tensor  # [requests] i32: window rows gathered for each request
    swa_ids: torch.Tensor  # [window rows] i32
    gathers: dict[int, Gather]  # ratio -> compressed part; ratio 0 has none
    visible: dict[int, int]  # ratio -> most compressed positions that a row may see
    floor: torch.Tensor  # [page-table rows] i32: the first position that a packed window may hold
    tail: Forward | None = None
    tail_rows: torch.Tensor | None = None  # [rows of the tail] i64, row 0 for padding

    @property
    def live(self) -> int:
        """Rows that belong to a request."""
        return self.batch.live

    @property
    def swa_rows(self) -> int:
        """Window rows of the workspace."""
        return self.swa_ids.shape[0]

    @property
    def workspace_rows(self) -> int:
        """Rows of the workspace at the layer that needs most."""
        return self.swa_rows + max((g.rows for g in self.gathers.values()), default=0)


def make_forward(geometry: Geometry, tables: PageTables, batch: Batch, seed: int, replay: bool = False) -> Forward:
    """Build the tensors of `batch` on the device of the page tables; `seed` draws the hidden states.

    With `replay` the forward gets a tail, whose packed windows begin `window` tokens before each request's end.
    """
    forward = _make_forward(geometry, tables, batch, seed)
    if not replay:
        return forward
    short = batch.tail(geometry.window, len(tables.extents))
    tail = _make_forward(geometry, tables, short, None)
    floors = [0] * len(tables.extents)
    for request in () if short.idle else short.requests:
        floors[request.index] = max(0, request.seq - geometry.window)
    tail.floor.copy_(torch.tensor(floors, dtype=torch.int32))
    return replace(forward, tail=tail, tail_rows=_tail_rows(batch, short, tables.page_table.device))


def _tail_rows(batch: Batch, short: Batch, device: torch.device) -> torch.Tensor:
    """Return which rows of `batch` the tail runs on: the last of each request; row 0 stands for padding."""
    rows: list[int] = []
    if not batch.idle:
        for start, whole, kept in zip(batch.starts, batch.extends, short.extends, strict=True):
            rows += range(start + whole - kept, start + whole)
    return torch.tensor([*rows, *([0] * (short.rows - len(rows)))], dtype=torch.int64, device=device)


def _make_forward(geometry: Geometry, tables: PageTables, batch: Batch, seed: int | None) -> Forward:
    """Build one forward without a tail; no `seed`: no hidden states, since its rows come from another forward."""
    device = tables.page_table.device
    requests = () if batch.idle else batch.requests
    index = torch.tensor([r.index for r in requests], dtype=torch.int64, device=device)
    seq = torch.tensor([r.seq for r in requests], dtype=torch.int64, device=device)
    extend = torch.tensor([r.extend for r in requests], dtype=torch.int64, device=device)
    window_rows = torch.minimum(seq, extend + geometry.window - 1)
    swa_req, swa_pos = _ragged([min(r.seq, r.extend + geometry.window - 1) for r in requests], device)
    swa_pos = swa_pos + (seq - window_rows)[swa_req]
    swa_ids = tables.full_to_swa[tables.full_slots(index[swa_req], swa_pos)].int()
    ratios = sorted({kind.ratio for kind in geometry.layers})
    return Forward(
        batch=batch,
        inputs=_row_inputs(geometry, tables, batch, seed),
        query_start=_offsets(extend, final=True),
        seq_lens=seq.int(),
        gather_lens=window_rows.int(),
        swa_ids=swa_ids,
        gathers={r: _gather(tables, r, [q.seq for q in requests], index, _offsets(window_rows)) for r in ratios},
        visible={r: max((q.seq // r for q in requests), default=0) for r in ratios if r},
        floor=torch.zeros(len(tables.extents), dtype=torch.int32, device=device),
    )


def _ragged(counts: list[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (group, index within the group), i64, of `counts[g]` entries for each group g, without a device sync."""
    total = sum(counts)
    sizes = torch.tensor(counts, dtype=torch.int64, device=device)
    group = torch.repeat_interleave(torch.arange(len(counts), device=device), sizes, output_size=total)
    return group, torch.arange(total, device=device) - _offsets(sizes).long()[group]


def _offsets(sizes: torch.Tensor, final: bool = False) -> torch.Tensor:
    """Return the exclusive running sum as i32, with the total at the end when `final`."""
    zero = torch.zeros(1, dtype=torch.int64, device=sizes.device)
    running = torch.cat((zero, sizes.cumsum(0)))
    return (running if final else running[:-1]).int()


def _gather(tables: PageTables, ratio: int, seqs: list[int], index: torch.Tensor, swa_offsets: torch.Tensor) -> Gather:
    device = tables.page_table.device
    counts = [seq // ratio if ratio else 0 for seq in seqs]
    group, column = _ragged(counts, device)
    page_rows = FULL_PAGE // max(ratio, 1)
    pages = tables.page_table[index[group], column // page_rows].long() if counts else group
    rows = sum(counts)
    return Gather(
        rows=rows,
        ids=(pages * page_rows + column % page_rows).int(),
        bases=_offsets(torch.tensor(counts, dtype=torch.int64, device=device)),
        swa_bases=swa_offsets + rows,
    )


def _row_inputs(geometry: Geometry, tables: PageTables, batch: Batch, seed: int | None) -> RowInputs:
    device = tables.page_table.device
    live, pads = batch.live, batch.pads
    requests = () if batch.idle else batch.requests
    group, within = _ragged([r.extend for r in requests], device)
    prefix = torch.tensor([r.prefix for r in requests], dtype=torch.int64, device=device)
    index = torch.tensor([r.index for r in requests], dtype=torch.int64, device=device)
    position = within + prefix[group]
    req = index[group]
    loc = tables.full_slots(req, position)
    swa_loc = tables.full_to_swa[loc].int()
    pair_loc = torch.where(position % 2 == 1, loc // 2, -1)
    last = requests[-1].index if requests else 0  # padded rows borrow the last request (specification 5.1)
    hidden = torch.zeros(0 if seed is None else batch.rows, geometry.hidden, dtype=torch.bfloat16, device=device)
    if seed is not None:
        hidden[:live].normal_(generator=torch.Generator(device=device).manual_seed(seed))
    slots = len(tables.extents)  # every column, so that loading a smaller forward leaves no request of the one before
    return RowInputs(
        hidden=hidden,
        positions=_pad(position, pads, 0),
        req=_pad(req, pads, last),
        loc=_pad(loc, pads, 0),
        pair_loc=_pad(pair_loc, pads, -1),
        swa_loc=_pad(swa_loc, pads, -1),
        offsets=_extend_offsets(requests, slots, device),
    )


def _pad(rows: torch.Tensor, pads: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, pads), value=value)


def _extend_offsets(requests: tuple[Request, ...], slots: int, device: torch.device) -> torch.Tensor:
    """Return `low_ratio_extend_offsets` [2, slots] (specification 5.3); padding belongs to no request."""
    batch, rest = Batch(requests), [0] * (slots - len(requests))
    return torch.tensor([[*batch.starts, *rest], [*batch.extends, *rest]], dtype=torch.int32, device=device)


def static_inputs(geometry: Geometry, tables: PageTables, rows: int, hidden: bool = True) -> RowInputs:
    """Allocate the static storage of `rows` rows: zero rows, no request; a tail has no `hidden` states of its own."""
    device = tables.page_table.device

    def table(dtype: torch.dtype, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    long, short, slots = torch.int64, torch.int32, len(tables.extents)
    return RowInputs(
        hidden=torch.zeros(rows if hidden else 0, geometry.hidden, dtype=torch.bfloat16, device=device),
        positions=table(long, rows),
        req=table(long, rows),
        loc=table(long, rows),
        pair_loc=table(long, rows),
        swa_loc=table(short, rows),
        offsets=torch.zeros(2, slots, dtype=short, device=device),
    )
