#!/usr/bin/env bash
# tern serve and what it keeps of people: erased from the bytes of every file, and private whatever the umask.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/private.py "$1" models/tern-tiny
