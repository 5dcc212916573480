import json, os, random, struct, subprocess, sys, tempfile

tern = sys.argv[1]
MODEL, LAYER, HEAD = 3, 4, 7
WEIGHTLETS, CHANNEL_BITS, STREAMS, CODED, EMBEDDING = 9, 10, 18, 64, 0
os.environ["TERN_PACK"] = "never"


def package(path):
    """{(kind, layer): {(role, part): (n, k, flags, plain size, bytes)}}"""
    b = open(path, "rb").read()
    assert b[:8] == b"TERNPKG\n"
    n_sections = struct.unpack_from("<I", b, 12)[0]
    out = {}
    for i in range(n_sections):
        kind, layer, off, _, _, toc, toc_bytes = struct.unpack_from("<iiQQQII", b, 64 + 40 * i)
        if kind not in (MODEL, LAYER, HEAD):
            continue
        n = struct.unpack_from("<I", b, 64 + toc)[0]
        for r in range(n):
            role, part, rows, k, at, size, _, flags, plain = struct.unpack_from("<IIqqQQfIQ", b, 64 + toc + 16 + 56 * r)
            out.setdefault((kind, layer), {})[role, part] = rows, k, flags, plain, b[off + at:off + at + size]
    return out


def table(frequency):
    left, given, done = list(frequency), [0] * 32, [False] * 32
    buckets = [None] * 32
    for _ in range(32):
        least = min((left[s], s) for s in range(32) if not done[s])[1]
        most = max((left[s], -s) for s in range(32))[1] * -1
        own = min(left[least], 128)
        if own == 128:
            most = least
        done[least] = True
        first = given[least]
        given[least] += own
        left[least] -= own
        buckets[least] = own, most, first, given[most] - own
        given[most] += 128 - own
        left[most] -= 128 - own
    assert not any(left)
    return buckets


def widths(payload, n):
    number = int.from_bytes(payload, "little")
    return [(number >> 3 * i & 7) + 1 for i in range(n)]


def pack(codes, bits):
    """128 codes to weightlets."""
    if bits == 8:
        return bytes(c ^ 128 for c in codes)
    out, low = b"", 0
    for w in (4, 2, 1):
        if bits & w:
            step = 16 * w
            out += bytes(sum((codes[j + step * p] >> low & (1 << w) - 1) << w * p for p in range(8 // w)) for j in range(step))
            low += w
    return out


def decode(stream, bits, tables, frequencies, k):
    states, at, out = list(struct.unpack_from("<64I", stream)), 256, b""
    groups = -(-k // 128)
    for tile in range(0, len(bits), 16):
        for g in range(groups):
            for c in range(tile, min(tile + 16, len(bits))):
                buckets, frequency = tables[c], frequencies[c]
                raw, n = max(0, bits[c] - 5), min(128, k - 128 * g)
                codes = [128 if bits[c] == 8 else 0] * 128
                for j in range(n):
                    x = states[j % 64]
                    slot = x % 4096
                    own, other, base, other_base = buckets[slot // 128]
                    mine = slot % 128 < own
                    symbol = slot // 128 if mine else other
                    x = frequency[symbol] * (x // 4096) + (slot % 128 + (base if mine else other_base)) % 65536
                    if x < 65536:
                        x = x << 16 | struct.unpack_from("<H", stream, at)[0]
                        at += 2
                    states[j % 64], codes[j] = x, symbol << raw
                for bit in range(raw):
                    word = int.from_bytes(stream[at:at + 16], "little")
                    at += 16
                    for j in range(n):
                        codes[j] |= (word >> j & 1) << bit
                out += pack(codes, bits[c])
    assert at == len(stream) and states == [1 << 16] * 64, "the stream does not end as it should"
    return out


def compare(plain, coded):
    n_coded = 0
    for place, records in coded.items():
        beside = coded[MODEL, -1] if place[0] == HEAD else records
        for (role, part), (n, k, flags, size, data) in records.items():
            if part != WEIGHTLETS or not flags & CODED:
                continue
            n_coded += 1
            want = plain[place][role, part]
            assert want[:3] == (n, k, flags & ~CODED) and len(want[4]) == size
            n_streams, n_tables, _, _, about = beside[role, STREAMS]
            bits = widths(beside[role, CHANNEL_BITS][4], n)
            sizes = struct.unpack_from(f"<{n_streams}I", about)
            frequency = [struct.unpack_from("<32H", about, 4 * n_streams + 64 * t) for t in range(n_tables)]
            nibbles = about[4 * n_streams + 64 * n_tables:]
            which = [nibbles[i // 2] >> i % 2 * 4 & 15 for i in range(n)]
            made = [table(f) for f in frequency]
            each, at = 64 if role == EMBEDDING else 256, 0
            assert n_streams == -(-n // each) and sum(sizes) == len(data)
            got = b""
            for s, bytes_of in enumerate(sizes):
                of = range(s * each, min(n, (s + 1) * each))
                got += decode(data[at:at + bytes_of], [bits[i] for i in of], [made[which[i]] for i in of], [frequency[which[i]] for i in of], k)
                at += bytes_of
            assert got == want[4], f"layer {place[1]}, role {role}: other weights"
    return n_coded


def run(*args):
    return subprocess.run([tern, *args], capture_output=True, text=True)


with tempfile.TemporaryDirectory() as tmp:
    # the last one has many linears a layer, and rows for outliers
    for arch, bits, scheme in (("tiny-qwen2", "3.5", "gram"), ("tiny-llama", "7", "gram"), ("tiny-gemma3n", "4.5", "edgeflow")):
        source = f"{tmp}/m.gguf"
        assert run("synth", "--arch", arch, "-o", source, "--seed", "3").returncode == 0
        made = {}
        for name, more in (("plain", []), ("coded", ["--compress", "--compress-rate", "0"])):
            r = run("pack", source, "-o", f"{tmp}/{name}.tern", "--bits", bits, "--scheme", scheme, "--calib-tokens", "256", "--json", *more)
            assert r.returncode == 0, r.stderr
            made[name] = json.loads(r.stdout)
        assert made["coded"]["coded_bytes"] < made["coded"]["weight_bytes"] == made["plain"]["coded_bytes"] == made["plain"]["weight_bytes"]
        assert made["coded"]["bytes"] < made["plain"]["bytes"] and made["coded"]["kl"] == made["plain"]["kl"]
        n = compare(package(f"{tmp}/plain.tern"), package(f"{tmp}/coded.tern"))
        assert n > 10, n
        sites = json.loads(run("inspect", f"{tmp}/coded.tern", "--json").stdout)
        assert "decoded_bytes" in json.dumps(sites)
        texts = set()
        for name in ("plain", "coded"):
            for load in ("stream", "overlap", "sequential", "mmap"):
                r = run("run", "-m", f"{tmp}/{name}.tern", "-p", "The river ran past the old mill", "-n", "24", "--temp", "0", "--load", load, "--ignore-eos", "--json")
                assert r.returncode == 0, r.stderr
                texts.add(json.loads(r.stdout)["text"])
        assert len(texts) == 1, texts
print("what is coded is what was stored before, and answers are the same")
