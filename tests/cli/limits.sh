#!/usr/bin/env bash
# Answers go on until the model ends or the context is full; where a limit cut one, a line says so; what a schema
# opened is closed within the limit.
set -euo pipefail
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data XDG_CACHE_HOME=$tmp/cache XDG_STATE_HOME=$tmp/state
fail() { echo "FAILED: $*"; cat "$tmp/out" "$tmp/err"; exit 1; }
answer() { "$tern" run models/tern-tiny --pack never --temp 0 "$@" >"$tmp/out" 2>"$tmp/err" || fail "tern run $*"; }
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$tmp/out" "$1"; }
one_line() { [ "$(wc -l <"$tmp/err")" = 1 ] && grep -q "$1" "$tmp/err" || fail "no single line with '$1'"; }

# Without -n, longer than any default there was; the context is the limit.
answer --raw "Once upon a time" -c 300 --set ignore-eos=yes --json
[ "$(field stop)" = context ] || fail "stop: $(field stop)"
[ "$(($(field tokens) + $(field prompt_tokens)))" = 300 ] || fail "$(field tokens) tokens in a context of 300"
one_line "the context of 300 tokens is full"
# The model's own end is said by nobody.
answer "Who is Lily? Answer with yes or no." --grammar 'root ::= "yes" | "no"'
[ ! -s "$tmp/err" ] || fail "a line where nothing was cut"
answer --raw "Once upon a time" -n 7 --json
[ "$(field stop)" = length ] && [ "$(field tokens)" = 7 ] || fail "-n 7"
one_line "cut after 7 tokens"
answer --raw "Once upon a time" -n 0
[ ! -s "$tmp/err" ] || fail "a line for -n 0"

# Whatever the limit is, JSON.
schema='{"type": "object", "properties": {"name": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "list"], "additionalProperties": false}'
for n in 24 29 40 61; do
    for seed in 1 2 3; do
        "$tern" run models/tern-tiny --pack never "Tell me of Lily." --json-schema "$schema" --temp 1.5 --seed $seed -n $n >"$tmp/out" 2>"$tmp/err" || fail "a schema, -n $n"
        python3 -c 'import json, sys; v = json.load(open(sys.argv[1])); assert set(v) == {"name", "list"}, v' "$tmp/out" || fail "-n $n, seed $seed: not what the schema says"
    done
done
# Closed or not, the reason is the limit.
"$tern" run models/tern-tiny --pack never "Tell me of Lily." --json-schema '{"type": "string", "minLength": 300}' -n 30 --temp 0 --json >"$tmp/out" 2>"$tmp/err" || fail "a schema that does not fit"
[ "$(field stop)" = length ] && [ "$(field tokens)" = 30 ] || fail "a schema that does not fit"
one_line "its JSON is not complete"
answer "Give me a person" --json-schema '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}' -n 12
one_line "its JSON was closed in time"

# A chat and its next turn; ask.
printf 'Tell me a story.\nAnd then?\n' | "$tern" chat models/tern-tiny --pack never --temp 0 --no-store -n 5 >"$tmp/out" 2>"$tmp/err" || fail "chat"
[ "$(grep -c 'cut after 5 tokens' "$tmp/err")" = 2 ] || fail "chat says it for every answer"
printf 'Tell me a story.\n' | timeout 250 "$tern" chat models/tern-tiny --pack never --temp 0 --no-store -c 128 --set ignore-eos=yes >"$tmp/out" 2>"$tmp/err" || fail "an answer longer than the context"
grep -q 'the context of 128 tokens is full: the answer ends here' "$tmp/err" || fail "no word of the context"
mkdir "$tmp/docs"
echo "The lantern of Wherret hangs in the north tower." >"$tmp/docs/a.txt"
"$tern" rag add "$tmp/docs" >/dev/null 2>&1 || fail "rag add"
"$tern" ask -m models/tern-tiny --pack never "Where does the lantern hang?" -n 3 --json >"$tmp/out" 2>"$tmp/err" || fail "ask"
[ "$(field stop)" = length ] || fail "ask: stop"
grep -q 'cut after 3 tokens' "$tmp/err" || fail "ask says it"
echo "limits: fine"
