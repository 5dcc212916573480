#!/usr/bin/env bash
# tern serve with adapters: chosen by request, never mixed up between texts.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/lora.py "$1" models/tern-tiny
