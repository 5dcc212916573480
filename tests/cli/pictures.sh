#!/usr/bin/env bash
# tern run MODEL PICTURE TEXT: what pictures may be, and every way in which they, their encoder and the prompt may be wrong.
set -u
exec python3 "$(dirname "$0")/pictures.py" "$1"
