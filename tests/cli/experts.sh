#!/usr/bin/env bash
# Experts on demand: below a model's size the same text, with what it took in --stats, --explain and JSON; less than one layer
# needs is refused with the numbers.
set -u
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TERN_PACK=never
fail() { echo "FAILED: $*"; exit 1; }
"$tern" synth --arch qwen3moe --tiny --seed 3 -o "$tmp/m.gguf" >/dev/null || exit 1
"$tern" pack "$tmp/m.gguf" -o "$tmp/m.tern" --bits 5 >/dev/null 2>&1 || exit 1
run() { "$tern" run -m "$tmp/m.tern" -p "The river ran past the old mill and the children threw stones at its wheel." -n 40 -c 512 -t 2 --temp 0 --ignore-eos "$@"; }
run --json >"$tmp/all.json" 2>/dev/null || fail "all in memory"
# what is refused says how much it needs; a little more than the experts' least is then enough
run --max-memory 8M >/dev/null 2>"$tmp/err" && fail "8 MiB are enough for everything?"
[ $? = 1 ] || true
grep -q "max-memory allows 8$" "$tmp/err" || fail "refused without the numbers: $(cat "$tmp/err")"
[ "$(wc -l <"$tmp/err")" = 1 ] || fail "more than one line: $(cat "$tmp/err")"
for kib in 12256 12056 11856 11656 11456 11256 11056; do
    run --max-memory ${kib}K --json --explain >"$tmp/some.json" 2>/dev/null && grep -q '"experts"' "$tmp/some.json" && break
done
grep -q '"experts"' "$tmp/some.json" || fail "no memory between all and none"
python3 - "$tmp" <<'PY' || exit 1
import json, sys
a, b = (json.load(open(f"{sys.argv[1]}/{n}.json")) for n in ("all", "some"))
e = b["experts"]
assert a["text"] == b["text"], "another text"
assert "experts" not in a
assert 0 < e["room_bytes"] < e["bytes"] and 0 < e["read_bytes"] and e["hits"] + e["read_ahead"] <= e["taken"], e
assert 0 < e["foreseen"] <= e["chosen"] and 0 <= e["hit_share"] <= 1, e
assert any(x["mechanism"] == "experts on demand" and x["on"] for x in b["explain"]), b["explain"]
PY
run --max-memory ${kib}K --stats=all --explain 2>&1 >/dev/null | grep -q "experts on demand: room for" || fail "--stats says nothing"
echo "ok"
