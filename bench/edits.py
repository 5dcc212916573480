"""Long conversations that are edited: are the answers those of a process that never saw them, and what is read again?

    python3 bench/edits.py TERN MODEL [--sequences 1000] [--edits 5] [--turns 8] [--seed 1] [--sessions 2] [--context 2048] [--options WORDS]
        [--most RATIO] [--json]
    python3 bench/edits.py TERN MODEL --first-token 32768 [--options WORDS] [--json]

A sequence begins with a conversation of so many turns. Each edit asks one more question, changes a turn of the user, of the assistant or the system
message, with what follows or without it, removes a turn, asks for another answer, or goes back to an earlier branch; before one in five the server is
stopped, before one in twenty killed, and started again on the same folder. Every answer (its text and the log-probability of each token) is compared
with that of a fresh server without a cache, which is asked this one thing. "Read" are prompt tokens that were evaluated, "least" those after what any
earlier conversation had in common with the prompt, and at least one. Counts, not times. The exit status is 1 where an answer differs, or where more
was read than so many times the least (--most; what came after a server was killed is not counted there, because what was not saved is gone).

With --first-token a conversation of that many tokens is read, its middle turn is changed, and the time to the first token of the next answer is
taken: by the same process, and by one that was started again in between.
"""
import argparse
import bisect
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

WORDS = "the a keeper bird field lamp storm harbour letter morning old small writes sees carries before after under beyond seven quiet stone river and then but every night boat".split()

KILLED = "(any, killed)"


class Server:
    def __init__(self, o, cache, n_ctx, *more):
        command = [o.tern, "serve", "-m", o.model, "--port", "0", "-c", str(n_ctx), *more, *o.options.split()]
        self.p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ, XDG_CACHE_HOME=cache, XDG_DATA_HOME=cache, TERN_PACK="never"))
        lines = []
        for line in self.p.stderr:
            lines.append(line)
            m = re.search(r"http://[0-9.]+:(\d+)", line)
            if m:
                self.port = int(m.group(1))
                break
        else:
            sys.exit("".join(lines))
        threading.Thread(target=self.p.stderr.read, daemon=True).start()

    def ask(self, path, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        c.request("POST", path, json.dumps(body))
        r = c.getresponse()
        data = r.read()
        c.close()
        if r.status != 200:
            sys.exit("%s: %d %s" % (path, r.status, data[:400]))
        return json.loads(data)

    def answer(self, messages, seed, n):
        """The text and its log-probabilities; how many tokens the prompt has, and how many of them were known."""
        r = self.ask("/v1/chat/completions", {"messages": messages, "max_tokens": n, "temperature": 0.8, "seed": seed, "logprobs": True})
        c, u = r["choices"][0], r["usage"]
        return (c["message"]["content"], [(t["id"], t["logprob"]) for t in c["logprobs"]["content"]]), u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"]

    def ids(self, messages):
        text = self.ask("/apply-template", {"messages": messages})["prompt"]
        return tuple(self.ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"])

    def stop(self, how=signal.SIGTERM):
        self.p.send_signal(how)
        self.p.wait()


class Known:
    """All that was read so far, sorted: what shares most with a prompt stands beside it."""

    def __init__(self):
        self.all = []

    def add(self, ids):
        bisect.insort(self.all, ids)

    def common(self, ids):
        at = bisect.bisect(self.all, ids)
        return max((len(os.path.commonprefix([k, ids])) for k in self.all[max(0, at - 1):at + 1]), default=0)


# ---- conversations ---------------------------------------------------------------------------------------


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n)) + "."


def turn(role, text):
    return {"role": role, "content": text}


def conversation(rng, n_turns):
    talk = [turn("system", "You answer. " + words(random.Random(rng.randrange(3)), 12))]  # three that many share
    for _ in range(n_turns):
        talk += [turn("user", words(rng, rng.randrange(4, 30))), turn("assistant", words(rng, rng.randrange(4, 30)))]
    return talk


def edited(rng, talk, branches):
    """What the user did, and the conversation that is asked then: it ends with the user."""
    users = [i for i, m in enumerate(talk) if m["role"] == "user"]
    kind = rng.choice(["ask", "change", "change and cut", "change an answer", "change the system", "remove", "again", "branch"])
    talk = list(rng.choice(branches)) if kind == "branch" else list(talk)
    if kind in ("ask", "branch"):
        return kind, talk + [turn("user", words(rng, 8))]
    i = rng.choice(users)
    if kind in ("change", "change and cut"):
        talk[i] = turn("user", words(rng, rng.randrange(4, 30)))
    if kind == "change and cut":
        return kind, talk[:i + 1]
    if kind == "change an answer":
        talk[i + 1] = turn("assistant", words(rng, 9))
        return kind, talk + [turn("user", words(rng, 8))]
    if kind == "change the system":
        talk[0] = turn("system", words(rng, 12))
    if kind == "remove" and len(users) > 1:
        talk = talk[:i] + talk[i + 2:]
    return kind, talk[:-1]  # another answer to the last question


def sequences(o):
    rng, known, differs = random.Random(o.seed), Known(), []
    sums = {}
    restarts = kills = 0
    n_ctx = o.context
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as empty:
        start = lambda: Server(o, cache, n_ctx, "--sessions", str(o.sessions))
        s = start()
        for number in range(o.sequences):
            talk = conversation(rng, rng.randrange(2, o.turns + 1))
            branches = [talk]
            for step in range(o.edits):
                dice = rng.random()
                if dice < 0.25:
                    s.stop(signal.SIGKILL if dice < 0.05 else signal.SIGTERM)
                    restarts, kills = restarts + 1, kills + (dice < 0.05)
                    s = start()
                kind, asked = edited(rng, talk, branches)
                if dice < 0.05:
                    kind = KILLED
                seed = rng.randrange(1 << 30)
                got, n, n_known = s.answer(asked, seed, 6)
                fresh = Server(o, empty, n_ctx, "--cache-size", "0")
                want, n_fresh, n_zero = fresh.answer(asked, seed, 6)
                fresh.stop(signal.SIGKILL)
                if n_zero or n != n_fresh:
                    sys.exit("a fresh server knew %d tokens, and read %d of %d" % (n_zero, n_fresh, n))
                if got != want:
                    differs.append({"sequence": number, "edit": step, "kind": kind, "got": got, "want": want, "known": n_known})
                ids = s.ids(asked)
                x = sums.setdefault(kind, {"answers": 0, "prompt": 0, "read": 0, "least": 0, "most_over": 0})
                least = max(1, n - min(known.common(ids), n))
                for k, v in (("answers", 1), ("prompt", n), ("read", n - n_known), ("least", least)):
                    x[k] += v
                x["most_over"] = max(x["most_over"], n - n_known - least)
                talk = asked + [turn("assistant", got[0].replace("\0", " "))]  # a byte that no request may have
                known.add(ids)
                known.add(s.ids(talk + [turn("user", "")])[:n + len(got[1])])
                branches.append(talk)
        s.stop()
    total = {k: sum(x[k] for x in sums.values()) for k in ("answers", "prompt", "read", "least")}
    return {"sequences": o.sequences, "seed": o.seed, "restarts": restarts, "kills": kills, "differences": differs, **total, "kinds": sums}


def told(r):
    print("%d sequences, %d answers, %d restarts (%d killed): %d answers differ" % (r["sequences"], r["answers"], r["restarts"], r["kills"], len(r["differences"])))
    print("%-18s %8s %9s %9s %9s %7s %9s" % ("edit", "answers", "prompt", "read", "least", "read/l.", "most over"))
    for kind, x in sorted(r["kinds"].items()):
        print("%-18s %8d %9d %9d %9d %7.2f %9d" % (kind, x["answers"], x["prompt"], x["read"], x["least"], x["read"] / x["least"], x["most_over"]))
    print("%-18s %8d %9d %9d %9d %7.2f" % ("all", r["answers"], r["prompt"], r["read"], r["least"], r["read"] / r["least"]))
    for d in r["differences"][:5]:
        print(json.dumps(d))


# ---- the time after an edit ------------------------------------------------------------------------------


def timed(s, messages):
    """To the first event with text, in ms; and how many tokens were evaluated, of how many."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=7200)
    begin, first = time.monotonic(), None
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True, "logprobs": True, "stream_options": {"include_usage": True}}))
    for line in c.getresponse():
        if not line.startswith(b"data: {"):
            continue
        e = json.loads(line[6:])
        if "error" in e:
            sys.exit(e["error"]["message"])
        if first is None and any((x.get("logprobs") or {}).get("content") for x in e["choices"]):
            first = 1e3 * (time.monotonic() - begin)
        u = e.get("usage") or None
        usage = u or {}
    c.close()
    return {"first_token_ms": first, "read": usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"], "prompt": usage["prompt_tokens"]}


def first_token(o):
    rng, out = random.Random(o.seed), {}
    n_ctx = o.first_token + 1024
    with tempfile.TemporaryDirectory() as cache:
        s = Server(o, cache, n_ctx, "--sessions", "2", "--cache-size", "8192")
        talk = conversation(rng, o.first_token // 20)
        talk = talk[:int(len(talk) / 2 * o.first_token / len(s.ids(talk))) * 2]  # the turns are alike: within some tokens
        out["whole"] = timed(s, talk)
        for name in ("the last turn", "the middle turn", "the middle turn, cut", "the middle turn, after a restart"):
            if "restart" in name:
                s.stop()
                s = Server(o, cache, n_ctx, "--sessions", "2", "--cache-size", "8192")
            i = len(talk) - 1 if "last" in name else len(talk) // 4 * 2 + 1
            now = list(talk)
            now[i] = turn("user", words(rng, 12))
            out[name] = timed(s, now[:i + 1] if "cut" in name else now)
            out[name]["least"] = out[name]["prompt"] - len(os.path.commonprefix([s.ids(now), s.ids(talk)]))
        s.stop()
    return out


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("tern")
    a.add_argument("model")
    for name, default in (("sequences", 1000), ("edits", 5), ("turns", 8), ("seed", 1), ("sessions", 2), ("context", 2048), ("first-token", 0)):
        a.add_argument("--" + name, type=int, default=default)
    a.add_argument("--options", default="")
    a.add_argument("--most", type=float, default=float("inf"))
    a.add_argument("--json", action="store_true")
    o = a.parse_args()
    r = first_token(o) if o.first_token else sequences(o)
    if o.json:
        print(json.dumps(r))
    elif o.first_token:
        for name, x in r.items():
            print("%-34s %8.0f ms, %d of %d tokens read%s" % (name, x["first_token_ms"], x["read"], x["prompt"], " (least %d)" % x["least"] if "least" in x else ""))
    else:
        told(r)
    kept = [x for kind, x in r.get("kinds", {}).items() if kind != KILLED]
    return int(bool(r.get("differences")) or sum(x["read"] for x in kept) > o.most * sum(x["least"] for x in kept))


if __name__ == "__main__":
    sys.exit(main())
