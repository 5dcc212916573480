#include "formats/packed.h"

#include "base/finite.h"
#include "base/half.h"
#include "base/status.h"
#include "formats/gguf.h"

#include <inttypes.h>
#include <string.h>

enum { BLOCK = 32 }; /* values of Q4_1 and Q8_0 */

const char *tn_packing_name(tn_packing kind) {
    static const char *const names[] = {"none", "GPTQ", "AWQ", "MLX"};
    return names[kind];
}

static uint32_t word_at(const tn_tensor *t, uint64_t i) {
    uint32_t w;
    memcpy(&w, t->data + 4 * i, sizeof w);
    return w;
}

/* Value i of a stream of bits over words that lie `stride` apart, from word `first` on. */
static uint32_t bits_at(const tn_tensor *t, uint64_t first, uint64_t stride, uint64_t i, uint32_t bits) {
    const uint64_t at = i * bits;
    const uint32_t shift = (uint32_t)(at % 32);
    uint32_t v = word_at(t, first + at / 32 * stride) >> shift;
    if (shift + bits > 32) v |= word_at(t, first + (at / 32 + 1) * stride) << (32 - shift);
    return v & ((1u << bits) - 1);
}

static float value_at(const tn_tensor *t, uint64_t i) {
    float v;
    tn_dequantise(t->dtype, t->data + i * (uint64_t)tn_dtype_block_bytes(t->dtype), &v, 1);
    return v;
}

/* ---- checks ------------------------------------------------------------------------------------------ */

static tern_status shape(const tn_tensor *t, const char *what, uint64_t n0, uint64_t n1, tern_error *err) {
    TN_FAIL_IF(t->dims[0] != n0 || t->dims[1] != n1 || t->dims[2] != 1 || t->dims[3] != 1, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " is %" PRIu64 " x %" PRIu64 ", its %s want %" PRIu64
               " x %" PRIu64,
               t->file, t->name, t->off_bytes, t->dims[0], t->dims[1], what, n0, n1);
    return TERN_OK;
}

static tern_status words(const tn_tensor *t, tern_error *err) {
    TN_FAIL_IF(t->dtype != TN_N_DTYPES || t->size_bytes / 4 != tn_tensor_values(t) || t->size_bytes % 4, err,
               TERN_E_FORMAT, "%s: tensor %s at offset %" PRIu64 " holds no whole numbers of 32 bits",
               t->file, t->name, t->off_bytes);
    return TERN_OK;
}

static tern_status floats(const tn_tensor *t, tern_error *err) {
    TN_FAIL_IF(t->dtype != TN_F32 && t->dtype != TN_F16 && t->dtype != TN_BF16, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " holds no floats", t->file, t->name, t->off_bytes);
    return TERN_OK;
}

/* The values of n words of `bits` bits each; false: they do not end with a word. */
static bool values_of(uint64_t n, int32_t bits, uint64_t *out) {
    *out = n <= UINT32_MAX ? n * 32 / (uint64_t)bits : 0;
    return *out && n * 32 % (uint64_t)bits == 0;
}

static tern_status check_indices(tn_packed *p, tern_error *err) {
    const tn_tensor *t = &p->indices;
    if (!t->data) return TERN_OK;
    TN_TRY(words(t, err));
    TN_TRY(shape(t, "input channels", p->cols, 1, err));
    for (uint64_t k = 0; k < p->cols; k++)
        TN_FAIL_IF(word_at(t, k) >= p->n_groups, err, TERN_E_FORMAT,
                   "%s: tensor %s at offset %" PRIu64 " names group %" PRId32 " of %" PRIu64, t->file,
                   t->name, t->off_bytes, (int32_t)word_at(t, k), p->n_groups);
    return TERN_OK;
}

/* Whether each 32 input channels are of one group. */
static bool groups_are_blocks(const tn_packed *p) {
    if (!p->indices.data) return p->group % BLOCK == 0 || p->group >= p->cols;
    for (uint64_t k = 0; k < p->cols; k++)
        if (word_at(&p->indices, k) != word_at(&p->indices, k / BLOCK * BLOCK)) return false;
    return true;
}

/* Matrices of one shape, one after another, are one with the rows of all. */
static tern_status join_experts(tn_packed *p, tern_error *err) {
    tn_tensor *const all[] = {&p->q, &p->scales, &p->zeros};
    if (p->kind != TN_PACKING_MLX || p->q.n_dims != 3) return TERN_OK;
    p->n_experts = p->q.dims[0];
    for (int i = 0; i < 3; i++) {
        tn_tensor *t = all[i];
        TN_FAIL_IF(t->n_dims != 3 || !p->n_experts || t->dims[0] != p->n_experts, err, TERN_E_FORMAT,
                   "%s: tensor %s at offset %" PRIu64 " is of %" PRIu64 " matrices, %s of %" PRIu64, t->file,
                   t->name, t->off_bytes, t->dims[0], p->q.name, p->n_experts);
        t->dims[0] *= t->dims[1]; /* as many rows as the file has room for */
        t->dims[1] = t->dims[2];
        t->dims[2] = 1;
        t->n_dims = 2;
    }
    return TERN_OK;
}

static tern_status check(tn_packed *p, tern_error *err) {
    const bool mlx = p->kind == TN_PACKING_MLX, gptq = p->kind == TN_PACKING_GPTQ;
    const tn_tensor *q = &p->q;
    TN_TRY(words(q, err));
    TN_TRY(join_experts(p, err));
    TN_TRY(floats(&p->scales, err));
    bool ok = q->n_dims == 2 && q->dims[0] && q->dims[1] && p->bits >= 2 && p->bits <= 8 && p->group;
    p->rows = mlx ? q->dims[0] : q->dims[1];
    p->cols = mlx ? q->dims[1] : q->dims[0];
    if (p->kind == TN_PACKING_AWQ) ok = ok && p->bits == 4 && values_of(p->rows, p->bits, &p->rows);
    else ok = ok && values_of(p->cols, p->bits, &p->cols);
    TN_FAIL_IF(!ok, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " of %" PRIu64 " x %" PRIu64
               " words is no matrix of %d bits in groups of %" PRIu64,
               q->file, q->name, q->off_bytes, q->dims[0], q->dims[1], p->bits, p->group);
    p->n_groups = (p->cols - 1) / p->group + 1;
    if (mlx) {
        TN_FAIL_IF(p->cols % p->group, err, TERN_E_FORMAT,
                   "%s: tensor %s at offset %" PRIu64 " has rows of %" PRIu64
                   " values, no groups of %" PRIu64,
                   q->file, q->name, q->off_bytes, p->cols, p->group);
        TN_TRY(floats(&p->zeros, err));
        TN_TRY(shape(&p->scales, "groups", p->rows, p->n_groups, err));
        return shape(&p->zeros, "groups", p->rows, p->n_groups, err);
    }
    TN_TRY(words(&p->zeros, err));
    TN_TRY(shape(&p->scales, "groups", p->n_groups, p->rows, err));
    const uint64_t zero_words = p->rows * (uint64_t)p->bits / 32;
    TN_TRY(shape(&p->zeros, "output channels", p->n_groups, zero_words, err));
    TN_FAIL_IF(p->rows * (uint64_t)p->bits % 32, err, TERN_E_FORMAT,
               "%s: tensor %s at offset %" PRIu64 " has %" PRIu64
               " columns of %d bits, which do not end with a word",
               q->file, p->zeros.name, p->zeros.off_bytes, p->rows, p->bits);
    return gptq ? check_indices(p, err) : TERN_OK;
}

tern_status tn_packed_check(tn_packed *p, tern_error *err) {
    TN_TRY(check(p, err));
    if (p->cols % BLOCK) p->blocks = TN_N_DTYPES;
    else p->blocks = p->bits <= 4 && groups_are_blocks(p) ? TN_Q4_1 : TN_Q8_0;
    return TERN_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* The nibble of a row of words that holds value n. */
static int32_t awq_at(const tn_tensor *t, uint64_t row, uint64_t n_words, uint64_t n) {
    static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return (int32_t)(word_at(t, row * n_words + n / 8) >> (4 * place[n % 8]) & 15);
}

/* The zero of a row's group, of GPTQ and AWQ. */
static int32_t zero_at(const tn_packed *p, uint64_t g, uint64_t r) {
    const uint32_t bits = (uint32_t)p->bits, mask = (1u << bits) - 1;
    if (p->kind == TN_PACKING_AWQ) return awq_at(&p->zeros, g, p->rows / 8, r);
    return (int32_t)((bits_at(&p->zeros, g * (p->rows * bits / 32), 1, r, bits) + p->zero_plus) & mask);
}

static uint64_t group_of(const tn_packed *p, uint64_t k) {
    return p->indices.data ? word_at(&p->indices, k) : k / p->group;
}

static void gptq_row(const tn_packed *p, uint64_t r, float *out) {
    const uint32_t bits = (uint32_t)p->bits;
    uint64_t last = UINT64_MAX;
    float scale = 0;
    int32_t zero = 0;
    for (uint64_t k = 0; k < p->cols; k++) {
        const uint64_t g = group_of(p, k);
        if (g != last) {
            scale = value_at(&p->scales, g * p->rows + r);
            zero = zero_at(p, g, r);
            last = g;
        }
        out[k] = scale * (float)((int32_t)bits_at(&p->q, r, p->rows, k, bits) - zero);
    }
}

static void awq_row(const tn_packed *p, uint64_t r, float *out) {
    const uint64_t n_words = p->rows / 8;
    for (uint64_t k = 0; k < p->cols; k++) {
        const uint64_t g = k / p->group;
        const int32_t zero = zero_at(p, g, r);
        out[k] = value_at(&p->scales, g * p->rows + r) * (float)(awq_at(&p->q, k, n_words, r) - zero);
    }
}

static void mlx_row(const tn_packed *p, uint64_t r, float *out) {
    const uint64_t n_words = p->q.dims[1];
    for (uint64_t g = 0; g < p->n_groups; g++) {
        const float scale = value_at(&p->scales, r * p->n_groups + g),
                    bias = value_at(&p->zeros, r * p->n_groups + g);
        for (uint64_t k = g * p->group; k < (g + 1) * p->group; k++) {
            const float product = scale * (float)bits_at(&p->q, r * n_words, 1, k, (uint32_t)p->bits);
            out[k] = product + bias;
        }
    }
}

void tn_packed_row(const tn_packed *p, uint64_t r, float *out) {
    if (p->kind == TN_PACKING_MLX) mlx_row(p, r, out);
    else if (p->kind == TN_PACKING_AWQ) awq_row(p, r, out);
    else gptq_row(p, r, out);
}

/* ---- blocks ------------------------------------------------------------------------------------------ */

/* Eight values of 4 bits, lowest first, as bytes. */
static uint64_t bytes_of(uint32_t word) {
    uint64_t v = word;
    v = (v | v << 16) & 0x0000ffff0000ffffu;
    v = (v | v << 8) & 0x00ff00ff00ff00ffu;
    return (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
}

/* The codes of input channels k .. k + 31 of a row as Q4_1 has them: 0 .. 15 in low halves of bytes, 16 .. 31 in high ones. */
static void block_codes(const tn_packed *p, uint64_t r, uint64_t k, uint8_t out[BLOCK / 2]) {
    const bool mlx = p->kind == TN_PACKING_MLX;
    const uint64_t n_words = p->q.dims[1], first = mlx ? r * n_words : r, stride = mlx ? 1 : p->rows;
    if (p->kind == TN_PACKING_AWQ) {
        for (uint64_t i = 0; i < BLOCK / 2; i++)
            out[i] = (uint8_t)(awq_at(&p->q, k + i, n_words, r) | awq_at(&p->q, k + i + BLOCK / 2, n_words, r)
                                                                      << 4);
    } else if (p->bits == 4) {
        for (uint64_t half = 0; half < 2; half++) {
            const uint64_t at = first + (k / 8 + half) * stride,
                           v = bytes_of(word_at(&p->q, at)) | bytes_of(word_at(&p->q, at + 2 * stride)) << 4;
            memcpy(out + 8 * half, &v, sizeof v);
        }
    } else {
        const uint32_t bits = (uint32_t)p->bits;
        for (uint64_t i = 0; i < BLOCK / 2; i++)
            out[i] = (uint8_t)(bits_at(&p->q, first, stride, k + i, bits) |
                               bits_at(&p->q, first, stride, k + i + BLOCK / 2, bits) << 4);
    }
}

/* What a row's code q stands for in a group: scale * q + offset. */
static void scale_of(const tn_packed *p, uint64_t r, uint64_t g, float *scale, float *offset) {
    if (p->kind == TN_PACKING_MLX) {
        *scale = value_at(&p->scales, r * p->n_groups + g);
        *offset = value_at(&p->zeros, r * p->n_groups + g);
        return;
    }
    *scale = value_at(&p->scales, g * p->rows + r);
    *offset = -*scale * (float)zero_at(p, g, r);
}

static void blocks_q4_1(const tn_packed *p, uint64_t r, uint64_t n, uint8_t *out) {
    const uint64_t block_bytes = (uint64_t)tn_dtype_block_bytes(TN_Q4_1),
                   row_bytes = tn_dtype_row_bytes(TN_Q4_1, p->cols);
    for (uint64_t k = 0; k < p->cols; k += BLOCK) {
        const uint64_t g = group_of(p, k);
        for (uint64_t i = 0; i < n; i++) {
            uint8_t *b = out + i * row_bytes + k / BLOCK * block_bytes;
            float scale, offset;
            scale_of(p, r + i, g, &scale, &offset);
            const uint16_t d[] = {tn_f32_f16(scale), tn_f32_f16(offset)};
            memcpy(b, d, sizeof d);
            block_codes(p, r + i, k, b + sizeof d);
        }
    }
}

void tn_packed_blocks(const tn_packed *p, uint64_t r, uint64_t n, tn_dtype type, float *values,
                      uint8_t *out) {
    static const uint16_t no_number = 0x7e00;
    if (type == TN_Q4_1) {
        blocks_q4_1(p, r, n, out);
        return;
    }
    const uint64_t row_bytes = tn_dtype_row_bytes(TN_Q8_0, p->cols);
    for (uint64_t i = 0; i < n; i++, out += row_bytes) {
        tn_packed_row(p, r + i, values);
        if (tn_all_finite(values, (size_t)p->cols)) tn_quantise_q8_0(values, out, p->cols);
        else memcpy(memset(out, 0, (size_t)row_bytes), &no_number, sizeof no_number);
    }
}
