#!/usr/bin/env bash
# Folders whose weights are packed by GPTQ or AWQ, or for MLX, give the numbers of the same folder dequantised by each format's published definition.
set -u
/usr/bin/python3 -c 'import numpy' 2>/dev/null || { echo "skipped: python3 with NumPy is not installed"; exit 77; }
exec /usr/bin/python3 "$(dirname "$0")/packed.py" "$1"
