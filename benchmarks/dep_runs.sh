#!/usr/bin/env bash
# Measures changes R and G on N ranks, a GPU each, without and with a stand-in for the MoE, beside the ranks simulated on one GPU.
# Usage: benchmarks/dep_runs.sh DIR N [SECONDS]; no more than SECONDS (480) in all. Called again it goes on where an earlier call stopped.
set -uo pipefail
out=${1:?usage: benchmarks/dep_runs.sh DIR N [SECONDS]}
ranks=${2:?usage: benchmarks/dep_runs.sh DIR N [SECONDS]}
until=$((SECONDS + ${3:-480}))
mkdir -p "$out"

run() {
  local name=$1 share=$2 where left=$((until - SECONDS))
  shift 2
  if [[ -d $out/$name ]]; then where=(--resume "$out/$name"); else where=(--out "$out/$name"); fi
  # Ctrl-C keeps what is finished
  timeout -s INT -k 15 $((left * share / 100)) python3 -m dsv4bench prefill "$@" --quick "${where[@]}" >"$out/$name.txt"
  echo "$name: exit $?"
}

batches="$ranks..64"
run reuse 30 --dep "$ranks" --batch "$batches"
run experts 60 --dep "$ranks" --batch "$ranks,64" --moe experts
run compressor 50 --dep "$ranks" --batch "$ranks,64" --reuse on --compressor both
run memory 50 --dep "$ranks" --batch "$ranks,64" --recipe dep4 --graph
run simulated 95 --dep-simulated "$ranks" --batch "$ranks,64"
