#!/usr/bin/env python3
"""Do documents' questions find their passages? Questions that people wrote, beside plain BM25.

    bench/retrieval.py TERN FOLDER [--embed MODEL] [--rerank MODEL] [--json]
    bench/retrieval.py TERN PAIRS --source developers-reference [--embed MODEL] ...

FOLDER holds Debian's FAQ as its packages unpack it (debian-faq, debian-faq-de, debian-faq-ja; `apt-get download`, then `dpkg-deb -x`): in each
language about a hundred questions, each the title of a section that answers it. A section becomes a document without its title, so
no question stands in the text that answers it, except where the answer repeats it. All languages lie in one index.
With PAIRS, a file that tools/train/embedding.py wrote, the titles of one source are the questions: what is to be chosen is chosen there,
not on the FAQ. With --embed there are rows by words alone, by meaning alone (tern's vectors, compared here; MODEL must want no words in
front of a question) and by both, as tern fuses them.
With --rerank the passages that were found are also put in the order of that model, in a row of its own. Printed, for each language: how often the first passage, and one of the first five, is of the section that the question is the title of. Beside it
SQLite's FTS5 with BM25 over the same passages, any word of the question: as it comes (unicode61), with stems, and in trigrams.
"""
import argparse
import glob
import html
import json
import math
import operator
import os
import re
import sqlite3
import struct
import subprocess
import tempfile

SECTION = re.compile(r'<div class="section"><div class="titlepage"><div><div><h\d class="title"[^>]*><a id="([^"]*)"></a>(.*?)</h\d></div></div></div>', re.S)
LANGUAGES = {"en": "", "de": "de/", "ja": "ja/"}
OF_LANGUAGE = {"ja": re.compile("[\u3040-\u30ff\u4e00-\u9fff]"), "de": re.compile("(?i)\\b(wie|was|ich|ist|die|der|das|welche|warum|wo|wer|kann|gibt|debian)\\b|[äöüß]"), "en": re.compile("")}


def plain(s):
    s = re.sub(r"(?s)<div class=\"toc\">.*?</dl></div>", " ", s)
    s = re.sub(r"</(p|li|pre|dt|dd|div|h\d)>", "\n", s)
    return re.sub(r"\n\s*\n+", "\n\n", html.unescape(re.sub(r"<[^>]+>", "", s))).strip()


def sections(folder, language):
    """(question, text) of each section whose title asks something and whose text says something."""
    for path in sorted(glob.glob(f"{folder}/usr/share/doc/debian/FAQ/{LANGUAGES[language]}*.{language}.html")):
        page = open(path, encoding="utf-8").read()
        found = list(SECTION.finditer(page))
        for i, m in enumerate(found):
            title = re.sub(r"^[\d.]+\s*", "", plain(m[2])).strip()
            text = plain(page[m.end():found[i + 1].start() if i + 1 < len(found) else page.find('<div class="navfooter"', m.end())])
            if re.search("[?？]", title) and OF_LANGUAGE[language].search(title) and len(text) > 80:
                yield title, text


def pairs(path, language, source):
    for line in open(path, encoding="utf-8"):
        of, where, title, text = json.loads(line)
        if of == language and where == source:
            yield title, text


def meaning(tern, model, db, questions, env):
    """The passages' angles to a question, from the centre of all passages."""
    rows = db.execute("SELECT document.path, vector.data FROM vector JOIN passage ON vector.passage = passage.id"
                      " JOIN document ON passage.document = document.id").fetchall()
    vectors = [struct.unpack(f"<{len(data) // 2}e", data) for _, data in rows]
    centre = [sum(column) / len(rows) for column in zip(*vectors)]

    def from_centre(v):
        v = [x - c for x, c in zip(v, centre)]
        size = math.sqrt(sum(x * x for x in v)) or 1
        return [x / size for x in v]
    vectors = [from_centre(v) for v in vectors]
    told = subprocess.run([tern, "embed", "-m", model], input="".join(re.sub(r"\s+", " ", q) + "\n" for q in questions), check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env).stdout.splitlines()
    asked = {q: from_centre(json.loads(line)) for q, line in zip(questions, told)}

    def search(question):
        angles = [sum(map(operator.mul, asked[question], v)) for v in vectors]
        return [rows[i][0] for i in sorted(range(len(rows)), key=angles.__getitem__)[:-6:-1]]
    return search


class Agent:
    """tern mcp, which searches without a model."""

    def __init__(self, tern, rerank, env):
        self.p = subprocess.Popen([tern, "mcp", "--rerank", rerank], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
        self.n = 0
        self.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}})

    def ask(self, method, params):
        self.n += 1
        self.p.stdin.write(json.dumps({"jsonrpc": "2.0", "id": self.n, "method": method, "params": params}) + "\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())["result"]

    def search(self, question):
        r = self.ask("tools/call", {"name": "search_documents", "arguments": {"query": question, "limit": 5}})
        return [p["path"] for p in r.get("structuredContent", {}).get("passages", [])]


def fts5(passages, tokenizer):
    db = sqlite3.connect(":memory:")
    db.execute(f"CREATE VIRTUAL TABLE f USING fts5(path UNINDEXED, text, tokenize='{tokenizer}')")
    db.executemany("INSERT INTO f VALUES (?, ?)", passages)

    def search(question):
        words = re.findall(r"\w+", question)
        if tokenizer == "trigram":
            words = [w[i:i + 3] for w in words for i in range(max(len(w) - 2, 1))]
        query = " OR ".join(f'"{w}"' for w in words)
        return [p for p, in db.execute("SELECT path FROM f WHERE f MATCH ? ORDER BY bm25(f) LIMIT 5", (query,))] if query else []
    return search


def main():
    a = argparse.ArgumentParser()
    a.add_argument("tern")
    a.add_argument("folder")
    a.add_argument("--source")
    a.add_argument("--embed", default="none")
    a.add_argument("--rerank", default="none")
    a.add_argument("--json", action="store_true")
    a = a.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        env = {**os.environ, "HOME": tmp, "XDG_DATA_HOME": tmp + "/data", "XDG_CACHE_HOME": tmp + "/cache"}
        asked = []
        for language in LANGUAGES:
            for i, (question, text) in enumerate(pairs(a.folder, language, a.source) if a.source else sections(a.folder, language)):
                path = f"{tmp}/docs/{language}/{i:03}.txt"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text + "\n")
                asked.append((language, question, path))
        words = {**env, "XDG_DATA_HOME": tmp + "/words"}
        for where, model in ((words, "none"),) + (((env, a.embed),) if a.embed != "none" else ()):
            subprocess.run([a.tern, "rag", "add", tmp + "/docs", "--embed", model], check=True, env=where, stdout=subprocess.DEVNULL)
        db = sqlite3.connect(tmp + "/words/tern/store.db")
        passages = db.execute("SELECT document.path, passage.text FROM passage JOIN document ON passage.document = document.id").fetchall()
        agents = [Agent(a.tern, "none", words)]
        ways = {"tern, by words": agents[0].search}
        if a.embed != "none":
            agents.append(Agent(a.tern, "none", env))
            vectors = sqlite3.connect(tmp + "/data/tern/store.db")
            ways["by meaning"] = meaning(a.tern, a.embed, vectors, [question for _, question, _ in asked], env)
            ways["by words and meaning"] = agents[1].search
        if a.rerank != "none":
            agents.append(Agent(a.tern, a.rerank, env if a.embed != "none" else words))
            ways[list(ways)[-1] + ", reranked"] = agents[-1].search
        ways |= {"FTS5, BM25": fts5(passages, "unicode61"),
                "FTS5, BM25, stems": fts5(passages, "porter unicode61"), "FTS5, BM25, trigrams": fts5(passages, "trigram")}
        told = {}
        for name, search in ways.items():
            hits = {language: [0, 0, 0] for language in LANGUAGES}
            for language, question, path in asked:
                found = search(question)
                h = hits[language]
                h[0] += 1
                h[1] += found[:1] == [path]
                h[2] += path in found
            told[name] = {k: {"questions": n, "first": first, "of_five": five} for k, (n, first, five) in hits.items()}
        for x in agents:
            x.p.stdin.close()
            x.p.wait()
    if a.json:
        return print(json.dumps(told, indent=1))
    print(f"{len(asked)} questions, {len(passages)} passages of {len(asked)} documents; first passage right, one of five right")
    print("|" + " " * 22 + "|" + "".join(f" {k} ({told['FTS5, BM25'][k]['questions']}) |" for k in LANGUAGES) + " all |")
    for name, by in told.items():
        first, five = sum(v["first"] for v in by.values()), sum(v["of_five"] for v in by.values())
        print(f"| {name:20} |" + "".join(f" {v['first']}, {v['of_five']} |" for v in by.values()) + f" {first}, {five} |")


if __name__ == "__main__":
    main()
