import json, os, sys

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../fixture")]
import saying
from served import CACHE, Server, same

SAY = os.path.join(CACHE.name, "say.gguf")
ARGS = '{"a": 2, "text": "line\\none", "deep": {"b": [1, "}"]}}'
saying.write(SAY, {"A": ["See: ", '<tool_call>{"na', 'me": "add", "argu', 'ments": {"a": 2', ', "text": "li', 'ne\\none", "de', 'ep": {"b": [1, "}"]}', "}}", "</tool_call>"], "B": ['<tool_call>{"name": "add", "arguments": {}}', '<tool_call>{"name": "nobody", "arguments": {}}'],
                   "N": ['<tool_call>{"name": "nobo', 'dy", "arguments": {"a": 1}}', "</tool_call>."], "X": ['<tool_call>{"name": "add", "arguments": {"a": ', "oops}}</tool_call> Hm."],
                   "C": ['<tool_call>{"name": "add", "arguments": {"b":', ' "x HALT y"}}</tool_call>'], "G": ['<tool_call>{"name": "add", "arguments": {"c": [1)} }}', "</tool_call>  "],
                   "I": ['<tool_call>{"name": "add", "parameters": {}, ', '"arguments": {"b": 7}}', "</tool_call>   "], "Y": ['<tool_call>{"name": "add", "arguments": {"d": ', 'no}}</tool_call><tool_call>{"name": "add", ', '"arguments": {"e": 1}}', "</tool_call>    "]})
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]


def ask(words, **more):
    return {"messages": [{"role": "user", "content": words}], "temperature": 0, "max_tokens": 50, **more}


def chat(words, **more):
    """Text, calls with the pieces of their arguments, and why it ended."""
    text, calls, why = "", [], None
    for e in s.events("/v1/chat/completions", ask(words, tools=TOOLS, **more)):
        d = e["choices"][0]["delta"]
        why = e["choices"][0]["finish_reason"] or why
        text += d.get("content") or ""
        for c in d.get("tool_calls", []):
            if "id" in c:
                calls.append((c["function"]["name"], []))
            if c["function"]["arguments"]:
                calls[c["index"]][1].append(c["function"]["arguments"])
    return text, calls, why


def whole(words, **more):
    c = s.json("/v1/chat/completions", ask(words, tools=TOOLS, **more))[1]["choices"][0]
    return c["message"]["content"] or "", [(x["function"]["name"], x["function"]["arguments"]) for x in c["message"].get("tool_calls", [])], c["finish_reason"]


def named(path, body):
    status, data = s.ask("POST", path, dict(body, stream=True))
    same(status, 200, data)
    return [json.loads(x[6:]) for x in data.decode().splitlines() if x.startswith("data: {")]


s = Server(model=SAY)
text, calls, why = chat("A")
same((text, why, len(calls)), ("See:", "tool_calls", 1), "a stream")
name, pieces = calls[0]
same((name, "".join(pieces)), ("add", ARGS), "the arguments")
assert len(pieces) >= 4, pieces
same(whole("A"), ("See:", [("add", ARGS)], "tool_calls"), "the whole reply")
# what turns out to be no call of a known tool is a call all the same in this markup, and comes whole; two of them
same((chat("N"), whole("N")[1]), ((".", [("nobody", ['{"a": 1}'])], "tool_calls"), [("nobody", '{"a": 1}')]), "a tool that is not there")
same([c[0] for c in chat("B")[1]], [c[0] for c in whole("B")[1]], "two calls")
same([c[0] for c in chat("B", parallel_tool_calls=False)[1]], ["add"], "one call")
# what has begun cannot be taken back: it is what the model wrote, and the reply does not end as one with calls
same(chat("X"), ("Hm.", [("add", ['{"a": ', "oops}"])], "stop"), "a broken call")
same(whole("X")[1:], ([], "stop"), "a broken call in a whole reply")
same(chat("G"), ("", [("add", ['{"c": [1)}'])], "stop"), "a call that is no JSON")
same(whole("G")[1:], ([], "stop"), "... in a whole reply")
same(chat("C", stop=["HALT"]), ("", [("add", ['{"b":', ' "x '])], "stop"), "a call that a stop string cuts")
same(whole("C", stop=["HALT"])[1:], ([], "stop"), "... in a whole reply")
same(chat("C")[2], "tool_calls", "... without it")
# the call after a broken one counts, also where one is asked for
same([chat("Y", **o)[2] for o in ({}, {"parallel_tool_calls": False})], ["tool_calls"] * 2, "a broken call and a whole one")
same(["".join(c[1]) for c in chat("Y", parallel_tool_calls=False)[1]], ['{"d": no}', '{"e": 1}'], "the one call")
# of two keys for arguments the first has them
same((["".join(c[1]) for c in chat("I")[1]], whole("I")), (["{}"], ("", [("add", "{}")], "tool_calls")), "two keys")
same(chat("A", max_tokens=5), ("See:", [("add", ['{"a": 2', ', "text": "li'])], "length"), "a call that was cut")
# without tools all is text
same("".join(e["choices"][0]["delta"].get("content") or "" for e in s.events("/v1/chat/completions", ask("A")))[:16], "See: <tool_call>", "no tools")
# Anthropic's
events = named("/v1/messages", ask("A", tools=[{"name": "add", "input_schema": PARAMETERS}]))
pieces = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta" and e["delta"]["type"] == "input_json_delta"]
assert "".join(pieces) == ARGS and len(pieces) >= 4, pieces
same([e["content_block"]["type"] for e in events if e["type"] == "content_block_start"], ["text", "tool_use"], "blocks")
same([e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"], ["tool_use"], "its end")
broken = {**ask("C", tools=[{"name": "add", "input_schema": PARAMETERS}]), "stop_sequences": ["HALT"]}
ends = [e["delta"] for e in named("/v1/messages", broken) if e["type"] == "message_delta"]
r = s.json("/v1/messages", broken)[1]
same(ends, [{k: r[k] for k in ("stop_reason", "stop_sequence")}], "the end of a stream and of a whole reply")
same(ends[0], {"stop_reason": "stop_sequence", "stop_sequence": "HALT"}, "a stop string in a call")
# Responses
events = named("/v1/responses", {"input": "A", "temperature": 0, "tools": [{"type": "function", "name": "add", "parameters": PARAMETERS}]})
pieces = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
assert "".join(pieces) == ARGS and len(pieces) >= 4, pieces
same([e["arguments"] for e in events if e["type"] == "response.function_call_arguments.done"], [ARGS], "done")
same([i["arguments"] for i in events[-1]["response"]["output"] if i["type"] == "function_call"], [ARGS], "the response")
# what was cut is incomplete, has no event that says that its arguments are done, and is no call of the next turn
cut = {"input": "A", "temperature": 0, "max_output_tokens": 5, "tools": [{"type": "function", "name": "add", "parameters": PARAMETERS}]}
for body, status in ((cut, "incomplete"), ({**cut, "input": "X", "max_output_tokens": 50}, "completed")):
    events = named("/v1/responses", body)
    same([e["type"] for e in events if e["type"] == "response.function_call_arguments.done"], [], "nothing is done")
    calls = [i for i in events[-1]["response"]["output"] if i["type"] == "function_call"]
    same(([i["status"] for i in calls], [e["item"] for e in events if e["type"] == "response.output_item.done" and e["item"]["type"] == "function_call"]), (["incomplete"], calls), "the item")
    same(events[-1]["response"]["status"], status, "the response")
    status, after = s.json("/v1/responses", {"input": "B", "temperature": 0, "previous_response_id": events[-1]["response"]["id"]})
    same(status, 200, after)
# Ollama's have no pieces
lines = [json.loads(x) for x in s.ask("POST", "/api/chat", ask("A", tools=TOOLS, options={"temperature": 0}))[1].splitlines()]
same([c["function"]["arguments"] for x in lines for c in x["message"].get("tool_calls", [])], [json.loads(ARGS)], "Ollama's")
s.stop()
print("arguments in pieces: fine")
