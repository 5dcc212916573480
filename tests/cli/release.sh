#!/usr/bin/env bash
# install.sh of a release, from a page on this machine, and all that goes wrong with one. A script stands for the program.
set -u
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "the release is for the processor that runs the test"
for tool in python3 curl sha256sum; do command -v $tool >/dev/null || skip "no $tool"; done
case $(uname -m) in x86_64 | aarch64) ;; *) skip "there is no release for $(uname -m)" ;; esac
tmp=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; cat "$tmp/out" 2>/dev/null; exit 1; }
arch=$(uname -m) page=$tmp/page
export HOME="$tmp/a home"
mkdir -p "$page" "$HOME"

release() { # version, a file of this version alone, what the program does
    local name=tern-$1-$arch-linux
    local root=$tmp/work/$name
    rm -rf "$tmp/work" "$page"/*
    mkdir -p "$root/bin" "$root/share/man/man1" "$root/share/tern/soc" "$root/licences"
    printf '#!/bin/sh\n%s\n' "$3" >"$root/bin/tern"
    chmod +x "$root/bin/tern"
    echo page >"$root/share/man/man1/tern.1"
    echo x >"$root/share/tern/soc/$2"
    echo licence >"$root/licences/tern"
    echo readme >"$root/README"
    tar -C "$tmp/work" -czf "$page/$name.tar.gz" "$name"
    python3 scripts/release.py share/dist/install.sh "$page/install.sh" "$1" "${4:-}" "$page/$name.tar.gz" || fail "release.py"
}
tree() { (cd "$HOME" && find . ! -type d | LC_ALL=C sort); }
refused() { # description, words, arguments
    local what=$1 words=$2 before
    shift 2
    before=$(tree)
    if sh "$page/install.sh" "$@" >"$tmp/out" 2>&1; then fail "$what: not refused"; fi
    grep -q -- "$words" "$tmp/out" || fail "$what: says something else"
    [ "$(tree)" = "$before" ] || fail "$what: something was installed"
}
done_() { # description, arguments
    local what=$1
    shift
    sh "$page/install.sh" "$@" >"$tmp/out" 2>&1 || fail "$what"
}

python3 - "$page" >"$tmp/port" 2>/dev/null <<'PY' &
import functools, http.server, sys
h = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1]))
print(h.server_address[1], flush=True)
h.serve_forever()
PY
server=$!
while kill -0 $server && [ ! -s "$tmp/port" ]; do sleep 0.1; done # however busy the machine is
at=http://127.0.0.1:$(cat "$tmp/port")

release 0.1.0 old.json 'echo "tern 0.1.0"' "$at"
refused "nothing to remove" "nothing was installed there" --uninstall
refused "an unknown word" "is unknown" --upgrade
refused "a page that is not there" "cannot be fetched" --from "$at/elsewhere"
echo mine >"$HOME/note"
done_ "the page's own address"
[ "$("$HOME/.local/bin/tern" --version)" = "tern 0.1.0" ] && [ -f "$HOME/.local/share/doc/tern/licences/tern" ] || fail "what is installed does not run"
grep -q "not in your PATH" "$tmp/out" || fail "PATH is not told"
done_ "once more"
cp "$page/install.sh" "$tmp/first.sh"

# Another version takes the place of the first, and what that had alone goes.
release 0.1.1 new.json 'echo "tern 0.1.1"'
refused "no address" "where the release lies is not known"
done_ "another version" --from "$at/"
[ "$("$HOME/.local/bin/tern" --version)" = "tern 0.1.1" ] && [ -f "$HOME/.local/share/tern/soc/new.json" ] && [ ! -e "$HOME/.local/share/tern/soc/old.json" ] || fail "of the first version something stays"
done_ "to another folder, from a folder" --from "$page" --to "$HOME/opt/x"
[ -x "$HOME/opt/x/bin/tern" ] || fail "--to"
done_ "away from there" --uninstall --to "$HOME/opt/x"
[ ! -e "$HOME/opt/x/bin" ] && [ -x "$HOME/.local/bin/tern" ] || fail "--uninstall --to removes another one"

# A file that is not what was published: other bytes, half of it, one byte more; and half of the script.
cp "$page"/*.tar.gz "$tmp/good"
printf 'x' >>"$page/tern-0.1.1-$arch-linux.tar.gz"
refused "a byte more" "is not what was published" --from "$at"
head -c 200 "$tmp/good" >"$page/tern-0.1.1-$arch-linux.tar.gz"
refused "half a file" "is not what was published" --from "$at"
rm "$page/tern-0.1.1-$arch-linux.tar.gz"
refused "a file that is gone" "cannot be fetched" --from "$at"
cp "$tmp/good" "$page/tern-0.1.1-$arch-linux.tar.gz"
lines=$(wc -l <"$page/install.sh")
for n in $(seq 10 10 $((lines - 1))); do
    before=$(tree)
    head -n "$n" "$page/install.sh" | sh -s -- --from "$at" >"$tmp/out" 2>&1
    [ "$(tree)" = "$before" ] || fail "$n lines of the script change something"
done

# Machines that it is not for: another processor, another system, one where the program does not run.
mkdir "$tmp/bin"
for what in "riscv64 Linux no.tern.for.riscv64" "$arch Darwin tern.runs.on.Linux"; do
    # shellcheck disable=SC2086
    set -- $what
    printf '#!/bin/sh\ncase $1 in -m) echo %s ;; -s) echo %s ;; esac\n' "$1" "$2" >"$tmp/bin/uname"
    chmod +x "$tmp/bin/uname"
    PATH=$tmp/bin:$PATH refused "$what" "$3" --from "$at"
done
rm "$tmp/bin/uname"
other=aarch64
[ "$arch" = x86_64 ] || other=x86_64
printf '#!/bin/sh\ncase $1 in -m) echo %s ;; *) echo Linux ;; esac\n' $other >"$tmp/bin/uname"
chmod +x "$tmp/bin/uname"
PATH=$tmp/bin:$PATH refused "a release without this processor" "this release has no tern-0.1.1-$other-linux" --from "$at"
rm "$tmp/bin/uname"
release 0.1.2 new.json 'exit 1'
refused "a program that does not run" "does not run on this machine" --from "$at"

# Away: what was there before stays. One that somebody else put there is not replaced, and not removed.
done_ "away" --uninstall
[ "$(tree)" = ./note ] && [ ! -e "$HOME/.local/share/tern" ] || { tree; fail "--uninstall leaves something, or takes more"; }
mkdir -p "$HOME/.local/bin" && echo theirs >"$HOME/.local/bin/tern"
release 0.1.3 new.json 'echo "tern 0.1.3"'
refused "somebody's own" "was not installed by this script" --from "$at"
done_ "--force" --from "$at" --force
[ "$("$HOME/.local/bin/tern" --version)" = "tern 0.1.3" ] || fail "--force"
echo "release: fine"
