"""Reads and writes safetensors with numpy alone. bf16 is held as f32 in memory and rounded (to nearest even) when written."""
import json

import numpy as np


def to_bf16(a):
    b = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(b):
    return (b.astype(np.uint32) << 16).view(np.float32)


def write(path, tensors, dtype="BF16"):
    """tensors: name -> array; dtype BF16 or F32, and I8 of arrays that are of bytes. Bytes lie last, so that floats lie at multiples of 4."""
    head, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors, key=lambda k: (tensors[k].dtype == np.int8, k)):
        whole = tensors[name].dtype == np.int8
        a = np.ascontiguousarray(tensors[name], np.int8 if whole else np.float32)
        b = (to_bf16(a) if dtype == "BF16" and not whole else a).tobytes()
        head[name] = {"dtype": "I8" if whole else dtype, "shape": list(a.shape), "data_offsets": [at, at + len(b)]}
        at += len(b)
        blobs.append(b)
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(len(h).to_bytes(8, "little") + h)
        for b in blobs:
            f.write(b)


def read(path):
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        head = json.loads(f.read(n))
        data = f.read()
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        raw = data[slice(*t["data_offsets"])]
        if t["dtype"] == "BF16":
            a = from_bf16(np.frombuffer(raw, np.uint16))
        elif t["dtype"] == "F16":
            a = np.frombuffer(raw, np.float16).astype(np.float32)
        else:
            assert t["dtype"] == "F32", t["dtype"]
            a = np.frombuffer(raw, np.float32)
        out[name] = a.reshape(t["shape"]).copy()
    return out
