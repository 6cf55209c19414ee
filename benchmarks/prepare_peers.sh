#!/usr/bin/env bash
# Prepare the throw-away environment in which the peers are timed: the project's own packages are seen through a .pth
# file (so both sides use one numpy and one torch), the peers are installed on top and never enter the project.
# Usage: prepare_peers.sh [PYTHON] [DIRECTORY]     prints the directory's Python on its last line
set -euo pipefail
python=${1:-.venv/bin/python}
peers=${2:-${TMPDIR:-/tmp}/vdr-peers}
pins="maxsim-cpu==0.1.0 fast-maxsim==0.2.0 fastcluster==1.3.0 scikit-learn==1.7.2 joblib==1.5.2 threadpoolctl==3.6.0
      ranx==0.3.21 pytrec-eval-terrier==0.5.11 colpali-engine==0.3.18"
if [ ! -f "$peers/.ready" ] || [ "$(cat "$peers/.ready")" != "$pins" ]; then
  rm -rf "$peers"
  "$python" -m venv "$peers"
  "$python" -c 'import site; print(site.getsitepackages()[0])' > "$("$peers/bin/python" -c 'import site; print(site.getsitepackages()[0])')/vdr_main.pth"
  # --no-deps: what the peers need of numpy, scipy and torch is the project's; ranx needs a few small packages more.
  # shellcheck disable=SC2086
  "$peers/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps $pins cbor2 lz4 fastparquet ir_datasets seaborn ||
    { echo "the peers could not be installed (no network?)" >&2; exit 1; }
  printf '%s' "$pins" > "$peers/.ready"
fi
echo "$peers/bin/python"
