"""The server beside those who mean it harm: an honest client has every answer, and who is refused reads why. Nothing here depends on how
long something takes. The first check that fails ends the test. With SECONDS as a third argument it attacks for so long and prints the
honest client's latencies instead, with `streams` as a fourth beside whole answers that nobody reads."""
import json
import os
import random
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

from served import CACHE, Server, same

ASK = {"prompt": "There was a dog", "max_tokens": 4, "temperature": 0}


class Hostile(threading.Thread):
    """Many connections of one thread, each begun anew when the server ends it: heads that drip, bodies that drip, in chunks too, idle ones, whole
    requests by the hundred whose answers nobody reads."""

    KINDS = (
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX", b"x"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n{", b" "),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    )

    LONG = json.dumps(dict(prompt="There was a dog", max_tokens=2000, ignore_eos=True, stream=True, temperature=1)).encode()
    STREAM = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(LONG), LONG), b"")

    def __init__(self, port, n=200, streams=False):
        super().__init__(daemon=True)
        self.kinds = self.KINDS + (self.STREAM,) * streams
        self.port, self.n, self.ended, self.begun, self.stopping = port, n, [0] * len(self.kinds), 0, False
        self.full = threading.Event()  # all have come once

    def run(self):
        open_ones = {}
        while not self.stopping:
            while len(open_ones) < self.n:
                kind = self.begun % len(self.kinds)
                c = socket.socket()
                c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                c.connect(("127.0.0.1", self.port))
                c.setblocking(False)
                try:
                    c.send(self.kinds[kind][0])
                except OSError:
                    pass
                open_ones[c] = kind
                self.begun += 1
            self.full.set()
            for c in random.sample(list(open_ones), 20):
                try:
                    more = self.kinds[open_ones[c]][1]
                    if more:
                        c.send(more)
                    elif open_ones[c] == len(self.KINDS) and c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:  # the server has ended it
                        raise OSError
                except BlockingIOError:
                    pass
                except OSError:
                    self.ended[open_ones.pop(c)] += 1
                    c.close()
            for c in select.select([c for c, k in open_ones.items() if k < 4], [], [], 0.01)[0]:
                try:
                    got = c.recv(4096)
                except OSError:
                    got = b""
                if not got:
                    self.ended[open_ones.pop(c)] += 1
                    c.close()
        for c in open_ones:
            c.close()


def beside_200(seconds=None, streams=False):
    """Every request of an honest client has its answer, and so has /health, with 200 hostile connections."""
    s = Server("--cache-size", "0")
    want = json.loads(s.ask("POST", "/v1/completions", ASK)[1])["choices"][0]["text"]
    h = Hostile(s.port, streams=streams)
    h.start()
    h.full.wait()
    took, begun, end = [], h.begun, time.monotonic() + (seconds or 0)
    n = 0
    while n < (15 if streams else 60) if seconds is None else time.monotonic() < end:
        if n % 3 == 2:
            t = time.monotonic()
            same(s.ask("GET", "/health"), (200, b'{"status":"ok"}'), "health")
        else:
            t = time.monotonic()
            while (reply := s.ask("POST", "/v1/completions", ASK))[0] == 429 and streams:  # the queue is full of theirs
                pass
            status, r = reply
            took.append(time.monotonic() - t)
            same(status, 200, r)
            same(json.loads(r)["choices"][0]["text"], want, "the text beside them")
        n += 1
    if seconds:
        took.sort()
        print("%d answers; median %.0f ms, worst %.0f ms; %d hostile connections were begun, %s ended by the server"
              % (len(took), took[len(took) // 2] * 1e3, took[-1] * 1e3, h.begun, h.ended))
    h.stopping = True
    h.join()
    s.stop()


def raw(s, data):
    """All that the server says before it closes; a reset fails."""
    c = s.raw(data)
    got = b""
    while True:
        more = c.recv(65536)
        if not more:
            c.close()
            return got
        got += more


def keys_before_bodies():
    """Without a key the answer comes on the headers: no byte of a body that would follow is waited for."""
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("secret\n")
        f.flush()
        s = Server("--cache-size", "0", "--api-key-file", f.name)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n%s\r\n"
        assert raw(s, head % b"").startswith(b"HTTP/1.1 401 ")
        assert raw(s, head % b"Authorization: Bearer wrong\r\n").startswith(b"HTTP/1.1 401 ")
        assert raw(s, head % b"" + b" " * 8000000).startswith(b"HTTP/1.1 401 ")  # what is sent all the same does not take the reply away
        assert raw(s, head % b"Expect: 100-continue\r\n").startswith(b"HTTP/1.1 401 ")
        c = s.raw(head % b"x-api-key: secret\r\nExpect: 100-continue\r\n")
        assert c.recv(100).startswith(b"HTTP/1.1 100 ")
        c.close()
        same(s.ask("POST", "/v1/completions", ASK, {"x-api-key": "secret"})[0], 200, "with the key")
        s.stop()
    s = Server("--cache-size", "0")
    assert raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000000\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    assert raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 800\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    s.stop()


def slow_document():
    """While a PDF is being read, other documents are listed, added and asked for."""
    with tempfile.TemporaryDirectory() as at:
        gate = os.path.join(at, "gate")
        os.mkfifo(gate)
        pdftotext = os.path.join(at, "pdftotext")
        with open(pdftotext, "w") as f:
            f.write("#!/bin/sh\nread x <%s\necho the slow document\n" % gate)
        os.chmod(pdftotext, stat.S_IRWXU)
        s = Server("--cache-size", "0", env=dict(os.environ, PATH=at + ":" + os.environ["PATH"]))
        got = []
        slow = threading.Thread(target=lambda: got.append(s.ask("POST", "/page/documents?name=slow.pdf", b"%PDF-1.4 slow")))
        slow.start()
        with open(gate, "w") as f:  # this waits for somebody who reads: the document is being read now
            same(s.ask("GET", "/page/documents")[0], 200, "the list")
            status, r = s.ask("POST", "/page/documents?name=quick.txt", b"the quick document")
            same(status, 200, r)
            same(s.ask("DELETE", "/page/documents/" + json.loads(r)["id"])[0], 200, "one goes")
            same(s.json("/v1/rag/ask", dict(question="Which document?", max_tokens=2))[0], 200, "a question")
            assert not got
            f.write("\n")
        slow.join()
        same(got[0][0], 200, got)
        s.stop()


def answers_in_memory():
    """What waits to be sent is bounded: a stream that nobody reads ends, and so does a reply with more probabilities than a request may have."""
    s = Server("--cache-size", "0")
    much = {"prompt": "There was a dog", "n": 64, "n_predict": -1, "n_probs": 20, "ignore_eos": True, "temperature": 1}
    body = json.dumps(dict(much, stream=True)).encode()
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    c.connect(("127.0.0.1", s.port))
    c.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    # where answers come slowly the connection has been idle for too long before there are two megabytes, and they are cancelled
    ended = lambda: [s.metric(f'tern_requests_total{{result="{x}"}}') for x in ("failed", "cancelled")]
    while not any(ended()):
        assert s.metric('tern_requests_total{result="done"}') < 64, "an answer of many megabytes is made for nobody"
        time.sleep(0.02)
    c.settimeout(1200)
    got = b""
    while ended()[0] and b"does not read its answer" not in got[-100000:]:
        more = c.recv(1 << 20)
        assert more, got[-300:]
        got += more
    c.close()
    while (answer := s.json("/completion", much))[0] == 429:  # what is left of the stream's 64 answers goes one by one
        time.sleep(0.05)
    status, r = answer
    same((status, "ask for a stream" in r["error"]["message"]), (400, True), r)
    same(s.ask("POST", "/v1/completions", ASK)[0], 200, "others")
    s.stop()


def other_users():
    """On the default port another user's programs read, add and erase nothing, not even by asking and leaving at once."""
    if os.geteuid():
        print("not tried: only root can be another user")
        return
    s = Server("--cache-size", "0")
    if any("does not tell" in x for x in s.lines):
        print("not tried: this kernel does not tell whose a connection is")
        return
    doc = json.loads(s.ask("POST", "/page/documents?name=mine.txt", b"the private document")[1])["id"]

    def other(*requests, leave=False, host="127.0.0.1"):
        """What a child process that is nobody is answered."""
        ask = """if 1:
            import encodings.idna, os, socket, sys
            os.setgroups([]), os.setgid(65534), os.setuid(65534)
            for r in sys.argv[4:]:
                c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
                c.sendall((r + " HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n").encode())
                if sys.argv[3] == "leave":
                    c.close()
                else:
                    print(c.recv(65536).decode().split()[1])
        """
        return subprocess.run([sys.executable, "-c", ask, host, str(s.port), "leave" if leave else "stay", *requests], check=True, capture_output=True, text=True, cwd="/").stdout.split()

    paths = ["GET /page/talks", "POST /page/talks", "GET /page/documents", "DELETE /page/documents/" + doc, "GET /v1/rag/documents", "GET /v1/models",
             "GET /page/state", "GET /metrics", "POST /v1/completions", "POST /tokenize", "GET /nothing", "GET /page/timeline", "POST /mcp", "GET /mcp", "OPTIONS /mcp",
             "DELETE /v1/rag/documents/" + doc, "POST /v1/rag/documents?name=x.txt", "POST /v1/rag/ask", "POST /v1/chat/completions", "POST /v1/messages", "POST /v1/responses",
             "POST /v1/embeddings", "POST /v1/rerank", "POST /api/chat", "POST /api/generate", "POST /api/embed", "POST /api/show", "GET /api/tags", "GET /api/ps", "GET /props",
             "GET /slots", "GET /lora-adapters", "POST /lora-adapters", "POST /infill", "POST /apply-template", "POST /detokenize"]
    same(other(*paths), ["403"] * len(paths), "another user's requests")
    same(other("GET /health", "GET /"), ["200", "200"], "what is nobody's secret")
    s.p.send_signal(signal.SIGSTOP)  # so that the client has left before the server looks
    other("DELETE /page/documents/" + doc, leave=True)
    s.p.send_signal(signal.SIGCONT)
    assert doc in [d["id"] for d in s.json("/page/documents")[1]["documents"]], "the document is still there"
    same(s.ask("DELETE", "/page/documents/" + doc)[0], 200, "its own user erases it")
    s.stop()
    if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6"):
        s = Server("--cache-size", "0", "--host", "::1", at="::1")
        same(other(*paths, host="::1"), ["403"] * len(paths), "another user's requests over IPv6")
        same(s.ask("GET", "/v1/models")[0], 200, "the user's own over IPv6")
        s.stop()
    with tempfile.NamedTemporaryFile("w") as f:  # with keys it is they that count
        f.write("secret\n")
        f.flush()
        s = Server("--cache-size", "0", "--api-key-file", f.name)
        same(other("GET /v1/models"), ["401"], "without a key")
        s.stop()


def beside_streams():
    """The same where a sixth of them ask for long answers that they do not read, and look like the honest client."""
    beside_200(streams=True)


if len(sys.argv) > 3:
    beside_200(float(sys.argv[3]), "streams" in sys.argv[4:])
else:
    for check in (keys_before_bodies, slow_document, answers_in_memory, other_users, beside_200, beside_streams):
        check()
        print(check.__name__, "ok", flush=True)
