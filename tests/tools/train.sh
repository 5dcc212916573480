#!/usr/bin/env bash
# The training tools' own tests and the outlier injection (same logits, collapsed naive W8A8). Needs NumPy: skipped without.
[ -n "${TERN_TEST_FULL:-}" ] || { echo "skipped: nothing that is built depends on it: \`make check\` does it, or TERN_TEST_FULL=1"; exit 77; }
for python in python3 /usr/bin/python3; do
    command -v "$python" >/dev/null && "$python" -c "import numpy" 2>/dev/null && exec "$python" tests/tools/test_train.py
done
echo "skipped: no NumPy"
exit 77
