"""The table of a proof: each bucket and batch with what of its replay is equal, and a line for each difference."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.table import Cell, Column, Table, cell, empty
from dsv4bench.results.proofs import AS_EAGER, OTHERS, Proof, ProofRow

COLUMNS = (
    Column("bucket", ("bucket",)),
    Column("batch", ("batch",), right=False),
    Column("live", ("live",)),
    Column("eager", AS_EAGER, right=False),
    *(Column(what, (what,), right=False) for what in OTHERS),
)
EQUAL = "="
SWITCHES = ("kv", "compressor", "breaks", "break-outputs", "replay", "path", "provider")


def proof_table(proof: Proof) -> Table:
    """Return the table of one variant's replays: "=" where all that was compared is equal, else "DIFFERS".

    CSV has "=" or how it differs. Nothing stands where there is nothing to compare: live rows of a batch without
    padding or without a live row.
    """
    words = [f"{name} {proof.switches[name]}" for name in SWITCHES]
    title = f"Replays of a {proof.graph or 'graph'}: {', '.join(words)}"
    return Table(title, COLUMNS, tuple(map(_row, proof.rows)), tuple(_notes(proof)))


def _row(row: ProofRow) -> tuple[Cell, ...]:
    found = {one.what: one.differs for one in row.comparisons}
    eager = tuple(found[what] or EQUAL for what in AS_EAGER)
    others = (_other(found[what] or EQUAL) if what in found else empty() for what in OTHERS)
    return (cell(row.bucket), cell(row.batch), cell(row.live), Cell(_verdict(eager), eager), *others)


def _other(differs: str) -> Cell:
    return cell(differs, _verdict([differs]))


def _verdict(differences: Sequence[str]) -> str:
    return EQUAL if all(one == EQUAL for one in differences) else "DIFFERS"


def _notes(proof: Proof) -> list[str]:
    notes = [line for row in proof.rows for line in row.complaints]
    if proof.reason is not None:
        notes.append(f"failed: {proof.reason}")
    if proof.holds:
        sizes = ", ".join(map(str, dict.fromkeys(row.bucket for row in proof.rows)))
        notes.append(f"proven for bucket {sizes}: replays in a row, each of another batch than the one before")
    return notes
