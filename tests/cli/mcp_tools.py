import json, os, pty, select, signal, subprocess, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../fixture"))
import saying

TERN = os.path.abspath(sys.argv[1])
tmp = tempfile.TemporaryDirectory()
for name in ("DATA", "CACHE", "STATE"):
    os.environ[f"XDG_{name}_HOME"] = os.path.join(tmp.name, name)
os.environ.update(TERN_PACK="never", TERM="xterm", LC_ALL="C.UTF-8")
SERVER = os.path.abspath(os.path.join(os.path.dirname(__file__), "../fixture/mcp_server.py"))
LOG = os.path.join(tmp.name, "log")
MODEL = os.path.join(tmp.name, "say.gguf")


def tool(name, **arguments):
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "</tool_call>"


saying.write(MODEL, {"A": ['<tool_call>{"name": "add", "argu', 'ments": {"a": 2, ', '"b": 3}}', "</tool_call>"], "5": ["It is five."], ".": ["It may not be."], "H": ["Hello."], "F": ["I look. ", tool("fail")], "e": ["It failed."],
                     "L": [tool("echo", text="L")], "X": [tool("nosuch")], "T": [tool("hang")], "O": [tool("t_odd_name")], "G": [tool("grow")], "2": [tool("echo", text="a"), "\n", tool("echo", text="5") + " "],
                     "9": ["Nine."], "]": ["It was long."], "E": [tool("echo", text="\x1b[2J\u202eevil H")], "3": ["Three."], "W": [tool("echo", text="x" * 188 + "\u202e 5")], "M": [tool("echo", text="m" * 1989 + "\u202e" + "m" * 150 + "hidden" + "m" * 150 + "\u202e" + "m" * 1996 + "5")], "t": ["A list."], "s": ["So."], "8": [tool("later")], "U": [tool("echo", text="a\u200eb\u2028c\u3164d\U000e00415")]}, context=16384)


def mcp(way="good", name="t"):
    return ["--mcp", f"{name}=exec python3 {SERVER} {way} {LOG}"]


def same(got, want, what):
    assert got == want, f"{what}: {got!r} instead of {want!r}"


def sent():
    """What the server was sent, and that it was told to end."""
    lines = open(LOG).read().splitlines() if os.path.exists(LOG) else []
    if lines:
        os.remove(LOG)
    return lines


def chat(said, *options, status=0):
    r = subprocess.run([TERN, "chat", MODEL, "--no-store", *options], input=said, capture_output=True, text=True, timeout=600)
    same(r.returncode, status, r.stderr)
    return r.stdout, r.stderr


def calls(lines):
    params = [json.loads(x)["params"] for x in lines if x.startswith("{") and json.loads(x).get("method") == "tools/call"]
    return [{k: v for k, v in p.items() if k != "_meta"} for p in params]


# From a pipe nothing is called but what is allowed by name; the model is told.
out, err = chat("H\nA\n", *mcp())
same(out, "Hello.\nIt may not be.\n", "refused")
assert 't.add {"a": 2, "b": 3}' in err and "--mcp-allow t.add would allow it" in err, err
lines = sent()
same(calls(lines), [], "calls without leave")
same(lines[-1], "END", "the server ends with the chat")
for allowed in ("t.add", "t.*"):
    out, err = chat("A\n/history\nH\n", *mcp(), "--mcp-allow", allowed)
    same(out, "It is five.\nHello.\n", allowed)
    assert "tool: 5\n" in err and '(calls add {"a": 2, "b": 3})' in err, err
    same(calls(sent()), [{"name": "add", "arguments": {"a": 2, "b": 3}}], "the call")
out, _ = chat("A\n", *mcp(), "--mcp-allow", "t.ad", "--mcp-allow", "t.added")
same(out, "It may not be.\n", "other names do not allow it")
sent()
# An exchange is one thing, with whatever tools said in it.
out, err = chat("H\nA\n/regen\n/undo\n/history\n", *mcp(), "--mcp-allow", "t.*")
same(out, "Hello.\nIt is five.\nIt is five.\n", "again")
assert "took back the last exchange; 2 messages are left" in err and "tool:" not in err, err
chat(f"A\n/save {tmp.name}/talk\n/load {tmp.name}/talk\n/history\n", *mcp(), "--mcp-allow", "t.*")
same(open(f"{tmp.name}/talk").read(), "user: A\nassistant: It is five.\n", "saved")
# Two calls in one answer, a tool that fails, one that is not there, one whose name no API takes, one that came later.
same(chat("2\n", *mcp(), "--mcp-allow", "t.*")[0], "It is five.\n", "two calls")
out, err = chat("F\nX\nO\n", *mcp(), "--mcp-allow", "t.*")
same(out, "I look.\nIt failed.\nIt may not be.\nIt is five.\n", "failures")
assert "tern: it failed: no such file" in err, err
same(chat("8\nG\n8\n", *mcp(), "--mcp-allow", "t.*")[0], "It may not be.\nIt is five.\nIt is five.\n", "a tool that came later")
sent()
# A model that calls without end is stopped, and told before.
out, err = chat("L\nH\n", *mcp(), "--mcp-allow", "t.*")
same((out, len(calls(sent()))), ("It may not be.\nHello.\n", 16), "a model that calls without end")
# Two servers with the same tools: each has a name of its own.
out, err = chat("A\n/tools\n", *mcp(), *mcp(name="u"), "--mcp-allow", "t.*", "--mcp-allow", "u.*")
same(out, "It may not be.\n", "a name that two have")
assert "t.add (allowed): Adds two numbers." in err and "u.add (allowed): Adds" in err, err
sent()
# What is wrong on the command line.
for options, why in ((["--mcp", "x"], "NAME=COMMAND"), (["--mcp", "a.b=true"], "NAME=COMMAND"), (["--mcp", "a= "], "no command"), ([*mcp(), *mcp()], "two servers"), (["--mcp-allow", "t.add"], "no --mcp names a server t"),
                     ([*mcp(), "--mcp-allow", "t"], "NAME.TOOL")):
    assert why in chat("H\n", *options, status=2)[1], options
sent()


# Servers that misbehave: the model is told why, the conversation goes on.
for way, told in (("dies", "t ended with status 3: the disk is on fire"), ("garbage", "its reply cannot be read"), ("deep", "its reply cannot be read"), ("huge", "longer than 8 MiB")):
    out, err = chat("A\nH\n/history\n", *mcp(way), "--mcp-allow", "t.*")
    same(out.splitlines()[-1], "Hello.", way)
    assert told in err, (way, err[-600:])
same(chat("A\n", *mcp("logs"), "--mcp-allow", "t.*")[0], "It is five.\n", "logs that begin with brackets")
sent()
# Tools that leave no room are not the message's fault.
out, err = chat("H\n", *mcp("wide"), "-c", "2000", status=1)
assert "the 40 tools of t take " in err and "-c N" in err and "this message has" not in err, err
out, err = chat("H" * 3000 + "\n", *mcp(), "-c", "2000", status=1)
assert "this message has" in err and "tools of" not in err, err
out, err = chat("H\n", *mcp("many"), "-c", "16384")
assert "tern: t has more than 128 tools: the others are left out" in err, err
# One that has ended is started again by the next call.
sent()
chat("A\nA\n", *mcp("dies"), "--mcp-allow", "t.*")
same(sum('"initialize"' in x for x in sent()), 2, "starts")
out, err = chat("A\nH\n", *mcp("long"), "--mcp-allow", "t.*", "-c", "2000")
same(out, "It was long.\nHello.\n", "a result that has no room")
out, err = chat("A\n", *mcp("asks"), "--mcp-allow", "t.*")
same(out, "It is five.\n", "a server that asks")
replies = [json.loads(x[6:]) for x in sent() if x.startswith("REPLY")]
same([(r["id"], r.get("result"), r.get("error", {}).get("code")) for r in replies], [("s0", {}, None), ("s1", None, -32601), ("s2", None, -32601), ("s3", None, -32601)], "what it asked")
for way, told in (("ends", "t ended with status 4: cannot find [31mits settings"), ("old", "t speaks version 1999-01-01 of the protocol")):
    out, err = chat("H\n", *mcp(way))
    same(out, "Hello.\n", way)
    assert told in err, err
out, err = chat("H\n", "--mcp", "t=/no/such/program")
assert "the tools of t are missing: t ended with status 127" in err, err
sent()


class Screen:
    """tern chat on a terminal. The test types when it sees what it waits for."""

    def __init__(self, *options):
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execv(TERN, [TERN, "chat", MODEL, "--no-store", *options])
        self.seen = self.all = b""

    def until(self, text):
        while text.encode() not in self.seen:
            assert select.select([self.fd], [], [], 300)[0], (text, self.seen)
            data = os.read(self.fd, 65536)
            self.seen += data
            self.all += data
        self.seen = self.seen.split(text.encode(), 1)[1]

    def type(self, text):
        os.write(self.fd, text.encode())

    def leave(self):
        self.until("> ")
        self.type("/exit\r")
        while True:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                break
            self.all += data
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


ASK, ALL = "(a)lways: ", "(a)lways, (s)how all of it: "
s = Screen(*mcp())
s.until("> "), s.type("A\r"), s.until('t.add {"a": 2, "b": 3}'), s.until(ASK), s.type("\r"), s.until("It may not be.")
s.until("> "), s.type("A\r"), s.until(ASK), s.type("yes, but\r"), s.until("Please type y, n or a."), s.until(ASK), s.type("perhaps\r"), s.until("that counts as no"), s.until("It may not be.")
s.until("> "), s.type("A\r"), s.until(ASK), s.type("yes" + " " * 80 + "no\r"), s.until("Please type"), s.until(ASK), s.type("No\r"), s.until("It may not be.")
s.until("> "), s.type("A\r"), s.until(ASK), s.type("what\r"), s.until(ASK), s.type(" Yes \r"), s.until("It is five.")
s.until("> "), s.type("A\r"), s.until(ASK), s.type("\x03"), s.until("stopped")
s.until("> "), s.type("A\r"), s.until(ASK), s.type("a\r"), s.until("It is five.")
s.until("> "), s.type("A\r"), s.until("t.add"), s.until("It is five.")  # always is always
s.until("> "), s.type("2\r"), s.until("t.echo"), s.until(ASK), s.type("n\r"), s.until(ASK), s.type("y\r"), s.until("It is five.")  # ... of that tool alone
s.until("> "), s.type("/tools\r"), s.until("t.add (allowed)"), s.until("t.echo: Says")
same(s.leave(), 0, "leaving")
same(len(calls(sent())), 4, "calls with leave")
# A server that does not tell its tools again: Ctrl-C ends the wait, and the conversation goes on.
s = Screen(*mcp("stalls"))
s.until("> "), s.type("H\r")
while sum('"tools/list"' in x for x in (open(LOG).read().splitlines() if os.path.exists(LOG) else [])) < 5:
    pass
s.type("\x03"), s.until("those of before are used"), s.until("Hello.")
same(s.leave(), 0, "after a list that hung")
sent()
# A call that hangs ends by Ctrl-C, and the server is told.
s = Screen(*mcp(), "--mcp-allow", "t.*")
s.until("> "), s.type("T\r"), s.until("t.hang {}")
while not any('"hang"' in x for x in (open(LOG).read().splitlines() if os.path.exists(LOG) else [])):
    pass
s.type("\x03"), s.until("stopped"), s.until("> "), s.type("A\r"), s.until("It is five.")
same(s.leave(), 0, "after a call that hung")
assert any("notifications/cancelled" in x for x in sent()), "the server is told"
# What tools and models write reaches no terminal as an escape.
s = Screen(*mcp("escapes"), "-c", "12000")
s.until("> "), s.type("E\r"), s.until("\\u001b[2J\\xe2\\x80\\xaeevil H"), s.until(ASK), s.type("y\r"), s.until("It is five.")
s.until("> "), s.type("/history\r"), s.until("red"), s.until("It is five.")
s.until("> "), s.type("W\r"), s.until("xx\\xe2\\x80\\xae 5"), s.until(ASK), s.type("n\r"), s.until("It may not be.")  # wherever it is cut
s.until("> "), s.type("U\r"), s.until("a\\xe2\\x80\\x8eb\\xe2\\x80\\xa8c\\xe3\\x85\\xa4d\\xf3\\xa0\\x81\\x815"), s.until(ASK), s.type("n\r"), s.until("It may not be.")  # nor what nobody sees
s.until("> "), s.type("M\r"), s.until("bytes more]"), s.until(ALL), s.type("what\r"), s.until("Please type y, n, a or s."), s.until(ALL)
assert b"hidden" not in s.all, "the middle"
s.type("show\r"), s.until("hidden"), s.until(ALL), s.type("s\r"), s.until("hidden"), s.until(ALL), s.type("n\r"), s.until("It may not be.")
same(s.leave(), 0, "escapes")
assert b"\x1b]0;" not in s.all and b"\x1b[31m" not in s.all and "\u202e".encode() not in s.all, s.all
print("tools of MCP servers in a chat: fine")
