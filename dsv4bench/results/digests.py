"""Whether two source trees leave the same bytes behind: hashes of every output, side by side, and a control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# {"digests": output -> sha256} or {"error": sentence}; a control has "perturbed" too, None where nothing could be
Outcome = Mapping[str, Any]
NO_CONTROL = "no control: no other value of one element of its inputs changes an output"


@dataclass(frozen=True, slots=True)
class Subject:
    """What was run: kernel, case, rows and provider."""

    kernel: str
    case: str
    rows: int | None
    provider: str


@dataclass(frozen=True, slots=True)
class DigestRow:
    """One output of one subject: its hash from both trees, from the perturbed inputs (None: no control), and errors.

    `perturbed` is what the control changed, or "no control: " and why there is none; None where none was asked for.
    """

    subject: Subject
    output: str
    a: str | None
    b: str | None
    control: str | None
    error: str | None = None
    perturbed: str | None = None

    @property
    def equal(self) -> bool:
        """Whether both trees gave the same bytes."""
        return self.a is not None and self.a == self.b

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rest = {name: getattr(self, name) for name in ("output", "a", "b", "control", "perturbed", "equal", "error")}
        return {**asdict(self.subject), **rest}


def digest_rows(
    subjects: Sequence[Subject], a: Sequence[Outcome], b: Sequence[Outcome], control: Sequence[Outcome] | None
) -> list[DigestRow]:
    """Join the outcomes of both trees, and of the control, subject by subject; one row per output, or per error."""
    rows = []
    for one, first, second, third in zip(subjects, a, b, control or [{} for _ in subjects], strict=True):
        sides = {"A": first, "B": second, "control": third}
        errors = {side: outcome["error"] for side, outcome in sides.items() if outcome.get("error")}
        if errors:
            rows.append(DigestRow(one, "", None, None, None, _joined(errors)))
            continue
        left, right, other = (outcome.get("digests", {}) for outcome in (first, second, third))
        perturbed = third.get("perturbed") or (NO_CONTROL if control is not None else None)
        rows += [
            DigestRow(one, name, left.get(name), right.get(name), other.get(name), None, perturbed)
            for name in {**left, **right}
        ]
    return rows


def _joined(errors: Mapping[str, str]) -> str:
    """Return the errors of the sides, or the one error that all of them had."""
    same = set(errors.values())
    return same.pop() if len(errors) > 1 and len(same) == 1 else "; ".join(f"{s}: {text}" for s, text in errors.items())


def complaints(rows: Sequence[DigestRow], controlled: bool) -> list[str]:
    """Return what is wrong: errors, outputs that differ, and subjects that a perturbed input did not change."""
    found = [f"{_name(row.subject)}: {row.error}" for row in rows if row.error]
    found += [f"{_name(row.subject)}: {row.output} differs" for row in rows if not row.error and not row.equal]
    able = [row.subject for row in rows if not row.error and row.perturbed != NO_CONTROL]
    for one in dict.fromkeys(able) if controlled else ():
        if all(row.control == row.b for row in rows if row.subject == one):
            found.append(f"{_name(one)}: the control did not differ: these digests would not show such a change")
    return found


def _name(one: Subject) -> str:
    return " ".join(str(word) for word in (one.kernel, one.case, one.rows, one.provider) if word not in ("", None))
