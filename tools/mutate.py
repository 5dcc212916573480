#!/usr/bin/env python3
"""Breaks one mechanism at a time in a copy of the tree and runs the tests that should notice.

The mutations stand in tools/mutations.txt, one block each:

    [room/name]            the room is the folder under src/
    file src/room/x.c
    breaks what is wrong then
    tests folder/name ...  by their names in ctest
    - text as it stands in the file, over several such lines where it is long
    + text that takes its place; no such line: nothing does

Text is compared word by word, so that formatting does not matter, and must be found exactly once. A block may have
several pairs, and another `file` line between them. A mutation that no longer applies is an error, whatever else is
asked for: change the mutation with the code, or the tests are no longer known to notice.

A whole run takes more than an hour. In pieces, on one day or several:

    tools/mutate.sh --part 1/4 --results mutations.json    then 2/4, 3/4, 4/4; a run that was interrupted, again
    tools/mutate.sh --results mutations.json --summary     what is known so far

What was noticed and has not changed since (the mutation, the files that it breaks, the tests it names) is not run again;
survivors and errors are.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = "tools/mutations.txt"
LONGEST_S = 300


class Trouble(Exception):
    pass


def read_list(text):
    mutations, m, file, pair = [], None, None, None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if line.startswith("["):
            m = {"name": line.strip("[] \t"), "line": number, "breaks": "", "tests": [], "hunks": []}
            mutations.append(m)
            file = pair = None
        elif m is None:
            raise Trouble(f"{LIST}:{number}: text in front of the first [name]")
        elif word == "file":
            file, pair = rest.strip(), None
        elif word == "breaks":
            m["breaks"] = rest.strip()
        elif word == "tests":
            m["tests"] = rest.split()
        elif word in "-+" and file:
            if word == "-" and (pair is None or pair["new"]):
                pair = {"file": file, "old": [], "new": []}
                m["hunks"].append(pair)
            if pair is None:
                raise Trouble(f"{LIST}:{number}: nothing that this takes the place of")
            pair["old" if word == "-" else "new"].append(rest)
        else:
            raise Trouble(f"{LIST}:{number}: not understood: {line}")
    return mutations


def pattern(lines):
    """The text with any white space, and none where words allow it, between its tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", "\n".join(lines))
    out = []
    for i, token in enumerate(tokens):
        if i:
            out.append(r"\s+" if re.match(r"\w", token) and re.match(r"\w", tokens[i - 1]) else r"\s*")
        out.append(re.escape(token))
    return re.compile("".join(out))


def mutated(m, root):
    """{path: text} of what the mutation changes."""
    texts = {}
    for hunk in m["hunks"]:
        path = hunk["file"]
        if path not in texts:
            try:
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    texts[path] = f.read()
            except OSError as why:
                raise Trouble(f"{m['name']}: {path}: {why.strerror}") from None
        found = list(pattern(hunk["old"]).finditer(texts[path]))
        if len(found) != 1:
            raise Trouble(f"{m['name']}: {path} has its text {len(found)} times, not once: {' '.join(hunk['old']).strip()}")
        at = found[0]
        new = "\n".join(hunk["new"])
        if new.split() == at.group().split():
            raise Trouble(f"{m['name']}: changes nothing")
        texts[path] = texts[path][: at.start()] + new + texts[path][at.end() :]
    return texts


def test_file(name):
    name = {"torture/slice": "torture/torture"}.get(name, name)
    for ending in (".c", ".sh", ".py"):
        path = os.path.join("tests", name + ending)
        if os.path.exists(os.path.join(ROOT, path)):
            return path
    return None


def check(mutations):
    """What is wrong with the list, as sentences."""
    wrong, names = [], set()
    for m in mutations:
        if m["name"] in names:
            wrong.append(f"{m['name']}: twice in the list")
        names.add(m["name"])
        if not m["breaks"] or not m["tests"] or not m["hunks"]:
            wrong.append(f"{m['name']}: wants what it breaks, tests and a change")
        room = m["name"].split("/")[0]
        if not os.path.isdir(os.path.join(ROOT, "src", room)):
            wrong.append(f"{m['name']}: there is no room src/{room}")
        wrong += [f"{m['name']}: there is no test {t}" for t in m["tests"] if not test_file(t)]
        try:
            mutated(m, ROOT)
        except Trouble as why:
            wrong.append(str(why))
    return wrong


def digest(m, root=ROOT):
    """Of the mutation, the files that it breaks and the tests that it names: what a result holds for."""
    h = hashlib.sha256(json.dumps([m["hunks"], m["tests"]]).encode())
    for path in sorted({hunk["file"] for hunk in m["hunks"]} | {test_file(t) for t in m["tests"]}):
        with open(os.path.join(root, path), "rb") as f:
            h.update(path.encode() + b"\0" + f.read())
    return h.hexdigest()


def read_results(path):
    """{name: result} of earlier runs; none when there is no such file."""
    try:
        with open(path, encoding="utf-8") as f:
            return {r["name"]: r for r in json.load(f)["mutations"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise Trouble(f"{path}: no results of mutations: {why}") from None


def write_results(path, results):
    """Whole or not at all: a run that is interrupted loses nothing."""
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump({"mutations": sorted(results.values(), key=lambda r: r["name"])}, f, indent=1)
    os.replace(path + ".new", path)


def part_of(text):
    """1/4 -> (0, 4)"""
    m = re.fullmatch(r"(\d+)/(\d+)", text)
    if not m or not 1 <= int(m[1]) <= int(m[2]):
        raise argparse.ArgumentTypeError(f"'{text}' is no part: 1/4 is the first of four")
    return int(m[1]) - 1, int(m[2])


class Copy:
    """A copy of the tree with a build folder beside it."""

    def __init__(self, where, jobs):
        self.tree, self.build, self.jobs = os.path.join(where, "tree"), os.path.join(where, "build"), jobs
        self.limit_s = {}
        files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True, errors="replace").stdout.split("\n")
        files = [f for f in files if f and os.path.exists(os.path.join(ROOT, f))]
        for folder, _, there in os.walk(self.tree):
            for name in there:
                path = os.path.relpath(os.path.join(folder, name), self.tree)
                if path not in files:
                    os.unlink(os.path.join(self.tree, path))
        for f in files:
            self.put(f, open(os.path.join(ROOT, f), "rb").read())
            shutil.copymode(os.path.join(ROOT, f), os.path.join(self.tree, f))

    def put(self, path, data):
        path = os.path.join(self.tree, path)
        if os.path.exists(path) and open(path, "rb").read() == data:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)

    def configure(self):
        command = ["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DTERN_BENCH=OFF", "-DTERN_WERROR=OFF", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG"]
        if shutil.which("ccache"):
            command += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
        p = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if p.returncode:
            raise Trouble("the copy cannot be configured:\n" + p.stdout[-2000:] + p.stderr[-2000:])

    def make(self, tests):
        """What the compiler said if it failed, else ''."""
        targets = set()
        for t in tests:
            targets.add("tern")  # scripts start it, and some of the programs
            if t.startswith("torture/"):
                targets |= {"torture_disk", "torture_faults"}
            elif test_file(t).endswith(".c"):
                targets.add("test_" + t.replace("/", "_"))
        env = dict(os.environ, CCACHE_BASEDIR=os.path.dirname(self.tree), CCACHE_NOHASHDIR="1")
        p = subprocess.run(["ninja", "-C", self.build, "-j", str(self.jobs), *sorted(targets)], capture_output=True, text=True, errors="replace", env=env)
        return p.stdout[-3000:] if p.returncode else ""

    def passes(self, test):
        """(passed, seconds, the test's output)"""
        t0 = time.time()
        command = ["ctest", "--test-dir", self.build, "-R", f"^{test}$", "--output-on-failure", "--no-tests=error", "--timeout", str(int(self.limit_s.get(test, LONGEST_S)))]
        env = {"TERN_TEST_FULL": "1", "TERN_GROWTH": "all", **os.environ}  # a mechanism may be seen in the long form alone
        p = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env)
        return p.returncode == 0, time.time() - t0, p.stdout


def baseline(copy, tests):
    said = copy.make(tests)
    if said:
        raise Trouble("the copy does not build without a mutation:\n" + said)
    for t in tests:
        ok, seconds, said = copy.passes(t)
        if ok and "Skipped" in said:
            raise Trouble(f"{t} is skipped here: what it should notice cannot be seen")
        if not ok:
            raise Trouble(f"{t} fails without a mutation:\n" + said[-2000:])
        copy.limit_s[t] = 30 + 3 * seconds  # a test that hangs has noticed
    print(f"{len(tests)} tests pass without a mutation", flush=True)


def run(copy, m):
    texts = mutated(m, copy.tree)
    before = {path: open(os.path.join(copy.tree, path), "rb").read() for path in texts}
    out = {"name": m["name"], "room": m["name"].split("/")[0], "breaks": m["breaks"], "tests": m["tests"], "noticed_by": None, "error": None}
    t0 = time.time()
    try:
        for path, text in texts.items():
            copy.put(path, text.encode())
        said = copy.make(m["tests"])
        if said:
            out["error"] = "does not build: " + said
        for t in m["tests"] if not said else []:
            if not copy.passes(t)[0]:
                out["noticed_by"] = t
                break
    finally:
        for path, data in before.items():
            copy.put(path, data)
    out["seconds"] = round(time.time() - t0, 1)
    return out


def choose(mutations, a):
    """What the names and the part leave. Parts are taken by turns, so that every part has something of every room."""
    unknown = [n for n in a.names if not any(n in (m["name"], m["name"].split("/")[0]) for m in mutations)]
    if unknown:
        raise Trouble("no mutation or room is called " + ", ".join(unknown))
    chosen = [m for m in mutations if not a.names or m["name"] in a.names or m["name"].split("/")[0] in a.names]
    return chosen[a.part[0] :: a.part[1]] if a.part else chosen


def state_of(r):
    return "ERROR" if r["error"] else "noticed by " + r["noticed_by"] if r["noticed_by"] else "SURVIVED"


def summary(chosen, known):
    """Prints what is known of these mutations. Returns the exit status: 0 when all were noticed."""
    results = [known[m["name"]] for m in chosen if m["name"] in known and known[m["name"]]["digest"] == digest(m)]
    errors = [r for r in results if r["error"]]
    survivors = [r for r in results if not r["noticed_by"] and not r["error"]]
    for r in errors:
        print(f"\n{r['name']}: {r['error']}")
    missing = len(chosen) - len(results)
    print(f"\n{len(results)} mutations: {len(results) - len(survivors) - len(errors)} noticed, {len(survivors)} survived, {len(errors)} errors" + (f"; {missing} not run" if missing else ""))
    for r in survivors:
        print(f"  survived: {r['name']}: {r['breaks']} (not noticed by {', '.join(r['tests'])})")
    return 1 if survivors or errors or missing else 0


def main():
    p = argparse.ArgumentParser(prog="tools/mutate.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME", help="mutations, or rooms; none: all")
    p.add_argument("--part", type=part_of, metavar="K/N", help="only the K-th of N parts of them")
    p.add_argument("--check", action="store_true", help="only see that every mutation applies")
    p.add_argument("--list", action="store_true", help="print their names")
    p.add_argument("--results", metavar="FILE", help="keep the results there, as JSON, and skip what it knows to be noticed")
    p.add_argument("--summary", action="store_true", help="only say what FILE knows")
    p.add_argument("--folder", default=os.path.join(ROOT, "build-mutate"), help="of the copy and its build (default build-mutate)")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    a = p.parse_args()
    try:
        mutations = read_list(open(os.path.join(ROOT, LIST), encoding="utf-8").read())
        wrong = check(mutations)
        if wrong:
            raise Trouble("\n".join(wrong))
        chosen = choose(mutations, a)
        if a.list:
            print("\n".join(f"{m['name']:40} {m['breaks']}" for m in chosen))
        if a.list or a.check:
            print(f"{len(chosen)} mutations, all apply")
            return 0
        if a.summary and not a.results:
            raise Trouble("--summary wants --results")
        known = read_results(a.results) if a.results else {}
        noticed = {m["name"] for m in chosen if known.get(m["name"], {}).get("noticed_by") and known[m["name"]]["digest"] == digest(m)}
        left = [m for m in chosen if m["name"] not in noticed]
        if a.summary or not left:
            return summary(chosen, known)
        copy = Copy(a.folder, a.jobs)
        copy.configure()
        baseline(copy, sorted({t for m in left for t in m["tests"]}))
        for m in left:
            r = known[m["name"]] = run(copy, m) | {"digest": digest(m, copy.tree)}
            print(f"{r['name']:40} {r['seconds']:6.1f} s  {state_of(r)}", flush=True)
            if a.results:
                write_results(a.results, known)
        return summary(chosen, known)
    except Trouble as why:
        print(f"mutate: {why}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
