"""Clients that were made for other servers: llama.cpp's addresses and fields, and the parts of OpenAI's API that one plain answer does not touch."""
import http.client
import json
import os
import shutil
import subprocess
import tempfile

from served import MODEL, TERN, Server, same

USER = {"role": "user", "content": "Say a word."}


def plain(s, prompt, n, **more):
    """The text by the plainest way there is, to compare with."""
    status, r = s.json("/v1/completions", dict({"prompt": prompt, "max_tokens": n, "temperature": 0}, **more))
    same(status, 200, r)
    return r["choices"][0]["text"]


def headers_of(s, path, body):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=1200)
    c.request("POST", path, json.dumps(body))
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, dict(r.getheaders()), data


def sse(s, path, body):
    status, data = s.ask("POST", path, dict(body, stream=True))
    assert status == 200, data
    return [json.loads(x[6:]) for x in data.decode().split("\n\n") if x.startswith("data: {")]


def addresses(s):
    """The same behind every name of an address."""
    ask = {"messages": [USER], "max_tokens": 6, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    a, b = (s.json(p, ask)[1]["choices"] for p in ("/v1/chat/completions", "/chat/completions"))
    same(a, b, "with and without /v1")
    same(s.json("/v1/models"), s.json("/models"), "models")
    same(s.json("/models/tern-tiny")[1]["id"], "tern-tiny", "one model")
    same(s.json("/v1/health"), (200, {"status": "ok"}), "health")
    p = s.json("/props")[1]
    same((p["total_slots"], p["default_generation_settings"]["n_ctx"], p["modalities"]["vision"]), (8, 2048, False), p)
    assert "im_start" in p["chat_template"] and "/" not in p["model_path"], p
    same([x["is_processing"] for x in s.json("/slots")[1]], [False] * 8, "slots")
    same(s.json("/lora-adapters"), (200, []), "adapters")
    same(s.json("/lora-adapters", []), (200, {"success": True}), "no scales of no adapters")
    status, r = s.json("/props", {})
    same((status, r["error"]["type"]), (501, "not_supported_error"), "/props")
    v, rows = s.json("/v1/embeddings", {"input": ["a cat", "a dog"]})[1]["data"], s.json("/embedding", {"content": ["a cat", "a dog"]})[1]
    same([[x["embedding"]] for x in v], [x["embedding"] for x in rows], "vectors in both forms")


def own_form(s):
    """/completion of llama.cpp's server."""
    ask = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}
    want = plain(s, ask["prompt"], 12)
    r = s.json("/completion", dict(ask, return_tokens=True))[1]
    same((r["content"], r["stop"], r["stop_type"], r["truncated"], r["tokens_predicted"]), (want, True, "limit", False, 12), r)
    same(s.json("/detokenize", {"tokens": r["tokens"]})[1]["content"], want, "its tokens")
    same(r["timings"]["prompt_n"] + r["timings"]["cache_n"], r["tokens_evaluated"], r)
    same((r["generation_settings"]["n_predict"], r["generation_settings"]["temperature"]), (12, 0), r)
    e = sse(s, "/completion", ask)
    same("".join(x["content"] for x in e), want, "streamed")
    same([len(x["tokens"]) for x in e[:-1]], [1] * 12, "an event a token")
    same((e[-1]["stop"], e[-1]["stop_type"], [x["stop"] for x in e[:-1]]), (True, "limit", [False] * 12), e[-1])
    word = want.split()[2]
    r = s.json("/completion", dict(ask, stop=[word]))[1]
    same((r["stop_type"], r["stopping_word"], r["content"]), ("word", word, want[: want.index(word)]), r)
    same(set(s.json("/completion", dict(ask, response_fields=["content", "generation_settings/n_predict", "nothing"]))[1]), {"content", "generation_settings/n_predict"}, "fields chosen")
    r = s.json("/completion", dict(ask, n_probs=3))[1]["completion_probabilities"]
    assert len(r) == 12 and all(len(t["top_logprobs"]) == 3 and t["top_logprobs"][0]["id"] == t["id"] for t in r), r
    # prompts of every form, and several
    ids = s.json("/tokenize", {"content": ask["prompt"], "add_special": True})[1]["tokens"]
    half = s.json("/tokenize", {"content": "Once upon"})[1]["tokens"]
    for p in (ids, {"prompt_string": ask["prompt"]}, half + [" a time"]):
        same(s.json("/completion", dict(ask, prompt=p))[1]["content"], want, p)
    r = s.json("/completion", dict(ask, prompt=[ids, ask["prompt"], "The king"]))[1]
    same([(x["index"], x["content"]) for x in r], [(0, want), (1, want), (2, plain(s, "The king", 12))], "three prompts")
    # what it reads while it reads
    e = sse(s, "/completion", dict(ask, prompt="The keeper wrote down every bird. " * 60, return_progress=True))
    p = [x["prompt_progress"] for x in e if "prompt_progress" in x]
    assert len(p) > 1 and all(a["processed"] < b["processed"] for a, b in zip(p, p[1:])) and p[-1]["processed"] == p[-1]["total"], p
    # how long every piece took: counts that grow to those of the end
    for path, text in (("/completion", lambda x: x.get("content")), ("/v1/chat/completions", lambda x: x["choices"] and x["choices"][0]["delta"].get("content")), ("/v1/completions", lambda x: x["choices"] and x["choices"][0]["text"])):
        body = {"messages": [USER], "max_tokens": 12, "temperature": 0} if "chat" in path else dict(ask, max_tokens=12)
        e = sse(s, path, dict(body, timings_per_token=True))
        n = [x["timings"]["predicted_n"] for x in e if text(x)]
        assert n and n[0] >= 1 and n == sorted(n) and n[-1] <= 12 and len(set(n)) > 3, (path, n)
        assert all(x["timings"]["prompt_per_second"] > 0 for x in e if text(x)), path
        assert not any("timings" in x for x in sse(s, path, body)[:-1]), path
    assert s.json("/completion", dict(ask, ignore_eos=True, n_predict=40))[1]["tokens_predicted"] == 40
    same(s.json("/infill", {"input_prefix": "a", "input_suffix": "b"})[0], 400, "a model that does not fill in says so")
    same(s.json("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": 1}]})[0], 400, "files")


def tokens(s):
    text = "Grüße 媽"
    r = s.json("/tokenize", {"content": text, "with_pieces": True})[1]["tokens"]
    raw = b"".join(t["piece"].encode() if isinstance(t["piece"], str) else bytes(t["piece"]) for t in r)
    same((raw.decode(), [t["id"] for t in r]), (text, s.json("/tokenize", {"content": text})[1]["tokens"]), "pieces")
    special, spelled = (s.json("/tokenize", {"content": "<|im_end|>", "parse_special": p})[1]["tokens"] for p in (True, False))
    assert len(special) == 1 and len(spelled) > 1, (special, spelled)
    ask = {"messages": [{"role": "system", "content": "Be brief."}, USER]}
    p = s.json("/apply-template", ask)[1]["prompt"]
    same(p, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSay a word.<|im_end|>\n<|im_start|>assistant\n", "a prompt")
    same(s.json("/apply-template", dict(ask, add_generation_prompt=False))[1]["prompt"], p[: p.rindex("<|im_start|>")], "without the answer's head")
    chat = s.json("/v1/chat/completions", dict(ask, max_tokens=9, temperature=0))[1]["choices"][0]["message"]["content"]
    same(plain(s, p, 9), chat, "the template's text as a prompt is the conversation")


def ignored(s):
    """What is not followed is named, and no field that is."""
    ask = {"messages": [USER], "max_tokens": 2}
    status, h, _ = headers_of(s, "/v1/chat/completions", dict(ask, temprature=1, xtc_probability=0.5, user="me", cache_prompt=True, mirostat=0, modalities=["text"], id_slot=-1))
    same((status, h.get("X-Tern-Ignored")), (200, "temprature, xtc_probability"), h)
    same(headers_of(s, "/v1/chat/completions", dict(ask, stream=True, **{"a\r\nb": 1, "é" * 9: 2}))[1]["X-Tern-Ignored"], "a??b, " + "?" * 18, "names that are none")
    same(headers_of(s, "/v1/messages", dict(ask, mcp_servers=[1]))[1]["X-Tern-Ignored"], "mcp_servers", "Anthropic's")
    same(headers_of(s, "/v1/embeddings", {"input": "a", "task": "x"})[1]["X-Tern-Ignored"], "task", "embeddings")
    for norm, told in ((2, None), (-1, "embd_normalize")):
        same(headers_of(s, "/embedding", {"content": "a", "embd_normalize": norm})[1].get("X-Tern-Ignored"), told, "llama.cpp's own way says nothing")
    for path, more in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": "a"}), ("/completion", {"prompt": "a", "n_predict": 1}), ("/v1/messages", {}), ("/v1/responses", {"input": "a"}), ("/api/chat", {"stream": False}), ("/v1/embeddings", {"input": "a"})):
        told = headers_of(s, path, dict({} if "input" in more or "prompt" in more else ask, **more, samplers=None, whatever=None))[1].get("X-Tern-Ignored", "")
        assert "samplers" not in told and "whatever" not in told, (path, "null", told)
    assert "X-Tern-Ignored" not in headers_of(s, "/v1/chat/completions", ask)[1]
    many = headers_of(s, "/v1/chat/completions", dict(ask, **{"f%d" % i: 1 for i in range(2000)}))[1]["X-Tern-Ignored"]
    assert 900 < len(many) < 1024, many
    for field in ("functions", "audio", "web_search_options"):
        status, r = s.json("/v1/chat/completions", dict(ask, **{field: [{}]}))
        assert status == 400 and field in r["error"]["message"], r


def words(s):
    """A word of a field that has a list of them: another one, or none at all, is refused with the list."""
    chat, response, message, ollama = {"messages": [USER], "max_tokens": 1}, {"input": "x", "max_output_tokens": 1}, {"messages": [USER], "max_tokens": 1}, {"messages": [USER], "stream": False, "options": {"num_predict": 1}}
    efforts = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "", None)
    for path, ask, name, field, good in (("/v1/chat/completions", chat, "reasoning_effort", lambda v: {"reasoning_effort": v}, efforts), ("/v1/responses", response, "reasoning.effort", lambda v: {"reasoning": {"effort": v}}, efforts),
                                         ("/v1/messages", message, "output_config.effort", lambda v: {"output_config": {"effort": v}}, efforts), ("/api/chat", ollama, "think", lambda v: {"think": v}, efforts + (True, False)),
                                         ("/v1/chat/completions", chat, "continue_final_message", lambda v: {"continue_final_message": v}, (True, False, None, "content")), ("/v1/chat/completions", chat, "add_generation_prompt", lambda v: {"add_generation_prompt": v}, (True, None)),
                                         ("/v1/chat/completions", chat, "verbosity", lambda v: {"verbosity": v}, ("low", "medium", "high", "", None)), ("/v1/responses", response, "text.verbosity", lambda v: {"text": {"verbosity": v}}, ("low", "medium", "high", None))):
        for v in good:
            status, r = s.json(path, dict(ask, **field(v)))
            same(status, 200, (path, name, v, r))
        for v in ("x", "lo", "low, medium", 5, ["low"], {}):
            status, r = s.json(path, dict(ask, **field(v)))
            message = r["error"] if path[1] == "a" else r["error"]["message"]
            assert status == 400 and f"'{name}' must be " in message, (path, name, v, status, r)
    for path, ask, name, field in (("/v1/chat/completions", chat, "verbosity", lambda v: {"verbosity": v}), ("/v1/responses", response, "text.verbosity", lambda v: {"text": {"verbosity": v}})):
        told = [headers_of(s, path, dict(ask, **field(v)))[1].get("X-Tern-Ignored") for v in ("low", "high", "medium", None)]
        same(told, [name, name, None, None], "it is not followed; medium is how it is")
    begun = dict(chat, messages=[USER, {"role": "assistant", "content": "The owl"}], max_tokens=6, temperature=0)
    a, b = (s.json("/v1/chat/completions", dict(begun, add_generation_prompt=False, continue_final_message=v))[1]["choices"] for v in (True, "content"))
    same(a, b, "llama.cpp's word")


def choices(s):
    """Several answers to one request are the answers that each seed gives alone."""
    ask = {"messages": [USER], "max_tokens": 10, "temperature": 1.2, "seed": 40, "n": 3}
    r = s.json("/v1/chat/completions", ask)[1]
    alone = [s.json("/v1/chat/completions", dict(ask, n=1, seed=40 + i))[1] for i in range(3)]
    same([c["index"] for c in r["choices"]], [0, 1, 2], "their order")
    same([c["message"]["content"] for c in r["choices"]], [a["choices"][0]["message"]["content"] for a in alone], "the answers")
    same((r["usage"]["prompt_tokens"], r["usage"]["completion_tokens"]), (alone[0]["usage"]["prompt_tokens"], sum(a["usage"]["completion_tokens"] for a in alone)), r["usage"])
    texts, ends = {}, {}
    e = s.events("/v1/chat/completions", dict(ask, stream_options={"include_usage": True}))
    for x in e:
        for c in x["choices"]:
            texts[c["index"]] = texts.get(c["index"], "") + (c["delta"].get("content") or "")
            if c["finish_reason"]:
                ends[c["index"]] = c["finish_reason"]
    same(([texts[i] for i in range(3)], len(ends), len({x["id"] for x in e})), ([a["choices"][0]["message"]["content"] for a in alone], 3, 1), "streamed")
    same((e[-1]["choices"], e[-1]["usage"]["completion_tokens"]), ([], r["usage"]["completion_tokens"]), e[-1])
    r = s.json("/v1/completions", {"prompt": ["Once upon", "The king"], "n": 2, "max_tokens": 5, "temperature": 0})[1]
    want = [plain(s, p, 5) for p in ("Once upon", "The king")]
    same([c["text"] for c in r["choices"]], [want[0], want[0], want[1], want[1]], "two prompts, twice each")
    assert s.json("/v1/completions", {"prompt": ["x"] * 20, "max_tokens": 1})[0] == 200, "more than there are sessions"
    for n, words in ((0, "1 to 128"), (129, "1 to 128")):
        status, e = s.json("/v1/chat/completions", dict(ask, n=n))
        assert status == 400 and words in e["error"]["message"], e
    same(s.json("/v1/completions", {"prompt": ["x"] * 65, "n": 2})[0], 400, "too many in all")
    texts = {s.json("/v1/completions", {"prompt": "Once", "max_tokens": 12, "temperature": 2})[1]["choices"][0]["text"] for _ in range(6)}
    assert len(texts) > 1, "a seed that nobody gave is another one each time"


def shaped(s):
    """Biases and penalties, by what they must do to the likeliest tokens."""
    ask = {"prompt": "Once upon a time there was a", "max_tokens": 8, "temperature": 0}
    first = s.json("/tokenize", {"content": plain(s, ask["prompt"], 1)})[1]["tokens"][0]
    other = s.json("/tokenize", {"content": " zebra"})[1]["tokens"][0]
    for bias in ({str(first): -100}, [[first, -100]], [[first, False]]):
        got = s.json("/completion", dict(ask, n_predict=8, return_tokens=True, logit_bias=bias))[1]["tokens"]
        assert first not in got and got, (bias, got)
    got = s.json("/completion", dict(ask, n_predict=8, return_tokens=True, logit_bias={str(other): 100}))[1]["tokens"]
    same(got, [other] * 8, "a bias that wins")
    got = s.json("/completion", dict(ask, n_predict=8, return_tokens=True, presence_penalty=200, logit_bias={str(other): 100}))
    assert got[0] == 400, "beyond the range"
    for penalty in ("presence_penalty", "frequency_penalty"):
        got = s.json("/completion", dict(ask, n_predict=30, return_tokens=True, **{penalty: 100}))[1]["tokens"]
        same(len(got), len(set(got)), "no token twice: " + penalty)
    same(plain(s, ask["prompt"], 8, top_p=0, temperature=1), plain(s, ask["prompt"], 8), "top_p 0 is the likeliest")
    for bad in ({"x": "y"}, 3, [[1]], {"99999999": 1}):
        status, r = s.json("/v1/completions", dict(ask, logit_bias=bad))
        assert status == 400 and "logit_bias" in r["error"]["message"], r


def texts(s):
    ask = {"prompt": "Once upon", "max_tokens": 4, "temperature": 0}
    want = plain(s, ask["prompt"], 4)
    same(plain(s, ask["prompt"], 4, echo=True), "Once upon" + want, "echo")
    same("".join(c["text"] for e in s.events("/v1/completions", dict(ask, echo=True)) for c in e["choices"]), "Once upon" + want, "streamed echo")
    r = s.json("/v1/completions", dict(ask, logprobs=2))[1]["choices"][0]["logprobs"]
    same(("".join(r["tokens"]), [len(t) for t in r["top_logprobs"]], len(r["token_logprobs"])), (want, [2] * 4, 4), r)
    same(r["text_offset"], [sum(len(t) for t in r["tokens"][:i]) for i in range(4)], "offsets")
    assert all(abs(t[k] - lp) < 1e-5 for t, k, lp in zip(r["top_logprobs"], r["tokens"], r["token_logprobs"])), r
    for more, words in (({"suffix": "the end"}, "does not fill in"), ({"prompt": [[]]}, "'prompt'"), ({"prompt": []}, "'prompt'"), ({"prompt": [10**8]}, "which the model has not")):
        status, e = s.json("/v1/completions", dict(ask, **more))
        assert status == 400 and words in e["error"]["message"], e
    # an answer that is begun goes on
    told = {"messages": [USER], "max_tokens": 12, "temperature": 0}
    whole = s.json("/v1/chat/completions", told)[1]["choices"][0]["message"]["content"]
    ids = s.json("/tokenize", {"content": whole})[1]["tokens"]
    begun = s.json("/detokenize", {"tokens": ids[:3]})[1]["content"]
    for m in (begun, [{"type": "text", "text": begun[:2]}, {"type": "text", "text": begun[2:]}]):
        r = s.json("/v1/chat/completions", dict(told, max_tokens=len(ids) - 3, messages=[USER, {"role": "assistant", "content": m}]))[1]
        same(begun + r["choices"][0]["message"]["content"], whole, "an answer that was begun")
    r = s.json("/v1/messages", dict(told, max_tokens=len(ids) - 3, messages=[USER, {"role": "assistant", "content": begun}]))[1]
    same(begun + r["content"][0]["text"], whole, "Anthropic's prefill")
    same(s.json("/v1/chat/completions", dict(told, messages=[USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]))[0], 400, "two answers")
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "this"}]
    p = s.json("/apply-template", {"messages": [{"role": "user", "content": parts}]})[1]["prompt"]
    assert "What is\nthis" in p, p
    r = s.json("/v1/chat/completions", {"messages": [USER], "max_tokens": 60, "response_format": {"type": "json_object", "schema": {"const": "42"}}})[1]
    same(r["choices"][0]["message"]["content"], '"42"', "json_object with a schema")
    short = s.json("/v1/embeddings", {"input": "a cat", "dimensions": 8})[1]["data"][0]["embedding"]
    full = s.json("/v1/embeddings", {"input": "a cat"})[1]["data"][0]["embedding"]
    norm = sum(x * x for x in full[:8]) ** 0.5
    assert len(short) == 8 and all(abs(a - b / norm) < 1e-5 for a, b in zip(short, full)), short
    ids = s.json("/tokenize", {"content": "a cat", "add_special": True})[1]["tokens"]
    same(s.json("/v1/embeddings", {"input": [ids, "a cat"]})[1]["data"][0]["embedding"], full, "tokens as input")


def failures(s):
    status, r = s.json("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 3000}]})
    e = r["error"]
    same((status, e["type"], e["code"], e["n_ctx"]), (400, "exceed_context_size_error", "context_length_exceeded", 2048), e)
    assert e["n_prompt_tokens"] > 3000 and str(e["n_prompt_tokens"]) in e["message"] and "2048" in e["message"], e
    status, m = s.json("/v1/messages", {"messages": [{"role": "user", "content": "word " * 3000}], "max_tokens": 1}, {"x-api-key": "k", "anthropic-version": "2023-06-01"})
    same((status, m["error"]["message"]), (400, f"prompt is too long: {e['n_prompt_tokens']} tokens > 2048 maximum"), "in Anthropic's words, which its clients know")
    same(s.json("/nope")[1]["error"]["code"], "not_found", "an address")
    same(s.json("/v1/models/nobody")[1]["error"]["code"], "model_not_found", "a model")
    r = s.json("/v1/models/nobody", headers={"anthropic-version": "2023-06-01"})[1]
    same((r["type"], r["error"]["type"]), ("error", "not_found_error"), "a model, by Anthropic's API")
    status, r = s.json("/completion", {"prompt": "x", "n_predict": 1, "response_fields": "content"})
    assert status == 400 and "'response_fields' must be a list" in r["error"]["message"], r
    same(s.json("/v1/chat/completions", {"messages": [USER], "max_tokens": "x"})[1]["error"]["code"], "invalid_request", "a field")
    status, r = s.json("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "word " * 3000}]})
    same((status, r["error"]["type"]), (400, "invalid_request_error"), r)


def anthropic(s):
    """What Anthropic's clients send besides words: each is compared with the plain words that it stands for."""
    ask = {"max_tokens": 10, "temperature": 0}

    def said(content, **more):
        status, r = s.json("/v1/messages", dict(ask, messages=[{"role": "user", "content": content}], **more))
        same(status, 200, r)
        return r["content"][0]["text"]

    cached = {"cache_control": {"type": "ephemeral"}}
    document = {"type": "document", "title": "Birds", "context": "Of 1890.", "source": {"type": "text", "media_type": "text/plain", "data": "The owl came."}, **cached}
    found = {"type": "search_result", "source": "http://x", "title": "Birds", "content": [{"type": "text", "text": "The owl came."}]}
    parts = dict(document, source={"type": "content", "content": [{"type": "text", "text": "The owl came."}]})
    question = {"type": "text", "text": "What came?", **cached}
    want = said("Birds\nOf 1890.\nThe owl came.\nWhat came?")
    same([said([document, question]), said([parts, question], **cached), said([found, question])], [want, want, said("Birds\nhttp://x\nThe owl came.\nWhat came?")], "documents")
    for bad in ({"type": "document", "source": {"type": "base64", "data": "JVBE"}}, {"type": "document"}, {"type": "image", "source": {}}):
        status, r = s.json("/v1/messages", dict(ask, messages=[{"role": "user", "content": [bad]}]))
        assert status == 400 and r["type"] == "error", r
    schema = {"type": "object", "properties": {"a": {"const": 4}}, "required": ["a"], "additionalProperties": False}
    for more in ({"output_config": {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}}, {"output_format": {"type": "json_schema", "schema": schema}}):
        r = s.json("/v1/messages", dict(ask, max_tokens=60, messages=[USER], **more))[1]
        same(json.loads(r["content"][0]["text"]), {"a": 4}, r)
    for bad, name in (([], "output_config"), (5, "output_config"), ("x", "output_config"), ({"effort": 5}, "output_config.effort"), ({"effort": ["low"]}, "output_config.effort")):
        status, r = s.json("/v1/messages", dict(ask, messages=[USER], output_config=bad))
        assert status == 400 and f"'{name}' must be " in r["error"]["message"], (bad, status, r)
    same([s.json("/v1/messages", dict(ask, messages=[USER], output_config=v))[0] for v in (None, {}, {"effort": None, "format": None})], [200] * 3, "nothing is said")
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "clock", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}]
    status, h, data = headers_of(s, "/v1/messages", dict(ask, messages=[USER], tools=tools, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}))
    same((status, h["X-Tern-Ignored"], json.loads(data)["context_management"]), (200, "context_management, tools.web_search_20250305", {"applied_edits": []}), data)
    same(s.json("/v1/messages", dict(ask, messages=[USER], tools=tools[:1]))[0], 200, "no tool of one's own")
    back = [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "tern"}, {"type": "redacted_thinking", "data": "x"}, {"type": "tool_use", "id": "1", "name": "clock", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [document]}]}]
    same(s.json("/v1/messages", dict(ask, messages=back, tools=tools))[0], 200, "a result that is a document")


def signed():
    """A thought is signed, so that clients send it back, and is told to the model while it uses tools."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../oracle/templates/")
    s = Server("--chat-template", here + "Qwen-Qwen3-0.6B.jinja", "--cache-size", "0")
    ask = {"messages": [USER], "max_tokens": 100, "tools": [{"name": "clock", "input_schema": {"type": "object"}}]}
    for bad in ("x", 1, {}, True):
        status, r = s.json("/v1/messages", dict(ask, tools=bad))
        assert (status, r["type"]) == (400, "error") and "'tools' must be a list" in r["error"]["message"], r
    back = [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm, the owl.", "signature": "tern"}, {"type": "tool_use", "id": "1", "name": "clock", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "Noon."}]}]
    bare = [back[0], dict(back[1], content=back[1]["content"][1:]), back[2]]
    n, less = (s.json("/v1/messages/count_tokens", dict(ask, messages=m))[1]["input_tokens"] for m in (back, bare))
    assert n > less, ("a thought survives the use of a tool", n, less)
    s.stop()
    s = Server("--chat-template", here + "Qwen-QwQ-32B.jinja", "--cache-size", "0")  # whose prompt opens a thought when it is asked to
    ask = {"messages": [USER], "max_tokens": 6, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    b = s.json("/v1/messages", ask)[1]["content"][0]
    assert b["type"] == "thinking" and b["signature"] and b["thinking"], b
    status, data = s.ask("POST", "/v1/messages", dict(ask, stream=True))
    e = [json.loads(x.split("data: ")[1]) for x in data.decode().split("\n\n") if "data: " in x]
    d = [x["delta"] for x in e if x["type"] == "content_block_delta"]
    same(("".join(x.get("thinking", "") for x in d), d[-1]), (b["thinking"], {"type": "signature_delta", "signature": b["signature"]}), "streamed")
    same(e[1]["content_block"], {"type": "thinking", "thinking": "", "signature": ""}, "how it begins")
    s.stop()


def figures(s):
    """/metrics as Prometheus's text format has it: each name with help and a type, classes that grow, and tokens counted once each."""
    import re
    before = {k: s.metric(k) for k in ("tern_first_token_seconds_count", "tern_token_seconds_count", "tern_output_tokens_total")}
    plain(s, "Once upon", 7)
    text = s.ask("GET", "/metrics")[1].decode()
    same([s.metric(k) - v for k, v in before.items()], [1, 6, 7], "a first token and six more")
    types, helps = dict(re.findall("^# TYPE (\\S+) (\\S+)$", text, re.M)), set(re.findall("^# HELP (\\S+) \\S", text, re.M))
    same(set(types), helps, "help for each")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r'([a-z_]+)(\{(?:[a-z]+="[^"]*",?)+\})? ([-+0-9.e]+)', line).groups()
        base = re.sub("_(bucket|sum|count)$", "", name) if name not in types else name
        assert base in types and (types[base] != "counter" or base.endswith("_total")) and float(value) >= 0, line
    for name in (n for n, t in types.items() if t == "histogram"):
        classes = [(float(le), float(n)) for le, n in re.findall("^" + name + r'_bucket\{le="(\S+)"\} (\S+)$', text, re.M)]
        assert len(classes) > 9 and classes == sorted(classes) and [n for _, n in classes] == sorted(n for _, n in classes), classes
        same((classes[-1][0], classes[-1][1]), (float("inf"), s.metric(name + "_count")), name)


def origins():
    """Pages of the sites that are named may ask and read; others may not, and none may ask for the page's own."""
    def ask(s, method, path, origin, **more):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=1200)
        c.request(method, path, json.dumps({"content": "a"}) if method == "POST" else None, {"Origin": origin, "Sec-Fetch-Site": "cross-site", **more})
        r = c.getresponse()
        r.read()
        c.close()
        return r.status, r.getheader("Access-Control-Allow-Origin"), r

    s = Server("--cache-size", "0", "--allow-origin", "https://a.example,vscode-webview://*,http://localhost:*,null")
    for origin, ok in (("https://a.example", True), ("vscode-webview://1x2y", True), ("http://localhost:3000", True), ("null", True), ("http://a.example", False), ("https://a.example.evil.example", False), ("https://a.exampl", False), ("http://localhost.evil.example:1", False), ("vscode-webview:/", False)):
        want = (200, origin) if ok else (403, None)
        same(ask(s, "POST", "/tokenize", origin)[:2], want, origin)
        status, got, r = ask(s, "OPTIONS", "/v1/chat/completions", origin, **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-y"})
        same((status, got), (200, want[1]), origin)
        same(r.getheader("Access-Control-Allow-Credentials"), "true" if ok else None, origin)
        if ok:
            same((r.getheader("Access-Control-Allow-Headers"), r.getheader("Access-Control-Allow-Methods"), r.getheader("Vary")), ("authorization, x-y", "GET, POST, DELETE, OPTIONS", "Origin"), "preflight")
        same(ask(s, "POST", "/page/talks", origin)[0], 403, "the page's conversations")
        same(ask(s, "OPTIONS", "/page/talks", origin)[:2], (403, None), "the page's conversations")
    same(ask(s, "GET", "/nope", "https://a.example")[:2], (404, "https://a.example"), "a failure can be read too")
    same(ask(s, "POST", "/tokenize", "https://a.example", Host="evil.example")[0], 403, "by a name that leads here")
    same(ask(s, "OPTIONS", "/tokenize", "https://a.example", Host="evil.example")[0], 403, "by a name that leads here")
    s.stop()
    s = Server("--cache-size", "0", "--allow-origin", "localhost", "--allow-host", "tern.example,box")
    for origin, ok in (("http://localhost", True), ("http://localhost:8080", True), ("https://127.0.0.1:3000", True), ("http://[::1]:3000", True), ("http://notlocalhost", False), ("http://localhost.evil.example", False), ("http://localhost:1.evil.example", False), ("http://127.0.0.1@evil.example", False), ("ftp://localhost", False), ("localhost", True), ("http://tern.example", False)):
        same(ask(s, "POST", "/tokenize", origin)[:2], (200, origin) if ok else (403, None), origin)
    for host, ok in (("tern.example", True), ("TERN.example:8080", True), ("box", True), ("localhost:80", True), ("127.0.0.2", True), ("127.8.0.9:81", True), ("127.0.0.1.evil.example", False), ("127.evil.example", False), ("127.0.0.1:1.evil.example", False), ("128.0.0.1", False), ("tern.example.evil.example", False), ("evil.example", False), ("boxer", False), ("box:1.evil.example", False), ("bo", False), ("tern.example,box", False)):
        same(ask(s, "POST", "/tokenize", "http://localhost", Host=host)[0], 200 if ok else 403, host)
    s.stop()
    for bad in ("", ",", "a,", "a b", "http://a", "a:80", "*"):
        r = subprocess.run([TERN, "serve", "-m", MODEL, "--allow-host", bad], capture_output=True, text=True)
        assert r.returncode == 2 and "--allow-host" in r.stderr, (bad, r)
    with tempfile.NamedTemporaryFile("w") as keys:  # which is 0600
        keys.write("key\n")
        keys.flush()
        s = Server("--cache-size", "0", "--allow-origin", "*", "--api-key-file", keys.name)
        same(ask(s, "POST", "/tokenize", "https://b.example")[:2], (401, "https://b.example"), "a page without the key")
        same(ask(s, "POST", "/tokenize", "https://b.example", Authorization="Bearer key")[:2], (200, "https://b.example"), "with it")
        same(ask(s, "OPTIONS", "/tokenize", "https://b.example")[0], 200, "a browser asks without it")
        s.stop()
    for bad in ("*", "a.example", "https://", "https://*.a.example", "https://a*"):
        r = subprocess.run([TERN, "serve", "-m", MODEL, "--allow-origin", bad], capture_output=True, text=True)
        assert r.returncode == 2 and "--allow-origin" in r.stderr, (bad, r)


def untaught():
    """A model without a chat template chats as ChatML, and the server says so."""
    with tempfile.TemporaryDirectory() as d:
        model = shutil.copytree(MODEL, os.path.join(d, "bare"))
        config = json.load(open(os.path.join(MODEL, "tokenizer_config.json")))
        del config["chat_template"]
        json.dump(config, open(os.path.join(model, "tokenizer_config.json"), "w"))
        s = Server("--cache-size", "0", model=model)
        assert any("ChatML" in x for x in s.lines), s.lines
        same(s.json("/apply-template", {"messages": [USER]})[1]["prompt"], "<|im_start|>user\nSay a word.<|im_end|>\n<|im_start|>assistant\n", "a prompt")
        same(s.json("/v1/chat/completions", {"messages": [USER], "max_tokens": 2})[0], 200, "an answer")
        s.stop()


def pictures(s):
    """A model without eyes: one clear error, in the form of the API that was asked."""
    data, words = "iVBORw0KGgo=", "image input is not supported"
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {}}]}
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}]}]}),
                       ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + data}]}]}),
                       ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}),
                       ("/v1/messages", {"max_tokens": 1, "messages": [USER, use, result]})):
        c = s.connection()
        c.request("POST", path, json.dumps(body))
        reply = c.getresponse()
        status, r = reply.status, json.loads(reply.read())
        c.close()
        assert status == (500 if path == "/v1/messages" else 400) and words in r["error"]["message"], (path, status, r)
        same(reply.headers["X-Should-Retry"], "false" if status == 500 else None, "whether clients ask again")
        same("type" in r, path == "/v1/messages", "the form of " + path)
    for path, body in (("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "a", "images": [data]}]}), ("/api/generate", {"model": "m", "prompt": "a", "images": [data]})):
        status, r = s.json(path, body)
        assert status == 400 and words in r["error"], (path, status, r)


def priorities(s):
    """The body, and where it says nothing the header, in every API; what is wrong is told. Answers are the same."""
    want = s.json("/v1/completions", {"prompt": "There was", "max_tokens": 4, "temperature": 0})[1]["choices"][0]["text"]
    for more in ({"priority": "interactive"}, {"priority": "background"}, {"priority": -1}, {"priority": 3}, {"service_tier": "flex"}, {"service_tier": "priority"}, {"service_tier": "auto"}):
        status, r = s.json("/v1/completions", dict({"prompt": "There was", "max_tokens": 4, "temperature": 0}, **more))
        same((status, r["choices"][0]["text"]), (200, want), str(more))
    for path, body in (("/v1/chat/completions", {"messages": [USER], "max_tokens": 1}), ("/v1/messages", {"messages": [USER], "max_tokens": 1}), ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
                       ("/completion", {"prompt": "a", "n_predict": 1}), ("/v1/embeddings", {"input": "a"})):
        for headers, priority, status in (({"X-Tern-Priority": "background"}, None, 200), ({"X-Tern-Priority": "interactive"}, "ordinary", 200), ({}, "urgent", 400), ({"X-Tern-Priority": "urgent"}, None, 400), ({}, [], 400)):
            got, r = s.json(path, dict(body, **({} if priority is None else {"priority": priority})), headers=headers)
            same(got, status, f"{path} {headers} {priority}: {r}")
    if shutil.which("promtool"):
        r = subprocess.run(["promtool", "check", "metrics"], input=s.ask("GET", "/metrics")[1], capture_output=True)
        same((r.returncode, r.stdout + r.stderr), (0, b""), "promtool on /metrics")


def strict():
    s = Server("--strict", "--cache-size", "0")
    for path, body in (("/v1/chat/completions", {"messages": [USER]}), ("/v1/messages", {"messages": [USER], "max_tokens": 1}), ("/v1/embeddings", {"input": "a"}), ("/completion", {"prompt": "a", "n_predict": 1})):
        for more in ({"temprature": 1}, {"verbosity": "low"}):
            status, r = s.json(path, dict(body, **more))
            assert status == 400 and list(more)[0] in r["error"]["message"], r
        same(s.json(path, dict(body, max_tokens=1) if path != "/v1/embeddings" else body)[0], 200, path)
    s.stop()


server = Server("--cache-size", "0")
for check in (addresses, own_form, tokens, ignored, words, choices, shaped, texts, failures, anthropic, figures, pictures, priorities):
    check(server)
    print(check.__name__, "ok", flush=True)
server.stop()
strict()
print("strict ok")
signed()
print("signed ok")
origins()
print("origins ok")
untaught()
print("untaught ok")
