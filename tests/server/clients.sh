#!/usr/bin/env bash
# The npm clients of OpenAI, Anthropic and Ollama, as programs use them, against tern serve on loopback.
set -u
tern=$1
skip() { echo "skipped: $*"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || skip "no models/tern-tiny"
command -v node >/dev/null && command -v npm >/dev/null || skip "no node or npm"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 18 ] || skip "node is older than 18"
[ -z "${TERN_EMULATED:-}" ] || skip "emulated"
at=$(dirname "$tern")/npm-clients
want="openai@7.59.0 @anthropic-ai/sdk@1.14.0 ollama@0.6.4"
if [ "$(cat "$at/installed" 2>/dev/null)" != "$want" ]; then
    mkdir -p "$at"
    echo '{"private": true}' >"$at/package.json"
    timeout 120 npm install --prefix "$at" --no-audit --no-fund --ignore-scripts $want >"$at/npm.log" 2>&1 || skip "npm cannot install the clients: $(tail -1 "$at/npm.log")"
    echo "$want" >"$at/installed"
fi
cp tests/server/clients.mjs "$at/"
exec node "$at/clients.mjs" "$tern" models/tern-tiny
