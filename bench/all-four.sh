#!/usr/bin/env bash
# One request through all four systems, from a cold start: the ladder from none of them to all, and the whole request again without each.
#   bench/all-four.sh MODEL.tern [PROMPT_FILE] [ANSWER_TOKENS] [ROUNDS]
# A 1.5B shape that copies from 4,000 tokens: tools/inflate.py models/tern-tiny DIR --shape qwen2.5-1.5b --theta 30000 --context 8192, packed
# with `tern pack DIR -o MODEL.tern -b 5 --allocation uniform` (most of its layers do nothing and would get 2 bits otherwise).
# Rounds go by turns over the rows, the file out of the page cache before each start; figures are medians of milliseconds from process start.
# PROMPT_FILE is a document with a question behind it whose answer copies (default: tern-tiny's calendar and mails, eleven times: 4,000 tokens, then
# its question). All rows answer greedily; a row whose text is not that of the row before says so: sparse attention alone may change it.
set -euo pipefail
export TERN_PACK=never # nothing is measured behind a run
model=$1 prompt=${2:-} n=${3:-64} rounds=${4:-3} tern=${TERN:-build/tern}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "$prompt" ]; then
    prompt=$work/prompt.txt
    python3 - models/tern-tiny/demo.txt "$prompt" <<'PY'
import sys
text = open(sys.argv[1]).read().rstrip("\n")
document, question = text.rsplit("\n\n", 1)
open(sys.argv[2], "w").write("\n\n".join([document] * 11 + [question]) + "\n")
PY
fi
python3 - "$tern" "$model" "$prompt" "$n" "$rounds" "$work" <<'PY'
import json, os, statistics, subprocess, sys

tern, model, prompt, n, rounds = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
none = {"load": "sequential", "policy": "in-order", "attention": "full", "draft": "none"}
parts = [("streaming (EdgeFlow)", "load", "stream"), ("out of order (llm.npu)", "policy", "ooe"),
         ("sparse attention (shadowAttn)", "attention", "auto"), ("drafts (sd.npu)", "draft", "auto")]
rows = [("none of the four", dict(none))]
for name, key, value in parts:
    rows.append(("+ " + name, dict(rows[-1][1], **{key: value})))
for name, key, _ in parts:
    rows.append(("all without " + name, dict(rows[len(parts)][1], **{key: none[key]})))

# The profile lies beside the package and is of one way to run it: every row has a name, and so a profile, of its own.
for i in range(len(rows)):
    os.symlink(os.path.abspath(model), f"{sys.argv[6]}/{i}.tern")

def once(i):
    model, settings = f"{sys.argv[6]}/{i}.tern", rows[i][1]
    with open(model, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [tern, "run", "-m", model, "-f", prompt, "--chat", "-n", n, "--temp", "0", "-c", "8192", "--json", "--explain"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out)

for i in range(len(rows)):
    once(i)  # what the profile learns, it learns before
runs = [[] for _ in rows]
for _ in range(rounds):
    for i in range(len(rows)):
        runs[i].append(once(i))
last = None
print("| | first token, ms | answer, ms a token | all, ms | against none | peak MB |\n|---|---|---|---|---|---|")
for (name, _), got in zip(rows, runs):
    first = statistics.median(g["ttft_ms"] for g in got)
    token = statistics.median(g["draft"]["ms_per_token"] for g in got)
    total = statistics.median(g["ttft_ms"] + g["draft"]["ms_per_token"] * (g["tokens"] - 1) for g in got)
    base = base if name != "none of the four" else total
    text = got[0]["text"]
    other = "" if last in (None, text) else " (another text)"
    last = text
    print(f"| {name}{other} | {first:.0f} | {token:.1f} | {total:.0f} | {base / total:.2f} | {max(g['peak_rss_bytes'] for g in got) * 1e-6:.0f} |")
    if name.startswith("+ drafts"):
        explained = got[-1]["explain"]
print(f"\n{runs[0][0]['prompt_tokens']} tokens of prompt, {runs[0][0]['tokens']} of answer, {rounds} rounds by turns; all of them:")
for x in explained:
    print(f"- {x['mechanism']}: {'on' if x['on'] else 'off'}; {x['text']}" + ("; {count} of {of} {unit}".format(**x["saved"]) if "saved" in x else ""))
PY
