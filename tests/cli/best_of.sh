#!/usr/bin/env bash
# tern run --best-of: answers are those of single runs with their seeds; the choice is counted again.
set -u
exec python3 "$(dirname "$0")/best_of.py" "$1"
