#!/usr/bin/env bash
# tern pull against a server on this machine that speaks Hugging Face's API and Ollama's, with every fault; and no other command opens a connection.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 tests/cli/pull.py "$1"
