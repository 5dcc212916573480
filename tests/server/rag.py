"""Documents over the API: given as bytes, listed, removed, asked, streamed; what is wrong is told. The first check that fails ends the test."""
import base64
import io
import json
import os
import stat
import tempfile
import threading
import zipfile

from served import CACHE, Server, same

DATA = tempfile.TemporaryDirectory()
os.environ["XDG_DATA_HOME"] = DATA.name
LAMP = "The lighthouse keeper Maren Oldfield lit the Zanzibar lamp at seven every evening.\n\nHer cat was called Barnacle and slept on the stairs."
RANKS = "tests/oracle/embedding/bert-rank/model.gguf"
QUESTION = "Who lit the Zanzibar lamp?"


def docx(text, how=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as z:
        z.writestr("[Content_Types].xml", "<Types/>")
        z.writestr("word/document.xml", '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>%s</w:t></w:r></w:p></w:body></w:document>' % text)
    return out.getvalue()


def add(s, body, path="/v1/rag/documents", headers={}):
    status, data = s.ask("POST", path, body, headers)
    return status, json.loads(data)


def adding(s):
    status, a = add(s, {"name": "keeper.txt", "text": LAMP})
    same((status, a["object"], a["title"]), (200, "document", "keeper.txt"), a)
    assert a["passages"] >= 1 and len(a["id"]) == 16, a
    sheep = {"name": "sheep.docx", "data": base64.b64encode(docx("Wool of the Quillfeather sheep is blue.")).decode()}
    status, b = add(s, sheep, headers={"Content-Type": "application/x-www-form-urlencoded"})  # as curl -d says
    same((status, b["title"]), (200, "sheep.docx"), b)
    status, c = add(s, b"<h1>Tides</h1><p>The Umberline tide comes twice a day.</p>", "/v1/rag/documents?name=tides.html", {})
    same((status, c["title"]), (200, "tides.html"), c)
    listed = s.json("/v1/rag/documents")[1]
    same((listed["object"], sorted(d["title"] for d in listed["data"])), ("list", ["keeper.txt", "sheep.docx", "tides.html"]), listed)
    return a, b, c


def asking(s, docs):
    ask = {"question": QUESTION, "max_tokens": 12, "temperature": 0}
    status, r = s.json("/v1/rag/ask", ask)
    same(status, 200, r)
    assert r["sources"] and "Zanzibar" in r["sources"][0]["text"] and r["sources"][0]["document"] == docs[0]["id"], r["sources"]
    same((r["object"], r["choices"][0]["message"]["role"]), ("chat.completion", "assistant"), r)
    bare = s.json("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12, "temperature": 0})[1]
    assert r["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"] + 10, "the passages are in the prompt"
    assert "sources" not in bare
    events = s.events("/v1/rag/ask", dict(ask, stream_options={"include_usage": True}))
    same(events[0]["sources"], r["sources"], "the first event has the sources")
    same("".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]), r["choices"][0]["message"]["content"], "the streamed text")
    same(events[-1]["usage"]["completion_tokens"], 12, "usage")
    for q, word in [("What colour is the wool of Quillfeather sheep?", "Quillfeather"), ("When does the Umberline tide come?", "Umberline")]:
        assert word in s.json("/v1/rag/ask", dict(ask, question=q))[1]["sources"][0]["text"]
    status, r = s.json("/v1/rag/ask", dict(ask, question="Xylophone quasar mitochondria?"))
    same((status, r["sources"]), (200, []), "nothing fits")
    status, r = s.json("/v1/rag/ask", dict(ask, question="Name the capital city of France, its mayor, its river, its oldest bridge, its newest museum and its cat"))
    same((status, r["sources"]), (200, []), "one word of many is there, which is no fit")
    got = []
    threads = [threading.Thread(target=lambda: got.append(s.json("/v1/rag/ask", ask)[1]["sources"][0]["document"])) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(got, [docs[0]["id"]] * 8, "eight at once")


def wrong(s):
    q = {"question": QUESTION}
    for method, path, body, status, words in [
        ("POST", "/v1/rag/documents", b"{", 400, "not valid JSON"),
        ("POST", "/v1/rag/documents", b"[]", 400, "not a JSON object"),
        ("POST", "/v1/rag/documents", b"", 400, "?name=NAME"),
        ("POST", "/v1/rag/documents", b"a text without a name", 400, "?name=NAME"),
        ("POST", "/v1/rag/documents", {"text": "x"}, 400, "'name'"),
        ("POST", "/v1/rag/documents", {"name": "a"}, 400, "'text', or its bytes"),
        ("POST", "/v1/rag/documents", {"name": "a", "text": "x", "data": "eA=="}, 400, "'text', or its bytes"),
        ("POST", "/v1/rag/documents", {"name": "a", "data": "e*A="}, 400, "not base64 at byte 1"),
        ("POST", "/v1/rag/documents", {"name": "a", "data": "eAAAA"}, 400, "not base64 at byte 4"),
        ("POST", "/v1/rag/documents", {"name": "a", "text": ""}, 400, "empty"),
        ("POST", "/v1/rag/documents", {"name": "a", "path": "/etc/passwd"}, 400, "'path' is not supported"),
        ("POST", "/v1/rag/documents", {"name": "a.docx", "text": "PK\x03\x04 no archive"}, 400, ""),
        ("POST", "/v1/rag/documents", {"name": "a.txt", "text": "  \n "}, 400, "no text"),
        ("POST", "/v1/rag/ask", {}, 400, "'question'"),
        ("POST", "/v1/rag/ask", {"question": 3}, 400, "'question'"),
        ("POST", "/v1/rag/ask", {"question": "x" * 70000}, 400, "a question may have"),
        ("POST", "/v1/rag/ask", dict(q, messages=[]), 400, "the question alone"),
        ("POST", "/v1/rag/ask", dict(q, temperature=-1), 400, "'temperature'"),
        ("POST", "/v1/rag/ask", dict(q, functions=[1]), 400, "'functions' is not supported"),
        ("DELETE", "/v1/rag/documents/0123456789abcdef", None, 404, "no such document"),
        ("DELETE", "/v1/rag/documents/../../etc/passwd", None, 404, "no such document"),
        ("PUT", "/v1/rag/documents", b"x", 405, "GET or POST"),
        ("GET", "/v1/rag/documents/0123456789abcdef", None, 405, "DELETE"),
        ("GET", "/v1/rag/ask", None, 405, "POST"),
        ("GET", "/v1/rag/nothing", None, 404, "no such address"),
    ]:
        got, data = s.ask(method, path, body, {"Content-Type": "application/json"})
        e = json.loads(data)["error"]
        assert got == status and words in e["message"] and DATA.name not in e["message"], (method, path, body, got, e)
        assert e["code"] != "model_not_found", (path, e)
    # hostile documents: each is refused by name, and at once (tests/cli/documents.sh has more of them)
    for name, text, words in [
        ("attributes.docx", "</w:t></w:r><w:r " + " ".join('a%x=""' % i for i in range(50000)) + "><w:t>", "too many attributes"),
        ("names.docx", "</w:t>" + "".join("<w:n%x/>" % i for i in range(400000)) + "<w:t>", "damaged"),
        ("deep.docx", "</w:t>" + "<w:r>" * 300 + "</w:r>" * 300 + "<w:t>", "too deeply"),
        ("entity.docx", "&nobody;", "damaged"),
    ]:
        got, r = s.ask("POST", "/v1/rag/documents?name=" + name, docx(text, zipfile.ZIP_DEFLATED), {})
        assert got == 400 and words in json.loads(r)["error"]["message"], (name, r)
    with s.raw(b"POST /v1/rag/documents?name=big.txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (33 << 20)) as c:
        same(c.recv(1 << 16).split(b" ")[1], b"413", "too large")
    status, r = add(s, {"name": "../../../etc/\x1b[31mpasswd\n.txt", "text": "The Verdigris key is under the mat."})
    same(status, 200, r)
    assert "\x1b" not in r["title"] and "\n" not in r["title"], r
    for root, folders, files in os.walk(DATA.name):
        for f in files:
            mode = os.stat(os.path.join(root, f)).st_mode
            assert stat.S_IMODE(mode) == 0o600, (root, f, oct(mode))
        if root != DATA.name:
            same(stat.S_IMODE(os.stat(root).st_mode), 0o700, root)


def reranked():
    """The passages that a reranker likes best of those that were found, over both addresses. It scores them as /v1/rerank does."""
    question = "Where is the ferry?"
    words = "fox dog quick brown lazy jumps over river stone winter light paper seven garden".split()
    texts = [f"The ferry {words[i]} {words[(i * 5 + 1) % 14]} {words[(i * 3 + 2) % 14]}." for i in range(12)]
    scorer = Server("--cache-size", "0", "--set", "scheme=int8", model=RANKS)
    best = [r["index"] for r in scorer.json("/v1/rerank", {"query": question, "documents": [f"{i}.txt\n\n{t}" for i, t in enumerate(texts)]})[1]["results"]]
    scorer.stop()
    for options in ((), ("--rerank", RANKS)):
        s = Server("--cache-size", "0", *options)
        for i, t in enumerate([] if options else texts):
            same(add(s, {"name": f"{i}.txt", "text": t})[0], 200, t)
        sources = s.json("/v1/rag/ask", {"question": question, "max_tokens": 2})[1]["sources"]
        same([("relevance_score" in x) for x in sources], [bool(options)] * 4, sources)
        over_mcp = s.json("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search_documents", "arguments": {"query": question, "limit": 4}}})[1]
        passages = over_mcp["result"]["structuredContent"]["passages"]
        same([x["text"] for x in passages], [x["text"] for x in sources], "both find the same")
        first = [texts.index(x["text"].split("\n\n")[1].strip()) for x in sources]
        if options:
            same(first, best[:4], "its order")
            same([x["relevance_score"] for x in passages], [x["relevance_score"] for x in sources], "scores")
        else:
            assert first != best[:4], "the made reranker has the order of words"
        s.stop()


def bytes_of():
    out = b""
    for where in (DATA.name, CACHE.name):
        for root, _, files in os.walk(where):
            for f in files:
                out += open(os.path.join(root, f), "rb").read()
    return out


def removing(s, docs):
    assert b"Zanzibar" in bytes_of(), "the test looks in the right place"
    for d in docs:
        same(s.ask("DELETE", "/v1/rag/documents/" + d["id"] + "%00.txt")[0], 404, "nothing is cut off a name")
        status, r = s.ask("DELETE", "/v1/rag/documents/%" + "%x" % ord(d["id"][0]) + d["id"][1:])
        same((status, json.loads(r)["deleted"]), (200, True), r)
    same(s.ask("DELETE", "/v1/rag/documents/" + docs[0]["id"])[0], 404, "it is gone")
    same([d["title"] for d in s.json("/v1/rag/documents")[1]["data"] if d["id"] in [x["id"] for x in docs]], [], "the list")
    same(s.json("/v1/rag/ask", {"question": QUESTION, "max_tokens": 1})[1]["sources"], [], "nobody quotes it")
    for word in (b"Zanzibar", b"Quillfeather", b"Umberline"):
        assert word not in bytes_of(), f"{word} is still on the disk"


os.umask(0)  # what is private does not depend on it
server = Server("--cache-size", "0")
documents = adding(server)
print("adding ok", flush=True)
asking(server, documents)
print("asking ok", flush=True)
wrong(server)
print("wrong ok", flush=True)
removing(server, documents)
print("removing ok", flush=True)
server.stop()
reranked()
print("reranked ok", flush=True)
