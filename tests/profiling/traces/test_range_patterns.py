from pathlib import Path

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.profiling.traces.range_patterns import KNOWN, Place, read_map
from dsv4bench.ranges import Range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (Range(0, 8, 2, 8, "dequant_compressed", 1).text(), Place(8, 8, 2, "dequant_compressed", 1)),
        (Range(layer=0, ratio=0).text(), Place(layer=0, ratio=0, rank=0)),
        ("dsv4bench:nonsense", None),
        ("dsv4bench:step=x", None),
        ("{'Module': 'model.layers.12.self_attn', 'Inputs': [[4, 5120]]}", Place(layer=12, op="self_attn")),
        ("{'Module': 'model.layers.3', 'TrainableParams': {'w': [1]}}", Place(layer=3)),
        ('{"layer_idx": 7, "tokens": 128}', Place(layer=7)),
        ('{"name": "attn", "layer": 9, "op": "combine"}', Place(layer=9, op="combine")),
        ("model.layers.12.self_attn.compressor", Place(layer=12, op="self_attn.compressor")),
        ("model.layers.40", Place(layer=40)),
        ("transformer.h.3.attn", Place(layer=3, op="attn")),
        ("decoder/layers[5].mlp (bf16)", Place(layer=5, op="mlp")),
        ("layer 4 op=rope", Place(layer=4, op="rope")),
        ("layer_idx=11", Place(layer=11)),
        ("kv_source=14", Place(kv_source=14)),
        ("model.mtp.layers.0.self_attn", None),
        ("visual.blocks.3.attn", None),
        ("{'Module': 'mtp.layers.0.mlp'}", None),
        ("execute_context_1(888_788544)_generation_0(0)", None),
        ("ProfilerStep#12", None),
        ("player 3", None),
        ("aten::layer_norm", None),
        ("", None),
    ],
)
def test_a_text_says_layer_and_operation(text, expected):
    assert KNOWN.read(text) == expected


@pytest.mark.parametrize("digits", [20, 5_000])
@pytest.mark.parametrize(
    "text",
    ["model.layers.{}", "kv_source={}", '{{"layer": {}}}', "layer {} ", "dsv4bench:step=0 layer={} op=combine rank=0"],
)
def test_a_number_that_no_layer_could_have_says_nothing(text, digits):
    assert KNOWN.read(text.format("9" * digits)) is None


def written(tmp_path, text):
    path = tmp_path / "map.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_patterns_of_a_file_come_first(tmp_path):
    added = read_map(
        written(
            tmp_path,
            r"""
[[range]]
text = 'decoder_(?P<layer>\d+)/(?P<op>\w+)'
[[range]]
text = 'unpack (?P<step>\w+)'
op = "dequant_compressed"
kv_source = 20
[[range]]
text = 'layers\.(?P<layer>1)\.self_attn$'
op = "mine"
[[kernel]]
name = 'my_sparse_fwd'
op = "sparse_attention"
""",
        )
    )
    assert added.read("decoder_7/rope") == Place(layer=7, op="rope")
    assert added.read("unpack 3") == Place(kv_source=20, op="dequant_compressed", step=3)
    assert added.read("unpack all") == Place(kv_source=20, op="dequant_compressed")  # a word is no number
    assert added.read("model.layers.1.self_attn") == Place(layer=1, op="mine")
    assert added.read("model.layers.2.self_attn") == Place(layer=2, op="self_attn")
    assert added.op_of("void my_sparse_fwd<512>(P)") == "sparse_attention"
    assert (added.op_of("_dequant"), added.op_of("other")) == ("dequant", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[range]]\ntext = 'a(?P<layer>b'", "range 1: text = 'a(?P<layer>b': not a regular expression: missing )"),
        ("[[range]]\ntext = 'a(?P<layr>b)'", "range 1: no such group: layr (did you mean 'layer'?)"),
        ("[[range]]\ntext = 'a'\nlayer = 'b'", "range 1: layer = 'b': expected a number"),
        ("[[range]]\ntext = 'a'\nlayer = true", "range 1: layer = True: expected a number"),
        ("[[range]]\ntext = 'a'\nlayer = 12345678901", "range 1: layer = 12345678901: expected a number"),
        ("[[range]]\ntext = 'a'\nlayer = -1", "range 1: layer = -1: expected a number"),
        ("[[range]]\ntext = 3", "range 1: text = 3: expected a text"),
        ("[[range]]\ntext = 'a'\nop = 'b'\n[[range]]\ntxt = 'a'", "range 2: no such key: txt (did you mean 'text'?)"),
        ("[[range]]\nop = 'a'", "range 1: has no 'text'"),
        ("[[range]]\ntext = 'a'", "range 1: text = 'a' says neither of layer, kv_source"),
        ("[[ranges]]\ntext = 'a'", "no such table: ranges (did you mean 'range'?)"),
        ("range = 3", "range is not a list of tables; write [[range]]"),
        (
            "[[kernel]]\nname = 'a'\nop = 'sparse_atention'",
            "kernel 1: op = 'sparse_atention': no such operation (did you",
        ),
        ("[[kernel]]\nname = 'a'", "kernel 1: op = None: no such operation"),
        ("[[range", "cannot be read as TOML"),
        ("", "holds neither [[range]] nor [[kernel]]"),
    ],
)
def test_a_mistake_in_a_map_names_file_entry_and_value(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        read_map(path)
    assert str(raised.value).startswith(f"--map {path}: ")
    assert message in str(raised.value)


def test_a_map_that_is_not_there_is_a_plain_error(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.toml: cannot be read as TOML: .*No such file"):
        read_map(tmp_path / "absent.toml")


def test_the_example_of_the_documentation_is_a_map(tmp_path):
    page = (Path(__file__).resolve().parents[3] / "docs" / "attribution.md").read_text(encoding="utf-8")
    added = read_map(written(tmp_path, page.partition("```toml\n")[2].partition("```")[0]))
    assert added.read("decoder_7/rope") == Place(layer=7, op="rope")
    assert added.read("unpack extra cache") == Place(op="dequant_compressed")
    assert added.op_of("my_sparse_fwd") == "sparse_attention"
