"""Ollama's API: its answers are compared with those of the other APIs, its lists with /v1/models."""
import json
import os
import re
import sys
import tempfile

from served import MODEL, Server, same

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixture"))
import saying

USER = {"role": "user", "content": "Say a word."}
CASES = os.path.join(os.path.dirname(__file__), "..", "oracle", "embedding")
COLD = {"temperature": 0, "num_predict": 8}
TOOL = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}


def literal(text):
    return "root ::= " + json.dumps(text)


def lines(s, path, body):
    status, data = s.ask("POST", path, body)
    assert status == 200, data
    out = [json.loads(x) for x in data.decode().split("\n") if x]
    same(([x["done"] for x in out[:-1]], out[-1]["done"]), ([False] * (len(out) - 1), True), "done at the end")
    return out


def chat(s):
    want = s.json("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, USER], "temperature": 0, "max_tokens": 8})[1]
    text = want["choices"][0]["message"]["content"]
    ask = {"model": "tern-tiny:latest", "messages": [{"role": "system", "content": "Be brief."}, USER], "options": COLD}
    out = lines(s, "/api/chat", ask)  # a stream, where nothing is said
    same("".join(x["message"]["content"] for x in out), text, "streamed")
    end = out[-1]
    same((end["model"], end["done_reason"], end["eval_count"], end["prompt_eval_count"]), ("tern-tiny", "length", want["usage"]["completion_tokens"], want["usage"]["prompt_tokens"]), end)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", end["created_at"]) and end["total_duration"] >= end["eval_duration"] > 0, end
    r = s.json("/api/chat", dict(ask, stream=False))[1]
    same((r["message"], r["done"]), ({"role": "assistant", "content": text}, True), r)
    stop = text.split()[2]
    r = s.json("/api/chat", dict(ask, stream=False, options=dict(COLD, stop=[stop], num_ctx=4096)))[1]
    same((r["message"]["content"], r["done_reason"]), (text[: text.index(stop)], "stop"), r)
    same(s.json("/api/chat", {"messages": [], "stream": False})[1]["done_reason"], "load", "loading")
    for path in ("/api/chat", "/api/generate"):
        c = s.connection()
        c.request("POST", path, json.dumps({"stream": False, "keep_alive": "5m", "frobnicate": 1, "think": False}))
        r = c.getresponse()
        same((r.status, json.loads(r.read())["done_reason"], r.getheader("X-Tern-Ignored")), (200, "load", "frobnicate"), path)
        c.close()


def generate(s):
    want = s.json("/api/chat", {"messages": [{"role": "system", "content": "Be brief."}, USER], "options": COLD, "stream": False})[1]["message"]["content"]
    ask = {"prompt": USER["content"], "system": "Be brief.", "options": COLD}
    same("".join(x["response"] for x in lines(s, "/api/generate", ask)), want, "through the template")
    plain = s.json("/v1/completions", {"prompt": "Once upon", "max_tokens": 8, "temperature": 0})[1]["choices"][0]["text"]
    same(s.json("/api/generate", {"prompt": "Once upon", "raw": True, "options": COLD, "stream": False})[1]["response"], plain, "raw")
    same(s.json("/api/generate", {"prompt": "Once", "suffix": "end", "options": COLD})[0], 400, "a model that does not fill in")
    same(s.json("/api/generate", {"stream": False})[1]["done_reason"], "load", "loading")
    # an option says nothing that stands beside the options: there is one answer, streamed as it was asked for
    for name, v in (("n", 2), ("n_cmpl", 2), ("stream", False), ("model", "nobody"), ("tools", [1]), ("echo", True), ("messages", [])):
        for path, body in (("/api/chat", {"messages": [USER]}), ("/api/generate", {"prompt": "Once", "raw": True})):
            c = s.connection()
            c.request("POST", path, json.dumps(dict(body, options=dict(COLD, **{name: v}))))
            r = c.getresponse()
            said = [json.loads(x) for x in r.read().decode().split("\n") if x]
            same((r.status, r.getheader("X-Tern-Ignored"), [x["done"] for x in said][-2:], sum(x["done"] for x in said)), (200, name, [False, True], 1), (path, name))
            c.close()


def forms(s):
    for form, ok in (({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}, lambda v: 0 <= v["a"] <= 9), ("json", lambda v: isinstance(v, dict))):
        r = s.json("/api/chat", {"messages": [USER], "format": form, "stream": False, "options": {"seed": 4, "num_predict": 300}})[1]
        assert ok(json.loads(r["message"]["content"])), r
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    ask = {"messages": [USER], "tools": [TOOL], "options": {"grammar": literal("Wait. " + call), "num_predict": 200}}
    m = s.json("/api/chat", dict(ask, stream=False))[1]["message"]
    f = m["tool_calls"][0]["function"]
    same((m["content"], f["name"], f["arguments"]), ("Wait.", "clock", {}), m)
    out = lines(s, "/api/chat", ask)
    calls = [c["function"] for x in out for c in x["message"].get("tool_calls", [])]
    same(("".join(x["message"]["content"] for x in out), calls), ("Wait.", [f]), "streamed")
    back = [USER, m, {"role": "tool", "tool_name": "clock", "content": "Noon."}]
    r = s.json("/api/chat", {"messages": back, "tools": [TOOL], "options": COLD, "stream": False})
    same(r[0], 200, r)


def vectors(s):
    want = [d["embedding"] for d in s.json("/v1/embeddings", {"input": ["a cat", "a dog"]})[1]["data"]]
    r = s.json("/api/embed", {"model": "tern-tiny", "input": ["a cat", "a dog"]})[1]
    same((r["embeddings"], r["model"]), (want, "tern-tiny"), "two texts")
    same(s.json("/api/embed", {"input": "a dog"})[1]["embeddings"], want[1:], "one")
    same(s.json("/api/embeddings", {"prompt": "a cat"})[1]["embedding"], want[0], "the older form")


def embedding():
    """What a body of /api/embed has beside its texts is followed, or named."""
    s = Server("-c", "512", "--set", "scheme=float", model=os.path.join(CASES, "bert", "model.gguf"))
    with open(os.path.join(CASES, "bert", "vectors.json")) as f:
        whole = json.load(f)[1]["text"]
    long = " ".join([whole] * 60)
    ids = s.json("/tokenize", {"content": long, "add_special": True})[1]["tokens"]
    assert len(ids) > 512, "longer than the context"
    want = s.json("/embedding", {"content": ids[:511] + ids[-1:]})[1][0]["embedding"][0]
    for path, field in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
        first = lambda r: r["embeddings"][0] if "embeddings" in r else r["embedding"]
        for more in ({}, {"truncate": True}, {"truncate": None}):
            status, r = s.json(path, dict({field: long}, **more))
            same((status, first(r)), (200, want), (path, more))
        assert first(s.json(path, {field: whole})[1]) != want, "a short one is whole"
        status, r = s.json(path, {field: long, "truncate": False})
        assert status == 400 and "512" in r["error"], r
        same(s.json(path, {field: "a", "truncate": "yes"})[0], 400, "a wrong kind")
        same(s.json(path, {field: "a", "keep_alive": "soon"})[0], 400, "a wrong time")
        for text in ("a", ""):  # of nothing, too: the model is loaded
            s.json(path, {field: text, "keep_alive": "10m"})
            same(s.json("/v1/models")[1]["data"][0]["idle_s"], 600, (path, text))
            s.json(path, {field: text, "keep_alive": -1})
            assert "idle_s" not in s.json("/v1/models")[1]["data"][0], (path, text)
        c = s.connection()
        c.request("POST", path, json.dumps({field: "a", "frobnicate": 1, "options": {"num_ctx": 64, "temperature": 1}, "user": None}))
        r = c.getresponse()
        r.read()
        same((r.status, r.getheader("X-Tern-Ignored")), (200, "frobnicate, temperature"), path)
    r = s.json("/api/embed", {"input": ["a", long]})[1]
    same((r["embeddings"][1], r["prompt_eval_count"]), (want, 512 + 3), "of several, the long one")
    s.json("/api/embed", {"input": "a", "keep_alive": 0})
    while s.json("/v1/models")[1]["data"][0]["state"] != "away":
        pass
    s.stop()
    s = Server("--strict", model=os.path.join(CASES, "bert", "model.gguf"))
    for path, field in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
        for text in ("a", ""):
            status, r = s.json(path, {field: text, "frobnicate": 1})
            assert status >= 400 and "frobnicate" in r["error"], (status, r)
        same(s.json(path, {field: "a", "truncate": True, "keep_alive": "5m", "options": {"num_ctx": 64}})[0], 200, "all of it is known")
    s.stop()


def lists(s):
    model = s.json("/v1/models")[1]["data"][0]
    for path in ("/api/tags", "/api/ps"):
        m = s.json(path)[1]["models"]
        same([(x["name"], x["model"], x["details"]["family"], len(x["digest"])) for x in m], [("tern-tiny", "tern-tiny", model["meta"]["arch"], 64)], path)
    same(s.json("/api/ps")[1]["models"][0]["context_length"], 2048, "context")
    r = s.json("/api/show", {"model": "tern-tiny"})[1]
    arch = r["model_info"]["general.architecture"]
    same((r["model_info"]["general.parameter_count"], r["model_info"][arch + ".block_count"]), (model["meta"]["n_params"], model["meta"]["n_layers"]), r)
    assert "im_start" in r["template"] and r["capabilities"][0] == "completion" and "insert" not in r["capabilities"], r
    size = os.path.getsize(os.path.join(MODEL, "model.safetensors"))
    same((s.json("/api/tags")[1]["models"][0]["size"], model["file_bytes"]), (size, size), "of the weights' file")
    assert tuple(map(int, s.json("/api/version")[1]["version"].split("."))) >= (0, 13, 4), "codex --oss takes no older one"
    same(s.ask("HEAD", "/")[0], 200, "the command line's first request")
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete"), ("POST", "/api/create")):
        status, data = s.ask(method, path, {"model": "x"})
        assert status == 501 and "error" in json.loads(data), data


def abilities():
    """What /api/show says that a model can do: embed, score, fill in; and no template where it does not write."""
    for name, want in (("bert", ["embedding"]), ("qwen3-embedding", ["embedding"]), ("bert-rank", [])):
        s = Server("-c", "64", model=os.path.join(CASES, name, "model.gguf"))
        r = s.json("/api/show", {"model": name})[1]
        same((r["capabilities"], r["template"]), (want, ""), name)
        s.stop()
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "fills-in.gguf")
        saying.write(path, {"X": ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]})
        s = Server("-c", "64", model=path)
        same(s.json("/api/show", {"model": "fills-in"})[1]["capabilities"][:2], ["completion", "insert"], "marks")
        s.stop()


def kinds(s):
    """A field of the wrong kind is refused with its name. The model never answers without what it held."""
    plain = {"/api/chat": {"messages": [USER], "stream": False, "options": COLD}, "/api/generate": {"prompt": "x", "stream": False, "options": COLD}}
    for path, field, bad in (("/api/chat", "messages", ("Hello", USER, 5, True)), ("/api/generate", "prompt", (["Hello"], {}, 5, True)), ("/api/generate", "images", ("aaaa", {}, 5, False)), ("/api/generate", "system", (["Answer in French."], {}, 5)),
                             ("/api/generate", "raw", ("true", 1, [])), ("/api/generate", "suffix", (["x"], 5)), ("/api/chat", "think", ([], {}, 5)), ("/api/generate", "think", ([], 5))):
        for v in bad:
            status, e = s.json(path, dict(plain[path], **{field: v}))
            assert status == 400 and f"'{field}' must be " in e["error"], (path, field, v, status, e)
        same(s.json(path, dict(plain[path], **{field: None}))[0], 200, (field, "null"))
    for field in ("images", "tool_calls"):
        for v in ("aaaa", {}, 5):
            status, e = s.json("/api/chat", dict(plain["/api/chat"], messages=[dict(USER, **{field: v})]))
            assert status == 400 and f"'{field}' must be a list" in e["error"], (field, v, status, e)
        same(s.json("/api/chat", dict(plain["/api/chat"], messages=[dict(USER, **{field: None})]))[0], 200, (field, "null"))


def wrong(s):
    for path, body, words in (("/api/chat", b"{", "not valid JSON"), ("/api/chat", [], "not a JSON object"), ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aaaa"]}]}, "no picture encoder"), ("/api/chat", {"messages": [USER], "keep_alive": "soon"}, "keep_alive"),
                             ("/api/chat", {"messages": [USER], "keep_alive": "9m-1e49s"}, "keep_alive"),
                              ("/api/chat", {"messages": [USER], "format": "xml"}, "format"), ("/api/generate", {"prompt": "x", "options": {"temperature": -1}}, "temperature"), ("/api/chat", {"messages": [USER], "options": 3}, "options"), ("/api/embed", {"input": [""]}, "input"),
                              ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool_calls[0]"), ("/api/chat", {"messages": [{"role": "user", "content": "word " * 3000}]}, "2048")):
        status, data = s.ask("POST", path, body)
        e = json.loads(data)
        assert status == 400 and list(e) == ["error"] and words in e["error"], (body, data[:300])


def kept():
    """keep_alive: how long a model stays, whatever --idle says."""
    s = Server("--cache-size", "0")
    state = lambda: s.json("/v1/models")[1]["data"][0]["state"]
    s.json("/api/generate", {"keep_alive": "10m"})
    same(s.json("/v1/models")[1]["data"][0]["idle_s"], 600, "ten minutes")
    for keep, want in ((-1, None), ("1h30m", 5400), (90, 90)):
        s.json("/api/chat", {"messages": [USER], "options": {"num_predict": 1}, "keep_alive": keep, "stream": False})
        same(s.json("/v1/models")[1]["data"][0].get("idle_s"), want, keep)
    same(s.json("/api/generate", {"keep_alive": 0})[1]["done_reason"], "unload", "it leaves")
    while state() != "away":
        pass
    same(s.json("/api/ps"), (200, {"models": []}), "nothing runs")
    assert s.json("/api/chat", {"messages": [USER], "options": COLD, "stream": False})[1]["message"]["content"]
    same((state(), "idle_s" in s.json("/v1/models")[1]["data"][0]), ("ready", False), "back, and as usual")
    s.stop()


server = Server("--cache-size", "0")
for check in (chat, generate, forms, vectors, lists, kinds, wrong):
    check(server)
    print(check.__name__, "ok", flush=True)
server.stop()
kept()
print("kept ok")
embedding()
print("embedding ok")
abilities()
print("abilities ok")
