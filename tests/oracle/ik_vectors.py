"""Regenerates tests/formats/ik_vectors.bin with an independent implementation: ik_llama.cpp's dequantisation.

usage: ik_vectors.py PATH_TO_libggml.so OUT      (vectors in the tree: ik_llama.cpp, commit 8337e4cd3)

File: per storage type (order of tn_dtype from Q6_0 on): one row of three random blocks, then its values as f32, little-endian. Every
bit of a block is used, so each field is random, too. IQ6_K's CPU reference there is a polynomial, not the table that its products use."""
import ctypes, random, struct, sys

lib = ctypes.CDLL(sys.argv[1])


class Params(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


lib.ggml_init.restype = ctypes.c_void_p
lib.ggml_init(Params(1 << 20, None, False))  # fills its table of halves
random.seed(41)
# name, bytes of a row before its blocks, bytes of a block
TYPES = [("q6_0", 0, 26), ("iq2_k", 0, 76), ("iq3_k", 0, 110), ("iq4_k", 0, 144), ("iq5_k", 0, 176), ("iq6_k", 0, 212), ("iq4_ks", 4, 136), ("iq4_kss", 4, 128), ("iq5_ks", 4, 168),
         ("iq2_ks", 2, 70), ("iq3_ks", 2, 102), ("iq2_kl", 2, 86), ("iq1_kt", 4, 56), ("iq2_kt", 4, 68), ("iq3_kt", 4, 100), ("iq4_kt", 4, 128)]
BLOCKS = 3
with open(sys.argv[2], "wb") as out:
    for name, head, size in TYPES:
        row = bytearray(random.randrange(256) for _ in range(head + BLOCKS * size))
        scale = random.uniform(0.001, 0.1)
        if head:
            row[:head] = struct.pack("<f" if head == 4 else "<e", scale)
        else:
            for b in range(BLOCKS):
                row[b * size : b * size + 2] = struct.pack("<e", random.uniform(-0.1, 0.1))
        n = BLOCKS * (32 if name == "q6_0" else 256)
        y = (ctypes.c_float * n)()
        getattr(lib, "dequantize_row_" + name)((ctypes.c_uint8 * len(row)).from_buffer(row), y, ctypes.c_int64(n))
        out.write(bytes(row) + bytes(y))
