#!/usr/bin/env python3
"""A model folder with its weights as Q4_0 keeps them: what that format alone loses, for any architecture, in floats otherwise.

as_q4_0.py FOLDER OUT [PART...]: tensors whose names contain a PART, like embed, stay as they are. Every block of 32 along a row has one scale in
F16, its value of largest magnitude over -8, and codes of 4 bits (the format's published rule, without weights of importance)."""
import os
import shutil
import sys

import numpy as np

import safetensors


def rounded(x):
    b = x.reshape(-1, 32).astype(np.float32)
    top = b[np.arange(len(b)), np.abs(b).argmax(1)]
    scale = top / -8
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    code = np.minimum(15, (b * inverse[:, None] + 8.5).astype(np.int32))
    return ((code - 8) * scale.astype(np.float16).astype(np.float32)[:, None]).reshape(x.shape)


def main():
    source, out, kept = sys.argv[1], sys.argv[2], sys.argv[3:]
    os.makedirs(out, exist_ok=True)
    for f in os.listdir(source):
        if not f.endswith(".safetensors"):
            shutil.copy(os.path.join(source, f), out)
    tensors, n, n_all = safetensors.read(os.path.join(source, "model.safetensors")), 0, 0
    for name, x in tensors.items():
        n_all += x.size
        if x.ndim < 2 or x.shape[-1] % 32 or any(part in name for part in kept):
            continue
        tensors[name] = rounded(x)
        n += x.size
    safetensors.write(os.path.join(out, "model.safetensors"), tensors, "F32")
    print(f"{out}: {n} of {n_all} weights in blocks")


if __name__ == "__main__":
    main()
