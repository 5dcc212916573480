"""PDF in questions about pictures. Programs of this test stand for poppler's: a "PDF" here holds a text and pictures in base64, one a line. Where poppler
is installed it draws pages of a true PDF too."""
import base64
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib

TERN = os.path.abspath(sys.argv[1])
TMP = tempfile.mkdtemp()
REAL = os.environ["PATH"]
os.environ["TERN_PACK"] = "never"
os.environ["XDG_CACHE_HOME"] = TMP + "/cache"
os.environ["XDG_DATA_HOME"] = TMP + "/data"

PDFTOTEXT = r"""#!/usr/bin/python3
import sys
lines = open(sys.argv[-2], "rb").read().split(b"\n")
sys.stdout.buffer.write(lines[1] + b"\n\f" * (len(lines) - 2))
"""
PDFTOPPM = r"""#!/usr/bin/python3
import base64, os, sys
words = sys.argv[1:]
assert words[:2] == ["-q", "-png"] and words[6:8] == ["-scale-to", "2048"] and words[3] == words[5] and words[-1][0] == "/", words
pages = open(words[-1], "rb").read().split(b"\n")[2:]
n = int(words[3])
if n > len(pages):
    sys.exit(99)
page = pages[n - 1]
if page == b"endless":
    while True:
        os.write(1, b"\x89PNG\r\n\x1a\n" * 8192)
if page == b"dies":
    os.abort()
sys.stdout.buffer.write(base64.b64decode(page))
"""


def call(*args, rc=0, err=None, stdin=None):
    r = subprocess.run([TERN, *args], capture_output=True, cwd=TMP, input=stdin)
    said = r.stderr.decode(errors="replace")
    assert r.returncode == rc, (args, r.returncode, said)
    assert err is None or err in said, (args, err, said)
    if rc:
        assert not r.stdout and len(said.strip().split("\n")) == 1, (args, said)
    return r.stdout, said


def look(*args, model="sees.gguf"):
    return json.loads(call("run", model, *args, "-n", "4", "--temp", "0", "--json")[0])


def fails(*args, err, model="sees.gguf", rc=1):
    call("run", model, *args, "what?", "-n", "2", rc=rc, err=err)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, seed):
    rng = random.Random(seed)
    rows = b"".join(b"\0" + bytes(rng.randrange(256) for _ in range(w * 3)) for _ in range(h))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write(name, data):
    with open(os.path.join(TMP, name), "wb") as f:
        f.write(data)


def write_pdf(name, text, *pages):
    write(name, b"\n".join([b"%PDF-1.7", text, *(p if isinstance(p, bytes) else base64.b64encode(png(*p)) for p in pages)]))


def program(name, text):
    write("bin/" + name, text.encode())
    os.chmod(os.path.join(TMP, "bin", name), 0o755)


os.makedirs(TMP + "/bin")
call("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", "sees.gguf")
call("synth", "--arch", "tiny-smolvlm-mmproj", "--type", "f32", "-o", "mmproj-sees.gguf")
os.makedirs(TMP + "/alone")
call("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", "alone/blind.gguf")
write("a.png", png(70, 30, 1))
write("b.png", png(30, 40, 2))
if b"was built without" in subprocess.run([TERN, "run", "sees.gguf", "a.png", "x"], capture_output=True, cwd=TMP).stderr:
    print("skipped: this tern reads no PNG (libpng-dev)")
    sys.exit(77)
write_pdf("scan.pdf", b"", (70, 30, 1), (30, 40, 2))
write_pdf("paper.pdf", b"Of penguins.", (70, 30, 1))
write_pdf("many.pdf", b" ", *[(8, 8, i) for i in range(17)])

# without poppler a line says what is missing
os.environ["PATH"] = TMP + "/bin"
fails("scan.pdf", err="scan.pdf: reading PDF needs pdftotext (package poppler-utils), which is not installed")
program("pdftotext", PDFTOTEXT)
fails("scan.pdf", err="scan.pdf: looking at a page of PDF needs pdftoppm (package poppler-utils), which is not installed")
program("pdftoppm", PDFTOPPM)

# a scan is its pages; the same as the pictures themselves
want = look("a.png", "b.png", "what?")
got = look("scan.pdf", "what?")
assert got["text"] == want["text"] and [p["file"] for p in got["pictures"]] == ["scan.pdf#1", "scan.pdf#2"], got
assert [(p["width"], p["height"]) for p in got["pictures"]] == [(70, 30), (30, 40)] and not any(p["encoded"] for p in got["pictures"]), got
assert [p["file"] for p in look("scan.pdf#2", "what?")["pictures"]] == ["scan.pdf#2"]
assert [p["file"] for p in look("many.pdf#2-17", "-c", "2000", "what?")["pictures"]] == [f"many.pdf#{i}" for i in range(2, 18)]
assert [p["file"] for p in look("scan.pdf#2", "a.png", "what?")["pictures"]] == ["scan.pdf#2", "a.png"]  # in the order of the words
assert [p["file"] for p in look("b.png", "scan.pdf#1", "what?")["pictures"]] == ["b.png", "scan.pdf#1"]
write_pdf("large.pdf", b"", (70, 30, 1), b"A" * (5 << 20))  # a scan is larger than a text
assert [p["file"] for p in look("large.pdf#1", "what?")["pictures"]] == ["large.pdf#1"]
fails("large.pdf", err="large.pdf#2: this is no picture")  # the file was read
piped = subprocess.run([TERN, "run", "sees.gguf", "-", "what?"], capture_output=True, cwd=TMP, input=open(TMP + "/scan.pdf", "rb").read())
assert piped.returncode == 1 and b"a PDF file came in by -: name the file instead" in piped.stderr, piped
shutil.copy(TMP + "/scan.pdf", TMP + "/odd#2")  # a name of its own
assert [p["file"] for p in look("odd#2", "what?")["pictures"]] == ["odd#2#1", "odd#2#2"]

# text goes before the question, and a page that is named is looked at all the same
got = look("paper.pdf", "what?")
assert "pictures" not in got and got["prompt_tokens"] > look("what?")["prompt_tokens"] + 5, got
assert [p["file"] for p in look("paper.pdf#1", "what?")["pictures"]] == ["paper.pdf#1"]
assert "pictures" not in look("paper.pdf", "what?", model="alone/blind.gguf")

# what may be wrong
fails("scan.pdf", model="alone/blind.gguf", err="scan.pdf: its pages are pictures, and alone/blind.gguf has no picture encoder beside it")
fails("scan.pdf#3", err="scan.pdf has no page 3")
fails("scan.pdf#1-3", err="scan.pdf has no page 3")
fails("many.pdf", err="many.pdf: with its page 17 there are more than 16 pictures, as many as a question has: name some of its pages, as many.pdf#1-4")
fails("many.pdf#1-17", err="many.pdf: with its page 17")
fails("a.png", "many.pdf#1-16", err="many.pdf: with its page 16")
for pages in "0", "2-1", "9-2", "x", "1x", "-1", "1-", "1-x", "", "1-2-3", " 1", "+1", "1-999999", "99999999999999999999", "4294967297", "1-0":
    fails("scan.pdf#" + pages, err=f"scan.pdf#{pages}: after # stands a page of the file or a range of pages, from 1 to 65536, as in scan.pdf#3 or scan.pdf#3-5")
for word in "gone.pdf#1", "a.png#1":
    fails(word, rc=2, err="there is no file")  # the prompt, and another one
write_pdf("empty.pdf", b"")
fails("empty.pdf", err="empty.pdf has no page 1")
for page, err in (b"dies", "pdftoppm cannot read it"), (b"endless", "a page of it makes too large a picture"), (b"AAAA", "this is no picture"):
    write_pdf("bad.pdf", b"", page)
    fails("bad.pdf", err=err)

# an index says what to do; a chat looks
said = subprocess.run([TERN, "rag", "add", "scan.pdf"], capture_output=True, cwd=TMP).stderr.decode()
assert "skipped: it has no text, but pictures of pages: a model that sees looks at them (tern run MODEL FILE TEXT)" in said, said
typed = b"/image scan.pdf\n/image paper.pdf\n/attach scan.pdf\n"
said = subprocess.run([TERN, "chat", "-m", "sees.gguf"], capture_output=True, cwd=TMP, input=typed).stderr.decode()
assert "scan.pdf#1: 70 x 30 pixels" in said and "scan.pdf#2: 30 x 40 pixels" in said, said
assert "paper.pdf has text: /attach sends it, and /image paper.pdf#1 looks at a page" in said, said
assert "scan.pdf: it has no text, but pictures of pages" in said, said


# among the words of a message: the same as by /image, in the order of the words, also dragged in
def talks(*lines, rc=0, model="sees.gguf"):
    r = subprocess.run([TERN, "chat", model, "--temp", "0", "-n", "4", "--no-store", "--explain"], input="\n".join(lines) + "\n", capture_output=True, cwd=TMP, text=True, errors="replace")
    assert r.returncode == rc, (lines, r)
    return r.stdout.split("\n")[0], [w.split(":")[0] for w in r.stderr.split("\n") if "go with the next message" in w], r.stderr


shutil.copy(TMP + "/scan.pdf", TMP + "/a scan.pdf")
want, names, _ = talks("/image scan.pdf", "what?")
assert names == ["scan.pdf#1", "scan.pdf#2"] and want != talks("what?")[0], names
for line in ("scan.pdf what?", "what? scan.pdf", f"{TMP}/scan.pdf what?", "'a scan.pdf' what?", "a\\ scan.pdf what?", f"file://{TMP}/a%20scan.pdf what?", "scan.pdf#1-2 what?", "a.png b.png what?", "a.png scan.pdf#2 what?", "scan.pdf#1 what? b.png"):
    assert talks(line)[0] == want, line
assert talks("scan.pdf#2 a.png what?")[1] == ["scan.pdf#2", "a.png"] and talks("scan.pdf#2 what? a.png")[0] != want
for line, err in (("a.png paper.pdf what?", "paper.pdf has text: /attach sends it, and /image paper.pdf#1 looks at a page"), ("what? a.png scan.pdf#x", "scan.pdf#x: after # stands a page"),
                  ("scan.pdf scan.pdf#3 what?", "scan.pdf has no page 3"), ("b.png many.pdf what?", "many.pdf: with its page 16"), (f"{TMP}/paper.pdf", "has text: /attach")):
    _, names, said = talks(line, rc=1)
    assert not names and err in said, (line, said)
assert talks("/image a.png paper.pdf", "what?", rc=1)[:2] == (talks("what?")[0], [])  # words that failed leave no picture for the next message
said = talks("scan.pdf what?", model="alone/blind.gguf")[2]
assert "scan.pdf is not looked at: " in said and "(/attach sends the text of a PDF file)" in said, said

# captions: a passage for each page of a scan, and one for a picture: what tern run says of it
QUESTION = "Describe this picture in a few sentences, and repeat the writing in it word for word."


def rag(*args, rc=0, store="captions.db"):
    r = subprocess.run([TERN, "rag", *args, "--store", store], capture_output=True, cwd=TMP, text=True, errors="replace")
    assert r.returncode == rc, (args, r)
    return r.stdout, r.stderr


def says(word):
    text = call("run", "sees.gguf", word, QUESTION, "-n", "160", "--temp", "0")[0].decode(errors="replace")
    return text.strip(" \t\r\n\f\v\0").replace("\f", " ").replace("\0", " ")


shown = lambda path, n: json.loads(rag("show", path, str(n), "--json")[0])
os.makedirs(TMP + "/docs")
for name in "scan.pdf", "a.png", "paper.pdf":
    shutil.copy(os.path.join(TMP, name), TMP + "/docs/")
write("docs/torn.png", open(TMP + "/a.png", "rb").read()[:60])
write("docs/data.bin", b"\0\1\2")
os.sync()
added = json.loads(rag("add", "docs", "--embed", "none", "--captions", "sees.gguf", "--json")[0])
assert (added["added"], added["captions_written"], added["passages_written"], added["skipped"]) == (3, 3, 4, 2), added
for n in 1, 2:
    p = shown("docs/scan.pdf", n)
    assert p["text"] == says(f"scan.pdf#{n}") and p["page"] == n, (p, says(f"scan.pdf#{n}"))
assert shown("docs/a.png", 1)["text"] == says("a.png") != says("b.png")
again, said = rag("add", "docs", "--embed", "none", "--captions", "sees.gguf", "--json")
again = json.loads(again)
assert (again["unchanged"], again["captions_written"]) == (3, 0) and "torn.png: skipped: " in said and "data.bin: skipped: it is binary" in said, (again, said)
assert json.loads(rag("add", "docs", "--embed", "none", "--json")[0])["unchanged"] == 3  # and without the model
write_pdf("docs/scan.pdf", b"", (30, 40, 2))
changed = json.loads(rag("add", "docs/scan.pdf", "--embed", "none", "--captions", "sees.gguf", "--json")[0])
assert (changed["changed"], changed["captions_written"]) == (1, 1) and shown("docs/scan.pdf", 1)["text"] == says("b.png"), changed
# what went before stays when a later one cannot be read, and each error is one line
write_pdf("docs/zz.pdf", b"", (70, 30, 1), b"dies")
assert "zz.pdf: skipped: pdftoppm cannot read it" in rag("add", "docs", "--embed", "none", "--captions", "sees.gguf")[1]
for model, err in (("alone/blind.gguf", "--captions: alone/blind.gguf has no picture encoder beside it"), ("none.gguf", "none.gguf")):
    out, said = rag("add", "a.png", "--captions", model, rc=1, store="new.db")
    assert not out and err in said and len(said.strip().split("\n")) == 1, said

# pages without text of a PDF file that has some, and pictures in office documents: in the order of their numbers, ornaments and torn ones passed over
def zipped(name, entries):
    with zipfile.ZipFile(os.path.join(TMP, name), "w", zipfile.ZIP_DEFLATED) as z:
        for entry, data in entries.items():
            z.writestr(entry, data)


os.makedirs(TMP + "/mixed")
for seed, size in ((11, (70, 64)), (12, (90, 80)), (13, (64, 70))):
    write(f"p{seed}.png", png(*size, seed))
picture = {seed: open(f"{TMP}/p{seed}.png", "rb").read() for seed in (11, 12, 13)}
WORDS = {"word/document.xml": "<w:document xmlns:w='w'><w:body><w:p><w:t>Two herons and a lake.</w:t></w:p></w:body></w:document>"}
zipped("mixed/words.docx", {**WORDS, "word/media/image10.png": picture[12], "word/media/image9.png": picture[11], "word/media/image1.png": picture[13][:99], "word/media/image2.png": b"",
                            "word/media/dot.png": png(63, 70, 5), "docProps/thumbnail.png": picture[13], "word/media/image12.emf": b"no picture that is read"})
zipped("mixed/slides.pptx", {"ppt/presentation.xml": "<p:presentation xmlns:p='p'/>", "ppt/media/image1.png": picture[13][:50], "ppt/media/image2.png": picture[13]})
zipped("mixed/photos.zip", {"a.png": picture[12]})
write_pdf("mixed/half.pdf", b"Words of the first page.", (70, 30, 1), (30, 40, 2), (70, 30, 1))
left = json.loads(rag("add", "mixed", "--embed", "none", "--json", store="mixed.db")[0])
assert (left["added"], left["skipped"], left["captions_written"], left["empty_pages"]) == (2, 2, 0, 2), left
added, said = rag("add", "mixed", "--embed", "none", "--captions", "sees.gguf", "--json", store="captioned.db")
added = json.loads(added)
assert (added["added"], added["skipped"], added["captions_written"], added["empty_pages"]) == (3, 1, 5, 0), (added, said)
assert "photos.zip: skipped: it is an archive, not a document" in said, said
later = [json.loads(rag("add", "mixed", "--embed", "none", "--json", *more, store="mixed.db")[0]) for more in (("--captions", "sees.gguf"), (), ("--captions", "sees.gguf"))]
assert [(x["added"], x["changed"], x["unchanged"], x["captions_written"]) for x in later] == [(1, 2, 0, 5), (0, 0, 3, 0), (0, 0, 3, 0)], later


def text_of(path):
    told = []
    while (r := subprocess.run([TERN, "rag", "show", path, str(len(told) + 1), "--json", "--store", "captioned.db"], capture_output=True, cwd=TMP)).returncode == 0:
        told.append(json.loads(r.stdout)["text"])
    return "\n\n".join(told)


flat = lambda text: " ".join(text.split())
words = flat(text_of("mixed/words.docx"))
places = [words.find(flat(part)[:40]) for part in ("Two herons and a lake.", says("p11.png"), says("p12.png"))]
assert places[0] == 0 and places == sorted(places) and says("p11.png") != says("p12.png"), (places, words)
assert flat(text_of("mixed/slides.pptx")) == flat(says("p13.png"))
half = flat(text_of("mixed/half.pdf"))
places = [half.find(flat(part)[:40]) for part in ("Words of the first page.", says("mixed/half.pdf#2"), says("mixed/half.pdf#3"))]
assert places[0] == 0 and places == sorted(places) and says("mixed/half.pdf#2") != says("mixed/half.pdf#3"), (places, half)
write_pdf("mixed/half.pdf", b"Other words.", (70, 30, 1), b"dies")
said = rag("add", "mixed", "--embed", "none", "--captions", "sees.gguf", store="captioned.db")[1]
assert "half.pdf: its pictures are left out: pdftoppm cannot read it" in said, said
assert "half.pdf: its pictures are left out" in rag("add", "mixed", "--embed", "none", "--captions", "sees.gguf", store="captioned.db")[1]  # and tried again
assert json.loads(rag("show", "mixed/half.pdf", "1", "--json", store="captioned.db")[0])["text"].strip() == "Other words."

# poppler itself, where it is
os.environ["PATH"] = REAL
if shutil.which("pdftoppm"):
    pixels = zlib.compress(random.Random(5).randbytes(600))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
               b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] /Contents 4 0 R /Resources << /XObject << /I 5 0 R >> >> >>",
               b"<< /Length 27 >>\nstream\nq 200 0 0 100 0 0 cm /I Do Q\nendstream",
               b"<< /Type /XObject /Subtype /Image /Width 20 /Height 10 /ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /FlateDecode /Length %d >>\nstream\n%b\nendstream"
               % (len(pixels), pixels)]
    out, at = b"%PDF-1.4\n", []
    for i, o in enumerate(objects):
        at.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (i + 1, o)
    start = len(out)
    out += b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % a for a in at)
    write("true.pdf", out + b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start)
    [p] = look("true.pdf", "what?")["pictures"]
    assert (p["file"], p["width"], p["height"]) == ("true.pdf#1", 2048, 1024) and p["encoded"] > 1, p
    fails("true.pdf#2", err="true.pdf has no page 2")
else:
    print("poppler is not installed: pages of a true PDF are not drawn")
shutil.rmtree(TMP)
