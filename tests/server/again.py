"""Clients that leave while their prompt is read, and come back with it: what was read remains."""
import json
import os
import subprocess
import tempfile

from served import MODEL, TERN, Server, same

FOLDER = tempfile.TemporaryDirectory()
# under a sanitizer; in the long form of `make check`; in `make test`
N, ENOUGH = (1300, 500) if "TERN_TEST_QUICK" in os.environ else (4825, 2000) if "TERN_TEST_FULL" in os.environ else (2700, 1100)
WORDS = "the owl saw a small grey cloud over the river and the fox went home before it rained on the hill".split()


def prompt(seed):
    """Token numbers, so that every model takes as many."""
    return [3 + (i * i * 31 + i * seed * 7 + seed) % 200 for i in range(N)]


def left(s, path, body, n_enough):
    """A request whose client leaves once so much of the prompt is read. Returns what it was told to be read at the end."""
    c = s.connection()
    c.request("POST", path, json.dumps(dict(body, stream=True, return_progress=True)))
    r = c.getresponse()
    n_read = 0
    while n_read < n_enough:
        line = r.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: {"):
            n_read = json.loads(line[6:]).get("prompt_progress", {"processed": n_read})["processed"]
    r.close()
    c.close()
    return n_read


def cached(s, path, body):
    status, r = s.json(path, body)
    same(status, 200, r)
    return r["usage"]["prompt_tokens_details"]["cached_tokens"], r["usage"]["prompt_tokens"]


def comes_back(s):
    """At once, with the same text and with one that differs at its end; and a second time further on."""
    ask = {"prompt": prompt(1), "max_tokens": 1, "temperature": 0}
    n_read = left(s, "/v1/completions", ask, ENOUGH)
    n_more = left(s, "/v1/completions", ask, n_read + 1)
    assert n_more > n_read
    got, n = cached(s, "/v1/completions", dict(ask, prompt=prompt(1)[:-1] + [9, 8, 7]))
    assert n_more <= got < n == N + 2, (n_more, got)
    answer = s.json("/v1/completions", dict(ask, max_tokens=8))[1]["choices"][0]["text"]
    other = Server("--cache-size", "0", "-c", "8192", "--exact", model=s.model)
    same(other.json("/v1/completions", dict(ask, max_tokens=8))[1]["choices"][0]["text"], answer, "the text of one who stayed")
    other.stop()


def others_between(model):
    """One session: what was read goes to the disk while another client is answered."""
    s = Server("-c", "8192", "--sessions", "1", model=model)
    ask = {"prompt": prompt(2), "max_tokens": 1, "temperature": 0}
    n_read = left(s, "/v1/completions", ask, ENOUGH)
    cached(s, "/v1/completions", {"prompt": prompt(3)[:100], "max_tokens": 1})
    got, _ = cached(s, "/v1/completions", ask)
    assert got >= n_read, (got, n_read)
    s.stop()


def in_chats(s):
    """The same of a conversation, which comes back with a turn more."""
    told = [{"role": "user", "content": " ".join(WORDS[(i * i + 3 * i) % len(WORDS)] for i in range(N * 3 // 4))}]
    n_read = left(s, "/v1/chat/completions", {"messages": told, "max_tokens": 1}, ENOUGH)
    more = told + [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And then?"}]
    got, n = cached(s, "/v1/chat/completions", {"messages": more, "max_tokens": 1})
    assert n_read <= got < n, (n_read, got, n)


for model in [MODEL, "qwen35", "gemma3"]:  # states that go back to snapshots only; windows
    if model != MODEL:
        path = os.path.join(FOLDER.name, model + ".gguf")
        subprocess.run([TERN, "synth", "--arch", model, "--tiny", "--type", "q8_0", "-o", path], check=True, stdout=subprocess.DEVNULL)
        model = path
    server = Server("--cache-size", "0", "-c", "8192", "--exact", model=model)
    server.model = model
    comes_back(server)
    if model == MODEL:
        in_chats(server)
    server.stop()
    others_between(model)
    print(os.path.basename(model), "ok", flush=True)
