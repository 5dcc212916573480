"""How a server ends and where it listens. The first check that fails ends the test."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

from served import MODEL, TERN, Server, same

N = 200  # tokens of an answer that lasts
LONG = {"prompt": "Once upon a time", "max_tokens": N, "temperature": 0, "ignore_eos": True, "stream": True}


def asked(s, body):
    """A stream whose first event has come."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=1200)
    c.request("POST", "/v1/completions", json.dumps(body))
    r = c.getresponse()
    same(r.status, 200, "the stream's status")
    first = r.readline()
    assert first.startswith(b"data: "), first
    return c, r, first


def rest(r, first):
    lines = [first] + r.read().split(b"\n")
    return [json.loads(x[6:]) for x in lines if x.startswith(b"data: {")], b"data: [DONE]" in lines


def reason(events):
    got = [c["finish_reason"] for e in events for c in e.get("choices", []) if c.get("finish_reason")]
    return got[-1] if got else None


def ended(s):
    status = s.p.wait(1200)
    s.reader.join()
    return status, "".join(s.lines)


def drained():
    """An answer goes on to its end; whoever asks meanwhile is told, and whoever comes is not let in."""
    s = Server("--drain", "20m")
    kept = http.client.HTTPConnection("127.0.0.1", s.port, timeout=1200)
    kept.request("GET", "/v1/models")
    kept.getresponse().read()
    body = dict(LONG, max_tokens=2000)
    c, r, first = asked(s, body)
    s.p.send_signal(signal.SIGTERM)
    while not any("may end within" in x for x in s.lines):
        assert s.p.poll() is None, s.lines
    kept.request("GET", "/v1/models")
    answer = kept.getresponse()
    same(answer.status, 503, "the status of a request while the server ends")
    same(json.loads(answer.read())["error"]["message"], "the server is ending", "its message")
    events, done = rest(r, first)
    assert done and reason(events) == "length", events[-2:]
    same(sum(len(e.get("choices", [])) > 0 for e in events) >= 1500, True, "the answer is whole")
    status, said = ended(s)
    same(status, 0, said)
    assert "cut off" not in said, said


def cut_off():
    """By a second signal, and at once without time."""
    for options, twice in ((["--drain", "20m"], True), (["--drain", "0"], False)):
        s = Server(*options)
        c, r, first = asked(s, dict(LONG, max_tokens=4000))
        s.p.send_signal(signal.SIGTERM)
        if twice:
            while not any("may end within" in x for x in s.lines):
                assert s.p.poll() is None, s.lines
            s.p.send_signal(signal.SIGINT)
        try:
            events, done = rest(r, first)
            assert reason(events) != "length", events[-2:]
        except (http.client.IncompleteRead, ConnectionError):
            pass
        status, said = ended(s)
        same(status, 0, said)
        same("cut off" in said, twice, said)


def idle_ends_at_once():
    s = Server("--drain", "20m")
    kept = socket.create_connection(("127.0.0.1", s.port))
    s.p.send_signal(signal.SIGTERM)
    status, said = ended(s)
    same(status, 0, said)
    assert "may end" not in said, said


def listens(host, address, header):
    p = subprocess.Popen([TERN, "serve", MODEL, "--host", host, "--port", "0", "-t", "1"], stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in p.stderr:
            lines.append(line)
            if "tern serves" in line:
                break
        else:
            return lines
        port = int(re.search(r"http://\S+:(\d+)", line).group(1))
        assert header in line, line
        c = http.client.HTTPConnection(address, port, timeout=1200)
        c.request("GET", "/v1/models", headers={"Host": "%s:%d" % (header, port)})
        same(c.getresponse().status, 200, host)
        if os.geteuid() == 0 and "this user's programs" in line:
            script = "import http.client,sys; c=http.client.HTTPConnection('%s',%d,timeout=1200); c.request('GET','/v1/models',headers={'Host':'localhost'}); print(c.getresponse().status)" % (address, port)
            other = subprocess.run([sys.executable, "-c", "import os; os.setuid(65534)\n" + script], capture_output=True, text=True)
            if other.returncode == 0:  # an interpreter in root's home is nobody's
                same(other.stdout.strip(), "403", "another user by " + host)
        return lines
    finally:
        p.terminate()
        same(p.wait(1200), 0, host) if "tern serves" in "".join(lines) else p.wait(1200)


def addresses():
    listens("localhost", "127.0.0.1", "localhost")
    if os.path.exists("/proc/net/if_inet6") and "00000000000000000000000000000001" in open("/proc/net/if_inet6").read():
        assert "private" not in "".join(listens("::1", "::1", "[::1]"))
        listens("[::1]", "::1", "[::1]")
    for host, why in (("::", "can be reached from elsewhere"), ("0.0.0.0", "can be reached from elsewhere"), ("[127.0.0.1]", "not an IPv4 or IPv6"), ("example.org", "nor localhost"), ("::1%lo", "nor localhost"), ("", "nor localhost")):
        said = "".join(listens(host, "", ""))
        assert why in said, (host, said)


drained()
cut_off()
idle_ends_at_once()
addresses()
print("ok")
