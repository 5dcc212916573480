import csv, fcntl, json, math, os, pty, random, shutil, signal, subprocess, sys, tempfile, time

import saying

tern = os.path.abspath(sys.argv[1])
os.environ["TERN_PACK"] = "never"
TINY = os.path.abspath("models/tern-tiny")
tmp = tempfile.mkdtemp()
draw = random.Random(5)


def path(*names):
    return os.path.join(tmp, *names)


def run(*args, rc=0, says=None):
    r = subprocess.run([tern, "eval", *map(str, args)], capture_output=True, text=True)
    assert r.returncode == rc, (args, r.returncode, r.stderr)
    if says:
        assert says in r.stderr and all(line.startswith("tern") for line in r.stderr.splitlines()), (args, r.stderr)
    return r


def measured(*args):
    return json.loads(run(*args, "--json").stdout)


def lines(name):
    return [json.loads(line) for line in open(name)]


def write(name, rows):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    return path(name)


def near(a, b, by=1e-6):
    assert abs(a - b) <= by, (a, b)


def wilson(share, n, z=1.959963984540054):
    half = z * math.sqrt(share * (1 - share) / n + z * z / 4 / n / n)
    return [(share + z * z / 2 / n - half) / (1 + z * z / n), (share + z * z / 2 / n + half) / (1 + z * z / n)]


def check_summary(j, records):
    scores = [r["score"] for r in records if r["score"] is not None]
    near(j["accuracy"], sum(scores) / len(scores))
    for a, b in zip(j["interval"], wilson(sum(scores) / len(scores), len(scores))):
        near(a, b)
    assert j["items"] == len(scores) and j["skipped"] == len(records) - len(scores)
    for g in j["groups"]:
        own = [r["score"] for r in records if g["group"] in r["groups"] and r["score"] is not None]
        near(g["accuracy"], sum(own) / len(own))
        assert g["items"] == len(own)


# ---- mmlu: the prompt and the verdict are those of another task, to which Python gives them

SUBJECTS = {"high_school_dust": 5, "virtue": 4}
tables = {}
for subject, n in SUBJECTS.items():
    for part, m in (("test", n), ("dev", 5)):
        rows = [[f'Which of {draw.randint(1, 99)} is the "{subject}",\nnumber {i}?', *(f"thing {draw.randint(1, 999)}" for _ in range(4)), draw.choice("ABCD")] for i in range(m)]
        os.makedirs(path("mmlu", part), exist_ok=True)
        with open(path("mmlu", part, f"{subject}_{part}.csv"), "w", newline="") as f:
            csv.writer(f).writerows(rows)
        tables[subject, part] = rows
MMLU = ["--task", "mmlu", "--data", path("mmlu")]


def asked(row, answered):
    return row[0] + "".join(f"\n{c}. {v}" for c, v in zip("ABCD", row[1:5])) + "\nAnswer:" + (f" {row[5]}\n\n" if answered else "")


whole = measured(TINY, *MMLU, "--results", path("whole.jsonl"), "--items")
head, *records = lines(path("whole.jsonl"))
check_summary(whole, records)
assert [r["id"] for r in records] == [f"{s}/{i + 1}" for s in sorted(SUBJECTS) for i in range(SUBJECTS[s])]
assert head == whole["measured"] and head["asked"] == {"shots": 5} and whole["items_right"] == [r["score"] for r in records]
choices = [{"query": f"The following are multiple choice questions (with answers) about {s.replace('_', ' ')}.\n\n" + "".join(asked(r, True) for r in tables[s, "dev"]) + asked(row, False),
            "choices": [" A", " B", " C", " D"], "gold": "ABCD".index(row[5])} for s in sorted(SUBJECTS) for row in tables[s, "test"]]
other = measured(TINY, "--task", "choice", "--data", write("choices.jsonl", choices), "--items")
assert other["items_right_by_sum"] == [r["score"] for r in records], (other["items_right_by_sum"], records)
for r, row in zip(records, [row for s in sorted(SUBJECTS) for row in tables[s, "test"]]):
    assert r["answer"] == max(zip(r["logprobs"], [-k for k in range(4)], "ABCD"))[2] and r["want"] == row[5] and r["score"] == (r["answer"] == r["want"])
assert "accuracy" in run(TINY, *MMLU, "--limit", 2).stdout

# ---- a run that was killed is gone on with, and ends as if it had not been


def interrupted(name, n, *args):
    p = subprocess.Popen([tern, "eval", *map(str, args), "--results", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while p.poll() is None and (not os.path.exists(name) or open(name, "rb").read().count(b"\n") < n):
        time.sleep(.001)
    p.send_signal(signal.SIGKILL)
    p.wait()


subprocess.run([tern, "pack", TINY, "-o", path("t.tern"), "--quick"], check=True, capture_output=True)
RULER = ["--task", "ruler", "--lengths", "320", "--samples", 2, "--only", "niah_single_1,vt", "--seed", 3]
SPARSE = ["--attention", "shadow", "--attention-threshold", "1"]
for k, args in enumerate([[TINY, *MMLU], [path("t.tern"), *MMLU], [TINY, *RULER], [path("t.tern"), *RULER, *SPARSE], [path("t.tern"), *MMLU, *SPARSE]]):
    a, b = path(f"a{k}.jsonl"), path(f"b{k}.jsonl")
    run(*args, "--results", a)
    interrupted(b, 2, *args)
    with open(b, "ab") as f:
        f.write(b'{"id":"half a li')
    left = len(open(b).read().split("\n")) - 2
    r = run(*args, "--results", b)
    assert left == 0 or f"has {left} of the" in r.stderr or left == len(lines(a)) - 1, (left, r.stderr)
    assert open(a).read() == open(b).read(), k
    full = open(a).read()
    for cut in (0, full.index("\n") + 1) if k else (0, 1, full.index("\n") - 3, full.index("\n"), full.index("\n") + 1, full.rindex("\n", 0, -1) + 5):
        open(b, "w").write(full[:cut])
        run(*args, "--results", b)
        assert open(b).read() == full, (k, cut)
assert run(TINY, *MMLU, "--results", path("whole.jsonl")).stdout == run(TINY, *MMLU).stdout

# ---- what is not the same is refused, and the file stays

before = open(path("whole.jsonl")).read()
shutil.copytree(path("mmlu"), path("mmlu2"))
with open(path("mmlu2", "dev", "virtue_dev.csv"), "a") as f:
    f.write("one more,1,2,3,4,A\n")
for args, says in (([TINY, *MMLU, "--shots", 3], "shots is 5 there and 3 now"), ([TINY, *MMLU, "-c", 1024], "form context is"), ([TINY, "--task", "mmlu", "--data", path("mmlu2")], "data sha256 is"),
                   ([path("t.tern"), *MMLU], "model package is false there and true now"), ([TINY, *RULER], "another task")):
    run(*args, "--results", path("whole.jsonl"), rc=1, says=says)
    assert open(path("whole.jsonl")).read() == before
# a package that was made in between is the reason alone where answers come from it; of a model that is packed quickly
os.environ["XDG_CACHE_HOME"] = path("cache")
small, kept = path("small.gguf"), path("small.jsonl")
subprocess.run([tern, "synth", "--arch", "tiny-llama", "--type", "f16", "-o", small], check=True)
run(small, *MMLU, "--limit", 2, "--results", kept)
small_before = open(kept).read()
subprocess.run([tern, "cache", "add", small], check=True, capture_output=True)
subprocess.run([tern, "pack", small, "-o", path("s.tern"), "--quick"], check=True, capture_output=True)
r = run(small, *MMLU, "--limit", 2, "--pack", "auto", "--results", kept, rc=1, says="model package is false there and true now")
assert "they go on with --pack never" in r.stderr, r.stderr
assert "go on" not in run(path("s.tern"), *MMLU, "--limit", 2, "--pack", "auto", "--results", kept, rc=1).stderr
run(small, *MMLU, "--limit", 2, "--pack", "never", "--results", kept)
assert open(kept).read() == small_before
for text in ("my notes\n", "{}\n", "[1]\n", '{"tern_eval": 7}\n', before + "{}\n", before + before.split("\n")[1] + "\n", before[: before.index("\n") + 1] + "x" * 100000 + "\n", "[" * 100000 + "\n"):
    open(path("notes"), "w").write(text)
    run(TINY, *MMLU, "--results", path("notes"), rc=1, says="notes")
    assert open(path("notes")).read() == text
strange = before + json.dumps(dict(records[0], id="virtue/99")) + "\n"
open(path("strange.jsonl"), "w").write(strange)
for more in ([], ["--limit", 2], ["--only", "virtue"]):
    run(TINY, *MMLU, *more, "--results", path("strange.jsonl"), rc=1, says="a result of virtue/99, and there is no such item in the data")
    assert open(path("strange.jsonl")).read() == strange
    run(TINY, *MMLU, *more, "--results", path("whole.jsonl"))  # items that are not chosen now are in the data
with open(path("whole.jsonl")) as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    run(TINY, *MMLU, "--results", path("whole.jsonl"), rc=1, says="another process")
run(TINY, *MMLU, "--results", tmp, rc=1)
run(TINY, *MMLU, "--results", "/dev/null", rc=1, says="no regular file")

# ---- a part of the items: a larger part holds a smaller one, and goes on with its file

few = measured(TINY, *MMLU, "--limit", 3, "--seed", 1, "--results", path("part.jsonl"))
ids = {r["id"] for r in lines(path("part.jsonl"))[1:]}
assert few["items"] == 3 and ids != {r["id"] for r in records[:3]}
more = measured(TINY, *MMLU, "--limit", 7, "--seed", 1, "--results", path("part.jsonl"))
assert more["items"] == 7 and ids < {r["id"] for r in lines(path("part.jsonl"))[1:]}
assert {r["id"]: r for r in lines(path("part.jsonl"))[1:]}.items() <= {r["id"]: r for r in records}.items()
assert [g["group"] for g in measured(TINY, *MMLU, "--only", "virtue")["groups"]] == ["virtue"]
run(TINY, *MMLU, "--only", "virtue,vice", rc=1, says="--only vice")

# ---- two forms, item by item: in one run, and from files


def check_pair(c, a, b):
    both = [(x["score"], b[x["id"]]) for x in a if x["score"] is not None and b[x["id"]] is not None]
    d = [x - y for x, y in both]
    mean = sum(d) / len(d)
    near(c["difference"], mean)
    near(c["stderr"], math.sqrt(sum((x - mean) ** 2 for x in d) / (len(d) - 1) / len(d)))
    near(c["first"], sum(x for x, _ in both) / len(d))
    assert c["items"] == len(d) and c["first_better"] == sum(x > 0 for x in d) and c["second_better"] == sum(x < 0 for x in d)


pair = measured(TINY, *MMLU, "--against", path("t.tern"), "--results", path("pair.jsonl"))["paired"]
by_id = {r["id"]: r["score"] for r in lines(path("pair.jsonl.against"))[1:]}
check_pair(pair, records, by_id)
files = json.loads(run("--compare", path("a0.jsonl"), path("a1.jsonl"), "--json").stdout)
assert files.pop("task") == "mmlu" and files == pair
assert "McNemar" in run("--compare", path("a0.jsonl"), path("a1.jsonl")).stdout
run(path("t.tern"), *RULER, "--results", path("full.jsonl"))
sparse = json.loads(run("--compare", path("full.jsonl"), path("a3.jsonl"), "--json").stdout)
check_pair(sparse, lines(path("full.jsonl"))[1:], {r["id"]: r["score"] for r in lines(path("a3.jsonl"))[1:]})
assert lines(path("full.jsonl"))[0]["form"] != lines(path("a3.jsonl"))[0]["form"]
run("--compare", path("a0.jsonl"), path("full.jsonl"), rc=1, says="differ in 'task'")
run("--compare", path("a0.jsonl"), path("nothing"), rc=1)

# ---- ruler: lengths hold, scores are those of the answers, a seed is a text

os.makedirs(path("hay"))
open(path("hay", "text.txt"), "w").write("The boat lies here. Is it old? It is.\n\nNobody knows the way home! So we wait.\n")
json.dump({"data": [{"paragraphs": [{"context": f"Town {i} has {i} towers.", "qas": [{"question": f"How many towers has town {i}?", "answers": [{"text": f"{i}"}]}]} for i in range(40)]}]}, open(path("hay", "squad.json"), "w"))
json.dump([{"question": f"Which {i}?", "answer": f"Name{i}", "context": [[f"T{i}", [f"A is {i}. ", f"Name{i} is."]], [f"U{i}", ["B."]]]} for i in range(9)], open(path("hay", "hotpotqa.json"), "w"))
j = measured(TINY, "--task", "ruler", "--data", path("hay"), "--lengths", "400,256", "--samples", 1, "--results", path("r.jsonl"))
head, *records = lines(path("r.jsonl"))
check_summary(j, records)
task_of = {r["id"]: r["id"].split("/")[1] for r in records}
tasks = set(task_of.values())
assert len(tasks) == 13 and len(records) == 26 and head["form"]["context"] == 400
for r in records:
    if r["score"] is None:
        assert "room for" in r["skipped"]
        continue
    found = [w.lower() in r["answer"].lower() for w in r["want"]]
    near(r["score"], any(found) if task_of[r["id"]].startswith("qa") else sum(found) / len(found))
    room = {"vt": 30, "cwe": 120, "fwe": 50, "qa_1": 32, "qa_2": 32}.get(task_of[r["id"]], 128)
    assert r["prompt_tokens"] <= int(r["groups"][0]) - room and (r["prompt_tokens"] > int(r["groups"][0]) - room - 64 or task_of[r["id"]] == "qa_2"), r
again = measured(TINY, "--task", "ruler", "--data", path("hay"), "--lengths", "256", "--samples", 1, "-c", 400, "--items")
assert again["items_right"] == [r["score"] for r in records if r["groups"][0] == "256"]
run(TINY, "--task", "ruler", "--data", path("hay"), "--lengths", 256, "--samples", 1, "-c", 400, "--seed", 1, "--results", path("r.jsonl"), rc=1, says="asked seed is")
r = run(TINY, "--task", "ruler", "--lengths", 256, "--samples", 1, "--only", "vt")
assert all(f"{t} is left out" in r.stderr for t in ("niah_single_2", "qa_1", "qa_2"))
for name, text, says in (("squad.json", "{", "not JSON"), ("squad.json", "[]", "no list 'data'"), ("squad.json", '{"data": [{"paragraphs": [{"qas": []}]}]}', "no context"), ("hotpotqa.json", "{}", "not a list"),
                         ("squad.json", '{"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "x"}]}]}]}', "no answers"), ("hotpotqa.json", '[{"question": "x", "answer": "y"}]', "list 'context'"),
                         ("hotpotqa.json", '[{"question": "x", "answer": "y", "context": [["a"]]}]', "no title"), ("hotpotqa.json", "[]", "no question"), ("text.txt", " \n", "no sentence"), ("PaulGrahamEssays.json", "{}", "no 'text'")):
    os.makedirs(path("bad"), exist_ok=True)
    open(path("bad", name), "w").write(text)
    run(TINY, "--task", "ruler", "--data", path("bad"), "--lengths", 256, rc=1, says=says)
    os.remove(path("bad", name))
run(TINY, "--task", "ruler", "--data", path("bad"), "--lengths", 256, rc=1, says="has none of")
run(TINY, "--task", "ruler", "--lengths", "256,512,256", rc=1, says="twice")
run(TINY, "--task", "ruler", "--lengths", 512, "-c", 256, rc=1, says="does not fit")

# ---- bfcl: a model that says what the test knows

CALL = {"A": {"city": "new york", "days": 3}, "B": {"city": "Rome", "days": 3}, "C": {"city": "NYC", "days": 3.5}}
table = {k: [f"<tool_call>{json.dumps({'name': 'weather_get', 'arguments': v})}</tool_call>"] for k, v in CALL.items()}
table |= {"N": ["I cannot do that."], "W": ["One, two, three."], "Q": ['"Quoted words. P.S. bye."']}
saying.write(path("says.gguf"), table)
FUNCTION = [{"name": "weather.get", "description": "Tells the weather", "parameters": {"type": "dict", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"type": "string"}}, "required": ["city"]}},
            {"name": "other", "description": "Does nothing", "parameters": {"type": "dict", "properties": {}, "required": []}}]
TRUTH = [{"weather.get": {"city": ["New York", "NYC"], "days": [3], "unit": ["", "C"]}}]


def question(i, ends):
    return {"id": i, "question": [[{"role": "user", "content": f"Question {i} {ends}"}]], "function": FUNCTION}


def bfcl(folder, questions, answers, category="multiple"):
    write(f"{folder}/BFCL_v4_{category}.json", questions)
    if answers:
        write(f"{folder}/possible_answer/BFCL_v4_{category}.json", answers)
    return ["--task", "bfcl", "--data", path(folder), "-n", 200]


wanted = {"multiple_0": ("A", 1), "multiple_1": ("B", 0), "multiple_2": ("C", 0), "multiple_3": ("N", 0)}
args = bfcl("bfcl", [question(i, e) for i, (e, _) in wanted.items()], [{"id": i, "ground_truth": TRUTH} for i in wanted])
bfcl("bfcl", [question("irrelevance_0", "N"), question("irrelevance_1", "A"), question("irrelevance_2", "N") | {"function": []}], None, "irrelevance")
bfcl("bfcl", [question("x", "A")], None, "parallel")
j = measured(path("says.gguf"), *args, "--results", path("b.jsonl"))
records = lines(path("b.jsonl"))[1:]
check_summary(j, records)
scores = {r["id"]: r["score"] for r in records}
assert scores == {i: s for i, (_, s) in wanted.items()} | {"irrelevance_0": 1, "irrelevance_1": 0, "irrelevance_2": 1}, scores
why = {r["id"]: r.get("why", "") for r in records}
assert "city" in why["multiple_1"] and "days" in why["multiple_2"] and "0 calls" in why["multiple_3"] and "weather_get" in why["irrelevance_1"]
assert json.loads(records[3]["calls"][0]["arguments"]) == CALL["A"]
assert "BFCL_v4_parallel.json is left out" in run(path("says.gguf"), *args).stderr
run(path("says.gguf"), *bfcl("bfcl1", [question("a", "A")], [{"id": "b", "ground_truth": TRUTH}]), rc=1, says="no answer in possible_answer")
run(path("says.gguf"), *bfcl("bfcl2", [question("a", "A")] * 2, [{"id": "a", "ground_truth": TRUTH}]), rc=1, says="two items are named a")
run(path("says.gguf"), *bfcl("bfcl3", [question("a", "A")], None), rc=1)
run(path("says.gguf"), "--task", "bfcl", "--data", path("mmlu"), rc=1, says="has none of")
long = measured(path("says.gguf"), *bfcl("bfcl4", [question("a", "A"), question("b", "x" * 5000 + "A")], [{"id": i, "ground_truth": TRUTH} for i in "ab"]), "--results", path("long.jsonl"))
assert long["items"] == 1 and long["skipped"] == 1 and "do not fit the context of 4096" in lines(path("long.jsonl"))[2]["skipped"]

# A template that refuses a conversation leaves that item out; one that cannot turn thoughts on or off says so.
saying.write(path("strict.gguf"), table, "{% if messages|length > 1 %}{{ raise_exception('one message, please') }}{% endif %}" + saying.TEMPLATE)
two = question("c", "A")
two["question"][0].insert(0, {"role": "user", "content": "First."})
strict = measured(path("strict.gguf"), *bfcl("bfcl5", [question("a", "A"), two], [{"id": i, "ground_truth": TRUTH} for i in "ac"]), "--results", path("strict.jsonl"))
assert (strict["items"], strict["skipped"], strict["accuracy"]) == (1, 1, 1) and "one message, please" in lines(path("strict.jsonl"))[2]["skipped"]
run(path("says.gguf"), *args, "--thinking", "off", rc=1, says="no enable_thinking")
saying.write(path("thinks.gguf"), table, saying.TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}A{% else %}N{% endif %}")
for how, score in (("off", 1), ("on", 0)):
    assert measured(path("thinks.gguf"), *bfcl("bfcl6", [question("a", "?")], [{"id": "a", "ground_truth": TRUTH}]), "--thinking", how)["accuracy"] == score
assert measured(path("says.gguf"), "--task", "ruler", "--lengths", 700, "--samples", 1, "--only", "vt", "-n", 5)["items"] == 1

# ---- ifeval


def prompt(key, ends, *asked):
    return {"key": key, "prompt": f"Prompt {key} {ends}", "instruction_id_list": [i for i, _ in asked], "kwargs": [k for _, k in asked]}


COMMA, QUOTES, LANGUAGE = ("punctuation:no_comma", {}), ("startend:quotation", {"language": None}), ("language:response_language", {"language": "kn"})
prompts = [prompt(1, "W", COMMA), prompt(2, "Q", COMMA, QUOTES), prompt(3, "Q", COMMA, LANGUAGE), prompt(4, "W", QUOTES, ("length_constraints:number_words", {"relation": "at least", "num_words": 3}))]
j = measured(path("says.gguf"), "--task", "ifeval", "--data", write("if/input_data.jsonl", prompts), "-n", 50, "--results", path("i.jsonl"))
assert [r["score"] for r in lines(path("i.jsonl"))[1:]] == [0, 1, None, 0]
assert (j["items"], j["skipped"], j["instructions"]["items"], j["not_checked"]) == (3, 1, 6, {"language:response_language": 1})
near(j["instructions"]["accuracy"], 4 / 6)
assert [g["group"] for g in j["by_instruction"]] == ["punctuation:no_comma", "startend:quotation", "length_constraints:number_words"]
assert "language:response_language is not checked" in run(path("says.gguf"), "--task", "ifeval", "--data", path("if"), "-n", 50).stdout
c = json.loads(run("--compare", path("i.jsonl"), path("i.jsonl"), "--json").stdout)
assert (c["difference"], c["items"], c["unpaired"]) == (0, 3, 1), c  # one of the four has no score
i_lines = open(path("i.jsonl")).read().splitlines(True)
open(path("i2.jsonl"), "w").writelines(i_lines[:1] + i_lines[2:])
assert json.loads(run("--compare", path("i.jsonl"), path("i2.jsonl"), "--json").stdout)["unpaired"] == 2  # and one is in the first alone
open(path("if", "one.jsonl"), "w").write(json.dumps(prompts[0])[:-1] + ', "deep": ' + "[" * 5000 + "]" * 5000 + "}\n")
run(path("says.gguf"), "--task", "ifeval", "--data", path("if", "one.jsonl"), rc=1, says="line 1")

# A second model that cannot be asked is told before the first is asked.
saying.write(path("mute.gguf"), table, "")
for args in (["--task", "ifeval", "--data", path("if")], bfcl("bfcl7", [question("a", "A")], [{"id": "a", "ground_truth": TRUTH}])):
    run(path("says.gguf"), *args, "--against", path("mute.gguf"), "--results", path("unasked.jsonl"), rc=1, says="--against: the model has no chat template")
    assert not os.path.exists(path("unasked.jsonl")), args
assert measured(path("says.gguf"), "--task", "ruler", "--lengths", 700, "--samples", 1, "--only", "vt", "-n", 5, "--against", path("mute.gguf"))["paired"]["items"] == 1

# ---- progress is on a terminal alone

ours, theirs = pty.openpty()
shown = b""
p = subprocess.Popen([tern, "eval", TINY, *map(str, MMLU), "--limit", "2"], stdout=subprocess.PIPE, stderr=theirs)
os.close(theirs)
try:
    while part := os.read(ours, 4096):
        shown += part
except OSError:  # the terminal has no other end any more
    pass
assert b"mmlu 1/2: " in shown and b"accuracy" in p.communicate()[0] and p.returncode == 0, shown
assert run(TINY, *MMLU, "--limit", 2).stderr == ""

# ---- what does not go together

for args, says in ((["--task", "ppl", "--data", "x", "--results", "y"], "--results belongs to"), (["--task", "mmlu"], "--data is required"), ([*MMLU, "--lengths", "5"], "belong to ruler"), (["--task", "ruler", "--shots", 1], "belong to mmlu"),
                   ([*MMLU, "-n", 5], "writes no answer"), ([*MMLU, "--kl", "x"], "--kl belongs to"), (["--task", "ruler", "--lengths", "a"], "--lengths a"), (["--task", "ruler", "--thinking", "so"], "on or off"), ([*MMLU, "--draft", "lookup"], "nothing is drafted"),
                   (["--task", "choice", "--data", "x", "--seed", 3], "--seed belongs to")):
    assert says in run(TINY, *args, rc=2).stderr, says
run(TINY, "--compare", path("a0.jsonl"), "--task", "mmlu", rc=2)
run("--compare", path("a0.jsonl"), rc=2)
run(TINY, "--task", "mmlu", "--data", path("nowhere"), rc=1, says="nowhere")
open(path("mmlu2", "test", "virtue_test.csv"), "w").write("a,b,c,d,e\n")
run(TINY, "--task", "mmlu", "--data", path("mmlu2"), rc=1, says="row 1 has 5 fields")

shutil.rmtree(tmp)
