"""Log-probabilities of prompts: `echo` with `logprobs`, as evaluation programs read them."""
import json
import math
import os
import re
import subprocess

from served import MODEL, TERN, Server, same

EVAL = os.path.join(MODEL, "eval")
TEXT = open(os.path.join(EVAL, "english.txt"), encoding="utf-8").read()
QUICK = "TERN_TEST_QUICK" in os.environ  # under a sanitizer
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def choices(s, **ask):
    status, r = s.json("/v1/completions", dict({"echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}, **ask))
    same(status, 200, r)
    return r


def scored(s, prompt, **ask):
    r = choices(s, prompt=prompt, **ask)
    same(len(r["choices"]), 1, "one answer")
    lists = r["choices"][0]["logprobs"]
    same({len(lists[k]) for k in LISTS}, {r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"]}, "an entry each")
    return r["choices"][0]["text"], lists


def tokens(s, text):
    return s.json("/tokenize", {"content": text})[1]["tokens"]


def written(s, ids, i, top=0):
    """What token i has where it is written by force after those before it; that goes through the steps of answers, and not through prompts."""
    r = s.json("/v1/completions", {"prompt": ids[:i], "max_tokens": 1, "temperature": 0, "logprobs": top, "logit_bias": {str(ids[i]): 10000}})[1]
    return r["choices"][0]["logprobs"]["content"][0]


def right(s):
    """The bits that each token has where it is written, in every chunk of a prompt and at their edges."""
    n = 300 if QUICK else 700
    ids = tokens(s, TEXT)[:n]
    text, lists = scored(s, ids, logprobs=5)
    same(len(ids), n, "long enough for several chunks")
    same((lists["token_logprobs"][0], lists["top_logprobs"][0]), (None, None), "nothing comes before the first")
    for i in [i for i in (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, n - 2, n - 1) if i < n]:
        t = written(s, ids, i, 5)
        same(t["id"], ids[i], "written by force")
        same(lists["token_logprobs"][i], t["logprob"], "token %d" % i)
        want = {x["token"]: x["logprob"] for x in reversed(t["top_logprobs"])} | {t["token"]: t["logprob"]}
        same(lists["top_logprobs"][i], want, "the likeliest at token %d" % i)
    # once more where the prompt is known: what is kept has no log-probabilities
    assert scored(s, ids, logprobs=5) == (text, lists), "again"
    same(s.json("/v1/completions", {"prompt": ids, "max_tokens": 1})[1]["usage"]["prompt_tokens_details"]["cached_tokens"], n, "what was read is kept, with its logits")


def perplexity(s):
    """The perplexity that tern eval finds for the first window of a text."""
    out = subprocess.run([TERN, "eval", MODEL, "--task", "ppl", "--data", os.path.join(EVAL, "english.txt"), "-c", "256", "--limit", "1", "--json"], capture_output=True, text=True, check=True)
    want = json.loads(out.stdout)
    same(want["tokens"], 255, want)
    got = math.exp(-sum(scored(s, tokens(s, TEXT)[:256])[1]["token_logprobs"][1:]) / 255)
    assert abs(got / want["perplexity"] - 1) < 1e-6, (got, want)


def offsets(s):
    """Texts are told as they were sent, and tokens begin where their characters do."""
    for prompt in ("Once upon a time", "Éva dît: “naïve”, \u4f60\u597d \U0001f600!", " blank", "a", "<|im_start|>user\nHi<|im_end|>\n"):
        text, lists = scored(s, prompt)
        same(text, prompt, "as it was sent")
        at = 0
        for token, offset in zip(lists["tokens"], lists["text_offset"]):
            if "\ufffd" in token:  # a part of a character
                continue
            same(text[offset:offset + len(token)], token, (prompt, offset))
            assert offset >= at, lists
            at = offset
        ids = tokens(s, prompt)
        same(len(lists["tokens"]), len(ids), prompt)
        same(scored(s, ids)[1]["token_logprobs"], lists["token_logprobs"], "the same by its numbers")


def forms(s):
    """Texts and lists of numbers, one and many, and answers after them."""
    a, b = "Once upon a time", "The owl said"
    one, two = scored(s, a), scored(s, b)
    for prompts in ([a, b], [tokens(s, a), tokens(s, b)], [a, tokens(s, b)]):
        r = choices(s, prompt=prompts)
        same([(c["index"], c["text"], c["logprobs"]) for c in r["choices"]], [(0,) + one, (1,) + two], "several prompts")
        same(r["usage"]["completion_tokens"], 0, "no answers")
    r = choices(s, prompt=[a, b], n=2)["choices"]
    same([(c["text"], c["logprobs"]) for c in r], [one, one, two, two], "several answers each")
    same([c["finish_reason"] for c in r], ["length"] * 4, "the limit is reached")
    text, lists = scored(s, a, max_tokens=5)
    plain = s.json("/v1/completions", {"prompt": a, "max_tokens": 5, "temperature": 0, "logprobs": 1})[1]["choices"][0]
    same(text, a + plain["text"], "and goes on")
    n = len(one[1]["tokens"])
    for k in LISTS[:3]:
        same(lists[k], one[1][k] + plain["logprobs"][k], k)
    same(lists["text_offset"], one[1]["text_offset"] + [len(a) + x for x in plain["logprobs"]["text_offset"]], "offsets go on")
    same(lists["content"], plain["logprobs"]["content"], "llama.cpp's list has the answer alone")
    for top in (0, 1, 20):
        lists = scored(s, a, logprobs=top)[1]
        same(lists["token_logprobs"], one[1]["token_logprobs"], "with %d of the likeliest" % top)
        for t, v in zip(lists["top_logprobs"][1:], lists["token_logprobs"][1:]):
            assert v in t.values() and max(1, top) <= len(t) <= top + 1, t
    same(scored(s, a, temperature=1.5, seed=3, logit_bias={"5": 3}, presence_penalty=1)[1], one[1], "what shapes the answer does not change the prompt")
    assert n == len(tokens(s, a))


def streamed(s):
    for more in ({"max_tokens": 0}, {"max_tokens": 4}, {"max_tokens": 4, "prompt": ["Once upon", "The owl"]}):
        ask = dict({"prompt": "Once upon a time", "echo": True, "logprobs": 2, "temperature": 0}, **more)
        whole = s.json("/v1/completions", ask)[1]["choices"]
        events = [c for e in s.events("/v1/completions", ask) for c in e["choices"]]
        for i, want in enumerate(whole):
            mine = [c for c in events if c["index"] == i]
            same("".join(c["text"] for c in mine), want["text"], "the text")
            for k in LISTS:
                same([x for c in mine for x in (c.get("logprobs") or {k: []})[k]], want["logprobs"][k], k)


def in_chunks(s):
    """A prompt whose log-probabilities are wanted is read in as many turns as any, so that others go on between."""
    n = 600 if QUICK else 1500
    ids, turns = tokens(s, TEXT)[:n], []
    for prompt, more in ((ids, {}), (ids[::-1], {"echo": True, "logprobs": 0})):
        events = s.events("/v1/completions", dict({"prompt": prompt, "max_tokens": 1, "return_progress": True}, **more))
        turns.append([e["prompt_progress"]["processed"] for e in events if "prompt_progress" in e])
    same(turns[0], turns[1], "turns")
    assert len(turns[0]) > 2 and turns[0][-1] == n, turns


def bounded(other):
    """Logits of a prompt are not held: 1,500 positions of 4,096 tokens would take 23 MiB."""
    if re.search("[at]san", os.path.realpath(TERN)) or os.environ.get("TERN_EMULATED"):
        return
    ids = tokens(other, TEXT)
    s = Server("--cache-size", "0", "-c", "2048", "--sessions", "1")

    def most():
        with open("/proc/%d/status" % s.p.pid) as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1))
    s.json("/v1/completions", {"prompt": ids[:1500], "max_tokens": 1})
    before = most()
    first = scored(s, ids[100:1600], logprobs=5)
    assert most() - before < 8 << 10, (before, most())
    assert scored(s, ids[100:1600], logprobs=5) == first, "once more on the session that knows it"
    s.stop()


def ended(s):
    """An answer that ends at once has an entry all the same: evaluation programs leave out the last one."""
    a = "Once upon a time"
    end = tokens(s, "<|im_end|>")
    same(len(end), 1, end)
    r = choices(s, prompt=a, max_tokens=1, logit_bias={str(end[0]): 10000})
    c, lists = r["choices"][0], r["choices"][0]["logprobs"]
    same((c["text"], c["finish_reason"], len(lists["tokens"])), (a, "stop", len(tokens(s, a)) + 1), c)
    same({len(lists[k]) for k in LISTS}, {len(lists["tokens"])}, "an entry each")
    likeliest = scored(s, a, max_tokens=1)[1]["token_logprobs"][-1]
    assert lists["token_logprobs"][-1] < likeliest == max(lists["top_logprobs"][-1].values()), lists
    same(s.json("/v1/completions", {"prompt": a, "max_tokens": 1, "logprobs": 1, "logit_bias": {str(end[0]): 10000}})[1]["choices"][0]["logprobs"]["tokens"], [], "without the prompt's there is none")


def evaluated(s):
    """The way of lm-evaluation-harness (local-completions): choices of a task by their log-probabilities. The choice is tern eval's."""
    data = os.path.join(EVAL, "choice.jsonl")
    n = 2 if QUICK else 6
    out = subprocess.run([TERN, "eval", MODEL, "--task", "choice", "--data", data, "--limit", str(n), "--items", "--json"], capture_output=True, text=True, check=True)
    want, got, gold = json.loads(out.stdout), [], []
    with open(data, encoding="utf-8") as f:
        items = [json.loads(f.readline()) for _ in range(n)]
    for item in items:
        before = len(tokens(s, item["query"]))
        prompts = [tokens(s, item["query"] + c) for c in item["choices"]]
        r = choices(s, model="tern-tiny", prompt=prompts, max_tokens=1, seed=1234)
        sums = []
        for c, p in zip(sorted(r["choices"], key=lambda c: c["index"]), prompts):
            lp, top = c["logprobs"]["token_logprobs"][before:-1], c["logprobs"]["top_logprobs"][before:-1]
            same(len(lp), len(p) - before, "the last entry is the answer's")
            sums.append((sum(lp), all(x == max(t.values()) for x, t in zip(lp, top))))
        per_byte = [x / len(c.encode()) for (x, _), c in zip(sums, item["choices"])]
        right = item["gold"]
        got.append(int(per_byte.index(max(per_byte)) == right))
        gold.append((sums[right][0], len(prompts[right]) - before))
        text = s.json("/v1/completions", {"prompt": item["query"], "max_tokens": gold[-1][1], "temperature": 0})[1]["choices"][0]["text"]
        same(sums[right][1], text == item["choices"][right], "what is likeliest all along is what is written")
    same(got, want["items_right"], want)
    mean = math.exp(-sum(x for x, _ in gold) / sum(k for _, k in gold))
    assert abs(mean / want["answer_perplexity"] - 1) < 1e-6, (mean, want)


def limits(s):
    n_ctx = s.json("/props")[1]["default_generation_settings"]["n_ctx"]
    ids = (tokens(s, TEXT) * 8)[:n_ctx + 1]
    same(len(scored(s, ids[:n_ctx])[1]["tokens"]), n_ctx, "a prompt as long as the context, of which nothing is written")
    status, e = s.json("/v1/completions", {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0})
    same((status, e["error"]["code"]), (400, "context_length_exceeded"), e)
    status, e = s.json("/v1/completions", {"prompt": ids[:n_ctx], "echo": True, "logprobs": 1, "max_tokens": 1})
    same((status, e["error"]["code"]), (400, "context_length_exceeded"), "no room for an answer")
    for more, words in (({"logprobs": 21}, "from 0 to 20"), ({"logprobs": -1}, "'logprobs'"), ({"logprobs": True}, "'logprobs'"), ({"echo": "yes"}, "'echo'"), ({"post_sampling_probs": True}, "a prompt is not drawn"),
                        ({"suffix": "end"}, "'suffix'"), ({"prompt": ""}, "the prompt is empty"), ({"prompt": []}, "'prompt'"), ({"prompt": [10**8]}, "which the model has not")):
        status, e = s.json("/v1/completions", dict({"prompt": "Once upon", "echo": True, "logprobs": 1, "max_tokens": 0}, **more))
        assert status == 400 and words in e["error"]["message"], (more, e)
    status, e = s.json("/completion", {"prompt": "Once upon", "echo": True, "n_probs": 1, "n_predict": 0})
    assert status == 400 and "/v1/completions has them" in e["error"]["message"], e
    # as many numbers as replies may hold: 128 answers share them
    for stream in (False, True):
        status, e = s.json("/v1/completions", {"prompt": ids[:600], "n": 128, "echo": True, "logprobs": 20, "max_tokens": 0, "stream": stream})
        assert status == 400 and "ask for fewer at once" in e["error"]["message"], status
    same(s.json("/v1/completions", {"prompt": "Once", "max_tokens": 1})[0], 200, "and goes on")


server = Server("--cache-size", "0", "-c", "640" if QUICK else "2048")
for check in (right, perplexity, offsets, forms, streamed, in_chunks, bounded, ended, evaluated, limits):
    check(server)
    print(check.__name__, "ok", flush=True)
server.stop()
