"""What holds for requests that do not say it, as the server was started, and what llama.cpp's clients read besides the answer."""
import json
import os
import time

from served import Server, same

USER = {"role": "user", "content": "Say a word."}
TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../oracle/templates/")


def settled():
    """Temperature, seed and length of a request are the server's where it has none of its own, in every API."""
    s = Server("--temp", "1.5", "--seed", "7", "-n", "9", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--verbose", "--cache-size", "0")
    said = {"temperature": 1.5, "seed": 7, "max_tokens": 9, "top_k": 0, "top_p": 1, "min_p": 0}
    for path, ask, text in (("/v1/completions", {"prompt": "Once"}, lambda r: r["choices"][0]["text"]),
                            ("/completion", {"prompt": "Once"}, lambda r: r["content"]),
                            ("/v1/chat/completions", {"messages": [USER]}, lambda r: r["choices"][0]["message"]["content"]),
                            ("/api/chat", {"messages": [USER], "stream": False}, lambda r: r["message"]["content"])):
        spelt = dict(ask, options=dict(said, num_predict=9)) if path == "/api/chat" else dict(ask, **said)
        a, b = (text(s.json(path, x)[1]) for x in (ask, spelt))
        same(a, b, path)
        other = dict(ask, options={"seed": 8}) if path == "/api/chat" else dict(ask, seed=8)
        assert text(s.json(path, other)[1]) != a, "a request's own seed goes before the server's"
    r = s.json("/v1/chat/completions", {"messages": [USER], "n": 2})[1]
    alone = [s.json("/v1/chat/completions", {"messages": [USER], "seed": 7 + i})[1]["choices"][0]["message"] for i in range(2)]
    same([x["message"] for x in r["choices"]], alone, "seeds of several answers count up")
    p = s.json("/props")[1]["default_generation_settings"]["params"]
    same({k: p[k] for k in ("temperature", "seed", "n_predict")}, {"temperature": 1.5, "seed": 7, "n_predict": 9}, p)
    v = r["__verbose"]
    same((v["prompt"], v["generation_settings"]["seed"], v["tokens_predicted"]), (s.json("/apply-template", {"messages": [USER]})[1]["prompt"], 7, 9), v)
    s.stop()


def told(s):
    """Fields of llama.cpp's server beside the answer."""
    ask = {"prompt": "Once upon a time", "n_predict": 4, "temperature": 0}
    same("__verbose" in s.json("/v1/chat/completions", {"messages": [USER], "max_tokens": 1})[1], False, "not asked for")
    r = s.json("/v1/chat/completions", {"messages": [USER], "max_tokens": 1, "verbose": True, "return_tokens": True})[1]
    same(len(r["__verbose"]["tokens"]), 1, "asked for")
    ends = s.json("/completion", dict(ask, ignore_eos=True))[1]["generation_settings"]["logit_bias"]
    assert ends and all(x["bias"] is None and x["token"] >= 0 for x in ends), ends
    same(s.json("/completion", ask)[1]["generation_settings"]["logit_bias"], [], "no biases")
    same(s.json("/completion", dict(ask, logit_bias=[[3, -1]]))[1]["generation_settings"]["logit_bias"], [[3, -1]], "the request's biases")


def drawn(s):
    """Probabilities that tokens are drawn with: after temperature and filters, those that were filtered out are missing."""
    ask = {"prompt": "Once upon a time", "n_predict": 6, "seed": 3, "temperature": 0.7, "top_k": 5, "top_p": 1, "min_p": 0, "n_probs": 8, "post_sampling_probs": True}
    for t in s.json("/completion", ask)[1]["completion_probabilities"]:
        p = [x["prob"] for x in t["top_probs"]]
        same((len(p), p), (5, sorted(p, reverse=True)), "five are left, the likeliest first")
        assert abs(sum(p) - 1) < 1e-5, p
        same([x["prob"] for x in t["top_probs"] if x["id"] == t["id"]], [t["prob"]], "the token is one of them")
    raw = s.json("/completion", dict(ask, post_sampling_probs=False, n_predict=1))[1]["completion_probabilities"][0]["top_logprobs"][:5]
    import math
    w = [math.exp(x["logprob"] / 0.7) for x in raw]
    first = s.json("/completion", dict(ask, n_predict=1))[1]["completion_probabilities"][0]["top_probs"]
    for x, y, k in zip(raw, first, w):
        assert x["id"] == y["id"] and abs(k / sum(w) - y["prob"]) < 1e-4, (x, y, k / sum(w))
    t = s.json("/completion", dict(ask, temperature=0))[1]["completion_probabilities"][0]
    same(([x["prob"] for x in t["top_probs"]], t["prob"]), ([1], 1), "the likeliest is sure")
    t = s.json("/v1/chat/completions", {"messages": [USER], "max_tokens": 2, "logprobs": True, "top_logprobs": 3, "post_sampling_probs": True})[1]["choices"][0]["logprobs"]["content"]
    assert len(t) == 2 and all(0 < x["prob"] <= 1 and len(x["top_probs"]) <= 3 for x in t), t
    t = s.json("/v1/completions", {"prompt": "Once", "max_tokens": 2, "logprobs": 2, "post_sampling_probs": True})[1]["choices"][0]["logprobs"]
    assert len(t["token_logprobs"]) == 2 and all(0 < x <= 1 for x in t["token_logprobs"]), t


def goes_on(s):
    """An answer that is begun, by the name that other servers have for it; and tokens of a chat counted."""
    ask = {"messages": [USER, {"role": "assistant", "content": "The owl"}], "max_tokens": 6, "temperature": 0}
    a, b = (s.json("/v1/chat/completions", dict(ask, **more))[1]["choices"] for more in ({}, {"add_generation_prompt": False, "continue_final_message": True}))
    same(a, b, "continued")
    for more in ({}, {"add_generation_prompt": True}):
        fresh = s.json("/apply-template", dict(ask, continue_final_message=False, **more))[1]["prompt"]
        assert fresh.endswith("<|im_start|>assistant\nThe owl<|im_end|>\n<|im_start|>assistant\n"), fresh
    status, r = s.json("/v1/chat/completions", dict(ask, add_generation_prompt=True, continue_final_message=True))
    assert status == 400 and "continue_final_message" in r["error"]["message"], r
    want = s.json("/v1/chat/completions", dict(ask, messages=[USER]))[1]["usage"]["prompt_tokens"]
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        same(s.json(path, {"messages": [USER]}), (200, {"input_tokens": want}), path)


def turns(s):
    """What an assistant said before: thoughts alone, and calls whose arguments are an object or nothing."""
    told = lambda m: s.json("/apply-template", {"messages": [USER, m, USER]})
    want = told({"role": "assistant", "content": ""})
    for c in ({"content": None}, {}, {"content": ""}):
        same(told(dict(c, role="assistant", reasoning_content="Hm.")), want, c)
    status, r = told({"role": "assistant", "content": None})
    assert status == 400 and "no content" in r["error"]["message"], r
    same(told({"role": "user", "content": None, "reasoning_content": "Hm."})[0], 400, "a user's thoughts are no content")
    same(s.json("/v1/responses", {"input": [USER, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}, USER], "max_output_tokens": 1})[0], 200, "Responses")
    call = lambda args: {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": args}}]}
    as_text = '{"b":[1,"x"],"a":2.5}'
    assert f'"arguments": {as_text}' in told(call(as_text))[1]["prompt"], told(call(as_text))
    same(told(call(json.loads(as_text))), told(call(as_text)), "an object")
    same(told(call("")), told(call("{}")), "no words")
    for bad in (None, 1, ["x"], True):
        status, r = told(call(bad))
        assert status == 400 and "an object" in r["error"]["message"], (bad, r)


def objects():
    """A template that loops over arguments gets objects."""
    s = Server("--chat-template", TEMPLATES + "Qwen-Qwen3-0.6B.jinja", "--cache-size", "0")
    for args, want in (({"a": 1}, '"arguments": {"a": 1}'), ('{"a":1}', '"arguments": {"a": 1}'), ("", '"arguments": {}'), (" ", '"arguments": {}'), ('{"a":"\\u0000"}', '"arguments": {"a": "\ufffd"}')):
        p = s.json("/apply-template", {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": args}}]}, USER]})[1]["prompt"]
        assert want in p, (args, p)
    s.stop()


def thinking():
    """--thinking settles what requests do not say, whatever way the template has to hear it."""
    ask = {"messages": [USER]}
    for name, on, off in (("Qwen-Qwen3-0.6B.jinja", "<|im_start|>assistant\n", "<think>\n\n</think>\n\n"), ("Qwen-QwQ-32B.jinja", "<think>\n", "</think>")):
        for flag, end, other in (("on", on, off), ("off", off, on)):
            s = Server("--chat-template", TEMPLATES + name, "--thinking", flag, "--cache-size", "0")
            p = s.json("/apply-template", ask)[1]["prompt"]
            assert p.endswith(end), (name, flag, p[-60:])
            p = s.json("/apply-template", dict(ask, chat_template_kwargs={"enable_thinking": flag == "off"}))[1]["prompt"]
            assert p.endswith(other), (name, flag, p[-60:])
            s.stop()


def begun_thoughts():
    """A turn that is begun with a thought goes on with it, and the schema is the rest's."""
    s = Server("--chat-template", TEMPLATES + "Qwen-Qwen3-0.6B.jinja", "--cache-size", "0")
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}
    for begun, open_thought in (("<think>\n", True), ("<think>\nHm", True), ('<think>\nHm.\n</think>\n\n{"a":', False), ('</think>{"a":', False)):
        c = s.json("/v1/chat/completions", {"messages": [USER, {"role": "assistant", "content": begun}], "json_schema": schema, "max_tokens": 60, "temperature": 0})[1]["choices"][0]
        same(("reasoning_content" in c["message"], "schema_check" in c), (open_thought, False), (begun, c))
        v = json.loads(("" if open_thought else '{"a":') + c["message"]["content"])
        assert list(v) == ["a"] and 0 <= v["a"] <= 9, (begun, c)
    s.stop()


def lives():
    """Anthropic's streams have the API's own pings from the beginning: here its turn comes after some of a hundred answers that go before."""
    s = Server("--sessions", "1", "--queue", "1000", "--cache-size", "0")

    def send(path, body):
        text = json.dumps(body)
        return s.raw(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    def until(c, word):
        told = b""
        while word not in told:
            more = c.recv(1 << 16)
            assert more, told
            told += more
        return told
    for n in (250, 500, 1000, 2000, 2000):  # few tokens take a slow machine long enough
        first = send("/v1/completions", {"prompt": "Once", "n": 100, "ignore_eos": True, "max_tokens": n, "stream": True, "priority": "interactive"})
        until(first, b"data: ")
        begin = time.monotonic()
        c = send("/v1/messages", {"messages": [USER], "max_tokens": 4, "stream": True, "priority": "background"})
        told = until(c, b"message_start")
        waited = time.monotonic() - begin
        if b"message_stop" not in told:
            until(c, b"message_stop")
        first.close()
        c.close()
        if waited > 2.5:  # else no second passed, after which there would have been one
            before = told[:told.index(b"message_start")]
            assert b'event: ping\ndata: {"type":"ping"}\n\n' in before, told
            break
    else:
        print("no stream waited long enough for a ping")
    s.stop()


settled()
print("settled ok", flush=True)
server = Server("--cache-size", "0")
for check in (told, drawn, goes_on, turns):
    check(server)
    print(check.__name__, "ok", flush=True)
server.stop()
objects()
print("objects ok", flush=True)
begun_thoughts()
print("begun_thoughts ok", flush=True)
lives()
print("lives ok", flush=True)
thinking()
print("thinking ok")
