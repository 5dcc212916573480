#!/usr/bin/env bash
# What registries take, from the library of this build: the wheel is installed into an empty environment and answers; Node's package likewise, where its koffi
# can be had; both want nothing of the system but the C library; the same tree gives the same bytes.
set -euo pipefail
tern=$(realpath "$1")
build=$(dirname "$tern")
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "the library is for another processor"
! grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt" || skip "a sanitized library needs its sanitizer"
command -v python3 >/dev/null && command -v readelf >/dev/null || skip "no python3 or readelf"
rm -rf "$build/packages" # of an earlier version, or name
cmake --build "$build" --target packages_of_bindings >/dev/null 2>"$build/packages.log" || { grep -q "No rule\|unknown target" "$build/packages.log" && skip "no static libraries to put in (Debian's -dev packages have them)"; cat "$build/packages.log"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
wheel=$(ls "$build"/packages/libtern-*.whl)
[ "$(ls "$build"/packages | wc -l)" = 2 ] || { ls "$build/packages"; exit 1; }
python3 scripts/wheel.py "$build" --out "$tmp/again" >/dev/null
for f in "$build"/packages/*; do cmp "$f" "$tmp/again/$(basename "$f")"; done
python3 -m zipfile -e "$wheel" "$tmp/unpacked"
[ -f "$tmp/unpacked"/libtern-*.dist-info/LICENSE ] && grep -q "^# libtern" "$tmp/unpacked"/libtern-*.dist-info/METADATA
if python3 -m venv --without-pip "$tmp/venv" >/dev/null 2>&1 && python3 -m pip --python "$tmp/venv/bin/python" --version >/dev/null 2>&1; then
    python3 -m pip --python "$tmp/venv/bin/python" install --no-index --no-deps --quiet --disable-pip-version-check --root-user-action=ignore "$wheel"
    python=$tmp/venv/bin/python
else
    python="env PYTHONPATH=$tmp/unpacked python3" # no pip: what it would have put there
fi
env -u TERN_LIBRARY -u LD_LIBRARY_PATH $python - models/tern-tiny <<'END'
import asyncio, os, sys, tern
assert os.path.exists(os.path.join(os.path.dirname(tern.__file__), "libtern.so.1")), tern.__file__
model = tern.Model(sys.argv[1], temp=0, n_predict=8)
plain = "".join(model.chat("Who is Lily?"))
async def answer():
    return "".join([piece async for piece in model.chat("Who is Lily?")])
assert asyncio.run(answer()) == plain and plain, plain
assert len(model.embed(["a dog", "a cat"])) == 2
END
mkdir "$tmp/node"
tar -C "$tmp/node" -xzf "$build"/packages/libtern-*.tgz
# Under names that nobody has: tern is another package in both registries.
grep -qx "Name: libtern" "$tmp/unpacked"/libtern-*.dist-info/METADATA && grep -q '"name": "libtern"' "$tmp/node/package/package.json" || { echo "FAILED: the packages' names"; exit 1; }
for f in README.md LICENSE index.d.ts package.json; do [ -s "$tmp/node/package/$f" ] || { echo "FAILED: no $f in Node's package"; exit 1; }; done
if [ -d "$build/node-binding/node_modules/koffi" ] && command -v node >/dev/null; then
    ln -s "$build/node-binding/node_modules" "$tmp/node/package/node_modules"
    env -u TERN_LIBRARY node --input-type=module -e "
const { Model } = await import('$tmp/node/package/index.js');
const model = await Model.open('models/tern-tiny', { temp: 0, nPredict: 8 });
if (!(await model.complete('The sky is'))) throw new Error('no answer');
model.close();"
else
    echo "no koffi (tests/bindings/node.sh gets it): Node's package is only looked into"
fi
echo "wheel: fine"
