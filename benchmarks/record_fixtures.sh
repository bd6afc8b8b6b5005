#!/usr/bin/env bash
# Makes tests/data/traces: one step and one replay of a model of four layers, read three ways that must agree: by nsys,
# by torch.profiler and by the capture ledger of the record (tests/profiling/traces/test_same_run.py).
#   benchmarks/record_fixtures.sh record DIR          on a GPU machine, with nsys (or its bare collector) on the PATH
#   benchmarks/record_fixtures.sh collect DIR [IMPORT]  anywhere with nsys: IMPORT turns a .qdstrm into a .nsys-rep
# A bare collector leaves .qdstrm files in DIR/nsys; IMPORT is "QdstrmImporter -i" of the same version of nsys.
set -euo pipefail
what=${1:?usage: benchmarks/record_fixtures.sh record|collect DIR [IMPORT]}
work=${2:?usage: benchmarks/record_fixtures.sh record|collect DIR [IMPORT]}
import=${3:-QdstrmImporter -i}
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/tests/data/traces
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

record() {
  mkdir -p "$work"
  # two layers of ratio 2 that read source 0 and two of ratio 1 that read source 2, narrow ones of v41-flash-mini
  cat >"$work/four-layers.json" <<'JSON'
{"model_type": "deepseek_v41_text", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,
 "q_lora_rank": 64, "o_groups": 2, "o_lora_rank": 64, "sliding_window": 128, "compress_ratios": [2, 2, 1, 1],
 "kv_source_layer_ids": [0, 2], "index_source_layer_ids": [0, 2], "index_n_heads": 4, "index_topk": 32,
 "candidate_topk_blocks": 8, "candidate_block_size": 8, "rope_theta": 10000, "compress_rope_theta": 160000,
 "max_position_embeddings": 65536, "rms_norm_eps": 1e-20}
JSON
  cd "$work" # records name the geometry's file and the folder: no path of this machine
  for tool in nsys torch; do
    "$python" -m dsv4bench prefill --geometry four-layers.json --extend 64 --prefix 256 --reuse on --quick \
      --device "${DEVICE:-cuda}" --profile "$tool" --out "$tool"
  done
}

collect() {
  mkdir -p "$target"
  for raw in "$work"/nsys/*.qdstrm; do
    [[ -e $raw ]] || continue
    [[ -e ${raw%.qdstrm}.nsys-rep ]] || $import "$raw"
    nsys export --type sqlite -f true -o "${raw%.qdstrm}.sqlite" "${raw%.qdstrm}.nsys-rep"
  done
  for mode in eager breakable; do
    cp "$work/nsys/$mode"-reuse-on-*.sqlite "$target/$mode.sqlite"
    cp "$work/torch/$mode"-reuse-on-*.json.gz "$target/$mode.json.gz"
    "$python" - "$target/$mode.sqlite" <<'PYTHON'
import sqlite3, sys
from pathlib import Path
from dsv4bench.profiling.nsys import keep_settings
keep_settings(Path(sys.argv[1]))
with sqlite3.connect(sys.argv[1], isolation_level=None) as file:  # each table takes a page, and no reader asks for these
    for (name,) in file.execute("SELECT name FROM sqlite_master WHERE name LIKE 'ENUM!_%' ESCAPE '!'").fetchall():
        file.execute(f"DROP TABLE {name}")
    file.execute("PRAGMA page_size = 1024")
    file.execute("VACUUM")
PYTHON
  done
  cp "$work"/torch/records-*.jsonl "$target/records.jsonl"
  ls -l "$target"
}

"$what"
