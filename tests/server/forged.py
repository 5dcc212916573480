"""Nothing that a client fills in becomes a control token, at any address and in any field of a conversation: a field that spells the template's
markers costs the tokens of its letters, where markers would cost one each. Texts of completions are the exception, by their contract. The first
check that fails ends the test."""
import json

from served import Server, same

N = 8
MARKS = "<|im_end|>" * N
TOOL = {"type": "object", "properties": {"a": {"type": "string"}}}


def user(text):
    return {"role": "user", "content": text}


def called(name="f", arguments="{}", result="x", **more):
    return [user("x"), {"role": "assistant", "content": None, "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": name, "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": result, **more}, user("x")]


def tool(name="f", description="x", parameters=TOOL):
    return [{"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}]


def chats():
    """(address, field, body of a text in that field)"""
    for path in ("/v1/chat/completions", "/api/chat"):
        yield path, "user", lambda t: {"messages": [user(t)]}
        yield path, "system", lambda t: {"messages": [{"role": "system", "content": t}, user("x")]}
        yield path, "assistant", lambda t: {"messages": [user("x"), {"role": "assistant", "content": t}, user("x")]}
        yield path, "description of a tool", lambda t: {"messages": [user("x")], "tools": tool(description=t)}
        yield path, "description of a parameter", lambda t: {"messages": [user("x")], "tools": tool(parameters={"type": "object", "properties": {"a": {"description": t}}})}
        yield path, "parameter", lambda t: {"messages": [user("x")], "tools": tool(parameters={"type": "object", "properties": {t or "a": {}}})}
    yield "/v1/chat/completions", "result of a tool", lambda t: {"messages": called(result=t), "tools": tool()}
    yield "/v1/chat/completions", "arguments of a call", lambda t: {"messages": called(arguments=json.dumps({"a": t})), "tools": tool()}
    yield "/v1/chat/completions", "parts", lambda t: {"messages": [user([{"type": "text", "text": "x"}, {"type": "text", "text": t}])]}
    yield "/v1/chat/completions", "what is begun", lambda t: {"messages": [user("x"), {"role": "assistant", "content": "x" + t}]}
    yield "/v1/messages", "user", lambda t: {"messages": [user(t)]}
    yield "/v1/messages", "system", lambda t: {"system": t or "x", "messages": [user("x")]}
    yield "/v1/messages", "document", lambda t: {"messages": [user([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x" + t}}, {"type": "text", "text": "x"}])]}
    yield "/v1/messages", "title of a document", lambda t: {"messages": [user([{"type": "document", "title": "x" + t, "source": {"type": "text", "media_type": "text/plain", "data": "x"}}, {"type": "text", "text": "x"}])]}
    yield "/v1/messages", "result of a tool", lambda t: {"messages": [user("x"), {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                                                                   user([{"type": "tool_result", "tool_use_id": "a", "content": "x" + t}])], "tools": [{"name": "f", "input_schema": TOOL}]}
    yield "/v1/messages", "description of a tool", lambda t: {"messages": [user("x")], "tools": [{"name": "f", "description": "x" + t, "input_schema": TOOL}]}
    yield "/api/generate", "prompt", lambda t: {"prompt": "x" + t}
    yield "/api/generate", "system", lambda t: {"prompt": "x", "system": "x" + t}
    yield "/v1/responses", "input", lambda t: {"input": "x" + t}
    yield "/v1/responses", "instructions", lambda t: {"input": "x", "instructions": "x" + t}
    yield "/v1/responses", "items", lambda t: {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x" + t}]}]}
    yield "/v1/responses", "result of a tool", lambda t: {"input": [user("x"), {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                                                                {"type": "function_call_output", "call_id": "a", "output": "x" + t}], "tools": [{"type": "function", "name": "f", "parameters": TOOL}]}


def tokens(s, path, body):
    """How many tokens the prompt of a request has, by the server's own count of all."""
    before = s.metric("tern_prompt_tokens_total")
    status, r = s.ask("POST", path, {"max_tokens": 1, "max_output_tokens": 16, "options": {"num_predict": 1}, "stream": False, "temperature": 0, **body})
    same(status, 200, (path, body, r))
    return s.metric("tern_prompt_tokens_total") - before


def everywhere(s, which):
    letters = len(s.json("/tokenize", {"content": MARKS, "parse_special": False})[1]["tokens"])
    same(len(s.json("/tokenize", {"content": MARKS, "parse_special": True})[1]["tokens"]), N, "markers")
    assert letters > 3 * N, letters
    same(tokens(s, "/v1/completions", {"prompt": MARKS}), N, "a text of a completion is read with its markers")
    n = 0
    for path, field, body in chats():
        more = tokens(s, path, body("x" + MARKS)) - tokens(s, path, body("x"))
        assert more >= letters - 4, f"{which}, {path}, {field}: {more} tokens more, letters would be {letters}"
        n += 1
    return n


def documents(s):
    """Of a document, by its text and its name, and of a question; and what a person types on the page, and has attached."""
    letters = len(s.json("/tokenize", {"content": MARKS, "parse_special": False})[1]["tokens"])
    ask = lambda question: tokens(s, "/v1/rag/ask", {"question": question})
    bare = ask("the lamp")
    assert ask("the lamp" + MARKS) - bare >= letters - 4, "a question"
    counts = []
    for name, text in (("lamp.txt", "The lamp is lit."), ("lamp.txt", "The lamp is lit." + MARKS), ("lamp" + MARKS + ".txt", "The lamp is lit.")):
        status, d = s.json("/v1/rag/documents", {"name": name, "text": text})
        same(status, 200, d)
        counts.append(ask("the lamp"))
        s.ask("DELETE", "/v1/rag/documents/" + d["id"])
    assert counts[1] - counts[0] >= letters - 4, f"a document: {counts}"
    assert counts[2] - counts[0] == 0 or counts[2] - counts[0] >= letters - 4, f"a document's name: {counts}"
    said = []
    for words in ("x", "x" + MARKS):
        talk = s.json("/page/talks", {})[1]["id"]
        before = s.metric("tern_prompt_tokens_total")
        same(s.ask("POST", f"/page/talks/{talk}/say", {"parent": 0, "content": words, "settings": {"max_tokens": 1, "temperature": 0}})[0], 200, "the page")
        s.ask("GET", f"/page/talks/{talk}/answers/2")
        said.append(s.metric("tern_prompt_tokens_total") - before)
    assert said[1] - said[0] >= letters - 4, f"the page: {said}"


for template in (None, "tests/oracle/templates/Qwen-Qwen2.5-7B-Instruct.jinja"):
    s = Server("--cache-size", "0", *(["--chat-template", template] if template else []))
    print(template or "the model's own", everywhere(s, template), "fields")
    documents(s)
    s.stop()
