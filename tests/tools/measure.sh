#!/usr/bin/env bash
# share/dist/measure.sh, which a phone's owner runs: one JSON object with every measurement, whatever shell; a measurement that fails is told in its
# place; nothing stays behind.
set -euo pipefail
tern=$(realpath "$1")
[ -f models/tern-tiny/model.safetensors ] || { echo "skipped: no tern-tiny"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
script=$PWD/share/dist/measure.sh model=$PWD/models/tern-tiny
# The program as it is, but for the limits of the machine, which take their time.
cat >"$tmp/quick" <<END
#!/bin/sh
[ "\$2" != limits ] || { [ -z "\$NO_LIMITS" ] || { echo 'no "limits" \\ here' >&2; exit 3; }; echo '{"gops": 1}'; exit 0; }
exec "$tern" "\$@"
END
chmod +x "$tmp/quick"
mkdir -p "$tmp/sys/devices/system/cpu/cpu0" "$tmp/work"
echo 1024 >"$tmp/sys/devices/system/cpu/cpu0/cpu_capacity"
python3 -c "import os; print(min(os.sched_getaffinity(0)))" >"$tmp/sys/devices/system/cpu/online"
export TERN="$tmp/quick" TERN_SYS="$tmp/sys" PROMPTS=16 TOKENS=2
cd "$tmp/work"
for sh in sh bash "busybox sh"; do
    command -v ${sh%% *} >/dev/null || continue
    $sh "$script" "$model" >"$tmp/$sh.json" 2>"$tmp/said"
    python3 - "$tmp/$sh.json" <<'END'
import json, sys
j = json.load(open(sys.argv[1]))
assert j["what"] == "tern on a machine" and j["format"] == 1 and j["version"].startswith("tern ") and j["limits"] == {"gops": 1}, j
assert j["model"].endswith("models/tern-tiny") and "cpu0 1024" in j["cores"] and "gemm_s8" in j["kernels"], j
for part in ("all_cores", "fast_cores"):
    assert [t["test"] for t in j[part]] == ["pp16", "tg2"] and all(t["tokens_per_second"]["median"] > 0 for t in j[part]), j
    assert j[part][0]["power"]["source"] == "none"
assert j["fast_cores"][0]["threads"] == 1 and j["answer"]["tokens"] > 0, j
END
done
# Random weights when no model is named, and a part that fails.
NO_LIMITS=1 SHAPE=tiny-llama sh "$script" >"$tmp/random.json" 2>/dev/null
python3 - "$tmp/random.json" <<'END'
import json, sys
j = json.load(open(sys.argv[1]))
assert j["limits"] == {"failed": 'no "limits" \\ here'}, j["limits"]
assert j["model"] == "random weights, tiny-llama" and j["all_cores"][0]["tokens_per_second"]["median"] > 0, j
END
[ -z "$(ls)" ] || { echo "left behind: $(ls)"; exit 1; }
! TERN=$tmp/none sh "$script" 2>"$tmp/said" && grep -q "no program" "$tmp/said"
