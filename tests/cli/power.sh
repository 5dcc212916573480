#!/usr/bin/env bash
# Energy, temperature and cores as a tree like /sys tells them (TERN_SYS): joules stand in --stats, in the JSON of run and bench, and in the trace;
# --cores keeps the threads where it says.
set -euo pipefail
tern=$1
[ -f models/tern-tiny/model.safetensors ] || { echo "skipped: no tern-tiny"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TERN_PACK=never TERN_SYS=$tmp/sys
mkdir -p "$TERN_SYS"/class/power_supply/bms "$TERN_SYS"/class/thermal/thermal_zone0 "$TERN_SYS"/devices/system/cpu
echo Battery >"$TERN_SYS/class/power_supply/bms/type"
echo Discharging >"$TERN_SYS/class/power_supply/bms/status"
echo 2500000 >"$TERN_SYS/class/power_supply/bms/power_now"
echo 43500 >"$TERN_SYS/class/thermal/thermal_zone0/temp"
"$tern" pack models/tern-tiny -o "$tmp/m.tern" --scheme llm-npu --calib-tokens 256 >/dev/null
prompt=$(head -c 1500 models/tern-tiny/demo.txt)
"$tern" run -m "$tmp/m.tern" -p "$prompt" -n 4 --temp 0 --stats=all --trace "$tmp/t.json" >/dev/null 2>"$tmp/stats"
grep -q "power: .* 2.50 W (the whole device, by its battery); 44 C at the beginning, 44 C at most" "$tmp/stats" || { cat "$tmp/stats"; exit 1; }
"$tern" run -m "$tmp/m.tern" -p "$prompt" -n 4 --temp 0 --json >"$tmp/run.json"
"$tern" bench -m "$tmp/m.tern" -p 32 -n 4 -r 2 --json >"$tmp/bench.json"
python3 - "$tmp" <<'END'
import json, sys
tmp = sys.argv[1]
load = lambda n: json.load(open(f"{tmp}/{n}.json"))
counters = [e for e in load("t")["traceEvents"] if e["ph"] == "C"]
values = {n: {e["args"]["value"] for e in counters if e["name"] == n} for n in ("power, W", "temperature, C")}
assert values == {"power, W": {2.5}, "temperature, C": {43.5}}, values
assert all(e["ts"] >= 0 for e in counters)
for p in [load("run")["power"]] + [t["power"] for t in load("bench")]:
    assert p["source"] == "battery" and p["seconds"] > 0, p
    assert abs(p["joules"] - 2.5 * p["seconds"]) < 1e-3 * p["joules"] and p["celsius_max"] == 43.5, p
for t in load("bench"):
    n = 2 * int(t["test"][2:])
    assert abs(t["joules_per_token"] * n - t["power"]["joules"]) < 1e-3 * t["power"]["joules"], t
END
# A machine that tells nothing: no line, and no joules.
rm -r "$TERN_SYS/class"
"$tern" run -m "$tmp/m.tern" -p "$prompt" -n 2 --temp 0 --stats=all >/dev/null 2>"$tmp/stats"
! grep -q "power:" "$tmp/stats" || { cat "$tmp/stats"; exit 1; }
"$tern" run -m "$tmp/m.tern" -p "$prompt" -n 2 --temp 0 --json | grep -q '"source": "none"'
# Cores.
first=$(python3 -c "import os; print(min(os.sched_getaffinity(0)))")
echo "$first" >"$TERN_SYS/devices/system/cpu/online"
"$tern" bench -m "$tmp/m.tern" -p 32 -n 0 -r 1 --cores fast --json >"$tmp/cores.json"
python3 -c "import json, sys; t = json.load(open(sys.argv[1]))[0]; assert t['threads'] == 1, t" "$tmp/cores.json"
for bad in big 4000 3- ""; do
    rc=0
    said=$("$tern" run -m "$tmp/m.tern" -p x -n 1 --cores "$bad" 2>&1 >/dev/null) || rc=$?
    [ $rc != 0 ] && grep -q "cores" <<<"$said" || { echo "--cores '$bad': $rc, $said"; exit 1; }
done
