#!/usr/bin/env bash
# What tern says beforehand that a model takes is what it then takes, within 15 %: every type of a file, every scheme.
# A type is a question of weights, which a short context shows best; what a long one takes beside them depends on how weights are held: some
# types and some contexts here, all with TERN_TEST_FULL (`make check`). Packages are asked in a long context alone.
set -euo pipefail
tern=$1
! nm -D "$tern" 2>/dev/null | grep -qE '__(asan|tsan|ubsan)_' || { echo "skipped: a sanitizer's memory is another"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || { echo "skipped: the emulator's memory is counted too"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_CACHE_HOME=$tmp/cache
"$tern" synth --arch tiny-llama --type f16 -o "$tmp/small.gguf"
python3 - "$tern" "$tmp" <<'PY'
import glob, json, os, re, subprocess, sys
tern, tmp = sys.argv[1:]
SHORT, LONG = 256, 1536
FULL = "TERN_TEST_FULL" in os.environ
SEEN_LONG = {"f32", "q4_0", "q4_k, float", "iq2_xxs, two files", "f16, group-w8a8"}
SOME = {"f16", "q4_k", "q6_k", "q8_0", "iq4_nl", "iq2_xxs", "iq1_m", "q2_0", "iq4_k", "iq2_ks"}  # a type of every way to hold values
failed, seen_long = [], set()
for n_ctx in (SHORT, LONG):  # most of the context: keys and values are there once they are written
    open("%s/%d.txt" % (tmp, n_ctx), "w").write("hello the world " * (n_ctx * 106 // 1536))


def run(*args):
    r = subprocess.run([tern, *args], capture_output=True, text=True)
    return r.returncode, r.stdout, r.stderr


def compare(label, path, *how):
    compare_at(SHORT, label, path, *how)
    if FULL or label in SEEN_LONG:
        seen_long.add(label)
        compare_at(LONG, label, path, *how)


def compare_at(n_ctx, label, path, *how):
    common = ["run", "-m", path, "-c", str(n_ctx), "-t", "2", "--kv", "f32", "--set", "chunk=256", *how]
    rc, out, err = run(*common, "-f", "%s/%d.txt" % (tmp, n_ctx), "-n", "2", "--temp", "0", "--ignore-eos", "--json")
    assert rc == 0, (label, err)
    r = json.loads(out)
    assert r["prompt_tokens"] > n_ctx * 0.85, r["prompt_tokens"]
    rc, out, err = run(*common, "-p", "x", "--max-memory", "1M")
    said = re.search(r"needs about (\d+) MiB .*weights (\d+), keys and values (\d+), work (\d+)", err)
    assert rc == 1 and said, (label, err)
    want, peak = int(said[1]), r["peak_rss_bytes"] / 2**20
    print("%4d %-24s told %4d MiB (weights %3s, keys and values %s, work %s), took %4.0f: %+.0f %%" % (n_ctx, label, *(said[i] if i > 1 else want for i in (1, 2, 3, 4)), peak, (want / peak - 1) * 100))
    if abs(want / peak - 1) > 0.15:
        failed.append(label)


def make(kind):
    path = "%s/%s.gguf" % (tmp, kind)
    subprocess.run([sys.executable, "tests/cli/zeros.py", kind, path], stdin=open(tmp + "/small.gguf", "rb"), check=True)
    return path


ALL = "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s tq1_0 tq2_0 q1_0 q2_0 nvfp4 q8_k iq2_k iq4_k iq6_k iq4_kss iq2_ks iq3_kt".split()
for kind in ALL if FULL else [k for k in ALL if k in SEEN_LONG or k in SOME]:
    path = make(kind)
    compare(kind, path, "--pack", "never")
    if kind in ("q4_0", "q4_k", "iq2_xxs"):  # of several kinds of blocks: loaded before the prompt, widened, and in two files, which do not stream
        compare(kind + ", sequential", path, "--pack", "never", "--set", "load=sequential")
        compare(kind + ", float", path, "--scheme", "float")
        subprocess.run([sys.executable, "tests/tools/split_gguf.py", path, tmp + "/split", "2"], check=True)
        parts = sorted(glob.glob(tmp + "/split*.gguf"))
        compare(kind + ", two files", parts[0], "--pack", "never")
        for part in parts:
            os.unlink(part)
    os.unlink(path)
path = make("random")
for scheme in "float llm-int8 group-w8a8".split():
    compare("f16, " + scheme, path, "--scheme", scheme)
rare = [["gram", "--bits", "3"], ["gram", "--bits", "4", "--compress"], ["edgeflow", "--bits", "5"], ["naive-w8a8"], ["smoothquant"]]  # packing takes longest
for scheme in [["gram"], ["llm-npu"]] + (rare if FULL else []):
    package = tmp + "/m.tern"
    rc, out, err = run("pack", path, "-o", package, "--calib-tokens", "256", *(["--quick"] if scheme[0] == "gram" else []), "--scheme", *scheme)
    assert rc == 0, err
    for form in ("tiles", "packed"):
        if form == "tiles" or scheme[0] == "gram":
            compare_at(LONG, "%s, %s" % (" ".join(scheme), form), package, "--weights", form)
    os.unlink(package)
assert SEEN_LONG <= seen_long, SEEN_LONG - seen_long  # a label that was renamed
if failed:
    sys.exit("FAILED: told more or less than 15 % beside what was taken: " + ", ".join(failed))
PY
echo "estimate: fine"
