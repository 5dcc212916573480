"""Models on demand: loaded when they are asked for, gone when idle or when their room is wanted, damaged ones told, texts as those of a
server with one model. Each check says what it found; the first that fails ends the test."""
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

from served import CACHE, MODEL, TERN, Server, same

DIR = tempfile.TemporaryDirectory()
GOOD = ["one.gguf", "sub/two.gguf"]


def make():
    """Two models that answer differently, one whose file is cut short, one that is no model at all."""
    os.mkdir(os.path.join(DIR.name, "sub"))
    for name, seed in zip(GOOD, (3, 4)):
        subprocess.run([TERN, "synth", "--arch", "llama", "--tiny", "-o", os.path.join(DIR.name, name), "--seed", str(seed)], check=True, capture_output=True)
    shutil.copytree(MODEL, os.path.join(DIR.name, "tiny"))
    whole = open(os.path.join(DIR.name, "one.gguf"), "rb").read()
    open(os.path.join(DIR.name, "short.gguf"), "wb").write(whole[: len(whole) // 2])
    damaged = os.path.join(DIR.name, "damaged.tern")
    subprocess.run([TERN, "pack", os.path.join(DIR.name, "one.gguf"), "-o", damaged], check=True, capture_output=True)
    with open(damaged, "r+b") as f:  # beyond the index: its weights are read with the first prompt
        f.seek(os.path.getsize(damaged) // 2)
        f.write(b"\xff" * 4096)
    open(os.path.join(DIR.name, "no-model.gguf"), "wb").write(b"GGUF" + b"\xff" * 300)


ASK = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}


def text(s, model, **more):
    status, r = s.json("/v1/completions", dict(ASK, model=model, **more))
    same(status, 200, r)
    return r["choices"][0]["text"]


def state(s, model):
    status, r = s.json("/v1/models/" + model)
    same(status, 200, r)
    return r["state"]


def label(s, name, model):
    return s.metric(f'{name}{{model="{model}"}}')


def come_later(want):
    """A model that comes into the folder while the server runs, in a folder of its own too, is listed and answers; one that comes and is no model says so."""
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(os.path.join(DIR.name, "one.gguf"), os.path.join(d, "one.gguf"))
        s = Server("--models", d, "--cache-size", "0", model=None)
        same([m["id"] for m in s.json_get("/v1/models")["data"]], ["one.gguf"], "the models at the start")
        same(s.json("/v1/completions", dict(ASK, model="two.gguf"))[0], 404, "a model that has not come")
        os.mkdir(os.path.join(d, "sub"))
        shutil.copy(os.path.join(DIR.name, "sub/two.gguf"), os.path.join(d, "sub/two.gguf"))
        open(os.path.join(d, "half.gguf"), "wb").write(open(os.path.join(d, "one.gguf"), "rb").read()[:5000])
        while s.json("/v1/completions", dict(ASK, model="two.gguf"))[0] == 404:
            time.sleep(0.05)
        same(text(s, "two.gguf"), want["sub/two.gguf"][0], "the text of a model that came")
        same(text(s, "one.gguf"), want["one.gguf"][0], "the text of the one before")
        same(sorted(m["id"] for m in s.json_get("/v1/models")["data"]), ["half.gguf", "one.gguf", "sub/two.gguf"], "the models afterwards")
        status, r = s.json("/v1/completions", dict(ASK, model="half.gguf"))
        assert status >= 400 and status != 404, (status, r)
        shutil.copy(os.path.join(d, "one.gguf"), os.path.join(d, "whole"))
        os.rename(os.path.join(d, "whole"), os.path.join(d, "half.gguf"))
        same(text(s, "half.gguf"), want["one.gguf"][0], "a download that has ended")
        s.stop()


def flood(want):
    """One model's queue is full behind a client that does not read, others send halves of requests, or ask for nobody's model: the other
    models answer, with their own texts."""
    s = Server("--models", DIR.name, "--sessions", "1", "--queue", "2", "--cache-size", "0", model=None)
    body = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 1500, "stream": True, "grammar": "root ::= [a-z ]{3000}"}).encode()
    half = [s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le") for _ in range(30)]
    got = []

    def ask(model):
        status, r = s.json("/v1/completions", dict(ASK, model=model))
        got.append((model, status, r["choices"][0]["text"] if status == 200 else r["error"]["message"]))

    def together(models):
        threads = [threading.Thread(target=ask, args=(m,)) for m in models]
        for t in threads:
            t.start()
        return threads

    while True:  # the first may be answered before the others have come
        before = s.load()[2]
        mute = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.filled(before, 1, 0)
        waiting = together(["tiny"] * 2)
        if s.filled(before, 1, 2):
            break
        mute.close()
        for t in waiting:
            t.join()
        got.clear()
    ask("tiny")
    same(got.pop()[1], 429, "a queue that is full")
    others = together(["nobody"] * 12)
    for name in GOOD:
        same(text(s, name), want[name][0], "another model's text, beside a full queue")
    for t in others + together(["short"] * 4):
        t.join()
    same({status for model, status, _ in got if model == "nobody"}, {404}, got)
    assert {status // 100 for model, status, words in got if model == "short" and "queue is full" not in words} <= {5}, got
    same(len(got), 16, "answers beside the full queue")
    got.clear()
    mute.close()
    for t in waiting:
        t.join()
    same(got, [("tiny", 200, want["tiny"][0])] * 2, "those who waited")
    got.clear()
    for t in together((GOOD + ["tiny"]) * 10):
        t.join()
    for model, status, words in got:
        assert (status, words) == (200, want[model][0]) or status == 429, (model, status, words)
    assert {m for m, status, _ in got if status == 200} == set(want), "each model answers somebody in a flood"
    for c in half:
        c.close()
    for name in want:
        same(text(s, name), want[name][0], "after the flood")
    s.stop()


def alone(name):
    s = Server("--cache-size", "0", model=os.path.join(DIR.name, name))
    got = text(s, "whatever"), s.json("/v1/completions", dict(ASK, temperature=1, seed=5))[1]["choices"][0]["text"]
    same(s.json("/v1/models")[1]["data"][0]["state"], "ready", "a single model is there from the start")
    s.stop()
    return got


def switching(want):
    s = Server("--models", DIR.name, model=None)
    listed = s.json("/v1/models")[1]["data"]
    same(sorted(m["id"] for m in listed), ["damaged.tern", "no-model.gguf", "one.gguf", "short.gguf", "sub/two.gguf", "tiny"], "the list")
    same({m["state"] for m in listed}, {"away"}, "nothing is loaded before it is asked for")
    for _ in range(2):
        for name in GOOD + ["tiny"]:
            same(text(s, name), want[name][0], "the text of a server with that model alone")
            same(text(s, name, temperature=1, seed=5), want[name][1], "and with a seed")
    same(text(s, "two"), want["sub/two.gguf"][0], "by the last part of its name, without the ending")
    same({m["id"]: m["loads"] for m in s.json("/v1/models")[1]["data"] if m["state"] == "ready"}, {"one.gguf": 1, "sub/two.gguf": 1, "tiny": 1}, "each is loaded once")
    # what every route says of the model
    same(s.json("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})[1]["model"], "tiny", "the model of a chat")
    same(s.json("/v1/messages", {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})[1]["model"], "tiny", "of a message")
    ids = s.json("/tokenize", {"model": "tiny", "content": "Grüße"})[1]["tokens"]
    same(s.json("/detokenize", {"model": "tiny", "tokens": ids})[1]["content"], "Grüße", "there and back")
    same(s.json("/v1/embeddings", {"model": "tiny", "input": "x"})[1]["model"], "tiny", "of an embedding")
    # what is wrong is told, in the API's form, and the others go on
    for path, body, status, words in [
        ("/v1/completions", dict(ASK, model="nobody"), 404, "no model 'nobody'"),
        ("/v1/completions", ASK, 400, "'model' is missing"),
        ("/v1/completions", dict(ASK, model=7), 400, "'model' must be a text"),
        ("/v1/completions", dict(ASK, model="../one.gguf"), 404, "no model"),
        ("/v1/completions", dict(ASK, model=os.path.join(DIR.name, "one.gguf")), 404, "no model"),
        ("/v1/completions", dict(ASK, model="short"), 500, "short.gguf"),
        ("/v1/completions", dict(ASK, model="no-model"), 500, "no-model.gguf"),
        ("/v1/completions", dict(ASK, model="damaged"), 500, "damaged.tern: "),
        ("/v1/messages", {"model": "nobody", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}, 404, "no model"),
        ("/v1/embeddings", {"model": "nobody", "input": "x"}, 404, "no model"),
        ("/tokenize", {"model": "nobody", "content": "x"}, 404, "no model"),
        ("/v1/messages/count_tokens", {"model": "nobody", "messages": [{"role": "user", "content": "x"}]}, 404, "no model"),
    ]:
        got, data = s.ask("POST", path, body)
        e = json.loads(data)
        assert got == status and words in e["error"]["message"] and (DIR.name not in e["error"]["message"] or DIR.name in str(body)), (path, body, got, e)
        if path.startswith("/v1/messages") and status == 404:
            same((e["type"], e["error"]["type"]), ("error", "not_found_error"), e)
    r = s.json("/v1/models/short")[1]
    assert r["state"] == "failed" and "short.gguf" in r["error"], r
    same(s.ask("GET", "/v1/models/nobody")[0], 404, "no such model")
    same(text(s, "one.gguf"), want["one.gguf"][0], "beside damaged files")
    whole = open(os.path.join(DIR.name, "one.gguf"), "rb").read()
    path = os.path.join(DIR.name, "short.gguf")
    half = open(path, "rb").read()
    open(path, "wb").write(whole)  # mended while the server runs
    same(text(s, "short"), want["one.gguf"][0], "a file that was mended")
    open(path, "wb").write(half)
    assert label(s, "tern_model_cold_first_token_seconds", "one.gguf") > 0 and label(s, "tern_model_load_seconds", "tiny") > 0
    s.stop()
    assert any("one.gguf is in memory" in x for x in s.lines) and any("one.gguf: first token" in x for x in s.lines), s.lines
    assert any("short.gguf cannot be used" in x for x in s.lines), s.lines


def idle(want):
    """Who is not asked leaves, with its conversations, which are known again when it is back; who is being asked stays."""
    s = Server("--models", DIR.name, "--idle", "1s", model=None)
    long = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me something about my day. " * 8}], "max_tokens": 4, "temperature": 0}
    first = s.json("/v1/chat/completions", long)[1]
    gone = []
    t = threading.Thread(target=lambda: gone.append(text(s, "one", max_tokens=3000, grammar="root ::= [a-z ]{1200}", temperature=1, seed=1)))
    t.start()
    while state(s, "tiny") != "away":
        time.sleep(0.05)
    same(label(s, "tern_model_unloads_total", "tiny"), 1, "unloaded once")
    same(label(s, "tern_model_memory_bytes", "tiny"), 0, "its memory")
    t.join()
    assert len(gone[0]) > 100
    u = s.json("/v1/chat/completions", long)[1]
    same(u["choices"], first["choices"], "the text after it came back")
    same(u["usage"]["prompt_tokens_details"]["cached_tokens"], u["usage"]["prompt_tokens"] - 1, "what it knew before it left")
    while any(m["state"] != "away" for m in s.json("/v1/models")[1]["data"]):
        time.sleep(0.05)
    assert s.metric("tern_output_tokens_total") >= 12, "counts outlive the models"
    s.stop()
    assert any("left memory: nobody asked it" in x for x in s.lines), s.lines


def need(s, model):
    text(s, model, max_tokens=1)
    return int(s.json("/v1/models/" + model)[1]["memory_bytes"])


def limit(want):
    """Two do not fit at once: the one that nobody uses leaves. One that never fits is refused with the numbers."""
    s = Server("--models", DIR.name, "--sessions", "1", model=None)
    n = {name: need(s, name) for name in GOOD + ["tiny"]}
    s.stop()
    most = max(n.values())
    s = Server("--models", DIR.name, "--sessions", "1", "--max-memory", str(most + min(n.values()) - 1), model=None)
    for _ in range(2):
        for name in GOOD + ["tiny"]:
            same(text(s, name), want[name][0], "the text, within the limit")
            held = sum(m["memory_bytes"] for m in s.json("/v1/models")[1]["data"])
            assert held < most + min(n.values()), (held, n)
    assert label(s, "tern_model_unloads_total", "one.gguf") >= 1
    # both at once, by many: who waits for room gets it when the others are done
    got = {}
    def ask(i, name):
        got[i] = name, text(s, name)
    threads = [threading.Thread(target=ask, args=(i, (GOOD + ["tiny"])[i % 3])) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for name, said in got.values():
        same(said, want[name][0], "by turns")
    same(len(got), 12, "all are answered")
    s.stop()
    small = min(n.values()) // 2
    s = Server("--models", DIR.name, "-c", "256", "--max-memory", str(small), model=None)
    status, r = s.json("/v1/completions", dict(ASK, model="tiny"))
    assert status == 503 and "MiB" in r["error"]["message"] and "max-memory allows" in r["error"]["message"] and DIR.name not in r["error"]["message"], r
    same(s.ask("GET", "/health")[0], 200, "it goes on")
    s.stop()
    # sessions count too: a limit that holds one session has eight clients wait for it
    s = Server("--max-memory", str(n["tiny"] + (1 << 20)), "--cache-size", "0", model=os.path.join(DIR.name, "tiny"))
    held = s.json("/v1/models")[1]["data"][0]["memory_bytes"]
    got = []
    threads = [threading.Thread(target=lambda: got.append(text(s, "tiny"))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(set(got), {want["tiny"][0]}, "the texts of eight")
    same(s.json("/v1/models")[1]["data"][0]["memory_bytes"], held, "no session beyond the limit")
    s.stop()


def both(want):
    """Clients of three models at once: each text is that of one client alone."""
    s = Server("--models", DIR.name, model=None)
    got = []
    def ask(name):
        for _ in range(4):
            got.append((name, text(s, name)))
    threads = [threading.Thread(target=ask, args=(name,)) for name in (GOOD + ["tiny"]) * 3]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(len(got), 36, "answers")
    for name, said in got:
        same(said, want[name][0], "the text beside others")
    s.stop()


def beside(want):
    """-m with --models: the one that is named is there from the start and answers who names none."""
    s = Server("--models", DIR.name, "--model-name", "first")
    same(s.json("/v1/completions", ASK)[1]["choices"][0]["text"], want["tiny"][0], "the default")
    same(text(s, "one"), want["one.gguf"][0], "another")
    same([m["id"] for m in s.json("/v1/models")[1]["data"] if m["default"]], ["first"], "which is the default")
    s.stop()


def heads():
    """A head that drafts is no model, whatever its folder is called."""
    with tempfile.TemporaryDirectory() as d:
        shutil.copytree(MODEL, os.path.join(d, "tiny"))
        shutil.copytree(MODEL, os.path.join(d, "other"))
        with open(os.path.join(d, "other", "config.json"), "w") as f:
            json.dump({"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 320}, f)
        shutil.copytree(MODEL, os.path.join(d, "third"))
        with open(os.path.join(d, "third", "config.json"), "w") as f:
            json.dump({"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"}, f)
        shutil.copytree(MODEL, os.path.join(d, "fourth"))
        with open(os.path.join(d, "fourth", "config.json"), "w") as f:
            json.dump({"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dflash_config": {}}, f)
        for name in ("gemma-4-E2B-it-assistant-Q8_0.gguf", "mtp-gemma-4-E2B-it.gguf", "one-eagle3.gguf", "one-DFlash-b16.gguf"):
            shutil.copy(os.path.join(DIR.name, "one.gguf"), os.path.join(d, name))
        s = Server("--models", d, model=None)
        same([m["id"] for m in s.json("/v1/models")[1]["data"]], ["tiny"], "the models")
        s.stop()


def links():
    """A link that leads back up multiplies nothing and leads to nothing outside; a model that lies elsewhere may be linked."""
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(os.path.join(DIR.name, "one.gguf"), os.path.join(d, "outside.gguf"))
        shutil.copytree(MODEL, os.path.join(d, "all", "tiny"))
        shutil.copy(os.path.join(DIR.name, "one.gguf"), os.path.join(d, "all", "tiny", "one.gguf"))
        os.mkdir(os.path.join(d, "elsewhere"))
        shutil.copy(os.path.join(DIR.name, "sub/two.gguf"), os.path.join(d, "elsewhere", "two.gguf"))
        for target, name in ((".", "tiny/self"), ("..", "tiny/up"), ("../..", "tiny/out"), ("..", "out"), (".", "again"), ("tiny/one.gguf", "same.gguf"), ("../elsewhere", "linked"), ("../elsewhere", "twice")):
            os.symlink(target, os.path.join(d, "all", name))
        s = Server("--models", os.path.join(d, "all"), model=None)
        same([m["id"] for m in s.json("/v1/models")[1]["data"]], ["linked/two.gguf", "same.gguf", "tiny"], "the models")
        same(s.json("/v1/completions", dict(ASK, model="two"))[0], 200, "by a short name")
        s.stop()


def options():
    for args, status, words in [([], 2, "MODEL or --models DIR is required"), (["--models", DIR.name, "--idle", "soon"], 2, "--idle soon"), (["--models", CACHE.name], 1, "there are no models"),
                                (["--models", DIR.name, "--draft", "model:x.gguf"], 2, "for one model"),
                                (["--models", DIR.name, "--draft-head", GOOD[0]], 2, "--draft-head is for one model"), (["--models", DIR.name, "--mmproj", GOOD[0]], 2, "--mmproj is for one model")]:
        r = subprocess.run([TERN, "serve", "--port", "0", *args], capture_output=True, text=True, timeout=250)
        assert r.returncode == status and words in r.stderr, (args, r)


make()
options()
print("options ok", flush=True)
heads()
print("heads ok", flush=True)
links()
print("links ok", flush=True)
texts = {name: alone(name) for name in GOOD + ["tiny"]}
same(len({t for t, _ in texts.values()}), 3, "models that answer differently")
for check in (come_later, switching, idle, limit, both, beside, flood):
    check(texts)
    print(check.__name__, "ok", flush=True)
