/* base/sum.c - SHA-1 and SHA-256, by FIPS 180-4: both go over blocks of 64 bytes, padded with the length in bits. */
#include "base/sum.h"

#include <stdio.h>
#include <string.h>

static uint32_t rotated(uint32_t x, int n) { return x << n | x >> (32 - n); }

static uint32_t word_at(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* FIPS 180-4, 6.1.2 */
static void block_sha1(tn_sum *s, const uint8_t *p) {
    static const uint32_t k[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t w[80], a = s->state[0], b = s->state[1], c = s->state[2], d = s->state[3], e = s->state[4];
    for (int t = 0; t < 80; t++)
        w[t] = t < 16 ? word_at(p + 4 * t) : rotated(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int t = 0; t < 80; t++) {
        uint32_t f = t < 20              ? (b & c) ^ (~b & d)
                     : t >= 40 && t < 60 ? (b & c) ^ (b & d) ^ (c & d)
                                         : b ^ c ^ d;
        uint32_t sum = rotated(a, 5) + f + e + k[t / 20] + w[t];
        e = d, d = c, c = rotated(b, 30), b = a, a = sum;
    }
    s->state[0] += a, s->state[1] += b, s->state[2] += c, s->state[3] += d, s->state[4] += e;
}

/* FIPS 180-4, 4.2.2: the first 32 bits of the fractions of the cube roots of the first 64 primes */
static const uint32_t CUBE_ROOTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* FIPS 180-4, 6.2.2; h[0] is a, h[7] is h there */
static void block_sha256(tn_sum *s, const uint8_t *p) {
    uint32_t w[64], h[8];
    memcpy(h, s->state, sizeof h);
    for (int t = 0; t < 64; t++) {
        if (t < 16) {
            w[t] = word_at(p + 4 * t);
            continue;
        }
        uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + (rotated(x, 25) ^ rotated(x, 14) ^ x >> 3) + w[t - 7] +
               (rotated(y, 15) ^ rotated(y, 13) ^ y >> 10);
    }
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = h[7] + (rotated(h[4], 26) ^ rotated(h[4], 21) ^ rotated(h[4], 7)) +
                        ((h[4] & h[5]) ^ (~h[4] & h[6])) + CUBE_ROOTS[t] + w[t];
        uint32_t sum2 = (rotated(h[0], 30) ^ rotated(h[0], 19) ^ rotated(h[0], 10)) +
                        ((h[0] & h[1]) ^ (h[0] & h[2]) ^ (h[1] & h[2]));
        memmove(h + 1, h, 7 * sizeof h[0]);
        h[4] += sum1;
        h[0] = sum1 + sum2;
    }
    for (int i = 0; i < 8; i++) s->state[i] += h[i];
}

void tn_sum_begin(tn_sum *s, bool sha1) {
    static const uint32_t first_sha1[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0},
                          first_sha256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    *s = (tn_sum){.sha1 = sha1};
    memcpy(s->state, sha1 ? first_sha1 : first_sha256, sizeof s->state);
}

static void whole_block(tn_sum *s, const uint8_t *p) {
    if (s->sha1) block_sha1(s, p);
    else block_sha256(s, p);
}

void tn_sum_add(tn_sum *s, const void *data, size_t n) {
    const uint8_t *p = data;
    size_t held = s->n_bytes % 64;
    s->n_bytes += n;
    while (n) {
        size_t k = 64 - held < n ? 64 - held : n;
        if (k == 64) {
            whole_block(s, p);
        } else {
            memcpy(s->block + held, p, k);
            if ((held += k) == 64) whole_block(s, s->block);
        }
        held %= 64;
        p += k;
        n -= k;
    }
}

void tn_sum_bytes(tn_sum *s, uint8_t out[32]) {
    uint64_t n_bits = s->n_bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(n_bits >> (56 - 8 * i));
    tn_sum_add(s, "\x80", 1);
    while (s->n_bytes % 64 != 56) tn_sum_add(s, "", 1);
    tn_sum_add(s, length, sizeof length);
    for (int i = 0; i < (s->sha1 ? 20 : 32); i++) out[i] = (uint8_t)(s->state[i / 4] >> (24 - i % 4 * 8));
}

void tn_sum_end(tn_sum *s, char out[TN_SUM_TEXT]) {
    uint8_t bytes[32];
    tn_sum_bytes(s, bytes);
    for (int i = 0; i < (s->sha1 ? 20 : 32); i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}
