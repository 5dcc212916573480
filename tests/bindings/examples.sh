#!/usr/bin/env bash
# The recipes of examples/ do what they say, with the model of the repository.
set -euo pipefail
tern=$(realpath "$1")
build=$(dirname "$tern")
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "the library is for another processor than Python"
! grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt" || skip "a sanitized library needs its sanitizer"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || skip "no Python 3.9"
export TERN_LIBRARY=$build/libtern.so.1 PYTHONPATH=$PWD/bindings/python PYTHONDONTWRITEBYTECODE=1
tmp=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$tmp"' EXIT
model=models/tern-tiny
fail() { echo "FAILED: $*"; exit 1; }

# A schema: every line gets one of the classes.
printf 'The dog ran.\nThe price of bread\n' | python3 examples/classify.py $model animals money >"$tmp/out"
[ "$(grep -cE $'^(animals|money)\t' "$tmp/out")" = 2 ] || fail "classify: $(cat "$tmp/out")"

# A folder: the passage that says nearly what is asked comes first of many, with its file.
mkdir "$tmp/docs"
for i in 1 2 3 4 5 6; do printf 'Number %s is about the weather in the town and the rain.\n\nThe market of day %s sells bread.\n' $i $i; done >"$tmp/docs/other.txt"
printf 'Lily has a red ball. She plays with the ball in the park.\n' >"$tmp/docs/ball.txt"
python3 examples/rag.py $model "$tmp/docs" "Lily has a red ball. She plays with the ball." >"$tmp/out"
head -1 "$tmp/out" | grep -q '^\[ball.txt\] Lily has a red ball' || fail "rag: $(cat "$tmp/out")"
[ "$(sed -n '4,$p' "$tmp/out" | wc -c)" -gt 5 ] || fail "rag answers nothing: $(cat "$tmp/out")"

# The middle: a model without the tokens is refused; one that has them gets prefix, suffix and the mark in that order.
printf 'one\ntwo\n' >"$tmp/text"
! python3 examples/fim.py $model "$tmp/text" 1 2>"$tmp/err" || fail "fim takes a model without the tokens"
grep -q "no tokens to fill in the middle" "$tmp/err"
mkdir "$tmp/fim"
cp $model/*.json "$tmp/fim/"
ln -s "$PWD/$model/model.safetensors" "$tmp/fim/"
python3 - "$tmp/fim/tokenizer.json" <<'END'
import json
import sys

t = json.load(open(sys.argv[1], encoding="utf-8"))
vocab = t["model"]["vocab"]
used = {a["id"] for a in t["added_tokens"]} | {i for m in t["model"]["merges"] for i in [vocab.get("".join(m.split(" ") if isinstance(m, str) else m))]}
free = [(i, text) for text, i in vocab.items() if i not in used]  # bytes that English has no use for
for mark, (i, text) in zip(("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), sorted(free)[-3:]):
    del vocab[text]
    vocab[mark] = i
    t["added_tokens"].append({"id": i, "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True})
t["added_tokens"].sort(key=lambda a: a["id"])
json.dump(t, open(sys.argv[1], "w", encoding="utf-8"))
END
python3 examples/fim.py "$tmp/fim" "$tmp/text" 1 >"$tmp/out"
"$tern" run "$tmp/fim" "x" --raw -n 1 --temp 0 >/dev/null
python3 - "$tmp/fim" "$tmp/out" <<'END'
import sys
import tern

m = tern.Model(sys.argv[1], temp=0, n_predict=64)
ids = m.tokenize("<|fim_prefix|>one\n<|fim_suffix|>two\n<|fim_middle|>", special=False, parse_special=True)
want = "".join(m.session().generate(ids))
assert open(sys.argv[2], encoding="utf-8").read() == want + "\n", want
END

# Tools: the call is run, its result goes back.
"$tern" serve -m $model --port 0 2>"$tmp/log" >"$tmp/log.out" &
server=$!
while kill -0 $server 2>/dev/null; do # it says where it listens, or ends
    url=$(cat "$tmp/log" "$tmp/log.out" | grep -oE 'http://127\.0\.0\.1:[0-9]+' | head -1 || true)
    [ -z "$url" ] || break
    sleep 0.1
done
[ -n "$url" ] || fail "no server: $(cat "$tmp/log")"
python3 examples/tools.py "$url" "What is 2 and 3?" >"$tmp/out"
python3 - "$tmp/out" <<'END' || fail "tools: $(cat "$tmp/out")"
import re
import sys

lines = open(sys.argv[1], encoding="utf-8").read().split("\n", 1)
name, a, b, result = re.fullmatch(r"(add|multiply)\((\d+), (\d+)\) = (\d+)", lines[0]).groups()
assert int(result) == (int(a) + int(b) if name == "add" else int(a) * int(b)) and lines[1].strip()
END
echo "examples: classify, rag, fim, tools"
