#!/usr/bin/env bash
# What clients ask of a server whose model embeds or scores, over real sockets.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 tests/server/embedding.py "$1" models/tern-tiny
