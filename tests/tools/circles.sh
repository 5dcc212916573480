#!/usr/bin/env bash
# scripts/circles.py finds a circle of three files. A name in a comment or in a text closes none.
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/room"
printf 'void tn_a(void) {\n    tn_b();\n}\n' >"$tmp/room/a.c"
printf 'void tn_b(void) {\n    tn_c();\n}\n' >"$tmp/room/b.c"
printf 'const char *tn_c(void) { /* tn_a() */\n    return "tn_a";\n}\n' >"$tmp/room/c.c"
python3 scripts/circles.py "$tmp"
printf 'void tn_c(void) {\n    tn_a();\n}\n' >"$tmp/room/c.c"
if python3 scripts/circles.py "$tmp" >"$tmp/told"; then
    echo "a circle was not found"
    exit 1
fi
for arrow in 'room/a.c -> room/b.c: tn_b' 'room/b.c -> room/c.c: tn_c' 'room/c.c -> room/a.c: tn_a'; do
    grep -q "$arrow" "$tmp/told" || { echo "not told: $arrow"; exit 1; }
done
