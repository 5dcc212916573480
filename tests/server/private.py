"""What is kept of people, looked for in every file of tern's folders: as text, and as tokens. What is deleted on the page, over the API or by the
commands is in none of them, while a server runs and after it ended; modes do not depend on the umask. The first check that fails ends the test."""
import json
import os
import stat
import struct
import subprocess
import tempfile
import time

from served import MODEL, TERN, Server, same

HOME = tempfile.TemporaryDirectory()
for name in ("DATA", "CACHE", "STATE"):
    os.environ["XDG_%s_HOME" % name] = os.path.join(HOME.name, name)
os.environ["HOME"] = HOME.name
os.umask(0)
MARKER = "The purple walrus sold forty zithers to Quizzaciously"
DOCUMENT = "The Wherretjumbled lantern of Oldfield hangs above the northern harbour gate, and its keeper is called Barnacle Umberline."
LONG = " It was a very long day and we walked a long way home." * 6
ids = []


def files():
    for root, folders, names in os.walk(HOME.name):
        for name in names:
            yield os.path.join(root, name)


def found(words):
    """Where the words stand: their text in any case, or their tokens without the first and last two, which may join others."""
    inner = ids[words][2:-2]
    assert len(inner) > 6, inner
    tokens = struct.pack("<%di" % len(inner), *inner)
    out = []
    for path in files():
        data = open(path, "rb").read()
        if tokens in data or words.encode().lower() in data.lower():
            out.append(os.path.relpath(path, HOME.name))
    return out


def private():
    for path in files():
        same(oct(stat.S_IMODE(os.lstat(path).st_mode)), "0o600", path)
    for root, folders, names in os.walk(HOME.name):
        if root != HOME.name and os.path.basename(root) not in ("DATA", "CACHE", "STATE"):
            same(oct(stat.S_IMODE(os.stat(root).st_mode)), "0o700", root)


def tern(*args, **more):
    r = subprocess.run([TERN, *args], capture_output=True, text=True, **more)
    assert r.returncode == 0, (args, r)
    return r.stdout


def post(s, path, body):
    status, r = s.json(path, body, {"Content-Type": "application/json"})
    same(status, 200, r)
    return r


def say(s, words, **more):
    """A conversation of the page whose answer has ended."""
    talk = post(s, "/page/talks", {})["id"]
    post(s, "/page/talks/%s/say" % talk, dict(parent=0, content=words, settings={"max_tokens": 8, "temperature": 0, **more}))
    s.ask("GET", "/page/talks/%s/answers/2" % talk)
    return talk


def gone(s, method, path):
    status, r = s.ask(method, path)
    same(status, 200, r)


def serve():
    return Server("--sessions", "2", "-c", "1024")


s = serve()
ids = {w: post(s, "/tokenize", {"content": w})["tokens"] for w in (MARKER, DOCUMENT)}

# a conversation of the page: on disk as text, and as what the model knows of it; deleted while that is on the disk and in memory
talk = say(s, MARKER + LONG)
assert any("conversations" in f for f in found(MARKER)), found(MARKER)
s.stop()
assert any("prefixes" in f for f in found(MARKER)), ("the test would find nothing", found(MARKER))
s = serve()
other = say(s, "Something else." + LONG)
post(s, "/page/talks/%s/say" % talk, {"parent": 2, "content": "And then?", "settings": {"max_tokens": 8}})
s.ask("GET", "/page/talks/%s/answers/4" % talk)
gone(s, "DELETE", "/page/talks/" + talk)
same(found(MARKER), [], "deleted, and the server runs")
post(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": "New words after that." + LONG}], "max_tokens": 4})
s.stop()
same(found(MARKER), [], "deleted, and the server ended")
assert any("prefixes" in f for f in map(str, files())), "what came later is kept"
private()

# an answer that is being written when its conversation is deleted
s = serve()
talk = post(s, "/page/talks", {})["id"]
post(s, "/page/talks/%s/say" % talk, {"parent": 0, "content": MARKER + LONG, "settings": {"max_tokens": 600}})
gone(s, "DELETE", "/page/talks/" + talk)
s.stop()
same(found(MARKER), [], "deleted while it was answered")

# a document, which prompts had; what a conversation of the page quotes stays with it, which docs/reference/server.md says
s = serve()
doc = post(s, "/v1/rag/documents", {"name": "lantern.txt", "text": DOCUMENT})["id"]
r = post(s, "/v1/rag/ask", {"question": "Where does the Wherretjumbled lantern hang?", "max_tokens": 4})
assert r["sources"], r
s.stop()
where = found(DOCUMENT)
assert any("prefixes" in f for f in where) and any("uploads" in f for f in where) and any("store" in f for f in where), where
private()
s = serve()
post(s, "/v1/rag/ask", {"question": "Where does the Wherretjumbled lantern hang?", "max_tokens": 4})
gone(s, "DELETE", "/v1/rag/documents/" + doc)
s.stop()
same(found(DOCUMENT), [], "the document is deleted")

# rag rm, and forget --documents, beside a server that runs
path = os.path.join(HOME.name, "given.txt")
for command in (("rag", "rm", path), ("rag", "rm", "--all"), ("forget", "--documents"), ("forget", "--all")):
    with open(path, "w") as f:
        f.write(DOCUMENT + "\n")
    os.chmod(path, 0o600)
    tern("rag", "add", path)
    tern("ask", "-m", MODEL, "Where does the Wherretjumbled lantern hang?", "-n", "4")
    s = serve()
    assert post(s, "/v1/rag/ask", {"question": "Where does the Wherretjumbled lantern hang?", "max_tokens": 4})["sources"]
    os.unlink(path)
    assert any("store" in f for f in found(DOCUMENT))
    tern(*command)
    same(found(DOCUMENT), [], " ".join(command))
    s.stop()
    same(found(DOCUMENT), [], " ".join(command) + ", and the server ended")

# forget --all beside a server that runs, and what writers that were killed left
s = serve()
talk = say(s, MARKER + LONG)
conversations = os.path.join(HOME.name, "DATA/tern/conversations")
for folder, name in ((conversations, talk + ".json"), (os.path.join(HOME.name, "CACHE/tern/prefixes"), "0123456789abcdef.session"), (os.path.join(HOME.name, "DATA/tern/uploads"), talk + ".txt")):
    os.makedirs(folder, 0o700, exist_ok=True)
    with open(os.path.join(folder, name + ".fedcba9876543210.tmp"), "w") as f:
        f.write(MARKER)
    open(os.path.join(folder, "mine.tmp"), "w").close()
tern("forget", "--all")
same(found(MARKER), [], "forget --all")
same(sum(f.endswith("mine.tmp") for f in files()), 3, "files of others")
s.stop()
same(found(MARKER), [], "forget --all, and the server ended")

# forget --all while an answer is being written: it goes on, and is not saved when it ends
s = serve()
body = json.dumps({"messages": [{"role": "user", "content": MARKER + LONG}], "max_tokens": 600, "temperature": 1, "seed": 1, "stream": True, "grammar": "root ::= [a-z ]{1500}"}).encode()
c = s.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
got = c.recv(1)
while b"delta" not in got:
    got += c.recv(65536)
tern("forget", "--all")
while more := c.recv(65536):
    got += more
c.close()
assert b"[DONE]" in got, got[-300:]
s.stop()
same(found(MARKER), [], "forget --all while an answer was written, and the server ended")

# nothing is kept where that was said
for f in files():
    os.unlink(f)
tern("chat", "-m", MODEL, "-n", "4", "--no-store", input=MARKER + "\n/stats\n")
tern("run", "-m", MODEL, "-p", MARKER, "-n", "4")
s = Server("--cache-size", "0", "-c", "1024")
post(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": MARKER + LONG}], "max_tokens": 4})
post(s, "/v1/completions", {"prompt": MARKER + LONG, "max_tokens": 4})
s.stop()
same(found(MARKER), [], "nothing was to be kept")
saved = os.path.join(HOME.name, "saved")
tern("run", "-m", MODEL, "-p", MARKER, "-n", "4", "--save-session", saved + ".session")
tern("chat", "-m", MODEL, "-n", "4", input=MARKER + "\n/save " + saved + ".talk\n")
assert len(found(MARKER)) == 3, found(MARKER)  # the store, and what was saved under names of the user's
private()
tern("forget", json.loads(tern("forget", "--list", "--json"))[0]["id"].__str__())
same(sorted(found(MARKER)), ["saved.session", "saved.talk"], "forget ID")
print("private: ok")
