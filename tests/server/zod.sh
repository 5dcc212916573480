#!/usr/bin/env bash
# zod's types as the schemas that its users send: every answer of tern serve is one that zod takes.
set -u
tern=$1
skip() { echo "skipped: $*"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || skip "no models/tern-tiny"
command -v node >/dev/null && command -v npm >/dev/null || skip "no node or npm"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 18 ] || skip "node is older than 18"
[ -z "${TERN_EMULATED:-}" ] || skip "emulated"
at=$(dirname "$tern")/npm-zod
want="zod@4.6.7"
if [ "$(cat "$at/installed" 2>/dev/null)" != "$want" ]; then
    mkdir -p "$at"
    echo '{"private": true}' >"$at/package.json"
    timeout 400 npm install --prefix "$at" --no-audit --no-fund --ignore-scripts $want >"$at/npm.log" 2>&1 || skip "npm cannot install zod: $(tail -1 "$at/npm.log")"
    echo "$want" >"$at/installed"
fi
cp tests/server/zod.mjs "$at/"
exec node "$at/zod.mjs" "$tern" models/tern-tiny
