#!/usr/bin/env bash
# The whole of tern on the Hexagon backend (under qemu-hexagon): the tokens, and their probabilities, of the host backend, with weights packed
# or not, little VTCM, a memory cap, every way of loading, and a DSP that is killed on the way.
set -u
tern=$1
model=models/tern-tiny
if [ ! -r "$model/model.safetensors" ]; then
    echo "skipped: no $model"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
"$tern" synth --arch tiny-llama -o "$tmp/tiny.gguf" >/dev/null 2>&1 || fail "synth"
if ! "$tern" run -m "$tmp/tiny.gguf" --npu hexagon -p hi -n 1 >/dev/null 2>"$tmp/err"; then
    grep -q "no NPU backend\|hexagon-dsp was not found\|qemu-hexagon" "$tmp/err" || fail "$(cat "$tmp/err")"
    echo "skipped: $(cat "$tmp/err")"
    exit 77
fi
head -c 240 "$model/demo.txt" >"$tmp/prompt"
run() { # NAME FLAGS: text, token ids and log-probabilities
    local name=$1
    shift
    "$tern" run -f "$tmp/prompt" -n 4 --temp 0 --draft none --json --logprobs "$@" >"$tmp/$name.json" 2>"$tmp/$name.err" || fail "$*: $(cat "$tmp/$name.err")"
    sed -i '/^tern: the answer was cut after 4 tokens/d' "$tmp/$name.err" # -n 4 says so
    python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(d["text"], d["token_logprobs"])' "$tmp/$name.json" >"$tmp/$name"
}
same() { # FLAGS: as the host's
    run got "$@" --npu hexagon
    cmp -s "$tmp/want" "$tmp/got" || fail "$*: $(diff "$tmp/want" "$tmp/got")"
    [ ! -s "$tmp/got.err" ] || fail "$*: $(cat "$tmp/got.err")"
}
figure() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["prefill"][sys.argv[2]])' "$tmp/got.json" "$1"; }

run want -m "$tmp/tiny.gguf" --npu host # a float model is packed for the device it names (a small one: packing a larger one takes as long as the rest of the test)
same -m "$tmp/tiny.gguf"

"$tern" pack "$model" -o "$tmp/w8.tern" --quick --calib "$model/calib.txt" >/dev/null 2>&1 || fail "pack"
run want -m "$tmp/w8.tern" --npu host
same -m "$tmp/w8.tern" --npu-vtcm 16384 --npu-memory 4000000
same -m "$tmp/w8.tern" --npu-memory 1
same -m "$tmp/w8.tern" --npu-separate-weights --load mmap -t 1
run want -m "$tmp/w8.tern" --npu host --attention shadow --attention-threshold 1 --chunk 32
same -m "$tmp/w8.tern" --attention shadow --attention-threshold 1 --chunk 32
grep -q '"mean_fused": [1-9]' "$tmp/got.json" || fail "no pipeline of heads ran: $(cat "$tmp/got.json")" # on a device of its own

"$tern" pack "$model" -o "$tmp/e.tern" --scheme edgeflow --bits 4.3 --calib "$model/calib.txt" --calib-tokens 512 >/dev/null 2>&1 || fail "pack --scheme edgeflow"
run want -m "$tmp/e.tern" --npu host
for load in stream mmap; do
    same -m "$tmp/e.tern" --load $load
    [ "$(figure unpacked_by_device)" -gt 1000000 ] || fail "--load $load: the device unpacked $(figure unpacked_by_device) weights"
done
same -m "$tmp/e.tern" --npu-vtcm 16384 --npu-memory 6000000
[ "$(figure unpacked_by_device)" -gt 1000000 ] || fail "the device unpacked $(figure unpacked_by_device) weights"

"$tern" run -m "$tmp/e.tern" -p hi --npu hexagon --npu-vtcm 5 >/dev/null 2>"$tmp/err" && fail "5 bytes of VTCM"
grep -qi "vtcm" "$tmp/err" || fail "$(cat "$tmp/err")"

# killed while it runs: one warning, the same tokens
run want -m "$tmp/e.tern" --npu host -n 60 --ignore-eos
"$tern" run -f "$tmp/prompt" -n 60 --ignore-eos --temp 0 --draft none --json --logprobs -m "$tmp/e.tern" --npu hexagon >"$tmp/got.json" 2>"$tmp/err" &
pid=$!
while kill -0 $pid 2>/dev/null; do # it starts its DSP, or ends
    dsp=$(awk -v p=$pid '$4 == p && $2 ~ /qemu-hexagon/ {print $1}' /proc/[0-9]*/stat 2>/dev/null)
    [ -z "$dsp" ] || break
    sleep 0.02
done
# when it has worked for .3 s: its own time, which stands still where others have the processor
[ -z "$dsp" ] || until [ "$(awk '{print $14 + $15}' /proc/$dsp/stat 2>/dev/null || echo 999)" -ge 30 ]; do sleep 0.02; done
[ -n "$dsp" ] && kill -9 $dsp || fail "no DSP to kill"
wait $pid || fail "a killed DSP: $(cat "$tmp/err")"
python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(d["text"], d["token_logprobs"])' "$tmp/got.json" >"$tmp/got"
cmp -s "$tmp/want" "$tmp/got" || fail "a killed DSP: $(diff "$tmp/want" "$tmp/got")"
[ "$(grep -c 'the CPU takes over' "$tmp/err")" = 1 ] || fail "a killed DSP: $(cat "$tmp/err")"
echo "the host's tokens everywhere"
