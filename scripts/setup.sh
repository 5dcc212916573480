#!/usr/bin/env bash
# Installs what tern builds and tests with (Debian 12 and relatives). Does nothing when all is there.
#   scripts/setup.sh [--hexagon] [--aarch64] [--lint] [--oracle] [--bindings] [--static] [--browser] [--compilers] [--deb] [--site] [--windows] [--ccache] [--optional]
# Formats of pictures are read, TLS is spoken and tern pull fetches where their libraries are there: they are installed where that is possible, and missed with a message.
# --lint: what scripts/lint.sh and scripts/abi.sh check with; --oracle: what tests compare with, call and count with.
# --static: what makes static programs to hand out (make dist, make board).
# --bindings: what tests of the bindings and of the completions use; --browser: what the server's page is tested with.
# --compilers: other compilers and C libraries that tern is built with (scripts/compilers.sh).
# --deb: what makes Debian packages and tries them in a bare system; --site: what makes the site of the documents.
# --windows: what builds libtern for Windows and runs it (scripts/windows.sh).
# --ccache: what keeps `make test` from compiling the same file with the same flags twice.
# --hexagon: what builds and runs the Hexagon backend; --aarch64: what cross-builds tern for 64-bit Arm and runs it.
# --ask: on a terminal nothing is installed for these before somebody said yes; without one they are installed as ever.
# --optional: what these want may be impossible to get: a message then, and the tests that need it are skipped.
set -euo pipefail
packages="gcc libc6-dev cmake ninja-build pkg-config libpcre2-dev libutf8proc-dev libjansson-dev libxxhash-dev libsqlite3-dev libcmocka-dev libarchive-dev libxml2-dev libmicrohttpd-dev libedit-dev python3"
pictures="libjpeg-dev libpng-dev libwebp-dev"
tls="libgnutls28-dev" # it comes with libmicrohttpd-dev where that was built with it
pull="libcurl4-openssl-dev" # tern pull loads the library when it runs, and is built by its header
hexagon="qemu-user clang-16 lld-16"
aarch64="qemu-user gcc-aarch64-linux-gnu libc6-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libjansson-dev:arm64 libxxhash-dev:arm64 libsqlite3-dev:arm64 libcmocka-dev:arm64 libarchive-dev:arm64 libxml2-dev:arm64 libmicrohttpd-dev:arm64 libedit-dev:arm64 zlib1g-dev:arm64 liblzma-dev:arm64 libzstd-dev:arm64 libbz2-dev:arm64 libjpeg62-turbo-dev:arm64 libpng-dev:arm64 libwebp-dev:arm64"
lint="clang-format-14 abigail-tools"
oracle="python3-jinja2 python3-pil curl valgrind libcurl4-openssl-dev strace"
bindings="python3-numpy mypy g++ fish zsh"
static="zlib1g-dev liblzma-dev libzstd-dev libbz2-dev nettle-dev libbsd-dev libncurses-dev"
browser="chromium"
# A Node from elsewhere does as well, and Debian's npm does not go beside it.
command -v node >/dev/null || browser="$browser nodejs"
command -v npm >/dev/null || browser="$browser npm"
compilers="clang musl-tools libclang-rt-14-dev"
deb="libcurl4-openssl-dev build-essential debhelper dh-python iproute2 lintian mmdebstrap pybuild-plugin-pyproject python3-all python3-setuptools"
site="pandoc"
windows="gcc-mingw-w64-x86-64-posix tcl wine wine64"
ccache="ccache"
wanted="" optional="" ask=""
for a in "$@"; do
    case $a in
    --hexagon | --aarch64 | --lint | --oracle | --bindings | --static | --browser | --compilers | --deb | --site | --windows | --ccache) wanted="$wanted ${a#--}" ;;
    --optional) optional=yes ;;
    --ask) ask=yes ;;
    *) echo "setup.sh: $a is unknown" >&2 && exit 2 ;;
    esac
done

# A package named without an architecture is this machine's: one of arm64 (--aarch64) does not stand for it.
missing_of() {
    local p arch native
    native=$(dpkg --print-architecture)
    for p in "$@"; do
        arch=$native
        [ "$p" = "${p%:*}" ] || arch=${p##*:}
        dpkg-query -W -f='${Status} ${Architecture}\n' "${p%:*}" 2>/dev/null | grep -qE "ok installed ($arch|all)$" || printf ' %s' "$p"
    done
}
run=""
may_install() {
    if [ "$(id -u)" = 0 ]; then return 0; fi
    run="sudo"
    command -v sudo >/dev/null && sudo -n true 2>/dev/null
}
export DEBIAN_FRONTEND=noninteractive
updated=""
install() { # packages
    # Another apt may be at work, as it is on a machine that has just started: it is waited for.
    local wait="-o DPkg::Lock::Timeout=$lock_seconds" tries=0
    if [ -z "$updated" ]; then
        # The lists have a lock of their own, which apt-get update does not wait for.
        until $run apt-get update -qq $wait 2>"$said"; do
            if ! grep -qi "could not get lock" "$said" || [ $((tries += 1)) -gt $((lock_seconds / 5)) ]; then cat "$said" >&2; return 1; fi
            [ $tries -gt 1 ] || echo "another apt is at work: waiting for it" >&2
            sleep "${TERN_SETUP_SLEEP:-5}"
        done
    fi
    updated=yes
    echo "installing: $*" >&2
    $run apt-get install -y --no-install-recommends $wait "$@" >/dev/null
}
said=$(mktemp)
trap 'rm -f "$said"' EXIT
lock_seconds=600
# Asks where that was wanted and somebody is there to answer.
agreed() { # set, packages
    local set=$1 answer
    shift
    [ -n "$ask" ] && [ -t 0 ] && [ -t 2 ] || return 0
    printf 'For %s these packages are missing:\n%s\nInstall them now%s? [y/N] ' "$set" "$(echo "$@" | fold -sw 76 | sed 's/^/    /')" "$([ "$set" != aarch64 ] || echo " (a cross compiler; packages of another architecture)")" >&2
    read -r answer
    case $answer in y | Y | yes) return 0 ;; esac
    return 1
}

missing=$(missing_of $packages)
if [ -n "$missing" ]; then
    if ! may_install; then
        echo "These packages are missing:$missing" >&2
        echo "Install them with:  sudo apt-get install -y --no-install-recommends$missing" >&2
        exit 1
    fi
    install $missing
fi
for set in pictures tls pull $wanted; do
    list=${!set} foreign=""
    missing=$(missing_of $list)
    [ -n "$missing" ] || continue
    ok=""
    if agreed "$set" $missing && may_install; then
        if [ "$set" = aarch64 ] && [ "$(dpkg --print-architecture)" != arm64 ] && ! dpkg --print-foreign-architectures | grep -qx arm64; then
            $run dpkg --add-architecture arm64
            foreign=yes updated=""
        fi
        if install $missing; then ok=yes; fi
    fi
    [ -n "$ok" ] && continue
    if [ -n "$foreign" ]; then $run dpkg --remove-architecture arm64 && updated=""; fi
    echo "for $set these packages are missing:$missing" >&2
    if [ "$set" = pictures ]; then echo "tern will not read pictures of these formats" >&2 && continue; fi
    [ -n "$optional" ] || exit 1
    echo "the tests that need them are skipped" >&2
done
