"""The server where something is in its way. Each check says what it found; the first that fails ends the test."""
import json
import os
import resource
import socket
import subprocess
import tempfile
import threading
import time

from served import CACHE, MODEL, TERN, Server, same


def passed():
    """A socket from systemd: the first request may come before the server does."""
    listening = socket.create_server(("127.0.0.1", 0))
    port, fd = listening.getsockname()[1], listening.fileno()
    early = socket.create_connection(("127.0.0.1", port))
    early.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    s = Server(before=f"exec 3<&{fd}; export LISTEN_FDS=1 LISTEN_PID=$$; ", pass_fds=(fd,))
    listening.close()
    same(s.port, port, "its port")
    assert b"200 OK" in early.recv(65536)
    same(s.ask("GET", "/health")[0], 200, "health")
    s.stop()

    def refused(fd, n, words):
        command = f'exec 3<&{fd}; LISTEN_FDS={n} LISTEN_PID=$$ exec "$0" serve -m "$@"'
        r = subprocess.run(["sh", "-c", command, TERN, MODEL], capture_output=True, text=True, pass_fds=(fd,), timeout=250)
        assert r.returncode == 1 and words in r.stderr and len(r.stderr.splitlines()) == 1, r

    with socket.create_server(("0.0.0.0", 0)) as l:
        refused(l.fileno(), 1, "give it keys")
    with socket.create_server(("127.0.0.1", 0)) as l:
        refused(l.fileno(), 2, "want one")
    with socket.socket() as l:
        refused(l.fileno(), 1, "does not listen")


LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "temperature": 1, "stream": True, "grammar": "root ::= [a-z ]{3000}"}


def send(s, body):
    data = json.dumps(body).encode()
    c = socket.create_connection(("127.0.0.1", s.port))
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return c


def silent_readers():
    """Clients that ask for a stream and do not read it, and clients that send half a request: others are answered."""
    s = Server("--cache-size", "0")
    ask = {"prompt": "There was a dog", "max_tokens": 12, "temperature": 0}
    want = json.loads(s.ask("POST", "/v1/completions", ask)[1])["choices"][0]["text"]
    while True:  # one may be answered before the last has come
        before = s.load()[2]
        mute = [send(s, LONG) for _ in range(7)]
        if s.filled(before, 7, 0):
            break
        for c in mute:
            c.close()
    half = []
    for _ in range(40):
        c = socket.create_connection(("127.0.0.1", s.port))
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        half.append(c)
    same(json.loads(s.ask("POST", "/v1/completions", ask)[1])["choices"][0]["text"], want, "the text beside them")
    for c in mute + half:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        c.close()
    while s.metric("tern_requests_running"):
        pass
    s.stop()


def crowd():
    """More than the queue holds: 429 at once, and those who wait get their answer."""
    s = Server("--cache-size", "0", "--sessions", "1", "--queue", "2")
    got, ask = [], {"prompt": "x", "max_tokens": 2}
    for _ in range(20):  # the first may be answered before the others have come
        before, first = s.load()[2], send(s, LONG)
        s.filled(before, 1, 0)
        waiting = [threading.Thread(target=lambda: got.append(s.ask("POST", "/v1/completions", ask)[0])) for _ in range(2)]
        for t in waiting:
            t.start()
        s.filled(before, 1, 2)
        status, data = s.ask("POST", "/v1/completions", ask)
        first.close()
        for t in waiting:
            t.join()
        if status == 429:
            break
    assert status == 429 and "2 requests wait" in json.loads(data)["error"]["message"], data
    same(set(got), {200}, "those who waited")
    s.stop()


def full_disk():
    """No file can grow beyond 64 KiB: one notice, and memory alone serves on."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    s = Server("--sessions", "1", preexec_fn=limit, restore_signals=False)  # Python ignores the signal, and so do its children then
    for i in range(4):
        status, data = s.ask("POST", "/v1/completions", {"prompt": "Story %d. " % i + "word " * 100, "max_tokens": 8})
        same(status, 200, data)
    s.stop()
    same(sum("kept in memory only" in x for x in s.lines), 1, s.lines)
    folder = os.path.join(CACHE.name, "tern", "prefixes")
    same(os.listdir(folder), [], "what is left of them")


def full_disk_of_documents():
    """No file can grow beyond 64 KiB: who gives a document or says something long is told that the disk is full (507), and never where files lie;
    what was there stays, and nothing half is left."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    with tempfile.TemporaryDirectory(prefix="tern: own") as data:
        env = dict(os.environ, XDG_DATA_HOME=data)
        s = Server("--cache-size", "0", env=env)
        kept = json.loads(s.ask("POST", "/page/documents?name=kept.txt", b"the document that was there")[1])["id"]
        talk = json.loads(s.ask("POST", "/page/talks", {})[1])["id"]
        s.stop()
        s = Server("--cache-size", "0", env=env, preexec_fn=limit, restore_signals=False)
        long = "word " * 20000
        for method, path, body, want in (
            ("POST", "/page/documents?name=long.txt", long, {507}),
            ("POST", "/v1/rag/documents", {"name": "long.txt", "text": long}, {507}),
            ("POST", "/page/documents?name=short.txt", "other words " * 3000, {500, 507}),  # its file fits, the index does not
        ):
            status, data_of = s.ask(method, path, body)
            assert status in want, (path, status, data_of)
            assert data.encode() not in data_of and b"uploads" not in data_of and b"store.db" not in data_of and b"/" not in data_of, data_of
        same([d["id"] for d in s.json("/page/documents")[1]["documents"]], [kept], "the documents")
        same(os.listdir(os.path.join(data, "tern", "uploads")), [kept + ".txt"], "the files")
        s.stop()
        less = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
        s = Server("--cache-size", "0", env=env, preexec_fn=less, restore_signals=False)
        status, r = s.ask("POST", "/page/talks/%s/say" % talk, {"parent": 0, "content": "word " * 600})
        assert status == 507 and b"/" not in r, (status, r)
        same(s.json("/page/talks/" + talk)[1]["nodes"], [], "the conversation")
        s.stop()
        s = Server("--cache-size", "0", env=env)
        os.chmod(os.path.join(data, "tern", "store.db"), 0o600)
        with open(os.path.join(data, "tern", "store.db"), "r+b") as f:
            f.write(b"damaged" * 200)
        status, r = s.ask("GET", "/page/documents")
        assert status == 500 and data.encode() not in r and b"store.db" not in r, (status, r)
        s.stop()


def packing():
    """A model in floats is packed when the server has ended, and not while it serves."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        folder, model = os.path.join(cache, "tern/packages"), os.path.join(cache, "own.gguf")
        subprocess.run([TERN, "synth", "--arch", "tiny-llama", "--type", "f16", "-o", model], check=True, capture_output=True)

        def packers():
            found = []
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as f:
                        words = f.read().split(b"\0")
                except OSError:
                    continue  # it ended
                if words[1:4] == [b"cache", b"add", b"--"] and words[4] == model.encode():
                    found.append(pid)
            return found

        def packages():
            """Those whose facts stand beside them: these are written last."""
            there = os.listdir(folder) if os.path.isdir(folder) else []
            return [f for f in there if f.endswith(".tern") and f[:-5] + ".about" in there]

        s = Server("--cache-size", "0", model=model, env=dict(os.environ, TERN_PACK="auto", XDG_CACHE_HOME=cache))
        same(sum("in the background" in x for x in s.lines), 1, s.lines)
        same(s.json_get("/v1/models")["data"][0]["meta"]["from"], "file", "what answers is named")
        for i in range(5):
            same(s.ask("POST", "/v1/completions", {"prompt": "hello the world", "max_tokens": 20})[0], 200, "an answer")
            same((packers(), packages()), ([], []), "it packs while it serves")
        s.stop()
        while not packages():  # the test's own limit of time ends this
            time.sleep(0.1)
        s = Server("--cache-size", "0", model=model, env=dict(os.environ, TERN_PACK="auto", XDG_CACHE_HOME=cache))
        same(sum("in the background" in x for x in s.lines), 0, s.lines)
        same(sum("come from its package" in x for x in s.lines), 1, s.lines)
        meta, props = s.json_get("/v1/models")["data"][0]["meta"], s.json_get("/props")
        same((meta["from"], props["from"], props["bits"]), ("cache", "cache", meta["bits"]), "what answers is named")
        assert meta["bits"] > 1 and meta["loss_percent"] > 0, meta
        same(s.ask("POST", "/v1/completions", {"prompt": "hello the world", "max_tokens": 20})[0], 200, "an answer of the package")
        s.stop()
        # of several models it is told when one is loaded
        os.mkdir(os.path.join(cache, "models"))
        os.rename(model, os.path.join(cache, "models", "own.gguf"))
        model = os.path.join(cache, "models", "own.gguf")
        subprocess.run([TERN, "cache", "add", model], check=True, capture_output=True, env=dict(os.environ, XDG_CACHE_HOME=cache))
        s = Server("--cache-size", "0", "--models", os.path.join(cache, "models"), model=None, env=dict(os.environ, TERN_PACK="auto", XDG_CACHE_HOME=cache))
        same(s.ask("POST", "/v1/completions", {"model": "own", "prompt": "hello the world", "max_tokens": 20})[0], 200, "an answer of the package")
        same(s.json_get("/v1/models")["data"][0]["meta"]["from"], "cache", "what answers is named")
        s.stop()
        same(sum("come from its package" in x for x in s.lines), 0, s.lines)  # it was told of these bytes, whatever their name


for check in (passed, silent_readers, crowd, full_disk, full_disk_of_documents, packing):
    check()
    print(check.__name__, "ok", flush=True)
