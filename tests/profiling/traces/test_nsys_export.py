"""Reports of Nsight Systems: exported once by the nsys on the PATH, which is a script here."""

import os
import time

import pytest

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces import nsys_export, open_trace
from tests.profiling.traces import nsys_exports as made

EXPORTS = """#!/bin/sh
echo "$@" >> "{log}"
test "$1 $2 $3 $4 $5 $6" = "export --type sqlite -f true -o" && cp "{made}" "$7"
"""


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A report in a folder of its own, and a home and a PATH without nsys."""
    monkeypatch.setattr(nsys_export, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin{os.pathsep}/usr/bin")
    (tmp_path / "bin").mkdir()
    (tmp_path / "reports").mkdir()
    path = tmp_path / "reports" / "step.nsys-rep"
    path.write_bytes(b"a report")
    return path


@pytest.fixture
def install(tmp_path):
    """Puts a script on the PATH as nsys, which may name {log} and {made}, an export; returns what tells its calls."""
    exported = tmp_path / "made.sqlite"
    log = tmp_path / "log"

    def install(script, export=True):
        if export:
            made.export(exported, {made.KERNEL: [made.kernel(1, 2, 1)]})
        nsys = tmp_path / "bin" / "nsys"
        nsys.write_text(script.format(log=log, made=exported))
        nsys.chmod(0o755)
        return lambda: log.read_text().splitlines() if log.exists() else []

    return install


def test_a_report_is_exported_once(report, install, tmp_path):
    calls = install(EXPORTS)
    for _ in range(2):
        trace = nsys_export.read(report)
        assert (trace.source, trace.format, len(trace.operations)) == (str(report), "nsys", 1)
    assert len(calls()) == 1
    assert calls()[0].endswith(str(report))
    assert [file.name.split("-")[0] for file in (tmp_path / "cache").iterdir()] == ["step"]
    assert list(report.parent.iterdir()) == [report]


def test_the_cache_keeps_no_environment_of_a_report(report, install, tmp_path):
    made.export(
        tmp_path / "made.sqlite",
        {
            made.KERNEL: [made.kernel(1, 2, 1)],
            "META_DATA_EXPORT": [{"name": "EXPORT_PRODUCT_VERSION", "value": "2025.5.2"}],
            "META_DATA_CAPTURE": [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE_3", "value": "TOKEN=hunter2"}],
        },
    )
    install(EXPORTS, export=False)
    assert nsys_export.read(report).facts["nsys"] == "2025.5.2"
    (kept,) = (tmp_path / "cache").iterdir()
    assert b"hunter2" not in kept.read_bytes()


def test_an_export_that_is_no_database_is_told(report, install, tmp_path):
    (tmp_path / "made.sqlite").write_text("no database, whatever its name and however long it is")
    install(EXPORTS, export=False)
    with pytest.raises(TraceFormatError, match=r"cannot be exported: file is not a database$"):
        nsys_export.read(report)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_changed_report_is_exported_again(report, install):
    calls = install(EXPORTS)
    nsys_export.read(report)
    report.write_bytes(b"another report")
    nsys_export.read(report)
    assert len(calls()) == 2


def test_the_cache_keeps_what_was_used_last_up_to_its_size(report, install, tmp_path, monkeypatch):
    install(EXPORTS)
    reports = [report.with_stem(f"step{number}") for number in range(4)]
    exported = []
    for number, file in enumerate(reports):
        file.write_bytes(b"a report")
        if number == 3:
            nsys_export.export(reports[0], tmp_path / "cache")  # used again
            monkeypatch.setattr(nsys_export, "MOST_BYTES", 3 * exported[0].stat().st_size)
        exported.append(nsys_export.export(file, tmp_path / "cache"))
        os.utime(exported[-1], (1_000 + number, 1_000 + number))
    assert [file.exists() for file in exported] == [True, False, True, True]


@pytest.mark.parametrize(("seconds", "exports"), [(1, 0), (-1, 1)], ids=["newer", "older"])
def test_an_export_beside_the_report_is_taken_unless_it_is_older(report, install, seconds, exports):
    calls = install(EXPORTS)
    beside = made.export(report.with_suffix(".sqlite"), {made.KERNEL: [made.kernel(1, 2, 1)] * 3})
    changed = report.stat().st_mtime + seconds
    os.utime(beside, (changed, changed))
    assert len(nsys_export.read(report).operations) == (1 if exports else 3)
    assert len(calls()) == exports


def test_a_report_and_its_export_in_a_folder_are_one_rank(report):
    made.export(report.with_suffix(".sqlite"), {made.KERNEL: [made.kernel(1, 2, 1)]})
    assert [trace.source for trace in open_trace.open_trace(report.parent)] == [str(report.with_suffix(".sqlite"))]


def test_without_nsys_the_error_says_what_to_run_elsewhere(report):
    with pytest.raises(TraceFormatError, match=r"nsys export --type sqlite -o step\.sqlite step\.nsys-rep$") as caught:
        open_trace.open_trace(report)
    assert "\n" not in str(caught.value)


def test_an_nsys_that_fails_is_told_with_its_last_line(report, install, tmp_path):
    install("#!/bin/sh\necho Exporting\necho 'Importer error: wrong version' >&2\nexit 3\n")
    with pytest.raises(TraceFormatError, match=r"nsys export failed with 3: Importer error: wrong version$"):
        nsys_export.read(report)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_nsys_that_writes_nothing_is_told(report, install):
    install("#!/bin/sh\nexit 0\n")
    with pytest.raises(TraceFormatError, match=r"cannot be exported: .*No such file"):
        nsys_export.read(report)


def test_an_nsys_that_hangs_is_ended_with_its_children(report, install, tmp_path):
    install("#!/bin/sh\nsleep 30 & sleep 30\n")
    start = time.monotonic()
    with pytest.raises(TraceFormatError, match=r"did not finish within 0\.2 s"):
        nsys_export.export(report, tmp_path / "cache", timeout_s=0.2)
    assert time.monotonic() - start < 10


def test_a_cache_that_cannot_be_written_is_one_line(report, install, tmp_path):
    install(EXPORTS)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(TraceFormatError, match="cannot be exported"):
        nsys_export.read(report)
