"""Block formats of GGUF widened by their definition, in float64: python3 tests/oracle/dequant_oracle.py writes dequant.bin;
with --check it compares.

Each format is written as bit fields over whole arrays, not as the loops of an implementation. Products of a half, a scale of at most
eight bits and a value fit float32 exactly and only the last subtraction rounds, so the engine's values must be these bits.

File, little-endian, per type: name (8 bytes, zero padded), u32 block bytes, u32 values per block, u32 blocks, bytes, float32 values."""
import pathlib
import re
import struct
import sys

import numpy as np

OUT = pathlib.Path(__file__).parent / "dequant.bin"
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float64)


def half(b, at):
    return np.ascontiguousarray(b[:, at : at + 2]).view("<f2").astype(np.float64)


def nibbles(b):
    """Blocks of 32: all low nibbles, then all high ones."""
    return np.concatenate([b & 15, b >> 4], axis=1).astype(np.int64)


def bits(b):
    """Bit i of a little-endian field."""
    return np.unpackbits(b, axis=1, bitorder="little").astype(np.int64)


def crumbs(b):
    """Two-bit values of super-blocks: of every 32 bytes, bits 0-1 of all, then bits 2-3 of all, ..."""
    parts = b.reshape(len(b), -1, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    return (parts & 3).reshape(len(b), -1).astype(np.int64)


def wide_nibbles(b):
    """Nibbles of super-blocks: of every 32 bytes, the low ones of all, then the high ones."""
    parts = b.reshape(len(b), -1, 1, 32) >> np.array([0, 4], dtype=np.uint8)[None, None, :, None]
    return (parts & 15).reshape(len(b), -1).astype(np.int64)


def six_bit_pairs(b):
    """Eight scales and eight minima in twelve bytes: four whole ones each, the others' low nibbles in the last four bytes and their two
    high bits on top of the first eight."""
    s = b.astype(np.int64)
    first, second, last = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scales = np.concatenate([first & 63, (last & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (last >> 4) | (second >> 6) << 4], axis=1)
    return scales, minima


def spread(groups, n):
    return np.repeat(groups, n, axis=1)


def q3_scales(b):
    """Sixteen six-bit scales, offset 32: low nibbles in the order of nibbles() over eight bytes, high pairs as crumbs over four."""
    low = nibbles(b[:, 0:8])
    high = ((b[:, None, 8:12] >> np.array([0, 2, 4, 6], dtype=np.uint8)[None, :, None]) & 3).reshape(len(b), 16).astype(np.int64)
    return (low | high << 4) - 32


def q3_high(b):
    """The third bit: bit p of byte i belongs to value 32 p + i; clear means minus four."""
    return np.stack([(b >> p) & 1 for p in range(8)], axis=1).reshape(len(b), 256).astype(np.int64)


def q4_k(b):
    scales, minima = six_bit_pairs(b[:, 4:16])
    return half(b, 0) * spread(scales, 32) * wide_nibbles(b[:, 16:144]) - half(b, 2) * spread(minima, 32)


def q5_k(b):
    scales, minima = six_bit_pairs(b[:, 4:16])
    q = wide_nibbles(b[:, 48:176]) | q3_high(b[:, 16:48]) << 4
    return half(b, 0) * spread(scales, 32) * q - half(b, 2) * spread(minima, 32)


def q6_k(b):
    low = np.concatenate([np.concatenate([b[:, o : o + 64] & 15, b[:, o : o + 64] >> 4], axis=1) for o in (0, 64)], axis=1).astype(np.int64)
    q = (low | crumbs(b[:, 128:192]) << 4) - 32
    return half(b, 208) * spread(np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.int64), 16) * q


def iq4_xs(b):
    low = np.stack([(b[:, 4 + g // 2] >> (4 * (g % 2))) & 15 for g in range(8)], axis=1).astype(np.int64)
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2").astype(np.int64) >> (2 * np.arange(8)) & 3
    values = np.concatenate([IQ4_NL[nibbles(b[:, 8 + 16 * g : 24 + 16 * g])] for g in range(8)], axis=1)
    return half(b, 0) * spread((low | high << 4) - 32, 32) * values


def mxfp4(b):
    """OCP microscaling: E8M0 exponent, E2M1 values."""
    v = nibbles(b[:, 1:])
    exponent, mantissa = v >> 1 & 3, (v & 1).astype(np.float64)
    magnitude = np.where(exponent == 0, mantissa / 2, 2.0 ** (exponent - 1) * (1 + mantissa / 2))
    return np.where(v & 8, -1.0, 1.0) * magnitude * 2.0 ** (b[:, :1].astype(np.float64) - 127) + 0.0  # ggml has no minus zero


def listed(name, base, width):
    """The list that a type of code books numbers its groups of values by: the sets of src/formats/code_books.c, which are data, read as
    its comment says."""
    text = (OUT.parents[2] / "src/formats/code_books.c").read_text()
    words = re.search(name + r"_set\[\d+\] = \{(.*?)\}", text, re.S)[1].split(",")
    number = np.array([w * 64 + i for w, word in enumerate(words) for i in range(64) if int(word, 0) >> i & 1])
    return number[:, None] // base ** np.arange(width) % base


def fields(b, dtype):
    return np.ascontiguousarray(b).view(dtype).astype(np.int64)


def low_first(b, width):
    """Bit fields of `width` bits over little-endian bytes."""
    all_bits = bits(b).reshape(len(b), -1, width)
    return (all_bits << np.arange(width)).sum(axis=2)


def signed(magnitude, sign_bits):
    return magnitude.reshape(len(magnitude), -1) * (1 - 2 * sign_bits)


def parity_signs(seven):
    """Seven stored signs; the eighth makes the number of minus signs even."""
    s = seven[..., None] >> np.arange(7) & 1
    return np.concatenate([s, s.sum(axis=-1, keepdims=True) % 2], axis=-1).reshape(len(seven), -1)


IQ2, IQ3 = np.array([8, 25, 43]), np.array([4, 12, 20, 28, 36, 44, 52, 62])


def iq2_xxs(b):
    """Per 32 values: four bytes of entries, then 4 x 7 signs and a scale in 32 bits."""
    parts = b[:, 2:].reshape(len(b), 8, 8)
    word = fields(parts[:, :, 4:], "<u4").reshape(len(b), 8)
    seven = np.stack([word >> 7 * l & 127 for l in range(4)], axis=2).reshape(len(b), 32)
    q = signed(IQ2[listed("iq2_xxs", 3, 8)[parts[:, :, :4].reshape(len(b), 32)]], parity_signs(seven))
    return half(b, 0) * spread((word >> 28) + 0.5, 32) / 4 * q


def iq2_xs(b):
    word = fields(b[:, 2:66], "<u2")
    q = signed(IQ2[listed("iq2_xs", 3, 8)[word & 511]], parity_signs(word >> 9))
    return half(b, 0) * spread(low_first(b[:, 66:74], 4) + 0.5, 16) / 4 * q


def iq2_s(b):
    entry = b[:, 2:34] | low_first(b[:, 66:74], 2) << 8
    q = signed(IQ2[listed("iq2_s", 3, 8)[entry]], bits(b[:, 34:66]))
    return half(b, 0) * spread(low_first(b[:, 74:82], 4) + 0.5, 16) / 4 * q


def iq3_xxs(b):
    word = fields(b[:, 66:98], "<u4")
    seven = np.stack([word >> 7 * l & 127 for l in range(4)], axis=2).reshape(len(b), 32)
    q = signed(IQ3[listed("iq3_xxs", 8, 4)[b[:, 2:66]]], parity_signs(seven))
    return half(b, 0) * spread((word >> 28) + 0.5, 32) / 2 * q


def iq3_s(b):
    entry = b[:, 2:66] | bits(b[:, 66:74]) << 8
    q = signed(2 * listed("iq3_s", 8, 4)[entry] + 1, bits(b[:, 74:106]))
    return half(b, 0) * spread(2 * low_first(b[:, 106:110], 4) + 1, 32) * q


def iq1(b, d, entry, shift, scale, n):
    """Digits about zero, moved by an eighth up or down."""
    q = listed("iq1", 3, 8)[entry].reshape(len(b), 256) - 1 + spread(np.where(shift, -0.125, 0.125), 256 // shift.shape[1])
    return d * spread(2 * scale + 1, n) * q


def iq1_s(b):
    word = fields(b[:, 34:50], "<u2")
    high = np.stack([word >> 3 * l & 7 for l in range(4)], axis=2).reshape(len(b), 32)
    return iq1(b, half(b, 0), b[:, 2:34] | high << 8, word >> 15, word >> 12 & 7, 32)


def iq1_m(b):
    high, words = low_first(b[:, 32:48], 4), fields(b[:, 48:56], "<u2")
    d = (words >> 12 << 4 * np.arange(4)).sum(axis=1, keepdims=True).astype("<u2").view("<f2").astype(np.float64)
    scale = np.stack([words >> 3 * l & 7 for l in range(4)], axis=2).reshape(len(b), 16)
    return iq1(b, d, b[:, :32] | (high & 7) << 8, high >> 3, scale, 16)


def tq1_0(b):
    """A byte is a fraction of 256; digit n is what three times the fraction left after n digits carries."""
    def digits(part, n):
        fraction = part[:, None, :].astype(np.int64) * 3 ** np.arange(n)[None, :, None] % 256
        return (fraction * 3 // 256).reshape(len(b), -1)

    return half(b, 52) * (np.concatenate([digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)], axis=1) - 1.0)


def nvfp4(b):
    """E2M1 values in sixteens (low nibbles first) with E4M3 scales without sign; ggml halves them and takes the one NaN for 0."""
    e, m = (b[:, :4] >> 3 & 15).astype(np.int64), (b[:, :4] & 7).astype(np.float64)
    scale = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7)) * (b[:, :4] != 0x7F)
    v = np.concatenate([nibbles(b[:, 4 + 8 * s : 12 + 8 * s]) for s in range(4)], axis=1)
    x, m = v >> 1 & 3, (v & 1).astype(np.float64)
    return (np.where(v & 8, -1.0, 1.0) * np.where(x == 0, m / 2, 2.0 ** (x - 1) * (1 + m / 2)) + 0.0) * spread(scale, 16)


# name: (bytes, values, where the halves are, definition)
TYPES = {
    "F32": (4, 1, (), lambda b: np.ascontiguousarray(b).view("<f4").astype(np.float64)),
    "F16": (2, 1, (0,), lambda b: half(b, 0)),
    "BF16": (2, 1, (), lambda b: (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)),
    "Q8_0": (34, 32, (0,), lambda b: half(b, 0) * np.ascontiguousarray(b[:, 2:]).view(np.int8)),
    "Q4_0": (18, 32, (0,), lambda b: half(b, 0) * (nibbles(b[:, 2:]) - 8)),
    "Q4_1": (20, 32, (0, 2), lambda b: half(b, 0) * nibbles(b[:, 4:]) + half(b, 2)),
    "Q5_0": (22, 32, (0,), lambda b: half(b, 0) * ((nibbles(b[:, 6:]) | bits(b[:, 2:6]) << 4) - 16)),
    "Q5_1": (24, 32, (0, 2), lambda b: half(b, 0) * (nibbles(b[:, 8:]) | bits(b[:, 4:8]) << 4) + half(b, 2)),
    "Q2_K": (84, 256, (80, 82), lambda b: half(b, 80) * spread(b[:, :16] & 15, 16).astype(np.int64) * crumbs(b[:, 16:80]) - half(b, 82) * spread(b[:, :16] >> 4, 16)),
    "Q3_K": (110, 256, (108,), lambda b: half(b, 108) * spread(q3_scales(b[:, 96:108]), 16) * (crumbs(b[:, 32:96]) + 4 * q3_high(b[:, :32]) - 4)),
    "Q4_K": (144, 256, (0, 2), q4_k),
    "Q5_K": (176, 256, (0, 2), q5_k),
    "Q6_K": (210, 256, (208,), q6_k),
    "IQ4_NL": (18, 32, (0,), lambda b: half(b, 0) * IQ4_NL[nibbles(b[:, 2:])]),
    "IQ4_XS": (136, 256, (0,), iq4_xs),
    "MXFP4": (17, 32, (), mxfp4),
    "IQ1_S": (50, 256, (0,), iq1_s),
    "IQ1_M": (56, 256, (), iq1_m),
    "IQ2_XXS": (66, 256, (0,), iq2_xxs),
    "IQ2_XS": (74, 256, (0,), iq2_xs),
    "IQ2_S": (82, 256, (0,), iq2_s),
    "IQ3_XXS": (98, 256, (0,), iq3_xxs),
    "IQ3_S": (110, 256, (0,), iq3_s),
    "TQ1_0": (54, 256, (52,), tq1_0),
    "Q1_0": (18, 128, (0,), lambda b: half(b, 0) * (2 * bits(b[:, 2:]) - 1)),
    "Q2_0": (18, 64, (0,), lambda b: half(b, 0) * (low_first(b[:, 2:], 2) - 1)),
    "NVFP4": (36, 64, (), nvfp4),
    "Q8_K": (292, 256, (), lambda b: np.ascontiguousarray(b[:, :4]).view("<f4").astype(np.float64) * np.ascontiguousarray(b[:, 4:260]).view(np.int8)),
    "TQ2_0": (66, 256, (64,), lambda b: half(b, 64) * (crumbs(b[:, :64]) - 1.0)),
}


def make():
    rng = np.random.default_rng(20)
    out = b""
    for name, (n_bytes, n_values, halves, define) in TYPES.items():
        n = 3 if n_values == 256 else 6 if n_values == 32 else 64
        b = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
        if name == "Q8_K":
            b[:, 3] = 0x3C + (b[:, 3] & 1)
        if name == "NVFP4":
            b[0, :4] = 0, 0x7F, 0x80, 0xFF
        if name in ("F32", "BF16"):  # finite
            b[:, -1] = b[:, -1] & 0xBF
        if name == "IQ1_M":  # the half's highest nibble: finite
            b[:, 55] = b[:, 55] & 0xBF
        if name == "MXFP4":  # finite, tiny ones among them
            b[:, 0] = np.array([0, 1, 2, 100, 127, 252])
        for at in halves:  # finite, small and subnormal ones among them
            h = np.concatenate([rng.normal(0, 1, n - 1), [3e-7]]).astype("<f2")
            b[:, at : at + 2] = h.view(np.uint8).reshape(n, 2)
        values = define(b).astype("<f4")
        assert values.shape == (n, n_values) and np.isfinite(values).all(), name
        out += name.encode().ljust(8, b"\0") + struct.pack("<III", n_bytes, n_values, n) + b.tobytes() + values.tobytes()
    return out


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        OUT.write_bytes(make())
    elif OUT.read_bytes() != make():
        sys.exit(f"{OUT} is not what this script makes")
