"""tern-eyes on drawings that it was never trained on (models/tern-eyes/unseen): its exact answers are counted in every form that a picture
can be read in. Questions about one drawing asked with another one must fail, so that the count is about pictures."""
import base64
import http.client
import json
import os
import subprocess
import sys
import tempfile

TERN = os.path.abspath(sys.argv[1])
HERE = "models/tern-eyes"
TMP = tempfile.mkdtemp()
os.environ["TERN_PACK"] = "never"
os.environ["XDG_CACHE_HOME"] = TMP + "/cache"
MODEL, PACKAGE = TMP + "/tern-eyes", TMP + "/eyes.tern"

asked = [json.loads(line) for line in open(f"{HERE}/unseen/questions.jsonl", encoding="utf-8")]
pictures = {q["picture"]: base64.b64encode(open(f"{HERE}/unseen/{q['picture']}", "rb").read()).decode() for q in asked}
names = list(pictures)
FULL = "TERN_TEST_FULL" in os.environ
if not FULL:  # `make check` asks all, of a package that took its time; a third holds questions about every drawing
    asked = asked[::3]
    assert {q["picture"] for q in asked} == set(names)


def right(model, *options, shift=0):
    """How many answers are right. shift: each question is asked of the drawing that comes so many later."""
    server = subprocess.Popen([TERN, "serve", "-m", model, "--port", "0", "-c", "512", "--cache-size", "0", *options], stderr=subprocess.PIPE, text=True)
    n = 0
    try:
        said = []
        while "http://" not in (line := server.stderr.readline()):
            said.append(line)
            assert line, said
        port = int(line.split("http://")[1].split(":")[1].split("/")[0].split()[0])
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=1200)
        for q in asked:
            data = pictures[names[(names.index(q["picture"]) + shift) % len(names)]]
            content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}, {"type": "text", "text": q["question"]}]
            c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 40}))
            r = json.loads(c.getresponse().read())
            if "was built without" in r.get("error", {}).get("message", ""):
                print(r["error"]["message"])
                sys.exit(77)
            n += r["choices"][0]["message"]["content"].strip() == q["answer"]
    finally:
        server.terminate()
        server.wait()
    return n


def main():
    subprocess.run([sys.executable, f"{HERE}/assemble.py", MODEL], check=True)
    subprocess.run([TERN, "pack", MODEL, "-o", PACKAGE, *(["--calib-tokens", "2048"] if FULL else ["--quick"])], check=True, capture_output=True)
    least = -(-9 * len(asked) // 10)
    assert len(asked) >= (120 if FULL else 40) and len(names) >= 10, "too few questions"
    for what, model, options in [
            ("floats", MODEL, ["--exact"]),
            ("encoder in INT8", MODEL, ["--encoder", "int8"]),
            ("package", PACKAGE, []),
            ("package, sparse attention", PACKAGE, ["--attention", "shadow", "--attention-threshold", "32"])]:
        n = right(model, *options)
        print(f"{what}: {n} of {len(asked)} right")
        assert n >= least, f"fewer than {least}"
    n = right(MODEL, "--exact", shift=1)
    print(f"asked of another drawing: {n} right")
    assert n < len(asked) / 3, "the answers do not come from the picture"


main()
