"""The page, read as a browser reads it: what stands where, that names stay text, and that nothing is loaded."""

import base64
import hashlib
import io
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pandas as pd
import pytest

from dsv4bench.dashboards.render import csv_text
from dsv4bench.dashboards.report import Doctored, marked, report
from dsv4bench.dashboards.tables import tables
from dsv4bench.results.reviews import Finding
from dsv4bench.results.schema import encode
from dsv4bench.results.store import NO_TIME_LEFT
from tests.results.synthetic import lost, record, sweep, with_side, with_variant

BAD = "<script>alert(1)</script>\" onload='x' {{ 7*7 }}"
VOID = {"meta", "input"}


class Html(HTMLParser):
    """The elements of a page: (tag, attributes, text within it and all inside it)."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append([tag, dict(attributes), ""])
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def of(self, tag, **wanted):
        named = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
        return [one for one in self.elements if one[0] == tag and named.items() <= one[1].items()]

    def text(self, tag, **wanted):
        return [one[2] for one in self.of(tag, **wanted)]


def bare(records):
    """The records without what has figures of its own, so that a page takes no time."""
    return [replace(one, counts=[], memory={}) for one in records]


SIDES = bare([record(1, "off"), record(1, "on")])
AB = bare(
    [with_side(with_variant(one, provider=BAD), "a" if one.variant["reuse"] == "off" else "b") for one in sweep()]
)
MODELLED = [
    replace(one, label="modelled", environment={"gpu": "B300 (modelled)"}, samples_ns={"step_period": [10**7]})
    for one in SIDES
]


@cache
def judged():
    return report(AB)


@cache
def timed():
    return report(SIDES)


def test_names_of_records_stay_text():
    page = Html(judged())
    assert len(page.of("script")) == 1
    assert not [name for _, attributes, _ in page.elements for name in attributes if name.startswith("on")]
    assert BAD in page.of("section", id="results")[0][2]
    assert BAD in page.of("figure", id="ab-step-time")[0][2]


def test_nothing_is_loaded_and_only_our_own_script_runs():
    page = Html(judged())
    assert not page.of("link") + page.of("img") + page.of("iframe") + page.of("style", src=None)
    addresses = [
        attributes[name] for _, attributes, _ in page.elements for name in ("src", "href") if name in attributes
    ]
    assert {address.partition(":")[0] if ":" in address else address[0] for address in addresses} == {"#", "data"}
    ((_, policy, _),) = page.of("meta", http_equiv="Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.text("script")[0].encode()).digest()).decode()
    assert policy["content"].startswith(f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';")


def test_every_verdict_is_a_row_that_says_what_it_sorts_and_filters_by():
    page = Html(judged())
    (table,) = [one for one in page.elements if one[1].get("id") == "results-1"]
    assert table[0] == "section"
    assert "reuse=off (a) against reuse=on (b)" in table[2]
    words = [(one[1]["data-value"], one[2]) for one in page.of("td") if "verdict" in one[1].get("class", "")]
    assert len(words) == 6
    heads = [one[2] for one in page.of("th")]
    assert heads[heads.index("verdict") - 1] == "mode"  # in sight on a phone
    assert words[-1][0] == ""  # the graph of the largest batch was refused
    assert all(text.startswith(value or "none") for value, text in words)
    # side a of batch 8, whatever its unit: two pairs of 5 samples, 10 us apart, the eleventh left over
    assert "159995000.0" in {one[1]["data-value"] for one in page.of("td")}


def test_parts_stand_in_the_order_in_which_they_are_read():
    after = ["Figures", "Tables", "Environment", "Numbers to download"]
    assert Html(judged()).text("h2") == ["What ran", "Verdicts", *after]
    assert Html(timed()).text("h2") == ["What ran", "Step times", *after]
    links = [one[1]["href"] for one in Html(timed()).of("a") if one[1]["href"].startswith("#")]
    assert links == ["#summary", "#results", "#figures", "#tables", "#environment", "#numbers"]


def test_the_head_says_what_matters():
    (facts,) = Html(judged()).text("ul", class_="facts")
    assert "12 records of 2026-11-30: 10 ok, 2 refused" in facts
    assert re.search(r"verdicts: .*1 without one", facts)
    assert Html(timed()).text("title")[:1] == ["Attention stack of v41-flash on NVIDIA H200"]


def test_what_a_time_limit_left_out_and_a_resumed_run_measured_is_counted_once():
    left_out = [replace(lost("skipped", NO_TIME_LEFT, batch=batch), created="2026-11-30T11:00:00") for batch in (1, 2)]
    page = Html(report([*left_out, record(1), record(1, "off")]))
    assert "3 records of 2026-11-30: 1 skipped, 2 ok" in page.text("ul", class_="facts")[0]
    (summary,) = [one for one in page.elements if one[1].get("id") == "summary-1"]
    assert "1 skipped, 2 ok" in summary[2]
    held = [one[1]["href"] for one in page.of("a") if one[1].get("download") == "records.jsonl"]
    assert base64.b64decode(held[0].partition("base64,")[2]).count(b"\n") == 4  # the download has them all


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without figures; the list of what was asked for."""
    asked = []
    monkeypatch.setattr("dsv4bench.dashboards.report.figures", lambda *call: iter(asked.append(call) or ()))
    return asked


def test_what_a_reader_must_see_is_in_the_head(undrawn):
    whole = [record(2, "off"), record(2, "on"), *MODELLED[:1], replace(record(4), label="simulated", counts=[])]
    wrong = replace(lost("wrong", "a check failed", batch=8), checks=[{"name": "x", "passed": False, "detail": ""}])
    (facts,) = Html(report([*whole, wrong], with_model=True)).text("ul", class_="facts")
    assert "compressed dequants a forward, reuse off → on: 38 → 4" in facts
    assert "modelled: 1 record (predicted by a model, nothing ran)" in facts
    assert "simulated: 1 record (ranks ran one by one)" in facts
    assert "WRONG: 1 cell with a failed check" in facts


def test_what_is_modelled_is_left_out_and_counted_unless_it_is_asked_for(undrawn):
    without, with_model = Html(report([*SIDES, *MODELLED])), Html(report([*SIDES, *MODELLED], with_model=True))
    assert "left out: 2 records that are modelled" in without.text("ul", class_="facts")[0]
    assert "B300" not in "".join(without.text("h1") + without.text("h3") + without.text("td"))
    assert [(len(records), model) for records, model in undrawn] == [(2, False), (4, True)]
    headings = [one for one in with_model.text("h3") if "B300" in one]
    assert headings
    assert set(with_model.text("mark")) == {"modelled"}
    with pytest.raises(ValueError, match="no records"):
        report(MODELLED)


def test_figures_have_their_svg_a_name_and_a_caption():
    page = Html(timed())
    (figure,) = page.of("figure")
    assert figure[1] == {"id": "step-time", "tabindex": "0"}
    assert [one[1]["role"] for one in page.of("svg")] == ["img"]
    assert page.text("figcaption")[0].startswith("Step time against batch")


def held(page, name):
    ((_, link, _),) = Html(page).of("a", download=name)
    return base64.b64decode(link["href"].partition("base64,")[2]).decode()


def test_all_numbers_can_be_downloaded():
    assert held(judged(), "records.jsonl") == "".join(map(encode, AB))
    assert held(judged(), "tables.csv") == csv_text(tables(AB))
    rows = pd.read_csv(io.StringIO(held(timed(), "records.csv")))
    assert list(rows["reuse"]) == ["off", "on"]
    assert list(rows["time_ns"]) == [20_000_000, 19_500_000]


def test_the_same_records_give_the_same_bytes():
    assert report(SIDES) == timed()


def test_findings_of_traces_are_shown_and_traces_that_could_not_be_read(undrawn):
    wrong = Finding("graph-mode", True, "kernels of replays are missing", {"graph_runs": 10}, "nsys profile <x>")
    page = Html(report(SIDES[:1], [Doctored("a.sqlite", [wrong]), Doctored("<b>", reason="does not lie there")]))
    ((_, _, text),) = page.of("section", id="traces")
    assert "a.sqlite: Findings: 1, 1 of which make counts wrong" in text
    assert "wrong: graph-mode: kernels of replays are missing [graph_runs=10]" in text
    assert "nsys profile <x>" in text
    assert "<b>: does not lie there" in text


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a modelled time", "a <mark>modelled</mark> time"),
        ("simulated, <b>", "<mark>simulated</mark>, &lt;b&gt;"),
        ("remodelled", "remodelled"),
        ("a\x1bb", "a b"),
        ("38 -> 4", "38 → 4"),
    ],
)
def test_what_was_not_measured_stands_out(text, html):
    assert marked(text) == html
