#!/usr/bin/env bash
# Clients that leave while their prompt is read, and come back, over real sockets.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/again.py "$1" models/tern-tiny
