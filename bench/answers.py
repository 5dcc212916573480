"""Eight answers to one question against one: what `n` of OpenAI's API and `tern run --best-of` cost.

    python3 bench/answers.py build/tern MODEL... [--rounds 3] [--tokens 48] [--answers 8] [--threads N] [--budget 170]

Models of random weights do (tern synth): nothing is drafted, and answers have all their tokens. One and eight go by turns; a figure is the
median of the rounds, the ratio that of the medians, with the least and the most of a round in brackets. A request's time has the prompt in it,
which is read once. Of the command, the time of a run of one token is taken off, which loads the model and reads the prompt. A further round
begins while the budget, in seconds for all models, has room for it; what is under way is ended, so 170 is three minutes at most.
"""
import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time

QUESTION = [300 + 7 * k for k in range(40)]  # as tokens: every model reads as many


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("tern")
    a.add_argument("models", nargs="+", metavar="MODEL")
    for name, default in (("rounds", 3), ("tokens", 48), ("answers", 8), ("threads", os.cpu_count()), ("budget", 170)):
        a.add_argument("--" + name, type=int, default=default)
    return a.parse_args()


def environment(folder):
    return dict(os.environ, XDG_CACHE_HOME=folder, XDG_DATA_HOME=folder, TERN_PACK="never")


class Server:
    def __init__(self, o, model, folder):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.o = o
        self.p = subprocess.Popen([o.tern, "serve", "-m", model, "--port", str(self.port), "-c", "1024", "--draft", "none", "--cache-size", "0", "-t", str(o.threads)],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(folder))
        while "http://" not in (line := self.p.stderr.readline()):
            assert line, "the server has ended"
        threading.Thread(target=self.p.stderr.read, daemon=True).start()

    def seconds(self, n):
        body = {"prompt": QUESTION, "n": n, "max_tokens": self.o.tokens, "ignore_eos": True, "temperature": 1, "seed": 1}
        begin = time.monotonic()
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("POST", "/v1/completions", json.dumps(body))
        r = c.getresponse()
        v = json.loads(r.read())
        assert r.status == 200 and len(v["choices"]) == n and v["usage"]["completion_tokens"] == n * self.o.tokens, v
        return time.monotonic() - begin

    def end(self):
        self.p.terminate()
        self.p.wait()


def command_seconds(o, model, folder, n, tokens):
    begin = time.monotonic()
    words = ["--best-of", str(n)] if n > 1 else []
    subprocess.run([o.tern, "run", "-m", model, "-p", "the " * 40, "-n", str(tokens), "-t", str(o.threads), "--draft", "none", "--temp", "1", "--seed", "1", *words],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment(folder))
    return time.monotonic() - begin


def main():
    o = arguments()
    print(f"{o.answers} answers of {o.tokens} tokens against one, {o.threads} threads\n\n| model | way | one, s | {o.answers}, s | times (of a round) | rounds |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for k, model in enumerate(o.models):
            until = time.monotonic() + o.budget / len(o.models)
            s = Server(o, model, folder)
            ways = {"`n` of the API": s.seconds, "`--best-of`": lambda n: command_seconds(o, model, folder, n, o.tokens) - command_seconds(o, model, folder, 1, 1)}
            took = {w: ([], []) for w in ways}
            try:
                s.seconds(1)
                command_seconds(o, model, folder, 1, 1)
                for r in range(o.rounds):
                    begin = time.monotonic()
                    for w, f in ways.items():
                        for i, n in enumerate((1, o.answers)):
                            took[w][i].append(f(n))
                    now = time.monotonic()
                    if now + (now - begin) > until:
                        break
            finally:
                s.end()
            for w, (one, many) in took.items():
                each = [b / a for a, b in zip(one, many)]
                a, b = statistics.median(one), statistics.median(many)
                print(f"| {os.path.basename(model)} | {w} | {a:.2f} | {b:.2f} | **{b / a:.2f}** ({min(each):.2f} to {max(each):.2f}) | {len(one)} |", flush=True)


main()
