#!/usr/bin/env python3
"""Makes one call at a time fail under the program and asks that its answer is right or refused.

  torture.py slice TERN SHIM [JOB...]    the places a call comes from, once each, for the quick jobs (a test)
  torture.py hours TERN SHIM MINUTES     every call of every job, in random order, and kills at random instants

Oracle: exit 0 means that what was printed and written equals the reference of an undisturbed run, times aside, and
that files open again. Exit 1 or 2 means one message on standard error, and that files are as
they were, or whole and new where only the report failed. A signal, a
hang, or anything else is a finding. TERN_SEED repeats a run.
"""
import http.client, json, os, pty, random, re, select, shutil, signal, socket, struct, subprocess, sys, tempfile, threading, time, zipfile, zlib

KINDS = ["alloc", "open", "read", "write", "sync", "rename", "map", "thread", "interrupt", "full"]
# What times and memory depend on. Their presence is compared, their value is not.
VOLATILE = re.compile(r"(_ms|_us|_s|seconds?|per_second|rss_bytes|bubble|share|attention_times|added|offset|wasted|valid|"
                      r"underutilised|decisions|stolen_parts|ms_per_token|tokens_per_verification|accepted.*|rows|"
                      r"verifications|ms_max|step|bytes|score|learned_tokens|calibrated_tokens|unpacked_by_device|subgraphs)$")


def normal(v, key=""):
    if isinstance(v, dict):
        return {k: "?" if VOLATILE.search(k) and not isinstance(w, (dict, list)) or k == "attention_times" else normal(w, k)
                for k, w in v.items()}
    if isinstance(v, list):
        return [normal(w, key) for w in v]
    return v


def difference(a, b, where=""):
    """The first place where two values differ."""
    if type(a) is type(b) is dict and a.keys() != b.keys():
        return f"{where}: one has, the other lacks {sorted(a.keys() ^ b.keys())}"
    if type(a) is type(b) is dict:
        return next((difference(a[k], b[k], where + "." + k) for k in a if a[k] != b[k]), "")
    if type(a) is type(b) is list and len(a) == len(b):
        return next((difference(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b)) if x != y), "")
    return f"{where}: {str(a)[:60]} is {str(b)[:60]}"


class Finding(Exception):
    pass


def read(path):
    with open(path, "rb") as f:
        return f.read()


def tree(folder):
    """Every file of a folder with its bytes."""
    out = {}
    for where, _, files in os.walk(folder):
        for f in files:
            p = os.path.join(where, f)
            out[os.path.relpath(p, folder)] = read(p)
    return out


os.environ["TERN_PACK"] = "never"  # what goes on behind a command would disturb the next one


class Job:
    """A command in a folder of its own, which setup has filled."""

    def __init__(self, name, args, json_out=False, stdin="", writes=None, more=()):
        self.name, self.args, self.json_out, self.stdin, self.writes, self.more = name, args, json_out, stdin, writes, list(more)

    def run(self, tern, folder, env=None, timeout=60, kill_after=None):
        e = dict(os.environ, XDG_DATA_HOME=folder + "/data", XDG_CACHE_HOME=folder + "/cache", TMPDIR=folder)
        e.update(env or {})
        args = [a.replace("@", folder + "/") for a in self.args]
        p = subprocess.Popen([tern] + args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=e, cwd=folder)
        try:
            if kill_after is not None:
                time.sleep(kill_after)
                p.send_signal(signal.SIGKILL)
            out, err = p.communicate(self.stdin.replace("@", folder + "/").encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            raise Finding("hangs")
        return p.returncode, out, err

    def printed(self, out):
        if not self.json_out:
            return out.decode("utf-8", "replace")
        return normal(json.loads(out))

    def written(self, tern, folder):
        """What a user of the result sees."""
        if not self.writes:
            return None
        kind, name = self.writes
        path = folder + "/" + name
        if kind == "package":
            o = subprocess.run([tern, "inspect", path, "--json"], capture_output=True, cwd=folder)
            if o.returncode:
                raise Finding("the package that was written cannot be read: " + o.stderr.decode())
            d = json.loads(o.stdout)
            d.pop("file")
            for s in d["sections"]:
                s.pop("offset"), s.pop("bytes")
            t = subprocess.run([tern, "run", "-m", path, "-p", "hello the world", "-n", "4", "--temp", "0", "-t", "1",
                                "--ignore-eos"], capture_output=True, cwd=folder)
            return normal(d), t.stdout
        if kind == "gguf":
            return read(path) if os.path.exists(path) else None
        if kind == "session":
            t = subprocess.run([tern, "run", "-m", folder + "/m.tern", "-p", "hello the world", "-n", "4", "--temp", "0",
                                "-t", "1", "--load-session", path, *(a.replace("@", folder + "/") for a in self.more)], capture_output=True, cwd=folder)
            if t.returncode:
                raise Finding("the session that was written cannot be loaded: " + t.stderr.decode())
            return t.stdout
        if kind == "trace":
            return len(json.loads(read(path))["traceEvents"]) > 0
        raise AssertionError(kind)

    alloc_from = None  # memory fails for calls from here alone

    def lost(self, tern, folder):
        """What was there before and is not any more; or nothing."""
        return None


OLD_TALK, OTHER_TALK, OLD_LINE = "user: an old question\nassistant: an old answer\n", "user: hello\nassistant: the\n\tinn\n", "a line of last week"


def messages(data):
    """The messages of a conversation that /save wrote."""
    out = []
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        role, _, text = line.partition(": ")
        if line.startswith("\t") and out:
            out[-1][1] += "\n" + line[1:]
        elif role in ("user", "assistant"):
            out.append([role, text])
        else:
            return None
    return out if data.endswith(b"\n") and len(out) % 2 == 0 else None


class Chat(Job):
    """A conversation from a pipe: a file goes with a question, it is saved over an older one, another is loaded, and the store keeps it. Exit 0 means
    that every answer, what was saved and what is stored are what they are undisturbed."""
    LINES = ("/attach @inn.txt", "where is the old inn", "hello the world", "/save @talk.txt", "/undo", "/regen", "/save @again.txt", "/load @other.txt", "hello again",
             "/system be brief", "hello", "/history", "/save @after.txt")
    NOT_STORED = (b"not stored", b"nothing is stored")

    def __init__(self, name, *more):
        super().__init__(name, ["chat", *M, "--chat-template", "chatml", "-n", "4", "--store", "@s.db", *more], stdin="\n".join(self.LINES) + "\n",
                         writes=("talks", None))

    def written(self, tern, folder):
        listed = subprocess.run([tern, "forget", "--list", "--json", "--store", folder + "/s.db"], capture_output=True)
        if listed.returncode:
            raise Finding("the store cannot be read: " + listed.stderr.decode())
        return [read(f"{folder}/{f}.txt") for f in ("talk", "after")], len(json.loads(listed.stdout))

    def lost(self, tern, folder):
        talk, stored = messages(read(folder + "/talk.txt")), self.written(tern, folder)[1]
        old = messages(OLD_TALK.encode())
        if talk != old and (not talk or [m for m in talk[::2] if not m[1].endswith(("where is the old inn", "hello the world"))]):
            return f"the saved conversation is lost: {read(folder + '/talk.txt')[:200]!r}"
        again = messages(read(folder + "/again.txt")) if os.path.exists(folder + "/again.txt") else None
        if again is not None and (len(again) not in (2, 4) or not again[0][1].endswith("where is the old inn")):
            return f"an answer that was asked for anew is lost: {again}"
        if read(folder + "/other.txt") != OTHER_TALK.encode():
            return "a conversation that was only read has changed"
        if not stored:
            return "the store has lost its conversation"
        return None


class Terminal(Chat):
    """The same by a person: what was typed and what is said have a terminal each. Exit 0 without a word means as above, and that
    lines typed last week are still there. Memory fails for tern's own calls alone: libedit and libtinfo do not look whether they got any."""
    alloc_from = "/tern"

    def run(self, tern, folder, env=None, timeout=60, kill_after=None):
        e = dict(os.environ, XDG_DATA_HOME=folder + "/data", XDG_CACHE_HOME=folder + "/cache", XDG_STATE_HOME=folder, TMPDIR=folder, TERM="xterm",
                 LC_ALL="C.UTF-8")
        e.update(env or {})
        typed, typed_end = pty.openpty()
        said, said_end = pty.openpty()
        p = subprocess.Popen([tern] + [a.replace("@", folder + "/") for a in self.args], stdin=typed_end, stdout=said_end, stderr=typed_end, env=e,
                             cwd=folder, start_new_session=True)
        os.close(typed_end), os.close(said_end)
        lines = [x.replace("@", folder + "/") for x in self.LINES] + ["/exit"]
        heard, end, since = {typed: b"", said: b""}, time.time() + timeout, 0
        kill_at = time.time() + kill_after if kill_after is not None else end
        while heard and time.time() < end:
            for f in select.select(list(heard), [], [], 0.05)[0]:
                try:
                    heard[f] += os.read(f, 65536)
                except OSError:  # nobody has the other end any more
                    os.close(f)
                    if f == said:
                        answers = heard.pop(f)
                    else:
                        words = heard.pop(f)
            if time.time() > kill_at:
                p.send_signal(signal.SIGKILL)
            asked = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", heard[typed][since:]) if typed in heard else b""
            if asked.endswith(b"> ") and lines:
                since = len(heard[typed])
                os.write(typed, lines.pop(0).encode() + b"\r")
        hangs = bool(heard)
        if hangs:
            p.kill()
        rc = p.wait()
        for f in heard:
            os.close(f)
        if hangs:
            raise Finding(f"hangs, {len(lines)} lines before its end")
        return rc, answers, re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", words)

    def told(self, err):
        return re.findall(rb"\btern: [^\r\n]*", err)

    def written(self, tern, folder):
        past = read(folder + "/tern-history").decode("utf-8", "replace")
        return super().written(tern, folder) + (len(past.split("\n")),)

    def lost(self, tern, folder):
        past = read(folder + "/tern-history")
        if OLD_LINE.replace(" ", "\\040").encode() not in past:
            return f"what was typed before is lost: {past[:200]!r}"
        return super().lost(tern, folder)


class Add(Job):
    """Documents of several formats, which processes of their own read. Exit 0 means that every one is found with its text."""
    FILES = ("a.docx", "b.eml", "c.html", "d.odt")

    def __init__(self, name):
        super().__init__(name, ["rag", "add", "--store", "@s.db", "@papers", "--json"], True, writes=("documents", None))

    def show(self, tern, folder, file):
        return subprocess.run([tern, "rag", "show", "--store", folder + "/s.db", folder + "/" + file, "1"], capture_output=True, cwd=folder).stdout

    def written(self, tern, folder):
        return [self.show(tern, folder, "papers/" + f) for f in self.FILES]

    def printed(self, out):
        v = super().printed(out)
        if v["skipped"]:
            raise Finding(f"exit 0 though {v['skipped']} documents were not read")
        return v

    def lost(self, tern, folder):
        if b"old inn" not in self.show(tern, folder, "doc.txt"):
            return "a document that was there is lost"
        half = [t for t in self.written(tern, folder) if t and b"the last words" not in t]
        return f"a document is there in part: {half[0][:100]!r}" if half else None


class AddPdf(Add):
    """A PDF, which a program in a process of its own reads: its calls fail, too."""
    FILES = ("paper.pdf",)

    def __init__(self, name):
        Job.__init__(self, name, ["rag", "add", "--store", "@s.db", "@paper.pdf", "--json"], True, writes=("documents", None))

    def written(self, tern, folder):
        return [self.show(tern, folder, f) for f in self.FILES]


class MakeGguf(Job):
    """A GGUF file is there whole, or not at all."""

    def lost(self, tern, folder):
        made = [f for f in os.listdir(folder) if f.startswith("out.gguf")]
        if made not in ([], ["out.gguf"]):
            return f"what was being written lies there: {made}"
        if made and subprocess.run([tern, "inspect", folder + "/out.gguf"], capture_output=True).returncode:
            return "the file that was written cannot be read"
        return None


class Results(Job):
    """A benchmark that goes on with its file of results. Exit 0 means that the file is the undisturbed one; else what it held is there, and every whole
    line of it is one that an undisturbed run writes."""

    def __init__(self, name):
        super().__init__(name, ["eval", "-m", "@m.tern", "-t", "1", "--task", "mmlu", "--data", "@mmlu", "--shots", "1", "--results", "@half.jsonl", "--json"], True, writes=("results", None))
        self.whole = None

    def printed(self, out):
        v = super().printed(out)
        v.pop("from")  # a model that could not be looked into is called a file; the model's own facts are in "measured"
        return v

    def written(self, tern, folder):
        if self.whole is None:  # the first is undisturbed
            self.whole = read(folder + "/half.jsonl")
        return read(folder + "/half.jsonl")

    def lost(self, tern, folder):
        now, before = read(folder + "/half.jsonl"), read(folder + "/half.txt")
        if not now.startswith(before) or (self.whole and not self.whole.startswith(now[:now.rindex(b"\n") + 1])):
            return f"results are lost or damaged: {now[-200:]!r}"
        return None


class Mcp(Job):
    """An agent's calls, twice. A reply is the undisturbed one or an error with words, each call has one, and none fails twice."""
    CALLS = (("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}), ("tools/list", {}),
             ("tools/call", {"name": "search_documents", "arguments": {"query": "where is the old inn"}}),
             ("tools/call", {"name": "read_document", "arguments": {"path": "@doc.txt"}}), ("tools/call", {"name": "list_documents", "arguments": {}}),
             ("tools/call", {"name": "ask_documents", "arguments": {"question": "where is the old inn"}}), ("resources/list", {}), ("nothing", {}))

    def __init__(self, name):
        asked = [{"jsonrpc": "2.0", "id": i, "method": m, "params": p} for i, (m, p) in enumerate(self.CALLS * 2)]
        super().__init__(name, ["mcp", "-m", "@m.tern", "-t", "1", "--temp", "0", "-n", "4", "--store", "@s.db"], stdin="".join(json.dumps(a) + "\n" for a in asked))

    def printed(self, out):
        return {r["id"]: r for r in (normal(json.loads(line)) for line in out.splitlines()) if "id" in r}

    def judge(self, want, rc, out, err):
        """True: something was refused."""
        try:
            got = self.printed(out)
        except ValueError:
            raise Finding(f"what is no JSON: {out[-200:]!r}")
        if rc not in (0, 1, 2) or (rc and not err.strip()):
            raise Finding(f"ends with status {rc}: {err.decode('utf-8', 'replace')[-200:]}")
        if not rc and got.keys() != want.keys():
            raise Finding(f"exit 0, and calls without a reply: {sorted(want.keys() ^ got.keys(), key=str)}")
        if not all(w.get("result", {}).get("isError") is False for i, w in want.items() if self.CALLS[i % len(self.CALLS)][0] == "tools/call"):
            raise SystemExit(f"mcp: undisturbed, a tool fails: {want}")
        failed = set()
        for i in sorted(k for k in got if k in want):
            if got[i] == want[i]:
                continue
            words = got[i].get("error", {}).get("message") or (got[i].get("result", {}).get("isError") and got[i]["result"]["content"][0]["text"])
            which = i % len(self.CALLS)
            if not words:
                raise Finding(f"{self.CALLS[which]}: another reply: " + difference(want[i], got[i]))
            if which in failed:
                raise Finding(f"{self.CALLS[which]} fails twice: {words}")
            failed.add(which)
        return bool(rc or failed)


class Serve(Job):
    """A server, asked for everything twice. What it says with 200 is what it says undisturbed; what fails has words, or no reply; nothing fails
    twice, but for what the server said when it started."""

    ASKED = (
        ("chat", "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}),
        ("stream", "POST", "/v1/completions", {"prompt": "hello the world", "max_tokens": 4, "temperature": 0, "stream": True}),
        ("schema", "POST", "/v1/completions", {"prompt": "hello", "max_tokens": 8, "temperature": 0, "json_schema": {"enum": ["the", "a"]}}),
        ("messages", "POST", "/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}),
        ("tokens", "POST", "/tokenize", {"content": "hello the world"}),
        ("vector", "POST", "/v1/embeddings", {"input": "hello the world"}),
        ("document", "POST", "/page/documents?name=inn.txt", "The old inn is near the weir."),
        ("documents", "GET", "/page/documents", None),
        ("talk", "POST", "/page/talks", {}),
        ("talks", "GET", "/page/talks", None),
        ("ask", "POST", "/v1/rag/ask", {"question": "where is the old inn", "max_tokens": 4, "temperature": 0}),
        ("models", "GET", "/v1/models", None),
        ("missing", "GET", "/v1/nothing", None),
    )
    VARIES = {"id", "created", "updated", "added", "memory_bytes", "load_s", "first_token_s", "cached_tokens", "cache_read_input_tokens",
              "prompt_tokens_details", "input_tokens", "timings", "document", "size_vram", "loads"}

    def plain(self, v):
        """A reply without what another run has otherwise."""
        if isinstance(v, dict):
            return {k: self.plain(x) for k, x in v.items() if k not in self.VARIES}
        return [self.plain(x) for x in v] if isinstance(v, list) else v

    def events(self, events):
        return events

    def value(self, data):
        text = data.decode()
        if text.startswith("data: "):
            events = [json.loads(x[6:]) for x in text.split("\n\n") if x.startswith("data: {")]
            # one that is cut off has no last chunk of HTTP, and never comes here
            if '"error"' not in text and not (text.endswith("data: [DONE]\n\n") and
                                              any(c["finish_reason"] for e in events for c in e["choices"])):
                raise Finding(f"a stream that does not say how it ended: {text[-300:]}")
            return self.events([self.plain(e) for e in events])
        return self.plain(json.loads(text))

    def ask(self, port, method, path, body):
        """[status, value]; 0 and nothing where the connection ended without a reply."""
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            c.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body))
            r = c.getresponse()
            data = r.read()
            c.close()
        except socket.timeout:
            raise Finding(f"{path} hangs")
        except (OSError, http.client.HTTPException):
            return [0, None]
        try:
            return [r.status, self.value(data)]
        except ValueError:
            if r.status == 200:
                return [0, None]  # a stream that was cut off
            raise Finding(f"{path}: {r.status} with what is no JSON: {data[:80]!r}")

    def run(self, tern, folder, env=None, timeout=60, kill_after=None):
        e = dict(os.environ, XDG_DATA_HOME=folder + "/data", XDG_CACHE_HOME=folder + "/cache", TMPDIR=folder)
        e.update(env or {})
        more = [a.replace("@", folder + "/") for a in self.args]
        wanted, places = e.get("TORTURE_PLACES"), folder + "/data/tern/places"
        if wanted:  # the server writes to its own folders alone
            os.makedirs(folder + "/data/tern", mode=0o700, exist_ok=True)
            e["TORTURE_PLACES"] = places
        p = subprocess.Popen([tern, "serve", "-m", folder + "/m.tern", "-t", "1", "--draft", "none", "--chat-template", "chatml", "--port", "0", *more],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=e, cwd=folder)
        killer = threading.Timer(kill_after if kill_after is not None else 4 * timeout, p.kill)
        killer.start()
        try:
            lines, port = [], None
            for line in p.stderr:
                lines.append(line)
                m = re.search(rb"http://[0-9.]+:(\d+)", line)
                if m:
                    port = int(m.group(1))
                    break
            reader = threading.Thread(target=lambda: lines.extend(p.stderr), daemon=True)
            reader.start()
            said = [{name: self.ask(port, *more) for name, *more in self.ASKED} for _ in range(2)] if port else []
            if port:
                p.send_signal(signal.SIGTERM)
            rc = p.wait(timeout)
            reader.join()
        except subprocess.TimeoutExpired:
            raise Finding("does not end")
        finally:
            killer.cancel()
            if p.poll() is None:
                p.kill()
                p.wait()
        if wanted and os.path.exists(places):
            shutil.move(places, wanted)
        return rc, json.dumps(said).encode(), b"".join(lines)

    def printed(self, out):
        return json.loads(out)

    def judge(self, want, rc, out, err):
        """True: something was refused."""
        said = self.printed(out)
        if rc and not said:  # it did not start
            if rc not in (1, 2) or not err.strip():
                raise Finding(f"ends with status {rc}: {err.decode('utf-8', 'replace')[-200:]}")
            return True
        if rc:
            raise Finding(f"ends with status {rc}: {err.decode('utf-8', 'replace')[-200:]}")
        told = b"cannot be kept" in err or b"reads no documents" in err or b"in memory only" in err
        failed, added = set(), 0
        for again, (got, undisturbed) in enumerate(zip(said, want)):
            for name, _, path, _ in self.ASKED:
                (status, value), (usual, reply) = got[name], undisturbed[name]
                if status == 200 and isinstance(value, list) and any("error" in event for event in value):
                    status, value = 503, value[-1]  # it failed after its first event
                added += name == "document" and status == 200
                if status == usual:
                    # what depends on what was refused before
                    apart = {"documents": name == "documents" and len(value["documents"]) == added, "talks": failed, "ask": added <= again}
                    if value != reply and status == 200 and not apart.get(name):
                        raise Finding(f"{path}, time {again + 1}: 200 with another reply: " + difference(reply, value))
                    continue
                if status == 200 or (status and not value):
                    raise Finding(f"{path}: {status} where undisturbed it is {usual}: {value}")
                if "/torture-" in json.dumps(value):
                    raise Finding(f"{path}: the reply says where files lie: {value}")
                # a document has a process of its own, in which the call of this number fails again
                if name in failed and not told and name != "document":
                    raise Finding(f"{path}: {status} twice: {value}")
                failed.add(name)
        return bool(failed)


class ServeFull(Serve):
    """On a disk that is full from some write on. What needs room is refused, and that is said; all else is answered as ever, and nothing that was kept
    is lost."""
    ROOM = re.compile(r"no space left|no room|disk is full", re.I)

    def judge(self, want, rc, out, err):
        said, refused = self.printed(out), 0
        if rc:
            raise Finding(f"ends with status {rc}: {err.decode('utf-8', 'replace')[-200:]}")
        for again, (got, undisturbed) in enumerate(zip(said, want)):
            for name, _, path, _ in self.ASKED:
                (status, value), (usual, reply) = got[name], undisturbed[name]
                if status == usual:
                    if status == 200 and name in ("chat", "stream", "schema", "messages", "tokens", "vector") and value != reply:
                        raise Finding(f"{path}, time {again + 1}: another reply: " + difference(reply, value))
                elif status != 507 or not self.ROOM.search(json.dumps(value)):
                    raise Finding(f"{path}: {status} where undisturbed it is {usual}, and no word of the disk: {value}")
                else:
                    refused += 1
        self.kept = sum(got["document"][0] == 200 for got in said)
        return refused > 0

    def lost(self, tern, folder):
        db = folder + "/data/tern/store.db"
        listed = subprocess.run([tern, "rag", "ls", "--store", db, "--json"], capture_output=True) if os.path.exists(db) else None
        if listed and listed.returncode:
            return "the store cannot be read: " + listed.stderr.decode()
        there = len(json.loads(listed.stdout)) if listed else 0
        return f"{self.kept} documents were taken, and {there} are there" if there < getattr(self, "kept", 0) else None


class ServeVanish(Serve):
    """Between all requests others come whose clients vanish: in the head, in the body, with a reset, in the middle of the answer. Who stays is answered
    as if they had not come."""

    def ask(self, port, method, path, body):
        data = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        takes = path.startswith("/page/") and method == "POST"  # what it asked for would be done
        for how in range(4):
            try:
                c = socket.create_connection(("127.0.0.1", port), timeout=60)
                whole = how >= 2 and not takes
                c.sendall(head[:20] if how == 0 else head + (data if whole else data[:len(data) // 2]))
                if how == 3 and whole:
                    c.recv(1)
                if how % 2:
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.close()
            except OSError:
                pass
        return super().ask(port, method, path, body)


class ServeStream(Serve):
    """Streams alone, of two answers too: the places where the end of one fails are few beside all others."""
    ASKED = (Serve.ASKED[1], ("two", "POST", "/v1/completions", {"prompt": "hello", "n": 2, "max_tokens": 2, "temperature": 0, "stream": True}))

    def events(self, events):
        """Of each answer its text and how it ended: how two are mixed, and cut up, depends on the moment."""
        out = {}
        for c in (c for e in events for c in e.get("choices", ())):
            one = out.setdefault(c["index"], {"text": "", "ended": None})
            one["text"] += c["text"]
            one["ended"] = c["finish_reason"] or one["ended"]
        return [out[k] for k in sorted(out)] + [e for e in events if "error" in e]


class ServeAdapters(Serve):
    """Of the same server's adapters, one request each, and none: what another has read is never an answer's prefix."""
    TEXT = {"prompt": "hello the world " * 6, "max_tokens": 4, "temperature": 0}
    ASKED = (
        ("one", "POST", "/v1/completions", {**TEXT, "lora": "one"}),
        ("none", "POST", "/v1/completions", TEXT),
        ("two", "POST", "/v1/completions", {**TEXT, "lora": "two:0.5"}),
        ("both", "POST", "/v1/completions", {**TEXT, "lora": "one:0.5,two:0.5"}),
        ("stream", "POST", "/v1/completions", {**TEXT, "lora": "one", "stream": True}),
        ("unknown", "POST", "/v1/completions", {**TEXT, "lora": "three"}),
        ("models", "GET", "/v1/models", None),
    )


M = ["-m", "@m.tern", "-t", "1", "--temp", "0", "--draft", "none"]
JOBS = [
    Job("inspect", ["inspect", "@m.tern", "--json"], True),
    Job("pack-edgeflow", ["pack", "@m.gguf", "-o", "@out.tern", "-t", "1"], writes=("package", "out.tern")),
    Job("inspect-gguf", ["inspect", "@m.gguf", "--json", "--tensors"], True),
    Job("inspect-cpu", ["inspect", "--cpu", "--json"], True),
    Job("rag-ls", ["rag", "ls", "--store", "@s.db", "--json"], True),
    Job("run", ["run", *M, "-p", "hello the world", "-n", "4", "--ignore-eos", "--json", "--logprobs"], True),
    Job("pack", ["pack", "@m.gguf", "-o", "@out.tern", "-t", "1", "--json", "--scheme", "naive-w8a8", "--calib-tokens",
                 "64"], True, writes=("package", "out.tern")),
    Job("run-float", ["run", "-m", "@m.gguf", "-t", "1", "--temp", "0", "-p", "hello the world", "-n", "4",
                      "--ignore-eos"]),
    Job("run-mmap", ["run", *M, "-p", "hello the world", "-n", "4", "--ignore-eos", "--load", "mmap"]),
    Job("save", ["run", *M, "-p", "hello the world", "-n", "4", "--ignore-eos", "--save-session", "@s.session"],
        writes=("session", "s.session")),
    Job("trace", ["run", *M, "-p", "hello the world " * 20, "-n", "1", "--trace", "@t.json"], writes=("trace", "t.json")),
    Job("tokenize", ["tokenize", "-m", "@m.tern"], stdin="hello the world"),
    Job("ask", ["ask", *M, "--chat-template", "chatml", "--store", "@s.db", "-n", "4", "--json", "where is the old inn"], True),
    Job("chat", ["chat", *M, "--chat-template", "chatml", "-n", "4", "--no-store"], stdin="hello\n"),
    Job("rag-add", ["rag", "add", "--store", "@s.db", "@doc2.txt", "--json"], True),
    Job("rag-rm", ["rag", "rm", "--store", "@s.db", "@doc.txt"]),
    Add("rag-add-formats"),
    *([AddPdf("rag-add-pdf")] if shutil.which("pdftotext") else []),
    Job("run-streamed", ["run", "-m", "@q.gguf", "-t", "1", "--temp", "0", "-p", "hello the world", "-n", "4", "--ignore-eos", "--json", "--logprobs"], True),
    Job("run-streamed-direct", ["run", "-m", "@q.gguf", "-t", "1", "--temp", "0", "-p", "hello the world", "-n", "4", "--ignore-eos", "--read", "threads-direct"]),
    MakeGguf("pack-gguf", ["pack", "@m.gguf", "-o", "@out.gguf", "-t", "1", "--type", "q4_0", "--calib-tokens", "64", "--own-words", "0", "--json"], True,
             writes=("gguf", "out.gguf")),
    Job("look", ["run", "@sees.gguf", "@shot.png", "what is this", "-t", "1", "--temp", "0", "-n", "4", "--json"], True),
    Mcp("mcp"),
    Chat("chat-store"),
    Terminal("chat-terminal"),
    Chat("chat-lora", "--lora", "@one"),
    Job("lora", ["run", *M, "--lora", "@one,@two:0.5", "-p", "hello the world", "-n", "4", "--ignore-eos", "--json", "--logprobs"], True),
    Job("lora-float", ["run", "-m", "@m.gguf", "-t", "1", "--temp", "0", "--lora", "@one", "-p", "hello the world", "-n", "4", "--ignore-eos"]),
    Job("lora-save", ["run", *M, "--lora", "@one", "-p", "hello the world", "-n", "4", "--ignore-eos", "--save-session", "@s.session"],
        writes=("session", "s.session"), more=["--lora", "@one"]),
    Serve("serve", []),
    ServeStream("serve-stream", []),
    ServeFull("serve-full", []),
    ServeVanish("serve-vanish", []),
    ServeAdapters("serve-lora", ["--lora", "@one:0,@two:0"]),
    Job("eval", ["eval", "-m", "@m.tern", "-t", "1", "--task", "ppl", "--data", "@text.txt", "-c", "64", "--json"], True),
    Results("eval-results"),
]
# The slice that `make check` runs, and `make test` a third of: (job, kind, module the call comes from or None, how many places of them)
SLICE = [("inspect", "alloc", "jansson"), ("inspect-gguf", "alloc", "jansson"), ("inspect-cpu", "alloc", "jansson"),
         ("rag-ls", "alloc", "jansson"), ("run", "alloc", "jansson"), ("pack", "alloc", "jansson"),
         ("pack", "write", None), ("pack", "sync", None), ("pack", "rename", None), ("pack", "open", None),
         ("pack", "read", None), ("save", "write", None), ("save", "rename", None), ("run", "read", None),
         ("run", "map", None), ("run", "open", None), ("run", "thread", None), ("run", "interrupt", None),
         ("run-float", "interrupt", None), ("pack", "interrupt", None), ("save", "interrupt", None),
         ("tokenize", "interrupt", None), ("ask", "interrupt", None), ("chat", "interrupt", None),
         ("rag-add", "interrupt", None), ("rag-rm", "interrupt", None), ("eval", "interrupt", None),
         ("pack-edgeflow", "interrupt", None, 60), ("run", "alloc", "/tern", 160), ("tokenize", "alloc", "/tern", 60),
         ("rag-ls", "alloc", "libc.so"), ("chat", "alloc", "libc.so"), ("serve", "alloc", "jansson", 14), ("serve", "alloc", "/tern", 14),
         ("serve", "alloc", "microhttpd", 6), ("serve", "write", None, 8), ("serve", "open", None, 8), ("serve", "read", None, 8),
         *(("chat-store", kind, None, 16) for kind in ("alloc", "open", "read", "write", "sync", "rename", "interrupt")), ("chat-store", "alloc", "jansson", 8),
         ("chat-terminal", "alloc", "/tern", 12), ("chat-terminal", "open", None), *(("chat-terminal", kind, None, 8) for kind in ("read", "write", "sync", "rename", "interrupt")),
         ("lora", "alloc", None, 60), ("lora", "read", None, 15), ("lora-float", "alloc", None, 30), ("lora-save", "write", None), ("lora-save", "rename", None),
         ("chat-lora", "open", None, 8), ("serve-lora", "alloc", None, 12), ("serve-lora", "read", None, 6), ("serve-lora", "thread", None, 6), ("serve-stream", "alloc", "jansson", 80),
         *(("rag-add-formats", kind, None, 8) for kind in ("alloc", "open", "read", "write", "map", "interrupt")), *(("mcp", kind, None, 8) for kind in ("alloc", "open", "read", "write", "interrupt")),
         *(("rag-add-pdf", kind, None, 6) for kind in ("alloc", "open", "read", "write", "thread", "interrupt")),
         *(("run-streamed", kind, None, 8) for kind in ("alloc", "open", "read", "map", "thread", "interrupt")), ("run-streamed-direct", "read", None, 8),
         *(("pack-gguf", kind, None, 8) for kind in ("alloc", "open", "read", "write", "sync", "rename", "full")),
         *(("look", kind, None, 10) for kind in ("alloc", "open", "read", "write", "map", "interrupt")),
         ("serve-full", "full", None, 10), ("serve-vanish", "alloc", None, 8), ("serve-vanish", "read", None, 4), ("pack", "full", None, 4), ("chat-store", "full", None, 6),
         *(("eval-results", kind, None, 8) for kind in ("alloc", "open", "read", "write", "sync", "full", "interrupt")), ("eval-results", "alloc", "jansson", 12),
         ("serve", "thread", None, 6), ("serve", "sync", None, 6), ("serve", "rename", None, 6), ("serve", "interrupt", None, 6)]


def make_adapter(folder, seed):
    """Random pairs for the small model, as PEFT writes them."""
    rng, head, data = random.Random(seed), {}, b""
    for layer in range(2):
        for part, n, k in (("self_attn.q_proj", 64, 64), ("mlp.down_proj", 64, 128)):
            for which, shape in (("A", (4, k)), ("B", (n, 4))):
                v = struct.pack("<%df" % (shape[0] * shape[1]), *(rng.gauss(0, 0.2) for _ in range(shape[0] * shape[1])))
                head[f"base_model.model.model.layers.{layer}.{part}.lora_{which}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(v)]}
                data += v
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    os.mkdir(folder)
    with open(folder + "/adapter_model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(folder + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "down_proj"]}, f)


def make_papers(folder):
    """A document of each format; each ends with the same words."""
    os.mkdir(folder)
    text = "A ferry crosses the river at noon. " * 4 + "These are the last words."
    word = "<w:document xmlns:w='w'><w:body><w:p><w:r><w:t>%s</w:t></w:r></w:p></w:body></w:document>" % text
    content = "<office:document-content xmlns:office='o' xmlns:text='t'><office:body><office:text><text:p>%s</text:p></office:text></office:body></office:document-content>" % text
    for name, entry, xml in (("a.docx", "word/document.xml", word), ("d.odt", "content.xml", content)):
        with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr(entry, xml)
    for name, whole in (("b.eml", "From: a\nSubject: ferry\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\nhello\n--b\n"
                         "Content-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n<p>%s</p>\n--b--\n" % text), ("c.html", "<html><h1>Ferry</h1><p>%s</p></html>" % text)):
        with open(os.path.join(folder, name), "w") as f:
            f.write(whole)


def make_png(w, h):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((x * 7 + y * 5 + c * 60) % 256 for x in range(w) for c in range(3)) for y in range(h))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make_pdf(text):
    """One page with one line."""
    stream = f"BT /F1 12 Tf 40 700 Td ({text}) Tj ET".encode()
    parts = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
             b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
             b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream), b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    out, at = b"%PDF-1.4\n", []
    for i, p in enumerate(parts):
        at.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (i + 1, p)
    return out + b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % a for a in at) + b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % len(out)


def make_master(tern, folder):
    run = lambda *a: subprocess.run([tern, *a], check=True, capture_output=True, cwd=folder)
    run("synth", "--arch", "tiny-llama", "-o", folder + "/m.gguf", "-t", "1")
    run("pack", folder + "/m.gguf", "-o", folder + "/m.tern", "-t", "1")
    for name, text in (("doc.txt", "The old inn is near the weir. " * 9), ("doc2.txt", "A mill stands by the bridge. " * 9),
                       ("text.txt", "the old inn near the weir.\n" * 20), ("inn.txt", "the inn is old\n"), ("talk.txt", OLD_TALK), ("other.txt", OTHER_TALK),
                       ("after.txt", ""), ("tern-history", "_HiStOrY_V2_\n" + OLD_LINE.replace(" ", "\\040") + "\n")):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    run("rag", "add", "--store", folder + "/s.db", folder + "/doc.txt")
    run("run", "-m", folder + "/m.tern", "-t", "1", "-p", "hello the world " * 20, "-n", "1")  # its profile
    # one seed: of others one in thirty draws the end at once, and an empty answer is not stored
    subprocess.run([tern, "chat", "-m", folder + "/m.tern", "-t", "1", "-n", "1", "--seed", "1", "--store", folder + "/s.db"], input=b"the first question\n",
                   check=True, capture_output=True, cwd=folder)
    for part, questions in (("dev", 1), ("test", 4)):
        os.makedirs(folder + "/mmlu/" + part)
        with open(f"{folder}/mmlu/{part}/inns_{part}.csv", "w") as f:
            f.writelines(f"How old is inn {i}?,1,2,3,4,{'ABCD'[i]}\n" for i in range(questions))
    run("eval", "-m", folder + "/m.tern", "-t", "1", "--task", "mmlu", "--data", folder + "/mmlu", "--shots", "1", "--limit", "2", "--results", folder + "/half.jsonl")
    shutil.copy(folder + "/half.jsonl", folder + "/half.txt")
    make_papers(folder + "/papers")
    run("synth", "--arch", "tiny-llama", "--type", "q4_0", "-o", folder + "/q.gguf", "-t", "1")
    run("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", folder + "/sees.gguf", "-t", "1")
    run("synth", "--arch", "tiny-smolvlm-mmproj", "--type", "f32", "-o", folder + "/mmproj-sees.gguf", "-t", "1")
    with open(folder + "/shot.png", "wb") as f:
        f.write(make_png(40, 30))
    with open(folder + "/paper.pdf", "wb") as f:
        f.write(make_pdf("A ferry crosses the river at noon. These are the last words."))
    make_adapter(folder + "/one", 1)
    make_adapter(folder + "/two", 2)


class Bench:
    def __init__(self, tern, shim):
        self.tern, self.shim = tern, shim
        self.top = tempfile.mkdtemp(prefix="torture-")
        self.master, self.work = self.top + "/master", self.top + "/work"
        os.mkdir(self.work)  # an index names documents by their absolute paths: it is made where it is used
        make_master(tern, self.work)
        os.rename(self.work, self.master)
        self.references, self.words = {}, {}  # undisturbed: what is printed and written; standard error
        self.n, self.n_refused, self.findings = 0, 0, []

    def fresh(self):
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.master, self.work)

    def reference(self, job):
        if job.name not in self.references:
            self.fresh()
            rc, out, err = job.run(self.tern, self.work)
            if rc:
                raise SystemExit(f"{job.name}: the undisturbed run failed: {err.decode()}")
            self.words[job.name] = err
            self.references[job.name] = (job.printed(out), job.written(self.tern, self.work))
        return self.references[job.name]

    def env(self, kind, module, **more):
        e = {"LD_PRELOAD": self.shim, "TORTURE_KIND": kind}
        if module:
            e["TORTURE_FROM"] = module
        e.update({k: str(v) for k, v in more.items()})
        return e

    def places(self, job, kind, module):
        """The numbers of the calls to fail: the first from each place."""
        self.fresh()
        path = self.top + "/places"
        if os.path.exists(path):
            os.unlink(path)
        job.run(self.tern, self.work, self.env(kind, module, TORTURE_PLACES=path))
        return [int(x) for x in read(path).split()] if os.path.exists(path) else []

    def judge(self, job, rc, out, err):
        want_printed, want_written = self.reference(job)
        if isinstance(job, (Serve, Mcp)):
            self.n_refused += job.judge(want_printed, rc, out, err)
            return
        if isinstance(job, Terminal) and rc == 0 and set(job.told(err)) - set(job.told(self.words[job.name])):
            self.n_refused += 1
            return  # the person was told, and what comes after depends on it
        if rc == 0:
            try:
                got = job.printed(out)
            except ValueError:
                raise Finding(f"exit 0 with output that is no JSON: {out[:80]!r}")
            if got != want_printed:
                raise Finding("exit 0 with another output than the reference: " + difference(want_printed, got))
            written = job.written(self.tern, self.work)
            if isinstance(job, Chat) and any(w in err for w in job.NOT_STORED):
                written = (written[0], want_written[1]) + written[2:]
            if written != want_written:
                raise Finding("exit 0 with another file than the reference: " + difference(want_written, written))
            return
        self.n_refused += 1
        if rc not in (1, 2):
            raise Finding(f"ends with status {rc}: {err.decode('utf-8', 'replace')[-200:]}")
        if not err.strip():
            raise Finding(f"exit {rc} without a message")

    def one(self, job, kind, module, number):
        self.reference(job)
        self.fresh()
        before = read(self.work + "/m.tern")
        target = self.work + "/" + job.writes[1] if job.writes and job.writes[1] else None
        if job.writes and job.writes[0] == "package":
            shutil.copy(self.work + "/m.tern", target)  # a good package that must not be lost
        self.n += 1
        try:
            rc, out, err = job.run(self.tern, self.work, self.env(kind, module, TORTURE_AT=number))
            self.judge(job, rc, out, err)
            if read(self.work + "/m.tern") != before:
                raise Finding("the model was changed")
            if job.lost(self.tern, self.work):
                raise Finding(job.lost(self.tern, self.work))
            if rc and kind == "interrupt":
                raise Finding("a call that was interrupted is not tried again: " + err.decode("utf-8", "replace")[-200:])
            if rc and job.writes and job.writes[0] == "package" and read(target) != before and \
                    job.written(self.tern, self.work) != self.reference(job)[1]:
                raise Finding("a failed pack replaced the package that was there by something else")
        except Finding as f:
            self.findings.append(f"{job.name}: {kind} {number} from {module or 'anywhere'}: {f}")
            print(self.findings[-1], flush=True)

    def kill(self, job, after):
        """A kill at an instant: what was there is there, whole, or the new is."""
        self.reference(job)
        self.fresh()
        before = read(self.work + "/m.tern")
        if job.writes and job.writes[0] == "package":
            shutil.copy(self.work + "/m.tern", self.work + "/" + job.writes[1])
        self.n += 1
        try:
            job.run(self.tern, self.work, kill_after=after)
            if read(self.work + "/m.tern") != before:
                raise Finding("the model was changed")
            if job.lost(self.tern, self.work):
                raise Finding(job.lost(self.tern, self.work))
            if job.writes and (not job.writes[1] or os.path.exists(self.work + "/" + job.writes[1])):
                job.written(self.tern, self.work)
            o = subprocess.run([self.tern, "rag", "ls", "--store", self.work + "/s.db", "--json"], capture_output=True)
            if o.returncode or not isinstance(json.loads(o.stdout), list):
                raise Finding("the store cannot be read: " + o.stderr.decode())
        except (Finding, ValueError) as f:
            self.findings.append(f"{job.name}: killed after {after:.3f} s: {f}")
            print(self.findings[-1], flush=True)

    def close(self, what):
        shutil.rmtree(self.top, ignore_errors=True)
        print(f"{what}: {self.n} faults, {self.n_refused} refused, {len(self.findings)} findings")
        return 1 if self.findings else 0


def some(numbers, most):
    """At most so many of them, evenly: a test has a minute."""
    return numbers if len(numbers) <= most else [numbers[i * len(numbers) // most] for i in range(most)]


def main():
    mode, tern, shim = sys.argv[1:4]
    tern, shim = os.path.abspath(tern), os.path.abspath(shim)
    by_name = {j.name: j for j in JOBS}
    b = Bench(tern, shim)
    if mode == "slice":
        wanted = sys.argv[4:]
        for name, kind, module, *most in SLICE:
            if wanted and name not in wanted:
                continue
            if name not in by_name:
                continue  # a program that it needs is not here
            numbers = b.places(by_name[name], kind, module)
            if not numbers and module:
                raise SystemExit(f"{name}: no call of kind {kind} from {module}: the shim does not work")
            many = (most or [40])[0]
            for n in some(numbers, many if "TERN_TEST_FULL" in os.environ else -(-many // 5)):
                b.one(by_name[name], kind, module, n)
        return b.close("torture")
    seed = int(os.environ.get("TERN_SEED", time.time()))
    rng = random.Random(seed)
    print(f"seed {seed} (TERN_SEED)", flush=True)
    end = time.time() + 60 * float(sys.argv[4])
    todo = []
    for j in JOBS:
        b.reference(j)
        for kind in KINDS:
            todo += [(j, kind, n) for n in b.places(j, kind, j.alloc_from if kind == "alloc" else None)]
    rng.shuffle(todo)
    while time.time() < end:
        if todo:
            j, kind, n = todo.pop()
            b.one(j, kind, j.alloc_from if kind == "alloc" else None, n)
        if rng.random() < 0.1 or not todo:
            b.kill(rng.choice(JOBS), rng.random() * 0.4)
        if not todo:
            todo = [(j, kind, rng.randrange(1, 2000)) for j in JOBS for kind in KINDS]
            rng.shuffle(todo)
    return b.close("torture")


if __name__ == "__main__":
    sys.exit(main())
