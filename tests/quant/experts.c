/* What is captured for a layer's experts is what each of them reads, in the order of the tokens; and an expert is
 * rounded for what it reads, not for what the others do. */
#include "base/cpu.h"
#include "model/experts.h"
#include "quant/capture.h"
#include "quant/corpus.h"
#include "quant/gram.h"
#include "quant/recipe.h"
#include "quant/round.h"

#include "kernels/unpack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_TOK = 600, WINDOW = 200, LAYER = 1, BITS = 4 };

static tn_ctx ctx;
static tn_kernels kern;
static tn_pool *pool;
static tn_source *src;
static tn_model *m;
static int32_t ids[N_TOK];
static tn_capture cap;

static void on_route(void *user, int layer, const float *chosen) {
    (void)user, (void)layer;
    tn_capture_route(&cap, chosen);
}

static void on_input(void *user, int layer, tn_site site, float *x, size_t ldx, int32_t n_rows) {
    (void)user, (void)layer;
    tn_capture_add(&cap, site, x, ldx, n_rows);
}

/* One layer of a small model over a text, captured. */
static int setup(void **state) {
    (void)state;
    char gguf[FIXTURE_PATH];
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    fixture_model(gguf, "m.gguf", "tiny-qwen3moe", 11, TN_F16);
    fixture_prompt(ids, N_TOK);
    must(tn_pool_open(&ctx, 2, &pool, &err), &err);
    must(tn_source_open(&ctx, gguf, &src, &err), &err);
    must(tn_model_outline(&ctx, pool, src, &m, &err), &err);
    tn_corpus c = {
        .kern = &kern, .pool = pool, .src = src, .m = m, .ids = ids, .n_tok = N_TOK, .window = WINDOW};
    must(tn_corpus_open(&c, &err), &err);
    must(tn_capture_open(&ctx, &m->program, LAYER, N_TOK, &cap, &err), &err);
    const tn_forward_hooks hooks = {.site_input = on_input, .routed = on_route};
    for (int layer = 0; layer <= LAYER; layer++) {
        must(tn_corpus_begin_layer(&c, layer, &err), &err);
        tn_corpus_pass(&c, layer, layer == LAYER ? &hooks : NULL, true);
        tn_corpus_end_layer(&c, layer);
    }
    tn_corpus_close(&c);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tn_capture_close(&cap);
    tn_model_close(&m);
    tn_source_close(&src);
    tn_pool_close(&pool);
    return 0;
}

static const tn_site_ops *ops_of(tn_site s) {
    return tn_program_linears(&m->program, tn_program_site_index(&m->program, LAYER, s));
}

/* Row n of a role's tensor times x. */
static double product(tn_role role, int64_t n, const float *x, int32_t k) {
    float w[256];
    double sum = 0;
    tern_error err;
    assert_true(k <= 256);
    must(tn_source_read(src, LAYER, role, n, n + 1, w, &err), &err);
    for (int32_t i = 0; i < k; i++) sum += (double)w[i] * (double)x[i];
    return sum;
}

static void rows_are_what_each_expert_reads(void **state) {
    (void)state;
    const tn_inputs in = tn_capture_inputs(&cap, TN_SITE_EXPERTS),
                    down = tn_capture_inputs(&cap, TN_SITE_EXPERTS_DOWN);
    int32_t used = m->h.n_experts_used, n_ff = m->h.n_ff_exp, n_embd = m->h.n_embd;
    assert_int_equal(in.n_rows, N_TOK);
    assert_int_equal(in.n_readers, used);
    assert_int_equal(down.n_rows, N_TOK * used);
    assert_int_equal(down.n_readers, 1);
    for (int32_t t = 0; t < N_TOK; t += 7) {
        const float *x = in.x + t * n_embd;
        for (int32_t k = 0; k < used; k++) {
            int32_t e = in.readers[t * used + k], row = t * used + k;
            assert_int_equal(down.readers[row], e);
            for (int32_t i = 0; i < n_ff; i += 5) {
                double gate = product(TN_W_GATE_EXPS, e * n_ff + i, x, n_embd),
                       want = gate / (1 + exp(-gate)) * product(TN_W_UP_EXPS, e * n_ff + i, x, n_embd);
                assert_true(fabs((double)down.x[row * n_ff + i] - want) < 1e-4 * (fabs(want) + 1e-2));
            }
        }
    }
}

/* Mean square error of the outputs of a site's experts, each over the rows that it reads. */
static double output_error(const tn_inputs *in, const tn_site_ops *ops, const tn_recipe_site *made,
                           const float *plain) {
    double sum = 0;
    size_t k = (size_t)ops->k;
    float *d = malloc(k * sizeof *d);
    int8_t *q = malloc(k);
    tern_error err;
    for (int32_t n = 0; n < ops->n[0]; n += 3) {
        const tn_rounded *l = &made->ops[0];
        size_t tile = tn_weightlets_bytes(l->bits, 0, (size_t)(n / 16 * 16), k);
        tn_weightlets_row(l->weightlets + tile, l->bits, (size_t)n, (size_t)ops->n[0], k, q);
        must(tn_source_read(src, LAYER, ops->roles[0], n, n + 1, d, &err), &err);
        float *row = malloc(k * sizeof *row);
        for (size_t i = 0; i < k; i++) row[i] = (float)q[i] * l->scale[n];
        if (made->rotated) tn_hadamard_wide(kern.hadamard_f32, row, k, (size_t)made->rotated);
        for (size_t i = 0; i < k; i++) d[i] -= row[i] / (made->smooth ? made->smooth[i] : 1);
        for (int32_t r = 0; r < in->n_rows; r++) {
            bool reads = false;
            for (int32_t i = 0; i < in->n_readers; i++)
                reads = reads || in->readers[r * in->n_readers + i] == n / (ops->n[0] / ops->n_experts);
            double y = 0;
            for (size_t i = 0; reads && i < k; i++) y += (double)d[i] * (double)plain[(size_t)r * k + i];
            sum += y * y;
        }
        free(row);
    }
    free(d);
    free(q);
    return sum;
}

/* With the numbers of the readers turned round, each expert is rounded for what another one reads. */
static double rounded_for(tn_site site, bool own) {
    const tn_site_ops *ops = ops_of(site);
    tn_inputs in = tn_capture_inputs(&cap, site), true_one = in;
    size_t n = (size_t)in.n_rows * (size_t)ops->k, n_readers = (size_t)in.n_rows * (size_t)in.n_readers;
    float *x = malloc(n * sizeof *x);
    int16_t *readers = malloc(n_readers * sizeof *readers);
    uint8_t *bits = malloc((size_t)ops->n_total);
    tn_recipe_site made;
    tern_error err;
    memset(bits, BITS, (size_t)ops->n_total);
    memcpy(x, in.x, n * sizeof *x); /* which is changed */
    for (size_t i = 0; i < n_readers; i++)
        readers[i] = (int16_t)((in.readers[i] + (own ? 0 : ops->n_experts / 2)) % ops->n_experts);
    in.x = x;
    in.readers = readers;
    const tn_recipe r = {.ctx = &ctx,
                         .block_max = TN_GRAM_BLOCK_MAX,
                         .pool = pool,
                         .kern = &kern,
                         .src = src,
                         .h = &m->h,
                         .program = &m->program,
                         .bits = BITS};
    must(tn_recipe_site_make(&r, LAYER, site, ops, &in, bits, &made, &err), &err);
    double e = output_error(&true_one, ops, &made, true_one.x);
    tn_recipe_site_free(&ctx, &made);
    free(x);
    free(readers);
    free(bits);
    return e;
}

static void experts_are_rounded_for_their_own(void **state) {
    (void)state;
    static const tn_site sites[] = {TN_SITE_EXPERTS, TN_SITE_EXPERTS_DOWN};
    for (int i = 0; i < 2; i++) {
        double own = rounded_for(sites[i], true), others = rounded_for(sites[i], false);
        print_message("%s: error %.4g, rounded for others' inputs %.4g\n", tn_site_name(sites[i]), own,
                      others);
        assert_true(own < 0.8 * others);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_what_each_expert_reads),
        cmocka_unit_test(experts_are_rounded_for_their_own),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
