"""What "did you mean" names, and that it keeps quiet where nothing is near."""

from pathlib import Path

import pytest

from dsv4bench.errors import nearest, nearest_path
from dsv4bench.kernels import CATALOGUE, SHORT_NAMES
from dsv4bench.workloads.providers import PROVIDERS

KERNELS = (*CATALOGUE, *SHORT_NAMES)
WORDS = ("v4", "v41", "v41+fp4", "uniform", "stale-head", "off", "on", "fused", *PROVIDERS, *KERNELS)


@pytest.mark.parametrize("word", ["nothing", "everything", "banana", "foo", "mykernel", "cutlass", "x", "9"])
def test_a_word_that_is_near_none_gets_no_suggestion(word):
    assert nearest(word, KERNELS) == ""


@pytest.mark.parametrize("word", [word for word in WORDS if len(word) > 2])
def test_a_letter_too_few_too_many_or_changed_finds_the_word(word):
    middle = len(word) // 2
    for slip in (word[:middle] + word[middle + 1 :], word[:middle] + "q" + word[middle:], word[:-1] + "q"):
        assert nearest(slip, ("zzz", word, "yyyyyy")) == f" (did you mean {word!r}?)"


def test_of_several_the_nearest_is_named():
    assert nearest("compress_c3", KERNELS) in [f" (did you mean {name!r}?)" for name in ("compress_c1", "compress_c2")]
    assert nearest("dequnt", KERNELS) == " (did you mean 'dequant'?)"
    assert nearest("v5", ("v4", "v41")) == " (did you mean 'v4'?)"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("runs/h200-defualt", " (did you mean 'runs/h200-default'?)"),
        ("runs/befor.jsonl", " (did you mean 'runs/before.jsonl'?)"),
        ("runs/none.jsonl", ""),
        ("runs/deflate", ""),
        ("rns/before.jsonl", ""),
        ("rns", " (did you mean 'runs'?)"),
    ],
    ids=["folder", "file", "only the suffix is alike", "half its letters", "its folder is missing too", "here"],
)
def test_a_missing_path_gets_the_nearest_name_beside_it(tmp_path, monkeypatch, missing, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "h200-default").mkdir(parents=True)
    for name in ("before.jsonl", "leaflet.log"):
        (tmp_path / "runs" / name).touch()
    assert nearest_path(Path(missing)) == said
