#!/usr/bin/env bash
# Breaks one mechanism at a time in a copy of the tree and sees whether the tests that should notice do. --help says the rest.
exec python3 "$(dirname "$0")/mutate.py" "$@"
