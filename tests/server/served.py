"""A server of its own for a test, and what a client asks of it. TERN and MODEL are the test's arguments."""
import atexit
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

TERN, MODEL = sys.argv[1:3]
CACHE = tempfile.TemporaryDirectory()
# the search for leaks at the end of a program needs ptrace, which the sandbox refuses
os.environ["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0"]))
os.environ.update(XDG_CACHE_HOME=CACHE.name, XDG_DATA_HOME=os.path.join(CACHE.name, "data"), TERN_PACK="never")  # a package made in the background would come at any time


def same(got, want, what):
    assert got == want, f"{what}: {got!r} instead of {want!r}"


class Server:
    """model None: the options say which. before: what the shell that becomes the server does first. tls: how a client of one that speaks TLS connects."""

    def __init__(self, *options, model=MODEL, before="", sandboxed=True, at="127.0.0.1", tls=None, **popen):
        self.tls = tls
        command = before + 'exec "$0" serve "$@"'
        which = ["-m", model] if model else []
        self.p = subprocess.Popen(["sh", "-c", command, TERN, *which, "--port", "0", "-t", "2", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **popen)
        atexit.register(self.p.kill)  # a check that fails leaves no server behind
        self.at, self.port = at, None
        self.lines = []
        for line in self.p.stderr:
            self.lines.append(line)
            m = re.search(r"https?://(?:[0-9.]+|\[[0-9a-f:]+\]):(\d+)", line)
            if m:
                self.port = int(m.group(1))
                break
        assert self.port, self.lines
        if sandboxed:
            self.sandboxed()
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.p.stderr), daemon=True)
        self.reader.start()

    def sandboxed(self):
        """The filter of system calls holds for every thread; where the kernel has none, the server said so."""
        filters = set()
        for t in os.listdir(f"/proc/{self.p.pid}/task"):
            try:
                with open(f"/proc/{self.p.pid}/task/{t}/status") as f:
                    filters.update(x.split()[1] for x in f if x.startswith("Seccomp:"))
            except FileNotFoundError:
                pass  # a thread that has ended meanwhile
        assert filters == {"2"} or any("no sandbox" in x for x in self.lines), filters
        if not any("no sandbox of files" in x for x in self.lines):  # Landlock wants no new privileges, and nothing else here does
            readers = self.readers()
            with_files = [any(x.split() == ["NoNewPrivs:", "1"] for x in open(f"/proc/{r}/status")) for r in readers]
            assert with_files and all(with_files), "those who read documents may open other files than the server"

    def readers(self):
        """The processes that read documents, which were begun last."""
        with open(f"/proc/{self.p.pid}/task/{self.p.pid}/children") as f:
            return f.read().split()[-4:]

    def connection(self):
        limit = 1200  # the test's own limit comes first, however slow the machine is
        if self.tls:
            return http.client.HTTPSConnection("localhost", self.port, timeout=limit, context=self.tls)
        return http.client.HTTPConnection(self.at, self.port, timeout=limit)

    def ask(self, method, path, body=None, headers={}):
        c = self.connection()
        c.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body), headers)
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, data

    def json(self, path, body=None, headers={}):
        status, data = self.ask("GET" if body is None else "POST", path, body, headers)
        return status, json.loads(data)

    def json_get(self, path):
        status, value = self.json(path)
        assert status == 200, value
        return value

    def events(self, path, body):
        status, data = self.ask("POST", path, dict(body, stream=True))
        assert status == 200, data
        lines = [x[6:] for x in data.decode().split("\n\n") if x.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines[-1]
        return [json.loads(x) for x in lines[:-1]]

    def metric(self, name):
        return float(re.search("^" + re.escape(name) + r" (\S+)$", self.ask("GET", "/metrics")[1].decode(), re.M).group(1))

    def load(self):
        """How many requests are answered and wait, and how many have come: all at one moment."""
        n = dict(re.findall(r'^tern_requests_(\w+(?:{result="\w+"})?) (\d+)', self.ask("GET", "/metrics")[1].decode(), re.M))
        running, waiting = int(n["running"]), int(n["waiting"])
        return running, waiting, running + waiting + sum(int(v) for k, v in n.items() if k.startswith("total"))

    def filled(self, before, running, waiting):
        """Waits until so many are answered and so many wait. False: all who were sent since `before` have come, and some are answered already."""
        while True:
            now_running, now_waiting, come = self.load()
            if now_running >= running and now_waiting >= waiting:
                return True
            if come - before >= running + waiting > now_running + now_waiting:
                return False

    def raw(self, data):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=1200)
        s.sendall(data)
        return s

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        status = self.p.wait(1200)
        self.reader.join()
        assert status == 0, "exit status %d:\n%s" % (status, "".join(self.lines[-80:]))
