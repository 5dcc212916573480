#!/usr/bin/env bash
# tern serve speaks TLS: what clients get, what is refused, and what hostile bytes on its port cost the others.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
command -v openssl >/dev/null || { echo "skipped: no openssl, which makes the certificates"; exit 77; }
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
exec python3 tests/server/tls.py "$1" models/tern-tiny
