/* What decides whether an encoder computes in INT8 by itself: the comparison of rows, its limits, and the drawing. */
#include "model/tower_judge.h"

#include "base/cpu.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "lab/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

static void rows_are_compared(void **state) {
    (void)state;
    const float a[] = {1, 0, 3, 4, 0, 0}, turned[] = {1, 0, 4, 3, 0, 0}, some[] = {1, 0, 3, 4, 0, 1};
    tn_tower_verdict v = tn_tower_compare(a, a, 3, 2);
    assert_true(v.mean == 1 && v.least == 1 && tn_tower_holds(v));
    v = tn_tower_compare(a, turned, 3, 2); /* one of three has cosine 24/25 */
    assert_float_equal(v.least, 0.96, 1e-6);
    assert_float_equal(v.mean, 2.96 / 3, 1e-6);
    assert_false(tn_tower_holds(v));
    assert_true(tn_tower_compare(a, some, 3, 2).least == 0); /* zeros are nothing else */
    assert_true(tn_tower_compare(some, a, 3, 2).least == 0);
}

static void both_limits_count(void **state) {
    (void)state;
    assert_true(tn_tower_holds((tn_tower_verdict){TN_TOWER_MEAN, TN_TOWER_LEAST}));
    assert_false(tn_tower_holds((tn_tower_verdict){0.9989f, 1}));
    assert_false(tn_tower_holds((tn_tower_verdict){1, 0.989f}));
}

/* Colours that a part of the drawing has: many in noise, few in buttons, two in text. */
static size_t colours(const uint8_t *rgb, tn_tower_size z, int32_t x0, int32_t y0) {
    static bool seen[1 << 15];
    size_t n = 0;
    memset(seen, 0, sizeof seen);
    for (int32_t y = y0; y < y0 + z.height / 2; y++)
        for (int32_t x = x0; x < x0 + z.width / 2; x++) {
            const uint8_t *c = rgb + 3 * (y * z.width + x);
            bool *at = &seen[c[0] >> 3 << 10 | c[1] >> 3 << 5 | c[2] >> 3];
            n += !*at;
            *at = true;
        }
    return n;
}

static void the_drawing_has_four_parts(void **state) {
    (void)state;
    const tn_tower_size sizes[] = {{1, 1}, {3, 5}, {512, 512}};
    for (int i = 0; i < 3; i++) {
        const size_t n = 3 * (size_t)sizes[i].width * (size_t)sizes[i].height;
        uint8_t *rgb = malloc(n);
        assert_non_null(rgb);
        tn_tower_draw(rgb, sizes[i]);
        if (i == 2) {
            assert_int_equal(colours(rgb, sizes[i], 0, 0), 2);
            const size_t buttons = colours(rgb, sizes[i], 256, 0);
            assert_true(buttons > 20 && buttons < 100);
            assert_true(colours(rgb, sizes[i], 0, 256) > 200);
            assert_true(colours(rgb, sizes[i], 256, 256) > 20000);
        }
        free(rgb);
    }
}

static void drawings_are_whole_blocks_and_no_larger_than_a_tile(void **state) {
    (void)state;
    tn_tower_size z[TN_TOWER_DRAWINGS];
    tn_tower_shape s = {.kind = TN_TOWER_QWEN3VL, .image = 768, .patch = 16, .shuffle = 2};
    assert_int_equal(tn_tower_drawings(&s, z), 2);
    assert_true(z[0].width == 256 && z[1].width == 384 && z[1].height == 384);
    s.patch = 14;
    assert_int_equal(tn_tower_drawings(&s, z), 2);
    assert_true(z[0].height == 9 * 28 && z[1].height == 13 * 28);
    s.patch = 256; /* a block is larger than that */
    assert_int_equal(tn_tower_drawings(&s, z), 1);
    assert_int_equal(z[0].height, 512);
    s = (tn_tower_shape){.kind = TN_TOWER_GEMMA3, .image = 896, .patch = 14, .shuffle = 4};
    assert_int_equal(tn_tower_drawings(&s, z), 3);
    assert_true(z[0].width == 4 * 56 && z[1].width == 6 * 56 && z[2].width == 896);
    s = (tn_tower_shape){.kind = TN_TOWER_IDEFICS3, .image = 47, .patch = 5, .shuffle = 3};
    assert_int_equal(tn_tower_drawings(&s, z), 1);
    assert_int_equal(z[0].width, 47);
}

static void a_verdict_near_a_limit_is_not_clear(void **state) {
    (void)state;
    static const struct {
        tn_tower_verdict v;
        bool clear;
    } all[] = {{{1, 1}, true},         {{.9997f, .9965f}, true}, {{.9994f, 1}, false},
               {{1, .994f}, false},    {{.998f, .98f}, false},   {{.9972f, .995f}, true},
               {{.9999f, .97f}, true}, {{.999f, .99f}, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(tn_tower_is_clear(all[i].v), all[i].clear);
}

/* ---- judging ---------------------------------------------------------------------------------------------- */

typedef struct encoder {
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    const char *path;
    char opened[16]; /* forms: f, i */
    int n_opened, n_told;
    double told; /* the last fraction */
    double stop; /* cancelled from there on; 0: never */
    bool back;   /* it once fell */
} encoder;

static tern_status open_it(void *user, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    encoder *e = user;
    assert_null(*out); /* one is in memory at a time */
    e->opened[e->n_opened++] = scheme == TN_TOWER_INT8 ? 'i' : 'f';
    return tn_tower_open(&e->ctx, e->pool, e->path, 0, scheme, out, err);
}

static bool tell(void *user, const char *stage, double fraction) {
    encoder *e = user;
    assert_string_equal(stage, "encoder");
    e->back = e->back || fraction < e->told;
    e->told = fraction;
    e->n_told++;
    return e->stop <= 0 || fraction < e->stop || fraction >= 1;
}

/* Writes an encoder, five channels of whose norms are gain times larger. */
static void begin(encoder *e, const char *name, float gain, char path[FIXTURE_PATH]) {
    char *bytes;
    size_t n_bytes;
    tern_error err;
    tn_gguf *g;
    tern_hooks hooks;
    *e = (encoder){.path = path};
    tern_hooks_defaults(&hooks);
    hooks.user = e;
    hooks.progress = tell;
    tn_ctx_init(&e->ctx, &hooks);
    tn_kernels_init(&e->kern, tn_cpu_flags(NULL));
    fixture_file(path, "judged.gguf");
    must(tn_pool_open(&e->ctx, 2, &e->pool, &err), &err);
    tn_ctx quiet;
    tn_ctx_init(&quiet, NULL);
    must(tn_synth_tower(&quiet, name, path, 7, TN_F16, &err), &err);
    must(tn_file_slurp(path, 1 << 26, &bytes, &n_bytes, &err), &err);
    must(tn_gguf_open_memory(&quiet, bytes, n_bytes, "memory", &g, &err), &err);
    for (size_t i = 0; i < tn_gguf_n_tensors(g); i++) {
        const tn_tensor *t = tn_gguf_tensor_at(g, i);
        if (t->n_dims != 1 || !(strstr(t->name, "ln1.weight") || strstr(t->name, "ln2.weight"))) continue;
        for (int64_t c = 1; c < (int64_t)t->dims[0]; c += (int64_t)t->dims[0] / 5)
            ((float *)t->data)[c] *= gain;
    }
    tn_gguf_close(&g);
    fixture_write(path, bytes, n_bytes);
    free(bytes);
    e->n_told = 0;
}

/* The verdict, and the one of the largest drawing alone. */
static void judged(const char *name, float gain, bool holds, const char *opened) {
    char path[FIXTURE_PATH];
    tern_error err;
    encoder e;
    tn_tower *t = NULL;
    tn_tower_verdict v, whole;
    tn_tower_size z[TN_TOWER_DRAWINGS];
    float *rows[2];
    begin(&e, name, gain, path);
    const tn_tower_judging j = {&e.ctx, &e.kern, e.pool, open_it, &e};
    must(tn_tower_judge(&j, &t, &v, &err), &err);
    e.opened[e.n_opened] = 0;
    assert_true(e.n_told > 4 && e.told == 1 && !e.back);
    size_t n = 0, width = 0;
    tn_tower_close(&t);
    for (int i = 0; i < 2; i++) {
        must(tn_tower_open(&e.ctx, e.pool, path, 0, i ? TN_TOWER_FLOAT : TN_TOWER_INT8, &t, &err), &err);
        const tn_tower_shape *s = tn_tower_shape_of(t);
        const tn_tower_size of = z[tn_tower_drawings(s, z) - 1];
        uint8_t *rgb = malloc(3 * (size_t)of.width * (size_t)of.height);
        n = (size_t)tn_tower_rows(s, of) * (size_t)(1 + s->n_deep), width = (size_t)s->out;
        rows[i] = malloc(n * width * sizeof *rows[i]);
        assert_true(rgb && rows[i]);
        tn_tower_draw(rgb, of);
        must(tn_tower_encode(t, &e.kern, e.pool, rgb, of, NULL, NULL, rows[i], &err), &err);
        free(rgb);
        tn_tower_close(&t);
    }
    whole = tn_tower_compare(rows[0], rows[1], n, width);
    print_message("%s, gain %.0f: %.5f, %.5f; the largest drawing alone %.5f, %.5f; opened %s\n", name,
                  (double)gain, (double)v.mean, (double)v.least, (double)whole.mean, (double)whole.least,
                  e.opened);
    assert_int_equal(tn_tower_holds(v), holds);
    assert_int_equal(tn_tower_holds(whole), holds);
    assert_string_equal(e.opened, opened);
    free(rows[0]), free(rows[1]);
    tn_pool_close(&e.pool);
}

static void a_clear_verdict_needs_one_drawing(void **state) {
    (void)state;
    judged("tiny-qwen25vl-mmproj", 1, true, "if");
    judged("tiny-qwen25vl-mmproj", 100, false, "if");
    judged("tiny-smolvlm-mmproj", 1, true, "if");
    /* near a limit: another drawing, and the form that is open goes first */
    judged("tiny-qwen25vl-mmproj", 3, true, "ifi");
    judged("tiny-qwen25vl-mmproj", 4, false, "ifi");
}

static void it_can_be_cancelled(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    tern_error err;
    encoder e;
    tn_tower *t = NULL;
    tn_tower_verdict v;
    begin(&e, "tiny-qwen3vl-mmproj", 1, path);
    e.stop = 0.1;
    const tn_tower_judging j = {&e.ctx, &e.kern, e.pool, open_it, &e};
    assert_int_equal(tn_tower_judge(&j, &t, &v, &err), TERN_E_CANCELLED);
    assert_true(e.told == 1); /* what was shown goes */
    tn_tower_close(&t);
    tn_pool_close(&e.pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_compared),
                                       cmocka_unit_test(both_limits_count),
                                       cmocka_unit_test(the_drawing_has_four_parts),
                                       cmocka_unit_test(drawings_are_whole_blocks_and_no_larger_than_a_tile),
                                       cmocka_unit_test(a_verdict_near_a_limit_is_not_clear),
                                       cmocka_unit_test(a_clear_verdict_needs_one_drawing),
                                       cmocka_unit_test(it_can_be_cancelled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
