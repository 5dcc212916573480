"""See libraries.sh."""
import base64
import json
import os
import platform
import pty
import re
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = ["scripts", "tests/server"]
TERN, BUILD = sys.argv[1:3]
MODEL, EYES, REPORT, PICTURE = "models/tern-tiny", f"{BUILD}/tern-eyes", "tests/documents/fixtures/report.docx", "models/tern-eyes/demo.png"
# what a prompt needs, the C library, and what a compiler adds
ALLOWED = "pcre2-8|utf8proc|jansson|xxhash|m|c|pthread|dl|atomic|gcc_s|asan|ubsan|tsan"
sys.argv[1:3] = [TERN, MODEL]
import loads  # noqa: E402
import served  # noqa: E402

tmp = tempfile.TemporaryDirectory()
os.environ.update(XDG_DATA_HOME=f"{tmp.name}/data", XDG_CACHE_HOME=f"{tmp.name}/cache", XDG_STATE_HOME=f"{tmp.name}/state", TERN_PACK="never")
SONAMES = {}


def linked(program):
    said = subprocess.run(["readelf", "-dW", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def broken(*names, by=None):
    """A folder in which these libraries are none; or what is compiled of this text."""
    folder = tempfile.mkdtemp(dir=tmp.name)
    for name in names:
        path = f"{folder}/{SONAMES[name]}"
        if by is None:
            with open(path, "w", encoding="utf-8") as f:
                f.write("no library\n")
        else:
            subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=by, text=True, check=True)
    return folder


def tern(*args, without=(), folder=None, debug=None, stdin=subprocess.DEVNULL):
    env = dict(os.environ)
    if without or folder:
        env["LD_LIBRARY_PATH"] = folder or broken(*without)
    if debug:
        env["LD_DEBUG"] = debug
    return subprocess.run([TERN, *args], capture_output=True, text=True, env=env, stdin=stdin, timeout=300)


def lacks(p, name, what):
    """It failed with one line, which names the library and Debian's package."""
    served.same(p.returncode, 1, p.args)
    told(p.stderr, name, what)
    served.same(p.stderr.count("\n"), 1, p.stderr)


def told(line, name, what):
    for word in (what, SONAMES[name], "apt-get install lib" + name):
        assert word in line, (word, line)


def opened(*args):
    """Which of the libraries the program opens."""
    p = tern(*args, debug="files")
    served.same(p.returncode, 0, p.stderr[-2000:])
    return {name for name, soname in SONAMES.items() if f"file={soname} " in p.stderr}


def check_programs():
    for program in (f"{BUILD}/tern", f"{BUILD}/tern-lab"):
        for library in linked(program):
            assert re.fullmatch(rf"(lib({ALLOWED})|ld-linux-.*)\.so(\.[0-9]+)*", library), f"{program} is linked with {library}: see src/libraries/library.h"
    for soname in loads.loads(f"{BUILD}/tern"):
        SONAMES[re.match(r"lib([a-z]+)", soname)[1]] = soname
    for name in ("archive", "edit", "microhttpd", "sqlite", "xml"):
        assert name in SONAMES, SONAMES


def check_prompt():
    answer = ["run", MODEL, "Who are you?", "--temp", "0", "-n", "4"]
    whole, bare = tern(*answer), tern(*answer, without=SONAMES)
    served.same((bare.returncode, bare.stdout), (0, whole.stdout), bare.stderr)
    served.same(opened(*answer), set(), "a prompt")
    served.same(opened("--version"), set(), "the version")


def check_documents():
    served.same(opened("rag", "add", "tests/documents/fixtures/questions.tsv"), {"sqlite"}, "a text")
    served.same(opened("rag", "add", REPORT), {"sqlite"}, "a document, which another process reads")
    shutil.rmtree(f"{tmp.name}/data")
    # the sealed reader does not look for the system's after its process found one that cannot be loaded
    for name in ("archive", "xml"):  # libarchive is linked with libxml2
        p = tern("rag", "add", REPORT, without=[name])
        for word in ("office documents", SONAMES[name], "apt-get install libarchive"):
            assert word in p.stderr, (word, p.stderr)
        assert "0 added" in p.stdout + p.stderr and "1 skipped" in p.stdout + p.stderr, p
    lacks(tern("rag", "add", REPORT, without=["sqlite"]), "sqlite", "stores")
    lacks(tern("run", MODEL, "hi", "-n", "1", "--store", f"{tmp.name}/store.db", without=["sqlite"]), "sqlite", "stores")
    # one that lacks a function
    p = tern("rag", "add", REPORT, folder=broken("archive", by="int archive_read_new(void) { return 0; }"))
    assert "skipped" in p.stderr and "undefined symbol: archive_" in p.stderr, p.stderr


def check_pictures():
    if "png" not in SONAMES or not os.path.exists(EYES):
        print("no PNG, or no model that sees: pictures are left out")
        return
    look = ["run", EYES, PICTURE, "What is in the picture?", "-n", "1", "--temp", "0"]
    served.same(opened(*look), set(), "a picture, which another process reads")
    lacks(tern(*look, without=["png"]), "png", "PNG pictures")


def check_server():
    lacks(tern("serve", "-m", MODEL, "--port", "0", without=["microhttpd"]), "microhttpd", "the server")
    # It gives up the folder of what it does not find in time, and would read the system's.
    os.environ["LD_LIBRARY_PATH"] = broken("archive")
    s = served.Server(sandboxed="TERN_EMULATED" not in os.environ)
    del os.environ["LD_LIBRARY_PATH"]
    with open(REPORT, "rb") as f:
        data = base64.b64encode(f.read()).decode()
    for status, path, body in ((400, "/v1/rag/documents", {"name": "report.docx", "data": data}), (200, "/v1/rag/documents", {"name": "a.txt", "text": "The inn opens at ten."})):
        got = s.json(path, body)
        served.same(got[0], status, got)
        if status != 200:
            told(got[1]["error"]["message"], "archive", "office documents")
            served.same(set(got[1]["error"]) >= {"message", "type", "code"}, True, got)
    s.p.terminate()
    s.p.wait()


def check_chat():
    """A terminal wants a line editor; a pipe does not."""
    with tempfile.TemporaryFile("w+") as typed:
        typed.write("Hello\n")
        typed.seek(0)
        p = tern("chat", MODEL, "--no-store", "-n", "1", without=["edit"], stdin=typed)
        served.same(p.returncode, 0, p.stderr)
    master, slave = pty.openpty()
    p = subprocess.Popen([TERN, "chat", MODEL, "--no-store"], stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "LD_LIBRARY_PATH": broken("edit")})
    os.close(slave)
    said = b""
    try:
        while more := os.read(master, 4096):
            said += more
    except OSError:  # its other end is closed
        pass
    os.close(master)
    served.same(p.wait(), 1, said)
    told(said.decode(), "edit", "typed lines")


if not shutil.which("readelf"):
    skip("no readelf")
if not linked(f"{BUILD}/tern"):
    skip("the program is static")
if platform.machine() not in ("x86_64", "aarch64"):
    skip("on this processor the program is linked with everything")
check_programs()
if "TERN_EMULATED" in os.environ:
    print("an emulated program looks for libraries elsewhere: only what it is linked with is looked at")
    sys.exit(0)
for check in (check_prompt, check_documents, check_pictures, check_server, check_chat):
    check()
