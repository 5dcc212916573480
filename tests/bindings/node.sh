#!/usr/bin/env bash
# The Node binding with the library of this build, beside the program. koffi comes from npm.
set -euo pipefail
tern=$(realpath "$1")
build=$(dirname "$tern")
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "the library is for another processor than Node"
! grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt" || skip "a sanitized library needs its sanitizer"
command -v node >/dev/null && command -v npm >/dev/null || skip "no node or npm"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 18 ] || skip "node is older than 18"
at=$build/node-binding
mkdir -p "$at"
if ! cmp -s bindings/node/package.json "$at/package.json" || [ ! -d "$at/node_modules/koffi" ]; then
    cp bindings/node/package.json "$at/"
    timeout 120 npm install --prefix "$at" --no-audit --no-fund --ignore-scripts >"$at/npm.log" 2>&1 || { rm "$at/package.json"; skip "npm cannot install koffi: $(tail -1 "$at/npm.log")"; }
fi
cp bindings/node/*.js bindings/node/*.ts bindings/node/abi.json "$at/"
TERN_LIBRARY=$build/libtern.so.1 TERN_PROGRAM=$tern node --test "$at/tern.test.js"
