"""One page of HTML of everything that records hold: it needs no network, and the same records give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsv4bench import __version__
from dsv4bench.dashboards.figures import figures
from dsv4bench.dashboards.finding_table import finding_table
from dsv4bench.dashboards.inline_svg import inline_svg
from dsv4bench.dashboards.kernel_tables import kernel_tables
from dsv4bench.dashboards.render import csv_text
from dsv4bench.dashboards.run_tables import environment_table, run_table
from dsv4bench.dashboards.style import ALARM, DOUBT, GAIN, highlights
from dsv4bench.dashboards.table import Cell, Column, Table, printable
from dsv4bench.dashboards.tables import tables, verdicts
from dsv4bench.dashboards.time_tables import step_tables
from dsv4bench.results.compare import latest, pairs, reached_records
from dsv4bench.results.counts import COMPRESSED
from dsv4bench.results.frame import frame
from dsv4bench.results.record import Record
from dsv4bench.results.reviews import Finding
from dsv4bench.results.schema import encode
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import judge
from dsv4bench.units import format_bytes, format_count

TEMPLATES = Path(__file__).with_name("templates")
LABELS = re.compile(r"\b(modelled|simulated)\b")
KINDS = {ALARM: "alarm", GAIN: "gain", DOUBT: "doubt"}  # what words are on a terminal, and in the page
LONG_CHARACTERS = 36  # of a cell, from where on it has lines


@dataclass(frozen=True, slots=True)
class Doctored:
    """What the doctor found in a trace that a record names, or why it could not be read."""

    name: str
    findings: Sequence[Finding] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the page, with what it holds: sentences, tables, figures and files to download."""

    id: str
    title: str
    says: Sequence[str] = ()
    tables: Sequence[dict[str, Any]] = ()
    figures: Sequence[dict[str, str]] = ()
    files: Sequence[dict[str, str]] = field(default=())

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.says or self.tables or self.figures or self.files)


def report(records: Sequence[Record], traces: Sequence[Doctored] = (), with_model: bool = False) -> str:
    """Return the page of the records; modelled ones are left out, and counted, unless `with_model`.

    `traces` are what the doctor found in traces that the records name. ValueError without a record to show.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    shown = [record for record in records if with_model or record.label != "modelled"]
    if not shown:
        raise ValueError("no records to show")
    script = (TEMPLATES / "report.js").read_text("utf-8")
    page = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page.filters["marked"] = marked
    return page.get_template("report.html").render(
        title=_title(shown),
        facts=[*_facts(shown), *_left_out(records, shown)],
        parts=[part for part in _parts(shown, traces, with_model) if not part.empty],
        policy=_policy(script),
        script=Markup(script),
        version=__version__,
    )


def marked(text: str) -> Any:
    """Return a text as HTML in which the words for what was not measured stand out, and an arrow is one sign."""
    from markupsafe import Markup, escape

    return Markup(LABELS.sub(r"<mark>\1</mark>", str(escape(printable(text.replace("->", "→"))))))


def _policy(script: str) -> str:
    """Return what a browser may do with the page: run this script, show its styles, and load nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"


def _title(records: Sequence[Record]) -> str:
    machines = " and ".join(dict.fromkeys(record.machine for record in records))
    geometries = " and ".join(dict.fromkeys(record.geometry for record in records if record.geometry))
    return f"Attention stack of {geometries} on {machines}" if geometries else f"Kernels on {machines}"


def _facts(records: Sequence[Record]) -> list[str]:
    """Return what a reader wants to know first, a line each."""
    records = reached_records(records)
    statuses = Counter(record.status for record in records)
    days = sorted({record.created[:10] for record in records})
    said = [
        f"{format_count(len(records), 'record')} of {' to '.join(dict.fromkeys((days[0], days[-1])))}:"
        f" {', '.join(f'{count} {status}' for status, count in statuses.items())}"
    ]
    words = Counter(one.word or "without one" for one in judge(trials(records)) if not one.trial.aa)
    said += [f"verdicts: {', '.join(f'{count} {word}' for word, count in words.items())}"] if words else []
    said += [f"compressed dequants a forward, {text}" for text in _dequants(records)]
    for label, meaning in (("modelled", "predicted by a model, nothing ran"), ("simulated", "ranks ran one by one")):
        count = sum(record.label == label for record in records)
        said += [f"{label}: {format_count(count, 'record')} ({meaning})"] if count else []
    wrong = statuses["wrong"]
    return [
        *said,
        *([f"WRONG: {format_count(wrong, 'cell')} with a failed check, which have no time"] if wrong else []),
    ]


def _dequants(records: Sequence[Record]) -> list[str]:
    """Return the compressed dequants of both sides, each distinct change once."""
    beside = [(f"{one.sides[0]} -> {one.sides[1]}", one.a, one.b) for one in trials(records)]
    plain = [record for record in records if record.ab is None and record.kernel is None]
    beside += [("reuse off -> on", pair.before, pair.after) for pair in pairs(plain, "reuse", "off", "on")]
    counted = [(sides, _calls(a), _calls(b)) for sides, a, b in beside if a and b and a.counts and b.counts]
    return list(dict.fromkeys(f"{sides}: {a} -> {b}" for sides, a, b in counted if a != b))


def _calls(record: Record) -> int:
    return sum(row["calls"] or 0 for row in record.counts if row["op"] == COMPRESSED)


def _left_out(records: Sequence[Record], shown: Sequence[Record]) -> list[str]:
    count = len(records) - len(shown)
    return [f"left out: {format_count(count, 'record')} that are modelled (--with-model shows them)"] if count else []


def _parts(records: Sequence[Record], traces: Sequence[Doctored], with_model: bool) -> list[Part]:
    every = tables(records)
    title, results = _results(records)
    judged = _step_tables([record for record in records if record.ab is not None])  # a verdict says more
    rest = [table for table in every if table not in (*results, *judged)]
    drawings = [
        {"id": one.name, "says": one.says, "svg": _markup(inline_svg(one))} for one in figures(records, with_model)
    ]
    return [
        Part("summary", "What ran", tables=_all("summary", [run_table(reached_records(records))])),
        Part("results", title, tables=_all("results", results)),
        Part("figures", "Figures", figures=drawings),
        Part("tables", "Tables", tables=_all("tables", rest)),
        Part("traces", "Traces", says=_unread(traces), tables=_all("traces", _findings(traces))),
        Part("environment", "Environment", tables=_all("environment", [environment_table(records)])),
        Part("numbers", "Numbers to download", files=_files(records, every)),
    ]


def _results(records: Sequence[Record]) -> tuple[str, list[Table]]:
    """Return the tables that answer what was asked: verdicts, step times without one, or kernels where no step ran."""
    judged, times = verdicts(records), _step_tables([record for record in records if record.ab is None])
    if judged or times:
        titles = [title for title, found in (("Verdicts", judged), ("Step times", times)) if found]
        return " and ".join(titles).capitalize(), [*judged, *times]
    return "Kernels", kernel_tables(records)


def _step_tables(records: Sequence[Record]) -> list[Table]:
    return step_tables(pairs([one for one in latest(records) if one.kernel is None], "reuse", "off", "on"))


def _markup(html: str) -> Any:
    from markupsafe import Markup

    return Markup(html)


def _findings(traces: Sequence[Doctored]) -> list[Table]:
    found = [(one.name, finding_table(one.findings)) for one in traces if one.reason is None]
    return [replace(table, title=f"{name}: {table.title}") for name, table in found]


def _unread(traces: Sequence[Doctored]) -> list[str]:
    return [f"{one.name}: {one.reason}" for one in traces if one.reason is not None]


def _files(records: Sequence[Record], every: Sequence[Table]) -> list[dict[str, str]]:
    """Return what can be downloaded; the page itself holds it."""
    return [
        _file("tables.csv", "text/csv", "all tables, with both bounds of every interval", csv_text(every)),
        _file(
            "records.csv", "text/csv", "a row for each record", frame(records).to_csv(index=False, lineterminator="\n")
        ),
        _file(
            "records.jsonl", "application/jsonl", "the records themselves, every sample", "".join(map(encode, records))
        ),
    ]


def _file(name: str, kind: str, says: str, text: str) -> dict[str, str]:
    held = text.encode("utf-8", "backslashreplace")
    address = f"data:{kind};charset=utf-8;base64,{base64.b64encode(held).decode()}"
    return {"name": name, "says": says, "size": format_bytes(len(held)), "address": address}


def _all(part: str, found: Sequence[Table]) -> list[dict[str, Any]]:
    return [_plain(part, place, table) for place, table in enumerate(found, start=1)]


def _plain(part: str, place: int, table: Table) -> dict[str, Any]:
    """Return a table as the page shows it: the columns with something to read, and of each cell what it sorts by."""
    shown = _order(
        table, [at for at, one in enumerate(table.columns) if one.title and any(row[at].text for row in table.rows)]
    )
    columns = [table.columns[at] for at in shown]
    rows = [[_cell(column, row[at]) for at, column in zip(shown, columns, strict=True)] for row in table.rows]
    return {"id": f"{part}-{place}", "title": table.title, "columns": columns, "rows": rows, "notes": table.notes}


def _order(table: Table, shown: Sequence[int]) -> list[int]:
    """Return the places of columns with a verdict behind the mode: on a phone it must be in sight."""
    words = [at for at in shown if "verdict" in table.columns[at].names]
    others = [at for at in shown if at not in words]
    begin = next((place + 1 for place, at in enumerate(others) if "mode" in table.columns[at].names), len(others))
    return [*others[:begin], *words, *others[begin:]]


def _cell(column: Column, cell: Cell) -> dict[str, str]:
    value = cell.values[0]
    kinds = {
        "right": column.right,
        "long": len(cell.text) > LONG_CHARACTERS,
        "verdict": "verdict" in column.names,
    }
    kinds |= {KINDS[style]: bool(re.search(words, cell.text)) for words, style in highlights().items()}
    kind = " ".join(name for name, holds in kinds.items() if holds)
    return {"text": cell.text, "value": "" if value is None else printable(str(value)), "kind": kind}
