import json, os, subprocess, sys

sys.path.insert(0, os.path.dirname(__file__))
from served import CACHE, MODEL, Server, TERN, same

folder = os.path.join(CACHE.name, "docs")
os.makedirs(folder)
for name, text in (("launch.md", "# Launch\n\nThe launch was delayed because the valve froze on Tuesday.\n"), ("menu.txt", "Soup, bread and apples are served at noon.\n")):
    open(os.path.join(folder, name), "w").write(text)


def request(method, n=1, **params):
    return {"jsonrpc": "2.0", "id": n, "method": method, **({"params": params} if params else {})}


def tool(name, n=1, **arguments):
    return request("tools/call", n, name=name, arguments=arguments)


MESSAGES = [
    request("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "t", "version": "1"}),
    request("initialize", protocolVersion="1999-01-01", capabilities={}, clientInfo={"name": "t", "version": "1"}),
    request("ping", "a"), request("tools/list"), request("resources/list"), request("no/such"),
    tool("search_documents", query="Why was the launch delayed?"), tool("search_documents", query="soup", limit=1), tool("search_documents", query=""),
    tool("list_documents"), tool("read_document", path=f"{folder}/launch.md"), tool("read_document", path=f"{folder}/launch.md", passage=1),
    tool("read_document", path="/etc/passwd"), tool("read_document", path=f"{folder}/../docs/launch.md"), tool("ask_documents", question=""),
    request("resources/read", uri=f"file://{folder}/menu.txt"), request("resources/read", uri="file:///etc/passwd"),
    [request("ping", 1), request("ping", 2)], {"jsonrpc": "1.0", "id": 1, "method": "ping"}, [],
]
QUIET = [{"jsonrpc": "2.0", "method": "notifications/initialized"}, {"jsonrpc": "2.0", "id": 5, "result": {}}, [{"jsonrpc": "2.0", "method": "notifications/initialized"}]]


def by_lines(messages):
    r = subprocess.run([TERN, "mcp", MODEL], input="".join(json.dumps(m) + "\n" for m in messages), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in r.stdout.splitlines()]


s = Server("--cache-size", "0")


def ask(message, **headers):
    """The status and the reply; "" where it has none."""
    status, data = s.ask("POST", "/mcp", message, {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers})
    return status, json.loads(data) if data else ""


# before there are documents, as over lines
empty = [request("tools/list"), tool("list_documents"), request("resources/list")]
same([ask(m)[1] for m in empty], by_lines(empty), "without documents")
subprocess.run([TERN, "rag", "add", folder], check=True, capture_output=True)
got = [ask(m) for m in MESSAGES]
same([r[0] for r in got], [200] * len(MESSAGES), "statuses")
same([r[1] for r in got], by_lines(MESSAGES), "what tern mcp says")
found = got[6][1]["result"]["structuredContent"]["passages"]
assert found[0]["path"] == f"{folder}/launch.md" and "valve froze" in found[0]["text"] and found[0]["line"] == 1, found
said = ask(tool("ask_documents", question="Why was the launch delayed?"))[1]["result"]
told = said["structuredContent"]
assert told["text"] and told["fits"] and told["stop"] in ("stop", "length") and [x["path"] for x in told["sources"]] == [f"{folder}/launch.md"], told
assert said["content"][0]["text"].startswith(told["text"]) and not said.get("isError"), said
long = ask(tool("ask_documents", question="soup " * 30000))[1]["result"]
assert long["isError"] and "context" in long["content"][0]["text"], long
for m in QUIET:
    r = ask(m)
    same(r, (202, ""), m)
# the transport
r = ask("{")
same((r[0], r[1]["error"]["code"]), (400, -32700), "no JSON")
r = ask('{"jsonrpc":"2.0","id":1,"method":' + "[" * 5000)
same((r[0], r[1]["error"]["code"]), (400, -32700), "deep JSON")
same(ask(request("ping"), **{"MCP-Protocol-Version": "2025-06-18"})[0], 200, "a version")
same(ask(request("ping"), **{"MCP-Protocol-Version": "1999-01-01"})[0], 400, "another version")
same([s.ask(method, "/mcp")[0] for method in ("GET", "DELETE", "PUT")], [405, 405, 405], "no stream, no session")
same(ask(request("ping"), Origin="https://evil.example")[0], 403, "a page of another site")
same(ask(request("ping"), Host="evil.example")[0], 403, "a name that leads here")
s.stop()
print("mcp over HTTP: fine")
