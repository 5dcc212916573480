#!/usr/bin/env bash
# Log-probabilities of prompts (echo with logprobs), over real sockets.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/scores.py "$1" models/tern-tiny
