#!/usr/bin/env bash
# bench/all.sh writes the page of figures: tables of a processor once, in the place of its older ones, and nothing else of the page changes.
# Programs that say made figures stand for tern and for the peer.
set -euo pipefail
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; cat "$tmp/page.md"; exit 1; }
mkdir "$tmp/peer" "$tmp/work"
cat >"$tmp/tern" <<'END'
#!/bin/sh
[ "$1" != --version ] || { echo "tern 9.9"; exit; }
echo '[{"test": "pp512", "tokens_per_second": {"median": '"$FIGURE"'}}, {"test": "tg64", "tokens_per_second": {"median": 7}}]'
END
cat >"$tmp/peer/llama-bench" <<'END'
#!/bin/sh
[ "$1" != --help ] || exit 0
echo '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 100, "build_number": 1, "build_commit": "abc"}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 5, "build_number": 1, "build_commit": "abc"}]'
END
chmod +x "$tmp/tern" "$tmp/peer/llama-bench"
for kind in b4.tern b5.tern Q4_0.gguf Q4_K_M.gguf Q5_K_M.gguf Q8_0.gguf; do echo model >"$tmp/work/shape.$kind"; done
printf '# Figures\n\nBefore.\n' >"$tmp/page.md"
measure() { ARCHS=shape ROUNDS=1 WORK=$tmp/work TERN=$tmp/tern PAGE=$tmp/page.md FIGURE=$1 bash bench/all.sh "$tmp/peer" >"$tmp/out" || fail "bench/all.sh"; }
measure 111
grep -q "111.0" "$tmp/page.md" && grep -q "100.0" "$tmp/page.md" && grep -q "^Before.$" "$tmp/page.md" || fail "the tables are not there"
printf '\nAfter.\n' >>"$tmp/page.md"
measure 222
! grep -q "111.0" "$tmp/page.md" && grep -q "222.0" "$tmp/page.md" || fail "the older tables stayed"
[ "$(grep -c '^<!-- bench/all.sh: ' "$tmp/page.md")" = 1 ] && [ "$(head -3 "$tmp/page.md" | tail -1)" = Before. ] && [ "$(tail -1 "$tmp/page.md")" = After. ] || fail "the rest of the page changed"
cp "$tmp/page.md" "$tmp/once.md"
measure 222
cmp -s "$tmp/once.md" "$tmp/page.md" || fail "the same figures give another page"
echo "figures: fine"
