"""Read the widths of a model from a Hugging Face config.json of the DeepSeek-V4.1 family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsv4bench.errors import UsageError
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM, ROPE_DIM

MODEL_TYPES = ("deepseek_v41", "deepseek_v41_text")
INDEX_PAGE = 64  # slots of an index-K page where no vendor kernel asks for another size (specification 2.1)

# field of Geometry -> field of the config, for those that are copied as they stand
WHOLE = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "q_rank": "q_lora_rank",
    "o_groups": "o_groups",
    "o_rank": "o_lora_rank",
    "window": "sliding_window",
    "index_heads": "index_n_heads",
    "index_topk": "index_topk",
    "candidate_blocks": "candidate_topk_blocks",
    "candidate_block": "candidate_block_size",
    "max_positions": "max_position_embeddings",
}
# what a config need not have: without experts there is no stand-in of the MoE
EXPERTS = {
    "routed_experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_width": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
}
LISTS = {"kv_sources": "kv_source_layer_ids", "index_sources": "index_source_layer_ids"}
NUMBERS = {"rope_theta": "rope_theta", "compress_rope_theta": "compress_rope_theta", "eps": "rms_norm_eps"}
FIXED = {"head_dim": HEAD_DIM, "qk_rope_head_dim": ROPE_DIM, "index_head_dim": INDEX_DIM}


def looks_like_path(text: str) -> bool:
    """Return whether `text` names a file or folder rather than a known geometry."""
    return "/" in text or text.endswith(".json") or Path(text).exists()


def read_config(path: str) -> dict[str, Any]:
    """Return the fields of a `Geometry` from a config.json, or from the config.json of a folder.

    Raises UsageError, naming the file and the field, for one that is missing, not JSON, of another model or incomplete.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    return Config(file, _text_part(file, _load(file))).geometry()


def _load(file: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--geometry {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--geometry {file}: not a JSON file ({error})") from error
    if not isinstance(loaded, dict):
        raise UsageError(f"--geometry {file}: expected a JSON object")
    return loaded


def _text_part(file: Path, loaded: dict[str, Any]) -> dict[str, Any]:
    """Return the text model's fields: the nested `text_config` of a multimodal config, else the whole."""
    nested = loaded.get("text_config")
    part = nested if isinstance(nested, dict) else loaded
    kind = part.get("model_type", loaded.get("model_type"))
    if kind not in MODEL_TYPES:
        raise UsageError(f"--geometry {file}: field 'model_type' is {kind!r}, expected {' or '.join(MODEL_TYPES)}")
    return part


class Config:
    """The text part of one config file; every reader names the file and the field when it complains."""

    def __init__(self, file: Path, values: dict[str, Any]) -> None:
        self.file = file
        self.values = values

    def geometry(self) -> dict[str, Any]:
        """Return the fields of a `Geometry`."""
        self._check_fixed()
        fields: dict[str, Any] = {name: self.whole(key) for name, key in WHOLE.items()}
        fields |= {name: self.whole(key, least=0) for name, key in EXPERTS.items() if key in self.values}
        fields |= {name: self.whole_list(key) for name, key in LISTS.items()}
        fields |= {name: self.number(key) for name, key in NUMBERS.items()}
        fields |= self._yarn()
        fields["ratios"] = self._ratios()
        has_candidates = self.values.get("candidate_source_layer_id") is not None
        fields["candidate_source"] = self.whole("candidate_source_layer_id", least=0) if has_candidates else None
        return fields | {"name": str(self.file), "index_page": INDEX_PAGE}

    def whole(self, key: str, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self._get(self.values, key)
        if type(value) is not int or value < least:
            raise self._wrong(key, value, f"a whole number of at least {least}")
        return value

    def whole_list(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers, none negative."""
        value = self._get(self.values, key)
        if not isinstance(value, list) or any(type(entry) is not int or entry < 0 for entry in value):
            raise self._wrong(key, value, "a list of whole numbers")
        return tuple(value)

    def number(self, key: str, values: dict[str, Any] | None = None) -> float:
        """Return a number greater than 0."""
        value = self._get(self.values if values is None else values, key)
        if type(value) not in (int, float) or not value > 0:
            raise self._wrong(key, value, "a number greater than 0")
        return float(value)

    def _ratios(self) -> tuple[int, ...]:
        """Return one ratio per layer; the entries past num_hidden_layers belong to draft layers."""
        layers = self.whole("num_hidden_layers")
        ratios = self.whole_list("compress_ratios")
        if len(ratios) < layers:
            raise self._wrong("compress_ratios", f"{len(ratios)} entries", f"at least one for each of {layers} layers")
        return ratios[:layers]

    def _yarn(self) -> dict[str, Any]:
        scaling = self.values.get("rope_scaling")
        if scaling is None:  # a factor of 1 leaves every frequency as it is
            whole = self.whole("max_position_embeddings")
            return {"yarn_factor": 1.0, "yarn_original": whole, "beta_fast": 32.0, "beta_slow": 1.0}
        if not isinstance(scaling, dict):
            raise self._wrong("rope_scaling", scaling, "an object")
        return {
            "yarn_factor": self.number("factor", scaling),
            "yarn_original": int(self.number("original_max_position_embeddings", scaling)),
            "beta_fast": self.number("beta_fast", scaling),
            "beta_slow": self.number("beta_slow", scaling),
        }

    def _check_fixed(self) -> None:
        """Refuse widths that the KV layouts and the index-K pool do not hold."""
        for key, width in FIXED.items():
            if self.values.get(key, width) != width:
                raise self._wrong(key, self.values[key], f"{width}, the only width that this version runs")

    def _get(self, values: dict[str, Any], key: str) -> Any:
        if key not in values:
            raise UsageError(f"--geometry {self.file}: field {key!r} is missing")
        return values[key]

    def _wrong(self, key: str, value: object, expected: str) -> UsageError:
        return UsageError(f"--geometry {self.file}: field {key!r} is {value!r}, expected {expected}")
