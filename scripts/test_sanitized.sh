#!/usr/bin/env bash
# Runs the kernels' tests with the C library compiled under AddressSanitizer and UndefinedBehaviorSanitizer, at every instruction level
# that this machine can run: a read or write beside a buffer, or undefined arithmetic, ends the run with its place in the source.
set -euo pipefail
cd "$(dirname "$0")/.."
cc=${CC:-cc}
for name in asan ubsan; do
  lib=$($cc -print-file-name=lib$name.so 2>/dev/null || true)
  if [ ! -e "$lib" ]; then
    echo "test-sanitized: $cc has no lib$name.so; install GCC with its sanitizers (Debian: gcc, libgcc-*-dev), or set CC" >&2
    exit 5
  fi
  preload=${preload:+$preload }$lib
done
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
# Python keeps what it allocates until it ends, which is no leak of the kernels'.
VDR_TEST_SANITIZED=1 VDR_CACHE=$cache LD_PRELOAD=$preload \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
  "${VENV:-.venv}/bin/python" -m pytest -q -p no:cacheprovider tests/kernels tests/models_student/test_forward.py \
  -k "x86-64 or native or sanitizer" "$@"
