"""Reading a Hugging Face config.json: the published fields give v41-flash, and every lack is named."""

import json
from dataclasses import replace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.config_file import EXPERTS
from dsv4bench.workloads.geometry import V41_FLASH, geometry

# the text fields of the published config, as the table of specification 1.1 lists them
TEXT = {
    "model_type": "deepseek_v41_text",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-20,
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2304,
    "n_shared_experts": 1,
}


def written(folder, values):
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    return str(file)


@pytest.mark.parametrize(
    "values",
    [TEXT, {"model_type": "deepseek_v41", "text_config": TEXT}, TEXT | {"model_type": "deepseek_v41"}],
    ids=["text model", "nested in a multimodal config", "flat"],
)
def test_published_fields_give_v41_flash(tmp_path, values):
    path = written(tmp_path, values)
    assert geometry(path) == replace(V41_FLASH, name=path)


def test_a_folder_means_its_config(tmp_path):
    path = written(tmp_path, TEXT)
    assert geometry(str(tmp_path)) == replace(V41_FLASH, name=path)


def test_optional_fields(tmp_path):
    absent = {key: value for key, value in TEXT.items() if key not in {"rope_scaling", "candidate_source_layer_id"}}
    found = geometry(written(tmp_path, absent))
    assert found.yarn_factor == 1.0
    assert found.candidate_source is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "field 'hidden_size' is None, expected a whole number of at least 1"),
        ({"q_lora_rank": 0}, "field 'q_lora_rank' is 0, expected a whole number of at least 1"),
        ({"num_attention_heads": True}, "field 'num_attention_heads' is True"),
        ({"compress_ratios": [0, 2]}, "field 'compress_ratios' is '2 entries', expected at least one for each of 40"),
        ({"compress_ratios": "0"}, "field 'compress_ratios' is '0', expected a list of whole numbers"),
        ({"kv_source_layer_ids": [-1]}, "field 'kv_source_layer_ids'"),
        ({"rms_norm_eps": 0}, "field 'rms_norm_eps' is 0, expected a number greater than 0"),
        ({"head_dim": 256}, "field 'head_dim' is 256, expected 512"),
        ({"rope_scaling": 3}, "field 'rope_scaling' is 3, expected an object"),
        ({"rope_scaling": {"factor": 16}}, "field 'original_max_position_embeddings' is missing"),
        ({"model_type": "llama"}, "field 'model_type' is 'llama', expected deepseek_v41"),
        ({"compress_ratios": [4] * 40}, "compress ratio 4 is not one that this version runs (0, 1, 2)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_field_is_named_with_its_file(tmp_path, changes, message):
    path = written(tmp_path, TEXT | changes)
    with pytest.raises(UsageError) as caught:
        geometry(path)
    assert path in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("field", sorted(set(TEXT) - {"model_type", "head_dim", "qk_rope_head_dim", "index_head_dim"}))
def test_a_missing_field_is_named(tmp_path, field):
    path = written(tmp_path, {key: value for key, value in TEXT.items() if key != field})
    if field in {"rope_scaling", "candidate_source_layer_id", *EXPERTS.values()}:
        geometry(path)
        return
    with pytest.raises(UsageError, match=f"{field}' is missing"):
        geometry(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not a JSON file"), ("[1]", "expected a JSON object"), ("", "not a JSON file")],
    ids=["torn", "a list", "empty"],
)
def test_what_is_no_config(tmp_path, text, message):
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        geometry(str(file))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        geometry(str(tmp_path / "none.json"))
