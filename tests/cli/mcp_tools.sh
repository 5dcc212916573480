#!/usr/bin/env bash
# Tools of MCP servers in tern chat: asked for, allowed by name, refused; servers that misbehave.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 tests/cli/mcp_tools.py "$1"
