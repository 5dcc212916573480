#!/usr/bin/env python3
"""Encoders of pictures beside llama.cpp's mtmd, family by family, on the same small random weights in F32 and the same pixels: the largest difference of
their rows, as a share of the largest value. towers.py TERN BENCH_TOWER MTMD_TOWER [NAME...]; README.md says how to build the last one."""
import array
import os
import struct
import subprocess
import sys
import tempfile

TOWERS = {"tiny-smolvlm": 32, "tiny-idefics3": 47, "tiny-gemma3": 32, "tiny-qwen25vl": 112, "tiny-qwen3vl": 64, "tiny-lfm2vl": 32, "tiny-lfm2.5vl": 36, "tiny-gemma4-31b": 24,
          "tiny-internvl": 24, "tiny-interns1": 45, "tiny-minicpmv": 32, "tiny-minicpmo": 30}  # the side of their picture
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Gguf:
    """The bytes of a small GGUF file: where its keys' values and its tensors are."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = bytearray(f.read())
        self.at, self.keys, self.tensors = 24, {}, {}
        n_tensors, n_keys = struct.unpack_from("<QQ", self.bytes, 8)
        for _ in range(n_keys):
            key, kind = self.string(), self.take("I")
            self.keys[key] = self.at
            self.skip(kind)
        for _ in range(n_tensors):
            name = self.string()
            shape = [self.take("Q") for _ in range(self.take("I"))]
            self.take("I")
            self.tensors[name] = shape, self.take("Q")
        self.data = (self.at + 31) // 32 * 32

    def take(self, form):
        value, = struct.unpack_from("<" + form, self.bytes, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        n = self.take("Q")
        self.at += n
        return self.bytes[self.at - n:self.at].decode()

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            of, n = self.take("I"), self.take("Q")
            for _ in range(n):
                self.skip(of)
        else:
            self.at += SIZES[kind]


def for_mtmd(path):
    """The file as mtmd must have it to say the same. It puts the class of InternVL after the patches. It adds the table of positions as it stands, whose first row is the
    class's: so the first row goes to the end. It takes 64 queries of MiniCPM-V unless the file counts them."""
    g = Gguf(path)
    if "internvl" in path or "interns1" in path:
        (width, n, *_), off = g.tensors["v.position_embd.weight"]
        first, end = g.data + off, g.data + off + 4 * width * n
        g.bytes[first:end] = g.bytes[first + 4 * width:end] + g.bytes[first:first + 4 * width]
    elif "minicpm" in path:
        (_, n, *_), _ = g.tensors["resampler.query"]
        struct.pack_into("<I", g.bytes, g.keys["clip.minicpmv_query_num"], n)
    with open(path + ".mtmd", "wb") as f:
        f.write(g.bytes)
    return path + ".mtmd"


def rows(path):
    with open(path, "rb") as f:
        return array.array("f", f.read())


def main():
    tern, ours, theirs, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        for name in names or TOWERS:
            side, path = str(TOWERS[name]), f"{work}/{name}.gguf"
            subprocess.run([tern, "synth", "--arch", name + "-mmproj", "--type", "f32", "-o", path], check=True, capture_output=True)
            subprocess.run([ours, path, "2", side, "float", "1", path + ".a"], check=True, capture_output=True)
            there = subprocess.run([theirs, for_mtmd(path), "2", side, "1", path + ".b"], capture_output=True)
            if there.returncode:
                print(f"{name:16} mtmd ended with {there.returncode}")
                continue
            a, b = rows(path + ".a"), rows(path + ".b")
            assert len(a) == len(b) and os.path.getsize(path + ".a"), (len(a), len(b))
            print(f"{name:16} {max(abs(x - y) for x, y in zip(a, b)) / max(map(abs, a)):.1e}", flush=True)


if __name__ == "__main__":
    main()
