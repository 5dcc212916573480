import collections, json, os, re, subprocess, sys, tempfile

tern = sys.argv[1]
os.environ["TERN_PACK"] = "never"
RUN = ["run", "-m", "models/tern-tiny", "-p", "Once upon a time", "--temp", "1", "-n", "24"]


def run(*args, rc=0):
    r = subprocess.run([tern, *RUN, *args], capture_output=True, text=True)
    assert r.returncode == rc, (args, r.returncode, r.stderr)
    return r


def best(*args):
    return json.loads(run("--json", "--best-of", *args).stdout)


def words(text):
    lines = [line for line in text.split("\n") if re.search(r"\w", line)]
    return collections.Counter(re.findall(r"[a-z0-9\x80-\U0010ffff]+", lines[-1].lower())) if lines else collections.Counter()


def common(a, b):
    a, b = words(a), words(b)
    total = sum(a.values()) + sum(b.values())
    return 2 * sum((a & b).values()) / total if total else 1


j = best("8", "--seed", "11")
answers = j["best_of"]["answers"]
for i, a in enumerate(answers):
    alone = json.loads(run("--json", "--seed", str(11 + i)).stdout)
    assert (a["text"], a["tokens"], a["stop"]) == (alone["text"], alone["tokens"], alone["stop"]), i
agrees = [sum(common(a["text"], b["text"]) for b in answers if b is not a) / 7 for a in answers]
for a, want in zip(answers, agrees):
    assert abs(a["agrees"] - want) < 1e-5, (a, want)
chosen = max(range(8), key=lambda i: agrees[i])
assert j["best_of"]["chosen"] == chosen and j["text"] == answers[chosen]["text"] and j["tokens"] == answers[chosen]["tokens"]

# the likeliest: by the log-probabilities that a single run gives
j = best("4", "--seed", "3", "--choose", "likeliest")
means = []
for i, a in enumerate(j["best_of"]["answers"]):
    alone = json.loads(run("--json", "--logprobs", "--seed", str(3 + i)).stdout)
    assert alone["text"] == a["text"]
    total = sum(t["logprob"] for t in alone["token_logprobs"])
    assert abs(a["logprob"] - total) < 1e-3 * abs(total), (a, total)
    means.append(total / a["tokens"])
assert j["best_of"]["chosen"] == max(range(4), key=lambda i: means[i])

# a grammar: the choice of the majority
j = best("8", "--seed", "1", "--grammar", 'root ::= "yes" | "no" | "maybe"')
texts = [a["text"] for a in j["best_of"]["answers"]]
assert len(set(texts)) > 1 and texts.count(j["text"]) == max(texts.count(t) for t in texts), texts

# what a command takes; what it prints is not the answer
def with_word(word):
    return [bool(re.search(rf"\b{word}\b", a["text"])) for a in answers]


word = next(w for w in sorted(set(re.findall("[a-z]{4,}", " ".join(a["text"] for a in answers)))) if 1 < sum(with_word(w)) < 8 and not with_word(w)[chosen])
passed = with_word(word)
j = best("8", "--seed", "11", "--check", f"grep -cw {word} >&2")
assert [a["passed"] for a in j["best_of"]["answers"]] == passed, passed
assert j["best_of"]["chosen"] == max((i for i in range(8) if passed[i]), key=lambda i: agrees[i])
r = run("--best-of", "2", "--check", "false", rc=1)
assert not r.stdout and len(r.stderr.splitlines()) == 1 and "none of the 2 answers passed" in r.stderr, r

# the session goes on with the chosen answer
with tempfile.TemporaryDirectory() as tmp:
    for seed in range(11, 90, 8):
        j = json.loads(run("--json", "--best-of", "8", "--seed", str(seed), "--save-session", f"{tmp}/s").stdout)
        if j["best_of"]["chosen"]:
            break
    assert j["best_of"]["chosen"]
    more = ["-n", "8", "--temp", "0", "--json", "--explain"]
    after = json.loads(subprocess.run([tern, "run", "-m", "models/tern-tiny", "-p", "Once upon a time" + j["text"], "--load-session", f"{tmp}/s", *more], capture_output=True, text=True, check=True).stdout)
    fresh = json.loads(subprocess.run([tern, "run", "-m", "models/tern-tiny", "-p", "Once upon a time" + j["text"], *more], capture_output=True, text=True, check=True).stdout)
    assert after["text"] == fresh["text"]
    reuse = next(e["saved"] for e in after["explain"] if e["mechanism"] == "prompt reuse")
    assert reuse["count"] >= reuse["of"] - 1 > 20, reuse

for args in (["--best-of", "2", "--temp", "0"], ["--choose", "likeliest"], ["--check", "true"], ["--best-of", "2", "--choose", "x"], ["--best-of", "9"], ["--best-of", "2", "--json", "--logprobs"]):
    r = run(*args, rc=2)
    assert not r.stdout and len(r.stderr.splitlines()) <= 2, r
print("the best of several answers: fine")
