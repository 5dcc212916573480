"""The Model Context Protocol by a client of its own: lines of JSON-RPC there and back. The first check that fails ends the test."""
import json
import os
import subprocess
import sys
import tempfile

TERN, MODEL = sys.argv[1:3]
HOME = tempfile.TemporaryDirectory()
os.environ.update(XDG_DATA_HOME=HOME.name, XDG_CACHE_HOME=HOME.name, HOME=HOME.name, TERN_PACK="never")
DOCS = os.path.join(HOME.name, "my docs, 100% ünïcode")


def same(got, want, what):
    assert got == want, f"{what}: {got!r} instead of {want!r}"


class Agent:
    def __init__(self, *args):
        self.p = subprocess.Popen([TERN, "mcp", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.n = 0

    def send(self, v):
        self.p.stdin.write((v if isinstance(v, str) else json.dumps(v)) + "\n")
        self.p.stdin.flush()

    def read(self):
        line = self.p.stdout.readline()
        assert line, self.p.stderr.read()
        return json.loads(line)

    def ask(self, method, params=None, **more):
        self.n += 1
        self.send({"jsonrpc": "2.0", "id": self.n, "method": method, **({"params": params} if params is not None else {}), **more})
        r = self.read()
        same((r["jsonrpc"], r["id"]), ("2.0", self.n), r)
        return r.get("result") or r["error"]

    def call(self, tool, **arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def begin(self, version="2025-06-18"):
        r = self.ask("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return r

    def end(self):
        self.p.stdin.close()
        rest = self.p.stdout.read()
        same(self.p.wait(1200), 0, self.p.stderr.read())
        return [json.loads(x) for x in rest.splitlines()]


def without_documents():
    a = Agent()
    for asked, got in (("2025-06-18", "2025-06-18"), ("2024-11-05", "2024-11-05"), ("1999-01-01", "2025-06-18")):
        r = a.begin(asked)
        same(r["protocolVersion"], got, "the version")
    same(sorted(r["capabilities"]), ["resources", "tools"], "what there is")
    same([t["name"] for t in a.ask("tools/list")["tools"]], ["search_documents", "read_document", "list_documents"], "tools without a model")
    r = a.call("search_documents", query="lantern")
    assert r["isError"] and "tern rag add" in r["content"][0]["text"], r
    same(a.call("list_documents")["structuredContent"], {"documents": []}, "no documents")
    os.makedirs(DOCS)
    open(os.path.join(DOCS, "harbour log.md"), "w").write("# Harbour\n\nThe Wherretjumbled lantern hangs above the northern harbour gate.\n\nIts keeper is called Barnacle Umberline.\n")
    open(os.path.join(DOCS, "birds.txt"), "w").write("Seventeen gulls nest on the roof of the customs house.\n" * 3)
    subprocess.run([TERN, "rag", "add", DOCS], check=True, capture_output=True)
    r = a.call("search_documents", query="Where does the lantern hang?")  # they came while the agent was there
    assert not r["isError"] and "northern harbour gate" in r["content"][0]["text"], r
    same(a.end(), [], "nothing more")


def tools():
    a = Agent("--store", os.path.join(HOME.name, "tern/store.db"))
    a.begin()
    r = a.call("search_documents", query="who keeps the lantern", limit=1)["structuredContent"]["passages"]
    same(len(r), 1, "as many as asked for")
    path = r[0]["path"]
    assert path.endswith("harbour log.md") and r[0]["passage"] == 1 and r[0]["line"] >= 1, r
    assert "Barnacle Umberline" in a.call("read_document", path=path)["content"][0]["text"]
    r = a.call("read_document", path=path, passage=1)["structuredContent"]
    assert r["passage"] == 1 and "lantern" in r["text"], r
    for arguments, why in (({"path": "/etc/passwd"}, "none of the documents"), ({"path": path, "passage": 99}, "99"), ({"path": path, "passage": 0}, "whole number"), ({"path": path, "passage": "x"}, "whole number"),
                           ({}, "'path'"), ({"path": 7}, "'path'")):
        r = a.call("read_document", **arguments)
        assert r["isError"] and why in r["content"][0]["text"], (arguments, r)
    for arguments in ({}, {"query": ""}, {"query": 1}, {"query": "x", "limit": 0}, {"query": "x", "limit": 65}, {"query": "x", "limit": 1.5}, {"query": "x", "limit": "3"}):
        assert a.call("search_documents", **arguments)["isError"], arguments
    same(a.call("search_documents", query="zyxwvut qqq")["structuredContent"], {"passages": []}, "words that stand nowhere")
    assert not a.call("search_documents", query='"; DROP TABLE document; -- NEAR( * OR')["isError"]
    listed = a.ask("resources/list")["resources"]
    same(sorted(x["name"] for x in listed), ["birds.txt", "harbour log.md"], "resources")
    for x in listed:
        text = a.ask("resources/read", {"uri": x["uri"]})["contents"][0]
        same(text["uri"], x["uri"], "the address")
        assert len(text["text"]) > 20 and " " not in x["uri"] and x["uri"].isascii(), text
    same(a.ask("resources/read", {"uri": "file:///etc/passwd"})["code"], -32002, "a file that is no document")
    for uri in ("/etc/passwd", "http://x/y", "file://", 3, None):
        same(a.ask("resources/read", {"uri": uri})["code"], -32602, uri)
    same(a.ask("resources/list", {"cursor": "x"})["code"], -32602, "a cursor of nobody's")
    same(a.ask("resources/list", {"cursor": "500"}), {"resources": []}, "after the last")
    same(a.ask("resources/templates/list"), {"resourceTemplates": []}, "templates")
    a.end()


def wrong():
    a = Agent()
    for text, code in (("{", -32700), (r'{"jsonrpc":"2.0","id":1,"method":"a\u0000b"}', -32700), ("nonsense", -32700), ("[" * 5000, -32700), ('{"jsonrpc":"2.0","jsonrpc":"2.0"}', -32700), ("[]", -32600), ("7", -32700), ('{"id":1,"method":"ping"}', -32600),
                       ('{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600), ('{"jsonrpc":"2.0","id":"x"}', -32600), ('{"jsonrpc":"2.0","id":1,"method":"nothing"}', -32601),
                       ('{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32602), ('{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602),
                       ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"rm"}}', -32602), ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_documents","arguments":[]}}', -32602)):
        a.send(text)
        same(a.read()["error"]["code"], code, text[:60])
    for text in ("", "   ", '{"jsonrpc":"2.0","method":"nothing"}', '{"jsonrpc":"2.0","id":5,"result":{}}', '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}', '[{"jsonrpc":"2.0","method":"x"}]'):
        a.send(text)  # none of them wants a reply
    a.send('[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":"b","method":"no"}]')
    r = a.read()
    same([(x["id"], "result" in x) for x in r], [("a", True), ("b", False)], "a list of requests")
    a.send('{"jsonrpc":"2.0","id":"long","method":"' + "x" * (9 << 20) + '"}')
    same(a.read()["error"]["code"], -32700, "a line that is too long")
    a.send('{"jsonrpc":"2.0","id":"after","method":"ping"}')
    same(a.read(), {"jsonrpc": "2.0", "id": "after", "result": {}}, "it goes on")
    a.p.stdin.write('{"jsonrpc":"2.0","id":"last","method":"ping"}')  # without the line's end
    same([x["id"] for x in a.end()], ["last"], "what came last")


def asking():
    a = Agent(MODEL, "-n", "40")
    a.begin()
    assert "ask_documents" in [t["name"] for t in a.ask("tools/list")["tools"]]
    a.send({"jsonrpc": "2.0", "id": "q", "method": "tools/call", "params": {"name": "ask_documents", "arguments": {"question": "Where does the lantern hang?"}, "_meta": {"progressToken": "t"}}})
    progress, r = [], a.read()
    while "method" in r:
        same((r["method"], r["params"]["progressToken"]), ("notifications/progress", "t"), r)
        progress.append(r["params"]["progress"])
        r = a.read()
    same(r["id"], "q", r)
    v = r["result"]["structuredContent"]
    assert v["text"] and v["fits"] and any(s["path"].endswith("harbour log.md") for s in v["sources"]), v
    same(progress, sorted(progress), "progress")
    direct = json.loads(subprocess.run([TERN, "ask", MODEL, "Where does the lantern hang?", "-n", "40", "--json", "--no-keep", "--draft", "none"], check=True, capture_output=True, text=True).stdout)
    same(v["text"], direct["text"], "tern ask's answer")
    a.end()
    a = Agent(MODEL)
    for i in range(3):  # one is answered, two wait: the first and the last are cancelled
        a.send({"jsonrpc": "2.0", "id": i, "method": "tools/call", "params": {"name": "ask_documents", "arguments": {"question": "Where does the lantern hang?"}}})
    for i in (2, 0):
        a.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": i}})
    a.send({"jsonrpc": "2.0", "id": "end", "method": "ping"})
    got = [x["id"] for x in a.end()]
    assert got in ([1, "end"], [0, 1, "end"]), got  # the first may have been quicker than its cancelling


def reranking():
    ranks = "tests/oracle/embedding/bert-rank/model.gguf"
    found = {}
    for options in ((), ("--rerank", "none"), ("--rerank", ranks)):
        a = Agent(MODEL, "-n", "8", *options)
        a.begin()
        passages = a.call("search_documents", query="gulls lantern", limit=2)["structuredContent"]["passages"]
        answer = a.call("ask_documents", question="gulls lantern")["structuredContent"]
        a.end()
        found[options] = [(p["path"], p.get("relevance_score")) for p in passages], {s["path"]: s.get("relevance_score") for s in answer["sources"]}
    plain, none, ranked = found.values()
    same(none, plain, "none is as without")
    assert all(score is None for _, score in plain[0]), plain
    scores = {}
    for path, _ in plain[0]:
        passage = open(path).read().strip()
        scores[path] = float(subprocess.run([TERN, "embed", "-m", ranks, "--scheme", "int8", "--question", "gulls lantern", passage], check=True, capture_output=True, text=True).stdout)
    same([p for p, _ in ranked[0]], sorted(scores, key=scores.get, reverse=True), "its order")
    for told in (dict(ranked[0]), ranked[1]):
        assert len(told) == 2 and all(abs(told[p] - scores[p]) < 1e-4 for p in told), (told, scores)


def leaving():
    a = Agent()
    a.p.stdout.close()
    try:
        for _ in range(1000):
            a.send({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    except BrokenPipeError:
        pass
    same(a.p.wait(1200), 1, "an agent that reads no more")


def options():
    for args, status, words in ((["no-such-model"], 1, "no-such-model"), (["--nothing"], 2, "--nothing"), (["--help"], 0, "search_documents")):
        r = subprocess.run([TERN, "mcp", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert r.returncode == status and words in r.stdout + r.stderr, r
    r = subprocess.run([TERN, "mcp"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    same((r.returncode, r.stdout), (0, ""), "nothing asked")


for check in (without_documents, tools, wrong, asking, reranking, leaving, options):
    check()
    print(check.__name__, "ok", flush=True)
