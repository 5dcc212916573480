"""Regenerates tests/formats/dequant_vectors.bin with an independent implementation: ggml's reference dequantisation.

usage: dequant_vectors.py PATH_TO_libggml-base.so OUT      (vectors in the tree: llama.cpp b7099; from iq1_s on commit d32676d77)

File: per storage type (order of tn_dtype from Q8_0 on): two random blocks, then their values as f32, little-endian."""
import ctypes, random, struct, sys

lib = ctypes.CDLL(sys.argv[1])
random.seed(20)
# name, values and bytes of a block, offsets of its f16 scales
TYPES = [("q8_0", 32, 34, [0]), ("q4_0", 32, 18, [0]), ("q4_1", 32, 20, [0, 2]), ("q5_0", 32, 22, [0]), ("q5_1", 32, 24, [0, 2]),
         ("q2_K", 256, 84, [80, 82]), ("q3_K", 256, 110, [108]), ("q4_K", 256, 144, [0, 2]), ("q5_K", 256, 176, [0, 2]),
         ("q6_K", 256, 210, [208]), ("iq4_nl", 32, 18, [0]), ("iq4_xs", 256, 136, [0]), ("mxfp4", 32, 17, []), ("iq1_s", 256, 50, [0]), ("iq1_m", 256, 56, []),
         ("iq2_xxs", 256, 66, [0]), ("iq2_xs", 256, 74, [0]), ("iq2_s", 256, 82, [0]), ("iq3_xxs", 256, 98, [0]), ("iq3_s", 256, 110, [0]),
         ("tq1_0", 256, 54, [52]), ("tq2_0", 256, 66, [64]), ("q1_0", 128, 18, [0]), ("q2_0", 64, 18, [0]), ("nvfp4", 64, 36, []), ("q8_K", 256, 292, [])]
with open(sys.argv[2], "wb") as out:
    for name, n, size, scales in TYPES:
        block = bytearray(random.randrange(256) for _ in range(2 * size))
        for b in range(2):
            for at in scales:
                block[b * size + at:b * size + at + 2] = struct.pack("<e", random.uniform(-0.1, 0.1))
        if name == "mxfp4":  # exponents of ordinary weights
            block[0], block[size] = 120, 118
        if name == "q8_K":
            block[0:4] = block[size : size + 4] = struct.pack("<f", 0.01)
        if name == "iq1_m":  # finite
            block[55], block[size + 55] = block[55] & 0xBF, block[size + 55] & 0xBF
        y = (ctypes.c_float * (2 * n))()
        getattr(lib, "dequantize_row_" + name)((ctypes.c_uint8 * len(block)).from_buffer(block), y, ctypes.c_int64(2 * n))
        out.write(bytes(block) + bytes(y))
