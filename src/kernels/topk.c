/* Scalar loops of topk.h. */
#define TOPK_NAME tn_topk_ref
#define MERGE_NAME tn_topk_merge_ref

#include "kernels/topk.h"

static void to_keys(const int32_t *scores, size_t n, int shift, int16_t *keys, int64_t *sum,
                    int64_t *sum_sq) {
    int64_t s = 0, q = 0;
    for (size_t i = 0; i < n; i++) {
        keys[i] = (int16_t)(scores[i] >> shift);
        s += keys[i];
        q += (int32_t)keys[i] * keys[i];
    }
    for (size_t i = n; i % 32; i++) keys[i] = -32768;
    *sum = s;
    *sum_sq = q;
}

static size_t count_from(const int16_t *keys, size_t n, int32_t t) {
    size_t c = 0;
    for (size_t i = 0; i < n; i++) c += keys[i] >= t;
    return c;
}

static size_t find_equal(const int16_t *keys, size_t n, int32_t t, uint32_t *at) {
    size_t c = 0;
    for (size_t i = 0; i < n; i++) {
        at[c] = (uint32_t)i;
        c += keys[i] == t;
    }
    return c;
}

static void emit_from(const int16_t *keys, size_t n, int32_t t, uint32_t *idx, uint32_t *cuts) {
    uint32_t *to = idx;
    for (size_t i = 0; i < n; i++) {
        if (cuts && i % TN_SPARSE_BLOCK == 0) cuts[i / TN_SPARSE_BLOCK] = (uint32_t)(to - idx);
        *to = (uint32_t)i;
        to += keys[i] >= t;
    }
}

typedef int32_t vi;
enum { VN = 1 };
static vi v_load(const int32_t *p) { return *p; }
static void v_store(int32_t *p, vi v) { *p = v; }
static vi v_set1(int32_t x) { return x; }
static vi v_sub(vi a, vi b) { return a - b; }
static vi v_max(vi a, vi b) { return a > b ? a : b; }
static vi v_min(vi a, vi b) { return a < b ? a : b; }

#include "kernels/topk_template.h"

size_t tn_topk_scratch(size_t n) {
    return (padded(n) * sizeof(int16_t) + 63) / 64 * 64 + (padded(n) + 32) * sizeof(uint32_t);
}
