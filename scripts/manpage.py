#!/usr/bin/env python3
"""The OPTIONS section of man/tern.1, from what the program says itself.

    manpage.py TERN            rewrites it
    manpage.py --check TERN    exits 1, with the first difference, if it is not what --help says (tests/cli/man.sh)
"""
import os
import re
import subprocess
import sys

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "man", "tern.1")
SUB = {"rag": ("add", "ls", "rm")}


def said(tern, *words):
    return subprocess.run([tern, *words, "--help"], check=True, capture_output=True, text=True).stdout


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def listed(options):
    out = []
    for short, option, text in options:
        out += [".TP", ".B " + escaped(f"{short}, {option}" if short else option), escaped(text)]
    return out


def section(tern):
    commands = []
    for name in re.findall(r"^  (\w+) ", said(tern), re.M):
        for words in [(name,)] + [(name, s) for s in SUB.get(name, ())]:
            lines = said(tern, *words).splitlines()
            options = [re.match(r"  (?:(-\w), |    )(--\S+(?: \S+)?) +(.*)", line) for line in lines]
            options = [m.groups() for m in options if m and m[2] != "--help"]
            if options:
                commands.append((" ".join(words), lines[0].removeprefix("usage: "), options))
    open_models = [c for c in commands if any(o[1].startswith("--npu ") for o in c[2])]
    shared = [o for o in open_models[0][2] if all(o in c[2] for c in open_models)]
    out = [".SH OPTIONS", ".SS " + escaped(", ".join(c[0] for c in open_models)), "All of them take"] + listed(shared)
    for name, usage, options in commands:
        out += [".SS " + escaped(name), escaped(usage)]
        if (name, usage, options) in open_models:
            out += [".br", "What is listed above, and"]
            options = [o for o in options if o not in shared]
        out += listed(options)
    return out


def main():
    check, tern = sys.argv[1:-1] == ["--check"], sys.argv[-1]
    with open(PAGE, encoding="utf-8") as f:
        old = f.read().splitlines()
    first = old.index(".SH OPTIONS") if ".SH OPTIONS" in old else old.index(".SH ENVIRONMENT")
    new = old[:first] + section(tern) + old[old.index(".SH ENVIRONMENT"):]
    if check:
        for i, (a, b) in enumerate(zip(old + [""] * len(new), new)):
            if a != b:
                sys.exit(f"man/tern.1, line {i + 1}: {a!r}, but the program says {b!r}; python3 scripts/manpage.py build/tern brings it up to date")
        sys.exit(len(old) != len(new) and "man/tern.1: too many lines")
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write("\n".join(new) + "\n")


if __name__ == "__main__":
    main()
