"""What goes first, measured: the time to the first token of interactive requests beside background work, and the rate that the work keeps.

    python3 bench/priorities.py MODEL build/tern [--rounds 2] [--seconds 12] [--every 4] [--tokens 16] [--threads N] [--work prompts,embeddings,packing] [--pack FILE] [--json FILE] [--options WORDS]

Work is a client that reads long prompts one after the other (prompts: 2,000 tokens, a token of answer), or embeds texts of 500 tokens in batches
of 8; or another command that packs FILE, a model in floats, as `tern run` does by itself in the background (packing), whose rate is the processor
time that it gets and which knows no other way. Every so many seconds an interactive request of 40 tokens comes. Each round measures by turns, on one server: interactive requests alone, the
work alone, both with the priorities, and both without any (as it was before there were priorities). Figures are medians over the rounds. Nothing
is shared between prompts, and nothing is kept on the disk. As it stands it takes less than four minutes.
"""
import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("tern")
    for name, default in (("rounds", 2), ("tokens", 16), ("threads", os.cpu_count())):
        a.add_argument("--" + name, type=int, default=default)
    for name, default in (("seconds", 12), ("every", 4)):
        a.add_argument("--" + name, type=float, default=default)
    a.add_argument("--work", default="prompts,embeddings")
    a.add_argument("--pack", help="a model in floats that takes longer to pack than --seconds")
    a.add_argument("--options", default="")
    a.add_argument("--json")
    return a.parse_args()


def text(n):
    """As tokens: every model reads as many."""
    return [random.randrange(300, 1000) for _ in range(n)]


class Server:
    def __init__(self, o, folder):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        env = dict(os.environ, XDG_CACHE_HOME=folder, XDG_DATA_HOME=folder, TERN_PACK="never")
        self.p = subprocess.Popen([o.tern, "serve", "-m", o.model, "--port", str(self.port), "-c", "4096", "--draft", "none", "--cache-size", "0", "-t", str(o.threads), *o.options.split()],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
        while "http://" not in (line := self.p.stderr.readline()):
            assert line, "the server has ended"
        threading.Thread(target=self.p.stderr.read, daemon=True).start()

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def ask(self, path, body, priority=None):
        c = self.connection()
        c.request("POST", path, json.dumps(body), {"X-Tern-Priority": priority} if priority else {})
        r = c.getresponse()
        assert r.status == 200, r.read()
        return c, r

    def metric(self, name):
        c = self.connection()
        c.request("GET", "/metrics")
        return float(re.search("^" + name + r" (\S+)$", c.getresponse().read().decode(), re.M).group(1))


def events(r):
    for line in r:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


class Work(threading.Thread):
    """Long prompts or embeddings, without end; how many tokens were read, and when."""

    def __init__(self, s, kind, priority):
        super().__init__(daemon=True)
        self.s, self.kind, self.priority, self.stopping, self.seen = s, kind, priority, False, []

    def run(self):
        while not self.stopping:
            if self.kind == "embeddings":
                c, r = self.s.ask("/v1/embeddings", {"input": [text(500)]}, self.priority)
                self.seen.append((time.monotonic(), json.loads(r.read())["usage"]["prompt_tokens"]))
            else:
                c, r = self.s.ask("/v1/completions", {"prompt": text(2000), "max_tokens": 1, "stream": True, "return_progress": True}, self.priority)
                before = 0
                for e in events(r):
                    p = e.get("prompt_progress")
                    if p and p["processed"] > before:
                        self.seen.append((time.monotonic(), p["processed"] - before))
                        before = p["processed"]
                    if self.stopping:
                        break
            c.close()

    def rate(self, begin, end):
        """Between the first and the last report in the window."""
        inside = [(t, n) for t, n in self.seen if begin <= t <= end]
        return sum(n for _, n in inside[1:]) / (inside[-1][0] - inside[0][0]) if len(inside) > 2 else 0


class Packing(threading.Thread):
    """What a command packs in the background once it has ended; how many milliseconds of processors it got, and when."""

    def __init__(self, o):
        super().__init__(daemon=True)
        self.o, self.stopping, self.seen = o, False, []

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            env = {k: v for k, v in os.environ.items() if k != "TERN_PACK"} | {"XDG_CACHE_HOME": folder, "XDG_DATA_HOME": folder}
            subprocess.run([self.o.tern, "run", "-m", self.o.pack, "-p", "One", "-n", "1"], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            end = time.monotonic() + 10
            while not (pids := [p for p in os.listdir("/proc") if p.isdigit() and self.packs(p, folder)]):
                assert time.monotonic() < end, f"{self.o.pack} is not packed in the background"
                time.sleep(0.01)
            before = None
            while not self.stopping:
                with open(f"/proc/{pids[0]}/stat") as f:
                    now = sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) * 1000 / os.sysconf("SC_CLK_TCK")
                if before is not None:
                    self.seen.append((time.monotonic(), now - before))
                before = now
                time.sleep(0.1)
            os.kill(int(pids[0]), signal.SIGKILL)

    @staticmethod
    def packs(pid, folder):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f, open(f"/proc/{pid}/cmdline", "rb") as c:
                return folder.encode() in f.read() and c.read().startswith(b"tern\0cache\0")
        except OSError:
            return False

    def rate(self, begin, end):
        return Work.rate(self, begin, end)


def interactive(s, o, priority):
    """Milliseconds to the first token, and between the others on average."""
    begin, times = time.monotonic(), []
    c, r = s.ask("/v1/completions", {"prompt": text(40), "max_tokens": o.tokens, "ignore_eos": True, "stream": True}, priority)
    for e in events(r):
        if e["choices"] and e["choices"][0].get("text") is not None:
            times.append(time.monotonic())
    c.close()
    return 1000 * (times[0] - begin), 1000 * (times[-1] - times[0]) / max(1, len(times) - 1)


def window(s, o, kind, work_priority, priority):
    """The work's rate, and first tokens and the gaps after them of the requests that came beside it. kind None: no work; priority None: no requests."""
    work, got = None, []
    if kind:
        work = Packing(o) if kind == "packing" else Work(s, kind, work_priority)
        work.start()
        while not work.seen:
            time.sleep(0.05)
    begin = time.monotonic()
    k = 0
    while (now := time.monotonic()) < begin + o.seconds:
        if priority and now >= begin + (k + 0.5) * o.every + random.random():
            got.append(interactive(s, o, priority))
            k += 1
        time.sleep(0.005)
    end = time.monotonic()
    rate = work.rate(begin, end) if work else 0
    if work:
        work.stopping = True
        work.join()
    return rate, [g[0] for g in got], [g[1] for g in got]


def main():
    o, table = arguments(), []
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        s = Server(o, folder)
        try:
            interactive(s, o, "ordinary")
            for kind in o.work.split(","):
                usual = "background" if kind == "embeddings" else "ordinary"
                ways = {"alone": (None, None, "interactive"), "work alone": (kind, usual, None), "goes first": (kind, usual, "interactive"), "in turns": (kind, "ordinary", "ordinary")}
                rates, firsts, gaps = ({w: [] for w in ways} for _ in range(3))
                if kind == "packing":
                    del ways["in turns"]
                for _ in range(o.rounds):
                    for w, (k, work_priority, priority) in ways.items():
                        rate, first, gap = window(s, o, k, work_priority, priority)
                        rates[w].append(rate)
                        firsts[w] += first
                        gaps[w] += gap
                for w in ways:
                    table.append({"work": kind, "way": w, "work_tokens_per_s": statistics.median(rates[w]), "first_ms": statistics.median(firsts[w]) if firsts[w] else None,
                                  "first_most_ms": max(firsts[w], default=None), "gap_ms": statistics.median(gaps[w]) if gaps[w] else None, "requests": len(firsts[w])})
            pauses = s.metric("tern_pauses_total")
        finally:
            s.p.terminate()
            s.p.wait()
    print("| work | way | first token, ms (most) | ms a token | work, tokens/s (packing: ms/s) | of its rate alone |\n|---|---|---|---|---|---|")
    for t in table:
        alone = next(x["work_tokens_per_s"] for x in table if x["work"] == t["work"] and x["way"] == "work alone")
        share = f"{100 * t['work_tokens_per_s'] / alone:.0f} %" if t["work_tokens_per_s"] and alone else ""
        first = f"{t['first_ms']:.0f} ({t['first_most_ms']:.0f})" if t["first_ms"] else ""
        print(f"| {t['work']} | {t['way']} | {first} | {t['gap_ms'] and round(t['gap_ms'])} | {t['work_tokens_per_s']:.0f} | {share} |")
    print(f"{pauses:.0f} pauses")
    if o.json:
        with open(o.json, "w") as f:
            json.dump(table, f, indent=1)


main()
