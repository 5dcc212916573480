#!/usr/bin/env bash
# Rejects includes that point up: a file includes only from its own storey of src/ or from those below.
set -euo pipefail
cd "$(dirname "$0")/.."
floors="base kernels sched text formats npu model package attention prefill draft quant store engine lab server cli"
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
exit $bad
