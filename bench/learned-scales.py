#!/usr/bin/env python3
"""Static scales of activations chosen by the loss, beside those that calibration chose (docs/record/beyond.md):

    bench/learned-scales.py TERN SOURCE TEXT WORK [--scheme NAME] [--bits B] [--windows N] [--passes P] [--also TEXT]

The text's paragraphs are dealt into two halves. WORK/base.tern is packed and calibrated on the first. There every site's scale is then tried at
a few multiples of itself, and keeps the one with the smallest KL divergence from SOURCE: WORK/learned.tern. Both packages are compared on the
second half, token by token, and on the text that --also names. Only the scales' bytes and the checksums over them change: weights stay as they are.
"""
import argparse
import json
import os
import random
import struct
import subprocess

LAYER, HEAD = 4, 7
TILES, WEIGHTLETS = 2, 9
READS = {8: 7, 9: 7, 21: 20}  # roles: K and V read what Q reads, up what gate reads
RECORD = struct.Struct("<IIqqQQfIQ")
STEPS = ((0.9, 1.1), (0.95, 1.05))  # multiples of a scale that a pass tries


def xxh64(b):
    p1, p2, p3, p4, p5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
    m = (1 << 64) - 1
    rotl = lambda x, r: (x << r | x >> (64 - r)) & m  # noqa: E731
    mix = lambda acc, v: rotl((acc + v * p2) & m, 31) * p1 & m  # noqa: E731
    at, n = 0, len(b)
    if n >= 32:
        v = [(p1 + p2) & m, p2, 0, -p1 & m]
        while at + 32 <= n:
            for i, x in enumerate(struct.unpack_from("<4Q", b, at)):
                v[i] = mix(v[i], x)
            at += 32
        h = sum(rotl(x, r) for x, r in zip(v, (1, 7, 12, 18))) & m
        for x in v:
            h = ((h ^ mix(0, x)) * p1 + p4) & m
    else:
        h = p5
    h = (h + n) & m
    while at + 8 <= n:
        h = (rotl(h ^ mix(0, struct.unpack_from("<Q", b, at)[0]), 27) * p1 + p4) & m
        at += 8
    if at + 4 <= n:
        h = (rotl(h ^ struct.unpack_from("<I", b, at)[0] * p1 & m, 23) * p2 + p3) & m
        at += 4
    for byte in b[at:]:
        h = rotl(h ^ byte * p5 & m, 11) * p1 & m
    h = (h ^ h >> 33) * p2 & m
    h = (h ^ h >> 29) * p3 & m
    return h ^ h >> 32


class Package:
    """A package whose scales can be changed (docs/reference/package-format.md)."""

    def __init__(self, path):
        self.bytes = bytearray(open(path, "rb").read())
        n_sections, (self.index_bytes,) = struct.unpack_from("<I", self.bytes, 12)[0], struct.unpack_from("<Q", self.bytes, 24)
        self.sections = [(64 + 40 * i, *struct.unpack_from("<IiQQQII", self.bytes, 64 + 40 * i)) for i in range(n_sections)]
        self.sites = {}  # (layer, site, scale): places of the scale; linears that read one input share it
        for at, kind, layer, _, _, _, toc, toc_bytes in self.sections:
            if kind not in (LAYER, HEAD) or not toc_bytes:
                continue
            for i in range(struct.unpack_from("<I", self.bytes, 64 + toc)[0]):
                place = 64 + toc + 16 + RECORD.size * i
                role, part, _, _, _, _, scale, _, _ = RECORD.unpack_from(self.bytes, place)
                if part in (TILES, WEIGHTLETS) and scale > 0:
                    self.sites.setdefault((layer, READS.get(role, role), scale), []).append(place + 40)
        self.seal(check=True)

    def set(self, site, factor):
        for place in self.sites[site]:
            struct.pack_into("<f", self.bytes, place, site[2] * factor)

    def seal(self, check=False):
        b = self.bytes
        before = bytes(b[:64 + self.index_bytes])
        for at, _, _, _, _, _, toc, toc_bytes in self.sections:
            if toc_bytes:
                struct.pack_into("<Q", b, at + 24, xxh64(bytes(b[64 + toc:64 + toc + toc_bytes])))
        struct.pack_into("<Q", b, 32, xxh64(bytes(b[64:64 + self.index_bytes])))
        struct.pack_into("<Q", b, 48, xxh64(bytes(b[:48])))
        if check and before != bytes(b[:64 + self.index_bytes]):
            raise SystemExit("the package's checksums are not as the format says")

    def write(self, path):
        self.seal()
        with open(path, "wb") as f:
            f.write(self.bytes)


def halves(text, folder):
    paragraphs = [p for p in open(text, encoding="utf-8").read().split("\n\n") if p.strip()]
    random.Random(1).shuffle(paragraphs)
    names = [os.path.join(folder, n) for n in ("chosen-on.txt", "held-out.txt")]
    for i, name in enumerate(names):
        with open(name, "w", encoding="utf-8") as f:
            f.write("\n\n".join(paragraphs[i::2]))
    return names


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tern", "source", "text", "work"):
        p.add_argument(name)
    p.add_argument("--scheme", default="gram")
    p.add_argument("--bits", default="8")
    p.add_argument("--also")
    p.add_argument("--windows", type=int, default=12, help="windows of 512 tokens that scales are chosen on")
    p.add_argument("--passes", type=int, default=len(STEPS))
    a = p.parse_args()
    os.environ["TERN_PACK"] = "never"
    os.makedirs(a.work, exist_ok=True)
    chosen_on, held = halves(a.text, a.work)
    base, trial, learned = (os.path.join(a.work, n + ".tern") for n in ("base", "trial", "learned"))
    bits = [] if a.scheme == "naive-w8a8" else ["--bits", a.bits]
    subprocess.run([a.tern, "pack", a.source, "-o", base, "--scheme", a.scheme, *bits, "--calib", chosen_on], check=True, stdout=subprocess.DEVNULL)

    def loss(package, text, windows, *more):
        cmd = [a.tern, "eval", "-m", package, "--task", "ppl", "--data", text, "--kl", a.source, "--json", *more]
        return json.loads(subprocess.check_output(cmd + (["--limit", str(windows)] if windows else []), stderr=subprocess.DEVNULL))

    pkg, factor = Package(base), {}
    best = first = loss(base, chosen_on, a.windows)["loss"]["kl"]
    print(f"{len(pkg.sites)} scales; KL where they are chosen {first:.6f}", flush=True)
    for steps in STEPS[:a.passes]:
        for site in pkg.sites:
            was = factor.get(site, 1.0)
            for step in steps:
                pkg.set(site, was * step)
                pkg.write(trial)
                kl = loss(trial, chosen_on, a.windows)["loss"]["kl"]
                if kl < best:
                    best, factor[site] = kl, was * step
            pkg.set(site, factor.get(site, 1.0))
            print(f"layer {site[0]}, role {site[1]}: scale {site[2]:.5f} times {factor.get(site, 1.0):.3f}, KL {best:.6f}", flush=True)
    pkg.write(learned)
    print(f"where they are chosen: {first:.6f} -> {best:.6f} ({100 * (best / first - 1):+.1f} %)")
    for text in [held, *([a.also] if a.also else [])]:
        r = loss(learned, text, 0, "--against", base)
        print(json.dumps({"text": text, **r}, indent=1), flush=True)


main()
