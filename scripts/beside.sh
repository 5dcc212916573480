#!/usr/bin/env bash
# Runs one command, and another one beside it:  scripts/beside.sh LOG COMMAND OTHER
# What COMMAND says is seen at once, what OTHER says when both have ended; LOG keeps it. Both run to their end, and it fails where one of them does.
set -u
set -m # a group of its own, which ends with this
bash -c "$3" >"$1" 2>&1 </dev/null &
other=$!
set +m
trap 'kill -- -$other 2>/dev/null' EXIT
bash -c "$2"
rc=$?
wait $other || rc=$?
trap - EXIT
cat "$1"
exit $rc
