#!/usr/bin/env bash
# Makes .venv once from the hashed locks and installs the package into it.
#   scripts/setup.sh            make what is missing; a second call does nothing and takes no time
#   PYTHON=/path/to/python3.11  the interpreter (default: python3.11, then python3)
#   TORCH_INDEX=URL             where the CPU build of torch is looked for when pip's own sources lack it
#   VENV=DIR                    the environment's place (default: .venv)
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
LOCKS=(requirements/torch-cpu.txt requirements/cpu.txt)
NEEDED_MB=${VDR_NEEDED_MB:-4000}

unfit() { printf 'unfit machine: %s\n' "$*" >&2; exit 5; }

stamp_of() { cat "${LOCKS[@]}" pyproject.toml scripts/setup.sh | sha256sum | cut -c1-20; }
STAMP="$VENV/.made-$(stamp_of)"
if [ -e "$STAMP" ] && [ -x "$VENV/bin/vdr" ]; then exit 0; fi

# -- is the machine fit? ------------------------------------------------------------------------------------------------
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
  unfit "the locks are for Linux on x86_64, this is $(uname -s) on $(uname -m); use the container in containers/"
python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3.11 python3 python; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      python=$candidate
      break
    fi
  done
fi
[ -n "$python" ] || unfit "Python 3.11 is needed and was not found; install it or name it with PYTHON=/path/to/python3.11"
"$python" -c 'import sys; sys.exit(not ((3, 11, 5) <= sys.version_info[:3] < (3, 12)))' 2>/dev/null ||
  unfit "Python 3.11 (3.11.5 or later) is needed, $python is $("$python" -V 2>&1 || true); name another with PYTHON="
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  unfit "$python cannot make environments (on Debian: apt-get install python3.11-venv)"
free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
[ "$free_mb" -ge "$NEEDED_MB" ] || unfit "$free_mb MB free in $PWD, the environment and a mini run need $NEEDED_MB MB"

# -- make it beside, then put it in place -----------------------------------------------------------------------------------
# Files that name this path, which may hold any letters, are written in UTF-8 whatever the caller's locale says.
LC_ALL=$(locale -a 2>/dev/null | grep -i -m1 -E '\.utf-?8$' || echo C.UTF-8)
export LC_ALL PYTHONUTF8=1
log=$(mktemp "${TMPDIR:-/tmp}/vdr-setup.XXXXXX")
quietly() {
  if ! "$@" >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    printf 'set-up failed in: %s (whole log: %s)\n' "$*" "$log" >&2
    exit 1
  fi
}
echo "set-up: making $VENV with $("$python" -V) (once; some minutes)" >&2
started=$(date +%s)
if [ ! -x "$VENV/bin/python" ] || ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  rm -rf "$VENV"
  quietly "$python" -m venv "$VENV"
fi
rm -f "$VENV"/.made-*
pip=("$VENV/bin/python" -m pip --disable-pip-version-check --no-input)

echo "set-up: torch (CPU build)" >&2
if ! "${pip[@]}" install --require-hashes --no-deps -r requirements/torch-cpu.txt >"$log" 2>&1; then
  echo "set-up: not among pip's own sources, trying $TORCH_INDEX" >&2
  quietly "${pip[@]}" install --require-hashes --no-deps --extra-index-url "$TORCH_INDEX" -r requirements/torch-cpu.txt
fi
echo "set-up: $(grep -c '==' requirements/cpu.txt) locked packages" >&2
quietly "${pip[@]}" install --no-compile --require-hashes --no-deps -r requirements/cpu.txt
echo "set-up: this package" >&2
quietly "${pip[@]}" install --no-deps --no-build-isolation --no-index -e .
# Python reads .pth files in the locale's encoding, which may be another one later: a relative path is plain ASCII.
quietly "$VENV/bin/python" -c 'import pathlib, os, sysconfig
packages = pathlib.Path(sysconfig.get_path("purelib")).resolve()
(link,) = packages.glob("__editable__.vdr_reproduction-*.pth")
relative = os.path.relpath(pathlib.Path("src").resolve(), packages)
if relative.isascii(): link.write_text(relative + "\n", encoding="ascii")'
quietly "${pip[@]}" check
quietly "$VENV/bin/python" -c 'from vdr.report.notebooks import ensure_kernel; ensure_kernel()'
touch "$STAMP"
rm -f "$log"
echo "set-up: done in $(($(date +%s) - started)) s" >&2
