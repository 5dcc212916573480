#!/usr/bin/env python3
"""Measures figures that the documents quote, and compares.

    scripts/figures.py [--tern build/tern] [NAME ...]     runs the commands of all figures, or of these
    scripts/figures.py --check                            only finds the figures in the documents (`make test` does)
    scripts/figures.py --list

tools/figures.txt has one block for each group of figures that come from one command:

    [name]
    file docs/record/figures.md
    says | float | {perplexity} | {exact} % |       a piece of that file, words apart by any white space
    runs $TERN eval ... --json                      by bash in the tree; $OUT is a folder that all blocks share
    after plain-pack                                a block whose files this one needs
    perplexity = j["perplexity"]                    j: what the last command printed, as JSON; text: the same as text;
    within perplexity .02                           size("x.tern"), read("x.json"): bytes of a file in $OUT, JSON in it

A quoted figure holds when what is measured differs from it by at most half a unit of its last digit and what `within`
allows, which is for other processors' rounding of floats. The document is the only place where the figure stands. Only
cheap figures that depend on no machine's speed are listed; all others carry their date, machine and command in the text.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = "tools/figures.txt"
NUMBER = r"[+\u2212-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"


class Trouble(Exception):
    pass


def read_list(text):
    blocks, b = [], None
    for n, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if line.startswith("[") and line.endswith("]"):
            b = {"name": line[1:-1], "file": None, "says": [], "runs": [], "after": [], "is": {}, "within": {}}
            blocks.append(b)
        elif b is None:
            raise Trouble(f"{LIST}:{n}: text in front of the first [name]")
        elif word == "file":
            b["file"] = rest.strip()
        elif word == "says":
            b["says"].append((b["file"], rest))
        elif word == "runs":
            b["runs"].append(rest)
        elif word == "after":
            b["after"] += rest.split()
        elif word == "within":
            name, by = rest.split()
            b["within"][name] = float(by)
        elif re.fullmatch(r"\w+", word) and rest.startswith("= "):
            b["is"][word] = rest[2:]
        else:
            raise Trouble(f"{LIST}:{n}: not understood: {line}")
    for b in blocks:
        names = {n for _, says in b["says"] for n in re.findall(r"{(\w+)}", says)}
        if names != set(b["is"]):
            raise Trouble(f"[{b['name']}]: figures {sorted(names)} are quoted and {sorted(b['is'])} measured")
    return blocks


def quoted(block, documents):
    """Figures of a block as the documents have them: {name: [(file, as written)]}."""
    found = {}
    for file, says in block["says"]:
        if file not in documents:
            with open(os.path.join(ROOT, file), encoding="utf-8") as f:
                documents[file] = f.read()
        pieces, names = [], []
        for piece in re.split(r"({\w+})", says):
            if re.fullmatch(r"{\w+}", piece):
                names.append(piece[1:-1])
                pieces.append(f"({NUMBER})")
            else:
                pieces.append(r"\s+".join(re.escape(w) for w in re.split(r"\s+", piece)))
        hits = re.findall("".join(pieces), documents[file])
        if len(hits) != 1:
            raise Trouble(f"[{block['name']}]: found {len(hits)} times in {file}, not once: {says}")
        for name, text in zip(names, [hits[0]] if isinstance(hits[0], str) else hits[0]):
            found.setdefault(name, []).append((file, text))
    return found


def half_unit(text):
    """Half of one in the last digit of a number as it is written."""
    _, dot, decimals = text.partition(".")
    return 0.5 * 10.0 ** -len(decimals) if dot else 0.5


def value_of(text):
    return float(text.replace(",", "").replace("\u2212", "-"))


def measure(block, tern, out):
    text = ""
    for command in block["runs"]:
        env = dict(os.environ, TERN=tern, OUT=out, LC_ALL="C.UTF-8")
        run = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode:
            raise Trouble(f"[{block['name']}]: status {run.returncode} of {command}\n{run.stderr.strip()[-400:]}")
        text = run.stdout

    def read(name):
        with open(os.path.join(out, name), encoding="utf-8") as f:
            return json.load(f)

    names = {"text": text, "read": read, "size": lambda name: os.path.getsize(os.path.join(out, name)), "re": re, "float": float}
    try:
        names["j"] = json.loads(text)
    except ValueError:
        names["j"] = None
    values = {}
    for name, how in block["is"].items():
        try:
            values[name] = float(eval(how, {"__builtins__": {}}, names))
        except Exception as e:
            raise Trouble(f"[{block['name']}]: {name} = {how}: {type(e).__name__}: {e}") from e
    return values


def with_needed(blocks, wanted):
    by_name, chosen = {b["name"]: b for b in blocks}, []

    def add(name):
        if name not in by_name:
            raise Trouble(f"no figures are called {name}")
        for before in by_name[name]["after"]:
            add(before)
        if by_name[name] not in chosen:
            chosen.append(by_name[name])

    for name in wanted or by_name:
        add(name)
    return chosen


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="tools/figures.txt says what is measured and how.")
    p.add_argument("names", nargs="*", metavar="NAME")
    p.add_argument("--tern", default="build/tern")
    p.add_argument("--check", action="store_true", help="only find the figures in the documents")
    p.add_argument("--list", action="store_true")
    o = p.parse_args()
    with open(os.path.join(ROOT, LIST), encoding="utf-8") as f:
        blocks = read_list(f.read())
    documents, wrong = {}, 0
    found = {b["name"]: quoted(b, documents) for b in blocks}
    n_figures = sum(len(places) for f in found.values() for places in f.values())
    if o.list:
        for b in blocks:
            print(b["name"], *(f"{n}={places[0][1]}" for n, places in found[b["name"]].items()))
        return 0
    if o.check:
        print(f"{n_figures} figures of {len(blocks)} commands are where tools/figures.txt says")
        return 0
    tern = os.path.abspath(o.tern)
    if not os.access(tern, os.X_OK):
        raise Trouble(f"{o.tern} is no program: run make, or name it with --tern")
    with tempfile.TemporaryDirectory() as out:
        for b in with_needed(blocks, o.names):
            is_now = measure(b, tern, out)
            for name, places in found[b["name"]].items():
                for file, text in places:
                    slack = half_unit(text) * 1.000001 + b["within"].get(name, 0)
                    holds = abs(is_now[name] - value_of(text)) <= slack
                    wrong += not holds
                    print(f"{b['name'] + ' ' + name:40} {text:>10} {is_now[name]:12.6g}  {'holds' if holds else 'DOES NOT HOLD, ' + file}", flush=True)
    print(f"{wrong} do not hold" if wrong else "all hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Trouble, OSError) as e:
        print(f"figures: {e}", file=sys.stderr)
        sys.exit(2)
