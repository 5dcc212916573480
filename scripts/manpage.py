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
SUB = {"rag": ("add", "ls", "rm"), "bench": ("limits",)}


def said(tern, *words):
    return subprocess.run([tern, *words, "--help"], check=True, capture_output=True, text=True).stdout


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def section(tern):
    out = [".SH OPTIONS"]
    for name in re.findall(r"^  (\w+) ", said(tern), re.M):
        for words in [(name,)] + [(name, s) for s in SUB.get(name, ())]:
            lines = said(tern, *words).splitlines()
            options = [re.match(r"  (?:(-\w), |    )(--\S+(?: \S+)?) +(.*)", line) for line in lines]
            options = [m for m in options if m and m[2] != "--help"]
            if not options:
                continue
            out.append(".SS " + escaped(" ".join(words)))
            out.append(escaped(re.sub(r"^usage: ", "", lines[0])))
            for short, option, text in (m.groups() for m in options):
                out += [".TP", ".B " + escaped(f"{short}, {option}" if short else option), escaped(text)]
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
