#!/usr/bin/env python3
"""The declarations of the bindings, from the headers: one description of the binary interface for all languages.

    bindings.py                 rewrites bindings/python/tern/_abi.py and bindings/node/abi.json
    bindings.py --check         exits 1 where they are not what the headers say (tests/bindings/abi.sh)
    bindings.py --layout        prints a C program that prints what a compiler makes of the structs, one `struct.field offset size` a line

It reads the C that tern.h and tern_shadow.h are written in and no more: what it does not understand is an error."""
import json
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
HEADERS = ["tern.h", "tern_shadow.h"]
PYTHON = os.path.join(ROOT, "bindings", "python", "tern", "_abi.py")
NODE = os.path.join(ROOT, "bindings", "node", "abi.json")
CTYPES = {"bool": "c_bool", "char": "c_char", "int": "c_int", "uint8_t": "c_uint8", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64",
          "uint64_t": "c_uint64", "size_t": "c_size_t", "float": "c_float", "double": "c_double"}


def fail(what, text):
    sys.exit(f"bindings.py does not understand {what}: {' '.join(text.split())}")


def declared(text):
    """'const char *const *stop' -> a field or a parameter: {name, base, stars, const, dims} or {name, returns, params}."""
    text = " ".join(text.split())
    m = re.fullmatch(r"(.+?)\(\*(\w+)\)\s*\((.*)\)", text)
    if m:
        return {"name": m[2], "returns": declared(m[1] + " _"), "params": parameters(m[3])}
    m = re.fullmatch(r"((?:const )?\w+)((?:\s*\*\s*(?:const)?)*)\s*(\w*)((?:\[\d+\])*)", text)
    if not m:
        fail("a declaration", text)
    base = m[1].removeprefix("const ")
    if not m[3]:
        fail("a declaration without a name", text)
    return {"name": m[3], "base": base, "const": m[1] != base, "stars": m[2].count("*"),
            "dims": [int(n) for n in re.findall(r"\d+", m[4])]}


def split(text):
    """The parts between commas that are in no parentheses."""
    parts, depth, at = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            parts.append(text[at:i])
            at = i + 1
    return [p for p in (p.strip() for p in parts + [text[at:]]) if p]


def parameters(text):
    return [] if text.strip() == "void" else [declared(p) for p in split(text)]


def fields(body):
    out = []
    for line in body.split(";"):
        if not line.strip():
            continue
        names = split(line)
        if len(names) == 1 or "(" in line:
            out.append(declared(line))
            continue
        base = re.match(r"\s*((?:const )?\w+)[\s*]", names[0])
        out.append(declared(names[0]))
        out += [declared(f"{base[1]} {n}") for n in names[1:]]
    return out


def values(body, tables):
    out, at = {}, 0
    table = re.search(r"(\w+_TABLE)\(", body)
    if table:
        return dict(tables[table[1]])
    for item in split(body):
        m = re.fullmatch(r"(\w+)(?:\s*=\s*(-?\d+))?", item)
        if not m:
            fail("a value", item)
        at = int(m[2]) if m[2] else at
        out[m[1]] = at
        at += 1
    return out


def describe():
    abi = {"constants": {}, "enums": {}, "opaque": [], "structs": {}, "functions": {}}
    for name in HEADERS:
        with open(os.path.join(ROOT, "include", name), encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/", " ", f.read(), flags=re.S)
        tables = {m[1]: [(n, int(v)) for n, v in re.findall(r"X\((\w+), (\d+)", m[2])]
                  for m in re.finditer(r"#define (\w+_TABLE)\(X\)((?:.*\\\n)+.*)", text)}
        for m in re.finditer(r"^#define (TERN_VERSION_(?:MAJOR|MINOR|PATCH)) (\d+)$", text, flags=re.M):
            abi["constants"][m[1]] = int(m[2])
        text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", text, flags=re.M)
        for m in re.finditer(r"typedef enum (\w+) \{(.*?)\} \1;", text, flags=re.S):
            abi["enums"][m[1]] = values(m[2], tables)
        for m in re.finditer(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S):
            abi["structs"][m[1]] = fields(m[2])
        abi["opaque"] += re.findall(r"typedef struct (\w+) \1;", text)
        found = list(re.finditer(r"TERN_API (.*?)(\w+)\(((?:[^()]|\([^()]*\)|\(\*\w+\)\([^()]*\))*)\);", text, flags=re.S))
        for m in found:
            abi["functions"][m[2]] = {"returns": declared(m[1] + " _"), "params": parameters(" ".join(m[3].split()))}
        if text.count("TERN_API ") != len(found):
            fail(f"{text.count('TERN_API ') - len(found)} functions of", name)
    known = set(CTYPES) | {"void"} | set(abi["enums"]) | set(abi["structs"]) | set(abi["opaque"])
    for group in list(abi["structs"].values()) + [f["params"] + [f["returns"]] for f in abi["functions"].values()]:
        for d in group:
            if d.get("base", "void") not in known:
                fail("a type", d["base"])
    return abi


# ---- Python: ctypes ----------------------------------------------------------------------------------


def python_type(abi, d, where):
    """where: field, param, returns or callback. Text that C gives to a callback has a length, not an end."""
    if "params" in d:
        args = [python_type(abi, d["returns"], "returns")] + [python_type(abi, p, "callback") for p in d["params"]]
        return f"C.CFUNCTYPE({', '.join(args)})"
    base, stars = d["base"], d["stars"]
    if base == "void":
        return "C.c_void_p" if stars else "None"
    if base == "char" and stars and where != "callback":
        kind = "C.c_char_p" if d["const"] or where == "field" else "C.c_void_p"
        stars -= 1
    elif base == "char" and stars:
        return "C.c_void_p"
    elif base in abi["opaque"]:
        kind, stars = "C.c_void_p", stars - 1
    elif base in abi["enums"]:
        kind = "C.c_int"
    elif base in CTYPES:
        kind = "C." + CTYPES[base]
    else:
        kind = base
    for _ in range(stars):
        kind = f"C.POINTER({kind})"
    for n in d["dims"]:
        kind = f"{kind} * {n}"
    return kind


def python(abi):
    out = ['"""Written by scripts/bindings.py from tern.h and tern_shadow.h: types and functions of libtern for ctypes."""',
           "# fmt: off", "# mypy: ignore-errors", "import ctypes as C", ""]
    out += [f"{name} = {value}" for name, value in abi["constants"].items()]
    for name, items in abi["enums"].items():
        out += ["", f"# {name}"] + [f"{item} = {value}" for item, value in items.items()]
    for name, items in abi["structs"].items():
        out += ["", "", f"class {name}(C.Structure):", "    _fields_ = ["]
        out += [f'        ("{d["name"]}", {python_type(abi, d, "field")}),' for d in items] + ["    ]"]
    out += ["", "", "FUNCTIONS = {"]
    for name, f in abi["functions"].items():
        args = ", ".join(python_type(abi, p, "param") for p in f["params"])
        out.append(f'    "{name}": ({python_type(abi, f["returns"], "returns")}, [{args}]),')
    out += ["}", "", "", "def declare(lib: C.CDLL) -> None:", '    """Gives the functions of a loaded library their types."""',
            "    for name, (returns, params) in FUNCTIONS.items():", "        f = getattr(lib, name)", "        f.restype, f.argtypes = returns, params", ""]
    return "\n".join(out)


# ---- Node: the C itself, one declaration a line, in an order in which each knows what it names -----------


def c_of(d, name=True):
    text = ("const " if d["const"] else "") + d["base"] + (" " if d["stars"] or name else "") + "*" * d["stars"]
    return (text + (d["name"] if name else "") + "".join(f"[{n}]" for n in d["dims"])).strip()


def node(abi):
    callbacks, structs, functions = {}, {}, {}

    def flat(owner, d):
        if "params" not in d:
            return [c_of(d, False) if not d["dims"] else c_of({**d, "dims": []}, False), d["name"], *d["dims"]]
        name = f"{owner}_{d['name']}"
        callbacks[name] = f"{c_of(d['returns'], False)} {name}({', '.join(c_of(p) for p in d['params'])})"
        return [name + " *", d["name"]]

    for name, items in abi["structs"].items():
        structs[name] = [flat(name, d) for d in items]
    for name, f in abi["functions"].items():
        params = [flat(name, p) for p in f["params"]]
        functions[name] = f"{c_of(f['returns'], False)} {name}({', '.join(' '.join(p[:2]) for p in params) or 'void'})"
    return json.dumps({"about": "Written by scripts/bindings.py from tern.h and tern_shadow.h.", "constants": abi["constants"], "enums": abi["enums"],
                       "opaque": abi["opaque"], "structs": structs, "callbacks": callbacks, "functions": functions}, indent=1) + "\n"


def layout(abi):
    out = ["#include <stdio.h>"] + [f"#include <{h}>" for h in HEADERS] + ["int main(void) {"]
    for name, items in abi["structs"].items():
        out.append(f'    printf("{name} 0 %zu\\n", sizeof({name}));')
        for d in items:
            out.append(f'    printf("{name}.{d["name"]} %zu %zu\\n", offsetof({name}, {d["name"]}), sizeof((({name} *)0)->{d["name"]}));')
    for name, items in abi["enums"].items():
        out += [f'    printf("{item} %d\\n", (int){item});' for item in items]
    return "\n".join(out + ["}", ""])


def main():
    abi = describe()
    if sys.argv[1:] == ["--layout"]:
        print(layout(abi), end="")
        return
    for path, text in ((PYTHON, python(abi)), (NODE, node(abi))):
        if sys.argv[1:] == ["--check"]:
            with open(path, encoding="utf-8") as f:
                if f.read() != text:
                    sys.exit(f"{os.path.relpath(path, ROOT)} is not what the headers say; python3 scripts/bindings.py brings it up to date")
            continue
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    main()
