#!/usr/bin/env bash
# The page's requests, all at once. It is for the thread sanitizer, under which it runs too.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/traffic.py "$1" models/tern-tiny
