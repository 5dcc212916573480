#!/usr/bin/env bash
# tern pack --compress: a reader written from package-format.md decodes what the same command without it stores; answers are the same.
set -u
exec python3 "$(dirname "$0")/coded.py" "$1"
