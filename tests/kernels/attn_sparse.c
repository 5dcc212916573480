/* Attention at listed positions: every variant against the scalar reference bit for bit, the reference
 * against double arithmetic. */
#include "check.h"
#include "f32_variants.h"
#include "kernels/sparse_cuts.h"

#include <math.h>
#include <stdbool.h>

typedef struct problem {
    tn_attn_sparse_args a;
    check_buf q, k, v, idx, cuts;
    size_t longest;
} problem;

/* Lists of different lengths up to `longest` out of n_pos positions; keys and values that no list names are
 * NaN, so that reading them shows. */
static problem problem_new(tn_rng *rng, size_t n_rows, size_t n_group, size_t n_pos, size_t longest, size_t d,
                           float soft_cap) {
    size_t n_all = n_rows * n_group, n_blocks = tn_sparse_blocks(n_pos),
           n_room = (n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL, q_stride = n_group * d + 5;
    problem p = {.longest = longest};
    p.q = check_new(((n_rows - 1) * q_stride + n_group * d) * 4);
    p.k = check_new(n_room * d * 4);
    p.v = check_new(n_pos * d * 4);
    p.idx = check_new((n_all * longest + 16) * 4);
    p.cuts = check_new(n_all * (n_blocks + 1) * 4);
    check_fill_f32(rng, CHECK_RANDOM, p.q.p, p.q.n_bytes / 4);
    check_fill_f32(rng, CHECK_RANDOM, p.k.p, p.k.n_bytes / 4);
    check_fill_f32(rng, CHECK_RANDOM, p.v.p, p.v.n_bytes / 4);
    bool *named = calloc(n_room, 1);
    for (size_t r = 0; r < n_all; r++) {
        uint32_t *idx = (uint32_t *)p.idx.p + r * longest;
        size_t n_idx = r ? 1 + tn_rng_below(rng, longest) : longest, n = 0;
        for (size_t pos = 0; pos < n_pos; pos++) {
            if (tn_rng_below(rng, n_pos - pos) >= n_idx - n) continue;
            idx[n++] = (uint32_t)pos;
            named[pos] = true;
        }
        sparse_cuts(idx, n_idx, n_pos, (uint32_t *)p.cuts.p + r * (n_blocks + 1));
    }
    for (size_t pos = 0; pos < n_room; pos++) {
        for (size_t i = 0; i < d && !named[pos]; i++) {
            ((float *)p.k.p)[pos / TN_KV_PANEL * d * TN_KV_PANEL + i * TN_KV_PANEL + pos % TN_KV_PANEL] = NAN;
            if (pos < n_pos) ((float *)p.v.p)[pos * d + i] = NAN;
        }
    }
    free(named);
    p.a = (tn_attn_sparse_args){.q = p.q.p,
                                .q_stride = q_stride,
                                .out_stride = n_group * d + 3,
                                .n_rows = n_rows,
                                .n_group = n_group,
                                .d_head = d,
                                .k_panels = p.k.p,
                                .v = p.v.p,
                                .idx = p.idx.p,
                                .idx_stride = longest,
                                .cuts = p.cuts.p,
                                .cut_stride = n_blocks + 1,
                                .n_blocks = n_blocks,
                                .n_pos = n_pos,
                                .scale = 1.0f / sqrtf((float)d),
                                .soft_cap = soft_cap};
    return p;
}

static void problem_free(problem *p) {
    check_free(&p->q);
    check_free(&p->k);
    check_free(&p->v);
    check_free(&p->idx);
    check_free(&p->cuts);
}

static check_buf run(tn_attn_sparse_fn fn, const problem *p) {
    check_buf o = check_new(((p->a.n_rows - 1) * p->a.out_stride + p->a.n_group * p->a.d_head) * 4);
    size_t n = tn_attn_sparse_scratch(p->a.n_rows * p->a.n_group, p->longest, p->a.d_head) * 4;
    check_buf scratch = check_new((n + 63) / 64 * 64);
    tn_attn_sparse_args a = p->a;
    a.out = o.p;
    a.scratch = scratch.p;
    fn(&a);
    check_free(&scratch);
    return o;
}

static void against_double(const problem *p, size_t r, const float *got) {
    const tn_attn_sparse_args *a = &p->a;
    const uint32_t *idx = a->idx + r * a->idx_stride;
    const float *q = a->q + r % a->n_rows * a->q_stride + r / a->n_rows * a->d_head;
    size_t n_idx = a->cuts[r * a->cut_stride + a->n_blocks];
    double *w = malloc(n_idx * sizeof *w), max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n_idx; i++) {
        double s = 0;
        for (size_t d = 0; d < a->d_head; d++)
            s += (double)q[d] * (double)a->k_panels[idx[i] / TN_KV_PANEL * a->d_head * TN_KV_PANEL +
                                                    d * TN_KV_PANEL + idx[i] % TN_KV_PANEL];
        s *= (double)a->scale;
        if (a->soft_cap > 0) s = (double)a->soft_cap * tanh(s / (double)a->soft_cap);
        w[i] = s;
        if (s > max) max = s;
    }
    for (size_t i = 0; i < n_idx; i++) sum += w[i] = exp(w[i] - max);
    for (size_t d = 0; d < a->d_head; d++) {
        double v = 0, size = 1;
        for (size_t i = 0; i < n_idx; i++) {
            double term = w[i] / sum * (double)a->v[idx[i] * a->d_head + d];
            v += term;
            size += fabs(term);
        }
        assert_true(fabs((double)got[d] - v) < 2e-5 * size);
    }
    free(w);
}

static void test_variants(void **state) {
    (void)state;
    f32_variant v[4];
    int n_variants = f32_variants(v);
    static const size_t ds[] = {4, 16, 20, 64, 80, 96, 128, 160, 256, 512},
                        ns[] = {1, 2, 15, 16, 17, 33, 130, 300};
    tn_rng rng = {5};
    for (size_t i = 0; i < sizeof ds / sizeof *ds; i++) {
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
            for (int extra = 0; extra < 2; extra++) {
                size_t n_rows = 1 + tn_rng_below(&rng, 5), n_group = 1 + tn_rng_below(&rng, 3);
                problem p =
                    problem_new(&rng, n_rows, n_group, ns[j] * (extra ? 4 : 1), ns[j], ds[i], extra ? 20 : 0);
                check_buf want = run(tn_attn_sparse_ref, &p);
                for (size_t r = 0; r < n_rows * n_group; r++)
                    against_double(&p, r, (float *)want.p + r % n_rows * p.a.out_stride + r / n_rows * ds[i]);
                for (int x = 0; x < n_variants; x++) {
                    check_buf got = run(v[x].k.attn_sparse, &p);
                    if (memcmp(got.p, want.p, want.n_bytes))
                        fail_msg("%s: d %zu, %zu positions", v[x].name, ds[i], ns[j]);
                    check_free(&got);
                }
                check_free(&want);
                problem_free(&p);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
