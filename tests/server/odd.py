"""Requests that are seldom, but rightly, sent: forms of OpenAI's, Anthropic's, Ollama's and llama.cpp's APIs that one plain answer does not touch."""
import base64
import calendar
import gzip
import json
import os
import sys
import tempfile
import time

from served import Server, same

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixture"))
import saying  # noqa: E402

USER = {"role": "user", "content": "Say a word."}
ANTHROPIC = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
SHORT = {"max_tokens": 6, "temperature": 0}


def chat(s, messages=(USER,), **more):
    status, r = s.json("/v1/chat/completions", dict(SHORT, messages=list(messages), **more))
    same(status, 200, r)
    return r["choices"][0]["message"]["content"]


def text(s, path="/v1/completions", **more):
    status, r = s.json(path, dict({"prompt": "Once upon a time", "n_predict": 6, "temperature": 0}, **more))
    same(status, 200, r)
    return r["content"] if path == "/completion" else r["choices"][0]["text"]


def openai(s):
    plain = chat(s)
    # what a model refused with comes back as it was said, in a part or a field of its own
    said = chat(s, [USER, {"role": "assistant", "content": "I cannot."}, USER])
    for m in ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, {"content": None, "refusal": "I cannot."}, {"refusal": "I cannot."},
              {"content": "I cannot.", "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": []}):
        same(chat(s, [USER, dict(m, role="assistant"), USER]), said, m)
    status, e = s.json("/v1/chat/completions", dict(SHORT, messages=[USER, {"role": "assistant", "content": None, "refusal": None}]))
    assert status == 400 and "has no content" in e["error"]["message"], e
    # fields of a client that sends all it knows
    nulls = ("temperature", "top_p", "n", "stop", "stream", "stream_options", "tools", "tool_choice", "response_format", "logit_bias", "seed", "user", "logprobs", "top_logprobs", "parallel_tool_calls", "presence_penalty",
             "frequency_penalty", "max_completion_tokens", "modalities", "audio", "reasoning_effort", "metadata", "store")
    same(chat(s, **dict.fromkeys(nulls), top_k=1), plain, "nulls")
    same(chat(s, tools=[], tool_choice="auto"), plain, "no tools, and a choice among them")
    same(chat(s, max_tokens=6.0, n=1.0, top_k=40.0), plain, "whole numbers with a point")
    same(chat(s, stop=""), plain, "an empty field for no stop text")
    same(chat(s, stop=["", ""]), plain, "empty fields")
    same(chat(s, stop=["", plain[3:5]]), plain[:3], "one of them is not empty")
    same(chat(s, grammar=""), plain, "no grammar")
    # all bits of a seed count
    hot = [chat(s, temperature=2, top_k=0, top_p=1, min_p=0, max_tokens=24, seed=x) for x in (2**63 - 1, 2**63 - 1, 2**63 - 2, 7, 7.0, -2**62)]
    same((hot[0], hot[3]), (hot[1], hot[4]), "the same seed")
    assert hot[3] != hot[0] != hot[2] and hot[5] not in hot[:5], hot
    status, r = s.json("/v1/chat/completions", b"\xef\xbb\xbf" + json.dumps(dict(SHORT, messages=[USER])).encode())
    same((status, r["choices"][0]["message"]["content"]), (200, plain), "UTF-8 with a mark, as editors of Windows write files")
    same(s.ask("POST", "/v1/chat/completions?api-version=1", dict(SHORT, messages=[USER]), {"Content-Type": "text/plain"})[0], 200, "another type, and a query")


def responses(s):
    r = s.json("/v1/responses", {"input": "Say a word.", "max_output_tokens": 6, "temperature": 0})[1]
    said, item = r["output"][0]["content"][0]["text"], r["output"][0]
    # the Vercel AI SDK names items of earlier responses in place of sending them
    again = {"max_output_tokens": 6, "temperature": 0}
    words = [{"role": "user", "content": "Say a word."}, {"role": "assistant", "content": said}, {"role": "user", "content": "One more."}]
    want = s.json("/v1/responses", dict(again, input=words))[1]["output"][0]["content"]
    named = [words[0], {"type": "item_reference", "id": item["id"]}, words[2]]
    same(s.json("/v1/responses", dict(again, input=named))[1]["output"][0]["content"], want, "an item by its id")
    for bad, status, what in ((dict(named[1], id="msg_0"), 404, "no item 'msg_0'"), (dict(named[1], id=None), 400, "needs an id"), (dict(named[1], id=item["id"] + "0"), 404, "no item"), (dict(named[1], id=r["id"]), 404, "no item")):
        got, e = s.json("/v1/responses", dict(again, input=[words[0], bad, words[2]]))
        assert got == status and what in e["error"]["message"], e
    s.ask("DELETE", "/v1/responses/" + r["id"])
    same(s.json("/v1/responses", dict(again, input=named))[0], 404, "an item of a response that is erased")
    tool = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
    r = s.json("/v1/responses", {"input": "Hi", "tools": [tool], "tool_choice": "required", "max_output_tokens": 60})[1]
    call = r["output"][-1]
    same(call["type"], "function_call", r)
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    both = [s.json("/v1/responses", dict(again, tools=[tool], input=[{"role": "user", "content": "Hi"}, c, result]))[1]["output"][0]["content"] for c in (call, {"type": "item_reference", "id": call["id"]})]
    same(both[0], both[1], "a call by its id")
    # tokens are counted as they would be read
    n = s.json("/v1/responses", dict(again, input=words, instructions="Be brief."))[1]["usage"]["input_tokens"]
    for path in ("/v1/responses/input_tokens", "/responses/input_tokens"):
        same(s.json(path, {"input": words, "instructions": "Be brief."}), (200, {"object": "response.input_tokens", "input_tokens": n}), path)
    status, e = s.json("/v1/responses/input_tokens", {"input": 3})
    assert status == 400 and "'input'" in e["error"]["message"], e
    same(s.ask("GET", "/v1/responses/input_tokens")[0], 405, "counting wants POST")
    for method, path, allow in (("GET", "/v1/messages", "POST"), ("POST", "/v1/models/x", "GET, HEAD"), ("PUT", "/v1/responses/resp_1", "GET, DELETE"), ("PUT", "/lora-adapters", "POST, GET, HEAD"), ("GET", "/slots/0", "POST"), ("PUT", "/api/delete", "DELETE"), ("POST", "/", "GET, HEAD"), ("PUT", "/page/state", "GET, POST, DELETE")):
        c = s.connection()
        c.request(method, path)
        r = c.getresponse()
        same((r.status, r.headers["Allow"]), (405, allow), f"{method} {path}: what it has")
        assert allow.rsplit(", ", 1)[0] in r.read().decode(), allow
    c = s.connection()
    c.request("POST", "/v1/completions", gzip.compress(b'{"prompt": "a"}'), {"Content-Encoding": "gzip"})
    r = c.getresponse()
    same((r.status, "Content-Encoding" in r.read().decode()), (415, True), "a body that is packed")
    for encoding in ("identity", "", "Identity , identity"):
        c = s.connection()
        c.request("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}', {"Content-Encoding": encoding})
        same(c.getresponse().status, 200, "a body as it is")
    c = s.connection()
    c.request("GET", "/v1/models", headers={"Content-Encoding": "gzip"})
    same(c.getresponse().status, 200, "no body at all")
    r = s.json("/completion", {"prompt": "a b c", "n_predict": 5, "id_slot": 0, "grammar": 'root ::= "xy"'})[1]  # it ends before the limit
    same(r["tokens_cached"], r["tokens_evaluated"] + r["tokens_predicted"], "all of them are in the slot")
    for n in (1, 2, 5):  # the last token of a limit is not evaluated: it has no time and no place
        r = s.json("/completion", {"prompt": "a b c", "n_predict": n, "ignore_eos": True, "id_slot": 0})[1]
        same(r["tokens_cached"], r["tokens_evaluated"] + n - 1, "what the slot holds")
        t = r["timings"]
        assert abs(t["predicted_per_second"] * t["predicted_ms"] - 1e3 * (n - 1)) < 1, t
    back = [words[0], {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": said, "annotations": [], "logprobs": []}]}, words[2]]
    same(s.json("/v1/responses", dict(again, input=back, include=["reasoning.encrypted_content"], truncation="disabled", text={}, reasoning={"effort": None, "summary": "auto"}, stream_options=None))[1]["output"][0]["content"], want, "an output item as it was sent")
    c = s.connection()
    c.request("POST", "/v1/responses", json.dumps(dict(again, input="Hi", top_logprobs=2, include=["reasoning.encrypted_content"])))
    r = c.getresponse()
    same((r.status, sorted(r.headers["X-Tern-Ignored"].split(", "))), (200, ["top_logprobs"]), "it goes with log-probabilities, and that is said")
    c.close()


def anthropic(s):
    status, r = s.json("/v1/models?limit=1000", headers=ANTHROPIC)
    m = r["data"][0]
    same((status, r["has_more"], r["first_id"], r["last_id"], m["type"], m["display_name"]), (200, False, m["id"], m["id"], "model", m["id"]), r)
    same(calendar.timegm(time.strptime(m["created_at"], "%Y-%m-%dT%H:%M:%SZ")), m["created"], "when it was made")
    one = s.json("/v1/models/" + m["id"], headers=ANTHROPIC)[1]
    same({k: one[k] for k in ("id", "type", "display_name", "created_at")}, {k: m[k] for k in ("id", "type", "display_name", "created_at")}, "one model")
    assert "display_name" not in s.json_get("/v1/models")["data"][0] and "has_more" not in s.json_get("/v1/models"), "OpenAI's form stays"

    def said(**more):
        status, r = s.json("/v1/messages", dict(SHORT, **dict({"messages": [USER]}, **more)), ANTHROPIC)
        same(status, 200, r)
        return r["content"]
    plain = said()
    same(said(system=[], metadata={"user_id": "u"}, service_tier="standard_only", container=None, mcp_servers=[], thinking={"type": "disabled"}, stop_sequences=[], top_k=0), plain, "fields that change nothing")
    same(said(system=""), plain, "an empty system prompt is none")
    same(said(**dict.fromkeys(("system", "stop_sequences", "tools", "tool_choice", "top_k", "top_p", "stream", "metadata", "thinking"))), plain, "nulls")
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "clock", "input": {}}]}
    tools = [{"type": "custom", "name": "clock", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}]
    got = [said(tools=tools, messages=[USER, call, {"role": "user", "content": [dict({"type": "tool_result", "tool_use_id": "a"}, **c)]}]) for c in ({}, {"content": ""}, {"content": []})]
    same(got, [got[0]] * 3, "a result without words")
    same(said(messages=[{"role": "user", "content": [{"type": "text", "text": "Say"}]}, {"role": "user", "content": [{"type": "text", "text": "a word.", "citations": None}]}]),
         said(messages=[{"role": "user", "content": "Say"}, {"role": "user", "content": "a word."}]), "two of the user")
    # Claude Code tells its surroundings between the turns, and begins its system with a note for bills
    chat = s.json("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, USER, {"role": "system", "content": "It is noon."}], "max_tokens": SHORT["max_tokens"], "temperature": 0})[1]["choices"][0]["message"]["content"]
    for noon in ("It is noon.", [{"type": "text", "text": "It is noon.", "cache_control": {"type": "ephemeral"}}]):
        for note in ([], [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.18b;"}]):
            same(said(system=note + [{"type": "text", "text": "Be brief."}], messages=[USER, {"role": "system", "content": noon}])[0]["text"], chat, (noon, note))
    same(said(messages=[USER, {"role": "system", "content": []}]), plain, "a system message of no words")
    for bad, words in (({"role": "tool", "content": "x"}, "user, assistant or system"), ({"role": "system", "content": [{"type": "image"}]}, "messages[1]"), ({"role": "system", "content": 3}, "messages[1]")):
        status, e = s.json("/v1/messages", dict(SHORT, messages=[USER, bad]), ANTHROPIC)
        assert status == 400 and words in e["error"]["message"], e


def papers():
    """A PDF in base64 is its words, in a message and in a tool's result. A program of this test stands for poppler's."""
    words = "The code of the garden is 4471."
    with tempfile.TemporaryDirectory() as at:
        with open(os.path.join(at, "pdftotext"), "w") as f:
            f.write(f"#!/bin/sh\necho '{words}'\n")
        os.chmod(os.path.join(at, "pdftotext"), 0o700)
        s = Server("--cache-size", "0", env=dict(os.environ, PATH=at + ":" + os.environ["PATH"]))
        pdf = base64.b64encode(b"%PDF-1.4 a garden").decode()
        source = {"type": "base64", "media_type": "application/pdf", "data": pdf}
        document = lambda source: {"type": "document", "title": "Notes", "source": source, "citations": {"enabled": False}}
        turn = lambda *blocks: [{"role": "user", "content": list(blocks)}]
        question = {"type": "text", "text": "Question: What is the code of the garden?"}
        result = lambda source: [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read", "input": {}}]},
                                 *turn({"type": "tool_result", "tool_use_id": "a", "content": [document(source)]})]
        say = lambda messages: s.json("/v1/messages", dict(SHORT, messages=messages), ANTHROPIC)
        text = {"type": "text", "media_type": "text/plain", "data": words + "\n"}
        for form in (lambda x: turn(document(x), question), result):
            got, want = say(form(source)), say(form(text))
            read = [r[1]["usage"]["input_tokens"] + r[1]["usage"]["cache_read_input_tokens"] for r in (got, want)]
            same((got[0], got[1]["content"], read[0]), (200, want[1]["content"], read[1]), got)
        count = lambda x: s.json("/v1/messages/count_tokens", {"messages": turn(document(x), question)}, ANTHROPIC)
        same(count(source), count(text), "counted")
        for bad, status, what in ((dict(source, data="%%%"), 400, "messages[0]: a document is not base64 at byte 0"), (dict(source, data=7), 400, "needs data"),
                                  (dict(source, media_type="application/zip"), 400, "application/pdf"), (dict(source, type="url"), 400, "application/pdf")):
            got, e = say(turn(document(bad), question))
            assert got == status and e["type"] == "error" and what in e["error"]["message"], (bad, got, e)
        got, e = say(turn(*[document(source)] * 33))
        assert got == 400 and "more than 32 documents" in e["error"]["message"], (got, e)
        kept = os.environ["XDG_DATA_HOME"] + "/tern/uploads"
        same(os.listdir(kept) if os.path.isdir(kept) else [], [], "nothing of them is kept")
        s.stop()


def ollama(s):
    ask = {"model": "tern-tiny", "messages": [USER], "stream": False, "options": {"num_predict": 5, "temperature": 0}}
    want = s.json("/v1/chat/completions", {"messages": [USER], "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 2})[1]["choices"][0]
    r = s.json("/api/chat", dict(ask, logprobs=True, top_logprobs=2))[1]
    same((r["message"]["content"], r["logprobs"]), (want["message"]["content"], want["logprobs"]["content"]), "log-probabilities")
    r = s.json("/api/chat", dict(ask, logprobs=True))[1]
    same([(t["token"], t["logprob"]) for t in r["logprobs"]], [(t["token"], t["logprob"]) for t in want["logprobs"]["content"]], "without others")
    assert "logprobs" not in s.json("/api/chat", ask)[1], "not asked for"
    status, data = s.ask("POST", "/api/chat", dict(ask, stream=True, logprobs=True, top_logprobs=2))
    parts = [t for x in data.decode().splitlines() for t in json.loads(x).get("logprobs", [])]
    same((status, parts), (200, want["logprobs"]["content"]), "streamed")
    once = s.json("/v1/completions", {"prompt": "Once upon", "max_tokens": 4, "temperature": 0, "logprobs": 1})[1]["choices"][0]
    raw = {"model": "tern-tiny", "prompt": "Once upon", "raw": True, "stream": False, "options": {"num_predict": 4, "temperature": 0}}
    r = s.json("/api/generate", dict(raw, logprobs=True, top_logprobs=1))[1]
    same((r["response"], r["logprobs"]), (once["text"], once["logprobs"]["content"]), "of a prompt that is raw")
    for bad in ({"logprobs": "yes"}, {"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}):
        status, e = s.json("/api/chat", dict(ask, **bad))
        assert status == 400 and "logprobs" in e["error"], e
    # requests without texts load the model
    for body in ({"input": ""}, {"input": []}, {}):
        same(s.json("/api/embed", dict(body, model="tern-tiny")), (200, {"model": "tern-tiny", "embeddings": []}), body)
    for body in ({"prompt": ""}, {}):
        same(s.json("/api/embeddings", dict(body, model="tern-tiny")), (200, {"embedding": []}), body)
    plain = s.json("/api/chat", ask)[1]["message"]
    for more in ({"format": ""}, dict.fromkeys(("format", "tools", "keep_alive", "think")), {"keep_alive": "-1m"}, {"keep_alive": "1h30m"}, {"tools": []}, {"messages": [dict(USER, images=[])]}, {"model": "tern-tiny:latest"}):
        same(s.json("/api/chat", dict(ask, **more))[1]["message"], plain, more)


def page(s):
    """The page's own words: a message has a place in its conversation, or begins it."""
    talk = s.json("/page/talks", {})[1]["id"]
    for bad in ("x", [], {}, 1.5, True, 7):
        status, e = s.json(f"/page/talks/{talk}/say", {"parent": bad, "content": "Hi", "settings": {"max_tokens": 1}})
        assert status == 400 and "'parent'" in e["error"]["message"], (bad, status, e)
    same(s.json("/page/talks/" + talk)[1]["nodes"], [], "nothing was said")
    for good in ({"parent": 0}, {"parent": None}, {}):
        same(s.ask("POST", f"/page/talks/{talk}/say", dict(good, content="Hi", settings={"max_tokens": 1}))[0], 200, good)


def llama(s):
    want = text(s, "/completion")
    silent = {"grammar": "", "stop": [""], "cache_prompt": True, "id_slot": -1, "n_keep": 0, "image_data": [], "samplers": ["top_k"], "grammar_lazy": False, "grammar_triggers": [], "preserved_tokens": [], "mirostat": 0}
    same(text(s, "/completion", **silent), want, "fields of a client that sends all it knows")
    r = s.json("/completion", {"prompt": "Once upon a time", "n_predict": 6, "temperature": 0, "n_cmpl": 2})[1]
    same([x["content"] for x in r], [want, want], "n by llama.cpp's word")
    status, e = s.json("/completion", {"prompt": "x", "n_cmpl": 0})
    assert status == 400 and "'n_cmpl'" in e["error"]["message"], e
    ids = s.json("/tokenize", {"content": "Once upon"})[1]["tokens"]
    same(s.json("/tokenize", {"content": ["Once", ids[1], " upon", 3]})[1]["tokens"], [ids[0], ids[1], ids[1], 3], "texts and tokens")
    same(s.json("/tokenize", {"content": []})[1]["tokens"], [], "none")
    for bad in ({"content": [10**9]}, {"content": [None]}, {"content": 3}, {}):
        status, e = s.json("/tokenize", bad)
        assert status == 400 and "content" in e["error"]["message"], e
    for field in ("add_special", "parse_special", "with_pieces"):
        for v in (1, "x", []):
            status, e = s.json("/tokenize", {"content": "Once upon", field: v})
            assert status == 400 and f"'{field}' must be true or false" in e["error"]["message"], (field, v, status, e)
        same(s.json("/tokenize", {"content": "Once upon", field: None})[1]["tokens"], ids, (field, "null"))
    same(text(s, "/completion", prompt=ids + [" a time"]), want, "a prompt of tokens and texts")
    same(text(s, "/completion", prompt={"prompt_string": "Once upon a time", "multimodal_data": []}), want, "a prompt that is an object")


def known_prompts(s):
    """A client that measures says that what is known of a prompt is not to be used."""
    ask = {"prompt": "Once upon a time there was a red fox", "n_predict": 2, "temperature": 0}
    s.json("/completion", ask)
    for known, n in ((True, 1), (None, 1), (1, 1), (False, None), (0, None)):
        status, r = s.json("/completion", dict(ask, cache_prompt=known))
        same(status, 200, r)
        same((r["timings"]["cache_n"] == 0, r["timings"]["prompt_n"] == 1), (n is None, n == 1), (known, r["timings"]))
        if known is False:
            for _ in range(2):  # where the session that holds it is asked for
                same(s.json("/completion", dict(ask, cache_prompt=known, id_slot=0))[1]["timings"]["cache_n"], 0, "by its number")
    many = s.json("/v1/completions", dict(ask, n=3, cache_prompt=False))[1]
    same(many["usage"]["prompt_tokens_details"]["cached_tokens"], 0, many)
    for bad in ("x", [], 0.5):
        status, e = s.json("/completion", dict(ask, cache_prompt=bad))
        assert status == 400 and "'cache_prompt'" in e["error"]["message"], (bad, e)


def cut_calls(s):
    """A call that a limit closed says so; one that ended does not. No limit is the largest number, to some clients."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 60}}, "required": ["a"], "additionalProperties": False}}}
    for most, why, many in ((40, "length", None), (400, "tool_calls", None), (40, "length", False), (400, "tool_calls", False)):
        c = s.json("/v1/chat/completions", {"messages": [USER], "tools": [tool], "tool_choice": "required", "parallel_tool_calls": many, "max_tokens": most, "temperature": 0})[1]["choices"][0]
        same((c["finish_reason"], sorted(json.loads(c["message"]["tool_calls"][0]["function"]["arguments"]))), (why, ["a"]), c)
    for path, field in (("/v1/chat/completions", "max_tokens"), ("/v1/chat/completions", "max_completion_tokens"), ("/completion", "n_predict"), ("/v1/messages", "max_tokens")):
        ask = {"prompt": "Once", "stop": ["e"]} if path == "/completion" else {"messages": [USER], "stop_sequences" if path == "/v1/messages" else "stop": ["e"]}
        status, r = s.json(path, {**ask, "temperature": 0, field: 2**31 - 1}, ANTHROPIC if path == "/v1/messages" else {})
        same(status, 200, (path, field, r))
        same(s.json(path, {**ask, field: 2**31}, ANTHROPIC if path == "/v1/messages" else {})[0], 400, (path, field))


def empty_schemas(s):
    """A JSON object is asked for: a schema that says nothing does not make a text of it."""
    for seed in range(3):
        for path, body in (("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": {}}}), ("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": True}}), ("/v1/chat/completions", {"response_format": {"type": "json_object"}}),
                           ("/v1/responses", {"text": {"format": {"type": "json_object", "schema": {}}}}), ("/api/chat", {"format": {}, "stream": False, "options": {"seed": seed, "num_predict": 4}}), ("/api/generate", {"format": {}, "stream": False, "prompt": "Say a word.", "options": {"seed": seed, "num_predict": 4}})):
            ask = {"input": "Say a word."} if "resp" in path else {} if "gen" in path else {"messages": [USER]}
            r = s.json(path, dict(ask, **({} if "api" in path else {"seed": seed, "max_output_tokens" if "resp" in path else "max_tokens": 4}), **body))[1]
            said = r["choices"][0]["message"]["content"] if "choices" in r else r["output"][0]["content"][0]["text"] if "output" in r else r["response"] if "response" in r else r["message"]["content"]
            assert said.startswith("{"), (path, body, said)


def zero_bytes(s):
    """A zero byte in a text is valid JSON. It is read as U+FFFD, the character for what is none."""
    for path, ask in (("/apply-template", lambda t: {"messages": [{"role": "user", "content": t}]}), ("/apply-template", lambda t: {"messages": [{"role": "user", "content": [{"type": "text", "text": t}]}]}),
                      ("/tokenize", lambda t: {"content": t, "with_pieces": True}), ("/v1/messages/count_tokens", lambda t: {"messages": [{"role": "user", "content": t}]}), ("/v1/responses/input_tokens", lambda t: {"input": t}),
                      ("/v1/embeddings", lambda t: {"input": [t]}), ("/api/embed", lambda t: {"input": t})):
        got, want = (s.json(path, ask(t)) for t in ("a\0b", "a\ufffdb"))
        for r in (got, want):
            r[1].pop("total_duration", 0)
        same(got, want, path)
        same(got[0], 200, got)
    same(text(s, prompt="Once\0upon"), text(s, prompt="Once\ufffdupon"), "a prompt")
    for path, body in (("/api/chat", {"messages": [dict(USER, content="\0")], "stream": False, "options": {"num_predict": 1}}), ("/api/generate", {"prompt": "\0", "stream": False, "options": {"num_predict": 1}}), ("/api/show", {"model": "tern-tiny", "\0": 1}),
                       ("/v1/responses", {"input": "\0", "instructions": "\0", "max_output_tokens": 1}), ("/v1/messages", {"messages": [dict(USER, content="\0")], "max_tokens": 1}), ("/v1/chat/completions", {"messages": [dict(USER, content="a\0", name="\0")], "stop": "\0", "max_tokens": 1, "user": "\0"})):
        same(s.json(path, body)[0], 200, (path, body))
    status, e = s.json("/v1/completions", {"prompt": "a", "max_tokens": 1, "frob\0nicate": 1})
    same(status, 200, e)


def format_and_tools():
    """A format holds for words. A model that has tools may call them before, and need not."""
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "say.gguf")
    saying.write(path, {"A": ['<tool_call>{"name": "add", ', '"arguments": {"a": 2, "b": 3}}', "</tool_call>"], "5": ["It is five."], "T": ["<tool", "_call>", "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 1}}", "</tool_call> "],
                        "U": ["<toolbox>"], "W": ["abc", "STO", "P def"]})
    s = Server("--cache-size", "0", model=path)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": False}}}
    shape = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"], "additionalProperties": False}
    ask = {"tools": [tool], "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": shape}}, "max_tokens": 200, "temperature": 0}

    def choice(letter, **more):
        return s.json("/v1/chat/completions", dict(ask, messages=[{"role": "user", "content": letter}], **more))[1]["choices"][0]
    for letter, arguments in (("A", {"a": 2, "b": 3}), ("T", {"a": 1, "b": 1})):
        c = choice(letter)
        same((c["finish_reason"], json.loads(c["message"]["tool_calls"][0]["function"]["arguments"])), ("tool_calls", arguments), c)
        assert "schema_check" not in c, c
        events = s.events("/v1/chat/completions", dict(ask, messages=[{"role": "user", "content": letter}]))
        pieces = [f["function"].get("arguments", "") for e in events for x in e["choices"] for f in x["delta"].get("tool_calls", [])]
        same(json.loads("".join(pieces)), arguments, "streamed")
    # what a stop text takes away has no log-probabilities either
    ask_w = {"prompt": "W", "stop": ["STOP"], "logprobs": 1, "max_tokens": 9, "temperature": 0}
    c = s.json("/v1/completions", ask_w)[1]["choices"][0]
    same((c["text"], c["logprobs"]["tokens"], c["logprobs"]["text_offset"]), ("abc", ["abc"], [0]), c)
    told = [t for e in s.events("/v1/completions", ask_w) for x in e["choices"] for t in (x.get("logprobs") or {}).get("tokens", [])]
    same(told, ["abc"], "streamed")
    turns = [{"role": "user", "content": "A"}, dict(choice("A")["message"]), {"role": "tool", "tool_call_id": "x", "content": "5"}]
    turns[2]["tool_call_id"] = turns[1]["tool_calls"][0]["id"]
    for messages, more in ((turns, {}), ([{"role": "user", "content": "U"}], {}), ([{"role": "user", "content": "A"}], {"tool_choice": "none"}), ([{"role": "user", "content": "A"}], {"tools": []})):
        # every token but the table's is as likely as another, and "<" comes before "{"
        c = s.json("/v1/chat/completions", dict(ask, messages=messages, logit_bias=[["<", False]], **more))[1]["choices"][0]
        assert 0 <= json.loads(c["message"]["content"])["sum"] <= 99 and "tool_calls" not in c["message"], c
    # a keyword that is checked afterwards is checked of words alone
    late = {"response_format": {"type": "json_object", "schema": dict(shape, minProperties=1)}}
    assert "schema_check" not in choice("A", **late), "of a call"
    same(choice("5", logit_bias=[["<", False]], **late)["schema_check"], {"checked": "minProperties", "fits": True}, "of words")
    r = s.json("/api/chat", {"model": "say", "messages": [{"role": "user", "content": "A"}], "tools": [tool], "format": shape, "stream": False})[1]
    same(r["message"]["tool_calls"][0]["function"]["arguments"], {"a": 2, "b": 3}, "in Ollama's form")
    r = s.json("/v1/responses", {"input": "A", "tools": [dict(tool["function"], type="function")], "text": {"format": {"type": "json_schema", "name": "x", "schema": shape}}, "max_output_tokens": 200})[1]
    same(r["output"][0]["type"], "function_call", "in Responses")
    s.stop()


server = Server("--cache-size", "0")
for check in (openai, responses, anthropic, ollama, page, llama, known_prompts, cut_calls, empty_schemas, zero_bytes):
    check(server)
    print(check.__name__, "ok", flush=True)
server.stop()
papers()
print("papers ok")
format_and_tools()
print("format_and_tools ok")
