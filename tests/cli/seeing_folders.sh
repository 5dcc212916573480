#!/usr/bin/env bash
# Hugging Face folders of models that see: the encoder is read from the same files as the text, and answers as an mmproj file's does.
set -u
exec python3 "$(dirname "$0")/seeing_folders.py" "$1"
