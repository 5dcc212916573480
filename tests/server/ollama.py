"""Ollama's API: its answers are compared with those of the other APIs, its lists with /v1/models."""
import json
import re

from served import Server, same

USER = {"role": "user", "content": "Say a word."}
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


def generate(s):
    want = s.json("/api/chat", {"messages": [{"role": "system", "content": "Be brief."}, USER], "options": COLD, "stream": False})[1]["message"]["content"]
    ask = {"prompt": USER["content"], "system": "Be brief.", "options": COLD}
    same("".join(x["response"] for x in lines(s, "/api/generate", ask)), want, "through the template")
    plain = s.json("/v1/completions", {"prompt": "Once upon", "max_tokens": 8, "temperature": 0})[1]["choices"][0]["text"]
    same(s.json("/api/generate", {"prompt": "Once upon", "raw": True, "options": COLD, "stream": False})[1]["response"], plain, "raw")
    same(s.json("/api/generate", {"prompt": "Once", "suffix": "end", "options": COLD})[0], 400, "a model that does not fill in")
    same(s.json("/api/generate", {"stream": False})[1]["done_reason"], "load", "loading")


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


def lists(s):
    model = s.json("/v1/models")[1]["data"][0]
    for path in ("/api/tags", "/api/ps"):
        m = s.json(path)[1]["models"]
        same([(x["name"], x["model"], x["details"]["family"], len(x["digest"])) for x in m], [("tern-tiny", "tern-tiny", model["meta"]["arch"], 64)], path)
    same(s.json("/api/ps")[1]["models"][0]["context_length"], 2048, "context")
    r = s.json("/api/show", {"model": "tern-tiny"})[1]
    arch = r["model_info"]["general.architecture"]
    same((r["model_info"]["general.parameter_count"], r["model_info"][arch + ".block_count"]), (model["meta"]["n_params"], model["meta"]["n_layers"]), r)
    assert "im_start" in r["template"] and r["capabilities"][0] == "completion", r
    assert re.fullmatch(r"\d+\.\d+\.\d+", s.json("/api/version")[1]["version"])
    same(s.ask("HEAD", "/")[0], 200, "the command line's first request")
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete"), ("POST", "/api/create")):
        status, data = s.ask(method, path, {"model": "x"})
        assert status == 501 and "error" in json.loads(data), data


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
for check in (chat, generate, forms, vectors, lists, wrong):
    check(server)
    print(check.__name__, "ok", flush=True)
server.stop()
kept()
print("kept ok")
