"""A chat with tools over `tern serve`: python3 examples/tools.py URL QUESTION        (URL: http://127.0.0.1:8080)

The model must call a tool; this program runs it, hands the result back, and prints the answer. Nothing beyond Python is needed."""
import json
import sys
import urllib.request

TOOLS = {"add": (lambda a, b: a + b, "the sum of two whole numbers"), "multiply": (lambda a, b: a * b, "the product of two whole numbers")}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}


def ask(url, messages, **more):
    body = json.dumps({"messages": messages, "max_tokens": 200, "temperature": 0, **more}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def main(url, question):
    tools = [{"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"], "additionalProperties": False}}}
        for name, (_, about) in TOOLS.items()]
    messages = [{"role": "user", "content": question}]
    said = ask(url, messages, tools=tools, tool_choice="required")
    messages.append(said)
    for call in said["tool_calls"]:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        result = TOOLS[name][0](**arguments)
        print(f"{name}({arguments['a']}, {arguments['b']}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": str(result)})
    print(ask(url, messages)["content"])


if __name__ == "__main__":
    main(*sys.argv[1:])
