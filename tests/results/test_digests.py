"""Two trees side by side: equal bytes, other bytes, errors, and a control that must differ."""

import pytest

from dsv4bench.results.digests import NO_CONTROL, Subject, complaints, digest_rows

C2 = Subject("compress_c2", "fp4", 64, "triton")
RMS = Subject("rms_norm", "", None, "torch")


def digests(**found):
    return {"digests": found}


def rows(a, b, control=None):
    control = control and {"perturbed": "x + 0.5", **control}
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


def test_one_error_of_all_sides_is_told_once():
    same = {"error": "no inputs"}
    assert [row.error for row in digest_rows([C2], [same], [same], None)] == ["no inputs"]
    assert [row.error for row in digest_rows([C2], [same], [{"error": "x"}], None)] == ["A: no inputs; B: x"]


def test_a_kernel_of_which_nothing_can_be_perturbed_is_no_complaint_but_says_so():
    same = digests(out="1")
    found = digest_rows([C2, RMS], [same, same], [same, same], [{}, {"perturbed": "x + 1", **digests(out="1")}])
    assert [row.perturbed for row in found] == [NO_CONTROL, "x + 1"]
    assert [text.split(":")[0] for text in complaints(found, controlled=True)] == ["rms_norm torch"]
    assert [row.perturbed for row in rows(same, same)] == [None]


def test_plain_values_for_json():
    (row,) = rows(digests(out="1"), digests(out="2"))
    assert row.plain() == {
        "kernel": "compress_c2", "case": "fp4", "rows": 64, "provider": "triton",
        "output": "out", "a": "1", "b": "2", "control": None, "perturbed": None, "equal": False, "error": None,
    }  # fmt: skip
