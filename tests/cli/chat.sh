#!/usr/bin/env bash
# tern chat: a message that is too long is refused before anything leaves; messages of several lines in a pipe; what slash commands say.
set -euo pipefail
shopt -s lastpipe
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data XDG_CACHE_HOME=$tmp/cache XDG_STATE_HOME=$tmp/state
fail() { echo "FAILED: $*"; head -c 3000 "$tmp/out" "$tmp/err"; exit 1; }
status=0
chat() { # input on standard input
    "$tern" chat models/tern-tiny --pack never --no-store --temp 0 -c 256 -n 6 "$@" >"$tmp/out" 2>"$tmp/err" && status=0 || status=$?
}
said() { grep -qF -- "$1" "$tmp/err" || fail "not said: $1"; }
unsaid() { ! grep -qF -- "$1" "$tmp/err" || fail "said: $1"; }
long=$(printf 'the cat sat on the mat and %.0s' {1..200})

# Refused, in the middle of a conversation: the rest goes on, the conversation is whole, the status tells.
printf '%s\n' "My name is Lily." "$long" "/history" "Who are you?" "/history" | chat
[ "$status" = 1 ] || fail "status $status"
said "It was not sent"
said "there is room for 250"
unsaid "leave it"
unsaid "left the context"
[ "$(grep -c '^user: ' "$tmp/err")" = 3 ] && [ "$(grep -c '^assistant: ' "$tmp/err")" = 3 ] || fail "the conversation is another"
unsaid "user: the cat"
# The same conversation without it has the same answers.
cp "$tmp/out" "$tmp/with"
printf '%s\n' "My name is Lily." "Who are you?" | chat
[ "$status" = 0 ] || fail "status $status"
cmp -s "$tmp/out" "$tmp/with" || fail "the refused message changed an answer"

# As much as fits, with a file that is too long as well; the question stays whole.
printf '%s\n' "$long" "/cut" "/history" | chat
said "bytes are sent"
[ "$(grep -c '^user: the cat sat' "$tmp/err")" = 1 ] && [ "$(grep -c '^assistant: ' "$tmp/err")" = 1 ] || fail "/cut"
printf '%s\n' "$long" >"$tmp/long.txt"
printf '%s\n' "/attach $tmp/long.txt" "Who sat on the mat?" "/cut" "/history" | chat
said "It was not sent"
said "Who sat on the mat?"
[ "$(grep -c '^assistant: ' "$tmp/err")" = 1 ] || fail "/cut of a file"
printf '/cut\n' | chat
said "no message was too long"

# What has left the context is marked.
{ for i in 1 2 3 4 5; do echo "Tell me more of the $i cats. ${long:0:150}"; done; echo /history; } | chat
[ "$status" = 0 ] || fail "status $status"
said "the oldest turns are dropped"
said "have left the context"
# A context that may not shift.
{ for i in 1 2 3 4 5; do echo "Tell me more of the $i cats. ${long:0:150}"; done; } | chat --on-full stop
[ "$status" = 1 ] || fail "status $status"
said "--on-full shift"

# Messages of several lines.
printf '%s\n' '"""' 'one' '' '/temp 5' '"""' 'two \' 'three' '/history' | chat
[ "$(sed -n '/^user: one$/,/^assistant/p' "$tmp/err" | head -3 | tail -1)" = "/temp 5" ] || fail 'lines between """'
grep -A1 '^user: two $' "$tmp/err" | grep -qx three || fail "a line that goes on"
printf '"""\nlast words' | chat
[ -s "$tmp/out" ] || fail "lines before the end of the input are lost"

# Slash commands: one line each, and it says what happened.
printf '%s\n' /temp '/temp x' '/temp 5000' '/temp 1.5' '/temp 0 ' /undo Hello. /undo "/save $tmp/saved" /frobnicate /load '/tokens now' '/system Be brief.' /clear | chat
[ "$status" = 0 ] || fail "status $status"
cat >"$tmp/want" <<'END'
tern: /temp T: set the temperature
tern: /temp x: want a number from 0 to 100; it stays 0
tern: /temp 5000: want a number from 0 to 100; it stays 0
the temperature is 1.5
the temperature is 0
there is nothing to take back
tern: the answer was cut after 6 tokens (-n)
took back the last exchange; 0 messages are left
END
head -8 "$tmp/err" | cmp -s - "$tmp/want" || { diff <(head -8 "$tmp/err") "$tmp/want"; fail "what is said"; }
said "there is nothing to save"
[ ! -e "$tmp/saved" ] || fail "a conversation of nothing is saved"
said "tern: /frobnicate is not a command; /help lists them"
said "tern: /load FILE: continue a conversation that /save wrote"
said "tern: /tokens takes no argument"
said "the system message is set; a new conversation"
[ "$(wc -l <"$tmp/err")" = 14 ] || fail "more or fewer lines"
echo "chat: fine"
