#!/usr/bin/env bash
# Measures on a GPU what results/ holds, one folder a run; a run that is already there goes on where it stopped.
# Usage: benchmarks/full_width.sh DIR [REQUESTS_FILE]
set -uo pipefail
out=${1:?usage: benchmarks/full_width.sh DIR [REQUESTS_FILE]}
requests=${2:-}
mkdir -p "$out"

run() {
  local name=$1 where
  shift
  if [[ -d $out/$name ]]; then where=(--resume "$out/$name"); else where=(--out "$out/$name"); fi
  python3 -m dsv4bench prefill "$@" "${where[@]}" --quiet >"$out/$name.txt"
  echo "$name: exit $?"
}

run default --batch 1..64
run compressor --batch 1 --extend 64,128,256,512,1k,2k,4k,8k --graph --reuse on --compressor both
run graph-forms --batch 1..64 --reuse on --graph-mode breakable,full --breaks both
run graph-static --batch 1..64 --reuse on --graph --break-outputs static
run kv-v4 --batch 1,8,64 --kv v4
run kv-v41 --batch 1,8,64 --kv v41
run prefix-64k --batch 1,8,64 --prefix 64k
if [[ -n $requests ]]; then run recorded --requests "$requests" --batch 1,8; fi
