#!/usr/bin/env bash
# Counts and medians that the simulator prints are those of its rows, by a count of its own; the registered table is the one whose hash
# was committed; and the documents quote what comes out.
set -euo pipefail
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$1" sim reproduce --json >"$tmp/rows.json"
"$1" sim reproduce --parameters --json >"$tmp/parameters.json"
"$1" sim reproduce --registration >"$tmp/registration.md"
! "$1" sim reproduce --held-out --parameters 2>/dev/null || { echo "two tables at once"; exit 1; }
! "$1" sim --model llama3-8b --held-out 2>/dev/null || { echo "a fit of one request"; exit 1; }
python3 - "$tmp" <<'PY'
import hashlib, json, re, statistics, sys

tmp = sys.argv[1]
d = json.load(open(tmp + '/rows.json'))
counted, with_derived, of_papers = [], [], []
for paper in d['papers']:
    mine = [abs(c['simulated'] / c['paper'] - 1) for c in paper['claims'] if c['kind'] == 'predicted']
    derived = [abs(c['simulated'] / c['paper'] - 1) for c in paper['claims'] if c['kind'] == 'derived']
    assert abs(statistics.median(mine) - paper['median_error']) < 1e-3, paper['paper']
    counted += mine
    with_derived += mine + derived
    if paper['paper'] != 'hexagon':
        of_papers += mine
assert len(counted) == d['predicted'] and abs(statistics.median(counted) - d['median_error']) < 1e-3
assert abs(statistics.median(with_derived) - d['median_error_with_derived']) < 1e-3

# a decode step and one that verifies, from the file alone
soc = json.load(open('share/soc/sd8gen2.json'))
rows = {c['what']: c for p in d['papers'] if p['paper'] == 'sd-npu' for c in p['claims']}
b = 28 * (1536 * (12 * 128 * 2 + 2 * 2 * 128) + 3 * 1536 * 8960) + 151936 * 1536
step = 28 * soc['decode']['layer_ms'] + b / soc['decode']['gb_per_s'] / 1e6
a = soc['npu_anchor']
xs = [r['k'] * r['n'] for r in soc['npu_products']['table']]
ys = [r['npu_ms'] for r in soc['npu_products']['table']]
mx, my = statistics.mean(xs), statistics.mean(ys)
slope = sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / sum((x - mx) ** 2 for x in xs)
layer = a['ms'] / a['layers'] - 4 * (my - slope * mx)
weights = a['embd'] * (2 * a['heads'] + 2 * a['kv_heads']) * a['d_head'] + 3 * a['embd'] * a['ff']
verify = step + 32 * b * layer / (weights * a['tokens'])
# what switching leaves per token is the same in both rows
left = rows['qwen2.5-1.5b, +G']['simulated'] - step
assert left >= 0 and abs(rows['qwen2.5-1.5b, +G+SD']['simulated'] - left - verify / 3.60) < 0.02

p = json.load(open(tmp + '/parameters.json'))
free = [x for x in p['parameters'] if x['kind'] in ('fitted', 'assumed')]
assert p['free'] == len(free) and all(x['source'] and x['moves'] for x in p['parameters'])
named = {x['name']: x['value'] for x in p['parameters']}
assert abs(named['a layer of a decode step'] / soc['decode']['layer_ms'] - 1) < 1e-3
assert abs(named['handing over a value'] / a['handover_ns'] - 1) < 1e-3

# the registered table is this one without its last two columns
table = [l for l in open(tmp + '/registration.md').read().splitlines() if l.startswith('|')]
doc = open('docs/record/registration.md').read()
registered = ''.join('|'.join(l.split('|')[:-3]) + '|\n' for l in table)
digest = hashlib.sha256(registered.encode()).hexdigest()
assert digest in doc, digest
assert all(l in doc for l in table), 'the table in the record is another one'
errors = [abs(float(re.search(r'([+-][0-9.]+) %', l).group(1))) for l in table[2:] if 'not counted' not in l]
assert 'All: median error of %d predictions %.1f %%' % (len(errors), statistics.median(errors)) in open(tmp + '/registration.md').read()
for name in ('docs/record/simulator.md', 'docs/reference/simulator.md'):
    text = open(name).read()
    assert '%d predictions' % len(of_papers) in text, name
    assert '%d free parameters' % len(free) in text, name
PY
