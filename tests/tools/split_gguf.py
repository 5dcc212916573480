#!/usr/bin/env python3
"""Splits a GGUF file as llama-gguf-split does: split_gguf.py FILE PREFIX N"""
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
src, prefix, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
d = open(src, "rb").read()
at = 4


def take(fmt):
    global at
    v = struct.unpack_from("<" + fmt, d, at)
    at += struct.calcsize("<" + fmt)
    return v[0]


def string():
    global at
    k = take("Q")
    at += k
    return d[at - k:at]


def skip(t):
    global at
    if t == 8:
        string()
    elif t == 9:
        e, k = take("I"), take("Q")
        for _ in range(k):
            skip(e)
    else:
        at += SIZES[t]


version, n_tensors, n_keys = take("I"), take("Q"), take("Q")
keys_at = at
for _ in range(n_keys):
    string()
    skip(take("I"))
keys, tensors = d[keys_at:at], []
for _ in range(n_tensors):
    name, k = string(), take("I")
    dims = [take("Q") for _ in range(k)]
    tensors.append([name, dims, take("I"), take("Q")])
data = (at + 31) // 32 * 32
ends = sorted(t[3] for t in tensors) + [len(d) - data]
for i in range(n):
    mine = tensors[len(tensors) * i // n:len(tensors) * (i + 1) // n]
    extra = b"".join(struct.pack("<Q", len(k)) + k + struct.pack("<IH", 2, v) for k, v in ((b"split.no", i), (b"split.count", n)))
    extra += struct.pack("<Q", 19) + b"split.tensors.count" + struct.pack("<Ii", 5, len(tensors))
    out = b"GGUF" + struct.pack("<IQQ", version, len(mine), (n_keys if i == 0 else 0) + 3) + (keys if i == 0 else b"") + extra
    body = b""
    for name, dims, t, off in mine:
        end = next(e for e in ends if e > off)
        out += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", t, len(body))
        body += d[data + off:data + end]
        body += b"\0" * (-len(body) % 32)
    out += b"\0" * (-len(out) % 32) + body
    open(f"{prefix}-{i + 1:05d}-of-{n:05d}.gguf", "wb").write(out)
