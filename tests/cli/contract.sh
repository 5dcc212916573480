#!/usr/bin/env bash
# The command line as docs/reference/cli.md has it: exit codes, one-line errors, JSON forms, what goes to which stream.
set -u
tern=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
check() { # description, expected status, command...
    local what=$1 want=$2
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    local got=$?
    n=$((n + 1))
    [ "$got" = "$want" ] || { echo "FAILED: $what: exit $got, want $want"; cat "$tmp/err"; exit 1; }
}
one_line() { [ "$(wc -l <"$tmp/err")" = 1 ] || { echo "FAILED: not one line of error"; cat "$tmp/err"; exit 1; }; }
empty_out() { [ ! -s "$tmp/out" ] || { echo "FAILED: output beside an error"; exit 1; }; }
json() { # expression on the parsed output that must be true
    python3 -c "import json,sys; d=json.load(open('$tmp/out')); assert ($1), d" || { echo "FAILED: JSON $1"; exit 1; }
}

for c in run chat models serve forget ask rag embed tokenize eval pack cache inspect synth bench sim; do
    check "$c --help" 0 "$tern" $c --help
    grep -q "usage: tern $c" "$tmp/out" || { echo "FAILED: $c --help"; exit 1; }
    check "$c, unknown option" 2 "$tern" $c --no-such-option; one_line; empty_out
done
for c in run chat ask eval bench; do
    check "$c --help" 0 "$tern" $c --help
    [ "$(grep -c '^  [- ]' "$tmp/out")" -le 20 ] || { echo "FAILED: $c --help shows more than 20 options"; exit 1; }
    [ "$(grep -c ':$' "$tmp/out")" -le 2 ] || { echo "FAILED: $c --help has more than three groups"; exit 1; }
    grep -q -- '--set NAME=VALUE' "$tmp/out" || { echo "FAILED: $c --help has no --set"; exit 1; }
    check "help $c" 0 "$tern" help $c
done
check "help rag add" 0 "$tern" help rag add; grep -q -- --passage "$tmp/out" || { echo "FAILED: help rag add"; exit 1; }
check "help set" 0 "$tern" help set; grep -q "^  chunk " "$tmp/out" || { echo "FAILED: help set"; exit 1; }
for words in --help --version "help run" "models --help"; do
    # shellcheck disable=SC2086
    "$tern" $words >/dev/full 2>"$tmp/err"; [ $? = 1 ] || { echo "FAILED: tern $words into a full disk"; exit 1; }
done
check "help for nothing" 2 "$tern" help frobnicate; one_line
check "unknown parameter" 2 "$tern" run -m x -p hi --set colour=red; one_line
check "parameter out of range" 2 "$tern" run -m x -p hi --set chunk=33; one_line; grep -q "multiple of 32" "$tmp/err" || { echo "FAILED: no range"; exit 1; }
check "parameter of another command" 2 "$tern" eval -m x --task ppl --data x --set temp=0; one_line
check "contradiction" 2 "$tern" run -m models/tern-tiny -p hi --exact --set attention=shadow; one_line
check "version" 0 "$tern" --version
check "no command" 2 "$tern"
check "unknown command" 2 "$tern" frobnicate; one_line
check "no model" 2 "$tern" run -p hi; one_line
check "no prompt" 2 "$tern" run -m x; one_line
check "missing value" 2 "$tern" run -m; one_line
check "bad number" 2 "$tern" run -m x -p hi -n many; one_line
check "number out of range" 2 "$tern" run -m x -p hi --top-p 7; one_line
check "missing file" 1 "$tern" run -m "$tmp/none.gguf" -p hi; one_line; empty_out
check "an endless prompt" 1 "$tern" run -m models/tern-tiny -f /dev/zero; one_line; empty_out
check "bad list" 2 "$tern" bench -m x -p 12,x; one_line
check "unknown shape" 1 "$tern" synth --arch nothing -o "$tmp/x.gguf"; one_line

check "synth" 0 "$tern" synth --arch tiny-llama -o "$tmp/m.gguf"
check "synth again" 0 "$tern" synth --arch tiny-llama -o "$tmp/m2.gguf" -t 1
cmp -s "$tmp/m.gguf" "$tmp/m2.gguf" || { echo "FAILED: synth depends on threads"; exit 1; }
check "run" 0 "$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 5 --temp 0 --ignore-eos
check "run --json" 0 "$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 5 --temp 0 --ignore-eos --json --logprobs
json "d['tokens']==5 and d['prompt_tokens']>3 and d['ttft_ms']>0 and d['prefill_tokens_per_second']>0 and d['peak_rss_bytes']>0 and len(d['token_logprobs'])==5"
check "a parameter without effect" 0 "$tern" run -m "$tmp/m.gguf" -p "hello" -n 2 --set chunk=64 --no-steal; [ "$(grep -c 'has no effect' "$tmp/err")" = 2 ] || { echo "FAILED: ignored in silence"; exit 1; }
check "seeds are random" 0 "$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 40 --temp 2 --top-k 0 --top-p 1 --min-p 0 --ignore-eos; cp "$tmp/out" "$tmp/first"
check "another seed" 0 "$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 40 --temp 2 --top-k 0 --top-p 1 --min-p 0 --ignore-eos
cmp -s "$tmp/out" "$tmp/first" && { echo "FAILED: the same text twice"; exit 1; }
check "context too small" 1 "$tern" run -m "$tmp/m.gguf" -p "hello the world" -c 4; one_line; empty_out
check "trace of a float model" 1 "$tern" run -m "$tmp/m.gguf" -p "$(head -c 300 /dev/zero | tr '\0' a)" -n 1 --trace "$tmp/t.json"; empty_out
check "a file that cannot be written, after the answer" 1 "$tern" run -m "$tmp/m.gguf" -p "hello the world" -n 2 --temp 0 --ignore-eos --save-session "$tmp/none/s"
[ "$(wc -l <"$tmp/out")" = 1 ] || { echo "FAILED: an answer that does not end its line before an error"; exit 1; }

check "pack" 0 "$tern" pack "$tmp/m.gguf" -o "$tmp/m.tern" --json
json "d['sites']==9 and d['bytes']>10000"
check "pack to weightlets" 0 "$tern" pack "$tmp/m.gguf" -o "$tmp/e.tern" --scheme edgeflow --bits 4.5
check "run weightlets" 0 "$tern" run -m "$tmp/e.tern" -p "Once" -n 4 --temp 0
check "inspect weightlets" 0 "$tern" inspect "$tmp/e.tern" --json; grep -q channels_by_bits "$tmp/out" || { echo "FAILED: no histogram of bits"; exit 1; }
"$tern" synth --arch tiny-qwen2+mtp -o "$tmp/next.gguf" --seed 1 2>/dev/null
check "pack with a layer that guesses further" 0 "$tern" pack "$tmp/next.gguf" -o "$tmp/next.tern" --quick
check "inspect that layer" 0 "$tern" inspect "$tmp/next.tern" --json
json "d['hyperparameters']['mtp_layers']==1 and [s['bytes'] > 10000 for s in d['sections'] if s['kind']=='mtp']==[True]"
check "run with it" 0 "$tern" run -m "$tmp/next.tern" -p "Once" -n 4 --temp 0 --draft mtp
check "pack, compressed" 0 "$tern" pack "$tmp/m.gguf" -o "$tmp/e.tern" --scheme edgeflow --bits 4.5 --compress
check "pack, nothing to compress" 0 "$tern" pack "$tmp/m.gguf" -o "$tmp/e.tern" --scheme naive-w8a8 --compress; one_line
grep -q "nothing became smaller" "$tmp/err" || { echo "FAILED: --compress that does nothing"; exit 1; }
check "pack, a rate beyond" 2 "$tern" pack "$tmp/m.gguf" -o "$tmp/z.tern" --compress --compress-rate 5; one_line
check "pack, too many bits" 2 "$tern" pack "$tmp/m.gguf" -o "$tmp/z.tern" --scheme edgeflow --bits 9; one_line
check "pack, unknown scheme" 2 "$tern" pack "$tmp/m.gguf" -o "$tmp/z.tern" --scheme best; one_line
check "pack into nowhere" 1 "$tern" pack "$tmp/m.gguf" -o "$tmp/no/such/z.tern"; one_line
check "pack, calibrated on a folder" 1 "$tern" pack "$tmp/m.gguf" -o "$tmp/z.tern" --calib "$tmp"; one_line
grep -q "cannot read" "$tmp/err" || { echo "FAILED: $(cat "$tmp/err")"; exit 1; }
mkfifo "$tmp/pipe"
check "pack onto a pipe" 1 "$tern" pack "$tmp/m.gguf" -o "$tmp/pipe"; one_line
check "synth onto a pipe" 1 "$tern" synth --arch tiny-llama -o "$tmp/pipe"; one_line
check "a session saved onto a pipe" 1 "$tern" run -m "$tmp/m.gguf" -p a -n 1 --save-session "$tmp/pipe"; one_line
[ -p "$tmp/pipe" ] || { echo "FAILED: the pipe was replaced"; exit 1; }
cp "$tmp/m.gguf" "$tmp/same.gguf" && ln -s same.gguf "$tmp/same.tern"
check "pack onto its source" 1 "$tern" pack "$tmp/same.gguf" -o "$tmp/same.tern"; one_line
cmp -s "$tmp/m.gguf" "$tmp/same.gguf" || { echo "FAILED: pack replaced its source"; exit 1; }
check "pack without room" 1 bash -c "trap '' XFSZ; ulimit -f 16; exec '$tern' pack '$tmp/m.gguf' -o '$tmp/full.tern'"
ls "$tmp" | grep -q full && { echo "FAILED: pack left a file behind"; exit 1; }
for p in in-order overlap ooe synergy; do
    check "run a package, $p" 0 "$tern" run -m "$tmp/m.tern" -p "$(head -c 300 /dev/zero | tr '\0' a)" -n 3 --temp 0 --policy $p --trace "$tmp/t.json" --json
    json "d['prefill']['subgraphs']*5==d['prefill']['shared_subgraphs']*6 and d['prefill']['decisions']>0"
    python3 -c "import json; d=json.load(open('$tmp/t.json')); e=d['traceEvents']; assert len(e)>20; session=[x['tid'] for x in e if x.get('ph')=='M' and x['args'].get('name')=='session']; assert {x['name'] for x in e if x.get('tid') in session and x.get('ph')=='X'} >= {'norm','qkv','attention','down'}" || { echo "FAILED: trace"; exit 1; }
done
check "unknown policy" 2 "$tern" run -m "$tmp/m.tern" -p hi --policy fastest; one_line
check "unknown device" 1 "$tern" run -m "$tmp/m.tern" -p hi --npu abacus; one_line
for f in "$tmp/m.gguf" "$tmp/m.tern" tests/oracle/fixtures/qwen2; do
    check "inspect $f" 0 "$tern" inspect "$f" --json
    json "d['hyperparameters']['layers']==2"
done
check "inspect --tensors" 0 "$tern" inspect "$tmp/m.gguf" --tensors --json
json "sum(t['bytes'] for t in d['tensors'])==sum(s['bytes'] for s in d['storage']) and len(d['tensors'])==sum(s['tensors'] for s in d['storage'])"
check "inspect --cpu" 0 "$tern" inspect --cpu --json
json "'gemm_s8' in d['kernels']"
check "bench --tune" 0 "$tern" bench -m "$tmp/m.tern" --tune -p 64 --json
json "len(d['packed_forms'])>1 and d['packed_form'] in d['packed_forms'] or not d['packed_forms'] and 'packed_form' not in d"
json "d['chunk'] in (32,64) and [l['chunk'] for l in d['lengths']]==[32,64] and set(d['rows_per_run'])=={'qkv','o','ffn','down'}"
python3 -c "import json; p=json.load(open('$tmp/m.tern.profile')); assert p['tuned']['chunk'] in (32,64)" || { echo "FAILED: the tuning is not kept"; exit 1; }
ln "$tmp/m.tern.profile" "$tmp/old.profile" && cp "$tmp/old.profile" "$tmp/old.copy"
check "run keeps the tuning" 0 "$tern" run -m "$tmp/m.tern" -p "$(head -c 300 /dev/zero | tr '\0' a)" -n 2 --temp 0
python3 -c "import json; p=json.load(open('$tmp/m.tern.profile')); assert p['tuned']['chunk'] in (32,64) and p['stage_us']" || { echo "FAILED: the profile lost the tuning"; exit 1; }
cmp -s "$tmp/old.profile" "$tmp/old.copy" || { echo "FAILED: the profile is not replaced at once"; exit 1; }
for p in 40 200; do
    check "sim --soc this-machine" 0 "$tern" sim --soc this-machine --model "$tmp/m.tern" --prompt $p --json --trace "$tmp/t.json"
    json "d['prompt_tokens']==$p and d['ttft_ms']>0 and d['chunk'] in (32,64)"
done
for p in in-order ooe; do
    check "sim --soc this-machine under a policy" 0 "$tern" sim --soc this-machine --model "$tmp/m.tern" --prompt 200 --policy $p --steal-above -1 --json
    json "d['policy']=='$p'"
    cp "$tmp/out" "$tmp/this-$p.json"
done
python3 -c "
import json
a, b = (json.load(open('$tmp/this-%s.json' % p)) for p in ('in-order', 'ooe'))
assert a['ttft_ms'] > b['ttft_ms'], (a, b)" || { echo "FAILED: this-machine ignores --policy"; exit 1; }
check "sim --soc this-machine with what it does not know" 2 "$tern" sim --soc this-machine --model "$tmp/m.tern" --attention shadow
check "sim of an unmeasured package" 1 "$tern" sim --soc this-machine --model "$tmp/e.tern"; one_line
check "sim" 0 "$tern" sim --soc sd8elite --model llama3-8b --prompt 700 --gen 9 --load stream --bits 5 --attention shadow --ratio 10 --switch progressive --accepted 2 --npu-memory 4000000000 --svg "$tmp/g.svg" --json
json "d['ttft_ms']>d['exposed_io_ms']>0 and d['ms_per_token']>0 and d['exposed_switch_ms']>=0 and d['energy_j']>0 and d['memory_bytes']>7e9 and d['load']=='stream' and d['attention']=='shadow'"
python3 -c "import xml.etree.ElementTree as e; r=e.parse('$tmp/g.svg').getroot(); assert len([p for p in r if p.tag.endswith('path')])>20" || { echo "FAILED: the chart"; exit 1; }
check "sim, unknown load" 2 "$tern" sim --model llama3-8b --load fast
check "sim sweep" 0 "$tern" sim sweep --model llama3-8b --prompt 64 --vary bits,flash
python3 -c "import csv; r=list(csv.DictReader(open('$tmp/out'))); assert len(r)==16 and all(x['bottleneck'] for x in r) and float(r[12]['ttft_ms'])>float(r[15]['ttft_ms'])" || { echo "FAILED: the sweep"; exit 1; }
check "sim sweep over nothing known" 1 "$tern" sim sweep --model qwen2.5-0.5b --vary colour; one_line
mkdir "$tmp/figures"
check "sim reproduce" 0 "$tern" sim reproduce --json --svg "$tmp/figures"
json "len(d['papers'])==5 and d['predicted']>=60 and d['median_error']<0.145 and d['derived']>20 and d['median_error_with_derived']<0.125 and all(len({c['kind'] for c in p['claims']})>=2 for p in d['papers'])"
for p in llm-npu edgeflow shadowattn sd-npu; do
    python3 -c "import xml.etree.ElementTree as e; e.parse('$tmp/figures/$p.svg')" || { echo "FAILED: the figure of $p"; exit 1; }
    [ "$(uname -m)" = x86_64 ] && ! cmp -s "$tmp/figures/$p.svg" "docs/figures/$p.svg" && { echo "FAILED: docs/figures/$p.svg is not what tern sim reproduce --svg writes"; exit 1; }
done
check "bench --cold" 0 "$tern" bench -m "$tmp/e.tern" --cold -p 40,9 -r 2 --json
json "[r['test'] for r in d] == ['cold40', 'cold9'] and all(r['ttft_ms']['median'] > 0 and r['ttft_ms']['min'] <= r['ttft_ms']['median'] and r['read_bytes'] > 10000 and r['warm_prefill_ms'] > 0 for r in d) and d[0]['ttft_ms']['compute'] > 0 and 0 <= d[0]['cpu_bubble'] <= 1"
check "bench --cold of a file" 0 "$tern" bench -m "$tmp/m.gguf" --cold -p 40 -r 1 --json
json "d[0]['ttft_ms']['median'] > 0 and not {'compute', 'wait'} & set(d[0]['ttft_ms']) and 'cpu_bubble' not in d[0]" # no tasks, no times of tasks
check "bench --cold, damaged" 1 bash -c "cp '$tmp/e.tern' '$tmp/d.tern' && printf x | dd of='$tmp/d.tern' bs=1 seek=\$((\$(stat -c %s '$tmp/e.tern') - 5000)) conv=notrunc status=none && '$tern' bench -m '$tmp/d.tern' --cold -p 40 -r 1"
for l in stream overlap sequential mmap; do
    check "run --load $l" 0 "$tern" run -m "$tmp/e.tern" -p "Once upon a time" -n 6 --temp 0 --load $l --read threads
    [ -n "${loaded:-}" ] && ! cmp -s "$tmp/out" "$tmp/loaded" && { echo "FAILED: --load $l gives another text"; exit 1; }
    cp "$tmp/out" "$tmp/loaded"
    loaded=1
done
check "unknown way to load" 2 "$tern" run -m "$tmp/e.tern" -p hi --load fast; one_line
check "unknown way to read" 2 "$tern" run -m "$tmp/e.tern" -p hi --read aloud; one_line
check "bench" 0 "$tern" bench -m "$tmp/m.tern" -p 64 -n 4 -r 2 --json
json "[t['test'] for t in d]==['pp64','tg4'] and d[0]['tokens_per_second']['median']>0 and d[0]['scheme']=='gram' and d[0]['threads']>=1"
check "bench behind a text" 0 "$tern" bench -m "$tmp/m.tern" -p 0 -n 4 --depth 300 --attention-decode --attention-threshold 1 -r 1 --json
json "[t['test'] for t in d]==['tg4 @ 300'] and d[0]['tokens_per_second']['median']>0"
check "sparse decoding of a float model" 0 "$tern" bench -m "$tmp/m.gguf" -p 0 -n 4 -r 1 --attention-decode
check "a pipeline of heads of a float model" 2 "$tern" bench -m "$tmp/m.gguf" -p 0 -n 4 --attention shadow --set attention-pipeline=on; one_line
check "sparse decoding beside a baseline" 2 "$tern" bench -m "$tmp/m.tern" -p 0 -n 4 --attention float-sparse --attention-decode; one_line
check "a depth without decoding" 2 "$tern" bench -m "$tmp/m.tern" --tune --depth 9; one_line

printf 'the old inn near the weir.\n%.0s' $(seq 40) >"$tmp/text.txt"
check "eval ppl" 0 "$tern" eval -m "$tmp/m.gguf" --task ppl --data "$tmp/text.txt" -c 64 --json
json "d['task']=='ppl' and d['tokens']>100 and d['perplexity']>1 and d['stderr']>=0"
printf '{"query":"the","choices":["in","er"],"gold":0}\n{"query":"an","choices":["th","in","er"],"gold":2}\n' >"$tmp/c.jsonl"
check "eval choice" 0 "$tern" eval -m "$tmp/m.tern" --task choice --data "$tmp/c.jsonl" --json
json "d['items']==2 and 0<=d['accuracy']<=1 and 'stderr' in d"
printf 'not json\n' >"$tmp/bad.jsonl"
check "eval, bad data" 1 "$tern" eval -m "$tmp/m.gguf" --task lambada --data "$tmp/bad.jsonl"; one_line
check "eval, unknown task" 1 "$tern" eval -m "$tmp/m.gguf" --task dance --data "$tmp/bad.jsonl"; one_line; grep -q ruler "$tmp/err" || { echo "FAILED: not all tasks are named"; exit 1; }

text='the inn, an übergang 🙂'
printf '%s' "$text" | "$tern" tokenize -m "$tmp/m.tern" --ids >"$tmp/ids" && "$tern" tokenize -m "$tmp/m.gguf" --decode <"$tmp/ids" >"$tmp/back"
[ "$(cat "$tmp/back")" = "$text" ] || { echo "FAILED: tokenize round trip"; exit 1; }
printf 'hello\n/tokens\n/undo\n/history\n/exit\n' | "$tern" chat -m "$tmp/m.gguf" >"$tmp/out" 2>"$tmp/err" # no template: a clear error, then the end
grep -q "chat template" "$tmp/err" || { echo "FAILED: chat without a template"; cat "$tmp/err"; exit 1; }
check "run --chat without a template" 1 "$tern" run -m "$tmp/m.gguf" --chat -p hello -n 2; one_line; empty_out
check "a template by name" 0 "$tern" run -m "$tmp/m.gguf" --chat --chat-template chatml -p hello -n 2 --temp 0
printf '{%%- for m in messages %%}\n{{ m.role }}: {{ m.content | trim }}\n{%%- endfor %%}\n' >"$tmp/t.jinja"
check "a template of one's own" 0 "$tern" run -m "$tmp/m.gguf" --chat --chat-template "$tmp/t.jinja" -p " hello " -n 2 --temp 0 --json
own=$(python3 -c "import json; print(json.load(open('$tmp/out'))['prompt_tokens'])")
check "its text as a prompt" 0 "$tern" run -m "$tmp/m.gguf" -p "user: hello" -n 2 --temp 0 --json
json "d['prompt_tokens']==$own"
check "no such template" 1 "$tern" run -m "$tmp/m.gguf" --chat --chat-template nothing -p hello; one_line; empty_out
echo "{{ messages | frobnicate }}" >"$tmp/t.jinja"
check "a template tern cannot run" 1 "$tern" run -m "$tmp/m.gguf" --chat --chat-template "$tmp/t.jinja" -p hello; one_line; empty_out
grep -q "line 1: the filter 'frobnicate' is not supported" "$tmp/err" || { echo "FAILED: $(cat "$tmp/err")"; exit 1; }
check "a template without a chat" 2 "$tern" run -m "$tmp/m.gguf" --chat-template chatml -p hello; one_line
echo "$n commands checked"
