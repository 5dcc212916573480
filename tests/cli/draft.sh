#!/usr/bin/env bash
# Drafts at the command line, on the model of the repository: the same text whatever drafts, fewer forwards where the answer copies, figures
# in JSON, names on the timeline, conversations that draft from all their turns.
set -u
tern=$1
model=models/tern-tiny
if [ ! -r "$model/model.safetensors" ]; then
    echo "skipped: no $model"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
"$tern" pack "$model" -o "$tmp/m.tern" --quick --calib "$model/calib.txt" --calib-tokens 1024 >/dev/null 2>&1 || fail "pack"
python3 - "$tmp" <<'PY' || exit 1
import json, sys
for i, name in enumerate(("summary", "reply", "function_call")):
    lines = open(f"models/tern-tiny/eval/{name}.jsonl").read().splitlines()
    for j in range(2):
        open(f"{sys.argv[1]}/prompt{2 * i + j}", "w").write(json.loads(lines[j])["prompt"])
PY
field() { python3 -c "import json,sys; d=json.load(open('$1')); print(eval(sys.argv[1]))" "$2"; }
tokens=0 forwards=0
for m in "$tmp/m.tern" "$model"; do
    for p in 0 4; do
        for temp in 0 0.8; do
            "$tern" run -m "$m" -f "$tmp/prompt$p" -n 60 --temp $temp --seed $p --draft none --json >"$tmp/none" 2>"$tmp/err" || fail "run: $(cat "$tmp/err")"
            for draft in auto lookup sam,calibrated,extend "all,model:$tmp/m.tern"; do
                [ "$m$draft" = "$model""lookup" ] && continue
                "$tern" run -m "$m" -f "$tmp/prompt$p" -n 60 --temp $temp --seed $p --draft "$draft" --draft-eager --json -t 2 >"$tmp/got" 2>"$tmp/err" || fail "run --draft $draft: $(cat "$tmp/err")"
                [ "$(field "$tmp/none" "d['text'],d['tokens'],d['stop']")" = "$(field "$tmp/got" "d['text'],d['tokens'],d['stop']")" ] || fail "$m prompt $p, temperature $temp: another text with $draft"
                [ "$draft" != auto ] || [ $temp != 0 ] || {
                    tokens=$((tokens + $(field "$tmp/got" "d['tokens']")))
                    forwards=$((forwards + $(field "$tmp/got" "d['draft']['verifications']")))
                }
            done
        done
    done
done
[ $((forwards * 3)) -lt $((tokens * 2)) ] || fail "$forwards forwards for $tokens tokens"
[ "$(field "$tmp/got" "all(0 <= d['draft'][k] <= 1 for k in ('valid','wasted','underutilised')) and d['draft']['draft_ms_max'] >= d['draft']['draft_ms_per_step'] >= 0 and d['draft']['calibrated_tokens'] > 0 and d['draft']['draft_bytes'] > 0 and abs(d['draft']['valid'] + d['draft']['wasted'] + d['draft']['underutilised'] - 1) < 1e-6")" = True ] || fail "figures: $(cat "$tmp/got")"

"$tern" run -m "$tmp/m.tern" -f "$tmp/prompt0" -n 60 --temp 0 --draft-eager --trace "$tmp/trace" --stats=all >/dev/null 2>"$tmp/err" || fail "trace"
grep -q "tokens per verification" "$tmp/err" || fail "--stats says nothing of drafts"
for name in draft verify calibrate; do grep -q "\"$name\"" "$tmp/trace" || fail "no $name on the timeline"; done

printf 'Copy this: the amber violin of Dalkaland is at 12 Selnas Street.\nAgain, please.\nOnce more: the amber violin of Dalkaland.\n' >"$tmp/talk"
"$tern" chat -m "$tmp/m.tern" -n 40 --temp 0 --draft none <"$tmp/talk" >"$tmp/a" 2>/dev/null || fail "chat"
"$tern" chat -m "$tmp/m.tern" -n 40 --temp 0 --draft-eager --stats=all <"$tmp/talk" >"$tmp/b" 2>"$tmp/err" || fail "chat with drafts"
cmp -s "$tmp/a" "$tmp/b" || fail "chat says something else with drafts"
grep -q "tokens per verification" "$tmp/err" || fail "chat --stats"

"$tern" synth --arch tiny-llama -o "$tmp/other.gguf" >/dev/null 2>&1
for draft in lookups "model:$tmp/other.gguf" "model:$tmp/none"; do
    "$tern" run -m "$tmp/m.tern" -p hello -n 4 --draft "$draft" >"$tmp/out" 2>"$tmp/err"
    [ $? = 1 ] && [ "$(wc -l <"$tmp/err")" = 1 ] && [ ! -s "$tmp/out" ] || fail "--draft $draft: $(cat "$tmp/err")"
done
"$tern" bench -m "$tmp/m.tern" --text "$tmp/prompt0" -n 24 -r 2 --json >"$tmp/got" 2>"$tmp/err" || fail "bench --text: $(cat "$tmp/err")"
[ "$(field "$tmp/got" "[(x['test'],x['drafters']) for x in d],d[1]['draft']['accepted_length']>0.5,d[1]['draft']['calibration_share']>0")" = "([('tg24', 'none'), ('tg24', 'auto')], True, True)" ] || fail "bench --text: $(cat "$tmp/got")"
for refused in "bench -m $tmp/m.tern --draft all" "bench -m $tmp/m.tern --text $tmp/prompt0 -p 5" "eval -m $tmp/m.tern --task ppl --data $tmp/prompt0 --draft sam"; do
    "$tern" $refused >"$tmp/out" 2>"$tmp/err"
    [ $? = 2 ] && [ ! -s "$tmp/out" ] || fail "$refused was not refused: $(cat "$tmp/err")"
done
echo "$tokens tokens in $forwards forwards"
