#!/usr/bin/env bash
# Encoders of pictures beside llama.cpp's mtmd, by turns, on the same random weights (F16) and the same pixels: a view's time, that of 17
# views (SmolVLM's default), opening, peak memory, how far the rows are from tern's in floats; then a cold start with a picture.
#   MTMD_TOWER=path [MTMD_CLI=path] bench/eyes-vs-peer.sh [ROUNDS] [THREADS] [MODELS]
# MTMD_TOWER: bench/peer/mtmd_tower.cpp, built against that engine's sources and libmtmd. MTMD_CLI: its llama-mtmd-cli; without it, no
# cold start. MODELS: smolvlm-500m:512,qwen3-vl-4b:512,gemma3-4b:896, a name of `tern synth` without -mmproj and the side of the picture.
# Milliseconds are medians; those of the processor are all threads' and say more on a busy machine. RUN: words in front of every command.
# mtmd is run without flash attention (as it is compared), with it, and with a file in Q8_0.
set -euo pipefail
rounds=${1:-3} threads=${2:-2} models=${3:-smolvlm-500m:512,qwen3-vl-4b:512,gemma3-4b:896}
: "${MTMD_TOWER:?path of a mtmd_tower binary (bench/peer/mtmd_tower.cpp)}"
tern=${TERN:-build/tern} tower=${BENCH_TOWER:-build/bench_tower} work=${WORK:-build/eyes-vs-peer}
mkdir -p "$work"
for m in ${models//,/ }; do
    for type in f16 q8_0; do
        f=$work/mmproj-${m%:*}.$type.gguf
        [ -s "$f" ] || "$tern" synth --arch "${m%:*}-mmproj" --type "$type" -o "$f"
    done
done
[ -z "${MTMD_CLI:-}" ] || [ -s "$work/smolvlm-500m.q8_0.gguf" ] || "$tern" synth --arch smolvlm-500m --type q8_0 -o "$work/smolvlm-500m.q8_0.gguf"
exec python3 - "$tern" "$tower" "$MTMD_TOWER" "${MTMD_CLI:-}" "$work" "$models" "$rounds" "$threads" "${RUN:-}" <<'PY'
import array, math, os, random, re, shutil, statistics, struct, subprocess, sys, time, zlib
tern, tower, peer, cli, work, models, rounds, threads, run = sys.argv[1:]
run, rounds = run.split(), int(rounds)


def call(args):
    p = subprocess.run(run + args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(args)}: exit status {p.returncode}")
    return p.stdout


def rows(path):
    with open(path, "rb") as f:
        return array.array("f", f.read())


def beside(a, b):
    largest = max(abs(x) for x in a)
    worst = max(abs(x - y) for x, y in zip(a, b)) / largest
    return worst, sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


print(f"{'encoder':>14} {'form':>12} {'view ms':>9} {'least':>8} {'processor':>9} {'17 views':>9} {'open ms':>8} {'MiB':>6} {'off':>8} cosine")
for model in models.split(","):
    name, side = model.split(":")
    own = side if name.startswith("qwen") else "0"
    f16, q8 = (f"{work}/mmproj-{name}.{t}.gguf" for t in ("f16", "q8_0"))
    out = f"{work}/rows"
    forms = {"tern float": (tower, f16, own, "float"), "tern int8": (tower, f16, own, "int8"), "mtmd": (peer, f16, side, "-"),
             "mtmd flash": (peer, f16, side, "flash"), "mtmd q8_0": (peer, q8, side, "-")}
    n = 17 if name.startswith("smolvlm") else 1
    got, kept = {f: [] for f in forms}, {}
    for r in range(rounds):
        for form, (binary, path, s, how) in forms.items():
            many = str(n if r == 0 else 1)
            args = [binary, path, threads, s, how, many, out] if binary == tower else [binary, path, threads, s, many, out, how]
            text = call(args)
            views = [tuple(map(float, v)) for v in re.findall(r"([\d.]+) ms, +([\d.]+) ms of", text)]
            got[form].append((float(re.search(r"opened in ([\d.]+)", text)[1]), views, int(re.search(r"(\d+) MiB", text)[1])))
            kept[form] = rows(out)
    for form, g in got.items():
        views = [v for _, all_views, _ in g for v in all_views]
        ms, cpu = (statistics.median(v[i] for v in views) for i in (0, 1))
        off, cosine = beside(kept["tern float"], kept[form])
        many = f"{sum(v[0] for v in g[0][1]):9.0f}" if n > 1 else f"{'':9}"
        print(f"{name:>14} {form:>12} {ms:9.0f} {min(v[0] for v in views):8.0f} {cpu:9.0f} {many} {statistics.median(o for o, _, _ in g):8.0f} "
              f"{max(m for _, _, m in g):6} {off:8.1e} {cosine:.6f}", flush=True)
if not cli:
    sys.exit()


def png(path):
    """512 x 512 pixels that no other start has seen."""
    raw = b"".join(b"\0" + random.randbytes(512 * 3) for _ in range(512))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 512, 512, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def start(args):
    """Seconds of a process that gives one token, its files out of the page cache."""
    for path in (lm, mm):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    png(shot)
    t0 = time.monotonic()
    if subprocess.run(run + args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        print(f"{args[0]} ended with an error: its time is a lower bound at best")
    return time.monotonic() - t0


lm, mm, shot, cache = f"{work}/smolvlm-500m.q8_0.gguf", f"{work}/mmproj-smolvlm-500m.f16.gguf", f"{work}/shot.png", os.path.abspath(f"{work}/cache")
os.environ["XDG_CACHE_HOME"] = cache
ours = [tern, "run", lm, "--mmproj", mm, shot, "What is this?", "-n", "1", "--temp", "0", "--pack", "never", "-t", threads]
theirs = [cli, "-m", lm, "--mmproj", mm, "--image", shot, "-p", "What is this?", "-n", "1", "--temp", "0", "--jinja", "-t", threads]
times = {"tern, first ever": [], "tern": [], "tern --one-view": [], "mtmd": []}
for r in range(rounds):
    shutil.rmtree(cache, ignore_errors=True)
    times["tern, first ever"].append(start(ours))
    times["tern"].append(start(ours))
    times["tern --one-view"].append(start(ours + ["--one-view"]))
    times["mtmd"].append(start(theirs))
print("cold start of SmolVLM-500M with a picture of 512 x 512 pixels to one token, seconds:")
for what, t in times.items():
    print(f"{what:>18} {statistics.median(t):6.2f} (least {min(t):.2f})")
PY
