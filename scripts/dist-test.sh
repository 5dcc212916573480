#!/usr/bin/env bash
# What scripts/dist.sh made, tried:  scripts/dist-test.sh [--twice] [FOLDER]   (make dist-test; default folder: build/dist)
# The source builds where there is no git. The static programs answer in a root folder that holds nothing but them and a model (of this processor's
# kind), or under QEMU as a Cortex-A53 and as the newest. --twice: a clone elsewhere makes the same bytes of what is committed.
# Exit 77: nothing to try, or not root, who alone can change a program's root.
set -euo pipefail
cd "$(dirname "$0")/.."
twice=
[ "${1:-}" != --twice ] || { twice=yes; shift; }
out=$(realpath "${1:-build/dist}")
[ "$(id -u)" = 0 ] || { echo "skipped: another root folder is for root"; exit 77; }
version=$(sed -n 's/^project(tern VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ -f "$out/tern-$version.tar.gz" ] || { echo "skipped: nothing in $out (make dist)"; exit 77; }
tmp=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true; rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
export TERN_PACK=never

if [ -n "$twice" ]; then
    git clone -q . "$tmp/a-clone-with-a-longer-name"
    (umask 077 && cd "$tmp/a-clone-with-a-longer-name" && TZ=Pacific/Kiritimati LC_ALL=C bash scripts/dist.sh "$tmp/again" >"$tmp/log" 2>&1) || { cat "$tmp/log"; fail "make dist of a clone"; }
    diff "$out/SHA256SUMS" "$tmp/again/SHA256SUMS" || fail "other bytes the second time"
    echo "twice: the same bytes of $(wc -l <"$out/SHA256SUMS") files"
fi

# The source, without git.
tar -C "$tmp" -xf "$out/tern-$version.tar.gz"
(cd "$tmp/tern-$version" && env GIT_CEILING_DIRECTORIES="$tmp" cmake -B build -G Ninja -DTERN_TESTS=OFF -DTERN_BENCH=OFF >/dev/null && cmake --build build --target tern_cli -j "$(nproc)" >"$tmp/log" 2>&1) ||
    { tail -20 "$tmp/log"; fail "the source does not build"; }
want=$("$tmp/tern-$version/build/tern" models/tern-tiny - --temp 0 <models/tern-tiny/demo.txt)
[ -n "$want" ] || fail "what was built of the source says nothing"
echo "source: builds without git, $(stat -c %s "$out/tern-$version.tar.gz") bytes"

tried=0
for arch in x86_64 aarch64; do
    tarball=$out/tern-$version-$arch-linux.tar.gz
    [ -f "$tarball" ] || continue
    root=$tmp/$arch
    mkdir -p "$root/tmp" "$root/proc"
    tar -C "$root" --strip-components=1 -xf "$tarball"
    cp -r models/tern-tiny "$root/model"
    mkdir "$root/docs"
    cp tests/documents/fixtures/report.* tests/documents/fixtures/ships.xlsx "$root/docs/"
    printf 'The ferry to Brenwick leaves at 9:40 from pier 4.\n' >"$root/docs/ferry.txt"
    for cpu in "" cortex-a53 max; do
        if [ "$(uname -m)" = $arch ]; then
            [ -z "$cpu" ] || continue
            run=(unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" env -i HOME=/tmp TERN_PACK=never "$(command -v chroot)" "$root" /bin/tern) at=""
        else
            [ -n "$cpu" ] || continue
            command -v qemu-$arch >/dev/null || { echo "$arch: not tried, there is no qemu-$arch (Debian: qemu-user)"; break; }
            run=(env -i HOME="$root/tmp" TERN_PACK=never "$(command -v qemu-$arch)" -cpu $cpu "$root/bin/tern") at=$root
        fi
        [ "$("${run[@]}" --version)" = "tern $version" ] || fail "$arch: another version"
        got=$("${run[@]}" "$at/model" - --temp 0 <models/tern-tiny/demo.txt)
        [ "$got" = "$want" ] || fail "$arch $cpu says: $got"
        "${run[@]}" pack "$at/model" -o "$at/tmp/m.tern" --calib-tokens 512 >"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "$arch: pack"; }
        "${run[@]}" run -m "$at/tmp/m.tern" -p "Once upon a time" -n 8 --temp 0 | grep -q "there was a" || fail "$arch: a package"
        "${run[@]}" rag add "$at/docs" >"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "$arch: rag add"; }
        "${run[@]}" ask -m "$at/model" "Where does the ferry to Brenwick leave?" --temp 0 >"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "$arch: ask"; }
        grep -q "\[1\] .*/docs/" "$tmp/log" || { cat "$tmp/log"; fail "$arch: an answer without its source"; }
        # An emulator starts no other program of its processor, so tern sim, which starts tern-lab, is asked of that itself there.
        lab=("${run[@]}")
        [ -z "$cpu" ] || lab[${#lab[@]}-1]=$root/bin/tern-lab
        "${lab[@]}" sim --soc sd8gen3 --model qwen1.5-1.8b --prompt 1024 >/dev/null || fail "$arch: its processors are not found"
        rm -f "$root/tmp/m.tern"
        "${run[@]}" serve -m "$at/model" --port 8092 >"$tmp/log" 2>&1 &
        server=$!
        curl -sf --retry 60 --retry-connrefused --retry-delay 1 http://127.0.0.1:8092/health | grep -q ok || { cat "$tmp/log"; fail "$arch: serve"; }
        kill -KILL "$server" # unshare does not listen to less
        wait "$server" 2>/dev/null || true
        server=
        echo "$arch${cpu:+ as $cpu}: answers, packs, finds, serves; $(stat -c %s "$root/bin/tern") bytes, in a folder without libraries"
        tried=$((tried + 1))
    done
done
[ $tried -gt 0 ] || fail "no static program was tried"

# The wheel for 64-bit Arm, in Debian's Python for it under QEMU.
wheel=$(echo "$out"/libtern-*_aarch64.whl) arm=$tmp/python
if [ ! -f "$wheel" ] || [ "$(uname -m)" = aarch64 ]; then echo "wheel for aarch64: not tried here"
elif ! command -v qemu-aarch64 >/dev/null || ! (mkdir "$arm" && cd "$arm" && apt-get download $(printf '%s:arm64 ' libc6 libgcc-s1 libexpat1 libffi8 zlib1g libssl3 libuuid1 \
    python3.11-minimal libpython3.11-minimal libpython3.11-stdlib)) >/dev/null 2>&1; then echo "wheel for aarch64: not tried, Debian's Python for it cannot be had"
else
    for d in "$arm"/*.deb; do dpkg -x "$d" "$arm/root"; done
    python3 -m zipfile -e "$wheel" "$arm/wheel"
    said=$(env -i PYTHONPATH="$arm/wheel" TERN_PACK=never HOME="$arm" qemu-aarch64 -L "$arm/root" "$arm/root/usr/bin/python3.11" -c '
import sys, tern
print(tern.Model(sys.argv[1], temp=0, n_predict=8).complete("The sky is"))' models/tern-tiny)
    [ -n "$said" ] && [ "$said" = "$("$tmp/tern-$version/build/tern" run -m models/tern-tiny -p "The sky is" -n 8 --temp 0)" ] || fail "the wheel for aarch64 says: $said"
    echo "wheel for aarch64: answers as the program here does"
fi
