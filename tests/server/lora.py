"""Adapters of the server: a request names those that it is answered with. What was read with others is never its prefix."""
import json
import os
import random
import struct
import subprocess
import threading

from served import CACHE as HERE, MODEL, TERN, Server, same


def adapter(name, seed):
    """A folder as PEFT writes it, of random pairs that change the model's answers."""
    with open(MODEL + "/config.json") as f:
        c = json.load(f)
    d = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    shapes = {"self_attn.q_proj": (c["num_attention_heads"] * d, c["hidden_size"]), "mlp.down_proj": (c["hidden_size"], c["intermediate_size"])}
    rng, head, data, rank = random.Random(seed), {}, bytearray(), 4
    for layer in range(c["num_hidden_layers"]):
        for part, (n, k) in shapes.items():
            for which, shape in (("A", (rank, k)), ("B", (n, rank))):
                v = struct.pack("<%df" % (shape[0] * shape[1]), *(rng.gauss(0, 0.1) for _ in range(shape[0] * shape[1])))
                head[f"base_model.model.model.layers.{layer}.{part}.lora_{which}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(v)]}
                data += v
    folder = f"{HERE.name}/{name}"
    os.mkdir(folder)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/adapter_model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(folder + "/adapter_config.json", "w") as f:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "target_modules": ["q_proj", "down_proj"]}, f)
    return folder


class Adapted(Server):
    def complete(self, prompt, lora=None, **more):
        status, v = self.json("/v1/completions", dict({"prompt": prompt, "max_tokens": 24, "temperature": 0}, **({"lora": lora} if lora is not None else {}), **more))
        assert status == 200, v
        return v["choices"][0]["text"], v["usage"].get("prompt_tokens_details", {}).get("cached_tokens")


PROMPT = "Once upon a time there was a small house by the sea. " * 8
one, two = adapter("one", 1), adapter("two", 2)
plain = Adapted()
base = plain.complete(PROMPT)[0]
plain.stop()

s = Adapted("--lora", f"{one}:0,second={two}:0")
same(s.json("/v1/models")[1]["data"][0]["adapters"], ["one", "second"], "the adapters' names")
same(s.complete(PROMPT)[0], base, "no adapter by itself")
first, cached = s.complete(PROMPT, "one")
assert first != base, "an adapter changes nothing"
same(cached, 0, "what was read without the adapter is no prefix of it")
second = s.complete(PROMPT, "second:0.8")[0]
assert second not in (first, base)
both = s.complete(PROMPT, "one:0.5,second:0.5")[0]
same(s.complete(PROMPT, "one"), (first, cached_again := s.complete(PROMPT, "one")[1]), "the same adapter again")
assert cached_again > 50, "what was read with an adapter is a prefix of it"
same(s.complete(PROMPT, "none")[0], base, "none")
same(s.complete(PROMPT, "one:0")[0], base, "a scale of 0")
same(s.complete(PROMPT, [{"id": 0, "scale": 1}])[0], first, "as llama.cpp's server has it")
same(s.complete(PROMPT, [{"id": 1, "scale": 0.8}])[0], second, "the same of another")
same(s.complete(PROMPT, [])[0], base, "an empty list")

# scales of requests that name none, as llama.cpp's server has them
def own(scales=None):
    status, v = s.json("/lora-adapters", scales)
    same(status, 200, "/lora-adapters")
    return v
same([(x["id"], x["scale"]) for x in own()], [(0, 0), (1, 0)], "the scales at first")
same(own([{"id": 1, "scale": 0.8}]), {"success": True}, "scales are set")
same([(x["id"], round(x["scale"], 3)) for x in own()], [(0, 0), (1, 0.8)], "the scales then")
same(s.complete(PROMPT)[0], second, "a request that names none")
same(s.complete(PROMPT, "one")[0], first, "one that does")
for wrong in ({"id": 0, "scale": 1}, [{"id": 2, "scale": 1}], [{"id": 0}], [3], "one"):
    status, v = s.json("/lora-adapters", wrong)
    same((status, "error" in v), (400, True), f"scales {wrong}")
same([(x["id"], round(x["scale"], 3)) for x in own()], [(0, 0), (1, 0.8)], "what was wrong changed nothing")
own([])
same(s.complete(PROMPT)[0], base, "an empty list: none")

got = {}
wanted = [(None, base), ("one", first), ("second:0.8", second), ("one:0.5,second:0.5", both)] * 3
def ask(i, lora):
    got[i] = s.complete(PROMPT, lora)[0]
threads = [threading.Thread(target=ask, args=(i, lora)) for i, (lora, _) in enumerate(wanted)]
for t in threads:
    t.start()
for t in threads:
    t.join()
for i, (lora, want) in enumerate(wanted):
    same(got[i], want, f"answer {i}, with {lora}, beside others")

for lora, words in [("nobody", "no adapter is called 'nobody'; there are one, second"), ("one:x", "no adapter is called"), ("one:9999999", "a scale is a number"),
                    ("one,one", "named twice"), ([{"id": 2, "scale": 1}], "lora[0]"), ([{"id": -1, "scale": 1}], "lora[0]"), ([{"id": 0}], "lora[0]"),
                    ([{"id": 0, "scale": 1}] * 20, "more than"), (3, "a text or a list"), ({}, "a text or a list")]:
    for path, body in [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                       ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3})]:
        status, v = s.json(path, dict(body, lora=lora))
        assert status == 400 and words in v["error"]["message"], (path, lora, v)
s.stop()

# conversations on disk belong to the adapters that the server has by itself
s = Adapted("--lora", one)
same(s.complete(PROMPT), (first, 0), "the adapter by itself; what another server kept is not its own")
same(s.complete(PROMPT, "none")[0], base, "and the model without it")
s.stop()
s = Adapted("--lora", one)
text, cached = s.complete(PROMPT)
same(text, first, "after a restart")
assert cached > 50, "the conversation was kept"
s.stop()
s = Adapted("--lora", one)
same(s.complete(PROMPT, "none"), (base, 0), "what the disk holds is of the adapter")
text, cached = s.complete(PROMPT)
assert (text, cached > 50) == (first, True), ("and is there still when it is asked for", text, cached)
s.stop()
assert not any("is lost" in x for x in s.lines), s.lines

# the command line: the same adapters, and what is wrong with them in one line
def run(*options):
    p = subprocess.run([TERN, "run", "-m", MODEL, "-p", PROMPT, "-n", "24", "--temp", "0", *options], capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr
assert first.strip() in run("--lora", one)[1], run("--lora", one)
assert base.strip() in run("--lora", one + ":0")[1]
code, _, err = run("--lora", HERE.name + "/nothing")
assert code != 0 and len(err.strip().splitlines()) == 1 and "nothing" in err, (code, err)
code, _, err = run("--lora", MODEL)
assert code != 0 and len(err.strip().splitlines()) == 1 and "adapter_config.json" in err, (code, err)
print("ok")
