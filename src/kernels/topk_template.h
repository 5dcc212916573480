/* kernels/topk_template.h - top-k selection, written once over the loops and the vector type that the
 * including file gives for its instruction set (names: TOPK_NAME, MERGE_NAME):
 *   to_keys(scores, n, shift, keys, sum, sum_sq)  keys[i] = scores[i] >> shift for i < n, and their sums;
 *                                                 KEY_PAD follows up to a
 *                                                  multiple of KEY_BLOCK
 *   count_from(keys, n, t)            how many of the keys [n, a multiple of KEY_BLOCK] are >= t
 *   find_equal(keys, n, t, at)        positions of the keys == t, ascending; returns how many; may write up
 *                                     to 32 beyond them
 *   emit_from(keys, n, t, idx, cuts)  positions of the keys >= t, ascending; may write up to 32 beyond them;
 *                                     cuts as in topk.h or NULL
 *   VN int32 values in a vi: v_load v_store v_set1 v_sub v_max v_min
 *
 * The scores become 16-bit keys (an order-preserving shift). A threshold that k keys reach is searched by
 * Newton steps on a normal distribution's count, bracketed so that it always ends; where the threshold's own
 * key has more members than are wanted, the bits that the shift cut off decide, then the position. */
#include "kernels/topk.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { KEY_BLOCK = 32, KEY_MIN = -32767, KEY_PAD = -32768 };

static size_t padded(size_t n) { return (n + KEY_BLOCK - 1) / KEY_BLOCK * KEY_BLOCK; }

/* Standard normal deviate that a share p of the values exceeds (Abramowitz and Stegun 26.2.23: error
 * < 4.5e-4). */
static float deviate(float p) {
    float q = p < 0.5f ? p : 1 - p;
    if (q < 1e-6f) q = 1e-6f;
    float t = sqrtf(-2 * logf(q));
    float z = t - (2.515517f + t * (0.802853f + t * 0.010328f)) /
                      (1 + t * (1.432788f + t * (0.189269f + t * 0.001308f)));
    return p < 0.5f ? z : -z;
}

/* The largest t with at least k keys >= t; *count is how many there are. Stops early at any t that exactly k
 * keys reach. */
static int32_t threshold(const int16_t *keys, size_t n, size_t k, int64_t sum, int64_t sum_sq,
                         size_t *count) {
    size_t n_pad = padded(n), c_lo = n, c_hi = 0;
    float mean = (float)sum / (float)n, var = (float)sum_sq / (float)n - mean * mean;
    float sd = var > 1 ? sqrtf(var) : 1, z = deviate((float)k / (float)n),
          per_step = (float)n * 0.39894228f * expf(-0.5f * z * z) / sd;
    int32_t lo = KEY_MIN, hi = 32768; /* count(lo) >= k > count(hi) */
    float guess = mean + z * sd;
    for (int step = 0; hi - lo > 1; step++) {
        int32_t t;
        if (step >= 12) {
            t = lo + (hi - lo) / 2; /* not a normal distribution: halve */
        } else if (step >= 4) {     /* interpolate, kept off the ends */
            float f = (float)(c_lo - k) / (float)(c_lo - c_hi + 1);
            t = lo + 1 + (int32_t)(f * (float)(hi - lo - 2));
        } else {
            t = guess < -32766.0f ? -32766 : guess > 32766.0f ? 32766 : (int32_t)lrintf(guess);
        }
        if (t <= lo) t = lo + 1;
        if (t >= hi) t = hi - 1;
        size_t c = count_from(keys, n_pad, t);
        if (c == k) {
            *count = c;
            return t;
        }
        if (c > k) {
            lo = t;
            c_lo = c;
        } else {
            hi = t;
            c_hi = c;
        }
        guess = (float)t + ((float)c - (float)k) / per_step;
    }
    *count = c_lo;
    return lo;
}

/* Too many keys equal t: removes `surplus` of them, smallest scores first, among equal ones the last
 * positions. */
static void demote(const int32_t *scores, int16_t *keys, size_t n, int32_t t, int shift, size_t surplus,
                   uint32_t *at) {
    size_t n_at = find_equal(keys, padded(n), t, at), bins[256];
    /* by the bits that the shift removed, the upper 8 first; if it removed more, a second round over the
     * border bin */
    uint32_t low_mask = shift ? (1u << shift) - 1 : 0, fixed = 0, fixed_mask = 0;
    for (int bits = shift; bits > 0;) {
        int take = bits > 8 ? 8 : bits, down = bits - take;
        memset(bins, 0, sizeof bins);
        for (size_t j = 0; j < n_at; j++) {
            uint32_t low = (uint32_t)scores[at[j]] & low_mask;
            if ((low & fixed_mask) == fixed) bins[low >> down & ((1u << take) - 1)]++;
        }
        uint32_t b = 0;
        size_t below = 0;
        while (below + bins[b] <= surplus && b + 1 < 1u << take) below += bins[b++];
        for (size_t j = 0; j < n_at && below; j++) {
            uint32_t low = (uint32_t)scores[at[j]] & low_mask;
            if ((low & fixed_mask) == fixed && (low >> down & ((1u << take) - 1)) < b) keys[at[j]] = KEY_PAD;
        }
        surplus -= below;
        fixed |= b << down;
        fixed_mask |= ((1u << take) - 1) << down;
        bits = down;
    }
    for (size_t j = n_at; j-- > 0 && surplus;) {
        if (keys[at[j]] == t && ((uint32_t)scores[at[j]] & fixed_mask) == fixed) {
            keys[at[j]] = KEY_PAD;
            surplus--;
        }
    }
}

void TOPK_NAME(const tn_topk_args *a) {
    assert(a->k >= 1 && a->k <= a->n && a->n <= TN_TOPK_MAX_N && a->bound >= 1);
    if (a->k == a->n) {
        for (size_t i = 0; i < a->n; i++) a->idx[i] = (uint32_t)i;
        for (size_t b = 0; a->cuts && b <= tn_sparse_blocks(a->n); b++)
            a->cuts[b] = (uint32_t)(b * TN_SPARSE_BLOCK < a->n ? b * TN_SPARSE_BLOCK : a->n);
        return;
    }
    int16_t *keys = a->scratch;
    uint32_t *at = (uint32_t *)((char *)a->scratch + (padded(a->n) * sizeof *keys + 63) / 64 * 64);
    int shift = 0;
    while (a->bound >> shift > 32766) shift++;
    int64_t sum, sum_sq;
    to_keys(a->scores, a->n, shift, keys, &sum, &sum_sq);
    size_t count;
    int32_t t = threshold(keys, a->n, a->k, sum, sum_sq, &count);
    if (count > a->k) demote(a->scores, keys, a->n, t, shift, count - a->k, at);
    emit_from(keys, padded(a->n), t, a->idx, a->cuts);
    if (a->cuts) a->cuts[tn_sparse_blocks(a->n)] = (uint32_t)a->k;
}

/* ---- rows that share a selection ---------------------------------------------------------------------- */

enum { MERGE_VECTORS = 4 };
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4") /* so that vectors stay in registers */
#endif

int32_t MERGE_NAME(const tn_topk_merge_args *a) {
    assert(a->n_rows >= 1 && a->n_rows <= TN_TOPK_MERGE_ROWS);
    int32_t least = -1, most = 1;
    size_t lo = a->p0, hi = a->p1; /* lo..hi-1: seen by all */
    for (size_t r = 0; r < a->n_rows; r++) {
        size_t first = (size_t)a->first[r], end = (size_t)a->end[r];
        lo = first > lo ? first : lo;
        hi = end < hi ? end : hi;
    }
    if (lo > a->p1) lo = a->p1;
    if (hi < lo) hi = lo;
    vi low[MERGE_VECTORS], high[MERGE_VECTORS];
    UNROLL for (int j = 0; j < MERGE_VECTORS; j++) {
        low[j] = v_set1(-1);
        high[j] = v_set1(1);
    }
    size_t p = lo;
    for (; p + MERGE_VECTORS * VN <= hi; p += MERGE_VECTORS * VN) {
        vi m[MERGE_VECTORS];
        UNROLL for (int j = 0; j < MERGE_VECTORS; j++) m[j] = v_set1(INT32_MIN);
        for (size_t r = 0; r < a->n_rows; r++) {
            const int32_t *s = a->row[r] + (p - a->base);
            vi t = v_set1(a->top[r]);
            UNROLL for (int j = 0; j < MERGE_VECTORS; j++) m[j] =
                v_max(m[j], v_sub(v_load(s + (size_t)j * VN), t));
        }
        UNROLL for (int j = 0; j < MERGE_VECTORS; j++) {
            low[j] = v_min(low[j], m[j]);
            high[j] = v_max(high[j], m[j]);
            v_store(a->out + p + (size_t)j * VN, m[j]);
        }
    }
    UNROLL for (int j = 0; j < MERGE_VECTORS; j++) {
        int32_t lane[VN];
        v_store(lane, low[j]);
        for (int i = 0; i < VN; i++) least = lane[i] < least ? lane[i] : least;
        v_store(lane, high[j]);
        for (int i = 0; i < VN; i++) most = lane[i] > most ? lane[i] : most;
    }
    for (size_t x = a->p0; x < a->p1; x++) { /* the edges */
        if (x == lo && p > lo) x = p;
        if (x >= a->p1) break;
        int32_t m = INT32_MIN;
        for (size_t r = 0; r < a->n_rows; r++) {
            if ((int64_t)x < a->first[r] || (int64_t)x >= a->end[r]) continue;
            int32_t d = a->row[r][x - a->base] - a->top[r];
            m = d > m ? d : m;
        }
        a->out[x] = m;
        least = m < least ? m : least;
        most = m > most ? m : most;
    }
    return most > -least ? most : -least;
}
