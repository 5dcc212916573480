#!/usr/bin/env bash
# Tells how far a long command is:  scripts/progress.sh PID LOG
# It ends when the process does. On a terminal one line is written over and over: the last of the log that counts ([12/345] of Ninja) or names a
# step (dh_... of debhelper); elsewhere a line now and then, so that nobody takes it for dead.
set -u
pid=$1 log=$2 last="" told=0 begun=$SECONDS every=${TERN_PROGRESS_EVERY:-30}
step() { grep -aoE '^\[[0-9]+/[0-9]+\]|^ *(dh|dpkg|debian/rules)[a-z_-]*( (build|install|clean|test|binary)[a-z-]*)?' "$log" 2>/dev/null | tail -1 | tr -d ' []'; }
while kill -0 "$pid" 2>/dev/null; do
    now=$(step)
    if [ -t 2 ]; then
        printf '\r\033[K%s, %d s' "${now:-beginning}" $((SECONDS - begun)) >&2
    elif [ "$now" != "$last" ] && [ $((SECONDS - told)) -ge "$every" ]; then
        printf '%s, %d s\n' "$now" $((SECONDS - begun)) >&2
        told=$SECONDS
    fi
    last=$now
    sleep 1
done
[ ! -t 2 ] || printf '\r\033[K' >&2
