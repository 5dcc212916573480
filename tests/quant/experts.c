/* What is captured for a layer's experts is what each of them reads, in the order of the tokens; an expert is
 * rounded for what it reads, not for what the others do, and smoothed for it, which its up and its down take
 * back. */
#include "base/cpu.h"
#include "formats/package.h"
#include "model/experts.h"
#include "quant/capture.h"
#include "quant/corpus.h"
#include "quant/gram.h"
#include "quant/pack.h"
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
        const float *smooth = tn_recipe_smooth(made, n, ops->n[0], ops->k);
        for (size_t i = 0; i < k; i++) d[i] -= row[i] / (smooth ? smooth[i] : 1);
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

/* ---- smoothing ------------------------------------------------------------------------------------- */

static tn_recipe_site made_for(const tn_inputs *in) {
    const tn_site_ops *ops = ops_of(TN_SITE_EXPERTS_DOWN);
    uint8_t *bits = malloc((size_t)ops->n_total);
    tn_recipe_site made;
    tern_error err;
    memset(bits, 8, (size_t)ops->n_total);
    const tn_recipe r = {.ctx = &ctx,
                         .block_max = TN_GRAM_BLOCK_MAX,
                         .pool = pool,
                         .kern = &kern,
                         .src = src,
                         .h = &m->h,
                         .program = &m->program,
                         .bits = 8};
    must(tn_recipe_site_make(&r, LAYER, TN_SITE_EXPERTS_DOWN, ops, in, bits, &made, &err), &err);
    assert_int_equal(made.n_smooth, ops->n_experts);
    free(bits);
    return made;
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static float median(const float *x, size_t n) {
    float *sorted = malloc(n * sizeof *sorted);
    memcpy(sorted, x, n * sizeof *x);
    qsort(sorted, n, sizeof *sorted, by_size);
    float at = sorted[n / 2];
    free(sorted);
    return at;
}

/* A channel of each expert stands out a hundredfold, which only its own smoothing takes away; and the floats
 * that its down gives stay what they were. Experts 0 and 1 read too little to be smoothed for it. */
static void each_is_smoothed_for_its_own(void **state) {
    (void)state;
    enum { FEW = 20 };
    const tn_site_ops *ops = ops_of(TN_SITE_EXPERTS_DOWN);
    const tn_inputs plain = tn_capture_inputs(&cap, TN_SITE_EXPERTS_DOWN);
    const size_t k = (size_t)ops->k, n = (size_t)plain.n_rows;
    float *raw = malloc(2 * n * k * sizeof *raw), *x = raw + n * k, *w = malloc(k * sizeof *w);
    int16_t *readers = malloc(n * sizeof *readers);
    int32_t seen[2] = {0};
    tern_error err;
    for (size_t r = 0; r < n; r++) {
        int32_t e = plain.readers[r];
        if (e < 2 && seen[e]++ >= FEW) e += 2;
        readers[r] = (int16_t)e;
        memcpy(raw + r * k, plain.x + r * k, k * sizeof *raw);
        raw[r * k + 3 + (size_t)e] *= 100;
    }
    memcpy(x, raw, n * k * sizeof *raw);
    const tn_inputs in = {x, plain.n_rows, readers, 1};
    tn_recipe_site made = made_for(&in);
    for (int32_t e = 2; e < ops->n_experts; e++) {
        const float *smooth = made.smooth + (size_t)e * k, usual = median(smooth, k);
        for (int32_t other = 0; other < ops->n_experts; other++)
            if ((smooth[3 + other] > 4 * usual) != (other == e))
                fail_msg("expert %d, channel of %d: %g of usually %g", e, other, (double)smooth[3 + other],
                         (double)usual);
    }
    assert_memory_equal(made.smooth, made.smooth + k, k * sizeof *made.smooth); /* the layer's */
    for (size_t r = 0; r < n; r += 11) {
        const int32_t e = readers[r], each = ops->n[0] / ops->n_experts;
        for (int32_t row = e * each; row < (e + 1) * each; row += 17) {
            double want = 0, got = 0, size = 0;
            must(tn_source_read(src, LAYER, ops->roles[0], row, row + 1, w, &err), &err);
            for (size_t i = 0; i < k; i++) {
                want += (double)w[i] * (double)raw[r * k + i];
                size += fabs((double)w[i] * (double)raw[r * k + i]);
                w[i] *= made.smooth[(size_t)e * k + i];
            }
            tn_hadamard_wide(kern.hadamard_f32, w, k, (size_t)made.rotated);
            for (size_t i = 0; i < k; i++) got += (double)w[i] * (double)x[r * k + i];
            if (fabs(got - want) > 1e-5 * size)
                fail_msg("row %zu of expert %d: %.9g, want %.9g", r, e, got, want);
        }
    }
    tn_recipe_site_free(&ctx, &made);
    free(raw);
    free(readers);
    free(w);
}

typedef struct section {
    char *bytes;
    const tn_pkg_record *records;
    size_t n;
} section;

static const void *part(const section *s, tn_role role, tn_pkg_part what) {
    const tn_pkg_record *r = tn_pkg_record_find(s->records, s->n, (uint32_t)role, (uint32_t)what);
    return r ? s->bytes + r->off_bytes : NULL;
}

/* All rows of a linear of n x k as floats; what its inputs are multiplied by is in them. */
static float *as_packed(const section *s, tn_role first, tn_role role, size_t n, size_t k, size_t rotated) {
    const uint8_t *packed = part(s, role, TN_PKG_WEIGHTLETS), *bits = part(s, role, TN_PKG_CHANNEL_BITS);
    const float *inverse = part(s, first, TN_PKG_INVERSE);
    float *w = malloc(n * k * sizeof *w), *scale = malloc(2 * n * sizeof *scale);
    int8_t *q = malloc(k);
    tern_error err;
    must(tn_pkg_rows(s->records, s->n, s->bytes, (uint32_t)role, n, scale, (int32_t *)(scale + n), &err),
         &err);
    for (size_t row = 0; row < n; row++) {
        tn_weightlets_row(packed + tn_weightlets_bytes(bits, 0, row / 16 * 16, k), bits, row, n, k, q);
        for (size_t i = 0; i < k; i++) w[row * k + i] = (float)q[i] * scale[row];
        if (rotated) tn_hadamard_wide(kern.hadamard_f32, w + row * k, k, rotated);
        for (size_t i = 0; inverse && i < k; i++) w[row * k + i] *= inverse[i];
    }
    free(scale);
    free(q);
    return w;
}

static double times(const float *a, const float *b, size_t n, size_t step) {
    double over = 0, under = 0;
    for (size_t i = 0; i < n; i++) {
        over += (double)a[i * step] * (double)b[i * step];
        under += (double)b[i * step] * (double)b[i * step];
    }
    return over / under;
}

/* In a package, row c of an expert's up is divided by what column c of its down, and of no other's, is
 * multiplied by. */
static void up_takes_what_its_down_has(void **state) {
    (void)state;
    char package[FIXTURE_PATH], gguf[FIXTURE_PATH];
    tn_pack_options o;
    tern_error err;
    tn_pkg *pkg;
    tn_pack_defaults(&o);
    o.bits = 8;
    o.calib_tokens = 2048;
    fixture_file(gguf, "m.gguf");
    fixture_package(package, "m.tern", gguf, &o);
    must(tn_pkg_open(&ctx, package, &pkg, &err), &err);
    const tn_pkg_section *f = tn_pkg_find(pkg, TN_PKG_LAYER, LAYER);
    section s = {.bytes = malloc(f->size_bytes)};
    must(tn_pkg_read(pkg, f, s.bytes, &err), &err);
    s.records = tn_pkg_records(pkg, f, &s.n);
    const size_t e = (size_t)m->h.n_embd, x = (size_t)m->h.n_ff_exp, n = (size_t)m->h.n_experts;
    float *up = as_packed(&s, TN_W_GATE_EXPS, TN_W_UP_EXPS, n * x, e, 0),
          *file = malloc(2 * n * x * e * sizeof *file),
          *down =
              as_packed(&s, TN_W_DOWN_EXPS, TN_W_DOWN_EXPS, n * e, x, (size_t)tn_hadamard_block((int32_t)x));
    assert_null(part(&s, TN_W_DOWN_EXPS, TN_PKG_INVERSE));
    must(tn_source_read(src, LAYER, TN_W_UP_EXPS, 0, (int64_t)(n * x), file, &err), &err);
    must(tn_source_read(src, LAYER, TN_W_DOWN_EXPS, 0, (int64_t)(n * e), file + n * x * e, &err), &err);
    double *in = malloc(2 * n * x * sizeof *in), *out = in + n * x;
    size_t differ = 0;
    for (size_t i = 0; i < n * x; i++) {
        const size_t at = i / x * e * x + i % x;
        in[i] = times(up + i * e, file + i * e, e, 1);
        out[i] = times(down + at, file + n * x * e + at, e, x);
        if (fabs(in[i] * out[i] - 1) > 0.02) fail_msg("channel %zu: up %g, down %g", i, in[i], out[i]);
    }
    for (size_t i = 0; i < n * x; i++) differ += fabs(in[i] * out[(i + x) % (n * x)] - 1) > 0.04;
    print_message("another expert's differ by more than 4 %% in %zu of %zu channels\n", differ, n * x);
    assert_true(differ > n * x / 2);
    free(in);
    free(up);
    free(down);
    free(file);
    free(s.bytes);
    tn_pkg_close(&pkg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_what_each_expert_reads),
        cmocka_unit_test(experts_are_rounded_for_their_own),
        cmocka_unit_test(each_is_smoothed_for_its_own),
        cmocka_unit_test(up_takes_what_its_down_has),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
