/* npu/hexagon/dsp/topk.c - the k largest of a row of scores, the same as kernels/topk.h selects on the host:
 * of equal ones the lowest positions. It searches a threshold by counting how many scores reach it, by
 * interpolation and bisection in turn, and writes positions in one more pass. A row too large for VTCM passes
 * through it in two halves each time. */
#include "ops.h"

#include <hexagon_protos.h>
#include <hvx_hexagon_protos.h>

enum { VECTOR = 128, LANES = 32 };

/* A row on its way through VTCM. */
typedef struct feed {
    const tn_hex_scratch *s;
    const int32_t *scores;
    uint32_t n, block; /* scores; how many are staged at once: all of them, or a half's */
    uint32_t at, half;
    int staged; /* all of them, from the first pass on */
} feed;

static void begin(const feed *f, uint32_t from, uint32_t half) {
    uint32_t n = f->n - from < f->block ? f->n - from : f->block;
    tn_hex_move move = {f->s->vtcm + half * f->block * 4, (const uint8_t *)(f->scores + from), n * 4, 1, 0};
    tn_hex_dma_begin(f->s->dma, &move, 1);
}

/* Returns the next scores, padded to whole vectors with the least value, or NULL at the end of the row;
 * the next call starts over. */
static const HVX_Vector *next(feed *f, uint32_t *n) {
    if (f->at == f->n) {
        f->at = 0;
        return 0;
    }
    uint32_t here = f->n - f->at < f->block ? f->n - f->at : f->block;
    int32_t *v = (int32_t *)(f->s->vtcm + f->half * f->block * 4);
    if (!f->staged) {
        if (!f->at) begin(f, 0, f->half);
        tn_hex_dma_wait(f->s->dma);
        if (f->at + here < f->n) begin(f, f->at + here, f->half ^ 1);
        for (uint32_t i = here; i % LANES; i++) v[i] = INT32_MIN;
        if (here == f->n) f->staged = 1;
        else f->half ^= 1;
    }
    f->at += here;
    *n = here;
    return (const HVX_Vector *)v;
}

/* Number of scores of at least t. */
static __attribute__((noinline)) uint32_t count_from(const HVX_Vector *v, uint32_t n_vectors, int32_t t) {
    HVX_Vector below = Q6_V_vsplat_R(t - 1), one = Q6_V_vsplat_R(1), a = Q6_V_vzero(), b = a;
    for (uint32_t i = 0; i < n_vectors / 2; i++, v += 2) {
        a = Q6_Vw_condacc_QVwVw(Q6_Q_vcmp_gt_VwVw(v[0], below), a, one);
        b = Q6_Vw_condacc_QVwVw(Q6_Q_vcmp_gt_VwVw(v[1], below), b, one);
    }
    if (n_vectors % 2) a = Q6_Vw_condacc_QVwVw(Q6_Q_vcmp_gt_VwVw(v[0], below), a, one);
    a = Q6_Vw_vadd_VwVw(a, b);
    for (int32_t by = VECTOR / 2; by >= 4; by /= 2) a = Q6_Vw_vadd_VwVw(a, Q6_V_vror_VR(a, by));
    return (uint32_t)Q6_R_vextract_VR(a, 0);
}

static uint32_t count_row(feed *f, int32_t t) {
    uint32_t n, sum = 0;
    for (const HVX_Vector *v; (v = next(f, &n));) sum += count_from(v, (n + LANES - 1) / LANES, t);
    return sum;
}

/* Bit i is lane i's. */
static inline __attribute__((always_inline)) uint32_t bits_of(HVX_VectorPred q, HVX_Vector bit) {
    HVX_Vector a = Q6_V_vmux_QVV(q, bit, Q6_V_vzero());
    for (int32_t by = VECTOR / 2; by >= 4; by /= 2) a = Q6_V_vor_VV(a, Q6_V_vror_VR(a, by));
    return (uint32_t)Q6_R_vextract_VR(a, 0);
}

/* Writes the positions of scores of at least `from`, and of the first n_equal that are one less. Never
 * more than k. */
static __attribute__((noinline)) void write_positions(feed *f, int32_t from, uint32_t n_equal, uint32_t k,
                                                      uint32_t *idx) {
    HVX_Vector bit, below = Q6_V_vsplat_R(from - 1);
    for (uint32_t i = 0; i < LANES; i++) ((uint32_t *)&bit)[i] = 1u << i;
    uint32_t n, pos = 0, *end = idx + k;
    for (const HVX_Vector *v; (v = next(f, &n));) {
        for (uint32_t i = 0; i < n; i += LANES, pos += LANES, v++) {
            uint32_t m = bits_of(Q6_Q_vcmp_gt_VwVw(*v, below), bit);
            if (n_equal) {
                for (uint32_t e = bits_of(Q6_Q_vcmp_eq_VwVw(*v, below), bit); e && n_equal; n_equal--) {
                    m |= e & -e;
                    e &= e - 1;
                }
            }
            for (; m && idx < end; m &= m - 1) *idx++ = pos + (uint32_t)Q6_R_ct0_R((int32_t)m);
        }
    }
}

void tn_hex_topk(const tn_hex_scratch *s, const tn_hex_top *t) {
    uint32_t room = s->n_bytes / VECTOR * LANES, all = (t->n + LANES - 1) / LANES * LANES;
    feed f = {.s = s, .scores = t->scores, .n = t->n, .block = all <= room ? all : room / 2 / LANES * LANES};
    int32_t lo = -t->bound, hi = t->bound + 1;
    uint32_t from_lo = t->n, from_hi = 0; /* how many reach them: at least k; fewer than k */
    for (uint32_t step = 0; (uint32_t)hi - (uint32_t)lo > 1 && from_lo != t->k; step++) {
        uint32_t range = (uint32_t)hi - (uint32_t)lo,
                 share = step % 2 ? 1024 : ((from_lo - t->k) << 11) / (from_lo - from_hi + 1),
                 by = (uint32_t)(((uint64_t)range * share) >> 11);
        if (by < 1) by = 1;
        if (by >= range) by = range - 1;
        int32_t mid = (int32_t)((uint32_t)lo + by);
        uint32_t n = count_row(&f, mid);
        if (n >= t->k) lo = mid, from_lo = n;
        else hi = mid, from_hi = n;
    }
    if (from_lo == t->k) write_positions(&f, lo, 0, t->k, t->idx);
    else write_positions(&f, hi, t->k - from_hi, t->k, t->idx);
}
