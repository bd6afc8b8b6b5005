"""The page in a real browser: at the width of a desk and of a phone, without errors, sorted and filtered by hand."""

from base64 import b64decode
from dataclasses import replace

import pytest

from dsv4bench.dashboards.report import report
from dsv4bench.results.schema import encode
from tests.dashboards.browser import chromium, program
from tests.results.synthetic import sweep, with_side, with_variant

pytestmark = [pytest.mark.browser, pytest.mark.skipif(program() is None, reason="there is no Chromium")]

NAME = "<script>document.title = 'bad'</script><img src=x onerror=\"document.title = 'bad'\">"
WIDTHS = {"desk": 1280, "phone": 390}
VERDICT = 'document.querySelector("#results-1 table")'
COLUMN = f"[...{VERDICT}.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[%d].textContent)"
BATCHES = ["1 x 1024", "1 x 1024", "8 x 1024", "8 x 1024", "64 x 128", "64 x 128"]


@pytest.fixture(scope="module")
def records():
    named = [with_variant(one, provider=NAME) for one in sweep()]
    return [with_side(one, "a" if one.variant["reuse"] == "off" else "b") for one in named]


@pytest.fixture(scope="module")
def file(records, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report(records), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(tab):
    """The tab; whatever a test did, nothing may have gone wrong in it and nothing may have been fetched."""
    yield tab
    errors, requests = list(tab.errors), list(tab.requests)
    tab.errors.clear()
    tab.requests.clear()
    assert (errors, [url for url in requests if not url.startswith("data:")]) == ([], [])


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_opens_from_a_file_and_fits(page, file, width, colours):
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
    page.open(file, width)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run("document.title").startswith("Attention stack of v41-flash")  # no name of a record ran
    light = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (colours == "light")
    drawn = page.run("[...document.querySelectorAll('figure svg')].map(one => one.getBoundingClientRect().height)")
    assert len(drawn) == 4
    assert min(drawn) > 200


def test_a_head_sorts_up_down_and_back_and_needs_no_mouse(page, file):
    page.open(file, WIDTHS["desk"])
    times = page.run(COLUMN % 3)
    assert page.run(COLUMN % 0) == BATCHES
    page.run(f"{VERDICT}.tHead.rows[0].cells[3].querySelector('button').focus()")
    page.press("Enter", "\r")
    first = page.run(COLUMN % 3)
    assert page.run(f"{VERDICT}.tHead.rows[0].cells[3].ariaSort") == "ascending"
    page.press("Enter", "\r")
    assert page.run(COLUMN % 3) == [*first[4::-1], first[5]]  # what has no time stays last
    page.press("Enter", "\r")
    assert page.run(COLUMN % 3) == times


def test_columns_sort_by_their_values_and_not_by_their_texts(page, file):
    page.open(file, WIDTHS["desk"], after="#sort=results-1:0:-1")
    assert page.run(COLUMN % 0) == [*BATCHES[4:], *BATCHES[2:4], *BATCHES[:2]]  # 64, 8, 1


@pytest.mark.parametrize(
    ("after", "shown"),
    [("#filter=graph+64", ["64 x 128"]), ("#filter=nothing+like+it", []), ("#summary", BATCHES)],
    ids=["two words", "nothing", "an anchor"],
)
def test_the_address_holds_a_filter(page, file, after, shown):
    page.open(file, WIDTHS["phone"], after=after)
    assert page.run(COLUMN % 0) == shown
    assert page.run("document.querySelector('output').value") == f"{len(shown)} of 6 rows"


def test_a_filter_is_typed_and_kept_in_the_address(page, file):
    page.open(file, WIDTHS["desk"])
    page.run("document.querySelector('.filter input').focus()")
    page.call("Input.insertText", text="Eager")
    assert page.run(COLUMN % 0) == BATCHES[::2]
    assert page.run("location.hash") == "#filter=Eager"
    word = page.run("document.querySelector('.filter select').options[1].value")
    choose = f"((select) => {{ select.value = {word!r}; select.dispatchEvent(new Event('input')) }})"
    page.run(f"{choose}(document.querySelector('.filter select'))")
    shown = page.run(f"[...{VERDICT}.tBodies[0].rows].filter(row => !row.hidden).map(row => row.textContent)")
    assert shown
    assert all("eager" in row and word in row for row in shown)


def test_without_scripts_it_is_a_plain_page(page, file):
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(file, WIDTHS["desk"])
        html = page.run("document.documentElement.outerHTML")
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "<button" not in html
    assert '<form class="filter" hidden' in html
    assert html.count("<table>") > 2


def test_numbers_come_out_of_the_page_as_they_are_in_the_records(page, file, records):
    page.open(file, WIDTHS["desk"])
    address = page.run("document.querySelector('a[download=\"records.jsonl\"]').href")
    assert b64decode(address.partition("base64,")[2]).decode() == "".join(map(encode, records))


def test_points_say_their_values(page, file):
    page.open(file, WIDTHS["desk"])
    said = page.run("[...document.querySelectorAll('#ab-step-time use > title')].map(one => one.textContent)")
    assert any(one.startswith("before: reuse=off\n19.995 (") for one in said)


def test_a_page_without_results_has_no_error(page, tmp_path):
    empty = tmp_path / "empty.html"
    empty.write_text(report([replace(sweep()[0], variant={})]), encoding="utf-8")
    page.open(empty, WIDTHS["phone"])
    assert page.run("document.querySelector('.filter')") is None
