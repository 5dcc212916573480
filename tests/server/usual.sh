#!/usr/bin/env bash
# What clients of llama.cpp's server and the rest of OpenAI's API ask of tern serve, over real sockets.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/usual.py "$1" models/tern-tiny
