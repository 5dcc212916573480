#!/usr/bin/env bash
# What is given for a model and is none: one line that says what it is and what would work.
set -euo pipefail
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export HOME=$tmp XDG_DATA_HOME=$tmp/data XDG_CACHE_HOME=$tmp/cache XDG_STATE_HOME=$tmp/state TERN_MODELS=$tmp/none TERN_PACK=never
unset HF_HOME HF_HUB_CACHE OLLAMA_MODELS
refused() { # words, status, command: one line that says all of the words, separated by |
    local words=$1 want=$2 rc=0
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?
    [ "$rc" = "$want" ] || { cat "$tmp/err"; echo "FAILED: status $rc of $*"; exit 1; }
    [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" = 1 ] || { cat "$tmp/out" "$tmp/err"; echo "FAILED: not one line of $*"; exit 1; }
    local IFS='|'
    for w in $words; do grep -qF -- "$w" "$tmp/err" || { cat "$tmp/err"; echo "FAILED: no '$w' of $*"; exit 1; }; done
}
"$tern" synth --arch tiny-qwen2 -o "$tmp/m.gguf"

# Names.
refused "Qwen/Qwen3-0.6B|Hugging Face|tern pull Qwen/Qwen3-0.6B" 1 "$tern" run Qwen/Qwen3-0.6B hi
refused "llama3.2|tern pull llama3.2|tern models" 1 "$tern" chat llama3.2
refused "qwen3:0.6b|tern pull qwen3:0.6b" 2 "$tern" qwen3:0.6b "hi there"
refused "opens no connection|tern pull" 1 "$tern" run https://example.com/m.gguf hi
refused "no such file or folder|tern models" 1 "$tern" eval -m ./m.tern --task ppl --data "$tmp/m.gguf"
refused "no such file or folder|tern models" 1 "$tern" run MODEL.GGUF hi
refused "neither a file nor one of chatml" 1 "$tern" run models/tern-tiny hi --chat-template nosuch
refused "--max-memory 5X: want bytes (or K, M or G of them)" 2 "$tern" run models/tern-tiny hi --max-memory 5X
refused "task 'arc' is unknown|choice|the benchmarks mmlu, ruler, bfcl, ifeval" 1 "$tern" eval -m "$tmp/m.gguf" --task arc --data "$tmp/m.gguf"
mkdir -p "$tmp/models" && cp "$tmp/m.gguf" "$tmp/models/qwen2-small.gguf" && cp "$tmp/m.gguf" "$tmp/models/qwen2-large.gguf"
TERN_MODELS=$tmp/models refused "a name like it: qwen2-large.gguf, qwen2-small.gguf" 1 "$tern" run Qwen/Qwen3-0.6B hi
refused "did you mean tern chat?" 2 "$tern" chatt
refused "no such model in Hugging Face's cache|tern pull hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0 fetches it" 1 "$tern" run hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0 hi
refused "tern pull ollama.com/library/qwen3 fetches it from Ollama's registry" 1 "$tern" run ollama.com/library/qwen3 hi
refused "tern pull ORG/Qwen3-0.6B|Hugging Face" 1 "$tern" run Qwen3-0.6B hi
refused "did you mean tern models?" 2 "$tern" list
refused "did you mean tern inspect?" 2 "$tern" show qwen3
for command in "inspect" "tokenize" "embed" "cache add" "cache measure"; do # these take names, too
    # shellcheck disable=SC2086
    refused "llama3.2|tern pull llama3.2" 1 "$tern" $command llama3.2
done
refused "llama3.2|tern pull llama3.2" 1 "$tern" pack llama3.2 -o "$tmp/x.tern"
export TERN_MODELS=$tmp/models
"$tern" inspect qwen2-small | grep -q qwen2 || { echo "FAILED: inspect of a name"; exit 1; }
echo "the inn" | "$tern" tokenize qwen2-small --ids >"$tmp/got"
echo "the inn" | "$tern" tokenize -m "$tmp/m.gguf" --ids | cmp - "$tmp/got" || { echo "FAILED: tokenize of a name"; exit 1; }
"$tern" embed qwen2-small "the inn" >"$tmp/got" && [ "$(wc -l <"$tmp/got")" = 1 ] || { echo "FAILED: embed of a name"; exit 1; }
"$tern" pack qwen2-small -o "$tmp/named.tern" --scheme llm-npu --calib-tokens 64 >/dev/null 2>"$tmp/err" || { cat "$tmp/err"; echo "FAILED: pack of a name"; exit 1; }
kept() { XDG_CACHE_HOME=$tmp/kept "$tern" cache "$@"; }
kept add qwen2-small 2>"$tmp/err" && kept ls >"$tmp/got" && grep -q "^1 package, " "$tmp/got" || { cat "$tmp/err" "$tmp/got"; echo "FAILED: cache add of a name"; exit 1; }
"$tern" eval qwen2-large --task ppl --data models/tern-tiny/demo.txt --pack never --kl qwen2-small >"$tmp/got" 2>"$tmp/err" && grep -q "KL 0.00000" "$tmp/got" || { cat "$tmp/err" "$tmp/got"; echo "FAILED: eval --kl of a name"; exit 1; }
"$tern" eval "$tmp/named.tern" --task ppl --data models/tern-tiny/demo.txt --kl "$tmp/named.tern" --set attention=shadow --set ratio=50 >"$tmp/got" 2>"$tmp/err" && ! grep -q "no effect" "$tmp/err" ||
    { cat "$tmp/err" "$tmp/got"; echo "FAILED: an option of the model asked about is said to have no effect on the one it is compared with"; exit 1; }
export TERN_MODELS=$tmp/none

# Control characters of a word are told and not sent.
refused 'unexpected argument|there\x1b[2J' 2 "$tern" run "$tmp/m.gguf" hi $'there\033[2J'

# Options: what is misspelt is told the nearest.
refused "unknown option '--temprature'|did you mean --temperature?" 2 "$tern" run "$tmp/m.gguf" hi --temprature 1
refused "did you mean --temp?" 2 "$tern" run "$tmp/m.gguf" hi --tmep 1
refused "did you mean --help?" 2 "$tern" bench --hepl
refused "did you mean --bits?" 2 "$tern" pack "$tmp/m.gguf" --bit 4
refused "did you mean --store?" 2 "$tern" rag ls --stor x
refused "unknown option '--overide-kv' (see" 2 "$tern" run "$tmp/m.gguf" hi --overide-kv x # which is refused when it is spelt well

# A folder with one GGUF file in it is that file; one with more, or none, is told what to give.
mkdir "$tmp/one" "$tmp/empty"
cp "$tmp/m.gguf" "$tmp/one/"
"$tern" run -m "$tmp/m.gguf" -p "the inn" --temp 0 -n 8 --ignore-eos >"$tmp/want" 2>/dev/null
"$tern" run -m "$tmp/one" -p "the inn" --temp 0 -n 8 --ignore-eos >"$tmp/got" 2>/dev/null
cmp "$tmp/want" "$tmp/got" || { echo "FAILED: a folder with a GGUF file"; exit 1; }
printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\24\0\0\0\0\0\0\0general.architecture\10\0\0\0\4\0\0\0\0\0\0\0clip' >"$tmp/one/mmproj-m.gguf"
"$tern" run -m "$tmp/one" -p "the inn" --temp 0 -n 8 --ignore-eos >"$tmp/got" 2>/dev/null
cmp "$tmp/want" "$tmp/got" || { echo "FAILED: a folder with a GGUF file and what reads images for it"; exit 1; }
"$tern" inspect "$tmp/one" | grep -q "GGUF v3" || { echo "FAILED: inspect of a folder with a GGUF file"; exit 1; }
echo "the inn" | "$tern" tokenize "$tmp/one" >/dev/null || { echo "FAILED: tokenize of a folder with a GGUF file"; exit 1; }
refused "a folder of models|such as $tmp/models/qwen2-large.gguf" 1 "$tern" run -m "$tmp/models" -p hi
refused "no model|config.json|no GGUF file" 1 "$tern" run -m "$tmp/empty" -p hi
refused "mmproj|language model's file" 1 "$tern" run -m "$tmp/one/mmproj-m.gguf" -p hi

# Downloads that stopped.
size=$(stat -c %s "$tmp/m.gguf")
head -c $((size - 1000)) "$tmp/m.gguf" >"$tmp/cut.gguf"
refused "cut off|it has $((size - 1000)) bytes, and 1000 more are missing" 1 "$tern" run -m "$tmp/cut.gguf" -p hi
head -c 200 "$tmp/m.gguf" >"$tmp/cut.gguf"
refused "cut off?" 1 "$tern" run -m "$tmp/cut.gguf" -p hi
cp -r models/tern-tiny "$tmp/folder"
chmod -R u+w "$tmp/folder"
truncate -s -12345 "$tmp/folder/model.safetensors"
refused "cut off|12345 more are missing" 1 "$tern" run -m "$tmp/folder" -p hi

# What else is saved under a model's name: it is named.
save() { printf "$1" >"$tmp/saved.gguf"; }
save '<!DOCTYPE html><html><body>404</body></html>' && refused "a web page|tern pull" 1 "$tern" run "$tmp/saved.gguf" hi
save 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n' && refused "Git LFS's pointer|git lfs pull" 1 "$tern" run "$tmp/saved.gguf" hi
save 'PK\3\4archive' && refused "a zip archive" 1 "$tern" run "$tmp/saved.gguf" hi
save '' && refused "the file is empty" 1 "$tern" run "$tmp/saved.gguf" hi
cp models/tern-tiny/model.safetensors "$tmp/saved.gguf" && refused "safetensors: give the folder" 1 "$tern" run "$tmp/saved.gguf" hi

# A folder without a tokenizer, before anything is packed; a tokenizer that lies elsewhere.
cp models/tern-tiny/model.safetensors "$tmp/folder/"
rm "$tmp/folder/tokenizer.json"
TERN_PACK=auto refused "$tmp/folder: the model has no tokenizer|tokenizer.json" 1 "$tern" run -m "$tmp/folder" -p hi
[ ! -e "$XDG_CACHE_HOME/tern" ] || { echo "FAILED: a model that cannot answer is packed"; exit 1; }

echo garbage >"$tmp/folder/tokenizer.model"
refused "$tmp/folder: tokenizer.model: neither SentencePiece's nor tiktoken's" 1 "$tern" run -m "$tmp/folder" -p hi
rm "$tmp/folder/tokenizer.model"
echo '{"model": {"type": "Other"}}' >"$tmp/folder/tokenizer.json"
refused "$tmp/folder: tokenizer model \"Other\"" 1 "$tern" run -m "$tmp/folder" -p hi

# Without a home there is no store; what is advised is an option that the command has.
refused "give --store FILE" 1 env -u HOME -u XDG_DATA_HOME "$tern" rag ls
! grep -q no-store "$tmp/err" || { cat "$tmp/err"; echo "FAILED: an option that rag does not have"; exit 1; }
refused "give --store FILE or --no-store" 1 env -u HOME -u XDG_DATA_HOME "$tern" chat models/tern-tiny

# Weights in another form.
cp models/tern-tiny/tokenizer.json "$tmp/folder/"
mv "$tmp/folder/model.safetensors" "$tmp/folder/pytorch_model.bin"
refused "there is no model.safetensors in it|PyTorch's files" 1 "$tern" run -m "$tmp/folder" -p hi

# Prompts that are longer than the context.
printf 'the cat %.0s' {1..2000} >"$tmp/long.txt"
refused "tokens and does not fit the context of 64|the model was trained for" 1 "$tern" run models/tern-tiny -f "$tmp/long.txt" -c 64
head -c 900 "$tmp/long.txt" >"$tmp/short.txt"
refused "tokens and does not fit the context of 64|-c " 1 "$tern" run models/tern-tiny -f "$tmp/short.txt" -c 64
longer=$(sed 's/.*: -c \([0-9]*\).*/\1/' "$tmp/err")
"$tern" run models/tern-tiny -f "$tmp/short.txt" -c "$longer" -n 4 --temp 0 >/dev/null 2>"$tmp/err" || { cat "$tmp/err"; echo "FAILED: what was advised"; exit 1; }
echo "wrong: fine"
