#!/bin/bash
# Regenerates every vector of the oracle: tests/oracle/make.sh
# As a test (ctest passes the program): checks that the files in the tree are what the scripts make. Needs python3 with NumPy.
cd "$(dirname "$0")" || exit 1
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import numpy' 2>/dev/null || { echo "python3 with NumPy is not installed; skipped"; exit 77; }
if [ $# -gt 0 ] && [ -z "${TERN_TEST_FULL:-}" ]; then echo "skipped: nothing that is built depends on it: \`make check\` does it, or TERN_TEST_FULL=1"; exit 77; fi
export PYTHONDONTWRITEBYTECODE=1
if [ $# -gt 0 ]; then "$python" rwkv_vocab.py --check && "$python" dequant_oracle.py --check && "$python" embedding.py --check && exec "$python" cases.py --check; exit 1; fi
"$python" rwkv_vocab.py || exit 1
"$python" dequant_oracle.py || exit 1
"$python" embedding.py || exit 1
exec "$python" cases.py
