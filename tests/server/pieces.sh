#!/usr/bin/env bash
# Arguments of calls in streams: they come as they are written, and together are the arguments of the whole reply.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 tests/server/pieces.py "$1" models/tern-tiny
