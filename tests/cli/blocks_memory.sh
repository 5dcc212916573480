#!/usr/bin/env bash
# A quantised file is in memory once: the most that a run takes is the file, keys and values, and little more. While the embedding is
# repacked the file's pages of it are given back piece by piece; without that it would be there twice, 20 MB more.
set -u
tern=$1
if nm -D "$tern" 2>/dev/null | grep -qE '__(asan|tsan|ubsan)_'; then echo "skipped: a sanitizer's memory is another"; exit 77; fi
[ -z "${TERN_EMULATED:-}" ] || { echo "skipped: the emulator's memory is counted too"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TERN_PACK=never
"$tern" synth --arch smollm2-135m --type q8_0 -o "$tmp/m.gguf" || exit 1
"$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 2 -c 256 -t 2 --temp 0 --ignore-eos --json >"$tmp/out" || exit 1
python3 - "$tmp/out" "$(stat -c %s "$tmp/m.gguf")" <<'PY'
import json, sys
with open(sys.argv[1]) as f:
    r = json.load(f)
file, peak = int(sys.argv[2]), r["peak_rss_bytes"]
more = (peak - file - r["kv_bytes"]) / 1e6
print("%.1f MB beyond the file and the cache" % more)
sys.exit(more > 26)
PY
