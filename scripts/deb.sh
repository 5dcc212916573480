#!/usr/bin/env bash
# Debian packages of the tree, in a copy of it:  scripts/deb.sh [FOLDER]   (default: build/deb)
# Needs debhelper, dh-python and what debian/control names (scripts/setup.sh --deb); looked over by lintian where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build/deb}")
command -v dh >/dev/null && command -v dpkg-buildpackage >/dev/null || { echo "skipped: no debhelper (scripts/setup.sh --deb)"; exit 77; }
rm -rf "$out"
mkdir -p "$out/tern-0.1.0"
# What git knows of, or all where there is no git; the large model is for the tree's tests.
{ git ls-files -co --exclude-standard -z 2>/dev/null || find . -path ./build -prune -o -type f -print0; } | grep -zvE '^(\./)?models/' | tar -c --null -T - | tar -x -C "$out/tern-0.1.0"
cd "$out/tern-0.1.0"
dpkg-buildpackage -us -uc -b >"$out/build.log" 2>&1 || { tail -40 "$out/build.log"; exit 1; }
cd "$out"
rm -f tern-*-dbgsym*.deb
sha256sum ./*.deb | tee SHA256SUMS
if command -v lintian >/dev/null; then lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs,no-manual-page ./*.changes
else echo "no lintian (Debian: lintian): the packages are not looked over"; fi
