#!/usr/bin/env bash
# tern is linked with what a prompt needs and loads the rest when asked (src/libraries/): nobody links one again by accident, and where one cannot be
# loaded whoever needs it says so in a line, and everything else works. A library that cannot be loaded is a file of its name that is none, before the
# system's (LD_LIBRARY_PATH).
set -u
exec python3 "$(dirname "$0")/libraries.py" "$1" "$(dirname "$1")"
