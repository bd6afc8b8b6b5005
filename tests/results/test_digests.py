"""Two trees side by side: equal bytes, other bytes, errors, and a control that must differ."""

import pytest

from dsv4bench.results.digests import Subject, complaints, digest_rows

C2 = Subject("compress_c2", "fp4", 64, "triton")
RMS = Subject("rms_norm", "", None, "torch")


def digests(**found):
    return {"digests": found}


def rows(a, b, control=None):
    return digest_rows([C2], [a], [b], None if control is None else [control])


def test_a_row_for_every_output():
    found = rows(digests(latent="1", ring="2"), digests(latent="1", ring="3"))
    assert [(row.output, row.a, row.b, row.equal) for row in found] == [
        ("latent", "1", "1", True),
        ("ring", "2", "3", False),
    ]
    assert complaints(found, controlled=False) == ["compress_c2 fp4 64 triton: ring differs"]


def test_an_output_that_one_tree_lacks_is_not_equal():
    found = rows(digests(latent="1"), digests(latent="1", ring="3"))
    assert [(row.output, row.equal) for row in found] == [("latent", True), ("ring", False)]


@pytest.mark.parametrize(
    ("control", "wrong"),
    [
        (digests(latent="9", ring="2"), []),  # one output that shows it is enough
        (
            digests(latent="1", ring="2"),
            ["compress_c2 fp4 64 triton: the control did not differ: these digests would not show such a change"],
        ),
    ],
    ids=["differs", "same"],
)
def test_the_control_must_differ(control, wrong):
    same = digests(latent="1", ring="2")
    assert complaints(rows(same, same, control), controlled=True) == wrong


def test_an_error_is_a_row_that_counts_as_wrong():
    found = digest_rows([C2, RMS], [{"error": "KeyError: x"}, digests(out="1")], [digests(), digests(out="1")], None)
    assert [(row.subject, row.error, row.equal) for row in found] == [(C2, "A: KeyError: x", False), (RMS, None, True)]
    assert complaints(found, controlled=False) == ["compress_c2 fp4 64 triton: A: KeyError: x"]


def test_plain_values_for_json():
    (row,) = rows(digests(out="1"), digests(out="2"))
    assert row.plain() == {
        "kernel": "compress_c2", "case": "fp4", "rows": 64, "provider": "triton",
        "output": "out", "a": "1", "b": "2", "control": None, "equal": False, "error": None,
    }  # fmt: skip
