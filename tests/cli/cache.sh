#!/usr/bin/env bash
# tern cache and --pack as a user meets them: the first answer comes from the file, the next from the package that was made
# meanwhile; what is wrong with the cache costs a notice and never the answer.
set -u
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_CACHE_HOME=$tmp/cache
unset TERN_PACK
fail() { echo "FAILED: $*"; cat "$tmp/err" 2>/dev/null; exit 1; }
# What is said beside that the answer was cut.
notices() {
    local rc=0
    "$@" >"$tmp/out" 2>"$tmp/all" || rc=$?
    grep -v "the answer was cut after" "$tmp/all" >"$tmp/err"
    return $rc
}
ask() { notices "$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 3 --temp 0 --ignore-eos --pack "$1"; }
packages() { "$tern" cache ls --json 2>"$tmp/err" | python3 -c 'import json,sys; print(sum(not e["unfinished"] for e in json.load(sys.stdin)))'; }
# Are there so many packages? Looks into the folder first, which costs less than starting the program.
made() {
    local f n=0
    for f in "$tmp"/cache/tern/packages/*.tern; do [ ! -e "$f" ] || n=$((n + 1)); done
    [ $n = "$1" ] && [ "$(packages)" = "$1" ]
}
unfinished() { "$tern" cache ls --json 2>"$tmp/err" | python3 -c 'import json,sys; print(sum(e["unfinished"] for e in json.load(sys.stdin)))'; }

"$tern" synth --arch tiny-llama --type q4_0 -o "$tmp/m.gguf" || fail synth
[ "$("$tern" cache path)" = "$tmp/cache/tern/packages" ] || fail "path"
[ "$(packages)" = 0 ] || fail "a cache that is not there is empty"
[ ! -e "$tmp/cache" ] || fail "looking made a folder"
ask auto || fail "auto"
[ "$(wc -l <"$tmp/err")" = 1 ] && grep -q "measuring this machine for" "$tmp/err" && [ "$(packages)" = 0 ] || fail "a quantised file was packed unasked"
if [ -n "${TERN_EMULATED:-}" ]; then "$tern" cache measure "$tmp/m.gguf"; fi
until grep -qs '"tuned"' "$tmp/cache/tern/profiles/"*.profile; do sleep 0.1; done
until "$tern" cache measure "$tmp/m.gguf" 2>"$tmp/err" && [ ! -s "$tmp/err" ]; do sleep 0.1; done # nobody measures any more
ask auto || fail "auto again"
[ ! -s "$tmp/err" ] && [ "$(packages)" = 0 ] || fail "a quantised file is measured for again"
"$tern" cache clear || fail "clear"
[ -z "$(ls "$tmp/cache/tern/profiles")" ] || fail "clear leaves what was measured"
ask never || fail "never"
[ ! -s "$tmp/err" ] && [ "$(packages)" = 0 ] || fail "never made a package"
cp "$tmp/out" "$tmp/from_file"

# the answer comes from the file's blocks; the package is there some time later
ask later || fail "later"
cmp -s "$tmp/out" "$tmp/from_file" || fail "the first answer is not the file's"
if [ -n "${TERN_EMULATED:-}" ]; then "$tern" cache add "$tmp/m.gguf"; fi # an emulated program cannot start itself
until made 1; do sleep 0.1; done
"$tern" cache ls | grep -q "m.gguf" || fail "ls names no source"
key=$("$tern" cache ls --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["key"])')
[ "$(stat -c %a "$tmp/cache/tern/packages/$key.tern")" = 600 ] || fail "others may read the package"
"$tern" cache ls | grep -q "bits per weight, .* lost on text like the model's own" || fail "ls does not say what the package loses"
"$tern" cache ls --json | python3 -c 'import json,sys; e = json.load(sys.stdin)[0]; assert 1 < e["bits"] <= 8 and e["loss_percent"] > 0 and e["held_tokens"] > 0, e' || fail "ls --json"
# the first answer of the package says once what changed, what it loses and how to stay
ask later || fail "from the package"
[ "$(wc -l <"$tmp/err")" = 1 ] && grep -q "m.gguf: this answer and later ones come from its package: .* bits per weight, .* lost .*--pack never" "$tmp/err" || fail "no notice that the package answers"
ask later || fail "from the package, again"
[ ! -s "$tmp/err" ] || fail "a notice where all is well"
# what measures takes what answers, and says so; so does inspect
seq 1 400 | tr '\n' ' ' >"$tmp/text.txt"
from() { python3 -c 'import json,sys; j = json.load(open(sys.argv[1])); j = j[0] if isinstance(j, list) else j; print(j.get("from") or j["answers"]["from"])' "$1"; }
for what in "eval --task ppl -c 64 --data $tmp/text.txt" "bench -p 8 -n 0 -r 1"; do
    # shellcheck disable=SC2086
    "$tern" $what -m "$tmp/m.gguf" --json >"$tmp/default" 2>"$tmp/err" || fail "$what"
    [ "$(from "$tmp/default")" = cache ] && grep -q "measuring its package" "$tmp/err" || fail "$what measures another model than run"
    # shellcheck disable=SC2086
    "$tern" $what -m "$tmp/m.gguf" --json --pack never >"$tmp/plain" 2>"$tmp/err" || fail "$what --pack never"
    [ "$(from "$tmp/plain")" = file ] && [ ! -s "$tmp/err" ] || fail "$what --pack never does not measure the file"
done
value() { "$tern" eval --task ppl -c 64 --data "$tmp/text.txt" --json "$@" 2>/dev/null | python3 -c 'import json,sys; print(json.load(sys.stdin)["perplexity"])'; }
[ "$(value -m "$tmp/m.gguf")" = "$(value -m "$tmp/cache/tern/packages/$key.tern")" ] || fail "eval says that it measures the package and does not"
[ "$(value -m "$tmp/m.gguf")" != "$(value -m "$tmp/m.gguf" --pack never)" ] || fail "eval --pack never is the package"
"$tern" eval --task ppl -c 64 --data "$tmp/text.txt" -m "$tmp/m.gguf" 2>/dev/null | grep -q "^measured: the model's package" || fail "eval does not say what it measured"
"$tern" inspect "$tmp/m.gguf" --json >"$tmp/default" && [ "$(from "$tmp/default")" = cache ] || fail "inspect --json"
"$tern" inspect "$tmp/m.gguf" | grep -q "^answers  *from its package, unless --pack never: .* bits per weight" || fail "inspect"
TERN_PACK=never "$tern" inspect "$tmp/m.gguf" --json >"$tmp/plain" && [ "$(from "$tmp/plain")" = file ] || fail "inspect, never"
ask later || fail "from the package, once more"
"$tern" run -m "$tmp/cache/tern/packages/$key.tern" -p "hello the world" -n 3 --temp 0 --ignore-eos >"$tmp/from_package" 2>"$tmp/err" || fail "the package alone"
cmp -s "$tmp/out" "$tmp/from_package" || fail "the next answer is not the package's"

# another model under the same name is another model
"$tern" synth --arch tiny-llama --seed 5 --type q4_0 -o "$tmp/m.gguf" || fail "synth again"
"$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 3 --temp 0 --ignore-eos >"$tmp/from_file" 2>"$tmp/err" || fail "the other model"
ask later || fail "later, the other model"
cmp -s "$tmp/out" "$tmp/from_file" || fail "an answer of the model that was there before"
if [ -n "${TERN_EMULATED:-}" ]; then "$tern" cache add "$tmp/m.gguf"; fi
until made 2; do sleep 0.1; done

"$tern" cache rm "$key" || fail rm
"$tern" cache rm "$key" 2>"$tmp/err" && fail "rm twice"
[ "$(wc -l <"$tmp/err")" = 1 ] || fail "rm twice: not one line"
[ "$(packages)" = 1 ] || fail "rm"

# a damaged package goes with one notice: a short one before the answer, which does not suffer ...
key=$("$tern" cache ls --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["key"])')
package=$tmp/cache/tern/packages/$key.tern
until "$tern" cache measure "$package" 2>"$tmp/err" && [ ! -s "$tmp/err" ]; do sleep 0.1; done # whoever packed it has measured, too
truncate -s 5000 "$package"
ask now || fail "a damaged package cost the answer"
[ "$(grep -c damaged "$tmp/err")" = 1 ] || fail "no notice of the damage"
[ "$(packages)" = 1 ] || fail "the damaged package was not made anew"
cp "$tmp/out" "$tmp/from_package"
# ... one whose weights do not fit their checksums when they are read
python3 - "$package" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(0, 2)
    half = f.tell() // 2
    f.seek(half)
    there = f.read(4096)
    f.seek(half)
    f.write(bytes(b ^ 255 for b in there))
PY
ask now && fail "wrong weights answered"
grep -q damaged "$tmp/err" || fail "no notice of wrong weights"
[ "$(packages)" = 0 ] || fail "the damaged package stayed"
ask now || fail "now"
[ "$(packages)" = 1 ] || fail "now made no package"
cmp -s "$tmp/out" "$tmp/from_package" || fail "the package made anew is another one"

# a package that was just made has measured this machine; later nothing is measured again
until [ -s "$package.profile" ] && grep -q '"stage_us"' "$package.profile"; do sleep 0.1; done
measured() { python3 - "$1" <<'PY'
import json, sys
p = json.load(open(sys.argv[1]))
t = p["tuned"]
assert t["chunk"] in (128, 256, 512) and "256" in t["tokens_per_second"], t
assert t["attention_from"] in [0, 1 << 24] + [32 << i for i in range(10)], t  # 0: two rounds that did not agree
assert p["stage_us"]["ffn"] > 0 and t["rows_per_run"], p
PY
}
measured "$package.profile" || fail "what was measured"
cp "$package.profile" "$tmp/profile"
"$tern" cache add "$tmp/m.gguf" || fail "add again"
cmp -s "$package.profile" "$tmp/profile" || fail "measured again"

# so has a package of one's own, after its first answer: one notice, and nothing where it shall be left alone
own=$tmp/own.tern
"$tern" pack "$tmp/m.gguf" -o "$own" >/dev/null 2>&1 || fail "pack"
answer() { notices "$tern" run -m "$own" -p "hello the world" -n 3 --temp 0 --ignore-eos "$@"; }
answer --pack never || fail "the own package"
[ ! -s "$tmp/err" ] && ! grep -q '"tuned"' "$own.profile" || fail "measured where it shall not be"
answer || fail "the own package, again"
[ "$(grep -c 'measuring this machine for' "$tmp/err")" = 1 ] || fail "no notice that the machine will be measured"
if [ -n "${TERN_EMULATED:-}" ]; then "$tern" cache add "$own"; fi
until grep -q '"stage_us": {$' "$own.profile" && grep -q '"read"' "$own.profile"; do sleep 0.1; done
until "$tern" cache add "$own" 2>"$tmp/err" && [ ! -s "$tmp/err" ]; do sleep 0.1; done # while another process measures, that is said
"$tern" cache add "$own" || fail "measured twice" # it waits for nobody, and measures nothing that is known
# where who measured was killed, the next one measures
until grep -q '"stage_us": {$' "$own.profile"; do sleep 0.1; done
python3 - "$own.profile" <<'PY'
import json, sys
p = json.load(open(sys.argv[1]))
p["tuned"].update(unfinished=True, attention_from=0)
json.dump(p, open(sys.argv[1], "w"))
PY
"$tern" cache add "$own" || fail "after one that was killed"
measured "$own.profile" && ! grep -q unfinished "$own.profile" || fail "what was left unfinished stayed so"
# lanes of another machine keep what was measured for them, and what goes on in the background holds nothing of its caller's
python3 - "$own.profile" <<'PY'
import json, sys
p = json.load(open(sys.argv[1]))
p["tuned"]["key"] = "another"
json.dump(p, open(sys.argv[1], "w"))
PY
(exec 9>"$tmp/lock"; flock 9; answer) || fail "the own package, on another machine"
flock -n "$tmp/lock" true || fail "the process in the background holds its caller's files"
[ "$(grep -c 'measuring this machine for' "$tmp/err")" = 1 ] || fail "no notice on another machine"
if [ -n "${TERN_EMULATED:-}" ]; then "$tern" cache add "$own"; fi
until python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["tuned"]["key"] == "another")' "$own.profile" && ! grep -q unfinished "$own.profile"; do sleep 0.1; done
measured "$own.profile" || fail "what was measured on another machine"
python3 -c 'import json, sys; assert list(json.load(open(sys.argv[1]))["tuned_else"]) == ["another"]' "$own.profile" || fail "another machine's measurements are lost"
answer -t 1 || fail "the own package, other lanes"
[ ! -s "$tmp/err" ] || fail "a promise to measure for lanes that are not measured"
answer || fail "the own package, measured"
[ ! -s "$tmp/err" ] || fail "a notice where all is known"
until measured "$own.profile" 2>/dev/null; do sleep 0.1; done

# a limit stays set; what is too much goes at once; a damaged one is named, and costs no answer
[ "$("$tern" cache limit --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["limit_bytes"])')" = 34359738368 ] || fail "the limit at first"
"$tern" cache limit 3G | grep -q "^3072.0 MiB at most" || fail "a limit"
[ "$(packages)" = 1 ] || fail "a limit that is wide enough took a package"
"$tern" cache limit 20 >/dev/null 2>"$tmp/err"; [ $? = 2 ] || fail "a limit without its unit"
grep -q "'20' is 20 bytes, less than any package" "$tmp/err" || fail "a limit without its unit is told"
"$tern" cache limit 10K >/dev/null 2>"$tmp/err" || fail "a narrow limit"
grep -q "^tern: [0-9]* packages* that did not fit removed" "$tmp/err" || fail "what left for a limit is told"
[ "$(packages)" = 0 ] || fail "what is too much stayed"
[ "$(stat -c %a "$tmp/cache/tern/packages/limit")" = 600 ] || fail "others may read the limit"
echo nonsense >"$tmp/cache/tern/packages/limit"
"$tern" cache limit >/dev/null 2>"$tmp/err"; [ $? = 1 ] || fail "a damaged limit"
ask now || fail "a damaged limit cost the answer"
[ "$(wc -l <"$tmp/err")" = 1 ] || fail "a damaged limit: not one notice"
"$tern" cache limit 20M >/dev/null || fail "a limit in the place of a damaged one"
ask now || fail "now, within a limit"
[ "$(packages)" = 1 ] || fail "the package of a model that fits"

# what a killed process did of a package is counted, goes on, and goes away
key=$("$tern" cache ls --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["key"])')
mv "$tmp/cache/tern/packages/$key.tern" "$tmp/cache/tern/packages/$key.tern.part"
[ "$(packages)" = 0 ] && [ "$(unfinished)" = 1 ] || fail "an unfinished package is not counted"
"$tern" cache ls | grep -q "^0 packages, 1 unfinished, [0-9]" || fail "ls says nothing of an unfinished package"
"$tern" cache limit --json | python3 -c 'import json,sys; sys.exit(not json.load(sys.stdin)["used_bytes"])' || fail "the limit does not count it"
"$tern" cache rm "$key" || fail "rm of an unfinished package"
[ "$(unfinished)" = 0 ] || fail "rm left an unfinished package"
ask now || fail "now, once more"
cp "$package" "$package.part"
"$tern" cache clear || fail clear
[ -z "$(find "$tmp/cache/tern/packages" -name '*.tern*' -o -name '*.about')" ] || fail "clear left something"

# no cache at all: one notice, and the answer
chmod 777 "$tmp/cache/tern/packages"
ask now || fail "a foreign folder cost the answer"
[ "$(wc -l <"$tmp/err")" = 1 ] || fail "not one notice"
cmp -s "$tmp/out" "$tmp/from_file" || fail "not answered from the file, with a foreign folder"
XDG_CACHE_HOME=$tmp/m.gguf ask now || fail "a cache that cannot be made cost the answer"
[ "$(wc -l <"$tmp/err")" = 1 ] || fail "not one notice"
chmod 700 "$tmp/cache/tern/packages"
(trap '' XFSZ; ulimit -f 16; ask now) || fail "a full disk cost the answer"
[ "$(wc -l <"$tmp/err")" = 1 ] || fail "a full disk: not one notice"

# without a word: a model in floats is packed in the background after one notice, and read from its package from then on; not
# where the file itself was asked for
"$tern" cache clear || fail clear
"$tern" synth --arch tiny-llama --type f16 -o "$tmp/f.gguf" || fail "synth f16"
plain() { notices "$tern" "$@" -p "hello the world" -n 3 --temp 0 --ignore-eos; }
"$tern" cache add "$tmp/f.gguf" && key=$("$tern" cache ls | sed -n "1s/ .*//p")
"$tern" cache clear
TERN_PACK=never plain run -m "$tmp/f.gguf" || fail "TERN_PACK=never"
[ ! -s "$tmp/err" ] || fail "a notice with TERN_PACK=never"
cp "$tmp/out" "$tmp/from_file"
(
    exec 9>"$tmp/cache/tern/packages/$key.lock" && flock 9
    plain "$tmp/f.gguf" || fail "while another process packs"
    grep -q "in the background" "$tmp/err" && fail "a notice again while another process packs"
    true
) || exit 1
plain "$tmp/f.gguf" || fail "the short way"
cmp -s "$tmp/out" "$tmp/from_file" || fail "the first answer is not the file's"
[ "$(grep -c 'in the background' "$tmp/err")" = 1 ] || fail "no notice"
if [ -n "${TERN_EMULATED:-}" ]; then "$tern" cache add "$tmp/f.gguf"; fi
until made 1; do sleep 0.1; done
plain "$tmp/f.gguf" --explain || fail "the second answer"
grep -q "^INT8 prefill  *on" "$tmp/err" || fail "the second answer is not a package's"
grep -q "in the background" "$tmp/err" && fail "a notice where all is there"
echo "hello" | "$tern" chat "$tmp/f.gguf" --chat-template chatml -n 3 --temp 0 --no-store --stats >"$tmp/out" 2>"$tmp/err" || fail "chat from the package"
plain run -m "$tmp/f.gguf" --exact --explain || fail "exact"
grep -q "^INT8 prefill  *on" "$tmp/err" && fail "--exact read a quantised package"
cmp -s "$tmp/out" "$tmp/from_file" || fail "--exact is not the file's answer"
plain run -m "$tmp/f.gguf" --save-session "$tmp/session" || fail "a session of the file"
plain run -m "$tmp/f.gguf" --load-session "$tmp/session" || fail "the file's session"
TERN_PACK=sometimes plain run -m "$tmp/f.gguf"; [ $? = 2 ] || fail "an unknown word in TERN_PACK"

"$tern" run -m "$tmp/m.gguf" -p hi -n 1 --pack sometimes 2>"$tmp/err"; [ $? = 2 ] || fail "an unknown word"
for words in "add" "rm" "path x" "limit many" "burn"; do
    # shellcheck disable=SC2086
    "$tern" cache $words >/dev/null 2>"$tmp/err"; [ $? = 2 ] || fail "cache $words"
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "cache $words: not one line"
done
"$tern" cache add "$tmp/none.gguf" 2>"$tmp/err"; [ $? = 1 ] || fail "add of nothing"
[ "$(wc -l <"$tmp/err")" = 1 ] || fail "add of nothing: not one line"
echo "cache: all as promised"
