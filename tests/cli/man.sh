#!/usr/bin/env bash
# The manual page lists every option of every command, in the words of --help.
set -euo pipefail
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
python3 scripts/manpage.py --check "$1"
grep -q '^\.B \\-m, \\-\\-model MODEL$' man/tern.1
if command -v man >/dev/null && man --version >/dev/null 2>&1; then
    for page in man/tern.1 "$(dirname "$1")"/said/man/tern-*.1; do
        [ -f "$page" ] || continue # of a cross build
        warnings=$(LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -E UTF-8 -l "$page" 2>&1 >/dev/null || true)
        [ -z "$warnings" ] || { echo "$page: $warnings"; exit 1; }
    done
fi
