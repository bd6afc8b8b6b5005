"""Where operations belong by the ranges around them, theirs and ours, and what a geometry adds."""

import re

import pytest

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.range_patterns import KNOWN, Pattern, Patterns, read_map
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.ranges import Range
from dsv4bench.workloads.geometry import V41_FLASH
from tests.profiling.replays import Replay, node, numbered
from tests.profiling.traces.made_rows import Made


def labelled(made, **options):
    trace = made.trace()
    return label(trace, ranges_of(trace), **options)


def rows(labels):
    """Return (layer, kv_source, ratio, op) of every operation, None where it is not known."""
    ops = [NO_ID if code == NO_ID else labels.ops[code] for code in labels.op.tolist()]
    columns = (labels.layer.tolist(), labels.kv_source.tolist(), labels.ratio.tolist(), ops)
    return [tuple(None if value == NO_ID else value for value in row) for row in zip(*columns, strict=True)]


def test_our_ranges_say_everything_and_a_kernels_name_says_nothing_more():
    made = Made().opened(Range().text(), 0, 100).opened(Range(0, 3, 2, 2, "store").text(), 10, 20)
    made.opened(Range(0, 1, 0).text(), 30, 40)
    made.launched(15, 1).ran(1, "_dequant").launched(35, 2).ran(2, "_rope").launched(50, 3).ran(3, "_rope")
    labels = labelled(made)
    assert rows(labels) == [(3, 2, 2, "store"), (1, None, 0, None), (None, None, None, "rope")]
    assert (labels.coverage.attributed, labels.coverage.unattributed) == (2, 1)
    assert labels.step.tolist() == [NO_ID] * 3


def serving():
    """Return a layer of a serving engine: module ranges, a library's range within, and a kernel of no module."""
    made = Made().opened("execute_context_1", 0, 100).opened("{'Module': 'model.layers.21'}", 10, 60)
    made.opened("{'Module': 'model.layers.21.self_attn'}", 20, 40).opened("ncclAllReduce", 30, 32)
    for place, (at_ns, name) in enumerate(
        [(21, "_dequant"), (22, "_dequant"), (25, "sparse_attention"), (31, "nccl"), (35, "nvjet_x"), (50, "moe")]
    ):
        made.launched(at_ns, place).ran(place, name, start_ns=1000 + place)
    return made.launched(90, 50).ran(50, "lm_head", start_ns=2000)


def test_a_serving_engines_modules_become_layers_and_a_geometry_says_their_source():
    inner = [
        (21, 20, 1, "dequant_compressed"),
        (21, 20, 1, "dequant_swa"),
        (21, 20, 1, "sparse_attention"),
        (21, 20, 1, "self_attn"),  # in the library's range, which says nothing
        (21, 20, 1, "self_attn"),  # a GEMM could be any
        (21, 20, 1, None),
        (None, None, None, None),
    ]
    labels = labelled(serving(), geometry=V41_FLASH)
    assert rows(labels) == inner
    assert labels.known("kv_source").tolist() == [True] * 6 + [False]
    assert labels.known("op").tolist() == [True] * 5 + [False] * 2


def test_without_a_geometry_a_layer_has_no_source():
    labels = labelled(serving())
    assert {row[1] for row in rows(labels)} == {None}
    assert not labels.known("kv_source").any()
    assert labels.known("layer").tolist() == [True] * 6 + [False]


@pytest.mark.parametrize(("layer", "expected"), [(1, (1, None, 0)), (19, (19, 14, 2)), (40, (40, None, None))])
def test_layers_of_no_source_and_layers_beyond_the_geometry_have_none(layer, expected):
    made = Made().opened(f"model.layers.{layer}", 0, 100).launched(5, 1).ran(1)
    labels = labelled(made, geometry=V41_FLASH)
    assert rows(labels)[0][:3] == expected
    assert labels.known("kv_source").tolist() == [True]


def test_patterns_of_a_file_that_fit_nothing_are_noted(tmp_path):
    file = tmp_path / "map.toml"
    texts = (r"decoder_(?P<layer>\d+)", r"decodr_(?P<layer>\d+)")
    names = ("my_dequant", "my_dequnt")
    file.write_text(
        "".join(f"[[range]]\ntext = '{text}'\n" for text in texts)
        + "".join(f"[[kernel]]\nname = '{name}'\nop = 'dequant'\n" for name in names)
    )
    made = Made().opened("decoder_3", 0, 100).launched(5, 1).ran(1, "my_dequant")
    assert labelled(made, patterns=read_map(file)).notes == (
        f"{file}: nothing fits {texts[1]!r}",
        f"{file}: nothing fits 'my_dequnt'",
    )


def test_a_source_alone_is_a_place():
    made = Made().opened("kv_source=8", 0, 100).launched(5, 1).ran(1)
    labels = labelled(made)
    assert rows(labels) == [(None, 8, None, None)]
    assert labels.coverage.complete


def test_the_step_of_a_replay_is_that_of_its_launch():
    patterns = Patterns((Pattern(re.compile(r"^step(?P<step>\d+)$")), *KNOWN.ranges))
    made = Made().opened("step9", 0, 30).opened("model.layers.4", 5, 20).opened("step1", 100, 200)
    made.node(7, NO_ID, 10).launched(150, 1, "cudaGraphLaunch").ran(1, node=7)
    labels = labelled(made, patterns=patterns)
    assert rows(labels)[0][0] == 4
    assert labels.step.tolist() == [1]


PROJECT = numbered(node("q_norm", "_rms_norm", layer=3), node("o_proj_b", "gemm", layer=19, kv_source=14))


@pytest.mark.parametrize(("ids", "method"), [(True, "node ids"), (False, "order (inferred)")], ids=["ids", "order"])
def test_replays_of_a_record_take_the_places_of_its_ledger(ids, method):
    replay = Replay(ids)
    replay.graph(PROJECT)
    replay.eager(Range(0, 5, 2, 2, "combine"), "_combine")
    labels = label(replay.trace, ranges_of(replay.trace), geometry=V41_FLASH, graphs=(PROJECT,))
    assert rows(labels) == [(3, 2, 2, "q_norm"), (19, 14, 2, "o_proj_b"), (5, 2, 2, "combine")]
    assert labels.coverage.method == f"launch correlation + {method}"
    assert labels.coverage.complete


def test_replays_of_other_graphs_stay_in_graphs_and_say_so():
    replay = Replay()
    replay.graph(PROJECT)
    labels = label(replay.trace, ranges_of(replay.trace), graphs=(PROJECT[::-1],))
    assert labels.coverage.in_graphs == 2
    assert labels.notes[0].startswith("not matched with the capture ledger: segment 0: record 0 is kernels _rms_norm")


def test_a_replayed_fill_under_the_name_of_a_copy_takes_its_place_and_is_told():
    captured = numbered(node("o_proj_a", "Memset", "sets", layer=19, kv_source=14), node("o_proj_a", "gemm", layer=19))
    replay = Replay()
    replay.host("cudaGraphLaunch")
    replay.ran("memcpy32_post")
    replay.ran("gemm")
    labels = label(replay.trace, ranges_of(replay.trace), graphs=(captured,))
    assert rows(labels)[0] == (19, 14, None, "o_proj_a")
    assert labels.notes[0].startswith("copies and fills under each other's name in the trace")
    assert labels.notes[0].endswith(": 1")


def test_a_trace_whose_ranges_tell_no_layer_has_the_coverage_of_its_ranges_and_says_why():
    made = Made().opened("train", 0, 10).launched(5, 1).ran(1).launched(50, 2).ran(2)
    labels = labelled(made, infer_from=V41_FLASH)
    assert (labels.coverage.attributed, labels.coverage.unattributed) == (1, 1)
    assert labels.notes == ("layers not inferred: no attention kernel of this model is known in it",)


def test_a_trace_without_operations_has_nothing_to_infer():
    labels = labelled(Made().opened("train", 0, 10), infer_from=V41_FLASH)
    assert labels.coverage.total == 0
    assert labels.notes == ()
