"""Where the traces with known truth lie beside the project; tests that use them skip where they do not."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not FOLDER.exists(), reason="the traces beside the project are absent")


def counted(wanted):
    """Return {path under real/: figures counted by independent code} of the entries that are `wanted`."""
    if not FOLDER.exists():
        return {}
    entries = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
    return {entry["dst"]: entry for entry in entries if wanted(entry)}


def truth():
    """Return those of the Kineto traces that parse."""
    return counted(lambda entry: "Kineto" in entry.get("tool", "") and entry.get("parse") == "ok")
