#!/usr/bin/env python3
"""Every path that the documents name exists: words in README.md and the like, in docs/ and in comments about docs/.

A word counts as a path when it begins with a folder of the tree (src/, docs/, tests/...), when it stands in backticks, has a
slash and ends as a file of ours does (`kernels/gemm_s8.h` is looked for in src/ too), or when a link points to it. Words with a
placeholder (NAME, <...>, *, {a,b}, $X) and folders that are made by commands are left alone."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Makefile", "CMakeLists.txt"]
TOPS = "src docs tests bench scripts tools include examples models share cmake man abi bindings".split()
MADE = ["models/tern-tiny-outliers", "build"]
ENDS = (".c", ".h", ".md", ".sh", ".py", ".svg", ".png", ".txt", ".json", ".jsonl", ".cmake", ".idl", ".1", ".abi")
WORD = re.compile(r"[A-Za-z0-9_.\-]+(?:/[A-Za-z0-9_.\-]+)+/?")


def files(folder, ends):
    for at, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(ends):
                yield os.path.relpath(os.path.join(at, name), ROOT)


def exists(path, page):
    return any(os.path.exists(os.path.join(ROOT, base, path)) for base in ("", "src", os.path.dirname(page)))


def words_of(text, only):
    """(position, word) of what looks like a path. only: folders that it must begin with."""
    for m in WORD.finditer(text):
        before, after = text[m.start() - 1 : m.start()], text[m.end() : m.end() + 1]
        word = m.group().rstrip(".")
        if before and before in "$~/*{}<>=:@" and before != ":" or after and after in "*{<$":
            continue  # a placeholder, a variable, a part of an address
        if re.search(r"(?:^|[/_.-])(?!README|MANIFEST|CMakeLists|LICENSE)[A-Z]{3,}(?:$|[/_.-])", word):
            continue
        if any(word.rstrip("/") == made or word.startswith(made + "/") for made in MADE):
            continue
        quoted = before == "`" or after == "`"
        if word.split("/")[0] in only or (only is TOPS and quoted and word.endswith(ENDS)):
            yield m.start(), word


def main():
    bad = 0
    for page in [p for p in PAGES if os.path.exists(os.path.join(ROOT, p))] + list(files("docs", ".md")):
        text = open(os.path.join(ROOT, page), encoding="utf-8").read()
        found = list(words_of(text, TOPS)) if page.endswith(".md") else list(words_of(text, ["docs"]))
        found += [(m.start(), m.group(1).split("#")[0]) for m in re.finditer(r"\]\(([^)\s]+)\)", text) if "://" not in m.group(1)]
        for at, word in found:
            if word and not exists(word, page):
                print(f"{page}:{text.count(chr(10), 0, at) + 1}: {word} does not exist")
                bad = 1
    for folder in "src include tests bench scripts examples tools cmake".split():
        for page in files(folder, (".c", ".h", ".sh", ".py", ".cmake")):
            if page == "scripts/paths.py":
                continue
            text = open(os.path.join(ROOT, page), encoding="utf-8", errors="replace").read()
            for at, word in words_of(text, ["docs"]):
                if word.endswith(".md") and not exists(word, page):
                    print(f"{page}:{text.count(chr(10), 0, at) + 1}: {word} does not exist")
                    bad = 1
    if not bad:
        print("lint: paths in the documents exist")
    return bad


sys.exit(main())
