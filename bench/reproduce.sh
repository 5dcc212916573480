#!/usr/bin/env bash
# The papers' accuracy tables on a model of yours: bench/reproduce.sh MODEL_DIR. --help says the rest.
exec python3 "$(dirname "$0")/reproduce.py" "$@"
