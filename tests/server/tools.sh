#!/usr/bin/env bash
# Tools of MCP servers in the page's answers: decided one by one, for a conversation, by name; and by nobody else.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 tests/server/tools.py "$1" models/tern-tiny
