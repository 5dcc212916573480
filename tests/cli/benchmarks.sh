#!/usr/bin/env bash
# tern eval --task mmlu|ruler|bfcl|ifeval: runs, results that are gone on with, pairs, and everything that is refused.
set -u
PYTHONPATH=$(dirname "$0")/../fixture exec python3 "$(dirname "$0")/benchmarks.py" "$1"
