#!/usr/bin/env bash
# scripts/setup.sh waits for an apt that is busy, and asks before it installs cross compilers; scripts/progress.sh tells how far a build is. Nothing is installed:
# apt-get and the rest are stand-ins that note what they are asked.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; cat "$tmp/log" "$tmp/err" 2>/dev/null; exit 1; }
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
mkdir "$tmp/bin"
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$tmp/bin/$1" && chmod +x "$tmp/bin/$1"; }
stand_in id 'echo 0'
stand_in dpkg 'case $1 in --print-architecture) echo amd64;; *) echo "dpkg $*" >>"$LOG";; esac'
stand_in dpkg-query '[ -e "$LOG.done" ] && echo "install ok installed amd64"; exit 0'
# the lists are locked twice, then free
stand_in apt-get 'echo "apt-get $*" >>"$LOG"
case "$*" in
update*) n=$(cat "$LOG.busy" 2>/dev/null || echo 2); [ "$n" -gt 0 ] || exit 0; echo $((n - 1)) >"$LOG.busy"; echo "E: Could not get lock /var/lib/apt/lists/lock." >&2; exit 100 ;;
*) touch "$LOG.done" ;;
esac'
export LOG=$tmp/log TERN_SETUP_SLEEP=0
setup() { PATH=$tmp/bin:$PATH bash scripts/setup.sh "$@"; }

setup >"$tmp/out" 2>"$tmp/err" || fail "with a busy apt"
[ "$(grep -c '^apt-get update' "$tmp/log")" = 3 ] && grep -q "another apt is at work" "$tmp/err" || fail "it does not wait for the lists"
grep -q '^apt-get install .*DPkg::Lock::Timeout=600' "$tmp/log" || fail "it does not wait for dpkg"
# what is wrong otherwise is an error at once, with apt's words
rm "$tmp/log" "$tmp/log.done"
stand_in apt-get 'echo "apt-get $*" >>"$LOG"; echo "E: no network" >&2; exit 100'
! setup >"$tmp/out" 2>"$tmp/err" || fail "an apt that fails"
[ "$(wc -l <"$tmp/log")" = 1 ] && grep -q "no network" "$tmp/err" || fail "an error of apt"

# cross compilers: asked on a terminal
stand_in apt-get 'echo "apt-get $*" >>"$LOG"'
stand_in dpkg-query 'case "$*" in *arm64* | *aarch64*) exit 0;; *) case "$*" in *gcc-aarch64* | *" qemu-user"*) exit 0;; esac; echo "install ok installed amd64";; esac'
ask() { # answer
    rm -f "$tmp/log"
    ANSWER=$1 TMP=$tmp PATH=$tmp/bin:$PATH python3 - <<'END'
import os, pty
pid, fd = pty.fork()
if not pid:
    os.execvp("bash", ["bash", "scripts/setup.sh", "--optional", "--ask", "--aarch64"])
out, typed = b"", False
while True:
    try:
        more = os.read(fd, 4096)
    except OSError:
        break
    if not more:
        break
    out += more
    if b"[y/N]" in out and not typed:
        os.write(fd, os.environ["ANSWER"].encode() + b"\n")
        typed = True
os.waitpid(pid, 0)
open(os.environ["TMP"] + "/err", "wb").write(out)
assert typed, out
END
}
ask n || fail "it does not ask"
[ ! -e "$tmp/log" ] || fail "no is no"
grep -q "gcc-aarch64-linux-gnu" "$tmp/err" && grep -q "another architecture" "$tmp/err" || fail "what it asks"
ask y
grep -q "^apt-get install .*gcc-aarch64-linux-gnu" "$tmp/log" && grep -q "add-architecture arm64" "$tmp/log" || fail "yes is yes"
rm "$tmp/log"
setup --optional --ask --aarch64 </dev/null >"$tmp/out" 2>"$tmp/err"
grep -q "^apt-get install .*gcc-aarch64-linux-gnu" "$tmp/log" || fail "without a terminal it goes on as ever"

# progress: the last step of a log, until the process ends
printf 'dh build\n[1/40] Building a\n[12/40] Building b\nnoise\n' >"$tmp/build.log"
sleep 2 &
TERN_PROGRESS_EVERY=0 bash scripts/progress.sh $! "$tmp/build.log" 2>"$tmp/err"
grep -q "^12/40, " "$tmp/err" || fail "no progress"
grep -q "progress.sh" scripts/deb.sh || fail "make deb shows none"
grep -q -- "--ask" Makefile || fail "make dist does not ask"
echo "setup: fine"
