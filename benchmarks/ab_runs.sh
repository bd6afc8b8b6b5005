#!/usr/bin/env bash
# Measures changes R and G on a GPU, pair by pair, and the noise floor; one folder a run, and a block for a pull request beside it.
# Usage: benchmarks/ab_runs.sh DIR [SECONDS_A_RUN]; called again it goes on where an earlier call stopped.
set -uo pipefail
out=${1:?usage: benchmarks/ab_runs.sh DIR [SECONDS_A_RUN]}
limit=${2:-480}
mkdir -p "$out"

run() {
  local name=$1 where
  shift
  if [[ -d $out/$name ]]; then where=(--resume "$out/$name"); else where=(--out "$out/$name"); fi
  python3 -m dsv4bench ab prefill --batch 1..64 "$@" --time-limit "$limit" --md "$out/$name.md" "${where[@]}" --quiet >"$out/$name.txt"
  echo "$name: exit $?"
}

for kv in v41+fp4 v4; do
  run "ab-reuse-$kv" --kv "$kv" --a reuse=off --b reuse=on
  run "ab-compressor-$kv" --kv "$kv" --reuse on --a compressor=torch --b compressor=fused
done
run ab-floor --reuse on --a compressor=fused --aa
