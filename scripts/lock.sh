#!/usr/bin/env bash
# Writes the hashed locks anew from pyproject.toml (needs the dev extra's uv and a package index).
# Pins that still fit are kept; `UPGRADE=1 scripts/lock.sh` takes the newest versions instead.
#   requirements/cpu.txt        everything but torch, for Linux x86_64 without a GPU, tests, checks and the index's engines included
#   requirements/torch-cpu.txt  torch's CPU build: its hash is fixed by hand (PyPI's hashes beside it would bring the CUDA build)
#   requirements/gpu.txt        everything with torch for CUDA and vLLM, for a GPU node
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
common=(--python-version 3.11.7 --generate-hashes --no-emit-find-links --no-emit-index-url --custom-compile-command "make lock")
[ -z "${UPGRADE:-}" ] || common+=(--upgrade)
# Where the CPU build of torch is found: a folder of wheels that pip already looks at, or PyTorch's own index.
links=(--extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match)
for place in ${PIP_FIND_LINKS:-}; do
  if compgen -G "$place/torch-2.13.0+cpu-*.whl" >/dev/null; then links=(--find-links "$place"); fi
done

"$uv" pip compile -q pyproject.toml --extra dev --extra index --python-platform x86_64-manylinux_2_28 "${common[@]}" \
  "${links[@]}" --no-emit-package torch -c requirements/torch-cpu.txt -o requirements/cpu.txt >/dev/null
"$uv" pip compile -q pyproject.toml --extra dev --extra vllm --python-platform x86_64-manylinux_2_35 "${common[@]}" \
  -o requirements/gpu.txt >/dev/null
wc -l requirements/cpu.txt requirements/gpu.txt
