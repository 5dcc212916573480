#!/usr/bin/env bash
# tern serve ends: what is being answered may end first, or is cut off; and where it listens: names and both kinds of addresses.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/ending.py "$1" models/tern-tiny
