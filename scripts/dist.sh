#!/usr/bin/env bash
# What is handed out:  scripts/dist.sh [FOLDER]   (make dist; default folder: build/dist)
# tern-VERSION.tar.gz, the source, which builds without git; for x86-64 and for AArch64 tern-VERSION-ARCH-linux.tar.gz, the whole program, and
# tern-mini-VERSION-ARCH-linux.tar.gz, the small one for packages: both static, for any Linux, each with what it is made of (CycloneDX, .cdx.json).
# A Python wheel for each and a Node package, Debian packages where debhelper is there, SHA256SUMS of all, and install.sh, which fetches and checks the program;
# TERN_RELEASE is the address where all of this will lie.
# The same commit gives the same bytes: times are the commit's, owners nobody's, and paths of the build are left out. scripts/dist-test.sh tries all of it.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build/dist}")
version=$(sed -n 's/^project(tern VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
git rev-parse HEAD >/dev/null 2>&1 || { echo "dist.sh: the source is packed from a commit: this tree has no git" >&2 && exit 1; }
[ -z "$(git status --porcelain)" ] || echo "dist.sh: what is not committed is left out of the source" >&2
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# Whose code is in the static programs beside tern's.
linked="libc6-dev libedit-dev libncurses-dev libbsd-dev libmd-dev libsqlite3-dev libarchive-dev libxml2-dev libmicrohttpd-dev libpcre2-dev libutf8proc-dev
    libjansson-dev libxxhash-dev zlib1g-dev liblzma-dev libzstd-dev libbz2-dev nettle-dev libjpeg62-turbo-dev libpng-dev libwebp-dev"
linked_mini="libc6-dev libpcre2-dev libutf8proc-dev libjansson-dev libxxhash-dev"
mkdir -p "$out/work"
rm -f "$out"/*.tar.gz "$out"/*.cdx.json "$out"/*.whl "$out"/*.tgz "$out"/*.deb "$out/install.sh"

licences() { # folder, packages
    mkdir -p "$1"
    cp LICENSE "$1/tern"
    for p in $2; do
        [ ! -e "/usr/share/doc/$p/copyright" ] || cp -L "/usr/share/doc/$p/copyright" "$1/${p%-dev}"
    done
}
packed() { # name: the folder of that name becomes a tarball
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$out/work" -c "$1" | gzip -9n >"$out/$1.tar.gz"
}

git archive --format=tar --prefix="tern-$version/" HEAD | gzip -9n >"$out/tern-$version.tar.gz"
said=""
for arch in x86_64 aarch64; do
    for program in tern tern-mini; do
        rc=0
        bash scripts/static.sh $arch "$out/work" $program || rc=$?
        [ $rc = 77 ] && continue
        [ $rc = 0 ] || exit $rc
        name=$program-$version-$arch-linux
        rm -rf "${out:?}/work/$name"
        mkdir -p "$out/work/$name"
        if [ $program = tern-mini ]; then
            cp "$out/work/tern-mini-$arch" "$out/work/$name/tern-mini"
            licences "$out/work/$name/licences" "$linked_mini"
            sed "s/@VERSION@/$version/g; s/@ARCH@/$arch/g" share/dist/README-mini >"$out/work/$name/README"
        else
            mkdir -p "$out/work/$name/bin" "$out/work/$name/share/tern" "$out/work/$name/share/man/man1"
            cp "$out/work/tern-$arch" "$out/work/$name/bin/tern"
            cp "$out/work/tern-lab-$arch" "$out/work/$name/bin/tern-lab"
            cp share/dist/measure.sh "$out/work/$name/"
            cp -r share/soc "$out/work/$name/share/tern/"
            cp man/*.1 "$out/work/$name/share/man/man1/"
            # Pages of commands and completions are what a program of this machine says of itself; the others say the same.
            [ ! -d "$out/work/build-tern-$arch/said" ] || said=$out/work/build-tern-$arch/said
            if [ -n "$said" ]; then
                cp "$said"/man/*.1 "$out/work/$name/share/man/man1/"
                mkdir -p "$out/work/$name/share/"{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
                cp "$said/share/completions/tern.bash" "$out/work/$name/share/bash-completion/completions/tern"
                cp "$said/share/completions/_tern" "$out/work/$name/share/zsh/site-functions/"
                cp "$said/share/completions/tern.fish" "$out/work/$name/share/fish/vendor_completions.d/"
            fi
            licences "$out/work/$name/licences" "$linked"
            sed "s/@VERSION@/$version/g; s/@ARCH@/$arch/g" share/dist/README >"$out/work/$name/README"
        fi
        python3 scripts/sbom.py "$out/$name.cdx.json" "$version" "$out/work/$program-$arch" $([ $program = tern ] || echo deb:libxxhash-dev)
        packed "$name"
    done
done
# The bindings with libtern inside: a wheel for each processor that can be built for, one Node package for all.
builds=()
for arch in x86_64 aarch64; do
    build=$out/work/build-packages-$arch cross=()
    if [ "$(uname -m)" != $arch ]; then
        command -v $arch-linux-gnu-gcc >/dev/null && [ -f cmake/$arch-linux-gnu.cmake ] || { echo "dist.sh: no wheel for $arch (scripts/setup.sh --$arch)"; continue; }
        cross=(--toolchain "$PWD/cmake/$arch-linux-gnu.cmake")
    fi
    cmake -S . -B "$build" -G Ninja "${cross[@]}" -DTERN_TESTS=OFF -DTERN_BENCH=OFF -DTERN_HEXAGON=OFF -DCMAKE_C_FLAGS="-ffile-prefix-map=$PWD=. -ffile-prefix-map=$build=." >"$build.log" 2>&1 &&
        cmake --build "$build" --target tern_bundled tern_store_bundled >>"$build.log" 2>&1 ||
        { tail -20 "$build.log" && echo "dist.sh: the packages of the bindings cannot be made" && exit 1; }
    builds+=("$build")
done
python3 scripts/wheel.py "${builds[@]}" --out "$out" >/dev/null
rc=0
[ -n "${TERN_DIST_NO_DEBS:-}" ] || bash scripts/deb.sh "$out/work/deb" || rc=$?
case $rc in
0) [ -n "${TERN_DIST_NO_DEBS:-}" ] || mv "$out/work/deb"/*.deb "$out/" ;;
77) echo "dist.sh: no Debian packages (scripts/setup.sh --deb)" ;;
*) exit $rc ;;
esac
# The sums are in the script too: who has it needs to believe nothing else that is fetched.
python3 scripts/release.py share/dist/install.sh "$out/install.sh" "$version" "${TERN_RELEASE:-}" "$out"/tern-"$version"-*-linux.tar.gz
cd "$out"
find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum | tee SHA256SUMS
