#!/usr/bin/env bash
# EdgeFlow's ladder from a cold start: INT8, packed weights, then the pipeline's policies, with the bubble rates of both lanes.
#   bench/ablation-cold.sh MODEL.gguf [TOKENS] [ROUNDS] [BITS]      its packages are made once, in $WORK
set -euo pipefail
model=$1 tokens=${2:-512} rounds=${3:-3} bits=${4:-5}
tern=${TERN:-build/tern} work=${WORK:-build/ablation-cold}
mkdir -p "$work"
name=$(basename "$model" .gguf)
int8=$work/$name.int8.tern ef=$work/$name.ef$bits.tern
[ -s "$int8" ] || "$tern" pack "$model" -o "$int8" --scheme llm-npu --calib-tokens 512 >/dev/null
[ -s "$ef" ] || "$tern" pack "$model" -o "$ef" --scheme edgeflow --bits "$bits" --calib-tokens 512 >/dev/null
row() { # label, package, arguments
    local label=$1 file=$2
    shift 2
    "$tern" bench -m "$file" --cold -p "$tokens" -r "$rounds" --json "$@" | python3 -c "
import json, sys
r = json.load(sys.stdin)[0]
t = r['ttft_ms']
print('%-44s %7.0f ms (%5.0f .. %5.0f)  read %5.0f unpack %4.0f compute %5.0f wait %4.0f  bubbles CPU %5.1f %% NPU %5.1f %%  %5.0f MB' %
      ('$label', t['median'], t['min'], t['max'], t['read'], t['unpack'], t['compute'], t['wait'], 100 * r['cpu_bubble'], 100 * r['npu_bubble'], r['peak_rss_bytes'] * 1e-6), flush=True)"
}
row "INT8, all read, then loaded, then computed" "$int8" --load sequential --no-steal
row "$bits bits, the same" "$ef" --load sequential --no-steal
row "+ reading, unpacking, loading overlap" "$ef" --load overlap --no-steal
row "+ with computing: tasks placed by lane" "$ef" --policy overlap --no-steal
row "+ position-guided priority" "$ef" --policy synergy --no-steal
row "+ CPU steals from a long queue" "$ef" --policy synergy --set steal=measured
row "+ idle cores help (both lanes are cores here)" "$ef" --policy synergy
row "out of order instead of by position" "$ef"
row "weights stay packed" "$ef" --weights packed
row "the file mapped" "$ef" --load mmap
