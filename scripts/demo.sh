#!/usr/bin/env bash
# From nothing to a tuned, compiled, verified and benchmarked model: scripts/demo.sh [MODEL] (default light_squeezenet).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/env.sh
install_debian_packages g++:g++
echo "== installing tpo into ${TPO_VENV:-.venv} (a minute or two the first time)"
make_environment
tpo=$(dirname "$PY")/tpo

model=${1:-light_squeezenet}
out=demo_out
mkdir -p "$out"
threads=$("$PY" -c 'import os; print(len(os.sched_getaffinity(0)))')

step() { printf '\n== %s\n$ %s\n' "$1" "${*:2}" && "${@:2}"; }
step "a real architecture with seeded random weights" "$PY" scripts/make_models.py "$model" -o "$out/$model.onnx"
step "compile on default schedules" "$tpo" compile "$out/$model.onnx" -o "$out/$model.untuned.so" --threads "$threads"
rm -f "$out/$model.db"
step "tune, for two minutes" "$tpo" tune "$out/$model.onnx" --db "$out/$model.db" --minutes 2 --threads "$threads"
step "compile with what was found" \
  "$tpo" compile "$out/$model.onnx" -o "$out/$model.so" --db "$out/$model.db" --threads "$threads"
step "verify against ONNX Runtime" "$tpo" verify "$out/$model.so" "$out/$model.onnx"
step "benchmark side by side, and beside the untuned one" \
  "$tpo" bench "$out/$model.so" --vs onnxruntime --vs "$out/$model.untuned.so" --threads "$threads"
printf '\nThe library: %s\nUse it:      %s\n' "$PWD/$out/$model.so" \
  "$PY -c 'import tpo; m = tpo.load(\"$out/$model.so\"); print(m)'"
