#!/usr/bin/env bash
# The bindings' declarations are what scripts/bindings.py makes of the headers, and those are what a C compiler makes of them.
set -euo pipefail
[ -z "${TERN_EMULATED:-}" ] || { echo "skipped: the host's compiler builds no programs for this processor"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 scripts/bindings.py --check
python3 scripts/bindings.py --layout >"$tmp/layout.c"
cc -std=c17 -Wall -Wextra -Werror -Iinclude "$tmp/layout.c" -o "$tmp/layout"
"$tmp/layout" >"$tmp/c"
[ "$(grep -c tern_ "$tmp/c")" -gt 100 ] || { echo "FAILED: only $(wc -l <"$tmp/c") lines"; exit 1; }
# The same lines from the ctypes classes.
python3 - bindings/python/tern/_abi.py >"$tmp/python" <<'END'
import ctypes
import runpy
import sys

names = runpy.run_path(sys.argv[1])
for name, value in names.items():
    if isinstance(value, type) and issubclass(value, ctypes.Structure):
        print(name, 0, ctypes.sizeof(value))
        for field, _ in value._fields_:
            print(f"{name}.{field}", getattr(value, field).offset, getattr(value, field).size)
    elif name.startswith("TERN_") and not name.startswith("TERN_VERSION_"):
        print(name, value)
END
diff <(sort "$tmp/c") <(sort "$tmp/python") || { echo "FAILED: the compiler (<) has another layout than the Python binding (>)"; exit 1; }
# Every function of the headers is declared: the same list, found in another way.
grep -hoE '^TERN_API [^(]*\b(tern_[a-z_]+)\(' include/*.h | sed -E 's/.*\b(tern_[a-z_]+)\($/\1/' | sort >"$tmp/functions"
diff "$tmp/functions" <(grep -oE '^    "tern_[a-z_]+": \(' bindings/python/tern/_abi.py | tr -d ' ":(' | sort) || { echo "FAILED: functions are missing"; exit 1; }
# A header that changes is seen.
mkdir -p "$tmp/tree/scripts" "$tmp/tree/include"
cp scripts/bindings.py "$tmp/tree/scripts/"
cp -r bindings "$tmp/tree/"
cp include/tern_shadow.h "$tmp/tree/include/"
sed 's/    int32_t n_ctx;         \/\* the options/    int64_t n_ctx;         \/* the options/' include/tern.h >"$tmp/tree/include/tern.h"
! cmp -s include/tern.h "$tmp/tree/include/tern.h"
! python3 "$tmp/tree/scripts/bindings.py" --check 2>"$tmp/err" || { echo "FAILED: a changed header is not seen"; exit 1; }
grep -q "is not what the headers say" "$tmp/err"
echo "bindings: declared as in the headers"
