#!/usr/bin/env bash
# What llama.cpp's users type: its spellings are taken with one line each, and models come without -m everywhere; files that do not run are
# described; a package is not given another format's name.
set -euo pipefail
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data XDG_CACHE_HOME=$tmp/cache XDG_STATE_HOME=$tmp/state TERN_PACK=never
tiny=models/tern-tiny
fail() { echo "FAILED: $*"; cat "$tmp/out" "$tmp/err"; exit 1; }
run() { "$tern" "$@" >"$tmp/out" 2>"$tmp/err" || fail "tern $*"; }
lines() { [ "$(wc -l <"$tmp/err")" = "$1" ] || fail "not $1 lines on standard error"; }

run run $tiny "Who is Lily?" --temp 0 --seed 1 -n 6
cp "$tmp/out" "$tmp/want"
run run $tiny "Who is Lily?" -ngl 99 -fa -b 2048 -ub 512 --mlock --no-mmap --jinja --no-warmup -st -cnv --no-display-prompt --temperature 0 -s 1 --predict 6 -t 2
cmp -s "$tmp/out" "$tmp/want" || fail "another answer with llama.cpp's spellings"
lines 15 # one each, and that -n cut the answer
[ "$(grep -c '^tern: -.*: ' "$tmp/err")" = 14 ] || fail "a line that does not name its option"
run run $tiny "Who is Lily?" -v --keep 4 --no-context-shift -nkvo --cpu-moe --check-tensors -lv 1 --temp 0 -n 6
cmp -s "$tmp/out" "$tmp/want" && [ "$(grep -c '^tern: -.*: ' "$tmp/err")" = 7 ] || fail "spellings of other versions"
run run $tiny "Who is Lily?" --samplers "top_k;temperature" --mirostat 0 --prio 2 --rope-freq-base 10000 --repack --temp 0 -n 6
cmp -s "$tmp/out" "$tmp/want" && [ "$(grep -c '^tern: -.*: ' "$tmp/err")" = 5 ] || fail "options without a counterpart"
run run $tiny "Who is Lily?" --perf -mli --draft-max 8 --swa-full -dio -fit on -ot x=CPU --offline --no-mmproj-offload --temp 0 -n 6
cmp -s "$tmp/out" "$tmp/want" && [ "$(grep -c '^tern: -.*: ' "$tmp/err")" = 9 ] || fail "spellings of this year"
run run $tiny "Who is Lily?" -md $tiny --temp 0 -n 6
cmp -s "$tmp/out" "$tmp/want" || fail "-md is not --draft"
run run $tiny "Who is Lily?" --gpu-layers=99 --temperature=0 --num-predict=6 --ctx 512 --keepalive 5m --nowordwrap --insecure
cmp -s "$tmp/out" "$tmp/want" && [ "$(grep -c '^tern: -.*: ' "$tmp/err")" = 7 ] || fail "Ollama's spellings, and values after ="
run run $tiny "Who is Lily?" --temp 0 -n 1
grep -q "cut after 1 token (-n)" "$tmp/err" || fail "one tokens"
# What would change the answer or the machine is refused, with what to do instead: one line.
for words in "--override-kv a=int:1" "--image x.png" "-sysf x" "--prompt-cache x" "-np 4" "--reasoning off" "--ssl-key-file x" "--think" "--format json"; do
    # shellcheck disable=SC2086
    ! "$tern" run $tiny hi $words >"$tmp/out" 2>"$tmp/err" || fail "$words"
    lines 1
    grep -q "^tern run: ${words%% *}: " "$tmp/err" || fail "$words"
done
! "$tern" serve $tiny --api-key secret >"$tmp/out" 2>"$tmp/err" || fail "--api-key"
grep -q -- "--api-key-file FILE" "$tmp/err" && ! grep -q secret "$tmp/err" || fail "--api-key"
# The model as llama.cpp's programs take it, without a command.
run -m $tiny -p "Who is Lily?" --temp 0 -n 6
cp "$tmp/out" "$tmp/plain"
run run -m $tiny -p "Who is Lily?" --temp 0 -n 6
cmp -s "$tmp/out" "$tmp/plain" || fail "tern -m MODEL -p TEXT"
run --model=$tiny "Who is Lily?" --temp 0 -n 6
cmp -s "$tmp/out" "$tmp/want" || fail "tern --model=MODEL TEXT"
run -m $tiny --temp 0 -n 6 <<<"Who is Lily?"
cmp -s "$tmp/out" "$tmp/want" || fail "tern -m MODEL chats"
run run $tiny "Who is Lily?" -r " little" --temp 0 -n 6
! grep -q little "$tmp/out" || fail "-r is not --stop"
for value in on off auto 1; do
    run run $tiny "Who is Lily?" -fa $value --temp 0 -n 6
    cmp -s "$tmp/out" "$tmp/want" || fail "-fa $value"
done
run run $tiny "Who is Lily?" -ctk q8_0 -ctv q8_0 --temp 0 -n 6 --json
cp "$tmp/out" "$tmp/int8"
run run $tiny "Who is Lily?" --kv int8 --temp 0 -n 6 --json
python3 -c 'import json, sys; a, b = [json.load(open(f)) for f in sys.argv[1:]]; assert a["text"] == b["text"] and a["kv_bytes"] == b["kv_bytes"]' "$tmp/out" "$tmp/int8" || fail "-ctk q8_0 is not --kv int8"
! "$tern" run $tiny hi -ctk q9 >"$tmp/out" 2>"$tmp/err" || fail "-ctk q9"
! "$tern" run $tiny hi -ngl >"$tmp/out" 2>"$tmp/err" || fail "-ngl without a value"
! "$tern" run $tiny hi --mlock=1 >"$tmp/out" 2>"$tmp/err" && grep -q -e "--mlock takes no value" "$tmp/err" || fail "a flag with a value"
! "$tern" run $tiny hi --no-such-thing >"$tmp/out" 2>"$tmp/err" || fail "an unknown option"
grep -q "unknown option '--no-such-thing'" "$tmp/err" || fail "an unknown option"
! "$tern" inspect $tiny -ngl 99 >"$tmp/out" 2>"$tmp/err" || fail "-ngl of inspect"

# -c 0 is the model's own context, --seed -1 one by chance.
run run $tiny "Who is Lily?" -c 0 --temp 0 -n 6
cmp -s "$tmp/out" "$tmp/want" || fail "-c 0"
grep -q "^tern: -c 0: the model's own context, 2048 tokens" "$tmp/err" || fail "-c 0 says nothing"
for i in 1 2 3 4; do run run $tiny "Tell me a story." --seed -1 --temp 2 --top-k 0 -n 12; cp "$tmp/out" "$tmp/seed$i"; done
! { cmp -s "$tmp/seed1" "$tmp/seed2" && cmp -s "$tmp/seed1" "$tmp/seed3" && cmp -s "$tmp/seed1" "$tmp/seed4"; } || fail "--seed -1 is always the same"

# MODEL without -m: ask and serve too.
mkdir "$tmp/docs" && echo "The lantern of Wherret hangs in the north tower." >"$tmp/docs/a.txt"
run rag add "$tmp/docs"
run ask -m $tiny "Where does the lantern hang?" -n 6 --no-keep
cp "$tmp/out" "$tmp/want"
run ask $tiny "Where does the lantern hang?" -n 6 --no-keep
cmp -s "$tmp/out" "$tmp/want" || fail "ask MODEL TEXT"
! "$tern" ask "Where does the lantern hang?" >"$tmp/out" 2>"$tmp/err" || fail "ask without a model"
! "$tern" ask -m $tiny a b >"$tmp/out" 2>"$tmp/err" || fail "ask with a model too many"
! timeout 250 "$tern" serve $tmp/none.gguf --port 0 >"$tmp/out" 2>"$tmp/err" || fail "serve MODEL that is not there"
grep -q "none.gguf: no such file" "$tmp/err" || fail "serve does not take MODEL"
! "$tern" serve -m $tiny $tiny >"$tmp/out" 2>"$tmp/err" || fail "serve with a model too many"

# A file that does not run is described all the same.
printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\24\0\0\0\0\0\0\0general.architecture\10\0\0\0\7\0\0\0\0\0\0\0unheard' >"$tmp/odd.gguf"
run inspect "$tmp/odd.gguf"
grep -q "general.architecture  *unheard" "$tmp/out" && grep -q "does not run it" "$tmp/out" && grep -q "'unheard' is not supported" "$tmp/err" || fail "inspect"
run inspect "$tmp/odd.gguf" --json
python3 -c 'import json, sys; v = json.load(open(sys.argv[1])); assert v["runs"] is False and "unheard" in v["why_not"] and v["metadata"] == {"general.architecture": "unheard"}, v' "$tmp/out" || fail "inspect --json"

for name in x.gguf x.safetensors; do
    ! "$tern" pack $tiny -o "$tmp/$name" >"$tmp/out" 2>"$tmp/err" || fail "pack -o $name"
    grep -q "ends in .tern" "$tmp/err" && [ ! -e "$tmp/$name" ] || fail "pack -o $name"
done
echo "foreign: fine"
