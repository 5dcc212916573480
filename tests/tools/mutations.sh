#!/usr/bin/env bash
# Every mutation of tools/mutations.txt still applies to the tree, and the tests it names are there. Whether they notice is tools/mutate.sh's to see.
set -euo pipefail
python3 tools/mutate.py --check
# Text that is not there, or there twice, is an error and not silence.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/tools" "$tmp/src/base" "$tmp/tests/base"
cp tools/mutate.py "$tmp/tools/"
printf 'int a = 1;\nint b = 1;\n' >"$tmp/src/base/x.c"
touch "$tmp/tests/base/x.c"
refused() { # what it says, the text to look for
    printf '[base/x]\nfile src/base/x.c\nbreaks it\ntests base/x\n- %s\n+ ;\n' "$2" >"$tmp/tools/mutations.txt"
    ! out=$(python3 "$tmp/tools/mutate.py" --check 2>&1) || { echo "accepted: $2"; exit 1; }
    grep -q "$1" <<<"$out" || { echo "said: $out"; exit 1; }
}
refused "0 times" "int c = 1;"
refused "2 times" "= 1;"
printf '[base/x]\nfile src/base/x.c\nbreaks it\ntests base/x\n- int   b =\n- 1 ;\n+ int b = 2;\n' >"$tmp/tools/mutations.txt"
python3 "$tmp/tools/mutate.py" --check # however it is broken into lines
