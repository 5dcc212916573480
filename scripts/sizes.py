#!/usr/bin/env python3
"""No file of src/ has more than 800 lines, no function more than 80, from its brace to its brace.

The layout is clang-format's: a function's opening brace ends a line that begins in the first column or continues such a line,
and its closing brace stands alone in the first column."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINES, BODY = 800, 80
# What is still to be cut, and why it was not.
ALLOWED = {
}


def functions(lines):
    """(name, first line, number of lines) of every function."""
    start = None
    for i, line in enumerate(lines):
        if line.startswith("}") and start is not None:
            head = " ".join(lines[max(0, start - 6):start + 1])
            names = re.findall(r"(\w+)\)?\s*\(", re.split(r"[;}]|\*/", head)[-1])
            yield next((n for n in names if n not in ("__attribute__", "NAME")), "?"), start + 1, i - start + 1
            start = None
        elif start is None and line.endswith(") {") and not line.startswith(("#", "}")):
            start = i


def main():
    bad = 0
    for at, _, names in os.walk(os.path.join(ROOT, "src")):
        for name in sorted(names):
            path = os.path.join(at, name)
            shown = os.path.relpath(path, ROOT)
            if not name.endswith((".c", ".h")):
                continue
            lines = open(path, encoding="utf-8").read().split("\n")
            if len(lines) - 1 > LINES and shown not in ALLOWED:
                print(f"lint: {shown} has {len(lines) - 1} lines, at most {LINES}")
                bad = 1
            for function, first, n in functions(lines):
                if n > BODY and not {shown, f"{shown} {function}"} & set(ALLOWED):
                    print(f"lint: {shown}:{first}: {function} has {n} lines, at most {BODY}")
                    bad = 1
    if not bad:
        print("lint: files and functions are short")
    return bad


sys.exit(main())
