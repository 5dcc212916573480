#!/usr/bin/env bash
# libtern's binary interface beside its committed description, abi/libtern.abi.
#   scripts/abi.sh [--update] BUILD
# Exit 0: nothing was removed or changed, 1: something was, 77: no abidiff here (Debian: abigail-tools) or no debug information.
# New functions are fine. A field at the end of a sized struct is fine too, but looks like any other change: see that it is
# at the end, then write it down with --update.
set -euo pipefail
cd "$(dirname "$0")/.."
update=""
if [ "$1" = --update ]; then
    update=yes
    shift
fi
lib=$1/libtern.so
skip() { echo "skipped: $*"; exit 77; }
command -v abidiff >/dev/null || skip "no abidiff (Debian: abigail-tools)"
[ -f "$lib" ] || skip "no $lib"
sections=$(readelf -S "$lib")
case $sections in *.debug_info*) ;; *) skip "$lib has no debug information" ;; esac
[ "$(uname -m)" = x86_64 ] || skip "the description is that of x86-64"
if [ -n "$update" ]; then
    mkdir -p abi
    abidw --exported-interfaces-only --headers-dir include --drop-private-types --no-comp-dir-path --no-corpus-path --no-show-locs --out-file abi/libtern.abi "$lib"
    sed -i -E "s#path='[^']*/(src/[^']*)'#path='\1'#" abi/libtern.abi # paths as in the tree, wherever it was built
    exit 0
fi
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
rc=0
abidiff --no-added-syms --exported-interfaces-only --headers-dir2 include --drop-private-types --no-show-locs abi/libtern.abi "$lib" >"$tmp" || rc=$?
if [ $rc = 0 ]; then
    echo "abi: as described"
    exit 0
fi
cat "$tmp"
if [ $((rc & 8)) != 0 ]; then echo "abi: libtern.so breaks programs built with earlier headers"
else echo "abi: a type is not as abi/libtern.abi says; if it only grew at its end: scripts/abi.sh --update BUILD"; fi
exit 1
