"""Models that embed: vectors by the file's own pooling behind every address, scores of a reranker, and what such models refuse."""
import json
import math
import os

from served import Server, same

CASES = os.path.join(os.path.dirname(__file__), "..", "oracle", "embedding")


def told(name):
    with open(os.path.join(CASES, name, "vectors.json")) as f:
        return json.load(f)


def near(got, want, what):
    assert len(got) == len(want), what
    worst = max(abs(a - b) for a, b in zip(got, want))
    assert worst < 1e-4, f"{what}: off by {worst}"


def by_cosine(s):
    """What a model that embeds makes of documents, as a reranker would be asked."""
    texts = ["b", "a", "a long text of several words"]
    asked, *others = (d["embedding"] for d in s.json("/v1/embeddings", {"input": ["a", *texts]})[1]["data"])
    cosines = [sum(x * y for x, y in zip(asked, v)) / math.sqrt(sum(x * x for x in asked) * sum(y * y for y in v)) for v in others]
    r = s.json("/v1/rerank", {"query": "a", "documents": texts})[1]["results"]
    same([x["index"] for x in r], sorted(range(3), key=lambda i: -cosines[i]), "by the cosine of a model that embeds")
    near([x["relevance_score"] for x in r], sorted(cosines, reverse=True), "cosines")


def causal(name):
    """A model that could write, whose file says how its rows become one."""
    s = Server("-c", "512", "--set", "scheme=float", model=os.path.join(CASES, name, "model.gguf"))
    by_cosine(s)
    s.stop()


def vectors(name, pooling):
    s = Server("-c", "512", "--set", "scheme=float", model=os.path.join(CASES, name, "model.gguf"))
    for t in told(name):
        status, r = s.json("/v1/embeddings", {"input": [t["text"], "another"]})
        same(status, 200, r)
        near(r["data"][0]["embedding"], t["vector"], name)
        near(s.json("/embedding", {"content": t["ids"]})[1][0]["embedding"][0], t["vector"], "of tokens")
        near(s.json("/api/embed", {"input": [t["text"]]})[1]["embeddings"][0], t["vector"], "Ollama's")
        near(s.json("/v1/embeddings", {"input": t["text"], "pooling": pooling})[1]["data"][0]["embedding"], t["vector"], pooling)
    whole = json.loads(open(os.path.join(CASES, name, "vectors.json")).read())[1]["ids"]
    same(s.json("/v1/embeddings", {"input": (whole * 2)[:512]})[0], 200, "a text as long as the context")
    status, r = s.json("/v1/embeddings", {"input": (whole * 2)[:513]})
    same((status, r["error"]["code"], r["error"]["n_prompt_tokens"], r["error"]["n_ctx"]), (400, "context_length_exceeded", 513, 512), r)
    same(s.json("/v1/embeddings", {"input": ""})[1]["usage"]["prompt_tokens"], 2, "no text")
    for same_text in ({"prompt_string": t["text"]}, {"content": [{"type": "text", "text": t["text"][:3]}, {"type": "text", "text": t["text"][3:]}]}):
        near(s.json("/v1/embeddings", {"input": ["another", same_text]})[1]["data"][1]["embedding"], t["vector"], "an object")
    for bad in ({"content": "x"}, {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}, {}, [[]]):
        same(s.json("/v1/embeddings", {"input": bad})[0], 400, bad)
    # a vector for each token, as the last norm leaves it: together they are the mean
    rows = s.json("/embeddings", {"input": t["text"], "pooling": "none"})[1][0]["embedding"]
    same((len(rows), len(rows[0])), (len(t["ids"]), len(t["vector"])), "a vector for each token")
    mean = [sum(r[k] for r in rows) / len(rows) for k in range(len(rows[0]))]
    length = sum(x * x for x in mean) ** 0.5
    near([x / length for x in mean], s.json("/embeddings", {"input": t["text"], "pooling": "mean"})[1][0]["embedding"][0], "the mean of the rows")
    assert all(abs(sum(x * x for x in r) - 1) > 1e-3 for r in rows), "rows are not scaled"
    for path in ("/v1/embeddings", "/embeddings"):
        status, r = s.json(path, {"input": [t["text"]] * 2, "pooling": "none"})
        assert status == 400 and "POST /embeddings" in r["error"]["message"] if path[1] == "v" else [len(x["embedding"]) for x in r] == [len(rows)] * 2, r
    other = "last" if pooling == "cls" else "cls"
    status, r = s.json("/v1/embeddings", {"input": "a", "pooling": other})
    assert status == 400 and pooling in r["error"]["message"], r
    for bad in (1, [], {}, True, ["mean"]):
        for path in ("/v1/embeddings", "/embeddings"):
            for field in ("pooling", "encoding_format"):
                status, r = s.json(path, {"input": "a", field: bad})
                assert status == 400 and field in r["error"]["message"], (path, field, bad, r)
    same(s.json("/v1/embeddings", {"input": "a", "pooling": None, "encoding_format": None})[0], 200, "null")
    for path, body in (("/v1/completions", {"prompt": "a", "max_tokens": 2}), ("/completion", {"prompt": "a", "n_predict": 2}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}), ("/api/generate", {"prompt": "a", "stream": False})):
        status, r = s.json(path, body)
        message = r["error"] if isinstance(r["error"], str) else r["error"]["message"]
        assert 400 <= status < 502 and "embed" in message, (path, status, r)
    by_cosine(s)
    s.stop()


def tasks():
    """As Jina's own interface has it: the adapter of the task, the words that it puts in front, and none of either without it."""
    name = "jina-bert-v3"
    s = Server("-c", "512", "--set", "scheme=float", model=os.path.join(CASES, name, "hf"))
    bare = told(name)[0]
    with open(os.path.join(CASES, name, "tasks.json")) as f:
        every = json.load(f)
    for t in every:
        for path in ("/v1/embeddings", "/embeddings"):
            status, r = s.json(path, {"input": [t["bare"]], "task": t["task"]})
            same(status, 200, r)
            v = r["data"][0]["embedding"] if path[1] == "v" else r[0]["embedding"][0]
            near(v, t["vector"], f"{path}, {t['task']}")
        near(s.json("/v1/embeddings", {"input": t["ids"], "task": t["task"]})[1]["data"][0]["embedding"], t["vector"], "tokens have nothing in front")
        near(s.json("/v1/embeddings", {"input": [{"content": [{"type": "text", "text": t["bare"]}]}], "task": t["task"]})[1]["data"][0]["embedding"], t["vector"], "parts")
        near(s.json("/v1/embeddings", {"input": bare["text"]})[1]["data"][0]["embedding"], bare["vector"], "the next one without a task")
    near(s.json("/v1/embeddings", {"input": bare["text"], "task": None})[1]["data"][0]["embedding"], bare["vector"], "null")
    near(s.json("/v1/embeddings", {"input": bare["text"], "task": "none"})[1]["data"][0]["embedding"], bare["vector"], "none")
    for bad in ("retrieval", 1, ["separation"]):
        status, r = s.json("/v1/embeddings", {"input": "a", "task": bad})
        assert status == 400 and "task" in r["error"]["message"], (bad, r)
    listed = s.json("/lora-adapters")[1]
    same([x["task_name"] for x in listed], [t["task"] for t in every[::2]], "adapters")
    # what requests that name none are read with holds for vectors, too
    same(s.json("/lora-adapters", [{"id": 0, "scale": 1}])[0], 200, "set")
    near(s.json("/v1/embeddings", {"input": every[0]["ids"]})[1]["data"][0]["embedding"], every[0]["vector"], "an adapter that was set")
    same((listed[0]["prompt_prefix"], listed[0]["scale"]), ("Represent the query for retrieving evidence documents: ", 0), "the first")
    s.stop()


def scores(name):
    s = Server("-c", "512", "--set", "scheme=float", model=os.path.join(CASES, name, "model.gguf"))
    t = [x for x in told(name) if x["question"] == told(name)[0]["question"]]
    ask = {"query": t[0]["question"], "documents": [x["text"] for x in t]}
    want = sorted(([x["vector"][0], i] for i, x in enumerate(t)), reverse=True)
    for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"):
        status, r = s.json(path, ask)
        same((status, r["object"], [x["index"] for x in r["results"]]), (200, "list", [i for _, i in want]), path)
        near([x["relevance_score"] for x in r["results"]], [w for w, _ in want], path)
        same(r["usage"]["prompt_tokens"], sum(len(x["ids"]) for x in t), "tokens")
    same(len(s.json("/rerank", dict(ask, top_n=1))[1]["results"]), 1, "top_n")
    r = s.json("/rerank", {"query": ask["query"], "texts": ask["documents"], "return_text": True})[1]
    same(sorted(r[0]), ["index", "score", "text"], "the other form")
    for bad in ({"documents": ["a"]}, {"query": "a"}, {"query": "a", "documents": []}, {"query": "a", "documents": [1]}, {"query": 1, "documents": ["a"]}):
        same(s.json("/rerank", bad)[0], 400, bad)
    status, r = s.json("/v1/embeddings", {"input": "a"})
    assert status >= 400 and "scores" in r["error"]["message"], r
    s.stop()


def pooled():
    """What a request does not say, the server does."""
    s = Server("-c", "512", "--pooling", "none", model=os.path.join(CASES, "bert", "model.gguf"))
    t = told("bert")[0]
    same(len(s.json("/embeddings", {"input": t["text"]})[1][0]["embedding"]), len(t["ids"]), "none")
    # other forms have no place for that: OpenAI's can say another, Ollama's cannot and keeps the model's own
    own = s.json("/v1/embeddings", {"input": t["text"], "pooling": "cls"})[1]["data"][0]["embedding"]
    status, r = s.json("/v1/embeddings", {"input": t["text"]})
    assert status == 400 and "POST /embeddings" in r["error"]["message"], r
    near(s.json("/api/embed", {"input": [t["text"]]})[1]["embeddings"][0], own, "Ollama's form")
    same(s.json("/v1/embeddings", {"input": t["text"], "pooling": "none"})[0], 400, "none in OpenAI's form, asked for")
    same(len(s.json("/v1/embeddings", {"input": t["text"], "pooling": "cls"})[1]["data"]), 1, "another")
    s.stop()


pooled()
vectors("bert", "cls")
vectors("nomic-bert", "mean")
tasks()
causal("qwen3-embedding")
scores("bert-rank")
scores("qwen3-rerank")
scores("xlm-roberta-rank")
