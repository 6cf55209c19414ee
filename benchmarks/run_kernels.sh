#!/usr/bin/env bash
# Prepare the peers, assert parity, time, and write benchmarks/results/kernels.json (and the scaling figures).
# Arguments go to bench_kernels.py: names of works to measure (default: all), --missing, --plots.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(benchmarks/prepare_peers.sh "${VENV:-.venv}/bin/python" | tail -n 1)
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
# The declared level and all that this processor has; VDR_INSTRUCTIONS chooses one of them. Scaling is drawn at the declared one.
levels=${VDR_INSTRUCTIONS:-x86-64-v3 native}
[[ " $* " == *" --plots "* ]] && levels=${VDR_INSTRUCTIONS:-x86-64-v3}
for level in $levels; do
  VDR_INSTRUCTIONS=$level "$python" benchmarks/bench_kernels.py "$@"
done
