"""What several windows of the page do at once: conversations that are begun, gone on with, watched, left, searched and erased; documents that come
and go while they are asked; timelines, figures and lists meanwhile; and clients of the API beside them. Every reply is one
that this request may have, and the server ends with 0: under the thread sanitizer it would not after a race."""
import http.client
import json
import os
import random
import threading

from served import Server

QUICK = "TERN_TEST_QUICK" in os.environ
ROUNDS = 3 if QUICK else 6
s = Server("-c", "512")
failed = []


def ask(method, path, body=None, ok=(200,)):
    status, data = s.ask(method, path, body)
    if status not in ok:
        raise AssertionError(f"{method} {path}: {status} {data[:200]!r}")
    return data


def window(number):
    rng = random.Random(number)
    for i in range(ROUNDS):
        talk = json.loads(ask("POST", "/page/talks", {}))["id"]
        ask("POST", f"/page/talks/{talk}/say", {"parent": 0, "content": f"Tell me of the cat number {number}.", "settings": {"max_tokens": 12, "temperature": 0}})
        if rng.random() < 0.5:
            ask("POST", f"/page/talks/{talk}/stop", {}, (200, 204, 404, 405, 409))  # an answer that is being written ends
        ask("GET", f"/page/talks/{talk}/answers/2", None, (200, 404))
        ask("POST", f"/page/talks/{talk}/say", {"parent": 2, "content": "And then?", "settings": {"max_tokens": 8, "temperature": 0}}, (200, 400, 404, 409, 503))
        ask("GET", "/page/talks?q=cat")
        ask("GET", f"/page/talks/{talk}", None)
        if rng.random() < 0.5:
            ask("DELETE", f"/page/talks/{talk}", None, (200, 204))


def documents(number):
    for i in range(ROUNDS):
        name = f"inn{number}-{i}.txt"
        ask("POST", f"/page/documents?name={name}", f"The old inn number {i} is near the weir. " * 5, (200, 409, 503))
        there = json.loads(ask("GET", "/page/documents"))["documents"]
        ask("POST", "/v1/rag/ask", {"question": "where is the old inn", "max_tokens": 6, "temperature": 0}, (200, 400, 404, 503))
        for d in there[:1]:
            ask("DELETE", f"/page/documents/{d.get('id', d.get('name'))}", None, (200, 204, 400, 404))


def watcher(number):
    for i in range(3 * ROUNDS):
        for path in ("/page/state", "/metrics", "/v1/models", "/slots", "/health", "/props", "/page/talks", "/"):
            ask("GET", path, None, (200, 204, 404, 501, 503))
        if i % 3 == 0:  # a timeline goes on until its window is closed
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=1200)
            c.request("GET", "/page/timeline")
            c.getresponse().read(20)
            c.close()


def client(number):
    for i in range(ROUNDS):
        body = {"messages": [{"role": "user", "content": f"Hello {number}"}], "max_tokens": 8, "temperature": 0}
        ask("POST", "/v1/chat/completions", dict(body, stream=i % 2 == 0), (200, 503))
        ask("POST", "/v1/embeddings", {"input": "hello"}, (200, 501, 503))
        ask("POST", "/api/chat", dict(model="x", messages=body["messages"], options={"num_predict": 4}, stream=False), (200, 404, 503))
        ask("POST", "/v1/responses", {"input": "hello", "max_output_tokens": 4, "store": True}, (200, 503))


def guarded(f, number):
    try:
        f(number)
    except Exception as e:  # noqa: told below, with the others
        failed.append(f"{f.__name__} {number}: {e}")


threads = [threading.Thread(target=guarded, args=(f, i)) for f, n in ((window, 4), (documents, 2), (watcher, 2), (client, 2)) for i in range(n)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not failed, "\n".join(failed)
s.p.terminate()
code = s.p.wait()
s.reader.join()
assert code == 0, "".join(s.lines)[-4000:]
assert not any("WARNING: ThreadSanitizer" in x for x in s.lines), "".join(s.lines)[-4000:]
print("traffic: fine")
