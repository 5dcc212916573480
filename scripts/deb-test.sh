#!/usr/bin/env bash
# The packages in a bare Debian:  scripts/deb-test.sh [FOLDER]   (make deb-test; default folder: build/deb, where scripts/deb.sh put them)
# mmdebstrap makes the system, once (build/deb-base-SUITE.tar, of $SUITE, which is bookworm when nothing is said). Each test of debian/tests then runs
# in it, as nobody and with no network but loopback, with the packages that debian/tests/control names for it and no others. At the end everything is
# purged, and nothing of tern may be left.
# Exit 77: no mmdebstrap or no ip, or not root.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=$(realpath "${1:-build/deb}")
suite=${SUITE:-bookworm} base=build/deb-base-${SUITE:-bookworm}.tar
command -v mmdebstrap >/dev/null && command -v ip >/dev/null || { echo "skipped: no mmdebstrap or no ip (scripts/setup.sh --deb)"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "skipped: a bare system is made by root"; exit 77; }
ls "$packages"/*.deb >/dev/null || { echo "deb-test.sh: no packages in $packages (scripts/deb.sh)" >&2; exit 1; }
[ -f "$base" ] || { mmdebstrap --quiet --format=tar --variant=apt "$suite" "$base.part" && mv "$base.part" "$base"; }
system=$(mktemp -d)
trap 'rm -rf "$system"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
export system
within() { # command in the system, with a /proc of its own
    unshare --mount --pid --fork --mount-proc="$system/proc" chroot "$system" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
alone() { # a function, with loopback alone for a network
    export -f "$1"
    unshare --net bash -c 'ip link set lo up && "$@"' - "$@"
}
installed() { within dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n' | sort; }
fresh() { # a system in which nothing has been done but an update of its lists
    find "$system" -mindepth 1 -delete
    tar -C "$system" -xf "$base"
    cp /etc/resolv.conf "$system/etc/"
    mkdir "$system/packages" "$system/tree"
    find "$packages" -maxdepth 1 -name '*.deb' ! -name '*dbgsym*' -exec cp {} "$system/packages/" \;
    tar -c debian/tests examples models/tern-tiny | tar -C "$system/tree" -x --no-same-owner
    within apt-get -q update >"$system/log" 2>&1 || { cat "$system/log"; fail "apt-get update"; }
}
files_of() { # names of Debian packages, ours as files
    local p
    for p in ${*//,/ }; do
        local ours=("$system/packages/${p}"_*.deb)
        if [ -e "${ours[0]}" ]; then echo "/packages/$(basename "${ours[0]}")"; else echo "$p"; fi
    done
}
recommends() { # Does this test of debian/tests/control want what packages recommend?
    awk -v test="Tests: $1" 'BEGIN { RS = "" } index($0 "\n", test "\n") && /needs-recommends/ { found = 1 } END { exit !found }' debian/tests/control
}
install() { # names; libtern1 comes from the same folder
    local more=""
    case " $* " in *libtern-dev* | *python3-tern*) more=libtern1 ;; esac
    within apt-get -q install -y ${with:---no-install-recommends} $(files_of "$*" $more) >"$system/log" 2>&1 || { tail -30 "$system/log"; fail "apt-get install $*"; }
}

n=0
while read -r test depends; do
    fresh
    with=
    if recommends "$test"; then with=--install-recommends; fi
    install "$depends"
    with=
    # The program needs no library of ours, the library not the program.
    if [ "$test" = program ]; then ! installed | grep -E '^(libtern|python3)' || fail "tern brings more than it needs"; fi
    if [ "$test" = python ]; then ! installed | grep -E '^(gcc|python3-numpy) ' || fail "the module brings a compiler or NumPy"; fi
    if ! alone within setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "cd /tree && exec debian/tests/$test" >"$system/log" 2>&1 </dev/null; then
        tail -30 "$system/log"
        fail "debian/tests/$test"
    fi
    echo "$test: fine, with $(installed | wc -l) packages"
    n=$((n + 1))
done < <(sed -n 's/^Tests: //p; s/^Depends: //p' debian/tests/control | paste -d ' ' - -)

# All of them, purged again: the system is as it was.
fresh
installed >"$packages/before"
(cd "$system" && find etc usr var lib* bin -xdev | sort) >"$packages/files-before"
all=$(cd "$packages" && for f in *.deb; do echo "${f%%_*}"; done | grep -v dbgsym | tr '\n' ' ')
install "$all"
within dpkg --audit | grep . && fail "dpkg --audit"
within sh -c "dpkg --verify $all" | grep . && fail "a file is not as its package says"
within apt-get -q purge -y $all >"$system/log" 2>&1 || { tail -30 "$system/log"; fail "purge"; }
within apt-get -q autoremove --purge -y >"$system/log" 2>&1
installed | diff "$packages/before" - || fail "other packages are left"
(cd "$system" && find etc usr var lib* bin -xdev | sort) | comm -13 "$packages/files-before" - |
    grep -vE '^var/(log|cache|lib/(apt|dpkg|systemd))/|__pycache__|^etc/(ld.so.cache|.*-)$' >"$packages/left" || true
grep -i tern "$packages/left" && fail "files are left"
echo "installed and purged:$(sed 's/^/ /' <<<"$all")and $(wc -l <"$packages/left") files of other packages left"
rm -f "$packages/before" "$packages/files-before" "$packages/left"
echo "deb-test: $n tests, purged without a trace"
