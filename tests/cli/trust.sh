#!/usr/bin/env bash
# What tern promises about the files of others: no output takes the place of something else, what is private stays so, pipes and
# devices that stand where a file should end in one error, at once.
set -u
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data TMPDIR=$tmp/t
mkdir "$tmp/t"
fail() { echo "FAILED: $*"; cat "$tmp/err"; exit 1; }
refused() { # description, part of the message, command...: exit 1 with one line
    local what=$1 part=$2
    shift 2
    timeout 250 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    local got=$?
    [ $got = 1 ] || fail "$what: exit $got"
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "$what: not one line"
    grep -q "$part" "$tmp/err" || fail "$what: no '$part'"
}
done_() { timeout 250 "${@:2}" >"$tmp/out" 2>"$tmp/err" </dev/null || fail "$1: exit $?"; }
mode() { stat -c %a "$1"; }

umask 022
done_ synth "$tern" synth --arch tiny-llama -o "$tmp/m.gguf"
done_ pack "$tern" pack "$tmp/m.gguf" -o "$tmp/m.tern" --calib-tokens 64
cp "$tmp/m.tern" "$tmp/keep.tern"
cp "$tmp/m.gguf" "$tmp/keep.gguf"
run=("$tern" run -m "$tmp/m.tern" -p "$(head -c 200 /dev/zero | tr '\0' a)" -n 1 --temp 0)

# outputs and what is there already
refused "a trace over the model in use" "exists and is not a trace" "${run[@]}" --trace "$tmp/m.tern"
refused "a session over the model in use" "exists and is not a saved session" "${run[@]}" --save-session "$tmp/m.tern"
cp "$tmp/m.gguf" "$tmp/m.packed" # a name of another format is refused before what it holds is looked at
refused "a package over a GGUF file" "exists and is not a package" "$tern" pack "$tmp/keep.gguf" -o "$tmp/m.packed" --calib-tokens 64
refused "a GGUF file over a package" "exists and is not a GGUF file" "$tern" synth --arch tiny-llama -o "$tmp/m.tern"
refused "a figure over a package" "exists and is not an SVG figure" "$tern" sim --soc sd8gen3 --model llama3-8b --prompt 64 --svg "$tmp/m.tern"
refused "a trace of the simulator over a package" "exists and is not a trace" "$tern" sim --soc sd8gen3 --model llama3-8b --prompt 64 --trace "$tmp/m.tern"
printf 'my notes\n' >"$tmp/notes"
printf 'hello\n/save %s\n' "$tmp/notes" | "$tern" chat -m "$tmp/m.tern" --no-store -n 2 >"$tmp/out" 2>"$tmp/err" && fail "a script does not see that /save failed"
grep -q "exists and is not a saved conversation" "$tmp/err" || fail "/save over notes"
[ "$(cat "$tmp/notes")" = "my notes" ] || fail "/save destroyed notes"
printf 'my notes\n' >"$tmp/h.tern.heads"
refused "a journal over notes" "exists and is not a journal" "$tern" pack "$tmp/m.gguf" -o "$tmp/h.tern" --calib-tokens 64 --head-importance
[ "$(cat "$tmp/h.tern.heads")" = "my notes" ] || fail "the journal destroyed notes"
cmp -s "$tmp/m.tern" "$tmp/keep.tern" && cmp -s "$tmp/m.gguf" "$tmp/keep.gguf" || fail "a model was changed"
for i in 1 2; do # the same kind is replaced
    done_ "a trace" "${run[@]}" --trace "$tmp/t.json"
    done_ "a session" "${run[@]}" --save-session "$tmp/s"
    done_ "a figure" "$tern" sim --soc sd8gen3 --model llama3-8b --prompt 64 --svg "$tmp/f.svg"
done

# modes, whatever the umask; what was wider is narrowed
umask 0
rm "$tmp/s"
chmod 644 "$tmp/t.json"
done_ "a session" "${run[@]}" --save-session "$tmp/s" --trace "$tmp/t.json"
[ "$(mode "$tmp/s")" = 600 ] || fail "a session is $(mode "$tmp/s")"
[ "$(mode "$tmp/t.json")" = 600 ] || fail "a trace is $(mode "$tmp/t.json")"
printf 'hello\n/save %s\n' "$tmp/talk" | "$tern" chat -m models/tern-tiny --no-store -n 2 >"$tmp/out" 2>"$tmp/err" || fail "chat"
[ "$(mode "$tmp/talk")" = 600 ] || fail "a conversation is $(mode "$tmp/talk")"
mkdir -p "$tmp/data/tern"
[ "$(mode "$tmp/data/tern")" = 777 ] || fail "the test's own folder"
done_ "a store" "$tern" rag add "$tmp/notes"
[ "$(mode "$tmp/data/tern")$(mode "$tmp/data/tern/store.db")" = 700600 ] || fail "the store is $(mode "$tmp/data/tern/store.db")"
grep -q "yours alone now" "$tmp/err" || fail "no notice of the folder that was narrowed"
umask 022

# pipes and devices
mkfifo "$tmp/pipe"
for f in "$tmp/pipe" /dev/zero /dev/tty; do
    refused "$f as a model" "not a regular file\|cannot open" "$tern" run -m "$f" -p hi
    refused "inspect $f" "not a regular file\|cannot open" "$tern" inspect "$f"
    refused "tokens of $f" "not a regular file\|cannot open" "$tern" tokenize -m "$f"
done
refused "a session from a pipe" "not a regular file" "${run[@]}" --load-session "$tmp/pipe"
refused "a SoC from a pipe" "not a regular file" "$tern" sim --soc "$tmp/pipe" --model llama3-8b
mkdir "$tmp/hf"
cp tests/oracle/fixtures/qwen2/* "$tmp/hf/"
for f in config.json model.safetensors; do
    mv "$tmp/hf/$f" "$tmp/aside"
    mkfifo "$tmp/hf/$f"
    refused "a pipe as $f" "not a regular file" "$tern" inspect "$tmp/hf"
    rm "$tmp/hf/$f"
    mv "$tmp/aside" "$tmp/hf/$f"
done
head -c 70000000 /dev/zero >"$tmp/hf/config.json"
refused "a config without end" "more than" "$tern" inspect "$tmp/hf"
rm -f "$tmp/m.tern.profile"
mkfifo "$tmp/m.tern.profile"
done_ "a pipe as the profile" "${run[@]}"
[ -p "$tmp/m.tern.profile" ] || fail "the pipe was replaced"
rm "$tmp/m.tern.profile"

# a limit on the size of files is an error, not a signal
refused "a small limit" "no room on the disk\|cannot write" bash -c "ulimit -f 16; exec '$tern' pack '$tmp/m.gguf' -o '$tmp/l.tern' --calib-tokens 64"
refused "a small limit on a session" "cannot write" bash -c "ulimit -f 4; exec \"\$@\"" - "${run[@]}" --save-session "$tmp/l"
compgen -G "$tmp/l*" >/dev/null && fail "something was left: $(compgen -G "$tmp/l*")"

# a model that is packed for one start leaves nothing
done_ "packed for a start" "$tern" run -m "$tmp/m.gguf" --npu host -p hi -n 1
[ -z "$(ls -A "$TMPDIR")" ] || fail "left in the temporary folder: $(ls -A "$TMPDIR")"

# whoever reads chat's answers from a pipe sees the end of each while the next is waited for
coproc CHAT { exec "$tern" chat -m models/tern-tiny --no-store -n 2 2>/dev/null; }
echo hello >&"${CHAT[1]}"
read -r -t 60 line <&"${CHAT[0]}" || fail "no end of an answer"
echo "cli/trust: done"

# names and texts from outside are text: no terminal sees their control characters, no newline in a name forges a line
python3 - "$tern" "$tmp" <<'PY' || { echo "FAILED: control characters"; exit 1; }
import os, pty, re, subprocess, sys
tern, tmp = sys.argv[1:]
b = open(tmp + "/keep.gguf", "rb").read()
assert b.count(b"[unused") > 50 and b.count(b"blk.0.attn_q.weight") == 1
evil = b.replace(b"[unused", b"\x1b[31;1m").replace(b"blk.0.attn_q.weight", b"blk.0.attn_q.weight")
open(tmp + "/evil.gguf", "wb").write(evil)
run = [tern, "run", "-m", tmp + "/evil.gguf", "-p", "hello the world", "-n", "40", "--temp", "0", "--ignore-eos", "--draft", "none"]
piped = subprocess.run(run, capture_output=True).stdout
assert b"\x1b[31;1m" in piped, piped  # the model does say it; a pipe gets what was said
seen = b""
pid, fd = pty.fork()
if pid == 0:
    os.execv(tern, run)
while True:
    try:
        part = os.read(fd, 4096)
    except OSError:
        break
    if not part:
        break
    seen += part
os.waitpid(pid, 0)
assert b"31;1m" in seen and b"\x1b[31;1m" not in seen, seen
name = tmp + "/a\n2020-01-01 00:00  9 passages  9 bytes  passwd\x1b]0;x\x07\x9b\u202e.txt"
open(name.encode("utf-8", "surrogateescape"), "w").write("The old inn is near the weir.\n")
store = tmp + "/e.db"
subprocess.run([tern, "rag", "add", "--store", store, name], check=True, capture_output=True)
out = subprocess.run([tern, "rag", "ls", "--store", store], capture_output=True).stdout
assert out.count(b"\n") == 1 and "\u202e".encode() not in out and b"\x1b" not in out and b"\x07" not in out and b"\\x0a2020" in out, out
err = subprocess.run([tern, "run", "-m", name + "none", "-p", "x"], capture_output=True).stderr
assert err.count(b"\n") == 1 and b"\x1b" not in err, err
# what a shell makes of * in a folder of such names: a wrong usage tells the word, and drives no terminal with it
word = "x\n\x1b]0;x\x07"
for words in ([word], ["help", word], ["run", tmp + "/evil.gguf", "hi", word], ["run", "--" + word], ["run", "x", "hi", "-c", word], ["run", "x", "hi", "--set", word + "=1"],
              ["cache", word], ["cache", "limit", word], ["cache", "rm", word], ["rag", word], ["rag", "add", "--" + word], ["inspect", word], ["pull", word], ["sim", "--" + word]):
    r = subprocess.run([tern, *words], capture_output=True)
    assert r.returncode in (1, 2) and r.stderr.count(b"\n") == 1 and b"\x1b" not in r.stderr and b"\x1b" not in r.stdout, (words, r)
PY
echo "cli/trust: control characters done"
