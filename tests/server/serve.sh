#!/usr/bin/env bash
# tern serve over real sockets, on the model of the repository: what clients ask and what they do wrong.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/serve.py "$1" models/tern-tiny
