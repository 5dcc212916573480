#!/usr/bin/env bash
# The page of tern serve in headless Chromium, on a package of the repository's model. Screenshots go to page-shots beside the program.
set -u
tern=$1
skip() { echo "skipped: $*"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || skip "no models/tern-tiny"
command -v node >/dev/null && command -v npm >/dev/null || skip "no node or npm"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 18 ] || skip "node is older than 18"
[ -z "${TERN_EMULATED:-}" ] || skip "emulated"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || skip "no chromium (Debian package chromium)"
at=$(dirname "$tern")/npm-page
want="playwright-core@1.56.1"
if [ "$(cat "$at/installed" 2>/dev/null)" != "$want" ]; then
    mkdir -p "$at"
    echo '{"private": true}' >"$at/package.json"
    timeout 120 npm install --prefix "$at" --no-audit --no-fund --ignore-scripts $want >"$at/npm.log" 2>&1 || skip "npm cannot install the browser's driver: $(tail -1 "$at/npm.log")"
    echo "$want" >"$at/installed"
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
"$tern" pack models/tern-tiny -o "$work/tern-tiny.tern" --quick >"$work/pack.log" 2>&1 || { cat "$work/pack.log"; exit 1; }
cp tests/server/page.mjs "$at/"
node "$at/page.mjs" "$tern" "$work" "$browser" "$(dirname "$tern")/page-shots"
