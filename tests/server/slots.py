"""Sessions that clients name by number: POST /slots/N?action=save|restore|erase, and id_slot. Answers are those of a server that never saw them."""
import glob
import json
import os
import stat
import sys
import threading

from served import MODEL, Server, same

FOLDER = os.path.join(sys.argv[3], "slots")
FRANCE, GERMANY = "What is the capital of France? It is", "What is the capital of Germany? It is"
HYBRID = MODEL.endswith(".gguf")


def complete(s, prompt, slot=None, **more):
    body = dict({"prompt": prompt, "n_predict": 12, "temperature": 0, "id_slot": slot}, **more)
    status, r = s.json("/completion", {k: v for k, v in body.items() if v is not None})
    same(status, 200, r)
    if slot is not None:
        same(r["id_slot"], slot, "the slot that answered")
    return r["content"], r["timings"]["prompt_n"]


def act(s, slot, action, status=200, **body):
    got, r = s.json(f"/slots/{slot}?action={action}", body)
    same(got, status, r)
    return r


def refusals(s):
    for slot, action, body, word in [(0, "save", {}, "filename"), (0, "save", {"filename": 7}, "filename"), (0, "save", {"filename": "../secret"}, "without a folder"),
                                     (0, "restore", {"filename": "/etc/passwd"}, "without a folder"), (0, "save", {"filename": ".hidden"}, "dot"), (0, "save", {"filename": ""}, "name"),
                                     (0, "save", {"filename": "a" * 201}, "name"), (0, "save", {"filename": "a\nb"}, "name"), (99, "save", {"filename": "x"}, "no slot 99"),
                                     ("x", "erase", {}, "not the number"), ("-1", "erase", {}, "not the number"), ("1/2", "erase", {}, "not the number"), (0, "drop", {}, "action"),
                                     (3, "save", {"filename": "empty"}, "holds nothing")]:
        r = act(s, slot, action, 400, **body)
        assert word in r["error"]["message"] and FOLDER not in r["error"]["message"], r
    r = s.json("/slots/0?action=restore", {"filename": "absent"})
    assert r[0] == 404 and "absent" in r[1]["error"]["message"] and FOLDER not in r[1]["error"]["message"], r
    same(s.ask("GET", "/slots/0?action=erase")[0], 405, "a slot that is read")
    same(s.json("/slots/0?action=save", b"{")[0], 400, "a body that is no JSON")
    for body, word in [({"id_slot": 4}, "no slot 4"), ({"id_slot": "a"}, "id_slot"), ({"id_slot": 1.5}, "id_slot")]:
        status, r = s.json("/v1/completions", dict({"prompt": "a", "max_tokens": 1}, **body))
        assert status == 400 and word in r["error"]["message"], r
    assert not os.listdir(FOLDER), os.listdir(FOLDER)


def saved(s, want):
    """As llama.cpp's own test of these addresses has it."""
    text, n = complete(s, FRANCE, 1)
    same(text, want[FRANCE], "a slot that is named")
    kept = act(s, 1, "save", filename="one.bin")
    file = os.path.join(FOLDER, "one.bin")
    same((kept["id_slot"], kept["filename"], kept["n_written"]), (1, "one.bin", os.path.getsize(file)), kept)
    same(kept["n_saved"], n + 12 - 1, "what is read: the last token of an answer that a limit ends is not")
    assert kept["timings"]["save_ms"] > 0, kept
    same(stat.S_IMODE(os.stat(file).st_mode), 0o600, "whose file it is")
    text, less = complete(s, GERMANY, 1)
    same(text, want[GERMANY], "what goes on otherwise")
    assert HYBRID or less < n, "the beginning was read again"
    back = act(s, 0, "restore", filename="one.bin")
    same((back["n_restored"], back["n_read"]), (kept["n_saved"], kept["n_written"]), back)
    same(complete(s, GERMANY, 0), (want[GERMANY], less), "a session that was restored: its own, and no copy of the other one's")
    text, again = complete(s, GERMANY, 1)
    same((text, again < 2), (want[GERMANY], True), "the other one")
    same(act(s, 1, "save", filename="one.bin")["n_saved"], act(s, 0, "save", filename="zero.bin")["n_saved"], "the same conversation twice")
    assert act(s, 1, "erase")["n_erased"] > 0
    same(act(s, 1, "erase")["n_erased"], 0, "nothing is left")
    same(complete(s, FRANCE, 1), (want[FRANCE], n), "after it was erased, all is read again")


def damaged(s, want):
    file = os.path.join(FOLDER, "one.bin")
    whole = open(file, "rb").read()
    for bytes_, what in [(whole[: len(whole) // 2], "half"), (whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], "a bit"), (b"", "nothing"), (b"TERNSTA" + b"\xff" * 4000, "noise")]:
        open(file, "wb").write(bytes_)
        status, r = s.json("/slots/2?action=restore", {"filename": "one.bin"})
        assert status == 400 and FOLDER not in json.dumps(r), (what, status, r)
        same(complete(s, FRANCE, 2)[0], want[FRANCE], what)
    open(file, "wb").write(b"somebody's own")
    status, r = s.json("/slots/1?action=save", {"filename": "one.bin"})
    assert status >= 400 and open(file, "rb").read() == b"somebody's own", (status, r)


def waits(s, want):
    """A session that answers is waited for, and nobody waits with those who want it."""
    out = {}

    def ask(name, slot, n):
        out[name] = complete(s, FRANCE, slot, n_predict=n, ignore_eos=True)[0]

    long = threading.Thread(target=ask, args=("long", 2, 900))
    long.start()
    busy = []
    while long.is_alive() and not busy:
        busy = [x["id"] for x in s.json("/slots")[1] if x["is_processing"]]
    assert busy in ([2], []), busy  # none: it was done before anybody looked
    other = threading.Thread(target=ask, args=("other", 0, 12))
    other.start()
    file = act(s, 2, "save", filename="after.bin")  # nobody else has been there since
    assert file["n_saved"] >= 900, ("it was saved in the middle of the answer", file)
    several = [threading.Thread(target=ask, args=(f"same{i}", 2, 12)) for i in range(3)]
    for t in several:
        t.start()
    for t in [long, other, *several]:
        t.join()
    same([out.pop("long")[: len(want[FRANCE])], *out.values()], [want[FRANCE]] * 5, "each has its answer")


def one_after_another(s, want):
    """Several answers of one session, twice: the first has all of the prompt to read, the others none."""
    for _ in range(2):
        status, r = s.json("/v1/completions", {"prompt": FRANCE, "max_tokens": 12, "temperature": 0, "n": 3, "id_slot": 1})
        same((status, [c["text"] for c in r["choices"]]), (200, [want[FRANCE]] * 3), r)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for f in glob.glob(FOLDER + "/*"):
        os.unlink(f)
    s = Server("-c", "1024")
    r = act(s, 0, "save", 501, filename="x")
    assert r["error"]["type"] == "not_supported_error" and "--slot-save-path" in r["error"]["message"], r
    same(act(s, 0, "erase")["n_erased"], 0, "erasing wants no folder")
    s.stop()
    want = {}
    for prompt in (FRANCE, GERMANY):  # each by a server that knows nothing
        s = Server("-c", "1024", "--cache-size", "0")
        want[prompt] = complete(s, prompt)[0]
        s.stop()
    s = Server("-c", "1024", "--sessions", "4", "--slot-save-path", FOLDER)
    refusals(s)
    saved(s, want)
    waits(s, want)
    one_after_another(s, want)
    s.stop()
    s = Server("-c", "1024", "--sessions", "4", "--cache-size", "0", "--slot-save-path", FOLDER)  # another process
    act(s, 3, "restore", filename="one.bin")
    same(complete(s, GERMANY, 3)[0], want[GERMANY], "after a restart")
    damaged(s, want)
    s.stop()
    print("ok")


main()
