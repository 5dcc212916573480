#!/bin/sh
# Installs tern @VERSION@ for this user:  sh install.sh [--to FOLDER] [--from ADDRESS] [--force] [--uninstall]
#   --to FOLDER      where bin/, share/ go (default: ~/.local)
#   --from ADDRESS   the folder of the release, http(s) or a path (default: the one it was published in)
#   --force          replaces a tern in that place which this script did not install
#   --uninstall      removes what it installed, and nothing else
# It fetches one file, checks its SHA-256 against the sum below, tries the program, and only then installs. It asks for no root and changes no
# file outside of FOLDER. Models, packages and conversations of tern lie elsewhere and stay.
set -eu

version='@VERSION@'
from='@FROM@'
sums='@SUMS@'

say() { printf '%s\n' "$*"; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

fetch() { # address, file
    case $1 in
    /* | ./* | ../*) cp -- "$1" "$2" 2>/dev/null || return 1 ;;
    *)
        if command -v curl >/dev/null 2>&1; then curl -fsSL --retry 2 -o "$2" -- "$1"
        elif command -v wget >/dev/null 2>&1; then wget -qO "$2" -- "$1"
        else die "curl or wget is needed to fetch $1"; fi
        ;;
    esac
}

sum_of() { # file
    if command -v sha256sum >/dev/null 2>&1; then sha256sum <"$1" | cut -d' ' -f1
    elif command -v shasum >/dev/null 2>&1; then shasum -a 256 <"$1" | cut -d' ' -f1
    elif command -v openssl >/dev/null 2>&1; then openssl dgst -sha256 -r <"$1" | cut -d' ' -f1
    else die "sha256sum, shasum or openssl is needed to check what was fetched"; fi
}

# Removes the files that the list names, and the folders that are empty then.
remove_listed() { # list
    while IFS= read -r file; do
        case $file in '' | /* | *..*) continue ;; esac
        rm -f -- "$to/$file"
        folder=$(dirname -- "$file")
        while [ "$folder" != . ] && rmdir -- "$to/$folder" 2>/dev/null; do folder=$(dirname -- "$folder"); done
    done <"$1"
}

uninstall() {
    [ -f "$list" ] || die "$to: nothing was installed there by this script"
    cp -- "$list" "$tmp/list"
    printf 'share/tern/installed\n' >>"$tmp/list"
    remove_listed "$tmp/list"
    say "tern is removed from $to"
}

install() {
    system=$(uname -s) machine=$(uname -m)
    [ "$system" = Linux ] || die "tern runs on Linux, and this is $system"
    case $machine in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) die "there is no tern for $machine: x86_64 and aarch64 alone" ;;
    esac
    name=tern-$version-$machine-linux
    want=$(say "$sums" | sed -n "s/^\([0-9a-f]\{64\}\)  $name\.tar\.gz\$/\1/p")
    [ -n "$want" ] || die "this release has no $name.tar.gz"
    [ -n "$from" ] || die "--from ADDRESS: where the release lies is not known"
    if [ -e "$to/bin/tern" ] && [ ! -f "$list" ] && [ -z "$force" ]; then
        die "$to/bin/tern is there and was not installed by this script (--force replaces it)"
    fi
    say "fetching $from/$name.tar.gz"
    fetch "$from/$name.tar.gz" "$tmp/tern.tar.gz" || die "$from/$name.tar.gz cannot be fetched"
    got=$(sum_of "$tmp/tern.tar.gz")
    [ "$got" = "$want" ] || die "$name.tar.gz is not what was published: its SHA-256 is $got and should be $want. Nothing was installed"
    mkdir "$tmp/new"
    tar -C "$tmp/new" --strip-components=1 -xzf "$tmp/tern.tar.gz" || die "$name.tar.gz cannot be unpacked"
    [ "$("$tmp/new/bin/tern" --version 2>/dev/null)" = "tern $version" ] || die "the program does not run on this machine. Nothing was installed"
    # The documents of the release go where they are nobody else's.
    mkdir -p "$tmp/new/share/doc/tern"
    for file in README licences measure.sh; do
        [ ! -e "$tmp/new/$file" ] || mv -- "$tmp/new/$file" "$tmp/new/share/doc/tern/"
    done
    (cd "$tmp/new" && find . -type f | sed 's|^\./||' | LC_ALL=C sort) >"$tmp/files"
    mkdir -p "$to" 2>/dev/null && [ -w "$to" ] || die "$to cannot be written to"
    [ ! -f "$list" ] || { LC_ALL=C comm -23 "$list" "$tmp/files" >"$tmp/gone" && remove_listed "$tmp/gone"; }
    while IFS= read -r file; do
        mkdir -p -- "$to/$(dirname -- "$file")"
        cp -- "$tmp/new/$file" "$to/$file.new.$$" && mv -f -- "$to/$file.new.$$" "$to/$file" || { rm -f -- "$to/$file.new.$$"; die "$to/$file cannot be written"; }
    done <"$tmp/files"
    mkdir -p "$to/share/tern"
    cp -- "$tmp/files" "$list"
    say "tern $version is in $to/bin. sh install.sh --uninstall${to_given:+ --to $to} removes it."
    case :$PATH: in *:"$to/bin":*) ;; *) say "$to/bin is not in your PATH yet: export PATH=\"$to/bin:\$PATH\"" ;; esac
}

main() {
    to='' to_given='' force='' what=install
    while [ $# -gt 0 ]; do
        case $1 in
        --to | --from)
            [ $# -gt 1 ] || die "$1 wants a value"
            if [ "$1" = --to ]; then to=$2 to_given=yes; else from=${2%/}; fi
            shift
            ;;
        --force) force=yes ;;
        --uninstall) what=uninstall ;;
        *) die "$1 is unknown: --to FOLDER, --from ADDRESS, --force, --uninstall" ;;
        esac
        shift
    done
    [ -n "$to" ] || { [ -n "${HOME:-}" ] && to=$HOME/.local; } || die "HOME is not set: --to FOLDER"
    case $to in /*) ;; *) to=$PWD/$to ;; esac
    list=$to/share/tern/installed
    umask 022
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 1' INT TERM
    $what
}

main "$@" # the last line: half a script, as of a download that stopped, does nothing
