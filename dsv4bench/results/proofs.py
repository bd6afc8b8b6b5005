"""What proving the replays of graphs found: one comparison for each bucket, batch and thing that must be equal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# byte for byte what an eager run over the same padded rows leaves
AS_EAGER = ("outputs", "latents", "compressed", "index K", "window", "rings")
# static inputs at their addresses with this batch's offsets; nothing else written; padding zero; as without padding
OTHERS = ("offsets", "untouched", "padding", "live rows")
WHATS = (*AS_EAGER, *OTHERS)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing that was compared, one of `WHATS`, and in words how it differs; "" where it holds."""

    what: str
    differs: str


@dataclass(frozen=True, slots=True)
class ProofRow:
    """What the replay of one batch, `live` rows in a bucket of `bucket`, was found to do."""

    bucket: int
    batch: str
    live: int
    comparisons: tuple[Comparison, ...]

    @property
    def complaints(self) -> list[str]:
        """One line for each thing that differs, naming bucket, batch and thing."""
        return [
            f"bucket {self.bucket}, {self.batch}: {one.what}: {one.differs}" for one in self.comparisons if one.differs
        ]


@dataclass(frozen=True, slots=True)
class Proof:
    """All replays of one variant; `reason` says why they came to an end early, `switches` are the variant's."""

    switches: dict[str, str | bool | None]
    graph: str  # what was replayed: "breakable tape", "breakable CUDA graph"
    rows: tuple[ProofRow, ...]
    reason: str | None = None

    @property
    def holds(self) -> bool:
        """Whether every replay did what it must, and there was one."""
        return bool(self.rows) and self.reason is None and not any(row.complaints for row in self.rows)

    def plain(self) -> dict[str, Any]:
        """Return the proof as plain objects."""
        return asdict(self) | {"holds": self.holds}
