#!/usr/bin/env bash
# The Python binding with the library of this build: beside the program, with NumPy and without, its types, its doctests.
set -euo pipefail
tern=$(realpath "$1")
build=$(dirname "$tern")
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "the library is for another processor than Python"
! grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt" || skip "a sanitized library needs its sanitizer"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || skip "no Python 3.9"
export TERN_LIBRARY=$build/libtern.so.1 PYTHONPATH=$PWD/bindings/python PYTHONDONTWRITEBYTECODE=1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
checker=
for python in python3 /usr/bin/python3; do
    if command -v $python >/dev/null && $python -c 'import numpy' 2>/dev/null; then numeric=$python; fi
    if command -v $python >/dev/null && $python -c 'import mypy' 2>/dev/null; then checker=$python; fi
done
if [ -n "$checker" ]; then $checker -m mypy --config-file bindings/python/pyproject.toml --cache-dir "$build/mypy" bindings/python/tern
else echo "no mypy (Debian: mypy): types are not checked"; fi
if [ -n "${numeric:-}" ]; then $numeric bindings/python/tests/test_tern.py "$tern"
else echo "no NumPy (Debian: python3-numpy): only the form without is tested"; fi
# Without NumPy: a module of that name that cannot be imported stands in front of it.
mkdir "$tmp/without"
echo 'raise ImportError("not here")' >"$tmp/without/numpy.py"
if [ -n "${numeric:-}" ]; then set -- Sessions Text.test_embed; else set --; fi
PYTHONPATH=$tmp/without:$PYTHONPATH python3 bindings/python/tests/test_tern.py "$tern" "$@" 2>&1 | tee "$tmp/out"
grep -q "^NumPy: no" "$tmp/out"
! grep -q FAILED "$tmp/out"
# Where there is no library, what to do is said.
! TERN_LIBRARY=$tmp/none.so python3 -c 'import tern' 2>"$tmp/err"
grep -q 'let $TERN_LIBRARY name the file' "$tmp/err"
