#!/usr/bin/env bash
# scripts/figures.py finds every figure in the documents, and says so where a document quotes what its command does not give.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 scripts/figures.py --check
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/scripts" "$tmp/tools"
cp scripts/figures.py "$tmp/scripts/"
printf '#!/bin/sh\necho "{\\"loss\\": $1}"\ntruncate -s 1234567 "$OUT/x"\n' >"$tmp/tern"
chmod +x "$tmp/tern"
cat >"$tmp/tools/figures.txt" <<'END'
[first]
file doc.md
says | loss | {loss} % of {mb} MB |
runs $TERN 0.129
loss = j["loss"]
mb = size("x") / 1e6
within loss .001

[second]
file doc.md
says and {again} bytes
after first
runs true
again = size("x")
END
figures() { (cd "$tmp" && python3 scripts/figures.py --tern tern "$@"); }
doc() { printf '| loss |\n%s %% of %s MB | and %s bytes\n' "$@" >"$tmp/doc.md"; }
refused() { # what it must say, and its arguments
    ! out=$(figures "${@:2}" 2>&1) || { echo "accepted, for: $1"; exit 1; }
    grep -q "$1" <<<"$out" || { echo "said: $out"; exit 1; }
}
doc .13 1.2 1,234,567 # half a unit of the last digit
figures >"$tmp/said"; grep -q "all hold" "$tmp/said"
figures second >"$tmp/said"; grep -q "1,234,567 .* holds" "$tmp/said" # with the one that it needs
doc .1 1.23 1,234,567
figures >"$tmp/said"; grep -q "all hold" "$tmp/said"
doc .127 1.23 1,234,567
refused "loss .*DOES NOT HOLD, doc.md"
doc .131 1.23 1,234,567
refused "1 do not hold"
doc .129 −1.23 1,234,567 # the sign counts
refused "mb .*DOES NOT HOLD"
doc .129 1.23 1,234,566
refused "again .*DOES NOT HOLD"
doc .129 1.23 much
refused "found 0 times in doc.md"
doc .129 1.23 1,234,567
cat "$tmp/doc.md" >>"$tmp/doc.md.2" && cat "$tmp/doc.md.2" >>"$tmp/doc.md"
refused "found 2 times"
doc .129 1.23 1,234,567
refused "no figures are called third" third
sed -i 's/^runs true/runs false/' "$tmp/tools/figures.txt"
refused "status 1 of false"
sed -i 's/^runs false/runs true/; s/^again = .*/again = j["none"]/' "$tmp/tools/figures.txt"
refused "again = j"
sed -i '/^again/d' "$tmp/tools/figures.txt"
refused "are quoted and" --check
