#!/usr/bin/env bash
# Documents in, answers out: tern rag and tern ask on a small folder of the shipped model's kind of documents.
set -euo pipefail
tern=$1
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data HOME=$tmp HF_HOME=$tmp/hf OLLAMA_MODELS=$tmp/ollama TERN_MODELS= # no model is at hand
unset HF_HUB_CACHE XDG_CACHE_HOME
fail() { echo "FAIL: $*" >&2; exit 1; }
json() { python3 -c "import json,sys; print(eval('json.load(sys.stdin)$1'))"; }

mkdir "$tmp/docs"
python3 - "$tmp" <<'PY'
import json, sys
questions = []
for n, line in enumerate(open("models/tern-tiny/eval/extraction_512.jsonl")):
    if n == 12:
        break
    item = json.loads(line)
    body, question = item["prompt"].split("user\n", 1)[1].split("<|im_end|>")[0].rsplit("Question: ", 1)
    open(f"{sys.argv[1]}/docs/{n:02}.txt", "w").write(body)
    questions.append((question.strip(), item["answer"]))
json.dump(questions, open(f"{sys.argv[1]}/questions.json", "w"))
PY

# --- the index
"$tern" rag ls >"$tmp/out" 2>"$tmp/err" && [ ! -s "$tmp/out" ] && [ ! -e "$tmp/data" ] || fail "ls without a store makes one"
"$tern" ask -m models/tern-tiny "Who?" >/dev/null 2>"$tmp/err" && fail "ask without documents"
grep -q "tern rag add" "$tmp/err" || fail "no hint what to do"
printf '\0\1\2' >"$tmp/docs/binary.dat"
printf '<html><body><h1>Opening hours</h1><p>The library of Zanfeld opens at <b>nine&nbsp;o&apos;clock</b>.</p></body></html>' >"$tmp/docs/page.html"
"$tern" rag add "$tmp/docs" --json >"$tmp/out" 2>"$tmp/err"
[ "$(json '["added"]' <"$tmp/out")" = 13 ] || fail "13 documents: $(cat "$tmp/out")"
grep -q "binary.dat: skipped: it is binary" "$tmp/err" || fail "no notice of the binary file"
[ "$("$tern" rag add "$tmp/docs" --json 2>/dev/null | json '["unchanged"]')" = 13 ] || fail "unchanged files are indexed again"
[ "$("$tern" rag ls --json | json '.__len__()')" = 13 ] || fail "ls"
set +e
"$tern" rag add /no/such >/dev/null 2>&1; [ $? = 1 ] || fail "a missing path: exit status"
"$tern" rag add "$tmp/docs/binary.dat" "$tmp/docs/page.html" >"$tmp/out" 2>/dev/null; [ $? = 1 ] || fail "a named file that is binary: exit status"
grep -q "1 unchanged.* 1 skipped" "$tmp/out" || fail "what is said beside a binary file: $(cat "$tmp/out")"
"$tern" rag frob >/dev/null 2>&1; [ $? = 2 ] || fail "unknown command: exit status"
"$tern" rag rm >/dev/null 2>&1; [ $? = 2 ] || fail "rm of nothing: exit status"
"$tern" rag rm "$tmp/docs/none" >/dev/null 2>&1; [ $? = 1 ] || fail "rm of what is not there: exit status"
"$tern" ask -m models/tern-tiny "  " >/dev/null 2>&1; [ $? = 2 ] || fail "an empty question: exit status"
set -e

# --- answers
python3 - "$tern" "$tmp" <<'PY'
import json, subprocess, sys
tern, tmp = sys.argv[1:]
right = 0
questions = json.load(open(f"{tmp}/questions.json"))
for n, (question, answer) in enumerate(questions):
    out = subprocess.run([tern, "ask", "-m", "models/tern-tiny", question, "--json"], capture_output=True, text=True, check=True)
    j = json.loads(out.stdout)
    for field in ("text", "sources", "tokens", "prompt_tokens", "search_ms", "ttft_ms", "decode_tokens_per_second", "draft"):
        assert field in j, field
    if j["text"].strip() == answer:
        right += 1
        best = j["sources"][0]
        assert best["path"] == f"{tmp}/docs/{n:02}.txt" and best["support"] > 0.5, (question, best)
        assert all(w in best["text"] for w in answer.rstrip(".").split()[-1:]), (question, best)
print(f"{right} of {len(questions)} answers are right")
assert right >= 9
PY
"$tern" ask -m models/tern-tiny "$(python3 -c "import json; print(json.load(open('$tmp/questions.json'))[0][0])")" --stats=all >"$tmp/out" 2>"$tmp/err"
grep -q "^Sources:" "$tmp/out" && grep -q "docs/00.txt, passage" "$tmp/out" || fail "no sources: $(cat "$tmp/out")"
grep -q "passages of" "$tmp/err" || fail "no figures"
# a source says its line, and its passage can be read
grep -qE 'docs/00.txt, passage [0-9]+, line [0-9]+' "$tmp/out" || fail "a source without its line: $(cat "$tmp/out")"
number=$(sed -n 's|.*docs/00.txt, passage \([0-9]*\),.*|\1|p' "$tmp/out")
"$tern" rag show "$tmp/docs/00.txt" "$number" >"$tmp/out" 2>"$tmp/err" || fail "rag show"
head -1 "$tmp/out" | grep -q "docs/00.txt, line [0-9]*:$" && [ "$(wc -l <"$tmp/out")" -ge 2 ] || fail "rag show prints no passage: $(cat "$tmp/out")"
[ -n "$("$tern" rag show "$tmp/docs/00.txt" "$number" --json | json '["text"]')" ] || fail "rag show --json"
"$tern" rag show "$tmp/docs/00.txt" 999 >"$tmp/out" 2>"$tmp/err" && fail "rag show of no passage"
grep -q "none of number 999" "$tmp/err" || fail "rag show does not say how many there are"
"$tern" rag show "$tmp/docs/00.txt" >"$tmp/out" 2>"$tmp/err" && rc=0 || rc=$?
[ $rc = 2 ] || fail "rag show without a number"
"$tern" ask -m models/tern-tiny 'when "does* (the library NEAR: of Zanfeld open' -k 1 -n 24 >"$tmp/out" 2>"$tmp/err" || fail "a hostile question"
grep -q "page.html" "$tmp/out" || fail "the page is not found: $(cat "$tmp/out")"

# --- documents that were answered from, and earlier answers, are drafted from, and --no-keep keeps nothing
learned=$("$tern" ask -m models/tern-tiny "Where is the library?" -n 8 --json | json '["draft"]["learned_tokens"]')
[ "$(python3 -c "import sqlite3; print(sqlite3.connect('$tmp/data/tern/store.db').execute('SELECT count(*) FROM sequence WHERE kind = 1').fetchone()[0])")" -ge 12 ] || fail "documents are not kept for drafts"
[ "$learned" -gt 1000 ] || fail "conversations are not drafted from ($learned tokens)"
[ "$("$tern" ask -m models/tern-tiny "Where is the library?" -n 8 --json --no-keep | json '["draft"]["learned_tokens"]')" = 0 ] || fail "--no-keep drafts from the store"
echo "Hello" | "$tern" chat -m models/tern-tiny -n 4 --store "$tmp/chat.db" >/dev/null 2>&1
[ "$("$tern" run -m models/tern-tiny -p Hello -n 4 --store "$tmp/chat.db" --json | json '["draft"]["learned_tokens"]')" -gt 4 ] || fail "run does not see the chat"
echo "not a store, whatever it may be: it is only a line of text, long enough that nobody takes it for an empty file......" >"$tmp/bad.db"
"$tern" run -m models/tern-tiny -p Hello -n 4 --store "$tmp/bad.db" >/dev/null 2>"$tmp/err" && fail "a file that is no store"
grep -q "bad.db" "$tmp/err" || fail "the message does not name the file"

# --- by meaning too: vectors of a model, made once, kept up to date, used by ask, erased
count() { python3 -c "import sqlite3; print(sqlite3.connect('$tmp/data/tern/store.db').execute('SELECT count(*) FROM $1').fetchone()[0])"; }
"$tern" rag add "$tmp/docs" --embed /no/such/model >/dev/null 2>"$tmp/err" && fail "an embedding model that is not there"
"$tern" rag add "$tmp/docs" --embed models/tern-tiny --pooling first >/dev/null 2>&1 && fail "--pooling first"
"$tern" rag add "$tmp/docs" --embed models/tern-tiny --json >"$tmp/out" 2>"$tmp/err" || fail "--embed: $(cat "$tmp/err")"
[ "$(json '["vectors_written"]' <"$tmp/out")" = "$(count passage)" ] && [ "$(count vector)" = "$(count passage)" ] || fail "vectors: $(cat "$tmp/out")"
echo "The bakery of Zanfeld sells rye bread on Mondays." >"$tmp/docs/bread.txt"
[ "$("$tern" rag add "$tmp/docs" --json 2>/dev/null | json '["vectors_written"]')" = 1 ] || fail "a later addition has no vector"
"$tern" ask -m models/tern-tiny "On which day does the bakery of Zanfeld sell rye bread?" --json -n 24 >"$tmp/out" 2>"$tmp/err" || fail "ask with vectors: $(cat "$tmp/err")"
[ "$(json '["sources"][0]["similarity"]' <"$tmp/out")" != 0.0 ] && [ "$(json '["fits"]' <"$tmp/out")" = True ] || fail "vectors are not used: $(cat "$tmp/out")"
grep -q "bread.txt" "$tmp/out" || fail "the right passage is not among them"
"$tern" ask -m models/tern-tiny "Where is rye bread?" --words --json -n 8 2>/dev/null | grep -q '"similarity": 0.0' || fail "--words"
python3 -c "import sqlite3; c = sqlite3.connect('$tmp/data/tern/store.db'); c.execute(\"UPDATE embedder SET model = '/gone'\"); c.commit()"
"$tern" ask -m models/tern-tiny "Where?" >/dev/null 2>"$tmp/err" && fail "a model that is gone"
grep -q -- "--words" "$tmp/err" && grep -q -- "--embed" "$tmp/err" || fail "it does not say what to do: $(cat "$tmp/err")"
"$tern" rag add "$tmp/docs" --embed none >/dev/null 2>&1 && [ "$(count vector)" = 0 ] && [ "$("$tern" rag add "$tmp/docs" --json 2>/dev/null | json '["vectors"]')" = 0 ] || fail "--embed none"

# --- a model that embeds and is at hand is used by itself, by its file's own pooling; a reranker and what writes are not; and not after "none"
mkdir "$tmp/models"
for m in bert bert-rank; do cp tests/oracle/embedding/$m/model.gguf "$tmp/models/$m.gguf"; done
cp tests/oracle/embedding/gemma-embedding/model.gguf "$tmp/models/larger.gguf"
TERN_MODELS=$tmp/models "$tern" rag add "$tmp/docs" >/dev/null 2>&1 && [ "$(count vector)" = 0 ] || fail "vectors that are not wanted"
python3 -c "import sqlite3; c = sqlite3.connect('$tmp/data/tern/store.db'); c.execute('DELETE FROM embedder'); c.commit()"
TERN_MODELS=$tmp/models "$tern" rag add "$tmp/docs" >/dev/null 2>"$tmp/err" && grep -q "also found by meaning, with .*/bert.gguf" "$tmp/err" || fail "no model is found: $(cat "$tmp/err")"
[ "$(count vector)" = "$(count passage)" ] && [ "$(count 'embedder WHERE mean = 0')" = 1 ] || fail "its vectors"
TERN_MODELS=$tmp/models "$tern" rag add "$tmp/docs" 2>&1 >/dev/null | grep -q meaning && fail "it is said twice"
"$tern" ask -m models/tern-tiny "On which day does the bakery of Zanfeld sell rye bread?" --json -n 8 2>/dev/null | grep -q bread.txt || fail "ask by words and meaning"
"$tern" rag add "$tmp/docs" --embed none >/dev/null 2>&1
rm "$tmp/docs/bread.txt"
"$tern" rag add "$tmp/docs" >/dev/null 2>&1

# --- a reranker: what it likes best of what was found, found by itself or named, and told; any other model is one clear error
ranks=tests/oracle/embedding/bert-rank/model.gguf
python3 - "$tern" "$tmp" "$ranks" <<'PY'
import json, os, random, subprocess, sys
tern, tmp, ranks = sys.argv[1:]
os.environ["XDG_DATA_HOME"] = tmp + "/ferry"
random.seed(3)
words = "fox dog quick brown lazy jumps over river stone winter light paper seven garden".split()
os.mkdir(tmp + "/ferries")
for i in range(20):
    open(f"{tmp}/ferries/{i:02}.txt", "w").write("The ferry " + " ".join(random.choices(words, k=random.randint(4, 14))) + ".\n")
question = "Where is the ferry?"

def run(*args, **env):
    return subprocess.run([tern, *args], capture_output=True, text=True, env={**os.environ, **env})

def ask(*args, **env):
    r = run("ask", "-m", "models/tern-tiny", question, "-n", "8", "--json", "--no-keep", *args, **env)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)

assert run("rag", "add", tmp + "/ferries").returncode == 0
scores = {}
for i in range(20):
    path = f"{tmp}/ferries/{i:02}.txt"
    scores[path] = float(run("embed", "-m", ranks, "--scheme", "int8", "--question", question, open(path).read()).stdout)
best = sorted(scores, key=scores.get, reverse=True)
plain = ask()
assert "rerank" not in plain and all("relevance_score" not in s for s in plain["sources"]), plain
assert {s["path"] for s in plain["sources"]} != set(best[:4]), "the made reranker has the order of words"
# named, by its path; the same by itself, where models are looked for; the smallest one of two
models = tmp + "/rerankers"
os.mkdir(models)
for name, source in (("ranks.gguf", ranks), ("larger.gguf", "tests/oracle/embedding/xlm-roberta-rank/model.gguf"), ("embeds.gguf", "tests/oracle/embedding/nomic-bert/model.gguf")):
    os.symlink(os.path.abspath(source), f"{models}/{name}")
os.symlink(os.path.abspath("models/tern-tiny"), models + "/writes")
for j in (ask("--rerank", ranks), ask(TERN_MODELS=models)):
    assert j["rerank"]["passages"] == 20 and j["rerank"]["ms"] >= 0 and "rank" in j["rerank"]["model"], j["rerank"]
    told = {s["path"]: s["relevance_score"] for s in j["sources"]}
    assert set(told) == set(best[:4]), (told, best[:4])
    assert all(abs(told[p] - scores[p]) < 1e-4 for p in told), (told, scores)
    assert all(s["passage"] == 1 for s in j["sources"])
by_name = run("ask", "writes", question, "-n", "8", "--json", "--no-keep", "--rerank", "larger", "-k", "2", TERN_MODELS=models)
assert by_name.returncode == 0, by_name.stderr
assert json.loads(by_name.stdout)["rerank"]["model"].endswith("/larger.gguf") and len(json.loads(by_name.stdout)["sources"]) == 2
# none: as it was found
for j in (ask("--rerank", "none", TERN_MODELS=models), ask("--rerank", "none")):
    assert "rerank" not in j and [s["path"] for s in j["sources"]] == [s["path"] for s in plain["sources"]] and j["prompt_tokens"] == plain["prompt_tokens"], j
# it is told where one asks
for option in ("--stats", "--stats=all", "--explain"):
    r = run("ask", "-m", "models/tern-tiny", question, "-n", "8", "--no-keep", "--rerank", ranks, option)
    assert "20 passages reranked in " in r.stderr and ranks in r.stderr, r.stderr
assert "reranked" not in run("ask", "-m", "models/tern-tiny", question, "-n", "8", "--no-keep", "--stats").stderr
# a model that is none, and what is no model: one line. One at hand that is damaged: a line, and an answer
for wrong, words in (("models/tern-tiny", "that takes a reranker"), ("/no/such.gguf", "/no/such.gguf"), ("README.md", "not a GGUF file"), ("tests/oracle/embedding/bert/model.gguf", "that takes a reranker")):
    for command in (["ask", "-m", "models/tern-tiny", question], ["mcp"], ["serve", "-m", "models/tern-tiny", "--port", "0"]):
        r = run(*command, "--rerank", wrong)
        assert r.returncode == 1 and words in r.stderr and wrong in r.stderr and r.stderr.count("\n") == 1 and not r.stdout, (command, r)
os.mkdir(tmp + "/damaged")
with open(tmp + "/damaged/d.gguf", "wb") as f:
    f.write(open(ranks, "rb").read().replace(b"blk.2.attn_q.weight", b"blk.2.attn_x.weight"))
r = run("ask", "-m", "models/tern-tiny", question, "-n", "8", "--json", "--no-keep", TERN_MODELS=tmp + "/damaged")
assert r.returncode == 0 and "passages stay in the order in which they were found" in r.stderr and "d.gguf" in r.stderr, r
assert [s["path"] for s in json.loads(r.stdout)["sources"]] == [s["path"] for s in plain["sources"]]
# a folder says so by its configuration: a classifier of one class
import shutil
shutil.copytree("tests/oracle/embedding/bert-rank/hf", tmp + "/folder/ranks")
for kind, labels, found in (("BertModel", 1, False), ("BertForSequenceClassification", 1, True), ("BertForSequenceClassification", 3, False)):
    with open(tmp + "/folder/ranks/config.json") as f:
        c = json.load(f)
    c.update(architectures=[kind], id2label={str(i): f"LABEL_{i}" for i in range(labels)})
    with open(tmp + "/folder/ranks/config.json", "w") as f:
        json.dump(c, f)
    assert ("rerank" in ask(TERN_MODELS=tmp + "/folder")) == found, (kind, labels)
PY

# --- what fits nothing is said, and what an answer did not come from is not cited
"$tern" ask -m models/tern-tiny "Zyzzyva quokka?" -n 8 >"$tmp/out" 2>"$tmp/err" || fail "a question about nothing"
grep -q "^Nothing in the documents fits" "$tmp/out" && ! grep -q "passage" "$tmp/out" || fail "nothing fits, and nobody says so: $(cat "$tmp/out")"
[ "$("$tern" ask -m models/tern-tiny "Zyzzyva quokka?" -n 8 --json 2>/dev/null | json '["fits"]')" = False ] || fail "fits"

# --- out again
rm "$tmp/docs/03.txt"
[ "$("$tern" rag add "$tmp/docs" --json 2>/dev/null | json '["removed"]')" = 1 ] || fail "a vanished file stays"
[ "$("$tern" rag rm "$tmp/docs/page.html")" = "1 removed" ] || fail "rm of a file"
[ "$("$tern" rag rm --all)" = "11 removed" ] || fail "rm --all"
echo "rag: ok"
