#!/usr/bin/env bash
# What a built program or library has against those who would take it over, and what it must not say:
#   scripts/hardened.sh [--not WORDS]... FILE...
# Loaded at any address (PIE, static-pie), tables that are written once (RELRO, bound at the start), no memory that can be both written and run, no
# relocations in code, no folders of libraries but the system's and its own, and none of WORDS (the folders that it was built in). Exit 1 and a line for the first
# that is not so.
set -euo pipefail
words=()
while [ "${1:-}" = --not ]; do words+=("$2"); shift 2; done
[ $# -gt 0 ] || { echo "usage: hardened.sh [--not WORDS]... FILE..." >&2; exit 2; }
fail() { echo "FAILED: $*"; exit 1; }
for f in "$@"; do
    header=$(readelf -hW "$f") dynamic=$(readelf -dW "$f") segments=$(readelf -lW "$f")
    grep -q 'Type: *DYN' <<<"$header" || fail "$f is loaded at a fixed address"
    grep -q GNU_RELRO <<<"$segments" || fail "$f has no RELRO"
    grep -qE 'BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || fail "$f binds late: its RELRO is partial"
    grep -qE 'GNU_STACK.* RW +0x' <<<"$segments" || fail "$f has a stack that can be executed"
    ! grep -qE '^ *LOAD.* RWE ' <<<"$segments" || fail "$f has memory that can be written and executed"
    ! grep -q TEXTREL <<<"$dynamic" || fail "$f has relocations in its code"
    ! grep -E '\((RPATH|RUNPATH)\)' <<<"$dynamic" | grep -qvF '[$ORIGIN]' || fail "$f looks for libraries in $(grep -E 'RPATH|RUNPATH' <<<"$dynamic")"
    if [ ${#words[@]} -gt 0 ]; then
        for w in "${words[@]}"; do
            ! grep -qaF -- "$w" "$f" || fail "$f names $w: $(strings -a "$f" | grep -F -m 1 -- "$w")"
        done
    fi
done
echo "hardened: $# files"
