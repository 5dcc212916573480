#!/usr/bin/env bash
# Debian packages of the tree:  scripts/deb.sh [--twice] [FOLDER]   (make deb; default folder: build/deb)
# They are built in a copy of what git knows of (of everything, where there is no git) by dpkg-buildpackage, and looked over by lintian. The same
# tree gives the same bytes: times are those of debian/changelog. --twice shows that: it builds once more, in another folder with another name, time
# zone, umask and language, and compares.
# Exit 77: no debhelper (scripts/setup.sh --deb).
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD twice=
[ "${1:-}" != --twice ] || { twice=yes; shift; }
out=$(realpath -m "${1:-build/deb}")
command -v dh >/dev/null && command -v dpkg-buildpackage >/dev/null || { echo "skipped: no debhelper (scripts/setup.sh --deb)"; exit 77; }
version=$(dpkg-parsechangelog -SVersion)

copy() { # folder
    mkdir -p "$1"
    if git -C "$root" rev-parse --show-toplevel 2>/dev/null | grep -qxF "$root"; then git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done
    else find . -path './build*' -prune -o -type f -printf '%P\0'; fi | tar -c --null -T - | tar -x -C "$1"
}
build() { # folder of the copy, log
    # the system's own tools, whatever a developer has put before them
    (cd "$1" && export PATH=/usr/sbin:/usr/bin:/sbin:/bin && dpkg-buildpackage -us -uc -b) >"$2" 2>&1 &
    bash "$root/scripts/progress.sh" $! "$2"
    wait $! || { tail -40 "$2"; echo "FAILED: dpkg-buildpackage; all it said: $2"; exit 1; }
}

rm -rf "$out"
again=$out/work/a/longer/name
copy "$out/work/tern-$version"
[ -z "$twice" ] || copy "$again/tree" # of the same moment
build "$out/work/tern-$version" "$out/build.log"
for f in "$out"/work/*.deb "$out"/work/*.buildinfo "$out"/work/*.changes; do mv "$f" "$out/"; done
if [ -n "$twice" ]; then
    (umask 077 && export TZ=Pacific/Kiritimati LC_ALL=C USER=nobody DEB_BUILD_OPTIONS="parallel=1 ${DEB_BUILD_OPTIONS:-}" && build "$again/tree" "$out/again.log")
    for f in "$out"/*.deb; do
        cmp "$f" "$again/$(basename "$f")" || { echo "FAILED: $(basename "$f") has other bytes the second time"; exit 1; }
    done
    echo "built twice: the same bytes"
fi
rm -rf "$out/work"
cd "$out"
sha256sum ./*.deb | tee SHA256SUMS
if ! command -v lintian >/dev/null; then echo "no lintian (Debian: lintian): the packages are not looked over" && exit 0; fi
# initial-upload-closes-no-bugs is about Debian's own list of wishes.
lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs ./*.changes
echo "lintian: no error, no warning"
