#!/usr/bin/env bash
# Runs one command, and another one beside it:  scripts/beside.sh LOG COMMAND OTHER
# Prints COMMAND's output as it comes and OTHER's when both have ended; LOG keeps it. Both run to their end; it fails if either did.
set -u
setsid bash -c "$3" >"$1" 2>&1 </dev/null &
other=$! # a group of its own, which ends with this
trap 'kill -- -$other 2>/dev/null' EXIT
bash -c "$2"
rc=$?
wait $other || rc=$?
trap - EXIT
cat "$1"
exit $rc
