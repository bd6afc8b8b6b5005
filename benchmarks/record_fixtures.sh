#!/usr/bin/env bash
# Makes tests/data/traces: one step and one replay of a model of four layers, read three ways that must agree: by nsys,
# by torch.profiler and by the capture ledger of the record (tests/profiling/traces/test_same_run.py).
#   benchmarks/record_fixtures.sh record DIR          on a GPU machine, with nsys (or its bare collector) on the PATH
#   benchmarks/record_fixtures.sh collect DIR [IMPORT]  anywhere with nsys: IMPORT turns a .qdstrm into a .nsys-rep
# A bare collector leaves .qdstrm files in DIR/nsys; IMPORT is "QdstrmImporter -i" of the same version of nsys. DIR/nsys
# holds environment variables of every process that ran: never publish it.
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
  local device=${DEVICE:-cuda}
  local cells=(--geometry four-layers.json --extend 64 --prefix 256 --reuse on --quick --device "$device")
  mkdir -p nsys
  "$python" -m dsv4bench prefill "${cells[@]}" --profile torch --out torch
  # a bare collector has no importer, so prefill --profile nsys would refuse it: run its pass by hand
  "$python" - "$device" <<'PYTHON'
import subprocess, sys
from pathlib import Path
from dsv4bench.profiling.nsys import profile_command
from dsv4bench.profiling.profile_pass import Job
from dsv4bench.workloads.options import PrefillArguments
device = sys.argv[1]
arguments = PrefillArguments(geometry="four-layers.json", extend="64", prefix="256", reuse="on", device=device)
for cell, mode in enumerate(("eager", "breakable")):
    job = Job(arguments, 0, cell, "nsys").text()
    program = [sys.executable, "-m", "dsv4bench.profiling.profile_pass", job]
    subprocess.run(profile_command("nsys", Path("nsys") / mode, program, device), check=True)
PYTHON
}

collect() {
  mkdir -p "$target"
  for mode in eager breakable; do
    [[ -e $work/nsys/$mode.nsys-rep ]] || $import "$work/nsys/$mode.qdstrm"
    nsys export --type sqlite -f true -o "$target/$mode.sqlite" "$work/nsys/$mode.nsys-rep"
    cp "$work/torch/$mode"-reuse-on-*.json.gz "$target/$mode.json.gz"
    "$python" - "$target/$mode.sqlite" <<'PYTHON'
import sqlite3, sys
from pathlib import Path
from dsv4bench.profiling.nsys import keep_events
assert keep_events(Path(sys.argv[1])), "no range was recorded"
with sqlite3.connect(sys.argv[1], isolation_level=None) as file:
    file.execute("PRAGMA page_size = 1024")  # each table takes a page at least
    file.execute("VACUUM")
PYTHON
  done
  cp "$work"/torch/records-*.jsonl "$target/records.jsonl"
  ls -l "$target"
}

"$what"
