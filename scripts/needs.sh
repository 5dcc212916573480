#!/usr/bin/env bash
# What programs and libraries weigh when stripped, what they need of others, and what they load of them at its first need:  scripts/needs.sh FILE...
set -euo pipefail
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
strip=${STRIP:-strip}
for f in "$@"; do
    "$strip" -o "$tmp" "$f"
    libraries=$(readelf -d "$f" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
    loads=$(python3 "$(dirname "$0")/loads.py" "$f" 2>/dev/null | sed 's/ .*//' | tr '\n' ' ' || true)
    # Of the C library there is no end; of others, how many names begin how.
    foreign=$(nm -D --undefined-only "$f" | awk '{print $NF}' | { grep -vE '@(GLIBC|GCC)|^_' || true; } | sed 's/@.*//; s/_.*//' | sort | uniq -c | awk '{printf "%s%s_* %d", sep, $2, $1; sep = ", "}')
    echo "$(basename "$f"): $(stat -c %s "$tmp") bytes stripped; needs ${libraries}${loads:+; loads $loads}; symbols of other libraries: ${foreign:-none}"
done
