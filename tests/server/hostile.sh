#!/usr/bin/env bash
# tern serve beside 200 connections that mean it harm, a document that takes for ever, and clients without a key.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/hostile.py "$1" models/tern-tiny
