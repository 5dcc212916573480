#!/usr/bin/env python3
"""Makes one call at a time fail under the program and asks that its answer is right or refused.

  torture.py slice TERN SHIM [JOB...]    the places a call comes from, once each, for the quick jobs (a test)
  torture.py hours TERN SHIM MINUTES     every call of every job, in random order, and kills at random instants

Oracle: exit 0 means that what was printed and written equals the reference of an undisturbed run, times aside, and
that files open again. Exit 1 or 2 means one message on standard error, and that files are as
they were, or whole and new where only the report failed. A signal, a
hang, or anything else is a finding. TERN_SEED repeats a run.
"""
import json, os, random, re, shutil, signal, subprocess, sys, tempfile, time

KINDS = ["alloc", "open", "read", "write", "sync", "rename", "map", "thread", "interrupt"]
# What times and memory depend on. Their presence is compared, their value is not.
VOLATILE = re.compile(r"(_ms|_us|_s|seconds?|per_second|rss_bytes|bubble|share|attention_times|added|offset|wasted|valid|"
                      r"underutilised|decisions|stolen_parts|ms_per_token|tokens_per_verification|accepted.*|rows|"
                      r"verifications|ms_max|step|bytes|score|learned_tokens|calibrated_tokens|unpacked_by_device|subgraphs)$")


def normal(v, key=""):
    if isinstance(v, dict):
        return {k: "?" if VOLATILE.search(k) and not isinstance(w, (dict, list)) or k == "attention_times" else normal(w, k)
                for k, w in v.items()}
    if isinstance(v, list):
        return [normal(w, key) for w in v]
    return v


def difference(a, b, where=""):
    """The first place where two values differ."""
    if type(a) is type(b) is dict and a.keys() != b.keys():
        return f"{where}: one has, the other lacks {sorted(a.keys() ^ b.keys())}"
    if type(a) is type(b) is dict:
        return next((difference(a[k], b[k], where + "." + k) for k in a if a[k] != b[k]), "")
    if type(a) is type(b) is list and len(a) == len(b):
        return next((difference(x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b)) if x != y), "")
    return f"{where}: {str(a)[:60]} is {str(b)[:60]}"


class Finding(Exception):
    pass


def read(path):
    with open(path, "rb") as f:
        return f.read()


def tree(folder):
    """Every file of a folder with its bytes."""
    out = {}
    for where, _, files in os.walk(folder):
        for f in files:
            p = os.path.join(where, f)
            out[os.path.relpath(p, folder)] = read(p)
    return out


os.environ["TERN_PACK"] = "never"  # what goes on behind a command would disturb the next one


class Job:
    """A command in a folder of its own, which setup has filled."""

    def __init__(self, name, args, json_out=False, stdin="", writes=None, shim_from=None):
        self.name, self.args, self.json_out, self.stdin, self.writes, self.shim_from = \
            name, args, json_out, stdin, writes, shim_from

    def run(self, tern, folder, env=None, timeout=60, kill_after=None):
        e = dict(os.environ, XDG_DATA_HOME=folder + "/data", XDG_CACHE_HOME=folder + "/cache", TMPDIR=folder)
        e.update(env or {})
        args = [a.replace("@", folder + "/") for a in self.args]
        p = subprocess.Popen([tern] + args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=e, cwd=folder)
        try:
            if kill_after is not None:
                time.sleep(kill_after)
                p.send_signal(signal.SIGKILL)
            out, err = p.communicate(self.stdin.encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            raise Finding("hangs")
        return p.returncode, out, err

    def printed(self, out):
        if not self.json_out:
            return out.decode("utf-8", "replace")
        return normal(json.loads(out))

    def written(self, tern, folder):
        """What a user of the result sees."""
        if not self.writes:
            return None
        kind, name = self.writes
        path = folder + "/" + name
        if kind == "package":
            o = subprocess.run([tern, "inspect", path, "--json"], capture_output=True, cwd=folder)
            if o.returncode:
                raise Finding("the package that was written cannot be read: " + o.stderr.decode())
            d = json.loads(o.stdout)
            d.pop("file")
            for s in d["sections"]:
                s.pop("offset"), s.pop("bytes")
            t = subprocess.run([tern, "run", "-m", path, "-p", "hello the world", "-n", "4", "--temp", "0", "-t", "1",
                                "--ignore-eos"], capture_output=True, cwd=folder)
            return normal(d), t.stdout
        if kind == "session":
            t = subprocess.run([tern, "run", "-m", folder + "/m.tern", "-p", "hello the world", "-n", "4", "--temp", "0",
                                "-t", "1", "--load-session", path], capture_output=True, cwd=folder)
            if t.returncode:
                raise Finding("the session that was written cannot be loaded: " + t.stderr.decode())
            return t.stdout
        if kind == "trace":
            return len(json.loads(read(path))["traceEvents"]) > 0
        raise AssertionError(kind)


M = ["-m", "@m.tern", "-t", "1", "--temp", "0", "--draft", "none"]
JOBS = [
    Job("inspect", ["inspect", "@m.tern", "--json"], True),
    Job("pack-edgeflow", ["pack", "@m.gguf", "-o", "@out.tern", "-t", "1"], writes=("package", "out.tern")),
    Job("inspect-gguf", ["inspect", "@m.gguf", "--json", "--tensors"], True),
    Job("inspect-cpu", ["inspect", "--cpu", "--json"], True),
    Job("rag-ls", ["rag", "ls", "--store", "@s.db", "--json"], True),
    Job("run", ["run", *M, "-p", "hello the world", "-n", "4", "--ignore-eos", "--json", "--logprobs"], True),
    Job("pack", ["pack", "@m.gguf", "-o", "@out.tern", "-t", "1", "--json", "--scheme", "naive-w8a8", "--calib-tokens",
                 "64"], True, writes=("package", "out.tern")),
    Job("run-float", ["run", "-m", "@m.gguf", "-t", "1", "--temp", "0", "-p", "hello the world", "-n", "4",
                      "--ignore-eos"]),
    Job("run-mmap", ["run", *M, "-p", "hello the world", "-n", "4", "--ignore-eos", "--load", "mmap"]),
    Job("save", ["run", *M, "-p", "hello the world", "-n", "4", "--ignore-eos", "--save-session", "@s.session"],
        writes=("session", "s.session")),
    Job("trace", ["run", *M, "-p", "hello the world " * 20, "-n", "1", "--trace", "@t.json"], writes=("trace", "t.json")),
    Job("tokenize", ["tokenize", "-m", "@m.tern"], stdin="hello the world"),
    Job("ask", ["ask", *M, "--chat-template", "chatml", "--store", "@s.db", "-n", "4", "--json", "where is the old inn"], True),
    Job("chat", ["chat", *M, "--chat-template", "chatml", "-n", "4", "--no-store"], stdin="hello\n"),
    Job("rag-add", ["rag", "add", "--store", "@s.db", "@doc2.txt", "--json"], True),
    Job("rag-rm", ["rag", "rm", "--store", "@s.db", "@doc.txt"]),
    Job("eval", ["eval", "-m", "@m.tern", "-t", "1", "--task", "ppl", "--data", "@text.txt", "-c", "64", "--json"], True),
]
# The slice that the tests run: (job, kind, module the call comes from or None, how many places of them)
SLICE = [("inspect", "alloc", "jansson"), ("inspect-gguf", "alloc", "jansson"), ("inspect-cpu", "alloc", "jansson"),
         ("rag-ls", "alloc", "jansson"), ("run", "alloc", "jansson"), ("pack", "alloc", "jansson"),
         ("pack", "write", None), ("pack", "sync", None), ("pack", "rename", None), ("pack", "open", None),
         ("pack", "read", None), ("save", "write", None), ("save", "rename", None), ("run", "read", None),
         ("run", "map", None), ("run", "open", None), ("run", "thread", None), ("run", "interrupt", None),
         ("run-float", "interrupt", None), ("pack", "interrupt", None), ("save", "interrupt", None),
         ("tokenize", "interrupt", None), ("ask", "interrupt", None), ("chat", "interrupt", None),
         ("rag-add", "interrupt", None), ("rag-rm", "interrupt", None), ("eval", "interrupt", None),
         ("pack-edgeflow", "interrupt", None, 60), ("run", "alloc", "/tern", 160), ("tokenize", "alloc", "/tern", 60),
         ("rag-ls", "alloc", "libc.so"), ("chat", "alloc", "libc.so")]


def make_master(tern, folder):
    run = lambda *a: subprocess.run([tern, *a], check=True, capture_output=True, cwd=folder)
    run("synth", "--arch", "tiny-llama", "-o", folder + "/m.gguf", "-t", "1")
    run("pack", folder + "/m.gguf", "-o", folder + "/m.tern", "-t", "1")
    for name, text in (("doc.txt", "The old inn is near the weir. " * 9), ("doc2.txt", "A mill stands by the bridge. " * 9),
                       ("text.txt", "the old inn near the weir.\n" * 20)):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    run("rag", "add", "--store", folder + "/s.db", folder + "/doc.txt")
    run("run", "-m", folder + "/m.tern", "-t", "1", "-p", "hello the world " * 20, "-n", "1")  # its profile


class Bench:
    def __init__(self, tern, shim):
        self.tern, self.shim = tern, shim
        self.top = tempfile.mkdtemp(prefix="torture-")
        self.master, self.work = self.top + "/master", self.top + "/work"
        os.mkdir(self.work)  # an index names documents by their absolute paths: it is made where it is used
        make_master(tern, self.work)
        os.rename(self.work, self.master)
        self.references = {}
        self.n, self.n_refused, self.findings = 0, 0, []

    def fresh(self):
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.master, self.work)

    def reference(self, job):
        if job.name not in self.references:
            self.fresh()
            rc, out, err = job.run(self.tern, self.work)
            if rc:
                raise SystemExit(f"{job.name}: the undisturbed run failed: {err.decode()}")
            self.references[job.name] = (job.printed(out), job.written(self.tern, self.work))
        return self.references[job.name]

    def env(self, kind, module, **more):
        e = {"LD_PRELOAD": self.shim, "TORTURE_KIND": kind}
        if module:
            e["TORTURE_FROM"] = module
        e.update({k: str(v) for k, v in more.items()})
        return e

    def places(self, job, kind, module):
        """The numbers of the calls to fail: the first from each place."""
        self.fresh()
        path = self.top + "/places"
        if os.path.exists(path):
            os.unlink(path)
        job.run(self.tern, self.work, self.env(kind, module, TORTURE_PLACES=path))
        return [int(x) for x in read(path).split()] if os.path.exists(path) else []

    def judge(self, job, rc, out, err):
        want_printed, want_written = self.reference(job)
        if rc == 0:
            try:
                got = job.printed(out)
            except ValueError:
                raise Finding(f"exit 0 with output that is no JSON: {out[:80]!r}")
            if got != want_printed:
                raise Finding("exit 0 with another output than the reference: " + difference(want_printed, got))
            if job.written(self.tern, self.work) != want_written:
                raise Finding("exit 0 with another file than the reference")
            return
        self.n_refused += 1
        if rc not in (1, 2):
            raise Finding(f"ends with status {rc}: {err.decode('utf-8', 'replace')[-200:]}")
        if not err.strip():
            raise Finding(f"exit {rc} without a message")

    def one(self, job, kind, module, number):
        self.reference(job)
        self.fresh()
        before = read(self.work + "/m.tern")
        target = self.work + "/" + job.writes[1] if job.writes else None
        if job.writes and job.writes[0] == "package":
            shutil.copy(self.work + "/m.tern", target)  # a good package that must not be lost
        self.n += 1
        try:
            rc, out, err = job.run(self.tern, self.work, self.env(kind, module, TORTURE_AT=number))
            self.judge(job, rc, out, err)
            if read(self.work + "/m.tern") != before:
                raise Finding("the model was changed")
            if rc and kind == "interrupt":
                raise Finding("a call that was interrupted is not tried again: " + err.decode("utf-8", "replace")[-200:])
            if rc and job.writes and job.writes[0] == "package" and read(target) != before and \
                    job.written(self.tern, self.work) != self.reference(job)[1]:
                raise Finding("a failed pack replaced the package that was there by something else")
        except Finding as f:
            self.findings.append(f"{job.name}: {kind} {number} from {module or 'anywhere'}: {f}")
            print(self.findings[-1], flush=True)

    def kill(self, job, after):
        """A kill at an instant: what was there is there, whole, or the new is."""
        self.reference(job)
        self.fresh()
        before = read(self.work + "/m.tern")
        if job.writes and job.writes[0] == "package":
            shutil.copy(self.work + "/m.tern", self.work + "/" + job.writes[1])
        self.n += 1
        try:
            job.run(self.tern, self.work, kill_after=after)
            if read(self.work + "/m.tern") != before:
                raise Finding("the model was changed")
            if job.writes and os.path.exists(self.work + "/" + job.writes[1]):
                job.written(self.tern, self.work)
            o = subprocess.run([self.tern, "rag", "ls", "--store", self.work + "/s.db", "--json"], capture_output=True)
            if o.returncode or not isinstance(json.loads(o.stdout), list):
                raise Finding("the store cannot be read: " + o.stderr.decode())
        except (Finding, ValueError) as f:
            self.findings.append(f"{job.name}: killed after {after:.3f} s: {f}")
            print(self.findings[-1], flush=True)

    def close(self, what):
        shutil.rmtree(self.top, ignore_errors=True)
        print(f"{what}: {self.n} faults, {self.n_refused} refused, {len(self.findings)} findings")
        return 1 if self.findings else 0


def some(numbers, most):
    """At most so many of them, evenly: a test has a minute."""
    return numbers if len(numbers) <= most else [numbers[i * len(numbers) // most] for i in range(most)]


def main():
    mode, tern, shim = sys.argv[1:4]
    tern, shim = os.path.abspath(tern), os.path.abspath(shim)
    by_name = {j.name: j for j in JOBS}
    b = Bench(tern, shim)
    if mode == "slice":
        wanted = sys.argv[4:]
        for name, kind, module, *most in SLICE:
            if wanted and name not in wanted:
                continue
            numbers = b.places(by_name[name], kind, module)
            if not numbers and module:
                raise SystemExit(f"{name}: no call of kind {kind} from {module}: the shim does not work")
            for n in some(numbers, *most or [40]):
                b.one(by_name[name], kind, module, n)
        return b.close("torture")
    seed = int(os.environ.get("TERN_SEED", time.time()))
    rng = random.Random(seed)
    print(f"seed {seed} (TERN_SEED)", flush=True)
    end = time.time() + 60 * float(sys.argv[4])
    todo = []
    for j in JOBS:
        b.reference(j)
        for kind in KINDS:
            todo += [(j, kind, n) for n in b.places(j, kind, None)]
    rng.shuffle(todo)
    while time.time() < end:
        if todo:
            j, kind, n = todo.pop()
            b.one(j, kind, None, n)
        if rng.random() < 0.1 or not todo:
            b.kill(rng.choice(JOBS), rng.random() * 0.4)
        if not todo:
            todo = [(j, kind, rng.randrange(1, 2000)) for j in JOBS for kind in KINDS]
            rng.shuffle(todo)
    return b.close("torture")


if __name__ == "__main__":
    sys.exit(main())
