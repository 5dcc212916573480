"""/v1/responses: its answers are those of a chat with the same turns, and its events add up to its reply."""
import json
import os
import sys

from served import CACHE, Server, same

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixture"))
import saying

COLD = {"temperature": 0, "max_output_tokens": 10}
TOOL = {"type": "function", "name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": False}}
CALL = '<tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>'


def literal(text):
    return "root ::= " + json.dumps(text)


def chat(s, messages, **more):
    status, r = s.json("/v1/chat/completions", dict({"messages": messages, "temperature": 0, "max_tokens": 10}, **more))
    same(status, 200, r)
    return r["choices"][0]["message"]["content"]


def events(s, body):
    status, data = s.ask("POST", "/v1/responses", dict(body, stream=True))
    assert status == 200, data
    out = []
    for block in data.decode().split("\n\n"):
        if block.startswith("event: "):
            name, value = block.split("\n")
            value = json.loads(value[6:])
            same((name, value["sequence_number"]), ("event: " + value["type"], len(out)), value)
            out.append(value)
    same([e["type"] for e in out[:2]], ["response.created", "response.in_progress"], "how it begins")
    same(out[0]["response"]["output"], [], "nothing yet")
    return out


def sum_of(s, body):
    """The reply that the events add up to; each item's are checked on the way."""
    e = events(s, body)
    items, text, told = {}, {}, {}
    for x in e[2:-1]:
        i, kind = x["output_index"], x["type"].split(".", 1)[1]
        if kind == "output_item.added":
            assert i == len(items) and x["item"]["status"] == "in_progress", x
            items[i], text[i], told[i] = x["item"], "", []
            continue
        if kind != "output_item.done":
            same(x["item_id"], items[i]["id"], x)
        if kind.endswith(".delta"):
            text[i] += x["delta"]
            told[i] += x.get("logprobs", [])
        if kind == "output_text.done":
            same(x["logprobs"], told[i], x)
        if kind in ("output_text.done", "reasoning_text.done"):
            same(x["text"], text[i], x)
        if kind == "function_call_arguments.done":
            same(x["arguments"], text[i], x)
        if kind == "output_item.done":
            last = e[-1]["response"]
            cut = last["status"] == "incomplete" and x["item"]["id"] == last["output"][-1]["id"]
            same((x["item"]["id"], x["item"]["status"]), (items[i]["id"], "incomplete" if cut else "completed"), x)
            items[i] = x["item"]
            if x["item"]["type"] == "message":
                same(x["item"]["content"][0]["logprobs"], told[i], x)
    r = e[-1]["response"]
    same((e[-1]["type"], r["output"], r["id"]), ("response." + r["status"], [items[i] for i in sorted(items)], e[0]["response"]["id"]), e[-1])
    return r


def bare(items):
    """Items without their ids, which are new each time."""
    return [{k: v for k, v in x.items() if k not in ("id", "call_id")} for x in items]


def words(s):
    want = chat(s, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say a word."}])
    ask = dict(COLD, model="m", instructions="Be brief.", input="Say a word.", metadata={"a": "b"})
    status, r = s.json("/v1/responses", ask)
    same(status, 200, r)
    same([(x["type"], x["role"], x["content"]) for x in r["output"]], [("message", "assistant", [{"type": "output_text", "text": want, "annotations": [], "logprobs": []}])], r)
    assert r["object"] == "response" and r["id"].startswith("resp_") and r["output"][0]["id"].startswith("msg_"), r
    same((r["instructions"], r["metadata"], r["tool_choice"], r["tools"], r["max_output_tokens"], r["store"]), ("Be brief.", {"a": "b"}, "auto", [], 10, True), r)
    u = r["usage"]
    same((u["total_tokens"], u["output_tokens"]), (u["input_tokens"] + u["output_tokens"], 10), u)
    same((r["status"], r["incomplete_details"], r["output"][0]["status"]), ("incomplete", {"reason": "max_output_tokens"}, "incomplete"), r)
    same(bare(sum_of(s, ask)["output"]), bare(r["output"]), "streamed")
    e = events(s, dict(ask, input="The keeper wrote down every bird. " * 60, return_progress=True, timings_per_token=True))
    p = [x["prompt_progress"] for x in e if x["type"] == "response.in_progress" and "prompt_progress" in x]
    assert len(p) > 1 and p[-1]["processed"] == p[-1]["total"], p
    deltas = [x["timings"]["predicted_n"] for x in e if x["type"] == "response.output_text.delta"]
    assert deltas == sorted(deltas) and e[-1]["timings"]["predicted_n"] == 10 and e[-1]["timings"]["predicted_per_second"] > 0, (deltas, e[-1])
    assert not any("timings" in x for x in events(s, ask)), "only where it was asked for"
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say a word."}]}]
    same(bare(s.json("/responses", dict(ask, input=parts))[1]["output"]), bare(r["output"]), "as items")
    r = s.json("/v1/responses", dict(input="Hi", text={"format": {"type": "json_schema", "name": "x", "strict": True, "schema": {"const": "42"}}}))[1]
    same((r["status"], r["output"][0]["content"][0]["text"]), ("completed", '"42"'), r)


def turns(s):
    """What is remembered is what the client could have sent again."""
    ask = dict(COLD, input="Say a word.")
    first = s.json("/v1/responses", ask)[1]
    said = first["output"][0]["content"][0]["text"]
    told = [{"role": "user", "content": "Say a word."}, {"role": "assistant", "content": said}, {"role": "user", "content": "Another."}]
    want = chat(s, told)
    for stream in (False, True):
        body = dict(COLD, input="Another.", previous_response_id=first["id"])
        second = sum_of(s, body) if stream else s.json("/v1/responses", body)[1]
        same((second["output"][0]["content"][0]["text"], second["previous_response_id"]), (want, first["id"]), second)
    third = s.json("/v1/responses", dict(COLD, input="More.", previous_response_id=second["id"], instructions="Be loud."))[1]
    same(third["output"][0]["content"][0]["text"], chat(s, [{"role": "system", "content": "Be loud."}] + told + [{"role": "assistant", "content": want}, {"role": "user", "content": "More."}]), "a third turn")
    again = s.json("/v1/responses", dict(COLD, input=[{"role": "user", "content": "Say a word."}] + first["output"] + [{"role": "user", "content": "Another."}]))[1]
    same(again["output"][0]["content"][0]["text"], want, "sent again")
    same(s.json("/v1/responses/" + first["id"]), (200, first), "read again")
    status, e = s.json("/v1/responses/" + first["id"] + "/input_items")
    assert status == 501 and "input" in e["error"]["message"], (status, e)
    same([s.ask(m, "/v1/responses/" + first["id"] + end)[0] for m, end in (("POST", "/cancel"), ("DELETE", "/x"), ("GET", "/"))], [404] * 3, "other addresses")
    same(s.ask("DELETE", "/v1/responses/" + first["id"])[0], 200, "erased")
    for r in (s.json("/v1/responses/" + first["id"]), s.json("/v1/responses", dict(ask, previous_response_id=first["id"]))):
        same((r[0], r[1]["error"]["code"]), (404, "not_found"), r)
    gone = s.json("/v1/responses", dict(ask, store=False))[1]["id"]
    same(s.json("/v1/responses/" + gone)[0], 404, "not stored")


def tools(s):
    ask = dict(input="What time is it?", tools=[TOOL, {"type": "web_search"}], grammar=literal("Wait. " + CALL), max_output_tokens=200)
    r = s.json("/v1/responses", ask)[1]
    message, call = r["output"]
    same((message["content"][0]["text"], call["type"], call["name"], json.loads(call["arguments"]), call["status"], r["status"]), ("Wait.", "function_call", "clock", {"zone": "UTC"}, "completed", "completed"), r)
    assert call["id"].startswith("fc_") and call["call_id"], call
    same(bare(sum_of(s, ask)["output"]), bare(r["output"]), "streamed")
    back = {"type": "function_call_output", "call_id": call["call_id"], "output": "Noon."}
    chats = [{"role": "user", "content": "What time is it?"}, {"role": "assistant", "content": "Wait.", "tool_calls": [{"id": call["call_id"], "type": "function", "function": {"name": "clock", "arguments": call["arguments"]}}]}, {"role": "tool", "tool_call_id": call["call_id"], "content": "Noon."}]
    want = chat(s, chats, tools=[{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}])
    for body in (dict(previous_response_id=r["id"], input=[back]), dict(input=[{"role": "user", "content": "What time is it?"}] + r["output"] + [back])):
        same(s.json("/v1/responses", dict(COLD, tools=[TOOL], **body))[1]["output"][0]["content"][0]["text"], want, "with the result")
    # Codex's tools of MCP servers stand in namespaces
    spaces = [{"type": "namespace", "name": "watch", "description": "d", "tools": [{k: v for k, v in TOOL.items()}, {"type": "custom", "name": "x"}]}, {"type": "namespace", "name": "wall", "tools": [TOOL]}, TOOL]
    say = lambda name: {"grammar": literal(CALL.replace("clock", name)), "max_output_tokens": 200, "input": "What time is it?", "tools": spaces}
    for name, space in (("watch__clock", "watch"), ("wall__clock", "wall"), ("clock", None)):
        r = s.json("/v1/responses", say(name))[1]
        same([(x["type"], x["name"], x.get("namespace"), json.loads(x["arguments"])) for x in r["output"]], [("function_call", "clock", space, {"zone": "UTC"})], r)
        same(bare(sum_of(s, say(name))["output"]), bare(r["output"]), "streamed")
        result = {"type": "function_call_output", "call_id": r["output"][0]["call_id"], "output": "Noon."}
        chats[1:] = [{"role": "assistant", "content": "", "tool_calls": [{"id": result["call_id"], "type": "function", "function": {"name": name, "arguments": r["output"][0]["arguments"]}}]}, {"role": "tool", "tool_call_id": result["call_id"], "content": "Noon."}]
        want = chat(s, chats, tools=[{"type": "function", "function": dict({k: v for k, v in TOOL.items() if k != "type"}, name=n)} for n in ("watch__clock", "wall__clock", "clock")])
        for body in (dict(previous_response_id=r["id"], input=[result]), dict(input=[{"role": "user", "content": "What time is it?"}] + r["output"] + [result])):
            same(s.json("/v1/responses", dict(COLD, tools=spaces, **body))[1]["output"][0]["content"][0]["text"], want, "with the result")
        choice = {k: v for k, v in (("type", "function"), ("name", "clock"), ("namespace", space)) if v}
        r = s.json("/v1/responses", {"input": "Hi", "tools": spaces, "tool_choice": choice, "max_output_tokens": 200})[1]
        same([(x["name"], x.get("namespace")) for x in r["output"]], [("clock", space)], choice)
    other = dict(TOOL, name="other")
    for choice in ("required", {"type": "function", "name": "clock"}, {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}):
        r = s.json("/v1/responses", {"input": "Hi", "tools": [TOOL, other] if choice != "required" else [TOOL], "tool_choice": choice, "max_output_tokens": 200})[1]
        same([(x["type"], x["name"]) for x in r["output"]], [("function_call", "clock")], choice)


def text_of(tokens):
    return bytes(b for t in tokens for b in t["bytes"]).decode().strip()


def logprobs(s):
    """Those of the text's tokens alone, as chats tell them."""
    more = {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"], "top_logprobs": 2}
    ask = dict(COLD, input="Say a word.", **more)
    want = s.json("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say a word."}], "temperature": 0, "max_tokens": 10, "logprobs": True, "top_logprobs": 2})[1]["choices"][0]["logprobs"]["content"]
    r = s.json("/v1/responses", ask)[1]
    assert len(want) == 10 and all(len(t["top_logprobs"]) == 2 for t in want), want
    same((r["output"][0]["content"][0]["logprobs"], r["top_logprobs"]), (want, 2), "as in a chat")
    same(s.json("/v1/responses/" + r["id"])[1], r, "kept")
    same(bare(sum_of(s, ask)["output"]), bare(r["output"]), "streamed")
    deltas = [x["logprobs"] for x in events(s, ask) if x["type"] == "response.output_text.delta"]
    assert len(deltas) > 5 and all(deltas), "they come with their text"
    r = s.json("/v1/responses", dict(ask, top_logprobs=0))[1]
    same([(t["token"], t["top_logprobs"]) for t in r["output"][0]["content"][0]["logprobs"]], [(t["token"], []) for t in want], "without others")
    words = "Wait <b. " + CALL  # "<" is held back, because markup begins so; of a stop string nothing is told
    for more_of, text in ((dict(grammar=literal(words), tools=[TOOL]), "Wait <b."), (dict(grammar=literal("<b <b <c stop it"), stop=["stop"]), "<b <b <c"), (dict(grammar=literal("中 é")), "中 é")):
        for stream in (False, True):
            body = dict(more, input="x", max_output_tokens=200, temperature=0, **more_of)  # else a token may hold the end of the text and the stop string's beginning
            part = (sum_of(s, body) if stream else s.json("/v1/responses", body)[1])["output"][0]["content"][0]
            same((part["text"].strip(), text_of(part["logprobs"])), (text, text), (stream, part))
    status, e = s.json("/v1/responses", dict(ask, top_logprobs=21))
    assert status == 400 and "from 0 to 20" in e["error"]["message"], e


def wrong(s):
    for body, status, words in (({}, 400, "'input'"), ({"input": 3}, 400, "'input'"), ({"input": [3]}, 400, "input[0]"), ({"input": [{"type": "computer_call"}]}, 400, "computer_call"), ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "a picture needs"),
                                ({"input": "x", "background": True}, 400, "background"), ({"input": "x", "tools": {}}, 400, "'tools' must be a list"), ({"input": "x", "tools": 1}, 400, "'tools' must be a list"), ({"input": "x", "previous_response_id": "resp_x"}, 404, "resp_x"), ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "z"}]}}, 400, "'z'"),
                                ({"input": "word " * 3000}, 400, "2048"), ({"input": [{"type": "function_call_output"}]}, 400, "call_id"), ({"input": "x", "max_output_tokens": "a"}, 400, "max_tokens")):
        got, r = s.json("/v1/responses", body)
        assert got == status and words in r["error"]["message"], (body, got, r)


def kinds(s):
    """A field of the wrong kind is refused with its name; null says nothing."""
    for field, bad in (("instructions", (["Be brief"], [{"role": "system", "content": "Be brief"}], {}, 5)), ("text", ([{"format": {"type": "json_object"}}], "json", 5)), ("reasoning", ("low", [], 5)), ("include", ("message.output_text.logprobs", {}, 5)),
                       ("store", ("no", 0, [])), ("tool_choice", (5, [], True))):
        for v in bad:
            status, r = s.json("/v1/responses", dict(COLD, **{"input": "x", "tools": [TOOL], field: v}))
            assert status == 400 and f"'{field}' must be " in r["error"]["message"], (field, v, status, r)
            same(s.json("/v1/responses", dict(COLD, **{"input": "x", field: v}))[0], 400, (field, v, "without tools"))
        same(s.json("/v1/responses", dict(COLD, **{"input": "x", field: None}))[0], 200, (field, "null"))
    for outer, inner, bad in (("text", "format", ("json_object", ["json_object"], 5)), ("reasoning", "effort", (["low"], {}, 5))):
        for v in bad:
            status, r = s.json("/v1/responses", dict(COLD, **{"input": "x", outer: {inner: v}}))
            assert status == 400 and f"'{outer}.{inner}' must be " in r["error"]["message"], (inner, v, status, r)
        same(s.json("/v1/responses", dict(COLD, **{"input": "x", outer: {inner: None}}))[0], 200, (inner, "null"))
    for choice in ({"type": "function"}, {"type": "allowed_tools", "tools": [{"type": "function", "name": "clock"}]}):
        status, r = s.json("/v1/responses", dict(COLD, input="x", tools=[TOOL], tool_choice=choice))
        assert status == 400 and "'tool_choice'" in r["error"]["message"], (choice, status, r)
    for tools in ({}, {"tools": []}, {"tools": [{"type": "web_search"}]}):
        status, r = s.json("/v1/responses", dict(COLD, input="x", tool_choice="required", **tools))
        assert status == 400 and "there are no tools" in r["error"]["message"], (tools, status, r)
        for choice in ("auto", "none"):
            same(s.json("/v1/responses", dict(COLD, input="x", tool_choice=choice, **tools))[0], 200, (tools, choice))
    same(s.json("/v1/responses", dict(COLD, input="x", tools=[{"type": "web_search"}], tool_choice={"type": "web_search"}))[0], 200, "it is left out, and named")
    status, r = s.json("/v1/responses", dict(COLD, input="x", text={"format": {"type": "json_schema", "name": "x"}}))
    assert status == 400 and "schema" in r["error"]["message"], (status, r)


def thoughts():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../oracle/templates/")
    s = Server("--chat-template", here + "Qwen-Qwen3-0.6B.jinja", "--cache-size", "0")
    ask = {"input": "x", "grammar": literal("<think>\nHm.\n</think>\n\nYes."), "max_output_tokens": 100}
    r = s.json("/v1/responses", ask)[1]
    same([(x["type"], x["content"][0]["text"]) for x in r["output"]], [("reasoning", "Hm."), ("message", "Yes.")], r)
    same(bare(sum_of(s, ask)["output"]), bare(r["output"]), "streamed")
    same(s.json("/v1/responses", dict(COLD, input=[{"role": "user", "content": "x"}] + r["output"] + [{"role": "user", "content": "y"}]))[0], 200, "a thought that comes back")
    told = dict(ask, include=["message.output_text.logprobs"])
    for r in (s.json("/v1/responses", told)[1], sum_of(s, told)):
        same(text_of(r["output"][1]["content"][0]["logprobs"]), "Yes.", "of a thought nothing is told")
    s.stop()


def counted():
    """Tokens of thoughts, and what a limit cuts, of a model that says a token at a time what is known."""
    pieces = ["<think>", "I should", " add", ".", "</think>", "It", " is", " five."]
    file = os.path.join(CACHE.name, "thinks.gguf")
    saying.write(file, {"A": pieces}, saying.TEMPLATE + "{% if false %}<think></think>{% endif %}")
    s = Server("--cache-size", "0", model=file)
    for n, kinds, thoughts in ((2, ["reasoning"], 2), (4, ["reasoning"], 4), (6, ["reasoning", "message"], 4), (20, ["reasoning", "message"], 4)):
        for stream in (False, True):
            body = {"input": "A", "max_output_tokens": n}
            r = sum_of(s, body) if stream else s.json("/v1/responses", body)[1]
            cut = "incomplete" if n < len(pieces) else "completed"
            same([(x["type"], x["status"]) for x in r["output"]], list(zip(kinds, ["completed"] * (len(kinds) - 1) + [cut])), (n, stream, r))
            same((r["status"], r["usage"]["output_tokens_details"]["reasoning_tokens"]), (cut, thoughts), (n, stream, r["usage"]))
            body = {"messages": [{"role": "user", "content": "A"}], "max_tokens": n}
            u = [e for e in s.events("/v1/chat/completions", dict(body, stream_options={"include_usage": True})) if e.get("usage")][-1] if stream else s.json("/v1/chat/completions", body)[1]
            same(u["usage"]["completion_tokens_details"], {"reasoning_tokens": thoughts}, ("of a chat", n, stream))
    two = s.json("/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "max_tokens": 6, "n": 2})[1]["usage"]
    same((two["completion_tokens"], two["completion_tokens_details"]["reasoning_tokens"]), (12, 8), "of both answers")
    r = s.json("/v1/responses", {"input": "x"})[1]
    same(r["usage"]["output_tokens_details"]["reasoning_tokens"], 0, "no thoughts")
    s.stop()


def held_back():
    """Text that may become a stop string comes late, and each token once, with its own."""
    pieces = ["a", "b", "ab", "-"]
    file = os.path.join(CACHE.name, "say.gguf")
    saying.write(file, {"1": pieces})
    s = Server("--cache-size", "0", model=file)
    for stream in (False, True):
        body = {"input": "1", "stop": ["abc"], "include": ["message.output_text.logprobs"]}
        part = (sum_of(s, body) if stream else s.json("/v1/responses", body)[1])["output"][0]["content"][0]
        same((part["text"].strip(), [t["token"].strip() for t in part["logprobs"]]), ("abab-", pieces), part)
    s.stop()


server = Server("--cache-size", "0")
for check in (words, turns, tools, logprobs, kinds, wrong):
    check(server)
    print(check.__name__, "ok", flush=True)
server.stop()
for check in (thoughts, counted, held_back):
    check()
    print(check.__name__, "ok")
