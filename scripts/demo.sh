#!/usr/bin/env bash
# From nothing to a compiled, verified and benchmarked model: scripts/demo.sh [MODEL] (default light_squeezenet).
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
step "a real architecture with seeded random weights" "$PY" scripts/make_model.py "$model" -o "$out/$model.onnx"
step "compile" "$tpo" compile "$out/$model.onnx" -o "$out/$model.so" --threads "$threads"
step "verify against ONNX Runtime" "$tpo" verify "$out/$model.so" "$out/$model.onnx"
step "benchmark side by side" "$tpo" bench "$out/$model.so" --vs onnxruntime --threads "$threads"
printf '\nThe library: %s\nUse it:      %s\n' "$PWD/$out/$model.so" \
  "$PY -c 'import tpo; m = tpo.load(\"$out/$model.so\"); print(m)'"
