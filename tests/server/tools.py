import json, os, subprocess, sys, threading, time

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "../fixture")]
import saying
from served import CACHE, Server, same

SERVER = os.path.abspath(os.path.join(os.path.dirname(__file__), "../fixture/mcp_server.py"))
LOG, SAY = os.path.join(CACHE.name, "log"), os.path.join(CACHE.name, "say.gguf")


def tool(name, **arguments):
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


saying.write(SAY, {"A": ["I add. ", tool("add", a=2, b=3)], "5": ["It is five."], ".": ["It may not be."], "H": ["Hello."], "T": [tool("hang")], "2": [tool("echo", text="a"), "\n", tool("echo", text="5") + " "],
                   "L": [tool("echo", text="L")], "e": ["It failed."], "d": ["It died."]})


def mcp(way="good", name="t"):
    return ["--mcp", f"{name}=exec python3 {SERVER} {way} {LOG}"]


def sent(method="tools/call"):
    lines = [json.loads(x) for x in open(LOG) if x.startswith("{")] if os.path.exists(LOG) else []
    if lines:
        os.truncate(LOG, 0)  # the server appends
    return [{k: v for k, v in x["params"].items() if k != "_meta"} for x in lines if x.get("method") == method]


def peek():
    return [json.loads(x)["params"] for x in open(LOG) if x.endswith("}\n") and '"tools/call"' in x] if os.path.exists(LOG) else []


class Talk:
    def __init__(self, server):
        self.s = server
        self.id = server.json("/page/talks", {})[1]["id"]
        self.leaf = 0

    def say(self, words, tools=True):
        status, v = self.s.json(f"/page/talks/{self.id}/say", {"parent": self.leaf, "content": words, "settings": {"temperature": 0}, **({"tools": True} if tools else {})})
        assert status == 200, v
        self.leaf = v["nodes"][-1]["id"]
        self.at = f"/page/talks/{self.id}/answers/{self.leaf}"
        return self

    def events(self):
        """What a page hears, as it comes."""
        c = self.s.connection()
        c.request("GET", self.at)
        r = c.getresponse()
        assert r.status == 200, r.read()
        for line in r:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def asked(self):
        """The calls that are asked for, once there are some."""
        for e in self.events():
            assert e["type"] != "end", e
            calls = [c for c in e["steps"][-1]["calls"] if c["state"] == "asked"] if e["type"] == "steps" else []
            if calls:
                return calls

    def decide(self, call, allow):
        return self.s.json(f"{self.at}/calls/{call}", {"allow": allow})[0]

    def end(self):
        for e in self.events():
            if e["type"] == "end":
                return e["node"]


s = Server(*mcp(), model=SAY)
state = s.json_get("/page/state")["tools"]
same([t["tool"] for t in state], ["add", "echo", "hang", "fail", "odd/name", "grow", "wild"], "the tools")
same({k: state[0][k] for k in ("server", "description", "allowed")}, {"server": "t", "description": "Adds two numbers.", "allowed": False}, "a tool")
# A question without tools is answered without them.
t = Talk(s)
node = t.say("A", tools=False).end()
same((node["content"].split("<")[0], "steps" in node), ("I add. ", False), "no tools")
same(sent(), [], "nobody called")
# Once.
t = Talk(s)
call, = t.say("A").asked()
same({k: call[k] for k in ("server", "tool", "name", "arguments", "state")}, {"server": "t", "tool": "add", "name": "add", "arguments": '{"a": 2, "b": 3}', "state": "asked"}, "what is asked")
shown = {}
while "steps" not in shown:  # on the disk a moment later
    shown = s.json_get(f"/page/talks/{t.id}")["nodes"][-1]
same((shown["state"], shown["steps"][0]["content"], shown["steps"][0]["calls"][0]["state"]), ("writing", "I add.", "asked"), "a page that is loaded now")
same(sent(), [], "nothing is called before")
same([t.decide("nosuch", "once"), t.decide(call["id"], "perhaps"), s.json(f"{t.at}/calls/{call['id']}", {})[0]], [404, 400, 400], "decisions that are none")
same(t.decide(call["id"], "once"), 200, "once")
node = t.end()
same((node["content"], node["state"], [c["state"] for c in node["steps"][0]["calls"]], node["steps"][0]["calls"][0]["result"]), ("It is five.", "done", ["done"], "5"), "the answer")
same(t.decide(call["id"], "once"), 404, "a call is made once")
same(sent(), [{"name": "add", "arguments": {"a": 2, "b": 3}}], "the call")
# The conversation goes on with what was called, and asks again.
call, = t.say("A").asked()
same(t.decide(call["id"], "no"), 200, "no")
node = t.end()
same((node["content"], node["steps"][0]["calls"][0]["state"]), ("It may not be.", "refused"), "refused")
same(sent(), [], "a refused call is not made")
# Always: in this conversation, of this tool.
call, = t.say("A").asked()
same(t.decide(call["id"], "always"), 200, "always")
same(t.end()["content"], "It is five.", "always")
kept, = s.json_get(f"/page/talks/{t.id}").get("allowed")
same(kept.split()[0], "t.add", "what is kept")
same(t.say("A").end()["content"], "It is five.", "always is kept")
calls = t.say("2").asked()
same([c["tool"] for c in calls], ["echo", "echo"], "two calls")
same([t.decide(calls[0]["id"], "no"), t.decide(calls[0]["id"], "once"), t.decide(calls[1]["id"], "once")], [200, 404, 200], "two decisions, and one that came too late")
node = t.end()
same((node["content"], [c["state"] for c in node["steps"][0]["calls"]]), ("It is five.", ["refused", "done"]), "one of two")
other = Talk(s)
call, = other.say("A").asked()
# Nobody else decides: other sites' pages, named ones too, other names of this machine; and a page cannot give leave with a conversation.
path = f"{other.at}/calls/{call['id']}"
for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}, {"Origin": "null"}):
    same(s.ask("POST", path, {"allow": "always"}, headers)[0], 403, headers)
    same(s.ask("POST", f"/page/talks/{other.id}/say", {"parent": 0, "content": "A", "tools": True}, headers)[0], 403, headers)
same(s.json(f"/page/talks/{other.id}", {"allowed": ["t.add"], "settings": {"allowed": ["t.*"]}})[0], 200, "a change")
assert "allowed" not in s.json_get(f"/page/talks/{other.id}"), "leave that was not asked for"
brought = s.json("/page/talks", {"allowed": ["t.add"], "nodes": [{"id": 1, "parent": 0, "role": "user", "content": "H", "steps": [], "allowed": ["t.add"]}]})[1]
assert "allowed" not in s.json_get(f"/page/talks/{brought['id']}"), "leave that was imported"
same(sent(), [{"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "echo", "arguments": {"text": "5"}}], "calls with leave")
# Stopped while it asks, and while a call runs.
same(s.json(f"{other.at}/stop", {})[0], 200, "stop")
node = other.end()
same((node["state"], node["content"], node["steps"][0]["calls"][0]["state"]), ("stopped", "", "asked"), "stopped")
same(other.decide(call["id"], "once"), 404, "too late")
call, = t.say("T").asked()
t.decide(call["id"], "once")
while not os.path.exists(LOG) or "hang" not in open(LOG).read():
    pass
same(s.json(f"{t.at}/stop", {})[0], 200, "stop")
same(t.end()["state"], "stopped", "stopped")
# Another conversation that waits for that tool is stopped, and erased, while the first one's call goes on.
same(sent()[-1]["name"], "hang", "the call")
first, second, third = Talk(s), Talk(s), Talk(s)
for x in (first, second, third):
    call, = x.say("T").asked()
    x.decide(call["id"], "once")
    while x is first and not any(y["name"] == "hang" for y in peek()):
        pass
same(s.json(f"{second.at}/stop", {})[0], 200, "stop")
same(second.end()["state"], "stopped", "stopped while it waits for its turn")
same(s.ask("DELETE", f"/page/talks/{third.id}")[0], 200, "erased while it waits for its turn")
same(s.json_get(f"/page/talks/{first.id}")["nodes"][-1]["state"], "writing", "the one that has the turn")
same(s.json(f"{first.at}/stop", {})[0], 200, "stop")
same(first.end()["state"], "stopped", "stopped")
same([x["name"] for x in sent()][-1], "hang", "the calls")
# A model that calls without end.
t = Talk(s)
call, = t.say("L").asked()
t.decide(call["id"], "always")
node = t.end()
same((node["content"], len(node["steps"])), ("It may not be.", 17), "rounds")
# The API does not lend them.
status, v = s.json("/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "temperature": 0})
assert status == 200 and "<tool_call>" in v["choices"][0]["message"]["content"], v
same(len(sent()), 16, "calls of the rounds")
# Thoughts of a step are that step's alone: the step after it may have none.
THINKS = os.path.join(CACHE.name, "thinks.gguf")
saying.write(THINKS, {"A": ["<think>", "I should add.", "</think>", tool("add", a=2, b=3)], "5": ["It is five."]}, saying.TEMPLATE + "{% if false %}<think></think>{% endif %}")
thinker = Server(*mcp(), model=THINKS)
t = Talk(thinker)
call, = t.say("A").asked()
while "steps" not in thinker.json_get(f"/page/talks/{t.id}")["nodes"][-1]:
    pass
kept = os.path.join(CACHE.name, "data", "tern", "conversations", t.id + ".json")
talk = json.load(open(kept))
talk["nodes"][-1]["thinking"] = "I should"  # as a slow model leaves it, whose thought is saved while it comes
with open(kept, "w") as f:
    json.dump(talk, f)
t.decide(call["id"], "once")
node = t.end()
same((node["content"], node.get("thinking"), node["steps"][0]["thinking"]), ("It is five.", None, "I should add."), "thoughts of a step")
thinker.stop()
sent()
# A server that ends while somebody is asked.
t = Talk(s)
call, = t.say("A").asked()
s.stop()
s = Server(*mcp("dies"), "--mcp-allow", "t.*", model=SAY)
node = s.json_get(f"/page/talks/{t.id}")["nodes"][-1]
same((node["state"], node["steps"][0]["calls"][0]["state"]), ("stopped", "asked"), "after a restart")
node = Talk(s).say("A").end()
same((node["steps"][0]["calls"][0]["state"], node["steps"][0]["calls"][0]["result"]), ("failed", "t ended with status 3: the disk is on fire"), "a server that dies")
same(s.json_get("/page/state")["tools"][0]["allowed"], True, "allowed by name")
same(len(sent()), 1, "a call that is allowed by name")
s.stop()
# One that has ended is started again by the next call, from within the sandbox, and the log says so.
s = Server(*mcp("relapses"), "--mcp-allow", "t.*", model=SAY)
node = Talk(s).say("A").end()
same((node["steps"][0]["calls"][0]["state"], node["steps"][0]["calls"][0]["result"]), ("failed", "t ended with status 3: the disk is on fire"), "it ends")
node = Talk(s).say("A").end()
same((node["steps"][0]["calls"][0]["state"], node["content"]), ("done", "It is five."), "it is started again")
same(sum('"initialize"' in x for x in open(LOG)), 2, "starts")
s.stop()
assert any("t ended with status 3: the disk is on fire; it is started again" in x for x in s.lines), s.lines
sent()
# What is always allowed is allowed for the program that it was said of.
t = Talk(s := Server(*mcp(), model=SAY))
call, = t.say("A").asked()
same(t.decide(call["id"], "always"), 200, "always")
same(t.end()["content"], "It is five.", "always")
s.stop()
t.s = s = Server(*mcp(), model=SAY)
same(t.say("A").end()["content"], "It is five.", "the same program after a restart")
s.stop()
t.s = s = Server(*mcp("logs"), model=SAY)
call, = t.say("A").asked()
same(t.decide(call["id"], "once"), 200, "another program under the same name")
same(t.end()["content"], "It is five.", "logs that begin with brackets")
s.stop()
sent()
# Tools that changed are listed before anything is locked: who waits for them keeps nobody waiting, and no server from ending.
s = Server(*mcp("stalls-later"), model=SAY)
t = Talk(s)
t.say("H").end()
same(len(sent("tools/list")), 8, "lists until the first answer")


def asks():
    replies.append(s.ask("POST", f"/page/talks/{t.id}/say", {"parent": 0, "content": "H", "tools": True})[0])


replies = []
waits = threading.Thread(target=asks)
waits.start()
while not any('"tools/list"' in x for x in open(LOG)):
    pass
same(s.ask("GET", "/page/talks")[0], 200, "conversations while tools are listed")
same(Talk(s).say("H", tools=False).end()["content"], "Hello.", "another conversation")
assert waits.is_alive()
s.stop()
waits.join()
assert replies[0] in (200, 503), replies  # it was told what became of it
sent()
# Tools that leave no room are named.
s = Server(*mcp("wide"), "-c", "2000", model=SAY)
status, v = s.json(f"/page/talks/{Talk(s).id}/say", {"parent": 0, "content": "H", "tools": True})
assert status == 400 and v["error"]["n_ctx"] == 2000 and "40 tools are part of it" in v["error"]["message"], v
same(Talk(s).say("H", tools=False).end()["content"], "Hello.", "without tools")
s.stop()
# What a tool server leaves behind ends with the server.
pipe = os.path.join(CACHE.name, "pipe")
os.mkfifo(pipe)
reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
s = Server("--mcp", f"t=(echo in; exec sleep 1000) >{pipe} & exec python3 {SERVER} good {LOG}", model=SAY)


def read_until(end):
    for _ in range(60000):
        try:
            if os.read(reads, 8) == end:
                return
        except BlockingIOError:
            pass
        time.sleep(0.01)
    raise AssertionError("a helper outlives the server")


read_until(b"in\n")
s.stop()
read_until(b"")
sent()
# With keys, and with a site that may ask.
keys = os.path.join(CACHE.name, "keys")
with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
    f.write("secret-key\n")
s = Server(*mcp(), "--api-key-file", keys, model=SAY)
same([s.ask("POST", "/page/talks/0123456789abcdef/answers/1/calls/x", {"allow": "once"})[0], s.ask("POST", "/page/talks", {})[0]], [401, 401], "without the key")
s.stop()
s = Server(*mcp(), "--allow-origin", "https://good.example", model=SAY)
t = Talk(s)
call, = t.say("A").asked()
same(s.ask("POST", f"{t.at}/calls/{call['id']}", {"allow": "once"}, {"Origin": "https://good.example"})[0], 403, "a site that may ask the API")
if os.geteuid() == 0 and not any("kernel does not tell" in x for x in s.lines):  # another user of the machine
    s.ask("GET", "/health")  # what is imported on the way is imported
    child = os.fork()
    if not child:
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        os._exit(s.ask("POST", f"{t.at}/calls/{call['id']}", {"allow": "once"})[0] % 256)
    same(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 403 % 256, "another user")
same(t.decide(call["id"], "no"), 200, "the page")
same(t.end()["content"], "It may not be.", "the page")
s.stop()
same(sent(), [], "calls of others")
print("tools in the page's answers: fine")
