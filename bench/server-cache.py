"""What the server's prefix cache saves: tokens evaluated against tokens that are new. Counts, not times.

    python3 bench/server-cache.py build/tern models/tern-tiny
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

TERN, MODEL = sys.argv[1:3]


class Server:
    def __init__(self, cache, sessions):
        self.p = subprocess.Popen([TERN, "serve", "-m", MODEL, "--port", "0", "-c", "2048", "--sessions", str(sessions)], stderr=subprocess.PIPE, text=True, env=dict(os.environ, XDG_CACHE_HOME=cache, TERN_PACK="never"))
        self.port = next(int(m.group(1)) for m in (re.search(r"http://[0-9.]+:(\d+)", line) for line in self.p.stderr) if m)

    def chat(self, messages, max_tokens):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": max_tokens, "temperature": 0}))
        r = json.loads(c.getresponse().read())
        c.close()
        return r["choices"][0]["message"], r["usage"]

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait()


def system(n):
    return {"role": "system", "content": "You tell stories about " + ", ".join("animal %d" % i for i in range(n)) + "."}


def count(u, before):
    """All of the prompt, what was evaluated of it, what the conversation had not held before."""
    return u["prompt_tokens"], u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"], u["prompt_tokens"] - before


def one_chat(restart):
    with tempfile.TemporaryDirectory() as cache:
        s, talk, held, sums = Server(cache, 4), [system(20)], 0, (0, 0, 0)
        for turn in range(20):
            talk.append({"role": "user", "content": "Turn %d: go on with the story please." % turn})
            m, u = s.chat(talk, 24)
            sums = tuple(a + b for a, b in zip(sums, count(u, held)))
            held = u["prompt_tokens"] + u["completion_tokens"]
            talk.append(m)
            if restart and turn == 9:
                s.stop()
                s = Server(cache, 4)
        s.stop()
        return sums


def eight_clients(sessions):
    with tempfile.TemporaryDirectory() as cache:
        s, held, sums = Server(cache, sessions), [0] * 8, (0, 0, 0)
        talks = [[system(80), {"role": "user", "content": "I am client %d and I like number %d." % (i, i * 7)}] for i in range(8)]
        for _ in range(3):
            for i in range(8):
                m, u = s.chat(talks[i], 16)
                sums = tuple(a + b for a, b in zip(sums, count(u, held[i])))
                held[i] = u["prompt_tokens"] + u["completion_tokens"]
                talks[i] += [m, {"role": "user", "content": "And then?"}]
        s.stop()
        return sums


print("prompt tokens, evaluated, new to their conversation")
print("one chat of 20 turns:", *one_chat(False))
print("with a restart after 10:", *one_chat(True))
for n in (8, 4, 2):
    print("8 clients with one system prompt, 3 turns each, %d sessions:" % n, *eight_clients(n))
