#!/usr/bin/env bash
# The first answer and the speed behind it of `tern MODEL "..."` beside llama-cli on the same files, by turns, cold and warm.
#   LLAMA_CLI=path bench/first-answer.sh [--json FILE] FILE.gguf[,PACKAGE.tern] [PROMPT_WORDS] [ANSWER_TOKENS] [ROUNDS] [THREADS]
# e.g. LLAMA_CLI=../llama.cpp/build/bin/llama-cli bench/first-answer.sh 0.5b.Q4_0.gguf,0.5b.tern 128 64 3
# first: the whole run by the clock less what the program itself says of the answer behind its first token (so teardown counts too);
# speed: of that part, without drafts, which files of random weights repeat into; peak: the resident set at its largest, as the system counts it for the process.
# Cold: the file is out of the page cache (posix_fadvise) before each start; warm: it has just been read. Every round is every row once.
set -euo pipefail
json=
if [ "${1:-}" = --json ]; then json=$2; shift 2; fi
files=${1:?usage: LLAMA_CLI=path bench/first-answer.sh [--json FILE] FILE.gguf[,PACKAGE.tern] [PROMPT_WORDS] [ANSWER_TOKENS] [ROUNDS] [THREADS]}
: "${LLAMA_CLI:?path of a llama-cli binary}"
exec python3 - "${TERN:-build/tern}" "$LLAMA_CLI" "$files" "${2:-128}" "${3:-64}" "${4:-3}" "${5:-2}" "$json" <<'PY'
import json, os, re, statistics, subprocess, sys, time
tern, llama, files, n_prompt, n, rounds, threads, out = sys.argv[1:]
files, n_prompt, n, rounds = files.split(","), int(n_prompt), int(n), int(rounds)
prompt = " ".join(["the"] * n_prompt)  # a token a word in a vocabulary that has " the", up to four in one of bytes
context = str(4 * n_prompt + n + 64)
env = dict(os.environ, TERN_PACK="never")

def cache(path, cold):
    with open(path, "rb") as f:
        if cold:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while f.read(1 << 24): pass

def once(args, path, cold, answer_ms):
    cache(path, cold)
    t0 = time.monotonic()
    with subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as p:
        said = p.stdout.read().decode("utf-8", "replace")
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = status
    wall = (time.monotonic() - t0) * 1e3
    ms, tokens = answer_ms(said) if not status else (0, 0)
    if not ms: sys.exit(f"{args[0]} gave no answer for {path} (status {status}): {said[-300:]}")
    return {"first_ms": wall - ms, "tokens_per_s": tokens / ms * 1e3, "peak_mb": usage.ru_maxrss / 1024}

def said_by_tern(said):
    v = json.loads(said[said.index("{"):said.rindex("}") + 1])
    return v["draft"]["ms_per_token"] * (v["tokens"] - 1), v["tokens"] - 1

def said_by_llama(said):
    m = re.search(r"print: +eval time = +([0-9.]+) ms / +([0-9]+) runs", said)
    return (float(m[1]), int(m[2])) if m else (0, 0)

def of_tern(f): return [tern, f, prompt, "--raw", "-n", str(n), "--temp", "0", "--ignore-eos", "-c", context, "-t", threads, "--json", "--set", "draft=none"]
def of_llama(f): return [llama, "-m", f, "-p", prompt, "-n", str(n), "--temp", "0", "--ignore-eos", "-no-cnv", "--no-display-prompt", "-c", context, "-t", threads]

rows = [("tern " + os.path.basename(f), f, of_tern(f), said_by_tern) for f in files]
rows += [("llama-cli " + os.path.basename(f), f, of_llama(f), said_by_llama) for f in files if f.endswith(".gguf")]
got = {}
for r in range(rounds):
    for cold in (True, False):
        for name, f, args, said_by in rows:
            got.setdefault((name, cold), []).append(once(args, f, cold, said_by))
            print(f"\rround {r + 1} of {rounds}: {name:40}", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
table = [{"row": name, "cold": cold, **{k: statistics.median(x[k] for x in v) for k in v[0]}} for (name, cold), v in got.items()]
print(f"prompt of {n_prompt} words, answer of {n}, {threads} threads, medians of {rounds}\n")
print("| | | first answer, ms | tokens/s behind it | peak, MB |\n|---|---|---|---|---|")
for t in sorted(table, key=lambda t: (not t["cold"], t["first_ms"])):
    print(f"| {t['row']} | {'cold' if t['cold'] else 'warm'} | {t['first_ms']:.0f} | {t['tokens_per_s']:.1f} | {t['peak_mb']:.0f} |")
if out:
    with open(out, "w") as f: json.dump(table, f, indent=1)
PY
