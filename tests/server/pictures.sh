#!/usr/bin/env bash
# Pictures in requests of every API, over real sockets.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 tests/server/pictures.py "$1" none
