#!/usr/bin/env bash
# Long conversations that are edited, by counts: every answer is that of a server that never saw them, also after restarts, and little is read again.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || { echo "skipped: emulated"; exit 77; }
lab=$(dirname "$1")/tern-lab
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
n=20
[ -z "${TERN_TEST_QUICK:-}" ] || n=3
python3 bench/edits.py "$1" models/tern-tiny --sequences $n --edits 2 --turns 6 --most 1.1 || exit 1
"$lab" synth --arch tiny-qwen35 -o "$work/hybrid.gguf" >/dev/null || exit 1 # which goes back to snapshots only
python3 bench/edits.py "$1" "$work/hybrid.gguf" --sequences $n --edits 2 --turns 6 --context 8192 --most 1.15
