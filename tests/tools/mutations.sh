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

# Parts are disjoint and whole. A result is believed while nothing it depends on has changed; a survivor is never.
for i in 1 2 3; do printf '[base/%d]\nfile src/base/x.c\nbreaks it\ntests base/x\n- int a = 1;\n' "$i"; done >"$tmp/tools/mutations.txt"
mutate() { python3 "$tmp/tools/mutate.py" "$@"; }
[ "$( (mutate --part 1/2 --list; mutate --part 2/2 --list) | grep -c '^base/')" = 3 ]
! mutate --part 3/2 --check 2>/dev/null
python3 - "$tmp" <<'END'
import json, sys
sys.path.insert(0, sys.argv[1] + "/tools")
import mutate
known = {}
for m in mutate.read_list(open(sys.argv[1] + "/tools/mutations.txt").read()):
    by = None if m["name"] == "base/3" else "base/x"
    known[m["name"]] = {"name": m["name"], "breaks": "", "tests": ["base/x"], "noticed_by": by, "error": None, "digest": mutate.digest(m)}
mutate.write_results(sys.argv[1] + "/results", known)
END
said() { # a text, then what to run
    out=$(mutate "${@:2}" 2>&1 || true)
    grep -q "$1" <<<"$out" || { echo "said: $out"; exit 1; }
}
said "3 mutations: 2 noticed, 1 survived, 0 errors$" --results "$tmp/results" --summary
said "2 mutations: 2 noticed, 0 survived, 0 errors$" --results "$tmp/results" base/1 base/2 # nothing is left to run
printf 'int a = 1;\nint c = 1;\n' >"$tmp/src/base/x.c"
said "; 3 not run$" --results "$tmp/results" --summary
echo '{}' >"$tmp/results"
said "no results of mutations" --results "$tmp/results" --summary
