#!/usr/bin/env bash
# What programs and libraries weigh when stripped, and what they need of others:  scripts/needs.sh FILE...
set -euo pipefail
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
strip=${STRIP:-strip}
for f in "$@"; do
    "$strip" -o "$tmp" "$f"
    libraries=$(readelf -d "$f" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
    # Of the C library there is no end; of others, how many names begin how.
    foreign=$(nm -D --undefined-only "$f" | awk '{print $NF}' | { grep -vE '@(GLIBC|GCC)|^_' || true; } | sed 's/@.*//; s/_.*//' | sort | uniq -c | awk '{printf "%s%s_* %d", sep, $2, $1; sep = ", "}')
    echo "$(basename "$f"): $(stat -c %s "$tmp") bytes stripped; needs ${libraries}; symbols of other libraries: ${foreign:-none}"
done
