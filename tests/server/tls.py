"""TLS: certificates and keys that are refused, answers that are those of plain HTTP, and clients that mean harm before hands are shaken. Nothing
here depends on how long something takes. The first check that fails ends the test."""
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import warnings

from served import MODEL, TERN, Server, same

WORK = tempfile.TemporaryDirectory()
ASK = {"prompt": "There was a dog", "max_tokens": 8, "temperature": 0}
SEED = int(os.environ.get("TERN_TEST_SEED", random.randrange(1 << 32)))
print(f"seed {SEED}")


def made(name):
    return os.path.join(WORK.name, name)


def certificate(name, kind):
    subprocess.run(["openssl", "req", "-x509", *kind, "-nodes", "-keyout", made(name + ".key"), "-out", made(name + ".pem"), "-days", "7", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    os.chmod(made(name + ".key"), 0o600)


def options(cert="ec", key=None):
    return "--tls-cert", made(cert + ".pem"), "--tls-key", made((key or cert) + ".key")


def refused(*opts):
    r = subprocess.run([TERN, "serve", "-m", MODEL, "--port", "0", *opts], capture_output=True, text=True, timeout=1200)
    return r.returncode, r.stderr


def trusting(cert="ec"):
    return ssl.create_default_context(cafile=made(cert + ".pem"))


def flags():
    """What is wrong with the files is told before a model is loaded."""
    status, said = refused("--tls-cert", made("ec.pem"))
    assert status == 2 and "go together" in said, (status, said)
    os.chmod(made("rsa.key"), 0o644)
    status, said = refused(*options("rsa"))
    assert status == 1 and "others may read or change the private key" in said, (status, said)
    os.chmod(made("rsa.key"), 0o600)
    status, said = refused(*options("ec", "rsa"))
    assert status == 1 and "do not belong together" in said, (status, said)
    subprocess.run(["openssl", "pkcs8", "-topk8", "-in", made("ec.key"), "-out", made("locked.key"), "-passout", "pass:word"], check=True, capture_output=True)
    os.chmod(made("locked.key"), 0o600)
    status, said = refused(*options("ec", "locked"))
    assert status == 1 and "encrypted" in said, (status, said)
    with open(made("words.pem"), "w") as f:
        f.write("no certificate")
    status, said = refused("--tls-cert", made("words.pem"), "--tls-key", made("ec.key"))
    assert status == 1 and "PEM" in said, (status, said)
    with open(made("empty.pem"), "w") as f:
        f.write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    status, said = refused("--tls-cert", made("empty.pem"), "--tls-key", made("ec.key"))
    assert status == 1 and "no certificate and private key" in said, (status, said)


def answers(want, events):
    """The same as over plain HTTP: whole, in a stream, on one connection after another, from eight clients at once, for large bodies both ways."""
    s = Server(*options(), "--cache-size", "0", tls=trusting())
    same(json.loads(s.ask("POST", "/v1/completions", ASK)[1])["choices"][0]["text"], want, "the answer")
    same([e["choices"][0]["text"] for e in s.events("/v1/completions", ASK)], events, "the stream")
    c = s.connection()
    for _ in range(3):
        c.request("GET", "/v1/models")
        r = c.getresponse()
        same((r.status, json.loads(r.read())["object"]), (200, "list"), "one of three requests on a connection")
    c.close()
    got = [None] * 8

    def client(i):
        got[i] = json.loads(s.ask("POST", "/v1/completions", ASK)[1])["choices"][0]["text"]

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(got, [want] * 8, "eight answers at once")
    text = "word " * 400000  # 2 MB
    same(len(json.loads(s.ask("POST", "/tokenize", {"content": text})[1])["tokens"]) > 400000, True, "a large body and a large reply")
    status, value = s.json("/v1/completions", dict(ASK, prompt="word " * 100000))
    same((status, value["error"]["code"]), (400, "context_length_exceeded"), "a long prompt")
    with socket.create_connection(("127.0.0.1", s.port)) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        said = b"".join(iter(lambda: plain.recv(4096), b""))
    head, body = said.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 400") and "https://" in json.loads(body)["error"]["message"], said
    if shutil.which("curl"):
        r = subprocess.run(["curl", "-sS", "--cacert", made("ec.pem"), f"https://localhost:{s.port}/health"], capture_output=True, text=True)
        same((r.returncode, r.stdout), (0, '{"status":"ok"}'), "curl")
    r = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{s.port}", "-CAfile", made("ec.pem"), "-alpn", "h2,http/1.1"], input="", capture_output=True, text=True)
    assert "Verify return code: 0 (ok)" in r.stdout and "ALPN protocol: http/1.1" in r.stdout, r.stdout[-1500:]
    s.stop()


def versions():
    """TLS 1.2 and 1.3 and no older one; RSA as well; a client that knows another certificate goes away, and nobody minds."""
    s = Server(*options("rsa"), tls=trusting("rsa"))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        s.tls = trusting("rsa")
        s.tls.minimum_version = s.tls.maximum_version = version
        same(s.ask("GET", "/health")[0], 200, str(version))
    old = ssl.create_default_context(cafile=made("rsa.pem"))
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    for context, what in ((old, "TLS 1.1"), (trusting("ec"), "another certificate")):
        try:
            s.tls = context
            s.ask("GET", "/health")
            raise AssertionError(what + " was served")
        except (ssl.SSLError, ConnectionError):
            pass
    s.tls = trusting("rsa")
    same(s.ask("GET", "/health")[0], 200, "after them")
    s.stop()


def hello():
    """What a client says first."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        trusting().wrap_bio(into, out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def hostile():
    """Handshakes that do not come, half ones and garbage: 400 of them, and an honest client has its answers; each of them is ended."""
    s = Server(*options(), tls=trusting())
    rng, first = random.Random(SEED), hello()
    open_ones = []
    for i in range(400):
        c = socket.create_connection(("127.0.0.1", s.port))
        kind = i % 5
        data = (b"", first[: rng.randrange(1, len(first))], bytes(rng.randrange(256) for _ in range(rng.randrange(1, 4000))),
                b"\x16\x03\x01" + rng.randrange(65536).to_bytes(2, "big") + bytes(rng.randrange(256) for _ in range(400)), None)[kind]
        if data is None:  # a true greeting, damaged
            damaged = bytearray(first)
            for _ in range(rng.randrange(1, 8)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            data = bytes(damaged)
        try:
            c.sendall(data)
        except OSError:
            pass  # it was ended for a newer one
        open_ones.append(c)
        if i % 50 == 49:
            same(s.ask("GET", "/health")[0], 200, f"an honest client beside {i + 1} others")
    for c in open_ones:  # all are ended, the silent ones too
        try:
            while c.recv(4096):
                pass
        except OSError:
            pass
        c.close()
    same(s.ask("POST", "/v1/completions", ASK)[0], 200, "an answer after them")
    # garbage after hands were shaken: the record does not fit its sum
    c = trusting().wrap_socket(socket.create_connection(("127.0.0.1", s.port)), server_hostname="localhost")
    raw = socket.socket(fileno=os.dup(c.fileno()))
    raw.sendall(b"\x17\x03\x03\x00\x40" + bytes(64))
    while raw.recv(4096):
        pass
    raw.close()
    c.close()
    # one that asks for much and reads nothing, and one that leaves in the middle of its request
    sleepy = trusting().wrap_socket(socket.create_connection(("127.0.0.1", s.port)), server_hostname="localhost")
    body = json.dumps({"content": "word " * 400000, "with_pieces": True}).encode()
    sleepy.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    leaver = trusting().wrap_socket(socket.create_connection(("127.0.0.1", s.port)), server_hostname="localhost")
    leaver.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{")
    leaver.close()
    same(s.ask("POST", "/v1/completions", ASK)[0], 200, "an answer beside one that does not read")
    sleepy.close()
    s.stop()


def not_read():
    """Answers that nobody reads are given up on both sides of the link: no client keeps its line for as long as it likes."""
    s = Server(*options(), tls=trusting())
    fds = lambda: len(os.listdir(f"/proc/{s.p.pid}/fd"))
    same(s.ask("POST", "/tokenize", {"content": "word"})[0], 200, "an honest client")
    try:
        before = fds()
    except PermissionError:  # its user may not look into the server
        s.stop()
        return
    body = json.dumps({"content": "word " * 100000, "with_pieces": True}).encode()
    sleepy = []
    for _ in range(12):
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        sleepy.append(trusting().wrap_socket(c, server_hostname="localhost"))
        sleepy[-1].sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    while fds() > before + 8:  # of 36 and more; for a minute at most: the server's own limits end them
        time.sleep(0.2)
    same(s.ask("POST", "/v1/completions", ASK)[0], 200, "an answer after them")
    for c in sleepy:
        c.close()
    s.stop()


def other_users():
    """Without keys another user of the machine is refused, as over plain HTTP."""
    if os.geteuid() != 0:
        return
    s = Server(*options(), tls=trusting())

    def as_nobody(path):
        """The status that a process of another user reads, as its exit status."""
        child = os.fork()
        if not child:
            try:
                os.setgid(65534)
                os.setuid(65534)
                os._exit(s.ask("GET", path)[0] % 256)
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    told = [as_nobody(path) for path in ("/v1/models", "/health")]
    if any("kernel does not tell" in x for x in s.lines):
        return s.stop()
    same(told, [403 % 256, 200], "another user's requests")
    same(s.ask("GET", "/v1/models")[0], 200, "its own user's")
    s.stop()


def ending():
    """An answer that is being made ends first, and the connection is closed as TLS closes one."""
    s = Server(*options(), "--drain", "1h", tls=trusting())
    c = s.connection()
    c.request("POST", "/v1/completions", json.dumps(dict(ASK, max_tokens=200, ignore_eos=True, stream=True)))
    r = c.getresponse()
    first = r.readline()
    s.p.send_signal(signal.SIGTERM)
    rest = r.read()  # with an end of its own, or this fails
    assert first.startswith(b"data: ") and rest.endswith(b"data: [DONE]\n\n"), rest[-200:]
    c.close()
    same(s.p.wait(1200), 0, "the exit status")


certificate("ec", ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
certificate("rsa", ["-newkey", "rsa:2048"])
status, said = refused(*options("ec", "rsa"))
if "built without TLS" in said:
    same(status, 1, "the exit status of a build without TLS")
    print("skipped: this tern was built without TLS, and said so")
    sys.exit(77)
plain = Server("--cache-size", "0")
text = json.loads(plain.ask("POST", "/v1/completions", ASK)[1])["choices"][0]["text"]
pieces = [e["choices"][0]["text"] for e in plain.events("/v1/completions", ASK)]
plain.stop()
flags()
answers(text, pieces)
versions()
hostile()
not_read()
other_users()
ending()
