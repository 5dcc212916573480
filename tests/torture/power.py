#!/usr/bin/env python3
"""Takes the power away from a disk while the program writes, and looks at what is there afterwards.

  power.py TERN SHIM CRASHES

The program runs once under disk.c, which records what it does to its files. Then, for each crash, a random point of the record is
taken, and a disk is made that may be there after it: what was synced holds; of every write that was not, all, nothing or a part in
whole sectors; names change in the order of the calls, but how far the disk came with those that no folder's sync confirmed is
random. Commands that ended before the point have said "done", so what they did must be there. TERN_SEED repeats a run.

Oracle: a package or a session under its name is the old one or the new one, byte by byte. A store passes SQLite's own check and
holds what was acknowledged, and at most the one step that ran. That this finds anything is shown each time: the same record
without its syncs must give findings.
"""
import copy
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

SECTOR = 512


class Inode:
    def __init__(self, data=b""):
        self.data, self.pending, self.touched = bytearray(data), [], False

    def apply(self, op, keep=None):
        """One write or truncation; keep: so many bytes of a write."""
        if op[0] == "T":
            size = op[1]
            self.data = self.data[:size] + bytes(max(0, size - len(self.data)))
            return
        at, what = op[1], op[2] if keep is None else op[2][:keep]
        if len(self.data) < at + len(what):
            self.data += bytes(at + len(what) - len(self.data))
        self.data[at:at + len(what)] = what

    def sync(self):
        for op in self.pending:
            self.apply(op)
        self.pending = []

    def after_crash(self, rng):
        """What is on the disk of this file."""
        out = Inode(self.data)
        mood = rng.random()
        for op in self.pending:
            fate = "keep" if mood < 0.2 else "drop" if mood < 0.4 else rng.choice(("keep", "drop", "tear"))
            if fate == "keep":
                out.apply(op)
            elif fate == "tear" and op[0] == "W":
                end = op[1] + rng.randrange(len(op[2]) + 1)
                out.apply(op, max(0, end // SECTOR * SECTOR - op[1]))
        return bytes(out.data)


class Disk:
    def __init__(self, folder):
        """All that is in the folder now is on the disk."""
        self.folder, self.inodes, self.now, self.held, self.moves = folder, {}, {}, {}, []
        for where, _, files in os.walk(folder):
            for f in files:
                path = os.path.join(where, f)
                ino = os.stat(path).st_ino
                with open(path, "rb") as h:
                    self.inodes[ino] = Inode(h.read())
                self.now[path] = self.held[path] = ino
        self.first = set(self.inodes)
        self.numbers = {}  # an inode's number may be used again: the latest one of that number

    def inode(self, number):
        return self.inodes[self.numbers.get(number, number)]

    def touch(self, number):
        i = self.inode(number)
        i.touched = True
        return i

    def key(self, number):
        return self.numbers.get(number, number)

    def move(self, changes):
        """Names change at once, but for the disk later. changes: path -> inode or None."""
        self.moves.append(changes)
        for path, ino in changes.items():
            if ino is None:
                self.now.pop(path, None)
            else:
                self.now[path] = ino

    @staticmethod
    def hold(names, changes):
        for path, ino in changes.items():
            if ino is None:
                names.pop(path, None)
            else:
                names[path] = ino

    def do(self, op):
        kind = op[0]
        if kind == "O":
            if op[2]:
                fresh = ("new", len(self.inodes))
                self.inodes[fresh] = Inode()
                self.numbers[op[1]] = fresh
                if op[3] != "-":
                    self.move({op[3]: fresh})
        elif kind == "W":
            self.touch(op[1]).pending.append(("W", op[2], op[3]))
        elif kind == "T":
            self.touch(op[1]).pending.append(("T", op[2]))
        elif kind == "S":
            self.inode(op[1]).sync()
        elif kind == "D":
            last = max((i for i, c in enumerate(self.moves) if any(os.path.dirname(p) == op[1] for p in c)), default=-1)
            for c in self.moves[:last + 1]:
                self.hold(self.held, c)
            self.moves = self.moves[last + 1:]
        elif kind == "R":
            self.move({op[1]: None, op[2]: self.now[op[1]]})
        elif kind == "L":
            self.move({op[2]: self.key(op[1])})
        elif kind == "U":
            self.move({op[1]: None})

    def crash(self, rng, to):
        names = dict(self.held)
        for c in self.moves[:rng.randrange(len(self.moves) + 1)]:
            self.hold(names, c)
        shutil.rmtree(to, ignore_errors=True)
        os.makedirs(to)
        for path, ino in names.items():
            if path.endswith("-shm") or not self.inodes[ino].touched and ino in self.first:
                continue  # shared memory of processes that are gone; what nobody wrote to
            where = to + path[len(self.folder):]
            os.makedirs(os.path.dirname(where), exist_ok=True)
            with open(where, "wb") as f:
                f.write(self.inodes[ino].after_crash(rng))


def read_record(path):
    ops = []
    with open(path, "rb") as f:
        while line := f.readline():
            w = line.decode("utf-8", "surrogateescape").rstrip("\n").split(" ")
            if w[0] == "O":
                ops.append(("O", int(w[1]), w[2] == "1", w[3]))
            elif w[0] == "W":
                ops.append(("W", int(w[1]), int(w[2]), f.read(int(w[3]))))
                f.read(1)
            elif w[0] == "T":
                ops.append(("T", int(w[1]), int(w[2])))
            elif w[0] == "S":
                ops.append(("S", int(w[1])))
            elif w[0] == "L":
                ops.append(("L", int(w[1]), w[2]))
            else:
                ops.append(tuple(w))
    return ops


def slurp(path):
    with open(path, "rb") as f:
        return f.read()


class Files:
    """A file of a name is what it was after one of the steps: the last one that ended, or the one that ran."""

    def __init__(self, name):
        self.name = name

    def state(self, folder):
        path = folder + "/" + self.name
        return slurp(path) if os.path.exists(path) else None


class Store:
    """The documents of a store, and what SQLite says of it."""

    def __init__(self, name):
        self.name = name

    def state(self, folder):
        path = folder + "/" + self.name
        if not os.path.exists(path):
            return []
        db = sqlite3.connect(path)
        try:
            said = db.execute("PRAGMA integrity_check").fetchall()
            if said != [("ok",)]:
                return f"damaged: {said[:2]}"
            if not db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'document'").fetchone()[0]:
                return []
            wrong = db.execute("PRAGMA foreign_key_check").fetchall()
            if wrong:
                return f"dangling: {wrong[:2]}"
            return sorted(os.path.basename(r[0]) for r in db.execute("SELECT path FROM document"))
        except sqlite3.DatabaseError as e:
            return f"unreadable: {e}"
        finally:
            db.close()


RUN = ["run", "-m", "@m.tern", "-t", "1", "--temp", "0", "--draft", "none", "--ignore-eos"]
SCENES = [
    ("package", Files("out.tern"), [["pack", "@m.gguf", "-o", "@out.tern", "-t", "1", "--bits", "4", "--calib-tokens", "64"],
                                    ["pack", "@m.gguf", "-o", "@out.tern", "-t", "1", "--bits", "6", "--calib-tokens", "64"]]),
    ("session", Files("a.session"), [[*RUN, "-p", "hello the world", "-n", "2", "--save-session", "@a.session"],
                                     [*RUN, "-p", "the old inn is there", "-n", "3", "--save-session", "@a.session"]]),
    ("store", Store("s.db"), [["rag", "add", "--store", "@s.db", "@doc1.txt"], ["rag", "add", "--store", "@s.db", "@doc2.txt"],
                              ["rag", "rm", "--store", "@s.db", "@doc1.txt"], ["rag", "add", "--store", "@s.db", "@doc3.txt"]]),
    ("cache", None, [["cache", "add", "@m.gguf"]]),
]


def crashes(name, oracle, snapshot, ops, states, made, n_crashes, rng, after):
    """Random crashes of a record, and a quarter as many behind its last rename, where what is held must be whole. Returns what is wrong."""
    disk, findings, i, n_done = copy.deepcopy(snapshot), [], 0, 0
    last = max((k for k, o in enumerate(ops) if o[0] == "R"), default=0)
    points = [rng.randrange(len(ops) + 1) for _ in range(n_crashes)] + [rng.randrange(last, len(ops)) + 1 for _ in range(n_crashes // 4)]
    for point in sorted(points + [len(ops)]):
        while i < point:
            n_done += ops[i][0] == "done"
            disk.do(ops[i])
            i += 1
        disk.crash(rng, after)
        where = f"{name}: after {point} of {len(ops)} operations ({n_done} commands done)"
        if oracle:
            got = oracle.state(after)
            if got not in states[n_done:n_done + 2]:
                findings.append(f"{where}: {str(got)[:120]}")
        for p, want in made.items():
            there = after + p[len(disk.folder):]
            if os.path.exists(there) and slurp(there) != want:
                findings.append(f"{where}: another package than was made")
            if i == len(ops) and not os.path.exists(there):
                findings.append(f"{where}: the package is gone")
    return findings


def main():
    tern, shim, n_crashes = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), int(sys.argv[3])
    seed = int(os.environ.get("TERN_SEED", 1))
    rng = random.Random(seed)
    top = os.path.realpath(tempfile.mkdtemp(prefix="power-"))
    work, after, record = top + "/work", top + "/after", top + "/record"
    findings, n_all, then = [], 0, time.time()
    os.mkdir(work)

    def call(args, **env):
        e = dict(os.environ, XDG_DATA_HOME=work + "/data", XDG_CACHE_HOME=work + "/cache", TMPDIR=work, TERN_PACK="never", **env)
        p = subprocess.run([tern] + [a.replace("@", work + "/") for a in args], capture_output=True, env=e, cwd=work)
        if p.returncode:
            raise SystemExit(f"{args}: {p.stderr.decode()}")

    call(["synth", "--arch", "tiny-llama", "-o", "@m.gguf", "-t", "1"])
    call(["pack", "@m.gguf", "-o", "@m.tern", "-t", "1", "--calib-tokens", "64"])
    for i in (1, 2, 3):
        with open(f"{work}/doc{i}.txt", "w") as f:
            f.write(f"The old inn number {i} is near the weir. " * (40 * i))
    for name, oracle, steps in SCENES:
        snapshot = Disk(work)
        at_first = dict(snapshot.held)
        states, ops = [oracle.state(work) if oracle else None], []
        for step in steps:
            if os.path.exists(record):
                os.unlink(record)
            call(step, LD_PRELOAD=shim, DISK_FOLDER=work, DISK_LOG=record)
            ops += read_record(record) if os.path.exists(record) else []
            ops.append(("done",))
            states.append(oracle.state(work) if oracle else None)
        if oracle is None:  # the packages of the cache: each is the one that was made
            made = {p: slurp(p) for p in disk_files(work) if p.endswith(".tern") and p not in at_first}
            if not made:
                raise SystemExit(f"{name}: no package was made")
        if sum(o[0] == "W" for o in ops) < 3 or sum(o[0] == "S" for o in ops) < 1:
            raise SystemExit(f"{name}: {len(ops)} operations recorded: the shim does not work")
        found = crashes(name, oracle, snapshot, ops, states, made if oracle is None else {}, n_crashes, rng, after)
        findings += found
        n_all += n_crashes + n_crashes // 4 + 1
        careless = [o for o in ops if o[0] not in "SD"]
        if not crashes(name, oracle, snapshot, careless, states, made if oracle is None else {}, 60, rng, after):
            raise SystemExit(f"{name}: no syncs, and nothing is found: this test sees nothing")
    shutil.rmtree(top, ignore_errors=True)
    for f in findings[:20]:
        print(f)
    print(f"power: seed {seed}, {n_all} crashes, {len(findings)} findings, {time.time() - then:.0f} s")
    return 1 if findings else 0


def disk_files(folder):
    return [os.path.join(where, f) for where, _, files in os.walk(folder) for f in files]


if __name__ == "__main__":
    sys.exit(main())
