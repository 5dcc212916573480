#!/usr/bin/env bash
# What is built is hardened, its parts are listed, and the unit that serves is one that systemd takes.
set -euo pipefail
tern=$1 build=$(dirname "$1")
shopt -s nullglob
command -v readelf >/dev/null || { echo "skipped: no readelf"; exit 77; }
[ "$(head -c 2 "$tern")" != "#!" ] || { echo "skipped: run by an emulator"; exit 77; }
symbols=$(readelf --dyn-syms -W "$tern" | awk '{print $8}')
if grep -qE '__(asan|tsan|ubsan)_' <<<"$symbols"; then echo "skipped: a build with sanitizers"; exit 77; fi
fail() { echo "$*"; exit 1; }
# Every program and library that is there, those that the packages of Python and Node carry where they have been made, static ones, and the minimal build's
# (which tests/cli/minimal.sh makes).
files=()
for f in "$tern" "$build"/tern-lab "$build"/libtern*.so.[0-9] "$build"/bundled/libtern*.so.[0-9] "$build"/minimal/tern-mini "$build"/minimal/libtern.so.[0-9] \
    "$build"/static/tern-mini-"$(uname -m)" "$build"/dist/work/tern{,-mini,-lab}-"$(uname -m)"; do
    [ ! -f "$f" ] || files+=("$f")
done
bash scripts/hardened.sh --not "$PWD" --not "$(realpath "$build")" "${files[@]}"
# Threads of the program have a megabyte of stack where the C library takes the size from here, four times what tests/server/depth.c nests on.
grep -q 'GNU_STACK.* 0x100000 RW' <<<"$(readelf -lW "$tern")" || fail "$tern leaves the stacks of its threads to the C library"
# Every file of ours has its branches marked (whether the whole program says so is decided by the C library's start files as well), and touches the
# pages of large frames, wherever the compiler can.
python3 - "$build" <<'PY'
import json, os, re, subprocess, sys
build = sys.argv[1]
cache = open(os.path.join(build, "CMakeCache.txt")).read()
can = {flag for flag, name in (("-fstack-clash-protection", "HAS_fstack_clash_protection"), ("-fcf-protection=full", "HAS_fcf_protection_full"),
                               ("-mbranch-protection=standard", "HAS_mbranch_protection_standard")) if re.search(name + r":INTERNAL=1", cache)}
objects = []
for c in json.load(open(os.path.join(build, "compile_commands.json"))):
    if "/src/" not in c["file"]:
        continue
    words = c["command"].split()
    missing = [f for f in can if f not in words] + ([] if any(w.startswith("-ffile-prefix-map=") for w in words) else ["-ffile-prefix-map"])
    assert not missing, f"{c['file']} is compiled without {missing}"
    path = os.path.join(c["directory"], c["output"] if "output" in c else words[words.index("-o") + 1])
    if os.path.exists(path):
        objects.append(path)
assert len(objects) > 200, len(objects)
notes = subprocess.run(["readelf", "-nW", *objects], capture_output=True, text=True).stdout.split("\nFile: ")
said = {n.split("\n", 1)[0].removeprefix("File: ").strip(): n for n in notes}
want = "x86 feature: IBT, SHSTK" if "-fcf-protection=full" in can else "AArch64 feature: BTI, PAC" if "-mbranch-protection=standard" in can else ""
bare = [o for o in objects if want not in said.get(o, "")]
assert not want or not bare, f"without marks: {bare[:5]}"
print(f"{len(objects)} objects, {sorted(can)}: {want or 'no marks on this processor'}")
PY
grep -q __stack_chk_fail <<<"$symbols" || fail "$tern has no stack protectors"
grep -qE '__(mem|str|sn?printf|vsn?printf|read|pread).*_chk' <<<"$symbols" || fail "$tern has no fortified calls"
if command -v hardening-check >/dev/null; then
    options=() knows=$(hardening-check --help 2>&1 || true) # versions know different ones
    for o in --nocfprotection --nobranchprotection; do
        if grep -q -- "$o" <<<"$knows"; then options+=("$o"); fi
    done
    hardening-check "${options[@]}" "$tern" || fail "hardening-check is not content"
fi
if command -v systemd-analyze >/dev/null; then
    unit=$(mktemp -d)
    trap 'rm -rf "$unit"' EXIT
    sed "s#^ExecStart=tern#ExecStart=$(realpath "$tern")#; s#^EnvironmentFile=.*#Environment=MODEL=x#" share/systemd/user/tern.service >"$unit/tern.service"
    said=$(systemd-analyze verify --man=no "$unit/tern.service" 2>&1 | grep -F tern.service || true)
    [ -z "$said" ] || fail "systemd on the unit: $said"
    systemd-analyze security --offline=true --threshold=30 "$unit/tern.service" >"$unit/score" || { tail -1 "$unit/score"; fail "the unit is too open"; }
fi
command -v dpkg-query >/dev/null || { echo "no dpkg: the list of parts is not looked at"; exit 0; }
python3 scripts/sbom.py "$build/tern.cdx.json" 0.1.0 "$tern" "$build"/libtern.so.[0-9]
python3 - "$build/tern.cdx.json" "$tern" <<'PY'
import json, subprocess, sys
bom = json.load(open(sys.argv[1]))
assert bom["bomFormat"] == "CycloneDX" and bom["specVersion"] == "1.5" and bom["version"] == 1
refs = [c["bom-ref"] for c in bom["components"]]
assert len(refs) == len(set(refs))
known = set(refs) | {bom["metadata"]["component"]["bom-ref"]}
for d in bom["dependencies"]:
    assert d["ref"] in known and all(r in known for r in d["dependsOn"]), d
for c in bom["components"]:
    assert c["type"] in ("file", "library") and c["name"] and c["version"], c
names = {c["name"] for c in bom["components"]}
# what the program was linked with, by another tool, and what it says that it loads
needed = subprocess.run(["readelf", "-dW", sys.argv[2]], capture_output=True, text=True, check=True).stdout
needed += subprocess.run(["python3", "scripts/loads.py", sys.argv[2]], capture_output=True, text=True, check=True).stdout
for library, package in (("libpcre2-8", "libpcre2-8-0"), ("libjansson", "libjansson4"), ("libsqlite3", "libsqlite3-0"), ("libc.so", "libc6"),
                         ("libmicrohttpd", "libmicrohttpd12"), ("libarchive", "libarchive13"), ("libxml2", "libxml2")):
    if library in needed:
        assert package in names, f"{library} is linked, {package} is not listed"
assert "libc6" in names
PY
