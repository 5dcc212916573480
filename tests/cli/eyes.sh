#!/usr/bin/env bash
# The reader of drawn screens: what it answers about drawings that it was never trained on, in every form.
set -u
exec python3 "$(dirname "$0")/eyes.py" "$1"
