#!/usr/bin/env bash
# What --explain says is what the statistics of the same run say, and why a mechanism was off.
set -u
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
explained() { # expression over `d`, the JSON of a run, and `by`, its mechanisms by name
    python3 -c "
import json
d = json.load(open('$tmp/out'))
by = {x['mechanism']: x for x in d['explain']}
assert ($1), d['explain']" || fail "$1"
}
"$tern" pack models/tern-tiny -o "$tmp/tiny.tern" --scheme edgeflow >"$tmp/log" 2>&1 || fail "pack: $(cat "$tmp/log")"
head -c 6000 models/tern-tiny/calib.txt >"$tmp/long.txt"
run() { # options of a run behind the long prompt
    "$tern" run -m "$tmp/tiny.tern" -f "$tmp/long.txt" -n 32 --temp 0 --json --explain "$@" >"$tmp/out" 2>"$tmp/err" || fail "run $*: $(cat "$tmp/err")"
}
run
explained "list(by) == ['cold start', 'prompt reuse', 'INT8 prefill', 'out of order', 'sparse attention', 'drafts']"
explained "by['cold start']['on'] and 0 <= by['cold start']['saved']['count'] < by['cold start']['saved']['of'] and not by['prompt reuse']['on']"
explained "by['INT8 prefill']['on'] and str(d['prefill']['outliers']) + ' outliers' in by['INT8 prefill']['text']"
explained "by['sparse attention']['on'] and str(d['attention']['rows']) in by['sparse attention']['text']"
explained "f\"{round(100 * d['attention']['selected_share'])} %\" in by['sparse attention']['text']"
explained "d['draft']['verifications'] + d['draft']['accepted'] == d['tokens']"
explained "by['drafts']['on'] == (d['draft']['rows'] > d['draft']['verifications'])"
explained "'MTP' not in by['drafts']['text']" # this model has no such layer
# what is told to be saved is a count of this run: nobody knows what another way would have taken
explained "not any('saved_ms' in x or 'saved about' in x['text'] for x in d['explain'])"
explained "by['sparse attention']['saved']['of'] > by['sparse attention']['saved']['count'] > 0"
explained "by['drafts'].get('saved', {'count': 0})['count'] == d['draft']['accepted']"
explained "by['out of order']['on'] and 0 < by['out of order']['saved']['count'] < by['out of order']['saved']['of'] and 'policy ooe' in by['out of order']['text']"
python3 - "$tmp/tiny.tern.profile" <<'END' || fail "no times in the profile"
import json, sys # as one wave on a busy machine would leave it
p = json.load(open(sys.argv[1]))
assert p["stage_us"] and 1 <= p["waves"] <= 8, p
p["stage_us"] = {k: 1e4 * v for k, v in p["stage_us"].items()}
json.dump(p, open(sys.argv[1], "w"))
END
run
explained "not any('saved_ms' in x for x in d['explain']) and by['out of order']['saved']['of'] > 0"
python3 -c "
import json
p = json.load(open('$tmp/tiny.tern.profile'))
assert max(p['stage_us'].values()) < 1e5, p" || fail "a busy wave stays in the profile"
run --set policy=overlap
explained "not by['out of order']['on'] and 'overlap' in by['out of order']['text'] and 'saved' not in by['out of order']"
run --exact
explained "not by['sparse attention']['on'] and '--exact' in by['sparse attention']['text'] and 'attention' not in d"
run --set policy=in-order --set draft=none
explained "not by['out of order']['on'] and 'in-order' in by['out of order']['text'] and not by['drafts']['on'] and 'draft=auto' in by['drafts']['text']"
run --save-session "$tmp/session"
run --load-session "$tmp/session"
explained "by['prompt reuse']['on'] and ' of %d tokens' % d['prompt_tokens'] in by['prompt reuse']['text']"
# a short prompt, and a model that is no package: everything says why not
"$tern" run -m "$tmp/tiny.tern" -p "A short prompt" -n 4 --temp 0 --json --explain >"$tmp/out" 2>"$tmp/err" || fail "short prompt"
explained "not by['sparse attention']['on'] and 'begins at 1024 tokens' in by['sparse attention']['text']"
"$tern" run -m models/tern-tiny -p "A short prompt" -n 4 --temp 0 --json --explain >"$tmp/out" 2>"$tmp/err" || fail "float model"
explained "not any(by[m]['on'] for m in ('cold start', 'INT8 prefill', 'out of order', 'sparse attention')) and all('package' in by[m]['text'] for m in ('cold start', 'INT8 prefill', 'out of order'))"
explained "'files of floats' in by['sparse attention']['text']"
# a quantised file arrives beside the prompt, unless asked not to
"$tern" synth --arch tiny-llama --type q4_0 -o "$tmp/q4.gguf" 2>/dev/null || fail "synth"
for load in stream sequential; do
  TERN_PACK=never "$tern" run -m "$tmp/q4.gguf" -p "A short prompt" -n 4 --temp 0 --set load=$load --json --explain >"$tmp/out" 2>"$tmp/err" || fail "quantised file"
  if [ $load = stream ]; then explained "by['cold start']['on'] and 0 <= by['cold start']['saved']['count'] < by['cold start']['saved']['of']"
  else explained "not by['cold start']['on'] and 'load=stream' in by['cold start']['text']"; fi
done
# for people: a line each, on standard error, the answer alone on standard output
"$tern" run -m "$tmp/tiny.tern" -f "$tmp/long.txt" -n 8 --temp 0 >"$tmp/plain" 2>/dev/null
"$tern" run -m "$tmp/tiny.tern" -f "$tmp/long.txt" -n 8 --temp 0 --explain >"$tmp/out" 2>"$tmp/err"
cmp -s "$tmp/plain" "$tmp/out" || fail "--explain changes the answer"
[ "$(grep -cE '^[a-zA-Z0-9 ]{16}  (on |off)  ' "$tmp/err")" = 6 ] || fail "not six lines: $(cat "$tmp/err")"
# ask tells it of its question, chat of every answer by itself
printf 'The river Otter is 32 kilometres long.\n' >"$tmp/river.txt"
"$tern" rag add "$tmp/river.txt" --store "$tmp/store.db" >/dev/null 2>"$tmp/err" || fail "rag add: $(cat "$tmp/err")"
"$tern" ask -m "$tmp/tiny.tern" "How long is the river Otter?" --store "$tmp/store.db" -n 8 --json --explain >"$tmp/out" 2>"$tmp/err" || fail "ask: $(cat "$tmp/err")"
explained "len(by) == 6 and by['INT8 prefill']['on']"
printf '/explain\nTell me of a dog.\n/explain\nAnd of a cat?\n/explain\n' | "$tern" chat -m "$tmp/tiny.tern" --no-store -n 8 --temp 0 >"$tmp/out" 2>"$tmp/err" || fail "chat: $(cat "$tmp/err")"
grep -q 'there is no answer yet' "$tmp/err" || fail "chat explains an answer that is not there: $(cat "$tmp/err")"
[ "$(grep -cE '^cold start  .* the weights were in memory' "$tmp/err")" = 1 ] || fail "the second answer alone finds its weights: $(cat "$tmp/err")"
[ "$(grep -cE '^prompt reuse      on ' "$tmp/err")" = 1 ] || fail "the second question alone goes on from a text: $(cat "$tmp/err")"
printf 'Tell me of a dog.\n' | "$tern" chat -m "$tmp/tiny.tern" --no-store -n 8 --temp 0 --explain >"$tmp/out" 2>"$tmp/err" || fail "chat: $(cat "$tmp/err")"
[ "$(grep -cE '^[a-zA-Z0-9 ]{16}  (on |off)  ' "$tmp/err")" = 6 ] || fail "chat --explain: $(cat "$tmp/err")"
echo "explain: ok"
