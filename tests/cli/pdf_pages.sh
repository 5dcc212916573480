#!/usr/bin/env bash
# tern run MODEL scan.pdf TEXT: pages of PDF without text are pictures; text goes before the question; what may be wrong.
set -u
exec python3 "$(dirname "$0")/pdf_pages.py" "$1"
