#!/usr/bin/env bash
# tern serve where something is in its way: a socket that is passed, clients that do not read, a crowd, a disk that is full.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/edges.py "$1" models/tern-tiny
