#!/usr/bin/env python3
"""Fails when files of src/ call each other in a circle that is not listed below with its reason.

A node is a .c file with its header. An arrow leads to the file that defines a function (tn_..., tern_...) which the first
one names; a header's inline functions count as their .c file's. Files that stand in for others in small builds (no_*.c,
minimal.c) and the DSP's own program are left out.

    circles.py [FOLDER]     another tree than src/, with no circle allowed"""
import re
import sys
from pathlib import Path

# What is left, by the files of the circle, and why.
LEFT = {
    "attention/sparse_attn attention/sparse_baselines attention/sparse_heads attention/sparse_own attention/sparse_rows attention/sparse_tiles":
        "a selection per group of heads is made of selections: heads open, plan and close the one kind, which opens the other",
    "engine/engine engine/estimate engine/imports":
        "a file that is imported opens the package that it became",
    "model/experts model/forward model/model model/next model/streamed":
        "a model owns its streamed weights and its layer of guesses, both of which run the model's products",
    "params/options params/params":
        "options are set by the table of parameters, whose defaults are those of the options",
    "pictures/jpeg pictures/picture pictures/png pictures/webp":
        "one entry chooses the format; the formats make pictures",
    "prefill/experts prefill/outliers prefill/work":
        "the steps of a prompt call the work of outliers and experts, which ask what frame and parts they have",
    "quant/by_gram quant/cache quant/describe quant/pack quant/write":
        "the cache packs, and packing by gram keeps its sums in the cache",
    "server/images server/messages server/request server/request_chat":
        "one request is read field by field by four files",
    "server/models server/models_tell":
        "what is served and what is told of it share counters",
    "session/drafting session/session session/storing":
        "a model that drafts is a session of its own; a store teaches the drafters",
    "text/grammar/ending text/grammar/mask":
        "a grammar owns its endings, which follow the grammar's rules",
    "text/jinja/eval text/jinja/exec text/jinja/filters text/jinja/methods text/jinja/tests":
        "an interpreter: expressions call filters, filters call expressions",
}


def code(text):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def read(root):
    texts, where = {}, {}
    for p in sorted(root.rglob("*.[ch]")):
        if p.name.startswith("no_") or p.name == "minimal.c" or {"dsp", "windows"} & set(p.parts):
            continue
        node = str(p.relative_to(root).with_suffix(""))
        texts[p] = (node, code(p.read_text()))
        if p.suffix == ".c":
            for m in re.finditer(r"^(?!static)[a-zA-Z_][^;{}()#]*?\b(\w+)\([^;{}]*\)\s*\{", texts[p][1], re.M):
                where[m.group(1)] = node
    arrows = {node: {} for node, _ in texts.values()}
    for p, (node, text) in texts.items():
        if p.suffix == ".c":
            for name in sorted(set(re.findall(r"\b(?:tn|tern)_\w+", text))):
                to = where.get(name, node)
                if to != node:
                    arrows[node].setdefault(to, []).append(name)
    return arrows


def circles(arrows):
    """The strongly connected parts of more than one node (Tarjan)."""
    number, low, stack, found = {}, {}, [], []

    def visit(v):
        number[v] = low[v] = len(number)
        stack.append(v)
        for w in arrows[v]:
            if w not in number:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], number[w])
        if low[v] == number[v]:
            part = stack[stack.index(v):]
            del stack[stack.index(v):]
            if len(part) > 1:
                found.append(sorted(part))

    for v in sorted(arrows):
        if v not in number:
            visit(v)
    return sorted(found)


def main():
    sys.setrecursionlimit(10000)
    arrows = read(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "src")
    left = {} if len(sys.argv) > 1 else LEFT
    bad = 0
    now = circles(arrows)
    for part in now:
        # A circle that lost files is better than the one listed; one that gained a file is a new one.
        if any(set(part) <= set(known.split()) for known in left):
            continue
        bad = 1
        print(f"circles: {len(part)} files call each other in a circle:")
        for v in part:
            for w in sorted(set(arrows[v]) & set(part)):
                print(f"  {v}.c -> {w}.c: {', '.join(arrows[v][w][:6])}")
    for known in left:
        if not any(set(part) <= set(known.split()) for part in now):
            bad = 1
            print(f"circles: this one is gone, take it off the list: {known}")
    if not bad:
        print(f"lint: no circles of files but the {len(now)} that scripts/circles.py gives reasons for")
    return bad


sys.exit(main())
