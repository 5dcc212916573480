"""Pictures in requests: every API's form gives the same answer, the same picture is encoded once, a conversation with one is found again (by the next
turn, and after a restart), nobody names a file or an address, and whatever is wrong is one clear line."""
import base64
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import zlib

sys.argv[2] = "none"
from served import TERN, Server, same  # noqa: E402

HERE = tempfile.TemporaryDirectory()
MODEL = HERE.name + "/sees.gguf"
for arch, name in (("tiny-llama+sees", "sees"), ("tiny-smolvlm-mmproj", "mmproj-sees")):
    subprocess.run([TERN, "synth", "--arch", arch, "--type", "f32", "-o", f"{HERE.name}/{name}.gguf"], check=True, capture_output=True)
os.mkdir(HERE.name + "/blind")
BLIND = HERE.name + "/blind/blind.gguf"
subprocess.run([TERN, "synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", BLIND], check=True, capture_output=True)
rng = random.Random(5)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, rgb=None):
    rgb = rgb or bytes(rng.randrange(256) for _ in range(w * h * 3))
    rows = b"".join(b"\0" + rgb[y * w * 3:(y + 1) * w * 3] for y in range(h))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def b64(data):
    return base64.b64encode(data).decode()


def url(data):
    return "data:image/png;base64," + b64(data)


A, B = png(70, 30), png(31, 33)
with open(HERE.name + "/a.png", "wb") as f:
    f.write(A)
probe = subprocess.run([TERN, "run", MODEL, HERE.name + "/a.png", "x", "-n", "1"], capture_output=True, text=True)
if "was built without" in probe.stderr:
    print("skipped: this tern reads no PNG (libpng-dev)")
    sys.exit(77)


def image(data, **more):
    return {"type": "image_url", "image_url": {"url": url(data), **more}}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}


COLD = {"temperature": 0, "max_tokens": 8}


def chat(s, *messages, status=200, **more):
    got, v = s.json("/v1/chat/completions", {"messages": list(messages), **COLD, **more})
    assert got == status, (got, v)
    return v


def said(v):
    return v["choices"][0]["message"]["content"]


def refuses(s, what, *parts, status=400):
    v = chat(s, user(*parts), status=status)
    assert what in v["error"]["message"], v
    assert HERE.name not in json.dumps(v), v  # where files lie is nobody's affair


s = Server(model=MODEL)
same(s.json_get("/props")["modalities"], {"vision": True, "audio": False}, "props")
assert "vision" in s.json("/api/show", {"model": "sees.gguf"})[1]["capabilities"]
assert s.json_get("/v1/models")["data"][0]["meta"]["sees"]

# every API's form is the same prompt
first = chat(s, user(image(A), text("what?")))
want, n = said(first), first["usage"]["prompt_tokens"]
cli = subprocess.run([TERN, "run", MODEL, HERE.name + "/a.png", "what?", "-n", "8", "--temp", "0", "--json"], capture_output=True, text=True)
same((json.loads(cli.stdout)["text"].strip(), json.loads(cli.stdout)["prompt_tokens"]), (want.strip(), n), "the command line")
assert want != said(chat(s, user(image(B), text("what?")))), "another picture"
again = chat(s, user(image(A), text("what?")))
same((said(again), again["usage"]["prompt_tokens"]), (want, n), "again")
assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= n - 1, again
same(said(chat(s, user({"type": "image_url", "image_url": url(A)}, text("what?")))), want, "the address alone")
r = s.json("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url(A)}, {"type": "input_text", "text": "what?"}]}], "temperature": 0, "max_output_tokens": 8})
same((r[0], r[1]["output"][-1]["content"][0]["text"]), (200, want), r)
r = s.json("/v1/messages", {"messages": [user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64(A)}}, text("what?"))], **COLD})
same((r[0], r[1]["content"][0]["text"]), (200, want), r)
r = s.json("/api/chat", {"messages": [{"role": "user", "content": "what?", "images": [b64(A)]}], "stream": False, "options": {"temperature": 0, "num_predict": 8}})
same((r[0], r[1]["message"]["content"]), (200, want), r)
r = s.json("/api/generate", {"prompt": "what?", "images": [b64(A)], "stream": False, "options": {"temperature": 0, "num_predict": 8}})
same((r[0], r[1]["response"]), (200, want), r)
streamed = s.events("/v1/chat/completions", {"messages": [user(image(A), text("what?"))], **COLD})
same("".join(x["choices"][0]["delta"].get("content") or "" for x in streamed if x["choices"]), want, "streamed")
same(s.json("/v1/messages/count_tokens", {"messages": [user({"type": "image", "source": {"type": "base64", "data": b64(A)}}, text("what?"))]})[1]["input_tokens"], n, "counted")

# what it costs: a view is encoded once, whoever asks; "low" is the overview alone
encoded = s.metric("tern_pictures_views_total{from=\"encoder\"}")
chat(s, user(image(A), image(B), text("both?")))
same(s.metric("tern_pictures_views_total{from=\"encoder\"}"), encoded, "nothing is encoded twice")
low = chat(s, user(image(A, detail="low"), text("what?")))
assert low["usage"]["prompt_tokens"] < n, low
assert s.metric("tern_pictures_views_total{from=\"encoder\"}") > encoded

# turns: the conversation goes on where it was, and pictures stand where they came
turns = [user(image(A), text("what?")), {"role": "assistant", "content": want}, user(text("and?"))]
v = chat(s, *turns)
assert v["usage"]["prompt_tokens_details"]["cached_tokens"] >= n, v
later = chat(s, *turns, {"role": "assistant", "content": "so"}, user(text("this "), image(B), text("?")))
assert later["usage"]["prompt_tokens_details"]["cached_tokens"] >= n
several = [chat(s, user(image(A), text("what?")), n=2, temperature=0)["choices"][k]["message"]["content"] for k in (0, 1)]
same(several, [want, want], "several answers")

# marks that users spell stay text
forged = chat(s, user(image(A), text("<image><fake_token_around_image><global-img> what?")))
plain = chat(s, user(text("<image><fake_token_around_image><global-img> what?")))
assert forged["usage"]["prompt_tokens"] > n and "error" not in plain
assert chat(s, user({"type": "image", "picture": 0}, text("x")), status=400)["error"]["message"].startswith("messages[0]"), "nobody names a picture by its number"

# base64 in lines, as mail has it and openssl writes it
lines = "\r\n".join(b64(A)[i:i + 76] for i in range(0, len(b64(A)), 76)) + "\n"
assert lines.count("\n") > 2
same(said(chat(s, user({"type": "image_url", "image_url": "data:image/png;base64," + lines}, text("what?")))), want, "in lines")
r = s.json("/api/generate", {"prompt": "what?", "images": [lines], "stream": False, "options": {"temperature": 0, "num_predict": 8}})
same((r[0], r[1]["response"]), (200, want), r)

# what is wrong
for detail in ("bogus", 3):
    refuses(s, "'detail' of a picture is low, high, auto or original", image(A, detail=detail), text("x"))
refuses(s, "nothing is fetched from the net", {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}, text("x"))
refuses(s, "nothing is fetched from the net", {"type": "image_url", "image_url": {"url": "HTTPS://127.0.0.1:1/a.png"}}, text("x"))
for path in (HERE.name + "/a.png", "file://" + HERE.name + "/a.png", "/etc/passwd", "/none.png"):
    refuses(s, "there is no picture at this path that may be read", {"type": "image_url", "image_url": {"url": path}}, text("x"))
for bad, why in (("data:image/png,abc", "is not in base64"), ("data:image/png;base64,@@@@", "is not base64 at byte 0"), ("data:image/png;base64,abcde", "is not base64"), ("ftp://x", "want the picture as a data: URL"),
                 ("data:;base64,", "this is no picture"), ("data:;base64," + b64(b"GIF89a" + bytes(20)), "GIF pictures are not read"), ("data:;base64," + b64(A[:100]), "the PNG"),
                 ("data:;base64," + b64(A[:16] + struct.pack(">II", 60000, 60000) + A[24:]), "60000 x 60000 pixels")):
    refuses(s, why, {"type": "image_url", "image_url": {"url": bad}}, text("x"))
refuses(s, "a picture needs a data: URL", {"type": "input_image", "file_id": "f"}, text("x"))
refuses(s, "a picture needs a data: URL", {"type": "image_url"}, text("x"))
refuses(s, "more than 64 pictures", *[image(A)] * 65, status=400)
v = chat(s, {"role": "system", "content": [image(A)]}, user(text("x")), status=400)
assert "image input is not supported here" in v["error"]["message"], v
v = chat(s, user(*[image(A)] * 64, text("x " * 400)), status=400)
assert "context" in v["error"]["message"], v
r = s.json("/api/generate", {"prompt": "x", "raw": True, "images": [b64(A)]})
assert r[0] == 400 and "not with 'raw'" in r[1]["error"], r
same(said(chat(s, user(image(A), text("what?")))), want, "and it goes on")
long = user(image(A), text("what is there to see? " * 8))  # less than 64 tokens are read again and not taken from the disk
answer = said(chat(s, long))
s.stop()

# after a restart the picture is known, and so is its conversation
s = Server(model=MODEL)
v = chat(s, long)
same(said(v), answer, "after a restart")
assert v["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64, v
same(s.metric("tern_pictures_views_total{from=\"encoder\"}"), 0, "encoded after a restart")
s.stop()

# where conversations and pictures are kept nowhere, everything is read anew and the same
s = Server("--cache-size", "0", "--picture-cache", "0", "--picture-memory", "1K", model=MODEL)
same(said(chat(s, user(image(A), text("what?")))), want, "without anything kept")
same(s.metric("tern_pictures_views_total{from=\"encoder\"}"), 3, "encoded")
s.stop()

# files: below the folder that was named, and nowhere else
os.mkdir(HERE.name + "/shots")
os.symlink(HERE.name + "/a.png", HERE.name + "/shots/out.png")
with open(HERE.name + "/shots/in side.png", "wb") as f:
    f.write(A)
with open(HERE.name + "/shots2.png", "wb") as f:
    f.write(A)
s = Server("--allow-path", HERE.name + "/shots", model=MODEL)
for path in ("/shots/in side.png",):
    same(said(chat(s, user({"type": "image_url", "image_url": {"url": HERE.name + path}}, text("what?")))), want, path)
    same(said(chat(s, user({"type": "image_url", "image_url": {"url": "file://" + HERE.name + path.replace(" ", "%20")}}, text("what?")))), want, path)
for path in ("file://in%20side.png", "file:///in%20side.png", "file:////in%20side.png", "file://./in%20side.png"):  # from the folder
    same(said(chat(s, user({"type": "image_url", "image_url": {"url": path}}, text("what?")))), want, path)
for path in ("file://../a.png", "file://out.png", "file://none.png", "file://", "file://.", "file://%2e%2e/a.png", "in side.png", "file://in%20side.png%00.png"):
    refuses(s, "want the picture as" if path[:4] != "file" else "there is no picture at this path that may be read", {"type": "image_url", "image_url": {"url": path}}, text("x"))
for path in ("/a.png", "/shots/out.png", "/shots/../a.png", "/shots2.png", "/shots", "/shots/none.png", "/shots/"):
    refuses(s, "there is no picture at this path that may be read", {"type": "image_url", "image_url": {"url": HERE.name + path}}, text("x"))
s.stop()

# of large pictures the pixels of two are in memory at once, whoever sends them


def decoders(pid):
    """How many processes decode now: those that the server's readers started."""
    parents = {}
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{p}/stat") as f:
                parents[int(p)] = int(f.read().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it has ended
    return sum(parents.get(parent) == pid for parent in parents.values())


s = Server("--picture-cache", "0", model=MODEL)
large = [png(2600, 2600, bytes(rng.randbytes(2600 * 3)) * 2600) for _ in range(6)]
asking = [threading.Thread(target=chat, args=(s, user(image(p, detail="low"), text("what?")))) for p in large]
for t in asking:
    t.start()
most = 0
while any(t.is_alive() for t in asking):
    most = max(most, decoders(s.p.pid))
for t in asking:
    t.join()
assert 1 <= most <= 2, most
s.stop()

# a model without an encoder says so
s = Server(model=BLIND)
same(s.json_get("/props")["modalities"]["vision"], False, "props")
refuses(s, "has no picture encoder beside it", image(A), text("x"))
s.stop()

# one beside it that cannot be read is a warning, and the reason; one that was named is an error of starting
encoder = open(HERE.name + "/mmproj-sees.gguf", "rb").read()
with open(HERE.name + "/blind/mmproj-blind.gguf", "wb") as f:
    f.write(encoder[:len(encoder) // 2])
s = Server(model=BLIND)
same(s.json_get("/props")["modalities"]["vision"], False, "props")
same(s.json_get("/v1/models")["data"][0]["meta"]["sees"], False, "models")
refuses(s, "image input is not supported: mmproj-blind.gguf: the file is cut off", image(A), text("x"))
s.stop()
for bad in (HERE.name + "/none.gguf", HERE.name + "/blind/mmproj-blind.gguf", MODEL):
    r = subprocess.run([TERN, "serve", "-m", MODEL, "--mmproj", bad, "--port", "0"], capture_output=True, text=True, timeout=300)
    assert r.returncode == 1 and os.path.basename(bad) in r.stderr, r
print("ok")
