#!/usr/bin/env python3
"""What the program says of itself, elsewhere: the OPTIONS section of man/tern.1 and the reference of parameters in docs/reference/cli.md, which
are in the tree; a page a command (tern-run.1 and so on) and completions for shells, which the build writes.

    manpage.py TERN            rewrites them
    manpage.py --out FOLDER TERN   writes man/tern-run.1 and so on and share/completions below FOLDER
    manpage.py --check TERN    exits 1, with the first difference, if they are not what `tern help` says (tests/cli/man.sh)
"""
import os
import re
import subprocess
import sys

import completions

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "man", "tern.1")
DOC = os.path.join(ROOT, "docs", "reference", "cli.md")
SUB = {"rag": ("add", "ls", "rm")}
BEGIN, END = "<!-- parameters: written by scripts/manpage.py -->", "<!-- end of parameters -->"


def said(tern, *words):
    return subprocess.run([tern, *words], check=True, capture_output=True, text=True).stdout


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def listed(options):
    out = []
    for short, option, text in options:
        out += [".TP", ".B " + escaped(f"{short}, {option}" if short else option), escaped(text)]
    return out


def parameters(tern):
    """[(heading, [(name, help, range, default and commands)])]"""
    groups = []
    for line in said(tern, "help", "set").splitlines()[1:]:
        if re.match(r"\S.*:$", line):
            groups.append((line[:-1], []))
        elif m := re.match(r"  (\S+) +(.*)", line):
            groups[-1][1].append((m[1], m[2]))
        elif line:
            groups[-1][1][-1] += tuple(line.strip().split("; default: "))
    return groups


def page(tern, old):
    groups = parameters(tern)
    shared = {row[0]: row[1] for _, rows in groups for row in rows} | {"set": "", "help": ""}
    out = [".SH OPTIONS"]
    for name in re.findall(r"^  (\w+) ", said(tern, "--help"), re.M):
        for words in [(name,)] + [(name, s) for s in SUB.get(name, ())]:
            lines = said(tern, "help", *words).splitlines()
            options = [re.match(r"  (?:(-\w), |    )(--\S+(?: \S+)?) +(.*)", line) for line in lines]
            takes = any(m and m[2].startswith("--set ") for m in options)
            options = [m.groups() for m in options if m and not m[3].startswith(shared.get(m[2][2:].split(" ")[0], "\n"))]
            if options:
                out += [".SS " + escaped(" ".join(words)), escaped(lines[0].removeprefix("usage: "))] + listed(options)
            if takes:
                out += [".PP", "and the parameters below, as"] + [r".B \-\-set NAME=VALUE"]
    out += [".SH PARAMETERS", "Those of the first group are options as well",
            r"(\-\-temp 0); all are values of", r".BR \-\-set ."]
    for heading, rows in groups:
        out += [".SS " + escaped(heading)]
        for name, text, values, default in rows:
            out += [".TP", ".B " + escaped(name), escaped(f"{text}. {values[0].upper() + values[1:]}; default: {default}.")]
    first = old.index(".SH OPTIONS") if ".SH OPTIONS" in old else old.index(".SH ENVIRONMENT")
    return old[:first] + out + old[old.index(".SH ENVIRONMENT"):]


def doc(tern, old):
    out = [BEGIN, ""]
    for heading, rows in parameters(tern):
        out += [f"**{heading}.**", "", "| name | values | default | what it does |", "|---|---|---|---|"]
        for name, text, values, default in rows:
            default, _, commands = default.partition("; ")
            text += f" ({commands} only)" if commands else ""
            out.append(f"| `{name}` | {values} | {default} | {text} |")
        out.append("")
    return old[:old.index(BEGIN)] + [re.sub(r"(?<=\w)\|(?=\w)", ", ", line) for line in out] + old[old.index(END):]


def write_all(tern, folder):
    """The files that the build makes."""

    def says(*words):
        return said(tern, *words)

    files = completions.completions(says, parameters(tern)) | completions.pages(says, escaped, listed, lambda lines: any("--set " in line for line in lines))
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def main():
    check, tern = sys.argv[1:-1] == ["--check"], sys.argv[-1]
    if sys.argv[1] == "--out":
        write_all(tern, sys.argv[2])
        return
    written = {}
    for path, write in ((PAGE, page), (DOC, doc)):
        with open(path, encoding="utf-8") as f:
            written[path] = write(tern, f.read().splitlines())

    for path, new in written.items():
        with open(path, encoding="utf-8") as f:
            old = f.read().splitlines()
        name = os.path.relpath(path, ROOT)
        if check:
            for i, (a, b) in enumerate(zip(old + [""] * len(new), new)):
                if a != b:
                    sys.exit(f"{name}, line {i + 1}: {a!r}, but the program says {b!r}; python3 scripts/manpage.py build/tern brings it up to date")
            if len(old) != len(new):
                sys.exit(f"{name}: too many lines")
            continue
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(new) + "\n")


if __name__ == "__main__":
    main()
