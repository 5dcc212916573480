#!/usr/bin/env bash
# A terminal that is dumb, as editors and CI have them, gets text and no escapes; another one gets progress where there is some to tell.
set -euo pipefail
tern=$1
command -v script >/dev/null || { echo "skipped: no script"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data XDG_CACHE_HOME=$tmp/cache XDG_STATE_HOME=$tmp/state TERN_PACK=never
export tern tmp
seen() { # TERM, command: what the terminal shows
    TERM=$1 script -qec "$2" /dev/null >"$tmp/seen" 2>&1 </dev/null || { cat "$tmp/seen"; echo "FAILED: $2"; exit 1; }
}
for command in '"$tern" chat models/tern-tiny --no-store --temp 0 -n 4' '"$tern" run models/tern-tiny Hello --temp 0 -n 4' '"$tern" synth --arch tiny-llama -o "$tmp/m.gguf"' \
    '"$tern" eval models/tern-tiny --task ppl --data models/tern-tiny/demo.txt' '"$tern" rag add docs/guide'; do
    seen dumb "$command"
    ! grep -q $'\033' "$tmp/seen" || { cat -v "$tmp/seen"; echo "FAILED: an escape on a dumb terminal: $command"; exit 1; }
done
seen xterm '"$tern" eval models/tern-tiny --task ppl --data models/tern-tiny/demo.txt'
grep -q $'\033\[K' "$tmp/seen" || { cat -v "$tmp/seen"; echo "FAILED: no progress on another terminal"; exit 1; }
for command in '"$tern" bench models/tern-tiny -p 600 -n 4 -r 2' '"$tern" embed models/tern-tiny "the inn"'; do # no prompt of a person is read
    seen xterm "$command"
    ! grep -q "of 0 tokens" "$tmp/seen" || { cat -v "$tmp/seen"; echo "FAILED: the progress of no prompt: $command"; exit 1; }
done
echo "dumb: fine"
