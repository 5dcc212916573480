#!/usr/bin/env bash
# A whole model of 0.5B (24 layers of Qwen2.5's shapes, random weights) on the emulated Hexagon: tokens and their probabilities must be the host
# backend's to the bit, with one thread and with several, weights unpacked by the device, little VTCM, and attention estimated there. Up to half an hour and 2 GB:
# no part of the suite (make hexagon-stack).
#   scripts/hexagon-stack.sh [BUILD [NUMBERS IN THE PROMPT]]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:-build}") n=${2:-20} model=models/tern-tiny
tern=$build/tern
command -v qemu-hexagon >/dev/null && [ -f "$build/hexagon-dsp" ] || { echo "skipped: $build has no Hexagon backend"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TERN_PACK=never
fail() { echo "FAILED: $*"; exit 1; }
"$tern" synth --arch qwen2.5-0.5b --type q8_0 --seed 3 -o "$tmp/m.gguf" >/dev/null
"$tern" pack "$tmp/m.gguf" -o "$tmp/m.tern" --scheme edgeflow --bits 5 --calib "$model/calib.txt" --calib-tokens 64 >/dev/null 2>"$tmp/err" || fail "pack: $(cat "$tmp/err")"
rm "$tmp/m.gguf"
run() { # NAME FLAGS
    local name=$1
    shift
    "$tern" run -m "$tmp/m.tern" -f "$tmp/prompt" --chunk 32 -n 2 --ignore-eos --temp 0 --draft none --json --logprobs "$@" >"$tmp/$name.json" 2>"$tmp/$name.err" || fail "$*: $(cat "$tmp/$name.err")"
    python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(d["prompt_tokens"] if "prompt_tokens" in d else "", d["token_logprobs"])' "$tmp/$name.json" >"$tmp/$name"
}
for ((i = 0; i < n; i++)); do printf '%s ' $((i * i)); done >"$tmp/prompt"
for attention in full shadow; do
    flags=(--attention "$attention")
    [ "$attention" = full ] || flags+=(--attention-threshold 1)
    run want --npu host "${flags[@]}"
    for way in 1:8388608:1280 4:8388608:1280 4:262144:200; do # the last in several arenas
        IFS=: read -r threads vtcm arena <<<"$way"
        t0=$SECONDS
        TERN_HEXAGON_ARENA_MB=$arena TERN_HEXAGON_THREADS=$threads run got --npu hexagon --npu-vtcm "$vtcm" "${flags[@]}"
        cmp -s "$tmp/want" "$tmp/got" || fail "$attention attention, $threads threads, $vtcm bytes of VTCM: $(diff "$tmp/want" "$tmp/got" | head -c 400)"
        [ ! -s "$tmp/got.err" ] || fail "$(cat "$tmp/got.err")"
        unpacked=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["prefill"]["unpacked_by_device"])' "$tmp/got.json")
        [ "$unpacked" -gt 300000000 ] || fail "the device unpacked only $unpacked weights"
        echo "$attention attention, $threads threads, $vtcm bytes of VTCM, arenas of $arena MiB: the host's bits, $unpacked weights unpacked by the device, $((SECONDS - t0)) s"
    done
done
