#!/usr/bin/env bash
# What is handed out:  scripts/dist.sh [FOLDER]   (make dist; default folder: build/dist)
# tern-VERSION.tar.gz, the source, which builds without git; tern-mini-VERSION-ARCH-linux.tar.gz, a static program for x86-64 and for AArch64.
# The same commit gives the same bytes: times are the commit's, owners nobody's, and paths of the build are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build/dist}")
version=$(sed -n 's/^project(tern VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
git rev-parse HEAD >/dev/null 2>&1 || { echo "dist.sh: the source is packed from a commit: this tree has no git" >&2 && exit 1; }
[ -z "$(git status --porcelain)" ] || echo "dist.sh: what is not committed is left out" >&2
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
mkdir -p "$out"
rm -f "$out"/*.tar.gz
git archive --format=tar --prefix="tern-$version/" HEAD | gzip -9n >"$out/tern-$version.tar.gz"
for arch in x86_64 aarch64; do
    rc=0
    bash scripts/static.sh $arch "$out/work" || rc=$?
    [ $rc = 77 ] && continue
    [ $rc = 0 ] || exit $rc
    name=tern-mini-$version-$arch-linux
    rm -rf "$out/work/$name"
    mkdir -p "$out/work/$name"
    cp "$out/work/tern-mini-$arch" "$out/work/$name/tern-mini"
    cp LICENSE "$out/work/$name/"
    cat >"$out/work/$name/README" <<END
tern-mini $version for $arch: answers a prompt with a package. It needs nothing but the kernel.

    tern pack MODEL -o model.tern                 (on a PC, with the whole of tern)
    ./tern-mini model.tern "Once upon a time" n-predict=64 temp=0 threads=2

On Android, from a PC:

    adb push tern-mini model.tern /data/local/tmp/
    adb shell 'cd /data/local/tmp && chmod +x tern-mini && ./tern-mini model.tern "Once upon a time"'
END
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$out/work" -c "$name" | gzip -9n >"$out/$name.tar.gz"
done
(cd "$out" && sha256sum ./*.tar.gz | tee SHA256SUMS)
