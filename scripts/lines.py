#!/usr/bin/env python3
"""Lines of code, product by product (make lines). The products are those of docs/reference/architecture.md; each file
of src/ and include/ belongs to the first line below whose pattern it matches."""
import fnmatch
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRODUCTS = [
    ("the page", "what a browser runs, and what serves it", ["src/server/page/*", "src/server/page.*", "src/server/talk*"]),
    ("documents", "readers, index, search", ["src/documents/*"]),
    ("pictures", "files of pictures to pixels", ["src/pictures/*"]),
    ("tern-lab", "simulator, papers' tables, random models, evaluation", ["src/lab/*"]),
    ("tern", "command line and server", ["src/cli/*", "src/server/*", "src/measure/*"]),
    ("libtern", "the engine", ["src/*", "include/*"]),
]
CODE = (".c", ".h", ".js", ".css", ".html", ".mjs", ".py", ".sh", ".cpp", ".ts")


def matches(path, patterns):
    if any(fnmatch.fnmatch(path, p[1:]) for p in patterns if p[0] == "!"):
        return False
    return any(fnmatch.fnmatch(path, p) for p in patterns if p[0] != "!")


def count(path):
    with open(os.path.join(ROOT, path), errors="replace") as f:
        return sum(1 for line in f if line.strip())


def files(top):
    for at, folders, names in os.walk(os.path.join(ROOT, top)):
        folders.sort()
        for name in sorted(names):
            if name.endswith(CODE):
                yield os.path.relpath(os.path.join(at, name), ROOT)


def main():
    lines = {name: 0 for name, _, _ in PRODUCTS}
    folders = {}
    for path in [*files("src"), *files("include")]:
        n = count(path)
        product = next(name for name, _, patterns in PRODUCTS if matches(path, patterns))
        lines[product] += n
        if product == "libtern":
            folder = path.split(os.sep)[1] if path.startswith("src") else "include"
            folders[folder] = folders.get(folder, 0) + n
    for name, what, _ in reversed(PRODUCTS):
        print(f"{lines[name]:7,}  {name}: {what}")
        if name == "libtern" and "-v" in sys.argv:
            for folder, n in sorted(folders.items(), key=lambda x: -x[1]):
                print(f"         {n:7,}  {folder}")
    print(f"{sum(lines.values()):7,}  in all, without blank lines")
    for top in ["tests", "bench", "tools", "scripts", "bindings"]:
        print(f"{sum(count(p) for p in files(top)):7,}  {top}/")


if __name__ == "__main__":
    main()
