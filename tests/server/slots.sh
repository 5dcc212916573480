#!/usr/bin/env bash
# Sessions by their numbers: saved to a file, restored, erased, and asked for by name, over real sockets.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
python3 tests/server/slots.py "$1" models/tern-tiny "$work" || exit 1
[ -z "${TERN_EMULATED:-}${TERN_TEST_QUICK:-}" ] || exit 0
"$(dirname "$1")/tern-lab" synth --arch tiny-qwen35 -o "$work/hybrid.gguf" >/dev/null || exit 1 # whose state goes back to snapshots only
python3 tests/server/slots.py "$1" "$work/hybrid.gguf" "$work"
