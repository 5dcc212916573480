/* Quantised files whose blocks hold anything: scales that are no numbers or huge, numbers of code books beyond their
 * lists, bytes of one value. A type's file opens or says why not, and its logits are numbers or an error: never a crash,
 * however its weights are read. To be run under the sanitizers too. */
#include "base/rng.h"
#include "formats/gguf.h"
#include "session/session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

static const tn_dtype types[] = {TN_IQ1_S, TN_IQ1_M, TN_IQ2_XXS, TN_IQ2_XS, TN_IQ2_S,  TN_IQ3_XXS,
                                 TN_IQ3_S, TN_TQ1_0, TN_TQ2_0,   TN_Q1_0,   TN_Q2_0,   TN_NVFP4,
                                 TN_MXFP4, TN_Q4_0,  TN_Q8_0,    TN_Q6_0,   TN_IQ2_K,  TN_IQ3_K,
                                 TN_IQ5_K, TN_IQ6_K, TN_IQ4_KSS, TN_IQ2_KL, TN_IQ3_KS, TN_IQ1_KT};
static const char *const ways[][2] = {
    {NULL, NULL}, {"load", "sequential"}, {"read", "threads-direct"}, {"scheme", "float"}};

static char path[FIXTURE_PATH], other[FIXTURE_PATH];
static int n_answered, n_refused;

/* A file's bytes, and where the bytes of its tensors of blocks begin and end. */
typedef struct image {
    uint8_t *bytes;
    size_t n, from, end;
} image;

static image read_image(void) {
    tn_ctx ctx;
    tern_error err;
    tn_gguf *g;
    image im = {.from = SIZE_MAX};
    tn_ctx_init(&ctx, NULL);
    must(tn_gguf_open(&ctx, path, &g, &err), &err);
    for (size_t i = 0; i < tn_gguf_n_tensors(g); i++) {
        const tn_tensor *t = tn_gguf_tensor_at(g, i);
        if (t->dtype == TN_F32) continue;
        if (t->off_bytes < im.from) im.from = t->off_bytes;
        if (t->off_bytes + t->size_bytes > im.end) im.end = t->off_bytes + t->size_bytes;
    }
    tn_gguf_close(&g);
    im.bytes = fixture_read(path, &im.n);
    assert_true(im.from < im.end && im.end <= im.n);
    return im;
}

static void answer(const uint8_t *bytes, size_t n, const char *const *way) {
    tern_error err = {0};
    tern_options *o;
    tern_engine *e;
    int32_t prompt[8];
    fixture_write(other, bytes, n);
    must(tern_options_new(&o, &err), &err);
    must(tern_options_set(o, "threads", "2", &err), &err);
    if (way[0]) must(tern_options_set(o, way[0], way[1], &err), &err);
    tern_status st = tern_engine_open(other, o, &e, &err);
    tern_options_free(&o);
    if (st == TERN_OK) {
        tern_session *s = fixture_session(e, 32, "none");
        fixture_prompt(prompt, 8);
        st = tern_session_prefill(s, prompt, 8, &err);
        const float *logits = st == TERN_OK ? tern_session_logits(s) : NULL;
        for (int32_t i = 0; logits && i < e->model->h.n_vocab; i++) assert_true(isfinite(logits[i]));
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    if (st != TERN_OK && (st != TERN_E_FORMAT || !err.message[0])) fail_msg("%d: %s", (int)st, err.message);
    n_answered += st == TERN_OK;
    n_refused += st != TERN_OK;
}

static void any_bytes(void **state) {
    (void)state;
    static const uint8_t fills[] = {0xff, 0x7f, 0x80, 0};
    static const uint8_t pairs[][2] = {{0, 0x7c}, {0xff, 0x7b}, {0xff, 0xff}, {1, 0}, {0, 0x80}};
    tn_rng rng = {.s = 11};
    size_t i_way = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        fixture_model(path, "blocks.gguf", "tiny-llama+256", 3, types[i]);
        const image im = read_image();
        uint8_t *bytes = malloc(im.n);
        for (int k = 0; k < 12; k++) {
            memcpy(bytes, im.bytes, im.n);
            const size_t n = im.end - im.from;
            if (k < 4) memset(bytes + im.from, fills[k], n);
            else
                for (int m = k < 8 ? 3 : 3000; m--;) { /* a scale or an index here and there */
                    uint8_t *at = bytes + im.from + tn_rng_below(&rng, (uint32_t)n - 2);
                    if (k % 2) memcpy(at, pairs[tn_rng_below(&rng, 5)], 2);
                    else at[0] = (uint8_t)tn_rng_below(&rng, 256);
                }
            answer(bytes, im.n, ways[i_way++ % (sizeof ways / sizeof *ways)]);
        }
        free(bytes);
        free(im.bytes);
    }
    print_message("%d answered, %d refused\n", n_answered, n_refused);
    assert_true(n_answered > 40 && n_refused > 40);
}

int main(void) {
    fixture_file(other, "hostile-blocks.gguf");
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
