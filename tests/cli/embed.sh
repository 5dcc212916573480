#!/usr/bin/env bash
# tern embed: a vector for every text, in the context that is asked for; what shapes answers is none of its options.
set -euo pipefail
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TERN_PACK=never
fail() { echo "FAILED: $*"; cat "$tmp/err"; exit 1; }
refused() { # status, command: one line of error and nothing else
    local want=$1 rc=0
    shift
    "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?
    [ "$rc" = "$want" ] && [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" = 1 ] || fail "status $rc of $*"
}
m=$tmp/m.gguf
"$tern" synth --arch tiny-llama -o "$m"
"$tern" embed "$m" "the inn" "an inn" >"$tmp/two" 2>"$tmp/err" || fail "two texts"
[ "$(wc -l <"$tmp/two")" = 2 ] || fail "not a vector for every text"
"$tern" embed -m "$m" "an inn" >"$tmp/one" 2>"$tmp/err" || fail "-m"
tail -n 1 "$tmp/two" | cmp -s - "$tmp/one" || fail "another vector"
printf 'the inn\n\nan inn' >"$tmp/lines"
"$tern" embed "$m" -f "$tmp/lines" | cmp -s - "$tmp/two" || fail "other vectors of a file's lines"
"$tern" embed "$m" <"$tmp/lines" | cmp -s - "$tmp/two" || fail "other vectors of standard input"
refused 2 "$tern" embed
refused 2 "$tern" embed "$m" "the inn" -f "$tmp/lines"
refused 1 "$tern" embed "$m" -f "$tmp/none"
refused 1 "$tern" embed "$m" "the inn and the inn" -c 4
refused 2 "$tern" embed "$m" "the inn" --temp 0
"$tern" embed "$m" "the inn" -c 16 | cmp -s - <(head -n 1 "$tmp/two") || fail "a short context changes a vector"
! "$tern" embed --help | grep -q -e --temp -e "The answer" || fail "--help shows what has no effect"
# an adapter of a task, from the folder and from a file of its own, and what it puts in front of a text
j=tests/oracle/embedding/jina-bert-v3
q="Represent the query for retrieving evidence documents: "
"$tern" embed $j/hf "the fox" --task retrieval.query >"$tmp/task" 2>"$tmp/err" || fail "--task"
"$tern" embed $j/hf "the fox" "${q}the fox" >"$tmp/none" 2>"$tmp/err" || fail "no task"
for l in 1 2; do sed -n ${l}p "$tmp/none" | cmp -s - "$tmp/task" && fail "the task changes nothing"; done
"$tern" embed $j/model.gguf --lora $j/lora-retrieval.query.gguf "the fox" --task retrieval.query | cmp -s - "$tmp/task" || fail "another vector with the adapter's file"
"$tern" embed $j/model.gguf --lora $j/lora-retrieval.query.gguf "the fox" | cmp -s - <(head -n 1 "$tmp/none") || fail "an adapter of a task without the task"
"$tern" embed $j/model.gguf --lora $j/lora-retrieval.query.gguf:1 "${q}the fox" | cmp -s - "$tmp/task" || fail "a scale that is said"
refused 1 "$tern" embed $j/hf "the fox" --task query
grep -q "retrieval.passage" "$tmp/err" || fail "the tasks are not told"
refused 1 "$tern" embed "$m" "the fox" --task retrieval.query
refused 2 "$tern" embed $j/hf "the fox" --task retrieval.query --question "a fox?"
echo "embed: fine"
