"""Pictures in tern run. Equal pictures in different files are told by what is encoded: the second of them needs nothing. Pillow writes the other formats
where /usr/bin/python3 has it; PNG is written here."""
import json
import os
import pty
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

from no_sockets import without

TERN = os.path.abspath(sys.argv[1])
TMP = tempfile.mkdtemp()
QUICK = "TERN_TEST_QUICK" in os.environ  # an emulator or a sanitizer: fewer random cases
os.environ["TERN_PACK"] = "never"
os.environ["XDG_CACHE_HOME"] = TMP + "/cache"
KEPT = TMP + "/cache/tern/pictures"
BLIND = "tern: pictures are not seen: "


def call(*args, rc=0, err=None):
    r = subprocess.run([TERN, *args], capture_output=True, cwd=TMP)
    said = r.stderr.decode(errors="replace")
    assert r.returncode == rc, (args, r.returncode, said)
    assert err is None or err in said, (args, said)
    if rc:  # one line beside the warning that an encoder which was found cannot be used, and nothing came out
        lines = [line for line in said.strip().split("\n") if not line.startswith(BLIND)]
        assert not r.stdout and len(lines) == 1, (args, said)
    return r.stdout, said


def views():  # what else is kept there is smaller: verdicts, and which encoder a file holds
    return [f for f in os.listdir(KEPT) if os.path.getsize(os.path.join(KEPT, f)) > 100]


def look(*args, text="what is this?"):
    return json.loads(call("run", "sees.gguf", *args, text, "-n", "4", "--temp", "0", "--json")[0])


def fails(*args, err, rc=1, model="sees.gguf", more=()):
    call("run", model, *args, "what is this?", "-n", "2", *more, rc=rc, err=err)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


COLOURS = {"L": 0, "RGB": 2, "LA": 4, "RGBA": 6}


def png(w, h, mode, pixels, bits=8, exif=None):
    n = len(mode) * bits // 8 * w
    rows = b"".join(b"\0" + pixels[y * n:(y + 1) * n] for y in range(h))
    head = struct.pack(">IIBBBBB", w, h, bits, COLOURS[mode], 0, 0, 0)
    more = chunk(b"eXIf", exif) if exif else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write(name, data):
    with open(os.path.join(TMP, name), "wb") as f:
        f.write(data)
    return name


def same(a, b):
    shutil.rmtree(KEPT, ignore_errors=True)
    j = look(a, b)
    first, second = j["pictures"]
    assert first["encoded"] > 0 and first["from_disk"] == 0 and second["encoded"] == 0, (a, b, j["pictures"])
    assert second["from_memory"] == second["views"], (a, b, j["pictures"])


rng = random.Random(1)
W, H = 70, 30
rgb = bytes(rng.randrange(256) for _ in range(W * H * 3))
call("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", "sees.gguf")
call("synth", "--arch", "tiny-llama", "--type", "f32", "-o", "blind.gguf")
write("a.png", png(W, H, "RGB", rgb))
os.mkdir(TMP + "/lonely")
call("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", "lonely/blind.gguf")

if b"was built without" in subprocess.run([TERN, "run", "sees.gguf", "a.png", "x"], capture_output=True, cwd=TMP).stderr:
    print("skipped: this tern reads no PNG (libpng-dev)")
    sys.exit(77)

# an encoder is found beside the model; before there is one, and where there are several, a line says what to do
fails("a.png", err="has no picture encoder beside it (a file mmproj*.gguf): give one with --mmproj FILE")
call("synth", "--arch", "tiny-smolvlm-mmproj", "--type", "f32", "-o", "mmproj-sees.gguf")
j = look("a.png")
[p] = j["pictures"]
assert (p["width"], p["height"], p["views"], p["grid_rows"], p["grid_columns"], p["rows"]) == (W, H, 3, 1, 2, 12), p
assert p["encode_ms"] > 0 and p["encoded"] == 3

# what was seen is kept: the same picture again, in another process, costs its text alone, and a part that changed its tile
mine = os.stat(KEPT)
assert mine.st_mode & 0o777 == 0o700 and len(views()) == 3
assert all(os.stat(os.path.join(KEPT, f)).st_mode & 0o777 == 0o600 for f in os.listdir(KEPT))
again = look("a.png")
assert again["text"] == j["text"]
[q] = again["pictures"]
assert (q["encoded"], q["from_disk"], q["encode_ms"]) == (0, 3, 0), q
changed = bytearray(rgb)
changed[0:30] = bytes(255 - v for v in changed[0:30])  # in the first tile, and in the whole
write("part.png", png(W, H, "RGB", bytes(changed)))
[q] = look("part.png")["pictures"]
assert (q["encoded"], q["from_disk"]) == (2, 1), q
said = call("run", "sees.gguf", "part.png", "what?", "-n", "2", "--explain")[1]
assert "picture part.png: 70 x 30 pixels, 3 views (1 x 2 and the whole), 12 rows of the prompt, 3 known already (3 from disk)" in said, said
# what is damaged is computed again, and what does not belong to them stays
for f in os.listdir(KEPT):
    with open(os.path.join(KEPT, f), "r+b") as k:
        if os.fstat(k.fileno()).st_size < 70:
            continue
        k.seek(70)
        was = k.read(1)
        k.seek(70)
        k.write(bytes([was[0] ^ 1]))
write("cache/tern/pictures/mine.txt", b"mine")
[q] = look("a.png")["pictures"]
assert q["encoded"] == 3, q
# another encoder sees another picture; the one that was chosen by itself is INT8 here
assert q["encoder"] == "int8", q
for form, encoded in (("float", 3), ("float", 0), ("int8", 0), ("auto", 0)):
    [q] = look("a.png", "--encoder", form)["pictures"]
    assert q["encoded"] == encoded and q["encoder"] == ("float" if form == "float" else "int8"), (form, q)
# no more than was allowed, and nothing where nothing is
os.environ["XDG_DATA_HOME"] = TMP + "/data"
call("forget", "--all")  # nobody knows which conversation a picture belonged to
assert os.listdir(KEPT) == ["mine.txt"], os.listdir(KEPT)
shutil.rmtree(KEPT)
assert look("a.png", "--picture-cache", "0")["pictures"][0]["encoded"] == 3
assert not os.path.exists(KEPT)
for i in range(6):
    look(write("s.png", png(9, 9, "RGB", bytes(rng.randrange(256) for _ in range(9 * 9 * 3)))), "--picture-cache", "4K")
assert 0 < sum(os.stat(os.path.join(KEPT, f)).st_size for f in os.listdir(KEPT)) <= 4096
shutil.rmtree(KEPT)
# The kernel ends who would open a connection (tests/cli/pull.py has the other commands), the process that decodes as well.
if no_sockets := without(["socket", "connect"]):
    r = subprocess.run([TERN, "run", "sees.gguf", "a.png", "what is this?", "-n", "2", "--temp", "0"], capture_output=True, cwd=TMP, preexec_fn=no_sockets)
    assert r.returncode == 0 and r.stdout, r.stderr
else:
    print("connections: this machine's system calls are not known here")
shutil.rmtree(KEPT, ignore_errors=True)
one = look("a.png", "--one-view")["pictures"][0]
assert (one["views"], one["grid_rows"], one["rows"]) == (1, 0, 4), one
text_only = json.loads(call("run", "sees.gguf", "what is this?", "-n", "4", "--temp", "0", "--json")[0])
assert "pictures" not in text_only
assert j["prompt_tokens"] > text_only["prompt_tokens"] + 12
said = call("run", "sees.gguf", "a.png", "what?", "-n", "2", "--explain")[1]
assert "picture a.png: 70 x 30 pixels, 3 views (1 x 2 and the whole), 12 rows of the prompt, 3 encoded in" in said, said

# the same pixels in other files
grey = bytes(rng.randrange(256) for _ in range(W * H))
write("grey.png", png(W, H, "L", grey))
write("grey-rgb.png", png(W, H, "RGB", bytes(v for v in grey for _ in range(3))))
same("grey.png", "grey-rgb.png")
write("deep.png", png(W, H, "RGB", bytes(b for v in rgb for b in (v, rng.randrange(256))), bits=16))
same("a.png", "deep.png")
opaque = b"".join(rgb[i:i + 3] + b"\xff" for i in range(0, len(rgb), 3))
write("opaque.png", png(W, H, "RGBA", opaque))
same("a.png", "opaque.png")
write("clear.png", png(W, H, "RGBA", b"".join(rgb[i:i + 3] + b"\0" for i in range(0, len(rgb), 3))))
write("white.png", png(W, H, "RGB", b"\xff" * len(rgb)))
same("clear.png", "white.png")
turned = b"".join(rgb[(y * W + x) * 3:][:3] for x in range(W) for y in reversed(range(H)))  # a quarter to the right
left = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
write("upright.png", png(H, W, "RGB", turned))
write("noted.png", png(W, H, "RGB", rgb, exif=left))
same("upright.png", "noted.png")
assert [p["from_memory"] for p in look("a.png", "white.png", "a.png", "--picture-cache", "0")["pictures"]] == [0, 2, 3]  # white tiles are alike
other = look("white.png")
assert (look("a.png")["text"] == j["text"]) and other["prompt_tokens"] == j["prompt_tokens"]

# sizes
for w, h in ((1, 1), (1, 300), (300, 1), (3, 2), (65, 64), (31, 33), (500, 20)):
    p = look(write("s.png", png(w, h, "RGB", bytes(rng.randrange(256) for _ in range(w * h * 3)))))["pictures"][0]
    assert p["rows"] == 4 * p["views"] and p["views"] in (1, 3, 5), (w, h, p)

pillow = subprocess.run(["/usr/bin/python3", "-c", f"""
import os
from PIL import Image
os.chdir({TMP!r})
a = Image.open('a.png')
a.save('a.webp', lossless=True)
a.save('a.jpg', quality=95)
Image.open('a.jpg').save('jpg.png')
a.convert('CMYK').save('cmyk.jpg', quality=95)
Image.open('cmyk.jpg').convert('RGB').save('cmyk.png')
a.save('a.gif'), a.save('a.bmp'), a.save('a.tiff')
a.save('moving.webp', save_all=True, append_images=[a.transpose(0)])
big = Image.new('RGB', (3000, 2000))
big.save('big.jpg', progressive=True)
"""], capture_output=True).returncode == 0
builds = {f: b"was built without" not in subprocess.run([TERN, "run", "sees.gguf", f, "x", "-n", "1"], capture_output=True, cwd=TMP).stderr
          for f in ("a.webp", "a.jpg")} if pillow else {}
if builds.get("a.webp"):
    same("a.png", "a.webp")
    fails("moving.webp", err="moving.webp: the WebP is animated")
if builds.get("a.jpg"):
    same("jpg.png", "a.jpg")
    same("cmyk.png", "cmyk.jpg")
if pillow:
    fails("a.gif", err="a.gif: GIF pictures are not read: save it as PNG, JPEG or WebP")
    fails("a.bmp", err="BMP pictures are not read")
    fails("a.tiff", err="TIFF pictures are not read")
else:
    print("without Pillow: no JPEG, no WebP")

# damaged: every cut is an error, and names the file
for name in ["a.png"] + [f for f, there in builds.items() if there]:
    whole = open(os.path.join(TMP, name), "rb").read()
    for part in range(1, 10, 4 if QUICK else 1):
        fails(write("cut" + name, whole[:max(20, len(whole) * part // 10)]), err=f"cut{name}: the ")
    for i in range(3 if QUICK else 30):  # and no change breaks the reader
        bad = bytearray(whole)
        for _ in range(3):
            bad[rng.randrange(16, len(bad))] ^= 1 << rng.randrange(8)
        r = subprocess.run([TERN, "run", "sees.gguf", write("bad" + name, bytes(bad)), "x", "-n", "1"], capture_output=True, cwd=TMP)
        assert r.returncode in (0, 1), (name, i, r.stderr)


# lying and bombs: refused by the header, in little memory
def header(w, h, bits=8):
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


fails(write("liar.png", header(900, 900)), err="liar.png: the PNG is damaged")
fails(write("bomb.png", header(60000, 60000)), err="bomb.png: the PNG has 60000 x 60000 pixels; up to 100 million")
fails(write("long.png", header(70000, 2)), err="long.png: the PNG has 70000 x 2 pixels; up to 100 million")
if builds.get("a.jpg"):
    whole = bytearray(open(os.path.join(TMP, "big.jpg"), "rb").read())
    at = whole.index(b"\xff\xc2")
    whole[at + 5:at + 9] = struct.pack(">HH", 65500, 65500)
    fails(write("bomb.jpg", bytes(whole)), err="bomb.jpg: the JPEG has 65500 x 65500 pixels; up to 100 million")
if "asan" not in TERN:
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert most < 200 << 10, f"{most} KiB of memory"
with open(os.path.join(TMP, "huge.png"), "wb") as f:
    f.write(b"\x89PNG\r\n\x1a\n")
    f.truncate((64 << 20) + 1)
fails("huge.png", err="huge.png")

# the encoder
fails("a.png", "--mmproj", "none.gguf", err="none.gguf")
fails("a.png", "--mmproj", "sees.gguf", err='sees.gguf: this is no encoder of pictures (an mmproj file): its architecture is "llama"')
fails("a.png", "--mmproj", "a.png", err="a.png")
os.mkdir(TMP + "/others")
call("synth", "--arch", "tiny-idefics3-mmproj", "--type", "f32", "-o", "others/wide.gguf")
fails("a.png", "--mmproj", "others/wide.gguf", err="others/wide.gguf is of another model: its rows have 40 values and the model's have 64")
fails("a.png", model="blind.gguf", err="the model's vocabulary has no mark of pictures (<image>): it was not made to see")
# a program before the pipe that failed
r = subprocess.run([TERN, "run", "sees.gguf", "-", "what?"], input=b"", capture_output=True, cwd=TMP)
assert r.returncode == 1 and not r.stdout and b"nothing came in by standard input (-)" in r.stderr, r
# encoders whose rows are as wide as the model, and which another family's models have
for model, encoder, why in [("tiny-lfm2+sees", "tiny-smolvlm-mmproj", "no mark of pictures (<fake_token_around_image>)"),
                            ("tiny-llama+sees", "tiny-lfm2vl-mmproj", "no mark of pictures (<|image_start|>)"),
                            ("tiny-qwen35+sees", "tiny-qwen25vl-mmproj", "its rows turn by axes one after another"),
                            ("tiny-qwen2vl+sees", "tiny-qwen35-mmproj", "its rows turn by axes in turns")]:
    call("synth", "--arch", model, "-o", "others/model.gguf")
    call("synth", "--arch", encoder, "--type", "f32", "-o", "others/encoder.gguf")
    fails("a.png", "--mmproj", "others/encoder.gguf", model="others/model.gguf", err=why)
# one that was named and cannot be used is an error of opening, whatever is asked
encoder = open(TMP + "/mmproj-sees.gguf", "rb").read()
write("others/torn.gguf", encoder[:len(encoder) // 2])
for bad, err in (("none.gguf", "none.gguf: cannot open"), ("sees.gguf", "this is no encoder of pictures"), ("others/wide.gguf", "is of another model"), ("others/torn.gguf", "the file is cut off")):
    call("run", "sees.gguf", "what?", "-n", "2", "--mmproj", bad, rc=1, err=err)
# one that was only found is told of in a line, the text is answered, and a picture gets the reason; another model's is none of this one's
os.mkdir(TMP + "/torn")
shutil.copy(TMP + "/sees.gguf", TMP + "/torn/m.gguf")
write("torn/mmproj-m.gguf", encoder[:len(encoder) // 2])
out, said = call("run", "torn/m.gguf", "what?", "-n", "2")
assert out and said.count(BLIND + "torn/mmproj-m.gguf: the file is cut off") == 1, said
fails("a.png", model="torn/m.gguf", err="\ntern: torn/mmproj-m.gguf: the file is cut off")
shutil.copy(TMP + "/others/wide.gguf", TMP + "/torn/mmproj-m.gguf")
assert BLIND not in call("run", "torn/m.gguf", "what?", "-n", "2")[1]
# what is wrong with a picture or its prompt is found before the encoder's weights are read: nothing was judged
shutil.rmtree(KEPT, ignore_errors=True)
fails(write("cut.png", open(TMP + "/a.png", "rb").read()[:500]), err="cut.png: the PNG")
fails("a.png", err="does not fit the context of 16", more=("-c", "16"))
fails("a.png", model="blind.gguf", err="the model's vocabulary has no mark of pictures")
assert not os.path.exists(KEPT), os.listdir(KEPT)
shutil.copy(TMP + "/mmproj-sees.gguf", TMP + "/MMPROJ-other.gguf")
look("a.png")  # the one that is called as the model is, behind mmproj- or before
os.rename(TMP + "/mmproj-sees.gguf", TMP + "/sees-mmproj.gguf")
look("a.png")
os.rename(TMP + "/sees-mmproj.gguf", TMP + "/mmproj-sees.gguf")
shutil.copy(TMP + "/mmproj-sees.gguf", TMP + "/MMPROJ_sees.gguf")
fails("a.png", err="has several picture encoders beside it: choose one with --mmproj FILE")
look("a.png", "--mmproj", "mmproj-sees.gguf")
os.remove(TMP + "/MMPROJ_sees.gguf")
for n in ("f16", "q8_0"):
    call("synth", "--arch", "tiny-smolvlm-mmproj", "--type", n, "-o", f"others/{n}.gguf")
    look("a.png", "--mmproj", f"others/{n}.gguf")

# the prompt
fails("a.png", err="does not fit the context of 16", more=("-c", "16"))
forged = look("a.png", text="<image><global-img> what is <fake_token_around_image>?")
assert forged["pictures"][0]["rows"] == 12
assert look("a.png", "--raw")["pictures"][0]["rows"] == 12
assert look("a.png", "--chat-template", "chatml")["pictures"][0]["rows"] == 12
fails(*["a.png"] * 17, rc=2, err="a question has up to 16 pictures")
fails("a.png", "--encoder", "fast", rc=2, err="encoder 'fast' is unknown; there are auto, float, int8")
assert look("a.png", "--encoder", "int8")["pictures"][0]["rows"] == 12
# an encoder is judged once; the verdict decides, where one can be kept and nobody asks for exact bits
shutil.rmtree(KEPT, ignore_errors=True)
explained = lambda *args, model="sees.gguf": call("run", model, "a.png", "what?", "-n", "1", "--explain", *args)[1].split("encoder of pictures: ")[1].split("\n")[0]
verdict = explained()
assert verdict.startswith("INT8 (a drawing's rows in INT8 have cosine 0.999") and verdict.endswith("; INT8 from 0.999 and 0.99 on)"), verdict
[small] = [f for f in os.listdir(KEPT) if os.path.getsize(os.path.join(KEPT, f)) < 70]
inode = os.stat(os.path.join(KEPT, small)).st_ino
assert explained() == verdict and os.stat(os.path.join(KEPT, small)).st_ino == inode  # read, not judged again
write("cache/tern/pictures/" + small, b"TERNROW")
assert explained() == verdict and os.path.getsize(os.path.join(KEPT, small)) == 64  # damaged, so judged again
assert explained("--picture-cache", "0") == "floats (nothing is kept on disk, so INT8 was not judged)"
assert explained("--exact") == "floats (exact)"
assert explained("--encoder", "int8", "--exact") == "INT8 (asked for)"
os.mkdir(TMP + "/strict")
call("synth", "--arch", "tiny-lfm2+sees", "--type", "f32", "-o", "strict/l.gguf")
call("synth", "--arch", "tiny-lfm2vl-mmproj", "--type", "f32", "-o", "strict/mmproj-l.gguf")
assert explained(model="strict/l.gguf").startswith("floats (a drawing's rows in INT8 have cosine 0.998"), explained(model="strict/l.gguf")
assert explained("--encoder", "int8", model="strict/l.gguf") == "INT8 (asked for)"
# a saved session knows its picture
text = call("run", "sees.gguf", "a.png", "what?", "-n", "4", "--temp", "0", "--save-session", "kept.session")[0]
said = call("run", "sees.gguf", "a.png", "what?", "-n", "4", "--temp", "0", "--load-session", "kept.session", "--explain")
assert said[0] == text, said
call("run", "sees.gguf", "a.png", "what?", "-n", "4", "--temp", "0", "--store", "conversations")
assert call("run", "sees.gguf", "a.png", "what?", "-n", "4", "--temp", "0", "--store", "conversations")[0] == text
# a picture that is piped in
with open(os.path.join(TMP, "a.png"), "rb") as f:
    piped = subprocess.run([TERN, "run", "sees.gguf", "-", "what?", "-n", "4", "--temp", "0"], stdin=f, capture_output=True, cwd=TMP)
assert piped.returncode == 0 and piped.stdout == text, piped
with open(os.path.join(TMP, "a.png"), "rb") as f:
    piped = subprocess.run([TERN, "run", "sees.gguf", "-"], stdin=f, capture_output=True, cwd=TMP)
assert piped.returncode == 1 and b"a picture came in, and no question about it" in piped.stderr, piped
assert len(json.loads(call("run", "sees.gguf", "a.png", "what?", "-n", "4", "--json", "--best-of", "2", "--temp", "1")[0])["best_of"]["answers"]) == 2

# chat: pictures named by a command, by a path among the words, dragged in; they stay with their question
def chat(*lines, model="sees.gguf", rc=0):
    r = subprocess.run([TERN, "chat", model, "--temp", "0", "-n", "4", "--no-store", "--explain"], input="\n".join(lines) + "\n", capture_output=True, cwd=TMP, text=True, errors="replace")
    assert r.returncode == rc, r
    return r.stdout.split("\n"), r.stderr


shutil.copy(TMP + "/a.png", TMP + "/a b.png")
want, said = chat("/image a.png", "what?")
assert want[0].strip() == text.decode(errors="replace").strip() and "a.png: 70 x 30 pixels, 12 tokens, go with the next message" in said, (want, text, said)
assert "picture a.png: 70 x 30 pixels, 3 views" in said, said
for line in ("./a.png what?", "'a b.png' what?", "a\\ b.png what?", f"file://{TMP}/a%20b.png what?", f"{TMP}/a.png what?", "what? ./a.png", '"./a b.png" what?'):
    assert chat(line)[0][0] == want[0], line
assert chat("./a.png", "what?")[0] == want
os.environ["HOME"] = TMP
assert chat("~/a.png what?")[0][0] == want[0]
for line, rest in (("what is in a.png?", "what is in?"), ("what is (a.png), and why", "what is (), and why"), ("a.png: what?", ": what?"), ("what of a.png, then?", "what of, then?")):
    assert chat(line)[0] == chat("/image a.png", rest)[0], line
plain = chat("How do I convert a.png to jpeg?", model="lonely/blind.gguf")  # the words are a message there, and a line says what they are not
assert "a.png is not looked at: " in plain[1] and "1 messages" not in plain[1] and len(plain[0][0]) > 2, plain
both = chat("/image a.png", "/image white.png", "what?", "/regen", "and?")
assert "picture white.png" in both[1] and both[0][1] != want[0], both
again = chat("/image a.png", "what?", "/undo", "what?")[0]
assert again[1] != again[0]
_, said = chat("/image a.png", "what?", "and?", "/save talk.txt")
assert said.count("picture a.png") == 1 and "without their pictures" in said and "prompt reuse      on" in said, said
with open(TMP + "/words.txt", "w") as f:
    f.write("words")
for line, err in (("/image none.png", "none.png: No such file"), ("/image words.txt", "words.txt is not a picture"), ("/image huge.png", "huge.png"), ("/image bomb.png", "60000 x 60000 pixels")):
    assert err in chat(line, rc=1)[1], line
assert "has no picture encoder beside it" in chat("/image a.png", model="lonely/blind.gguf", rc=1)[1]
plain = chat("is a.pngs there?", "/nothing/here what?")
assert "goes with" not in plain[1], plain

# what is no file is no picture, and said so
said = subprocess.run([TERN, "run", "sees.gguf", "none.png", "what?"], capture_output=True, cwd=TMP, text=True)
assert said.returncode == 2 and "there is no file 'none.png', so it is the prompt" in said.stderr, said

# a quantised model arrives while it reads
call("synth", "--arch", "tiny-llama+sees", "--type", "q4_0", "-o", "sees4.gguf")
answers = [json.loads(call("run", "sees4.gguf", "--mmproj", "mmproj-sees.gguf", "a.png", "what?", "-n", "8", "--temp", "0", "--set", "load=" + load, "--json", "--explain")[0]) for load in ("stream", "sequential")]
assert answers[0]["text"] == answers[1]["text"], answers
by = {m["mechanism"]: m for m in answers[0]["explain"]}
assert by["cold start"]["on"], by

# a package sees what its model saw
call("pack", "sees.gguf", "-o", "sees.tern")
p = json.loads(call("run", "sees.tern", "--mmproj", "mmproj-sees.gguf", "a.png", "what?", "-n", "4", "--json")[0])["pictures"][0]
assert p["rows"] == 12

# packing judges the encoder, and the package's verdict is taken, also where nothing is kept; another encoder has another
how = json.loads(call("pack", "sees.gguf", "--mmproj", "mmproj-sees.gguf", "-o", "judged.tern", "--json")[0])["encoder"]
assert how["form"] == "int8" and 0.999 < how["mean_cosine"] <= 1 and 0.99 < how["least_cosine"] <= how["mean_cosine"], how
assert "encoder of pictures: " + verdict + "\n" in call("pack", "sees.gguf", "--mmproj", "mmproj-sees.gguf", "-o", "judged.tern")[0].decode()
assert "encoder" not in json.loads(call("pack", "sees.gguf", "--mmproj", "none", "-o", "blind.tern", "--json")[0])
shutil.rmtree(KEPT, ignore_errors=True)
assert explained("--picture-cache", "0", model="judged.tern") == verdict
assert explained(model="judged.tern") == verdict and not any(os.path.getsize(os.path.join(KEPT, f)) == 64 for f in os.listdir(KEPT))
call("synth", "--arch", "tiny-smolvlm-mmproj", "--type", "f32", "--seed", "5", "-o", "strict/other.gguf")
assert explained("--picture-cache", "0", "--mmproj", "strict/other.gguf", model="judged.tern").startswith("floats (nothing is kept")
call("pack", "strict/l.gguf", "--mmproj", "strict/mmproj-l.gguf", "-o", "strict.tern")
assert explained("--picture-cache", "0", model="strict.tern").startswith("floats (a drawing's rows in INT8 have cosine 0.998")
data = open(TMP + "/judged.tern", "rb").read()
at = len(data.rstrip(b"\0")) - 1  # of the verdict, which comes last
write("torn.tern", data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
fails("a.png", err="torn.tern", model="torn.tern")

# a terminal sees how far judging is
shutil.rmtree(KEPT, ignore_errors=True)
main, side = pty.openpty()
assert subprocess.run([TERN, "run", "sees.gguf", "--mmproj", "mmproj-sees.gguf", "a.png", "what?", "-n", "1"], stderr=side, stdout=subprocess.DEVNULL, cwd=TMP).returncode == 0
assert b"judging the encoder of pictures: " in os.read(main, 1 << 16)
os.close(main), os.close(side)

# Qwen3-VL: any size in blocks, no larger than is asked for, also in packages, whose encoder is in them; equal pictures cost their text alone
os.mkdir(TMP + "/qwen")
call("synth", "--arch", "tiny-qwen3vl+sees", "--type", "f32", "-o", "qwen/q.gguf")
call("synth", "--arch", "tiny-qwen3vl-mmproj", "--type", "f32", "-o", "qwen/mmproj-q.gguf")
ask = lambda *args, model="qwen/q.gguf": json.loads(call("run", model, *args, "what?", "-n", "4", "--temp", "0", "--json", "--logprobs")[0])
q = [ask(f) for f in ("a.png", "grey.png", "a.png")]
assert (q[0]["pictures"][0]["views"], q[0]["pictures"][0]["rows"]) == (1, 25 * 11), q[0]["pictures"]  # 391 x 168 pixels, upwards to whole blocks of 16
assert q[0]["token_logprobs"] != q[1]["token_logprobs"] and q[2]["token_logprobs"] == q[0]["token_logprobs"] and q[2]["pictures"][0]["encoded"] == 0, q
few = ask("a.png", "--picture-rows", "20")["pictures"][0]
assert few["rows"] == 4 * 2 and few["encoded"] == 1, few  # as it is, 4.4 x 1.9 blocks
assert ask("a.png", "grey.png", "--encoder", "int8")["pictures"][1]["rows"] == 25 * 11
fails("thin.png" if write("thin.png", png(201, 1, "RGB", bytes(201 * 3))) else "", err="a side more than 200 times the other", model="qwen/q.gguf")
call("pack", "qwen/q.gguf", "-o", "qwen.tern")
p = ask("a.png", model="qwen.tern")
assert p["pictures"][0]["rows"] == 25 * 11 and p["pictures"][0]["encoded"] == 0, p["pictures"]
fails("a.png", "--mmproj", "mmproj-sees.gguf", err="it gives rows for 0 first layers (deepstack), and the model's read 2", model="qwen/q.gguf")
fails("a.png", "--mmproj", "qwen/mmproj-q.gguf", err="pictures of Qwen's encoders need a model whose rope has three axes, and the file of this one (llama) says nothing about them")
call("synth", "--arch", "tiny-qwen35+sees", "--type", "f32", "-o", "qwen/other.gguf")
fails("a.png", "--mmproj", "qwen/mmproj-q.gguf", err="it gives rows for 2 first layers (deepstack), and the model's read 0", model="qwen/other.gguf")
call("synth", "--arch", "tiny-qwen35-mmproj", "--type", "f32", "-o", "others/35.gguf")
assert ask("a.png", "--mmproj", "others/35.gguf", "--encoder", "float", model="qwen/other.gguf")["pictures"][0]["rows"] > 256

# Qwen2.5-VL: blocks of 28
os.mkdir(TMP + "/qwen25")
call("synth", "--arch", "tiny-qwen2vl+sees", "--type", "f32", "-o", "qwen25/q.gguf")
call("synth", "--arch", "tiny-qwen25vl-mmproj", "--type", "f32", "-o", "qwen25/mmproj-q.gguf")
q = [ask(f, model="qwen25/q.gguf") for f in ("a.png", "grey.png")]
assert q[0]["pictures"][0]["rows"] == 4 * 2 and q[0]["token_logprobs"] != q[1]["token_logprobs"], q

# LFM2-VL: tiles of a large picture and the view of the whole, also in packages; `--picture-rows` bounds the latter
os.mkdir(TMP + "/lfm2")
call("synth", "--arch", "tiny-lfm2+sees", "--type", "f32", "-o", "lfm2/l.gguf")
call("synth", "--arch", "tiny-lfm2vl-mmproj", "--type", "f32", "-o", "lfm2/mmproj-l.gguf")
write("large.png", png(391, 168, "RGB", random.Random(3).randbytes(391 * 168 * 3)))
l = [ask(f, *more, model="lfm2/l.gguf")["pictures"][0] for f, *more in (("large.png",), ("large.png", "--one-view"), ("a.png",), ("a.png", "--picture-rows", "20"))]
assert (l[0]["views"], l[0]["rows"]) == (11, 10 * 256 + 24 * 10) and l[0]["encoded"] == 11, l  # 5 x 2 tiles of 128 x 128
assert (l[1]["views"], l[1]["rows"], l[1]["encoded"]) == (1, 24 * 10, 0) and (l[2]["rows"], l[3]["rows"]) == (78, 6 * 2), l
fails("long.png" if write("long.png", png(4000, 1, "RGB", bytes(4000 * 3))) else "", err="one side is so much longer than the other", model="lfm2/l.gguf")
fails("a.png", model="lfm2/l.gguf", more=("--mmproj", "qwen/mmproj-q.gguf"), err="pictures of Qwen's encoders need a model whose rope has three axes")
call("pack", "lfm2/l.gguf", "-o", "lfm2.tern", "--quick")
assert ask("a.png", model="lfm2.tern")["pictures"][0]["rows"] == 78

# InternVL: a grid of tiles and the whole as one, by as many tiles as the file says
os.mkdir(TMP + "/internvl")
call("synth", "--arch", "tiny-qwen2+sees", "--type", "f32", "-o", "internvl/i.gguf")
call("synth", "--arch", "tiny-internvl-mmproj", "--type", "f32", "-o", "internvl/mmproj-i.gguf")
i = [ask(f, *more, model="internvl/i.gguf")["pictures"][0] for f, *more in (("a.png",), ("a.png", "--one-view"), ("large.png", "--encoder", "int8"))]
assert (i[0]["views"], i[0]["rows"], i[0]["grid_rows"], i[0]["grid_columns"]) == (11, 11 * 9, 2, 5), i  # 70 x 30 pixels: 7 x 3 would be too many
assert (i[1]["views"], i[1]["rows"], i[1]["encoded"]) == (1, 9, 0) and i[2]["rows"] == 11 * 9, i
call("pack", "internvl/i.gguf", "-o", "internvl.tern", "--quick")
assert ask("a.png", model="internvl.tern")["pictures"][0]["rows"] == 11 * 9

# Gemma 4: as many blocks of 12 x 12 as its aspect and 280 rows allow; packages too where layers have embeddings of their own
os.mkdir(TMP + "/gemma4")
call("synth", "--arch", "tiny-gemma4+sees", "--type", "f32", "-o", "gemma4/g.gguf")
call("synth", "--arch", "tiny-gemma4-mmproj", "--type", "f32", "-o", "gemma4/mmproj-g.gguf")
g = [ask(f, *more, model="gemma4/g.gguf") for f, *more in (("a.png",), ("grey.png",), ("a.png",), ("a.png", "--picture-rows", "20"))]
assert (g[0]["pictures"][0]["views"], g[0]["pictures"][0]["rows"]) == (1, 25 * 10) and g[0]["token_logprobs"] != g[1]["token_logprobs"], g
assert g[2]["token_logprobs"] == g[0]["token_logprobs"] and g[3]["pictures"][0]["rows"] == 6 * 2, g
assert ask("a.png", "--encoder", "float", model="gemma4/g.gguf")["pictures"][0]["encoded"] == 1
call("pack", "gemma4/g.gguf", "-o", "gemma4.tern", "--quick")
assert ask("a.png", model="gemma4.tern")["pictures"][0]["rows"] == 25 * 10
call("synth", "--arch", "tiny-gemma4+dense+sees", "--type", "f32", "-o", "gemma4/large.gguf")
assert ask("a.png", "--mmproj", "gemma4/mmproj-g.gguf", model="gemma4/large.gguf")["pictures"][0]["rows"] == 25 * 10
call("pack", "gemma4/large.gguf", "-o", "gemma4/large.tern", "--quick", "--mmproj", "gemma4/mmproj-g.gguf")
large = ask("a.png", model="gemma4/large.tern")["pictures"][0]
assert (large["rows"], large["encoded"]) == (24 * 10, 1), large  # as many blocks as 256 rows allow, which a chunk has
fails("a.png", model="gemma4/large.tern", more=("--set", "chunk=128"), err="the rows of a picture see each other, up to 280, and a chunk has 128: --set chunk=256 or more")

# Gemma 3: one view, from packages in one chunk
os.mkdir(TMP + "/gemma")
call("synth", "--arch", "tiny-gemma3+sees", "--type", "f32", "-o", "gemma/g.gguf")
call("synth", "--arch", "tiny-gemma3-mmproj", "--type", "f32", "-o", "gemma/mmproj-g.gguf")
g = [json.loads(call("run", "gemma/g.gguf", f, "what?", "-n", "4", "--temp", "0", "--json", "--logprobs")[0]) for f in ("a.png", "grey.png", "a.png")]
assert (g[0]["pictures"][0]["views"], g[0]["pictures"][0]["rows"]) == (1, 16) and g[0]["token_logprobs"] != g[1]["token_logprobs"], g
assert g[2]["token_logprobs"] == g[0]["token_logprobs"] and g[2]["pictures"][0]["encoded"] == 0, g
assert json.loads(call("run", "gemma/g.gguf", "a.png", "<image_soft_token><start_of_image> what?", "-n", "1", "--json")[0])["pictures"][0]["rows"] == 16
fails("a.png", model="gemma/g.gguf", more=("--mmproj", "mmproj-sees.gguf"), err="the model's vocabulary has no mark of pictures (<image>)")
call("pack", "gemma/g.gguf", "-o", "gemma/g.tern", "--quick")
g = [ask(f, model="gemma/g.tern") for f in ("a.png", "grey.png", "a.png")]
assert [p["pictures"][0]["rows"] for p in g] == [16] * 3 and g[0]["token_logprobs"] == g[2]["token_logprobs"] != g[1]["token_logprobs"], g

# one package holds both: the encoder beside the model goes into it, and is not looked for beside it
os.mkdir(TMP + "/alone")
said = call("pack", "sees.gguf", "-o", "alone/both.tern", "--quick")[1]
assert "the encoder of pictures ./mmproj-sees.gguf goes into the package" in said, said
call("pack", "sees.gguf", "-o", "alone/blind.tern", "--quick", "--mmproj", "none")
fails("a.png", model="alone/blind.tern", err="has no picture encoder beside it")
shutil.rmtree(KEPT)
j = json.loads(call("run", "alone/both.tern", "a.png", "what?", "-n", "4", "--temp", "0", "--json")[0])
assert j["pictures"][0]["encoded"] == 3, j
same_as = json.loads(call("run", "alone/blind.tern", "a.png", "what?", "-n", "4", "--temp", "0", "--json", "--mmproj", "mmproj-sees.gguf")[0])
assert (same_as["text"], same_as["pictures"][0]["from_disk"]) == (j["text"], 3), (same_as, j)
call("pack", "sees.gguf", "-o", "alone/again.tern", "--quick")
assert open(TMP + "/alone/both.tern", "rb").read() == open(TMP + "/alone/again.tern", "rb").read()
r = subprocess.run([TERN, "pack", "sees.gguf", "-o", "alone/wide.tern", "--quick", "--mmproj", "others/wide.gguf"], capture_output=True, cwd=TMP, text=True)
assert r.returncode == 1 and "is of another model" in r.stderr and not os.path.exists(TMP + "/alone/wide.tern"), r
os.mkdir(TMP + "/beside")  # an encoder of another model's, which lies there
call("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", "beside/m.gguf")
shutil.copy(TMP + "/others/wide.gguf", TMP + "/beside/mmproj-wide.gguf")
said = call("pack", "beside/m.gguf", "-o", "beside/m.tern", "--quick")[1]
assert "the package gets no encoder of pictures: beside/mmproj-wide.gguf is of another model" in said, said
fails("a.png", model="beside/m.gguf", err="mmproj-wide.gguf is of another model: its rows have 40 values and the model's have 64")
whole = bytearray(open(TMP + "/alone/both.tern", "rb").read())
whole[-2000] ^= 1  # in the encoder, which comes last
write("alone/damaged.tern", bytes(whole))
assert json.loads(call("run", "alone/damaged.tern", "a.png", "what?", "-n", "4", "--temp", "0", "--json")[0])["text"] == j["text"]  # nothing of it is needed
shutil.rmtree(KEPT)
fails("a.png", model="alone/damaged.tern", err="alone/damaged.tern")
assert call("run", "alone/damaged.tern", "what?", "-n", "2")[0]
# a model whose pictures' rows see each other is packed by itself with its encoder, and answers from the package
os.mkdir(TMP + "/whole")
call("synth", "--arch", "tiny-gemma3+sees", "--type", "f32", "-o", "whole/g.gguf")
call("synth", "--arch", "tiny-gemma3-mmproj", "--type", "f32", "-o", "whole/mmproj-g.gguf")
said = call("run", "whole/g.gguf", "a.png", "a text", "-n", "2", "--pack", "now", "--json")
assert json.loads(said[0])["pictures"][0]["rows"] == 16 and len(os.listdir(TMP + "/cache/tern/packages")) > 0, said
shutil.rmtree(TMP)
