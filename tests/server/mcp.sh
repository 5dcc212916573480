#!/usr/bin/env bash
# The Model Context Protocol over HTTP: the same replies as tern mcp gives, and what the transport adds.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 tests/server/mcp.py "$1" models/tern-tiny
