#!/usr/bin/env bash
# libtern.so has the binary interface of abi/libtern.abi, and the check sees a change when there is one.
set -euo pipefail
build=$(dirname "$1")
if grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt"; then
    echo "skipped: a sanitized library has symbols of its sanitizer"
    exit 77
fi
rc=0
bash scripts/abi.sh "$build" || rc=$?
[ $rc = 0 ] || exit $rc
# a description with another size for a parameter, and one without a function, are seen
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/abi" "$tmp/scripts"
cp scripts/abi.sh "$tmp/scripts"
ln -s "$PWD/include" "$tmp/include"
build=$(realpath "$build")
sed "s/name='tern_session_step'/name='tern_session_steps'/g; s/tern_session_step@/tern_session_steps@/g" abi/libtern.abi >"$tmp/abi/libtern.abi"
! bash "$tmp/scripts/abi.sh" "$build" >"$tmp/out" || { echo "FAILED: a removed function is not seen"; exit 1; }
grep -q "tern_session_step" "$tmp/out"
sed "s/name='seed' /name='seeds' /" abi/libtern.abi >"$tmp/abi/libtern.abi"
cmp -s abi/libtern.abi "$tmp/abi/libtern.abi" && { echo "FAILED: the description has no field seed"; exit 1; }
echo "abi: changes are seen"
