"""Several clients of one server: tokens/s in all, the longest wait for a token, texts beside those of one client; a long beginning
that all share; a chat of 20 turns; the first token after the model was idle. Any server with OpenAI's API can be measured beside it.

    python3 bench/server.py tern build/tern MODEL [OPTIONS]
    python3 bench/server.py llama LLAMA_SERVER MODEL.gguf [OPTIONS]

TOKENS (64) a client, ROUNDS (3): the median is told, with the least and the most.
"""
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

KIND, PROGRAM, MODEL, *OPTIONS = sys.argv[1:]
TOKENS, ROUNDS = int(os.environ.get("TOKENS", 64)), int(os.environ.get("ROUNDS", 3))


class Server:
    def __init__(self, cache, options=None):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        args = options or {"tern": ["serve", "-m", MODEL, "-c", "4096", "--draft", "none"],
                "llama": ["-m", MODEL, "-c", str(8 * 4096), "-np", "8", "--no-webui"]}[KIND]
        env = dict(os.environ, XDG_CACHE_HOME=cache, TERN_PACK="never")
        self.p = subprocess.Popen([PROGRAM, *args, "--port", str(self.port), *OPTIONS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        while True:
            try:
                if self.get("/health") == 200:
                    return
            except OSError:
                assert self.p.poll() is None, "the server did not start"
            time.sleep(0.05)

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("GET", path)
        return c.getresponse().status

    def ask(self, prompt, n, **more):
        """The text, the times of its events, usage."""
        body = {**more, "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
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
            if e.get("choices"):
                text += e["choices"][0]["text"]
                times.append(time.monotonic())
        return text, [begin] + times, usage

    def state(self, name):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("GET", "/v1/models/" + name)
        return json.load(c.getresponse())["state"]

    def stop(self):
        self.p.terminate()
        self.p.wait()


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


def spread(x, unit, form="%.1f"):
    x = sorted(x)
    return (form + " %s (" + form + " to " + form + ")") % (statistics.median(x), unit, x[0], x[-1])


def clients(s):
    """Prompts are read beforehand: what is timed is decoding, from the last client's first token on."""
    words = "cat dog king ship tree girl boy house".split()
    prompts = ["Once upon a time there was a %s. " % w + "It was long ago. " * 6 for w in words]
    alone = [s.ask(p, TOKENS)[0] for p in prompts]
    base = None
    for n in (1, 2, 4, 8):
        speed, worst, differ = [], [], 0
        for _ in range(ROUNDS):
            got = together(s, prompts[:n], TOKENS)
            begin, end = max(t[1] for _, t, _ in got), max(t[-1] for _, t, _ in got)
            speed.append(sum(sum(x > begin for x in t) for _, t, _ in got) / (end - begin))
            worst.append(1e3 * max(b - a for _, t, _ in got for a, b in zip(t[1:], t[2:])))
            differ += sum(x[0] != y for x, y in zip(got, alone))
        base = base or statistics.median(speed)
        print("%d clients: %s, %.2f times one; longest wait for a token %s; texts that differ from alone: %d of %d" %
              (n, spread(speed, "tokens/s"), statistics.median(speed) / base, spread(worst, "ms", "%.0f"), differ, n * ROUNDS), flush=True)


def shared(s):
    """Eight come at once with one long beginning that is new to the server."""
    first, new, known = [], 0, 0
    for r in range(ROUNDS):
        common = "".join("Rule %d of round %d: be kind to animal %d. " % (i, r, i * 7) for i in range(60))
        got = together(s, [common + "Client %d asks: what about number %d?" % (i, i * 13) for i in range(8)], 4)
        first += [1e3 * (t[1] - t[0]) for _, t, _ in got]
        for _, _, u in got:
            known += u["prompt_tokens_details"]["cached_tokens"] if "prompt_tokens_details" in u else 0
            new += u["prompt_tokens"]
    print("8 clients with one new long beginning: %d prompt tokens each, evaluated %d of %d; time to the first token %s" %
          (new // (8 * ROUNDS), new - known, new, spread(first, "ms", "%.0f")), flush=True)


def chat(s):
    text, first, new, all_tokens = "A talk about the sea, with a man who knows it well. ", [], 0, 0
    for i in range(20):
        text += "\nTurn %d, please go on: " % i
        answer, t, u = s.ask(text, 24)
        text += answer
        first.append(1e3 * (t[1] - t[0]))
        all_tokens += u["prompt_tokens"]
        new += u["prompt_tokens"] - u.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    print("a chat of 20 turns: evaluated %d of %d prompt tokens; time to the first token %s" % (new, all_tokens, spread(first, "ms", "%.0f")), flush=True)


def idle(cache):
    """From the request to the first token: the model in memory; after it left for being idle (tern); from the program's start, which
    is what a proxy does that starts servers when they are asked (both)."""
    prompt = "Once upon a time there was a ship. " * int(os.environ.get("PROMPT", 8))
    warm, cold, start = [], [], []
    for i in range(ROUNDS + 1):  # the first reads the file from the disk
        begin = time.monotonic()
        s = Server(cache)
        start.append(s.ask("%d: " % i + prompt, 2)[1][1] - begin)
        warm.append((lambda t: t[1] - t[0])(s.ask("Again %d: " % i + prompt, 2)[1]))
        s.stop()
    if KIND == "tern":
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.basename(MODEL.rstrip("/"))
            os.symlink(os.path.abspath(MODEL), os.path.join(folder, name))
            s = Server(cache, ["serve", "--models", folder, "--idle", "0.2s", "-c", "4096", "--draft", "none"])
            for i in range(ROUNDS + 1):
                cold.append((lambda t: t[1] - t[0])(s.ask("Idle %d: " % i + prompt, 2, model=name)[1]))
                while s.state(name) != "away":
                    time.sleep(0.05)
            s.stop()
    for what, x in (("in memory", warm), ("after it was idle", cold), ("from the program's start", start)):
        if x:
            print("the first token, %s: %s" % (what, spread([1e3 * v for v in x[1:]], "ms", "%.0f")), flush=True)


with tempfile.TemporaryDirectory() as cache:
    if "idle" in os.environ.get("PART", "idle"):
        idle(cache)
    if os.environ.get("PART") == "idle":
        sys.exit()
    server = Server(cache)
    for part in (clients, shared, chat):
        if not os.environ.get("PART") or part.__name__ in os.environ["PART"]:
            part(server)
    server.stop()
