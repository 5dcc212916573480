"""Servers of OpenAI's API side by side, on one model file and with the same requests: several clients together, a long beginning that all
share, a chat of 20 turns, the first token after the model was idle. One table with ratios, and JSON.

    python3 bench/server.py MODEL.gguf tern=build/tern [llama=LLAMA_SERVER] [ik=IK_LLAMA_SERVER] [--json FILE]
        [--parts idle,clients,shared,chat] [--tokens 64] [--rounds 3] [--turns 20] [--rules 40] [--threads 2] [--model NAME=FILE]
        [--options NAME=WORDS] [--own-words]

Servers run one after the other. A figure is the median, with the least and the most in brackets. A ratio is how many times better the
first server is. --model gives a server another file (a package); --options more words of a command line ("--draft none").
The chat goes on with words that are the same for all; --own-words: with what the model said. Random weights say what is cut into
other tokens when it is read again, so that servers would read different prompts.
"""
import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

NEEDED = {"tern": ["serve", "-c", "4096", "--draft", "none"],
          "llama": ["-c", str(8 * 4096), "-np", "8", "--no-webui"],
          "ik": ["-c", str(8 * 4096), "-np", "8", "-rtr"]}


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("file")
    a.add_argument("servers", nargs="+", metavar="NAME=PROGRAM")
    a.add_argument("--json")
    a.add_argument("--parts", default="idle,clients,shared,chat")
    for name, default in (("tokens", 64), ("rounds", 3), ("turns", 20), ("rules", 40), ("threads", os.cpu_count())):
        a.add_argument("--" + name, type=int, default=default)
    a.add_argument("--model", action="append", default=[])
    a.add_argument("--options", action="append", default=[])
    a.add_argument("--own-words", action="store_true")
    got = a.parse_args()
    pairs = lambda texts: dict(t.split("=", 1) for t in texts)
    got.servers, got.model, got.options = pairs(got.servers), pairs(got.model), pairs(got.options)
    unknown = [n for n in got.servers if n not in NEEDED] + [p for p in got.parts.split(",") if p not in PARTS]
    if unknown:
        a.error("unknown: " + ", ".join(unknown))
    return got


class Server:
    def __init__(self, name, cache, words=None):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        args = words or NEEDED[name] + ["-m", model_of(name)]
        args = args + ["-t", str(O.threads), "--port", str(self.port)] + O.options.get(name, "").split()
        env = dict(os.environ, XDG_CACHE_HOME=cache, XDG_DATA_HOME=cache, TERN_PACK="never")
        self.log = open(os.path.join(cache, name + ".log"), "w+")
        self.p = subprocess.Popen([os.path.abspath(O.servers[name]), *args], stdout=self.log, stderr=self.log, env=env, cwd=cache)  # some write logs where they stand
        while True:
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                if self.p.poll() is not None:
                    self.log.seek(0)
                    sys.exit("%s did not start: %s" % (name, self.log.read()[-600:]))
            time.sleep(0.02)

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.read()

    def ask(self, prompt, n, **more):
        """The text, the times of its events with that of the request first, usage."""
        body = {**more, "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "cache_prompt": True, "stream_options": {"include_usage": True}}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        begin = time.monotonic()
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status == 400 and "cache_prompt" in body:  # a word of llama.cpp's that others need not know
            del body["cache_prompt"]
            r.read()
            begin = time.monotonic()
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
        assert r.status == 200, r.read()
        text, times, usage = "", [], {}
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            e = json.loads(line[6:])
            usage = e.get("usage") or usage
            # servers that do not count cached tokens in usage tell what they evaluated
            if "timings" in e and "prompt_n" in e["timings"]:
                usage = dict(usage, evaluated=e["timings"]["prompt_n"])
            if e.get("choices") and (e["choices"][0]["text"] or not e["choices"][0].get("finish_reason")):
                text += e["choices"][0]["text"]
                times.append(time.monotonic())
        return text, [begin] + times, usage

    def stop(self):
        self.p.terminate()
        self.p.wait()
        self.log.close()


def model_of(name):
    return os.path.abspath(O.model.get(name, O.file))


def evaluated(usage):
    """How many tokens of the prompt were read, and how many it has."""
    all_of_it = usage.get("prompt_tokens", 0)
    return usage.get("evaluated", all_of_it - usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)), all_of_it


def together(s, prompts, n):
    got = [None] * len(prompts)

    def one(i):
        got[i] = s.ask(prompts[i], n)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got


class Figures(dict):
    def add(self, what, unit, values, better):
        self[what] = {"unit": unit, "median": statistics.median(values), "least": min(values), "most": max(values), "better": better}


def clients(f, s):
    """Prompts are read beforehand: what is timed is decoding, from the last client's first token on."""
    words = "cat dog king ship tree girl boy house".split()
    prompts = ["Once upon a time there was a %s. " % w + "It was long ago. " * 6 for w in words]
    alone = [s.ask(p, O.tokens)[0] for p in prompts]
    for n in (1, 2, 4, 8):
        speed, worst, differ = [], [], 0
        for _ in range(O.rounds):
            got = together(s, prompts[:n], O.tokens)
            begin, end = max(t[1] for _, t, _ in got), max(t[-1] for _, t, _ in got)
            speed.append(sum(sum(x > begin for x in t) for _, t, _ in got) / max(end - begin, 1e-9))
            worst.append(1e3 * max(b - a for _, t, _ in got for a, b in zip(t[1:], t[2:])))
            differ += sum(x[0] != y for x, y in zip(got, alone))
        f.add("%d clients, together" % n, "tokens/s", speed, "more")
        f.add("%d clients, longest wait" % n, "ms", worst, "less")
        f.add("%d clients, texts unlike alone" % n, "of %d" % (n * O.rounds), [differ], None)
    f.add("8 clients against 1", "times", [f["8 clients, together"]["median"] / f["1 clients, together"]["median"]], "more")


def shared(f, s):
    """Eight come at once with one long beginning that is new to the server."""
    first, read, tokens = [], 0, 0
    rounds = max(1, O.rounds // 2)
    for r in range(rounds):
        common = "".join("Rule %d of round %d: be kind to animal %d. " % (i, r, i * 7) for i in range(O.rules))
        got = together(s, [common + "Client %d asks: what about number %d?" % (i, i * 13) for i in range(8)], 4)
        first += [1e3 * (t[1] - t[0]) for _, t, _ in got]
        for _, _, u in got:
            a, b = evaluated(u)
            read, tokens = read + a, tokens + b
    f.add("shared beginning, first token", "ms", first, "less")
    f.add("shared beginning, tokens read", "of %d" % (tokens // rounds), [read / rounds], "less")


def chat(f, s):
    text, first, read, new, before = "A talk about the sea, with a man who knows it well. ", [], 0, 0, 0
    begin = time.monotonic()
    for i in range(O.turns):
        text += "\nTurn %d, please go on: " % i
        answer, t, u = s.ask(text, 24)
        text += answer if O.own_words else "That is a long story, and it was told to me by my father, %d years ago." % i
        first.append(1e3 * (t[1] - t[0]))
        a, b = evaluated(u)
        read, new, before = read + a, new + b - before, b + u.get("completion_tokens", 24)
    f.add("chat of %d turns, first token" % O.turns, "ms", first, "less")
    f.add("chat of %d turns, tokens read" % O.turns, "%d are new" % new, [read], "less")
    f.add("chat of %d turns, whole" % O.turns, "s", [time.monotonic() - begin], "less")


def idle(f, name, cache):
    """From the request to the first token: the model in memory; after it left for being idle (tern); from the program's start, which
    is what a proxy does that starts servers when they are asked. The first of each reads the file from the disk and is not counted."""
    prompt = "Once upon a time there was a ship. " * 8
    wait = lambda t: 1e3 * (t[1] - t[0])
    warm, cold, start = [], [], []
    for i in range(O.rounds + 1):
        begin = time.monotonic()
        s = Server(name, cache)
        start.append(1e3 * (s.ask("%d: " % i + prompt, 2)[1][1] - begin))
        warm.append(wait(s.ask("Again %d: " % i + prompt, 2)[1]))
        s.stop()
    f.add("first token, in memory", "ms", warm[1:], "less")
    if name == "tern":
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.basename(model_of(name).rstrip("/"))
            os.symlink(model_of(name), os.path.join(folder, model))
            s = Server(name, cache, ["serve", "--models", folder, "--idle", "0.2s", "-c", "4096", "--draft", "none"])
            for i in range(O.rounds + 1):
                cold.append(wait(s.ask("Idle %d: " % i + prompt, 2, model=model)[1]))
                while json.loads(s.get("/v1/models/" + model)[1])["state"] != "away":
                    time.sleep(0.05)
            s.stop()
        f.add("first token, after it was idle", "ms", cold[1:], "less")
    f.add("first token, from the start", "ms", start[1:], "less")


def one_server(name):
    f = Figures()
    with tempfile.TemporaryDirectory() as cache:
        if "idle" in O.parts.split(","):
            begin = time.monotonic()
            idle(f, name, cache)
            print("  idle: %.0f s" % (time.monotonic() - begin), file=sys.stderr, flush=True)
        running = [part for part in (clients, shared, chat) if part.__name__ in O.parts.split(",")]
        s = Server(name, cache) if running else None
        for part in running:
            begin = time.monotonic()
            part(f, s)
            print("  %s: %.0f s" % (part.__name__, time.monotonic() - begin), file=sys.stderr, flush=True)
        if s:
            s.stop()
    return f


def number(x):
    return "%.2f" % x if x < 10 and x != int(x) else "%.1f" % x if x < 100 and x != int(x) else "%.0f" % x


def table(figures):
    ours, *others = figures
    rows = [["", "", *figures, *("%s / %s" % (ours, o) for o in others)]]
    for what in dict.fromkeys(w for f in figures.values() for w in f):
        row = [what, next(f[what]["unit"] for f in figures.values() if what in f)]
        for f in figures.values():
            v = f.get(what)
            spread = "" if not v or v["least"] == v["most"] else " (%s to %s)" % (number(v["least"]), number(v["most"]))
            row.append(number(v["median"]) + spread if v else "-")
        for o in others:
            a, b = figures[ours].get(what), figures[o].get(what)
            # a first token after being idle stands beside the peers' start: they have no other way back
            if a and not b and "idle" in what:
                b = figures[o].get("first token, from the start")
            known = a and b and a["better"] and a["median"] and b["median"]
            row.append("" if not known else "%.2f" % (a["median"] / b["median"] if a["better"] == "more" else b["median"] / a["median"]))
        rows.append(row)
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print("  ".join(x.ljust(w) if i < 2 else x.rjust(w) for i, (x, w) in enumerate(zip(r, widths))).rstrip())


PARTS = ("idle", "clients", "shared", "chat")
O = arguments()
begun = time.monotonic()
measured = {}
for server in O.servers:
    print("%s: %s" % (server, model_of(server)), file=sys.stderr, flush=True)
    measured[server] = one_server(server)
table(measured)
print("in %.0f s" % (time.monotonic() - begun), file=sys.stderr)
if O.json:
    with open(O.json, "w") as out:
        json.dump({"model": os.path.basename(O.file), "threads": O.threads, "rounds": O.rounds, "tokens": O.tokens, "servers": measured}, out, indent=1)
