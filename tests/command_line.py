"""Commands as a user types them, run inside the test process, and a model so small that a run takes a second."""

import json
import sys
from dataclasses import dataclass

from dsv4bench import cli
from dsv4bench.profiling import dep_rank, session
from dsv4bench.profiling.rank_traces import free_port

# two layers of ratio 2 that read one source: reuse turns 2 dequants into 1
CONFIG = {
    "model_type": "deepseek_v41_text",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "q_lora_rank": 32,
    "o_groups": 2,
    "o_lora_rank": 16,
    "sliding_window": 128,
    "compress_ratios": [2, 2],
    "kv_source_layer_ids": [0],
    "index_source_layer_ids": [0],
    "index_n_heads": 4,
    "index_topk": 8,
    "candidate_topk_blocks": 4,
    "candidate_block_size": 8,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-20,
}
HERE = {"cpu": "a CPU", "commit": "c0ffee" * 6, "dirty": False, "dsv4bench": "0"}


@dataclass(frozen=True)
class Output:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def slip(self):
        """The one line that a mistake of the user's gets, without the program's name; nothing else may be printed."""
        assert (self.code, self.out) == (2, "")
        (only,) = self.err.splitlines()
        assert only.startswith("dsv4bench: ")
        return only.removeprefix("dsv4bench: ")


def command_line(monkeypatch, capsys, here=HERE):
    """Return a function that runs a command and returns its `Output`; records say `here`, or the truth for None."""
    if here is not None:
        monkeypatch.setattr(session, "environment", lambda device: dict(here))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dsv4bench", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as done:
            seen = capsys.readouterr()
            return Output(done.code or 0, seen.out, seen.err)
        raise AssertionError("a command ends with an exit code")

    return run


def tiny_config(folder):
    """Write the small model's config.json and return its path."""
    file = folder / "tiny.json"
    file.write_text(json.dumps(CONFIG))
    return file


def be_the_only_rank(monkeypatch):
    """Make this process the only rank of a run with `--dep 1` that somebody else has started."""
    monkeypatch.setattr(dep_rank, "_let_rank_0_decide", lambda *_: None)  # signals are the tests' own
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    for name, value in {**place, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
