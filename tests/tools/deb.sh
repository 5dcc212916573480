#!/usr/bin/env bash
# debian/ agrees with the tree: every file that is installed belongs to one package, every line of the packages' lists finds a file, the version is the
# program's everywhere, and every test names packages that are made. Building, installing and purging them takes minutes: make deb-test.
set -euo pipefail
tern=$1
build=$(dirname "$tern")
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "a cross build installs no completions"
! grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt" || skip "what is installed is that of a plain build"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/stage"
cmake --install "$build" --prefix "$tmp/stage/usr" >/dev/null
cat >"$tmp/check.py" <<'END'
import fnmatch
import glob
import json
import os
import re
import subprocess
import sys

debian, staged, tern = sys.argv[1:]
wrong = []


def read(name):
    with open(os.path.join(debian, name), encoding="utf-8") as f:
        return f.read()


packages = re.findall(r"^Package: (\S+)", read("control"), re.M)
# As a Debian build lays it out: libraries below the triplet; the emulated DSP's program is not packaged.
files = [re.sub(r"^usr/lib/(?:[a-z0-9_]+-linux-gnu/)?(libtern|cmake/|pkgconfig/)", r"usr/lib/triplet/\1", os.path.relpath(os.path.join(at, n), staged))
         for at, _, names in os.walk(staged) for n in names]
files = [f for f in files if not f.startswith("usr/libexec/tern/")]
owners = {f: [] for f in files}
for p in packages:
    lines = read(f"{p}.install").split("\n") if os.path.exists(os.path.join(debian, f"{p}.install")) else []
    for pattern in (line.split()[0] for line in lines if line and not line.startswith("#")):
        if pattern.startswith("debian/site/"):
            continue
        found = [f for f in files if fnmatch.fnmatch(f, pattern) or any(fnmatch.fnmatch(f[:i], pattern) for i, c in enumerate(f) if c == "/")]
        if not found:
            wrong.append(f"{p}.install: nothing is like {pattern}")
        for f in found:
            owners[f].append(p)
wrong += [f"{f} belongs to {' and '.join(o) or 'no package'}" for f, o in sorted(owners.items()) if len(o) != 1]
programs = [f for f in files if f.startswith("usr/bin/")]
pages = {f: f"usr/share/man/man1/{os.path.basename(f)}.1" for f in programs}
wrong += [f"{f} has no page in its package" for f, page in pages.items() if owners.get(page) != owners[f]]

version = subprocess.run([tern, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
said = {"debian/changelog": re.match(r"tern \(([^)]*)\)", read("changelog"))[1], "CMakeLists.txt": re.search(r"^project\(tern VERSION (\S+)", open("CMakeLists.txt").read(), re.M)[1],
        "bindings/python/pyproject.toml": re.search(r'^version = "(.*)"', open("bindings/python/pyproject.toml").read(), re.M)[1],
        "bindings/node/package.json": json.load(open("bindings/node/package.json"))["version"],
        "CHANGELOG.md": re.search(r"^## (\S+)", open("CHANGELOG.md").read(), re.M)[1]}
wrong += [f"{where} says version {v}, the program {version}" for where, v in said.items() if v != version]

soname = next(f for f in files if re.search(r"libtern\.so\.\d+$", f)).rsplit(".", 1)[1]
if f"libtern{soname}" not in packages:
    wrong.append(f"no package libtern{soname} for libtern.so.{soname}")
known = set(packages) | {f.split(".")[0] for f in ("source", "tests", "rules", "control", "changelog", "copyright", "site")}
wrong += [f"debian/{n} is for no package" for n in map(os.path.basename, glob.glob(f"{debian}/*")) if n.rsplit(".", 1)[0] not in known and n.split(".")[0] not in known]
tests = re.findall(r"^Tests: (\S+)\nDepends: (.*)", read("tests/control"), re.M)
for test, depends in tests:
    if not os.access(os.path.join(debian, "tests", test), os.X_OK):
        wrong.append(f"debian/tests/{test} cannot be run")
    wrong += [f"debian/tests/{test} wants {d}" for d in depends.split(", ") if "tern" in d and d not in packages]
if sorted(t for t, _ in tests) != sorted(n for n in os.listdir(os.path.join(debian, "tests")) if n != "control"):
    wrong.append("debian/tests/control does not name the scripts beside it")
untried = set(packages) - {d for _, depends in tests for d in depends.split(", ")} - {f"libtern{soname}"}
wrong += [f"no test wants {p}" for p in sorted(untried)]
if wrong:
    raise SystemExit("FAILED: " + "\n".join(wrong))
print(f"deb: {len(files)} installed files in {len(packages)} packages of version {version}")
END
python3 "$tmp/check.py" debian "$tmp/stage" "$tern"
# The check itself: a file of two packages, one of none, a line without files and another version are seen.
broken() { # sed expression, file of debian/, what is said
    rm -rf "$tmp/debian"
    cp -r debian "$tmp/debian"
    sed -i "$1" "$tmp/debian/$2"
    ! python3 "$tmp/check.py" "$tmp/debian" "$tmp/stage" "$tern" 2>"$tmp/err" || { echo "FAILED: the check does not see: $1"; exit 1; }
    grep -q "$3" "$tmp/err" || { cat "$tmp/err"; echo "FAILED: not said: $3"; exit 1; }
}
broken '$a usr/include/tern.h' tern.install "usr/include/tern.h belongs to .* and "
broken '/zsh/d' tern.install "zsh/vendor-completions/_tern belongs to no package"
broken '$a usr/share/info' tern.install "nothing is like usr/share/info"
broken '1s/(.*)/(9.9)/' changelog "says version 9.9"
