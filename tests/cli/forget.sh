#!/usr/bin/env bash
# What chat says and keeps: a full context, files, saved conversations; and what forget erases, looked for in the bytes.
set -u
tern=$1
[ -r models/tern-tiny/model.safetensors ] || { echo "skipped: no models/tern-tiny"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data XDG_STATE_HOME=$tmp/state XDG_CACHE_HOME=$tmp/cache TERN_PACK=never
mkdir "$tmp/state"
fail() { echo "FAILED: $*"; cat "$tmp/err"; exit 1; }
db=$tmp/data/tern/store.db
chat() { timeout 250 "$tern" chat -m models/tern-tiny --temp 0 "$@" >"$tmp/out" 2>"$tmp/err"; }

# a full context: the oldest turns are dropped, told once; every question is answered
for i in $(seq 12); do echo "Tell me a story about a dog and a cat, number $i."; done >"$tmp/talk"
printf '/stats\n' >>"$tmp/talk"
chat --no-store -c 160 -n 24 <"$tmp/talk" || fail "a conversation longer than the context"
[ "$(grep -c 'the oldest turns are dropped' "$tmp/err")" = 1 ] || fail "told once"
grep -q "12 turns; .* of 160 tokens in the context, .* messages left it" "$tmp/err" || fail "/stats"
chat --no-store -c 160 -n 24 --on-full stop <"$tmp/talk" && fail "--on-full stop goes on"
grep -q "do not fit a context of 160\|the answer ends here" "$tmp/err" || fail "--on-full stop says nothing"
chat --no-store -c 64 -n 200 --set ignore-eos=on <<<"Once upon a time there was a dog." || fail "one long answer"
grep -q "the answer ends here" "$tmp/err" || fail "an answer that fills the context"

# files, saved conversations
printf 'The secret word is Quizzaciously.\n' >"$tmp/notes.txt"
printf '/attach %s\nWhat is it?\n/history\n/save %s\n' "$tmp/notes.txt" "$tmp/saved" | chat --no-store -n 8 || fail "/attach"
grep -q "^user: notes.txt:" "$tmp/saved" && grep -q "^	The secret word" "$tmp/saved" || fail "what was attached is not in the conversation"
printf 'user: one\n\ttwo\n\tuser: three\nassistant: four\n' >"$tmp/given"
printf '/load %s\n/save %s\n' "$tmp/given" "$tmp/back" | chat --no-store || fail "/load"
cmp -s "$tmp/given" "$tmp/back" || fail "a conversation does not come back as it was saved"
printf '/load %s\n/attach %s\n/model\n/help\n' "$tmp/notes.txt" "$tmp/none" | chat --no-store && fail "a script does not see wrong files"
grep -q "not a conversation that /save wrote" "$tmp/err" && grep -q "No such file" "$tmp/err" && grep -q "million parameters" "$tmp/err" || fail "messages"
for c in attach clear edit exit forget help history load model regen save stats system temp tokens undo; do grep -q "^/$c " "$tmp/err" || fail "/help lacks $c"; done

# no template: plain text, after a notice
"$tern" synth --arch tiny-llama -o "$tmp/m.gguf" >/dev/null 2>&1
printf 'one two\nthree\n' | timeout 250 "$tern" chat -m "$tmp/m.gguf" --no-store -n 4 >"$tmp/out" 2>"$tmp/err" || fail "a model without a template"
grep -q "no chat template" "$tmp/err" && [ -s "$tmp/out" ] || fail "plain text"

# what is kept, and erased: the bytes of the file are looked at
look() { # how often the conversation's tokens stand in the store's files
    python3 - "$db" "$tmp/ids" <<'P'
import os, sys
want = open(sys.argv[2], "rb").read()
print(sum(open(sys.argv[1] + e, "rb").read().count(want) for e in ("", "-wal", "-journal") if os.path.exists(sys.argv[1] + e)))
P
}
question="A purple elephant sat under the table."
printf '%s' "$question" | "$tern" tokenize -m models/tern-tiny --ids --no-special | python3 -c "
import re, struct, sys
ids = [int(x) for x in re.findall(r'\d+', sys.stdin.read())]
sys.stdout.buffer.write(struct.pack('<%di' % len(ids), *ids)[:])" >"$tmp/ids"
[ -s "$tmp/ids" ] || fail "tokens of the question"
chat --no-store -n 4 <<<"$question" || fail "--no-store"
[ ! -e "$db" ] || fail "--no-store keeps something"
chat -n 4 <<<"$question" || fail "chat"
[ "$(look)" -ge 1 ] || fail "the conversation is not in the store: the test would find nothing"
id=$("$tern" forget --list --json | python3 -c "import json, sys; print(json.load(sys.stdin)[0]['id'])")
"$tern" forget "$((id + 77))" >"$tmp/out" 2>"$tmp/err" && fail "an ID that is not there"
"$tern" forget "$id" >"$tmp/out" 2>"$tmp/err" || fail "forget ID"
[ "$(look)" = 0 ] || fail "forget ID leaves the bytes"
printf '%s\n/forget\n' "$question" | chat -n 4 || fail "/forget"
grep -q "forgotten, in the store too" "$tmp/err" || fail "/forget says nothing"
[ "$(look)" = 0 ] || fail "/forget leaves the bytes"
chat -n 4 <<<"$question" || fail "chat"
"$tern" rag add "$tmp/notes.txt" >/dev/null 2>"$tmp/err" || fail "rag add"
grep -qa "Quizzaciously" "$db" "$db-wal" 2>/dev/null || fail "the document is not in the store"
"$tern" forget --documents >"$tmp/out" 2>"$tmp/err" || fail "forget --documents"
grep -qai "quizzaciously" "$db" "$db-wal" 2>/dev/null && fail "forget --documents leaves the text"
[ "$(look)" -ge 1 ] || fail "forget --documents takes conversations along"
"$tern" rag add "$tmp/notes.txt" >/dev/null 2>"$tmp/err"
echo "typed line" >"$tmp/state/tern-history"
ln "$tmp/state/tern-history" "$tmp/bytes" # what the file held can be looked at when its name is gone
"$tern" forget --all >"$tmp/out" 2>"$tmp/err" || fail "forget --all"
[ "$(look)" = 0 ] && ! grep -qai "quizzaciously" "$db" "$db-wal" 2>/dev/null || fail "forget --all leaves something"
[ ! -e "$tmp/state/tern-history" ] || fail "forget --all leaves what was typed"
grep -qa "typed" "$tmp/bytes" && fail "forget --all leaves the bytes of what was typed"
[ "$("$tern" forget --list --json)" = "[]" ] || fail "something is listed"
"$tern" forget >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] || fail "forget without a word"
rm -rf "$tmp/data"
"$tern" forget --all >"$tmp/out" 2>"$tmp/err" || fail "nothing to forget"
echo "ok"
