#!/usr/bin/env bash
# tern mcp, asked as an agent asks: documents as tools and resources, wrong messages, cancelling, an agent that leaves.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/cli/mcp.py "$1" models/tern-tiny
