#!/usr/bin/env bash
# The short way: two words, standard input, models by name, split files, what a terminal sees, Ctrl-C.
set -u
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; [ -f "$tmp/err" ] && head -5 "$tmp/err"; exit 1; }
check() { # description, expected status, command...
    local what=$1 want=$2
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err"
    local got=$?
    [ "$got" = "$want" ] || fail "$what: exit $got, want $want"
}
export HOME=$tmp/home XDG_CACHE_HOME=$tmp/cache XDG_DATA_HOME=$tmp/data
unset HF_HOME HF_HUB_CACHE OLLAMA_MODELS TERN_MODELS
mkdir -p "$HOME" "$tmp/mine/sub"
tiny=models/tern-tiny
demo=$tiny/demo.txt

# two words, and the template
"$tern" run -m $tiny --chat -f $demo --temp 0 -n 24 >"$tmp/chat" 2>/dev/null || fail "run --chat"
check "tern MODEL -" 0 "$tern" $tiny - --temp 0 -n 24 <$demo
cmp -s "$tmp/out" "$tmp/chat" || fail "the short way gives another answer than run --chat"
head -n -2 $demo | "$tern" run $tiny - "$(tail -1 $demo)" --temp 0 -n 24 >"$tmp/out" 2>"$tmp/err" || fail "a document and a question"
cmp -s "$tmp/out" "$tmp/chat" || fail "a document and a question give another answer"
check "run MODEL TEXT" 0 "$tern" run $tiny "$(cat $demo)" --temp 0 -n 24
cmp -s "$tmp/out" "$tmp/chat" || fail "run MODEL TEXT gives another answer"
check "tern MODEL TEXT" 0 "$tern" $tiny "$(cat $demo)" --temp 0 -n 24
cmp -s "$tmp/out" "$tmp/chat" || fail "tern MODEL TEXT gives another answer"
check "--raw" 0 "$tern" $tiny "The capital" --raw --temp 0 -n 8
cp "$tmp/out" "$tmp/raw"
check "-p without a template" 0 "$tern" run -m $tiny -p "The capital" --temp 0 -n 8
cmp -s "$tmp/out" "$tmp/raw" || fail "--raw is not plain text"
check "chat" 0 bash -c "printf 'Hello\n/exit\n' | '$tern' $tiny --temp 0 -n 4"
[ -s "$tmp/out" ] || fail "tern MODEL does not chat"
check "--raw and --system" 2 "$tern" $tiny hi --raw --system x
check "too many words" 2 "$tern" $tiny a b c
check "two texts from outside" 2 "$tern" run $tiny - -f $demo </dev/null
check "not a model" 2 "$tern" nothing-like-this; [ "$(wc -l <"$tmp/err")" = 1 ] || fail "not one line"
check "no words" 2 "$tern"; [ "$(wc -l <"$tmp/err")" = 6 ] && grep -q "^tern pull" "$tmp/err" || fail "tern alone does not print six lines"

# the model is a word of every command that wants one
check "eval MODEL" 0 "$tern" eval $tiny --task ppl --data $demo --limit 1; grep -q perplexity "$tmp/out" || fail "eval MODEL measures nothing"
check "eval MODEL -m MODEL" 2 "$tern" eval $tiny -m $tiny --task ppl --data $demo
check "bench MODEL" 0 "$tern" bench $tiny -p 8 -n 2 -r 1; grep -q pp8 "$tmp/out" || fail "bench MODEL measures nothing"
check "bench MODEL -m MODEL" 2 "$tern" bench $tiny -m $tiny
check "cache" 0 "$tern" cache; check "cache ls" 0 "$tern" cache ls
check "models where there are none" 0 "$tern" models; grep -q "tern pull" "$tmp/err" || fail "nothing is said where there are no models"

# the answer ends its line before the statistics begin
"$tern" run -m $tiny -p "The capital" --temp 0 -n 8 --stats=all >"$tmp/both" 2>&1
grep -q '^drafts: ' "$tmp/both" || fail "the statistics do not begin a line"
# a person reads one line of them
check "--stats" 0 "$tern" run -m $tiny -p "The capital" --temp 0 -n 8 --stats
grep -v "the answer was cut" "$tmp/err" | grep -qxE '8 tokens at [0-9.]+ a second, the first after [0-9.]+ s, [0-9]+ MiB of memory' && [ "$(grep -cv "the answer was cut" "$tmp/err")" = 1 ] || fail "--stats is not one line"
check "--stats=some" 2 "$tern" run -m $tiny -p "The capital" --stats=some

# a model without a template: plain text, and said
"$tern" synth --arch tiny-llama -o "$tmp/mine/plain.gguf" || fail synth
check "no template" 0 "$tern" "$tmp/mine/plain.gguf" "the inn" -n 4 --temp 0 --ignore-eos
grep -q "no chat template" "$tmp/err" || fail "plain text in silence"

# split files
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
"$tern" synth --arch tiny-qwen2 -o "$tmp/whole.gguf" || fail synth
python3 tests/tools/split_gguf.py "$tmp/whole.gguf" "$tmp/mine/sub/part" 3 || fail "cannot split"
"$tern" run -m "$tmp/whole.gguf" -p "the inn" -n 12 --temp 0 --ignore-eos >"$tmp/want" 2>/dev/null || fail "run the whole"
check "split" 0 "$tern" run -m "$tmp/mine/sub/part-00001-of-00003.gguf" -p "the inn" -n 12 --temp 0 --ignore-eos
cmp -s "$tmp/out" "$tmp/want" || fail "a split file gives another text"
check "the second part" 2 "$tern" run -m "$tmp/mine/sub/part-00002-of-00003.gguf" -p hi
grep -q "part-00001-of-00003.gguf" "$tmp/err" || fail "the first part is not named"
mkdir "$tmp/broken" && cp "$tmp"/mine/sub/part-0000[12]* "$tmp/broken"
check "a part is missing" 1 "$tern" run -m "$tmp/broken/part-00001-of-00003.gguf" -p hi
grep -q "part-00003-of-00003.gguf" "$tmp/err" || fail "the missing part is not named"
cp "$tmp/mine/sub/part-00002-of-00003.gguf" "$tmp/broken/part-00003-of-00003.gguf"
check "a part twice" 1 "$tern" run -m "$tmp/broken/part-00001-of-00003.gguf" -p hi
cp "$tmp/whole.gguf" "$tmp/broken/part-00003-of-00003.gguf"
check "a part that is whole" 1 "$tern" run -m "$tmp/broken/part-00001-of-00003.gguf" -p hi
cp "$tmp/mine/sub/part-00001-of-00003.gguf" "$tmp/broken/renamed.gguf"
check "a renamed part" 1 "$tern" run -m "$tmp/broken/renamed.gguf" -p hi

# models by name: own folders and other tools' stores
hub=$XDG_CACHE_HOME/huggingface/hub/models--org--small/snapshots/abc
mkdir -p "$hub" "$HOME/.ollama/models/blobs" "$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny" "$HOME/.lmstudio/models/maker/repo"
cp tests/oracle/fixtures/qwen2/{config.json,model.safetensors} "$hub"
digest=$(sha256sum "$tmp/whole.gguf" | cut -d' ' -f1)
cp "$tmp/whole.gguf" "$HOME/.ollama/models/blobs/sha256-$digest"
printf '{"layers":[{"mediaType":"application/vnd.ollama.image.template","digest":"sha256:00"},{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:%s"}]}' "$digest" \
    >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny/0.1b"
printf '{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:../../../etc/passwd"}]}' \
    >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny/evil"
cp "$tmp/whole.gguf" "$HOME/.lmstudio/models/maker/repo/studio.gguf"
printf 'not a model' >"$tmp/mine/broken.gguf"
export TERN_MODELS=$tmp/nowhere:$tmp/mine
check "models --json" 0 "$tern" models --json
python3 - "$tmp/out" "$tmp" <<'END' || fail "the list of models"
import json, os, sys
m = {e["name"]: e for e in json.load(open(sys.argv[1]))}
assert set(m) == {"plain.gguf", "broken.gguf", "sub/part-00001-of-00003.gguf", "org/small", "tiny:0.1b", "maker/repo/studio.gguf"}, sorted(m)
assert not m["broken.gguf"]["runs"] and "GGUF" in m["broken.gguf"]["why_not"]
assert all(e["runs"] and e["arch"] in ("llama", "qwen2") and e["weight_bytes"] > 0 for n, e in m.items() if n != "broken.gguf")
# five bits a weight: of F32 files 5/32 and a little less for what lies beside the weights, of a package nothing
assert all(0.12 < e["packed_bytes"] / e["bytes"] < 0.35 for n, e in m.items() if e["runs"]) and m["broken.gguf"]["packed_bytes"] == 0, m
assert m["sub/part-00001-of-00003.gguf"]["bytes"] == sum(os.path.getsize(f"{sys.argv[2]}/mine/sub/part-0000{i}-of-00003.gguf") for i in (1, 2, 3))
assert [m[n]["where"] for n in ("plain.gguf", "org/small", "tiny:0.1b", "maker/repo/studio.gguf")] == ["TERN_MODELS", "Hugging Face", "Ollama", "LM Studio"]
END
check "models" 0 "$tern" models
[ "$(grep -vc '^    ' "$tmp/out")" = 7 ] || fail "models does not print a head and six lines"
grep -q '^    .*GGUF' "$tmp/out" || fail "models does not say why a file does not run"
mkdir "$tmp/mine/a-folder-with-a-long-name-as-they-are"
cp "$tmp/mine/broken.gguf" "$tmp/mine/a-folder-with-a-long-name-as-they-are/Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf"
check "models, a long name" 0 "$tern" models
grep -qx "a-folder-with-a-long-name-as-they-are/Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf" "$tmp/out" && ! grep -v / "$tmp/out" | grep -qE '.{81}' || fail "models is wider than 80 columns"
rm -r "$tmp/mine/a-folder-with-a-long-name-as-they-are"
for name in tiny:0.1b studio maker/repo/studio.gguf part-00001-of-00003; do
    check "run $name" 0 "$tern" run -m $name -p "the inn" -n 12 --temp 0 --ignore-eos
    cmp -s "$tmp/out" "$tmp/want" || fail "$name gives another text"
done
check "tern NAME TEXT" 0 "$tern" plain "the inn" -n 4 --temp 0
cp "$tmp/whole.gguf" "$tmp/mine/studio.gguf"
check "a name that two models have" 2 "$tern" studio "the inn"

# a terminal: progress of a long prompt, a clean line after it; Ctrl-C ends the answer at once
python3 - "$tern" "$tmp" <<'END' || fail "on a terminal"
import os, pty, re, signal, sys
tern, tmp = sys.argv[1:]
open(f"{tmp}/long.txt", "w").write("the old inn near the weir. " * 90)

def start(*args):
    pid, fd = pty.fork()
    if not pid:
        os.execv(tern, ["tern", *args])
    return pid, fd

def rest(fd, seen=b""):
    while True:
        try:
            more = os.read(fd, 4096)
        except OSError:
            return seen
        if not more:
            return seen
        seen += more

pid, fd = start("run", "-m", f"{tmp}/mine/plain.gguf", "-f", f"{tmp}/long.txt", "-n", "3", "-c", "4096", "--temp", "0", "--ignore-eos")
seen = rest(fd)
assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 0, seen
shown = [int(x) for x in re.findall(rb"prompt: (\d+) of \d+ tokens", seen)]
assert len(shown) >= 2 and shown == sorted(shown) and shown[0] > 0, seen[-300:]
last = seen.rfind(b"prompt: ")
assert b"\r\x1b[K" in seen[last:], "the line is not cleared before the answer"

pid, fd = start("run", "-m", f"{tmp}/mine/plain.gguf", "-p", "the inn", "-n", "-1", "-c", "1000000", "--ignore-eos", "--temp", "0", "--set", "draft=none")
seen = os.read(fd, 1)
while len(seen.rsplit(b"\x1b[K", 1)[-1]) < 200:  # of the answer: progress of loading clears its lines
    seen += os.read(fd, 4096)
os.write(fd, b"\x03")
seen = rest(fd, seen)
assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 1, seen[-200:]
assert b"\ntern: cancelled" in seen.replace(b"\r\n", b"\n"), seen[-200:]

# a terminal that is full: the write is not broken by the Ctrl-C, which would look like an output that is closed
pid, fd = start("run", "-m", f"{tmp}/mine/plain.gguf", "-p", "the inn", "-n", "-1", "-c", "1000000", "--ignore-eos", "--temp", "0", "--set", "draft=none")
while not any(open(f"/proc/{pid}/task/{t}/syscall").read().startswith(("1 0x1 ", "64 0x1 ")) for t in os.listdir(f"/proc/{pid}/task")):
    pass  # until it waits in a write to its output
os.write(fd, b"\x03")
seen = rest(fd)
assert os.waitpid(pid, 0)[1] == 256, seen[-200:]
assert b"tern: cancelled" in seen, seen[-200:]

# chat: Ctrl-C stops an answer, in words for people; a context that fills up within an answer is told behind it
pid, fd = start("chat", "-m", "models/tern-tiny", "--no-store", "--temp", "1", "--seed", "3", "-n", "400", "-c", "128", "--ignore-eos")
seen = b""
def until(found, mark=0):
    global seen
    while not found(seen[mark:]):
        seen += os.read(fd, 4096)
    return len(seen)
at = until(lambda s: b"> " in s)
os.write(fd, b"Tell me about the sea.\r")
until(lambda s: re.search(rb"\n> [^\n]*$", s), at)
said = seen[at:]
full = said.find(b"tern: the context of 128 tokens is full")
assert full > 0 and said[full - 1:full] == b"\n" and said[full:].count(b"\n") == 1, said[-600:]
os.write(fd, b"And the mail?\r")
until(lambda s: len(s) > 150, at + len(said))
os.write(fd, b"\x04")  # within an answer: the system keeps a zero for it, which leaves behind the answer
seen = rest(fd, seen)
assert os.waitpid(pid, 0)[1] == 0, seen[-300:]
pid, fd = start("chat", "-m", "models/tern-tiny", "--no-store", "--temp", "1", "--seed", "3", "-n", "-1", "-c", "65536", "--ignore-eos")
seen = b""
at = until(lambda s: b"> " in s)
os.write(fd, b"And the sky?\r")
until(lambda s: len(s) > 150, at)
os.write(fd, b"\x03")
until(lambda s: b"tern: stopped" in s)
assert b"cancelled" not in seen, seen[-300:]
os.write(fd, b"\x04")
seen = rest(fd, seen)
assert os.waitpid(pid, 0)[1] == 0, seen[-300:]
END
echo "the short way: fine"
