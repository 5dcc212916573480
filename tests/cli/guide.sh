#!/usr/bin/env bash
# The guide is true: the blocks of docs/guide/*.md that are marked `sh` run, in the order of docs/guide/README.md, in one new folder. That page
# says what the marks mean. Port 8080 becomes one that is free.
set -euo pipefail
tern=$1
if [ -n "${TERN_EMULATED:-}" ]; then
    echo "skipped: the host's compiler builds no programs for this processor, and answers take too long"
    exit 77
fi
if grep -q "TERN_SANITIZE:STRING=." "$(dirname "$tern")/CMakeCache.txt"; then
    echo "skipped: a sanitized library needs its sanitizer"
    exit 77
fi
command -v curl >/dev/null || { echo "skipped: no curl"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
exec 3<<'END'
import os, re, socket, subprocess, sys, time

tern, tmp, root = os.path.abspath(sys.argv[1]), sys.argv[2], os.getcwd()


def pages():
    """The pages in the order in which the index names them."""
    index = open("docs/guide/README.md", encoding="utf-8").read()
    return ["docs/guide/" + name for name in re.findall(r"^\d+\. \[.*?\]\(([a-z-]+\.md)\)", index, re.M)]


def blocks(text):
    """(line, mark, content) of every fenced block."""
    found, mark, start, lines = [], None, 0, []
    for number, line in enumerate(text.split("\n"), 1):
        if mark is None and line.startswith("```"):
            mark, start, lines = line[3:].strip(), number, []
        elif mark is not None and line == "```":
            found.append((start, mark, "\n".join(lines) + "\n"))
            mark = None
        elif mark is not None:
            lines.append(line)
    if mark is not None:
        raise SystemExit(f"a block begins at line {start} and does not end")
    return found


def script_of(page_blocks):
    """One bash script of a page: its commands share a shell, as they do where somebody types them."""
    out = ["exec 2>&1 </dev/null", "set -eu -o pipefail", 'trap \'s=$?; for p in $(jobs -p); do kill "$p" || true; done; exit $s\' EXIT']
    for i, (line, mark, content) in enumerate(page_blocks):
        written = re.search(r"\bfile=([a-z0-9_.-]+)$", mark)
        out.append(f"echo; echo '@@ {i} {line}'")
        if written:
            out.append(f"cat >{written.group(1)} <<'@@END'\n{content}@@END")
        elif mark == "sh":
            out.append(content)
        elif mark == "sh fails":
            out.append(f"set +e; ( set -e; {content}); status=$?; set -e\n[ $status != 0 ] || {{ echo '@@ succeeded'; exit 1; }}")
        elif mark not in ("console", "output"):
            raise SystemExit(f"line {line}: a block marked '{mark}'; docs/guide/README.md tells the marks")
    return "\n".join(out) + "\n"


def check(name, text, port):
    """What is wrong with a page, or None."""
    page_blocks = blocks(text.replace("8080", str(port)))
    ran = subprocess.run(["bash", "-c", script_of(page_blocks)], capture_output=True, text=True, cwd=tmp, env=env, timeout=1200, errors="replace")
    printed, at = {}, None
    for line in ran.stdout.split("\n"):
        mark = re.match(r"@@ (\d+) (\d+)$", line)
        if mark:
            at = int(mark.group(1))
            last = int(mark.group(2))
        elif at is not None:
            printed.setdefault(at, []).append(line)
    if ran.returncode:
        return f"{name}:{last}: exit status {ran.returncode}\n" + "\n".join(printed.get(at, [])) + ran.stderr
    for i, (line, mark, content) in enumerate(page_blocks):
        if mark != "output":
            continue
        before = [j for j in range(i) if page_blocks[j][1].startswith("sh")]
        got = "\n".join(printed.get(before[-1], [])) if before else ""
        for want in content.split("\n"):
            if want not in ("", "...") and want not in got:
                return f"{name}:{line}: not printed: {want}\nprinted was:\n{got}"
    return None


os.makedirs(f"{tmp}/bin")
os.makedirs(f"{tmp}/home")
os.symlink(tern, f"{tmp}/bin/tern")
for shared in ("models", "include", "examples", "tools", "bindings"):
    os.symlink(f"{root}/{shared}", f"{tmp}/{shared}")
# Of the build only what make demo makes.
build = os.path.dirname(tern)
made = {name for tool in ("query", "inputs") for name in subprocess.run(["ninja", "-C", build, "-t", tool, "demo"], capture_output=True, text=True).stdout.split()}
if "tern_eyes" in made:
    made.add("tern-eyes")
if "tern" not in made:
    raise SystemExit("what make demo builds cannot be told")
os.makedirs(f"{tmp}/build")
for name in os.listdir(build):
    if name in made or re.sub(r"\.so\.[0-9.]+$", ".so", name) in made:
        os.symlink(f"{build}/{name}", f"{tmp}/build/{name}")
env = {k: v for k, v in os.environ.items() if not k.startswith(("TERN_", "XDG_", "HF_", "OLLAMA_"))}
env.update(PATH=f"{tmp}/bin:" + env["PATH"], HOME=f"{tmp}/home", TERN_PACK="never") # a package made in the background would come at any time
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]

# The test itself: a command that fails, one that should and does not, and output that is not there are seen.
for text, wrong in [("```sh\ntrue\nfalse\n```\n", "exit status 1"), ("```sh fails\ntrue\n```\n", "succeeded"), ("```sh\necho a\n```\n```output\nb\n```\n", "not printed: b"),
                    ("```sh\nfalse | cat\n```\n", "exit status 1"), ("```sh fails\nfalse\n```\n```sh\necho a; echo b\n```\n```output\na\n...\nb\n```\n", None)]:
    said = check("itself", text, port)
    if (said is None) != (wrong is None) or wrong and wrong not in said:
        raise SystemExit(f"the test does not see: {text}{said}")

names = pages()
if len(names) < 10:
    raise SystemExit(f"the index names {len(names)} pages")
count = 0
for name in names:
    text = open(name, encoding="utf-8").read()
    began = time.monotonic()
    said = check(name, text, port)
    if said:
        raise SystemExit("FAILED: " + said)
    print(f"{name}: {time.monotonic() - began:.1f} s")
    count += sum(1 for b in blocks(text) if b[1].startswith("sh"))
print(f"guide: {count} blocks of {len(names)} pages ran as they say")
END
python3 /dev/fd/3 "$tern" "$tmp"
