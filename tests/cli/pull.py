"""tern pull: layouts, resuming, sums, refusals, tokens, proxies, room. The server notes every request, so that what was asked for is known."""
import hashlib
import http.client
import http.server
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from no_sockets import without

TERN = os.path.abspath(sys.argv[1])
TMP = tempfile.mkdtemp()
for key in list(os.environ):
    if key.lower().endswith("_proxy") or key.startswith(("HF_", "OLLAMA_")):
        del os.environ[key]
ENV = dict(os.environ, HOME=TMP + "/home", XDG_CACHE_HOME=TMP + "/cache", XDG_DATA_HOME=TMP + "/data", XDG_STATE_HOME=TMP + "/state", TERN_MODELS=TMP + "/none", TERN_PACK="never")
ENV["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0"]))  # which needs ptrace, and strace has it
os.mkdir(ENV["HOME"])
COMMIT = "c0ffee" + "0" * 34
HUB = ENV["XDG_CACHE_HOME"] + "/huggingface/hub"


def same(got, want, what):
    assert got == want, f"{what}: {got!r} instead of {want!r}"


def sha256(b):
    return hashlib.sha256(b).hexdigest()


class Faults:
    """What the server does wrong with files, until it is told otherwise."""
    def __init__(self):
        self.cut = []            # bytes after which connections end, one after the other
        self.status = []         # (status, Retry-After or None), one after the other
        self.stall = []          # bytes after which a connection stands still
        self.no_ranges = False   # Range is not heeded
        self.damage = False      # the last byte is another
        self.more = False        # bytes that were not announced
        self.redirect = "cdn"    # None: sent at once; "cdn": from another port; a URL
        self.token = None        # wanted
        self.etag = '"one"'
        self.slow = False


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.json, self.log, self.faults, self.cdn = {}, {}, [], Faults(), None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        pass  # who is tested breaks connections


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def end(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        s, path = self.server, self.path
        through_proxy = path.startswith("http://")
        if through_proxy:
            path = re.sub("^http://[^/]*", "", path)
        f = s.faults
        s.log.append((path, dict(self.headers), through_proxy))
        if f.token and self.headers.get("Authorization") != "Bearer " + f.token and not path.startswith("/cdn/"):
            return self.end(401, b'{"error":"gated"}')
        if path in s.json:
            if f.status:
                status, after = f.status.pop(0)
                return self.end(status, b"wait", **({"Retry_After": after} if after else {}))
            return self.end(200, s.json[path])
        if path not in s.files and not path.startswith("/cdn/"):
            return self.end(404, b"no such thing")
        if not path.startswith("/cdn/") and f.redirect:
            to = f"http://{s.cdn.address}/cdn{path}" if f.redirect == "cdn" else f.redirect
            return self.end(302, b"this is the page of a redirect", Location=to)
        self.file(s.files[path.removeprefix("/cdn")])

    def file(self, data):
        s, f = self.server, self.server.faults
        if f.status:
            status, after = f.status.pop(0)
            return self.end(status, b"wait", **({"Retry_After": after} if after else {}))
        if f.damage:
            data = data[:-1] + bytes([data[-1] ^ 1])
        m = re.match(r"bytes=(\d+)-$", self.headers.get("Range", ""))
        start = int(m.group(1)) if m and not f.no_ranges else 0
        if self.headers.get("If-Range", f.etag) != f.etag:
            start = 0
        if start and start >= len(data):
            return self.end(416, b"")
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f.etag)
        if f.more:
            data += b"x" * 5000
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end = len(data)
        if f.cut:
            end = min(end, start + f.cut.pop(0))
        elif f.stall:
            end = min(end, start + f.stall.pop(0))
            self.wfile.write(data[start:end])
            self.wfile.flush()
            return self.rfile.read(1)  # until the client goes
        step = 2000 if f.slow else 1 << 16
        for at in range(start, end, step):
            self.wfile.write(data[at:min(end, at + step)])
        self.wfile.flush()
        if end < len(data):
            self.close_connection = True


MAIN, CDN = Server(), Server()
MAIN.cdn = CDN
ENV["HF_ENDPOINT"] = f"http://{MAIN.address}"


def hub_repo(repo, files, lfs=True):
    siblings = []
    for name, data in files.items():
        MAIN.files[f"/{repo}/resolve/{COMMIT}/{name}"] = CDN.files[f"/{repo}/resolve/{COMMIT}/{name}"] = data
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        v = {"rfilename": name, "size": len(data), "blobId": blob}
        if lfs and name.endswith((".gguf", ".safetensors")):
            v["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
        siblings.append(v)
    MAIN.json[f"/api/models/{repo}/revision/main?blobs=true"] = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()


def fresh():
    MAIN.faults, CDN.faults = Faults(), Faults()
    MAIN.log.clear()
    CDN.log.clear()
    for folder in (ENV["XDG_CACHE_HOME"], ENV["HOME"] + "/.ollama"):
        shutil.rmtree(folder, ignore_errors=True)


def tern(*words, status=0, env=None, **more):
    r = subprocess.run([TERN, *words], capture_output=True, text=True, env=dict(ENV, **(env or {})), stdin=subprocess.DEVNULL, **more)
    assert r.returncode == status, f"tern {' '.join(words)}: status {r.returncode}\n{r.stdout}\n{r.stderr}"
    return r


def pull(name, status=0, **more):
    return tern("pull", name, status=status, **more)


def ranges(server):
    return [h.get("Range") for path, h, _ in server.log]


def left(ending):
    return [f for at, _, files in os.walk(TMP) for f in files if f.endswith(ending)]


if "built without libcurl" in subprocess.run([TERN, "pull", "a/b"], capture_output=True, text=True, env=ENV).stderr:
    print("skipped: tern was built without libcurl")
    sys.exit(77)
subprocess.run([TERN, "synth", "--arch", "tiny-llama", "--type", "q4_0", "-o", TMP + "/m.gguf"], check=True, capture_output=True)
GGUF = open(TMP + "/m.gguf", "rb").read()
FOLDER = {n: open("tests/oracle/fixtures/qwen2/" + n, "rb").read() for n in ("config.json", "model.safetensors")} | {"README.md": b"# words"}
hub_repo("org/small-GGUF", {"README.md": b"words", "small-Q8_0.gguf": b"GGUF other", "small-Q4_K_M.gguf": GGUF, "mmproj-small-f16.gguf": b"eyes", "config.json": b"{}"})
hub_repo("org/folder", dict(FOLDER, **{"training/optimizer.safetensors": b"no"}))
URL = f"http://{MAIN.address}/files/own.gguf"
MAIN.files["/files/own.gguf"] = CDN.files["/files/own.gguf"] = GGUF


def layout():
    """Hugging Face's own cache: blobs by their sums, a snapshot of links, a ref; and the name works."""
    fresh()
    r = pull("org/small-GGUF")
    root = HUB + "/models--org--small-GGUF"
    path = f"{root}/snapshots/{COMMIT}/small-Q4_K_M.gguf"
    same(r.stdout.strip(), path, "where it is")
    same(os.readlink(path), f"../../blobs/{sha256(GGUF)}", "the link")
    same(open(root + "/refs/main").read(), COMMIT, "the ref")
    same(open(path, "rb").read(), GGUF, "the bytes")
    same(os.listdir(root + "/blobs"), [sha256(GGUF)], "nothing else was fetched")
    assert "tern org/small-GGUF" in r.stderr, r.stderr
    for name in ("org/small-GGUF", "org/small-GGUF:Q4_K_M", "org/small-gguf:q4_k_m", "small-Q4_K_M"):
        tern("run", name, "-p", "hello", "-n", "2", "--temp", "0")
    asked = len(CDN.log)
    pull("org/small-GGUF:q4_k_m")
    same(len(CDN.log), asked, "what is there is fetched again")
    pull(f"http://huggingface.co/org/small-GGUF/resolve/main/small-Q8_0.gguf")
    same(sorted(os.listdir(f"{root}/snapshots/{COMMIT}")), ["small-Q4_K_M.gguf", "small-Q8_0.gguf"], "one file by its address")
    assert "small-Q8_0.gguf" in pull("org/small-GGUF:Q2_K", 1).stderr, "what there is"
    r = json.loads(tern("pull", "org/folder", "--json").stdout)
    same((r["files"], r["bytes"]), (len(FOLDER), sum(map(len, FOLDER.values()))), "a folder")
    same(sorted(os.listdir(r["path"])), sorted(FOLDER), "a folder's files")
    assert "qwen2" in tern("inspect", r["path"]).stdout and "org/folder" in tern("models").stdout


def split():
    fresh()
    hub_repo("org/split", {f"q4/x-{q}-0000{i}-of-00002.gguf": f"GGUF{q}{i}".encode() for i in (1, 2) for q in ("Q4_K_M", "Q8_0")})
    path = pull("org/split").stdout.strip()
    assert path.endswith("q4/x-Q4_K_M-00001-of-00002.gguf"), path
    same(sorted(os.listdir(os.path.dirname(path))), ["x-Q4_K_M-00001-of-00002.gguf", "x-Q4_K_M-00002-of-00002.gguf"], "all parts of one")
    same(os.readlink(path)[:15], "../../../blobs/", "a link from deeper")


def goes_on():
    """Connections that end, stand still, and servers that are busy: it goes on where it was."""
    fresh()
    CDN.faults.cut = [10000, 0, 20000]
    r = pull("org/small-GGUF")
    same(ranges(CDN), [None, "bytes=10000-", "bytes=10000-", "bytes=30000-"], "the rest is asked for")
    assert "trying again" in r.stderr, r.stderr
    fresh()
    CDN.faults.stall = [5000]
    tern("pull", "org/small-GGUF", "--timeout", "1")
    same(ranges(CDN), [None, "bytes=5000-"], "after standing still")
    fresh()
    CDN.faults.status = [(429, "0"), (503, "0")]
    assert "too many requests" in pull("org/small-GGUF").stderr
    fresh()
    MAIN.faults.status = [(429, "0")]
    assert "too many requests" in pull("org/small-GGUF").stderr
    fresh()
    CDN.faults.status = [(503, "0")] * 20
    r = pull("org/small-GGUF", 1)
    same((len(CDN.log), r.stderr.strip().splitlines()[-1]), (6, "tern: small-Q4_K_M.gguf: the server says 503"), "it gives up")
    fresh()
    CDN.faults.cut, CDN.faults.no_ranges, CDN.faults.slow = [10000], True, True
    pull("org/small-GGUF")
    same(len(CDN.log), 2, "a server without ranges sends all of it")


def killed():
    fresh()
    CDN.faults.stall = [12345]
    p = subprocess.Popen([TERN, "pull", "org/small-GGUF"], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = f"{HUB}/models--org--small-GGUF/blobs/{sha256(GGUF)}.incomplete"
    while not os.path.exists(part) or os.path.getsize(part) < 12345:
        assert p.poll() is None
        time.sleep(0.01)
    assert "another process" in pull("org/small-GGUF", 1).stderr
    p.kill()
    p.wait()
    CDN.log.clear()
    assert not os.path.exists(f"{HUB}/models--org--small-GGUF/snapshots"), "half a model has a name"
    pull("org/small-GGUF")
    same(ranges(CDN), ["bytes=12345-"], "the next command goes on")
    assert not left(".incomplete")


def wrong():
    fresh()
    CDN.faults.damage = True
    assert "wrong checksum" in pull("org/small-GGUF", 1).stderr
    same((left(".incomplete"), left(".gguf") == ["m.gguf"]), ([], True), "what is wrong stays")
    CDN.faults.damage = False
    pull("org/small-GGUF")
    fresh()
    CDN.faults.more = True
    assert "more than the" in pull("org/small-GGUF", 1).stderr
    fresh()
    MAIN.faults.redirect = "file:///etc/passwd"
    assert pull("org/small-GGUF", 1).stderr.count("\n") <= 2
    MAIN.faults.redirect = f"http://{MAIN.address}/org/small-GGUF/resolve/{COMMIT}/small-Q4_K_M.gguf"
    pull("org/small-GGUF", 1)  # round and round
    same(left(".gguf"), ["m.gguf"], "a redirect to nowhere")
    for evil in ("../../../evil.gguf", "/evil.gguf", "a/../evil.gguf", ".hidden/x.gguf", "x\ny.gguf"):
        hub_repo("org/evil", {evil: b"GGUF"})
        pull("org/evil", 1)
    MAIN.json["/api/models/org/evil/revision/main?blobs=true"] = b'{"sha": "../..", "siblings": []}'
    pull("org/evil", 1)
    MAIN.json["/api/models/org/evil/revision/main?blobs=true"] = b"<html>"
    pull("org/evil", 1)
    for name in ("../x/y", "a/b/../c", "org/", "-x/y", "a b/c", "ftp://x/y.gguf", "x:y:z", "http://h/x.txt"):
        pull(name, 1) if name[0] != "-" else tern("pull", "--", name, status=1)
    assert not os.path.exists(TMP + "/evil.gguf") and not left("evil.gguf")


def room():
    fresh()
    hub_repo("org/huge", {"huge-Q4_K_M.gguf": b"GGUF"})
    v = json.loads(MAIN.json["/api/models/org/huge/revision/main?blobs=true"])
    v["siblings"][0]["lfs"]["size"] = 10**16
    MAIN.json["/api/models/org/huge/revision/main?blobs=true"] = json.dumps(v).encode()
    assert "no room" in pull("org/huge", 1).stderr
    same((CDN.log, os.path.exists(HUB)), ([], False), "something was fetched")


def full_disk():
    """What does not fit after all is said, with the file's name, and the rest goes on another time."""
    fresh()
    r = subprocess.run(["sh", "-c", 'ulimit -f 20; exec "$0" pull org/small-GGUF', TERN], capture_output=True, text=True, env=ENV)
    same((r.returncode, len(r.stderr.splitlines())), (1, 2), r.stderr)
    assert r.stderr.splitlines()[1].startswith("tern: small-Q4_K_M.gguf: File too large"), r.stderr
    CDN.log.clear()
    pull("org/small-GGUF")
    assert ranges(CDN)[0], "it does not go on"


def tokens():
    """Of a gated model; it goes to the host that was asked and to no other."""
    fresh()
    MAIN.faults.token = "hf_secret"
    r = pull("org/small-GGUF", 1)
    assert "gated" in r.stderr and "HF_TOKEN" in r.stderr, r.stderr
    r = pull("org/small-GGUF", env={"HF_TOKEN": "hf_secret"})
    assert "hf_secret" not in r.stderr + r.stdout
    same({h.get("Authorization") for _, h, _ in CDN.log}, {None}, "the token went elsewhere")
    shutil.rmtree(HUB)
    with open(os.path.dirname(HUB) + "/token", "w") as f:
        f.write("hf_secret\n")
    pull("org/small-GGUF")
    r = pull("org/none", 1)
    assert "no such repository" in r.stderr, r.stderr


def ollama():
    fresh()
    config, template = b'{"model_format":"gguf"}', b"{{ .Prompt }}"
    layers = [("application/vnd.ollama.image.model", GGUF), ("application/vnd.ollama.image.template", template)]
    digest = lambda b: "sha256:" + sha256(b)
    manifest = json.dumps({"schemaVersion": 2, "config": {"mediaType": "c", "digest": digest(config), "size": len(config)},
                           "layers": [{"mediaType": t, "digest": digest(b), "size": len(b)} for t, b in layers]}).encode()
    MAIN.json["/v2/library/tiny/manifests/0.1b"] = manifest
    for b in (GGUF, config, template):
        MAIN.files[f"/v2/library/tiny/blobs/{digest(b)}"] = CDN.files[f"/v2/library/tiny/blobs/{digest(b)}"] = b
    name = f"{MAIN.address}/library/tiny:0.1b"
    CDN.faults.cut = [1000]
    path = pull(name).stdout.strip()
    store = ENV["HOME"] + "/.ollama/models"
    same(path, f"{store}/blobs/sha256-{sha256(GGUF)}", "the model")
    same(open(f"{store}/manifests/{MAIN.address}/library/tiny/0.1b", "rb").read(), manifest, "the manifest, byte by byte")
    same(len(os.listdir(store + "/blobs")), 3, "all layers")
    tern("run", "tiny:0.1b", "-p", "hello", "-n", "2", "--temp", "0")
    assert "no such model" in pull(f"{MAIN.address}/library/tiny:7b", 1).stderr
    MAIN.json["/v2/library/tiny/manifests/0.1b"] = manifest.replace(b"sha256:", b"sha256:../", 1)
    pull(name, 1)


def address():
    fresh()
    CDN.faults.cut = [7000]
    path = pull(URL).stdout.strip()
    same(open(path, "rb").read(), GGUF, "the bytes")
    same([h.get("If-Range") for _, h, _ in CDN.log], [None, '"one"'], "only the same file is gone on with")
    tern("run", "own.gguf", "-p", "hello", "-n", "2", "--temp", "0")
    fresh()
    CDN.faults.stall = [9000]
    p = subprocess.Popen([TERN, "pull", URL], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any(os.path.getsize(f"{at}/{f}") == 9000 for at, _, files in os.walk(HUB) for f in files):
        time.sleep(0.01)
    p.kill()
    p.wait()
    CDN.faults.etag = '"two"'
    CDN.files["/files/own.gguf"] = GGUF[:-8] + b"changed!"
    path = pull(URL).stdout.strip()
    same(open(path, "rb").read(), CDN.files["/files/own.gguf"], "another file now")
    CDN.files["/files/own.gguf"] = GGUF
    assert not left(".incomplete") and not left(".etag")


def proxy():
    fresh()
    MAIN.faults.redirect = None
    r = pull("org/small-GGUF", env={"HF_ENDPOINT": "http://hub.test", "http_proxy": f"http://{MAIN.address}"})
    assert MAIN.log and all(p for _, _, p in MAIN.log), MAIN.log


def terminal(words, typed=b""):
    pid, fd = pty.fork()
    if not pid:
        os.environ.clear()
        os.environ.update(ENV, TERM="xterm")
        os.execv(TERN, [TERN, *words])
    out = b""
    while True:
        try:
            more = os.read(fd, 65536)
        except OSError:
            break
        if not more:
            break
        out += more
        if typed and b"[y/N]" in out:
            os.write(fd, typed)
            typed = b""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out.decode(errors="replace")


def offered():
    """run offers it on a terminal, and never does it by itself."""
    fresh()
    r = tern("run", "org/small-GGUF", "-p", "hello", "-n", "2", status=1)
    assert "tern pull org/small-GGUF" in r.stderr, r.stderr
    same(MAIN.log, [], "fetched without being told to")
    for name in ("model.gguf", "./org/model", "org/a/b.tern"):
        status, out = terminal(["run", name, "-p", "hello"])
        assert status == 1 and "[y/N]" not in out, out
    status, out = terminal(["run", "org/small-GGUF", "-p", "hello", "-n", "2", "--temp", "0"], b"n\n")
    same((status, MAIN.log), (1, []), "no is no")
    status, out = terminal(["run", "org/small-GGUF", "-p", "hello", "-n", "2", "--temp", "0"], b"y\n")
    same(status, 0, out)
    assert "Hugging Face" in out and " MiB" in out and "[####" in out, out


# ---- no other command opens a connection: the kernel ends who tries ----------------------------------------------------------------

def no_connections():
    fresh()
    no_sockets = without(["socket", "connect"])
    if not no_sockets:
        return print("connections: this machine's system calls are not known here")
    r = subprocess.run([TERN, "pull", "org/small-GGUF"], env=ENV, capture_output=True, preexec_fn=no_sockets)
    same(r.returncode, -signal.SIGSYS, "the filter lets pull through")
    tiny = "models/tern-tiny"
    tern("run", tiny, "Who is Lily?", "-n", "4", preexec_fn=no_sockets)
    tern("run", "org/small-GGUF", "hello", status=1, preexec_fn=no_sockets)
    r = subprocess.run([TERN, "chat", tiny, "-n", "4"], input="Hello\n/stats\n", text=True, env=ENV, capture_output=True, preexec_fn=no_sockets)
    same(r.returncode, 0, r.stderr)
    for words in (["models"], ["inspect", tiny], ["bench", "-m", tiny, "-p", "8", "-n", "0", "-r", "1"], ["rag", "add", "docs/guide"], ["ask", tiny, "What is a package?", "-n", "4"]):
        tern(*words, preexec_fn=no_sockets)
    # A server asks once, with a connection to itself, whether the kernel tells whose a connection is; its sandbox refuses the rest (tests/documents/sandbox.c).
    seen = TMP + "/connects"
    watched = ["strace", "-f", "-qq", "-e", "trace=connect", "-e", "signal=none", "-o", seen] if shutil.which("strace") else []
    p = subprocess.Popen([*watched, TERN, "serve", tiny, "--port", "0"], env=ENV, stderr=subprocess.PIPE, text=True)
    port = None
    for line in p.stderr:
        if m := re.search(r"http://127.0.0.1:(\d+)", line):
            port = int(m.group(1))
            break
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}))
    same(c.getresponse().status, 200, "an answer")
    same(c.sock and c.close(), None, "closed")
    os.kill(int(open(f"/proc/{p.pid}/task/{p.pid}/children").read().split()[0]) if watched else p.pid, signal.SIGTERM)
    same(p.wait(), 0, "the server ended badly")
    if watched:
        connects = [x for x in open(seen) if "connect(" in x]
        same([x for x in connects if 'inet_addr("127.0.0.1")' not in x], [], "connections to elsewhere")
    else:
        print("connections: no strace, so the server's are not counted")
    same(MAIN.log, [], "somebody asked")


try:
    for check in (layout, split, goes_on, killed, wrong, room, full_disk, tokens, ollama, address, proxy, offered, no_connections):
        check()
        print(check.__name__, "ok", flush=True)
finally:
    shutil.rmtree(TMP, ignore_errors=True)
