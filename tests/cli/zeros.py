"""A GGUF file of the llama shape whose matrices are stored in any type, and are zero: files of every type that cost nothing to make. With the type
"random" they are small random halves, for what zeros would not pass.

    zeros.py TYPE OUT.gguf < small.gguf      (metadata of the tokenizer and the architecture come from there)
"""
import os, struct, sys

# ggml's number, values and bytes of a block, bytes of a row before its blocks
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "bf16": (30, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q8_0": (8, 32, 34),
         "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18), "iq4_xs": (23, 256, 136), "mxfp4": (39, 32, 17),
         "iq2_xxs": (16, 256, 66), "iq2_xs": (17, 256, 74), "iq3_xxs": (18, 256, 98), "iq1_s": (19, 256, 50), "iq3_s": (21, 256, 110), "iq2_s": (22, 256, 82), "iq1_m": (29, 256, 56),
         "tq1_0": (34, 256, 54), "tq2_0": (35, 256, 66), "nvfp4": (40, 64, 36), "q1_0": (41, 128, 18), "q2_0": (42, 64, 18), "q8_k": (15, 256, 292),
         "iq2_k": (137, 256, 76), "iq4_k": (139, 256, 144), "iq6_k": (141, 256, 212), "iq4_kss": (146, 256, 128, 4), "iq2_ks": (145, 256, 70, 2), "iq3_kt": (154, 256, 100, 4),
         "random": (1, 1, 2)}
EMBD, FF, LAYERS, HEADS = 512, 1536, 16, 8
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def main():
    kind, out = sys.argv[1:]
    data = sys.stdin.buffer.read()
    at = 0

    def take(n):
        nonlocal at
        at += n
        return data[at - n:at]

    def number(fmt):
        return struct.unpack("<" + fmt, take(struct.calcsize(fmt)))[0]

    def skip(t):
        if t == 8:
            take(number("Q"))
        elif t == 9:
            of, n = number("I"), number("Q")
            for _ in range(n):
                skip(of)
        else:
            take(SIZES[t])

    assert take(4) == b"GGUF"
    version, _, n_keys = number("I"), number("Q"), number("Q")
    shape = {"llama.embedding_length": EMBD, "llama.feed_forward_length": FF, "llama.block_count": LAYERS, "llama.attention.head_count": HEADS,
             "llama.attention.head_count_kv": HEADS, "llama.context_length": 4096, "llama.rope.dimension_count": EMBD // HEADS, "llama.attention.key_length": EMBD // HEADS,
             "llama.attention.value_length": EMBD // HEADS}
    keys, vocab = [], None
    for _ in range(n_keys):
        begin = at
        name = take(number("Q")).decode()
        t = number("I")
        if name == "tokenizer.ggml.tokens":
            vocab = struct.unpack("<Q", data[at + 4:at + 12])[0]
        skip(t)
        if name in shape:
            keys.append(struct.pack("<Q", len(name)) + name.encode() + struct.pack("<II", 4, shape[name]))
        else:
            keys.append(data[begin:at])
    tensors = [("token_embd.weight", [EMBD, vocab]), ("output.weight", [EMBD, vocab]), ("output_norm.weight", [EMBD])]
    for i in range(LAYERS):
        tensors += [("blk.%d.%s.weight" % (i, n), d) for n, d in [("attn_norm", [EMBD]), ("ffn_norm", [EMBD]), ("attn_q", [EMBD, EMBD]), ("attn_k", [EMBD, EMBD]), ("attn_v", [EMBD, EMBD]),
                                                                  ("attn_output", [EMBD, EMBD]), ("ffn_gate", [EMBD, FF]), ("ffn_up", [EMBD, FF]), ("ffn_down", [FF, EMBD])]]
    head, offset = b"", 0
    for name, dims in tensors:
        t, values, size, *row = TYPES[kind if len(dims) > 1 else "f32"]
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", t, offset)
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        offset += (n // values * size + sum(row) * (dims[1] if row else 0) + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + head
    head += bytes(-len(head) % 32)
    with open(out, "wb") as f:
        f.write(head)
        if kind != "random":
            f.write(bytes(offset))
            return
        small = bytes(0x20 + b % 8 + (b & 0x80) for b in range(256))  # the upper byte of a half: 0.008 to 0.03, of either sign
        for name, dims in tensors:
            n = dims[0] * (dims[1] if len(dims) > 1 else 1)
            raw = bytearray(os.urandom(2 * n)) if len(dims) > 1 else struct.pack("<%df" % n, *[1.0] * n)
            if len(dims) > 1:
                raw[1::2] = bytes(raw[1::2]).translate(small)
            f.write(raw + bytes(-len(raw) % 32))


main()
