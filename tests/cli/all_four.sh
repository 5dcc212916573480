#!/usr/bin/env bash
# One request through all four systems by default: a cold start, a document of 4,000 tokens, an answer that copies from it. tern-tiny in another
# shape (tools/inflate.py), turned more slowly so that it reads twice as far; bench/all-four.sh does the same in the shape of 1.5B.
set -u
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; [ -f "$tmp/err" ] && head -5 "$tmp/err"; exit 1; }
python=
for p in python3 /usr/bin/python3; do
    if [ -z "$python" ] && command -v $p >/dev/null && $p -c 'import numpy' 2>/dev/null; then python=$p; fi
done
[ -n "$python" ] || { echo "skipped: python3 with NumPy is not installed"; exit 77; }
demo=models/tern-tiny/demo.txt
inflate() { "$python" tools/inflate.py models/tern-tiny "$@" 2>"$tmp/err"; }

# the larger shape computes the same function
inflate "$tmp/same" --width 512 --ffn 1280 --layers 12 --heads 8 --head-dim 128 --vocab 4100 || fail "inflate"
for m in models/tern-tiny "$tmp/same"; do
    "$tern" run -m "$m" -f $demo --chat --temp 0 -n 48 --pack never >"$tmp/$(basename "$m").txt" 2>"$tmp/err" || fail "run $m"
done
cmp "$tmp/tern-tiny.txt" "$tmp/same.txt" || fail "the larger shape gives another answer"
inflate "$tmp/no" --width 128 && fail "a smaller shape is not refused"
grep -q "width: 128 is less than the source's 256" "$tmp/err" || fail "why it is refused"

inflate "$tmp/long" --width 512 --ffn 1280 --layers 12 --heads 6 --theta 30000 --context 8192 || fail "inflate"
"$tern" pack "$tmp/long" -o "$tmp/long.tern" -b 6 --allocation uniform --quick >"$tmp/log" 2>"$tmp/err" || fail "pack"
"$python" - $demo "$tmp/prompt.txt" <<'END'
import sys
document, question = open(sys.argv[1]).read().rstrip("\n").rsplit("\n\n", 1)
open(sys.argv[2], "w").write("\n\n".join([document] * 11 + [question]) + "\n")
END
run() { "$tern" run -m "$tmp/long.tern" -f "$tmp/prompt.txt" --chat --temp 0 -n 48 "$@"; }
run --json --explain --trace "$tmp/trace.json" >"$tmp/all" 2>"$tmp/err" || fail "run"
# by the times that the first one measured; those of several rows are made the same on a busy machine
python3 - "$tmp/long.tern.profile" <<'END' || fail "times in the profile"
import json, sys
profile = json.load(open(sys.argv[1]))
assert len(profile["forward_rows"]) == len(profile["forward_relative"]) >= 4, profile
profile["forward_relative"] = [1 + 0.02 * rows for rows in profile["forward_rows"]]
json.dump(profile, open(sys.argv[1], "w"))
END
run --json --explain >"$tmp/again" 2>"$tmp/err" || fail "run again"
run --json --set load=sequential --set policy=in-order --set attention=full --set draft=none >"$tmp/none" 2>"$tmp/err" || fail "run without"
python3 - "$tmp" $demo <<'END' || fail "one request through all four"
import json, sys
tmp, demo = sys.argv[1:]
whole, again, none = (json.load(open(f"{tmp}/{n}")) for n in ("all", "again", "none"))
assert 3800 < whole["prompt_tokens"] < 4200, whole["prompt_tokens"]
document = open(demo).read()
answer = whole["text"].strip()  # "Mail from X about Y: what it says"
assert len(answer) > 100 and all(part in document for part in answer.split(": ", 1)), answer
assert none["text"] == whole["text"] == again["text"], (none["text"], answer, again["text"])
on = {x["mechanism"]: x for x in again["explain"] if x["on"]}
assert set(on) == {"cold start", "INT8 prefill", "out of order", "sparse attention", "drafts"}, again["explain"]
assert again["attention"]["selected_share"] < 0.5 and "attention" not in none
assert again["draft"]["verifications"] < again["tokens"] / 2 and none["draft"]["accepted"] == 0, again["draft"]
names = {e["name"] for e in json.load(open(f"{tmp}/trace.json"))["traceEvents"]}
assert {"read", "unpack", "ffn", "attention", "draft", "verify"} <= names, names
END
echo "one request through all four: fine"
