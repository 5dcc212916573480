#!/usr/bin/env bash
# bench/reproduce.sh: the sets as their authors publish them become the items meant; its figures are those of `tern eval`, its intervals those of the
# textbook; a run that was cut off goes on, and changed data, a damaged part or another model are not taken for what was done.
set -euo pipefail
export REAL=$1 TMP
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
[ -n "${TERN_TEST_FULL:-}" ] || { echo "skipped: nothing that is built depends on it: \`make check\` does it, or TERN_TEST_FULL=1"; exit 77; }
[ -f models/tern-tiny/model.safetensors ] || { echo "skipped: no tern-tiny"; exit 77; }
# Every call of the program is a line of $TMP/calls; the call of number $DIE ends as a killed process does.
cat >"$TMP/tern" <<'END'
#!/usr/bin/env bash
echo "$1 $*" >>"$TMP/calls"
[ "$(wc -l <"$TMP/calls")" != "${DIE:-0}" ] || kill -9 $$
exec "$REAL" "$@"
END
chmod +x "$TMP/tern"
mkdir "$TMP/sets"
cat >"$TMP/check.py" <<'END'
import importlib.util
import json
import math
import os
import subprocess
import sys

tmp, real = os.environ["TMP"], os.environ["REAL"]
spec = importlib.util.spec_from_file_location("reproduce", "bench/reproduce.py")
rp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rp)


def same(got, want):
    assert got == want, f"{got!r} is not {want!r}"


# The authors' own forms, and those of common collections.
same(rp.pairs_of_lambada({"text": "He opened the old door "}), {"context": "He opened the old", "continuation": "door"})
same(
    rp.choice_of_hellaswag({"activity_label": "Cooking", "ctx_a": "A man [header] cooks.", "ctx_b": "he",
                            "endings": ["eats [title] soup.", "flies.", "sleeps.", "sings."], "label": "2"}),
    {"query": "Cooking: A man cooks. He", "choices": [" eats. soup.", " flies.", " sleeps.", " sings."], "gold": 2},
)  # fmt: skip
same(
    rp.choice_of_winogrande({"sentence": "The cup fits the bag because _ is small.", "option1": "the cup",
                             "option2": "the bag", "answer": "1"}),
    {"context_options": ["The cup fits the bag because the cup", "The cup fits the bag because the bag"],
     "continuation": "is small.", "gold": 0},
)  # fmt: skip
want = {"query": "Cats eat", "choices": [" mice", " stones"], "gold": 0}
same(rp.choice_of_openbook({"query": "Cats eat", "choices": ["mice", "stones"], "gold": 0}), want)
labels = {"text": ["mice", "stones"], "label": ["A", "B"]}
same(rp.choice_of_openbook({"question_stem": "Cats eat", "choices": labels, "answerKey": "A"}), want)
stem = {"stem": "Cats eat", "choices": [{"text": "mice", "label": "A"}, {"text": "stones", "label": "B"}]}
same(rp.choice_of_openbook({"question": stem, "answerKey": "B"}), want | {"gold": 1})
# Brown, Cai and DasGupta: 8 of 10 right is 49.0 to 94.3 %. Of 0, 1, 1 and -1 the mean is .25, the variance 11/12.
low, high = rp.wilson(8, 10)
assert abs(low - 49.02) < 0.01 and abs(high - 94.33) < 0.01, (low, high)
mean, half = rp.paired([1, 1, 1, 0], [1, 0, 0, 1])
assert abs(mean - 25) < 1e-9 and abs(half - 196 * math.sqrt(11 / 12 / 4)) < 1e-6, (mean, half)
same(rp.printed_for(rp.PRINTED6, "Qwen1.5-1.8B-Chat")[0], "qwen1.5 1.8b")
same(rp.printed_for(rp.PRINTED6, "Llama-2-7b-hf")[0], "llama 2 7b")
same(rp.printed_for(rp.PRINTED4, "Meta-Llama-3-8B")[0], "llama 3 8b")
same(rp.printed_for(rp.PRINTED6, "Qwen2-0.5B")[0], None)

# Small sets, and a text.
passages = ["A bird sat in the tall green tree", "The sun is hot and the ice is cold", "One and two and three"]
stories = [("The dog was hungry, so it", ["ate its food.", "was blue blue.", "of of the.", "seven."])] * 2
with open(f"{tmp}/sets/lambada_test.jsonl", "w") as f:
    f.writelines(json.dumps({"text": p}) + "\n" for p in passages)
with open(f"{tmp}/sets/hellaswag_val.txt", "w") as f:
    f.writelines("\n".join([c, "0", *e]) + "\n" for c, e in stories)
with open(f"{tmp}/sets/winogrande.jsonl", "w") as f:
    f.write(json.dumps({"sentence": "It fits because _ is small.", "option1": "it", "option2": "he", "answer": "1"}) + "\n")
with open(f"{tmp}/sets/openbook.jsonl", "w") as f:
    long = "early nineteenth century, it was one of the most"
    f.writelines(json.dumps({"query": q, "choices": ["world", long], "gold": 1}) + "\n" for q in ("In the", "A", "The"))
with open("models/tern-tiny/eval/english.txt") as t, open(f"{tmp}/sets/wikitext_test.txt", "w") as f:
    f.write(t.read(600))


def calls():
    try:
        with open(f"{tmp}/calls") as f:
            return [line.split()[0] for line in f if "--version" not in line]
    except FileNotFoundError:
        return []


def run(*words, die=0, code=0, columns="float,smoothquant"):
    if os.path.exists(f"{tmp}/calls"):
        os.remove(f"{tmp}/calls")
    command = ["bench/reproduce.sh", "models/tern-tiny", "--tasks", f"{tmp}/sets", "--work", f"{tmp}/work", "--part", "2"]
    command += ["--tern", f"{tmp}/tern", "--columns", columns, "--bits", "none", "--json", *words]
    command += ["--calib", "models/tern-tiny/demo.txt"]
    r = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, DIE=str(die)))
    assert r.returncode == code, (r.returncode, r.stderr)
    return json.loads(r.stdout) if not code else r.stderr


# Cut off at the fifth part (the call before all is --version), then to the end, then nothing is left to do.
assert "exit -9" in run(die=6, code=1)
done = len([c for c in calls() if c == "eval"]) - 1
assert done == 4, calls()
whole = run()
parts = 2 * (2 + 1 + 1 + 2 + 1)
same((whole["parts"], whole["parts_made"]), (parts, parts - done))
same(sorted(set(calls())), ["eval", "pack"])
again = run()
same((again["parts"], again["parts_made"], calls()), (parts, 0, []))
same(again["rows"], whole["rows"])
# The figures are those of the program, asked for everything at once.
row = {(r["task"], r["column"]): r for r in whole["rows"]}


def evaluated(items, task):
    with open(f"{tmp}/all.jsonl", "w") as f:
        f.writelines(json.dumps(i) + "\n" for i in items)
    words = ["eval", "-m", "models/tern-tiny", "--scheme", "float", "--task", task, "--data", f"{tmp}/all.jsonl", "--json"]
    return json.loads(subprocess.run([real, *words], capture_output=True, check=True, env=dict(os.environ, TERN_PACK="never")).stdout)


openbook = rp.items_of("openbook", f"{tmp}/sets/openbook.jsonl")
direct = evaluated(openbook, "choice")
same(row["OpenBookQA", "float"]["accuracy"], 100 * direct["accuracy_by_sum"])
assert direct["accuracy_by_sum"] != direct["accuracy"], "the long ending should win per byte alone"
same(row["LAMBADA", "float"]["accuracy"], 100 * evaluated(rp.items_of("lambada", f"{tmp}/sets/lambada_test.jsonl"), "lambada")["accuracy"])
same(row["OpenBookQA", "float"]["items"], 3)
assert "difference" in row["LAMBADA", "smoothquant"] and "difference" not in row["LAMBADA", "float"]
a, b = row["perplexity", "smoothquant"], row["perplexity", "float"]
assert abs(a["perplexity"] / b["perplexity"] - 1 - a["difference"] / 100) < 1e-5 and "difference" not in b
assert row["perplexity", "smoothquant"]["perplexity"] != row["perplexity", "float"]["perplexity"]
# A part that was cut short is made again, and data that changed too; the rest stands.
folder = os.path.join(f"{tmp}/work", os.listdir(f"{tmp}/work")[0])
part = next(n for n in sorted(os.listdir(folder)) if n.startswith("float.openbook"))
with open(f"{folder}/{part}", "r+") as f:
    f.truncate(20)
same(run()["parts_made"], 1)
with open(f"{tmp}/sets/winogrande.jsonl", "a") as f:
    f.write(json.dumps({"sentence": "He ran as _ was late.", "option1": "he", "option2": "it", "answer": "1"}) + "\n")
same(run()["parts_made"], 2)
# Table 4 beside it; no package stays behind.
four = [r for r in run("--bits", "4", columns="float")["rows"] if r["table"] == 4]
same([(r.get("bits"), r["column"]) for r in four][:3], [(None, "float"), (4, "smoothquant"), (4, "outliers")])
same(four[0]["perplexity"], row["perplexity", "float"]["perplexity"])
assert [n for n in os.listdir(folder) if n.endswith((".tern", ".part", ".profile"))] == []
# What is no item is named with its line.
with open(f"{tmp}/sets/lambada_test.jsonl", "a") as f:
    f.write('{"txt": "x"}\n')
assert "lambada_test.jsonl line 4: not an item of LAMBADA" in run(code=1)
assert "no such model" in subprocess.run(["bench/reproduce.sh", f"{tmp}/none"], capture_output=True, text=True).stderr
END
python3 "$TMP/check.py"
