#!/usr/bin/env bash
# Control tokens that clients spell, at every address and in every field.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/forged.py "$1" models/tern-tiny
