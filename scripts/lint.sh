#!/usr/bin/env bash
# What no compiler checks: includes point down (a file includes only from its own storey of src/ or from those below), JSON goes through
# base/json.h, paths in the documents exist, files and functions are short, and every C file is as clang-format 14 writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
floors="base kernels sched text formats npu model package attention prefill draft quant params libraries store media engine session documents pictures measure server cli lab"
declare -A height
i=0
for f in $floors; do height[$f]=$i; i=$((i + 1)); done
bad=0
while IFS=: read -r file _ include; do
    from=${file#src/}; from=${from%%/*}
    to=${include#\#include \"}; to=${to%%/*}
    [ -n "${height[$from]:-}" ] || { echo "$file: $from is not a storey"; bad=1; continue; }
    [ -n "${height[$to]:-}" ] || continue
    [ "${height[$to]}" -le "${height[$from]}" ] || { echo "$file includes upwards: $include"; bad=1; }
done < <(grep -rnoE '#include "[a-z0-9_]+/[a-z0-9_/.]+"' src)
[ $bad = 0 ] && echo "lint: includes point down"
# Every JSON value is read, built and written by base/json.h, whose results cannot be forgotten and whose depth is bounded.
raw='\bjson_(copy|deep_copy|pack|vpack|sprintf|string|stringn|real|dump|dumps|dumpf|dumpb|dump_file|load|loads|loadf|loadb|loadfd|load_file|load_callback|object_set|object_update|array_append|array_insert|array_set)(_new|_nocheck|_ex)*\('
if grep -rnE "$raw" src --include='*.[ch]' | grep -v '^src/base/json[._]'; then
    echo "lint: jansson's own builders and readers are for src/base/json.c and json_parse.c; use tn_json_*"
    bad=1
fi
# jansson is 2.13 on Ubuntu 22.04, which has none of these.
if grep -rnE '\bjson_object_(getn|setn|deln|keylen_foreach|iter_key_len|update_recursive|[a-z_]*getn)\b' src tests include tools --include='*.[ch]'; then
    echo "lint: Ubuntu 22.04's jansson does not have this"
    bad=1
fi
# One folder knows which system it is for.
if grep -rnE '\b(_WIN32|__linux__|__APPLE__|__GLIBC__|__ANDROID__)\b' src --include='*.[ch]' | grep -v '^src/base/'; then
    echo "lint: which system it is, is for src/base/ to ask"
    bad=1
fi
# Files do not call each other in circles.
python3 scripts/circles.py || bad=1
# No file and no function is long.
python3 scripts/sizes.py || bad=1
# Every file that reads bytes from outside has a fuzz target, and with it lines in the tests of depth and growth, or a reason.
python3 scripts/readers.py || bad=1
python3 scripts/figures.py --check >/dev/null || bad=1
# What the documents name is there.
python3 scripts/paths.py || bad=1
# No file says where somebody's tree or home lies. What git does not know of is no business of this; without git nothing is looked at.
somewhere='(^|[^A-Za-z0-9_.$~})>/-])/(home|Users|root|work|builds|workspace)/[A-Za-z0-9_.-]'
if git rev-parse HEAD >/dev/null 2>&1; then
    if git grep -nIE "$somewhere" -- . ':!scripts/lint.sh' | grep -vE '/home/(someone|user)\b' | cut -c1-160; then
        echo "lint: paths of one machine"
        bad=1
    else
        echo "lint: no paths of a machine"
    fi
fi
format=$(command -v clang-format-14 || true)
if [ -n "$format" ]; then
    find src include tests bench examples -name "*.[ch]" -print0 | xargs -0 "$format" --dry-run --Werror || { echo "lint: run clang-format-14 -i on these files"; bad=1; }
    [ $bad = 0 ] && echo "lint: formatted"
else
    echo "lint: no clang-format-14, so the format is not checked"
fi
exit $bad
