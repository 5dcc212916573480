/* What tern_engine_estimate says before a model is opened, beside what it then takes. */
#include "package/tuned.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

static const char *const archs[] = {"tiny-llama", "tiny-qwen2", "tiny-gemma2", "tiny-phi3", "tiny-qwen2+mtp"};
enum { N_ARCHS = sizeof archs / sizeof archs[0] };
static char model[N_ARCHS][FIXTURE_PATH], package[N_ARCHS][FIXTURE_PATH];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < N_ARCHS; i++) fixture_both(model[i], package[i], i, archs[i], 1, TN_F16, NULL);
    return 0;
}

static void opened(const char *path, int32_t n_ctx, tern_model_info *info, tn_stats *stats) {
    tern_engine *e;
    tern_session *s;
    tern_error err = {0};
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n_ctx;
    const int32_t ids[] = {1, 2, 3};
    if (tern_engine_open(path, NULL, &e, &err) != TERN_OK || tern_session_open(e, &so, &s, &err) != TERN_OK ||
        tern_session_prefill(s, ids, 3, &err) != TERN_OK)
        fail_msg("%s", err.message);
    tern_engine_info(e, info);
    info->arch = info->name = info->scheme = NULL; /* the engine's */
    tn_session_stats(s, stats);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void as_it_will_be(void **state) {
    (void)state;
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        const char *path = i < N_ARCHS ? model[i] : package[i - N_ARCHS];
        tern_options *o;
        tern_estimate m;
        tern_model_info info;
        tn_stats stats;
        tern_error err = {0};
        assert_int_equal(tern_options_new(&o, &err), TERN_OK);
        assert_int_equal(tern_options_set(o, "ctx-size", "300", &err), TERN_OK);
        if (tern_engine_estimate(path, o, &m, &err) != TERN_OK) fail_msg("%s", err.message);
        opened(path, 300, &info, &stats);
        assert_int_equal(m.n_ctx, 300);
        if (strstr(archs[i % N_ARCHS], "+mtp")) assert_true(m.kv_bytes > stats.kv_bytes); /* see below */
        else assert_int_equal(m.kv_bytes, stats.kv_bytes);
        assert_true(m.work_bytes > 0);
        if (i < N_ARCHS) assert_int_equal(m.weight_bytes, info.weight_bytes);
        else if (m.weight_bytes < info.weight_bytes / 2 || m.weight_bytes > info.weight_bytes * 3)
            fail_msg("%s: %llu bytes, really %llu", path, (unsigned long long)m.weight_bytes,
                     (unsigned long long)info.weight_bytes);
        tern_options_free(&o);
    }
}

/* Weights of quantised files stay in the file's blocks, dense ones and those of experts. */
static void in_the_files_blocks(void **state) {
    (void)state;
    static const char *const of[] = {"tiny-llama", "tiny-qwen3moe", "tiny-qwen2+mtp"};
    for (int i = 0; i < 6; i++) {
        char path[FIXTURE_PATH];
        tern_estimate m;
        tern_model_info info;
        tn_stats stats;
        tern_error err = {0};
        fixture_model(path, "blocks.gguf", of[i % 3], 1, i < 3 ? TN_Q8_0 : TN_Q4_0);
        must(tern_engine_estimate(path, NULL, &m, &err), &err);
        opened(path, 300, &info, &stats);
        if (m.weight_bytes != info.weight_bytes)
            fail_msg("%s: %llu bytes, really %llu", of[i % 3], (unsigned long long)m.weight_bytes,
                     (unsigned long long)info.weight_bytes);
    }
}

/* The layer that guesses further: what a session takes more with it than without is in the estimate. */
static void guesses_further(void **state) {
    (void)state;
    char path[FIXTURE_PATH], gguf[FIXTURE_PATH];
    static const char *const models[] = {"tiny-qwen2+mtp", "tiny-qwen35+mtp", "tiny-qwen35moe+mtp"};
    for (int i = 0; i < 6; i++) {
        tern_estimate m[2];
        uint64_t kv[2], work[2];
        fixture_model(i < 3 ? path : gguf, "next.gguf", models[i % 3], 1, TN_F16);
        if (i >= 3) fixture_package(path, "next.tern", gguf, NULL);
        for (int with = 0; with < 2; with++) {
            tern_options *o;
            tern_engine *e;
            tern_error err = {0};
            assert_int_equal(tern_options_new(&o, &err), TERN_OK);
            assert_int_equal(tern_options_set(o, "ctx-size", "300", &err), TERN_OK);
            assert_int_equal(tern_options_set(o, "threads", "2", &err), TERN_OK);
            assert_int_equal(tern_options_set(o, "draft", with ? "sam,mtp" : "sam", &err), TERN_OK);
            must(tern_engine_estimate(path, o, &m[with], &err), &err);
            must(tern_engine_open(path, o, &e, &err), &err);
            tern_session *s = fixture_session(e, 300, with ? "sam,mtp" : "sam");
            kv[with] = e->ctx.live_bytes[TN_MEM_KV];
            work[with] = e->ctx.live_bytes[TN_MEM_ACTIVATIONS];
            tern_session_close(&s);
            tern_engine_close(&e);
            tern_options_free(&o);
        }
        uint64_t more = work[1] - work[0], said = m[1].work_bytes - m[0].work_bytes, more_kv = kv[1] - kv[0],
                 said_kv = m[1].kv_bytes - m[0].kv_bytes;
        if (said < more * 9 / 10 || said > more * 2 || said_kv < more_kv * 9 / 10 || said_kv > more_kv * 2)
            fail_msg("%s: said %llu and %llu bytes, took %llu and %llu", path, (unsigned long long)said,
                     (unsigned long long)said_kv, (unsigned long long)more, (unsigned long long)more_kv);
    }
}

/* The promise of max-memory: what fits opens, with a context that is shorter where it has to be; what does
 * not is refused with the numbers, before anything is loaded. */
static uint64_t needed(const char *path, const char *weights, const char *kv, int32_t n_ctx,
                       int32_t *out_ctx) {
    tern_options *o;
    tern_estimate m;
    tern_error err = {0};
    char ctx[16];
    assert_int_equal(tern_options_new(&o, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "weights", weights, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "kv", kv, &err), TERN_OK);
    snprintf(ctx, sizeof ctx, "%d", n_ctx);
    if (n_ctx) assert_int_equal(tern_options_set(o, "ctx-size", ctx, &err), TERN_OK);
    assert_int_equal(tern_engine_estimate(path, o, &m, &err), TERN_OK);
    tern_options_free(&o);
    if (out_ctx) *out_ctx = m.n_ctx;
    return m.weight_bytes + m.kv_bytes + m.work_bytes;
}

static tern_status open_long(const char *path, const char *weights, const char *kv, int32_t n_ctx,
                             uint64_t limit, tern_engine **e, tern_error *err) {
    tern_options *o;
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)limit);
    assert_int_equal(tern_options_new(&o, err), TERN_OK);
    if (weights) assert_int_equal(tern_options_set(o, "weights", weights, err), TERN_OK);
    if (kv) assert_int_equal(tern_options_set(o, "kv", kv, err), TERN_OK);
    assert_int_equal(tern_options_set(o, "max-memory", bytes, err), TERN_OK);
    snprintf(bytes, sizeof bytes, "%d", n_ctx);
    if (n_ctx) assert_int_equal(tern_options_set(o, "ctx-size", bytes, err), TERN_OK);
    tern_status st = tern_engine_open(path, o, e, err);
    tern_options_free(&o);
    return st;
}

static tern_status open_within(const char *path, const char *weights, const char *kv, uint64_t limit,
                               tern_engine **e, tern_error *err) {
    return open_long(path, weights, kv, 0, limit, e, err);
}

static void promise(const char *path, const char *weights) {
    int32_t longest;
    tern_error err = {0};
    tern_engine *e = NULL;
    tern_session *s = NULL;
    uint64_t want[] = {needed(path, weights, "f32", 256, NULL), needed(path, weights, "f32", 0, &longest)};
    assert_true(want[0] < want[1]);
    assert_int_equal(open_within(path, weights, "f32", want[0] - 1, &e, &err), TERN_E_LIMIT);
    assert_non_null(strstr(err.message, "max-memory allows"));
    for (int k = 0; k < 3; k++) { /* enough for the least, for a part, for all */
        uint64_t limit = k == 0 ? want[0] : k == 1 ? want[0] + (want[1] - want[0]) / 2 : want[1];
        tern_status st = open_within(path, weights, "f32", limit, &e, &err);
        if (st != TERN_OK || tern_session_open(e, NULL, &s, &err) != TERN_OK)
            fail_msg("%s %d: %s", path, k, err.message);
        int32_t n = tern_session_capacity(s);
        if (k == 2 ? n != longest : n < 256 || n >= longest) fail_msg("%s, %d: %d tokens", path, k, n);
        tern_session_close(&s);
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.n_ctx = n + 1;
        if (k < 2) assert_int_equal(tern_session_open(e, &so, &s, &err), TERN_E_LIMIT);
        tern_engine_close(&e);
    }
}

static void memory_is_promised(void **state) {
    (void)state;
    for (int i = 0; i < N_ARCHS; i++) {
        promise(model[i], "tiles");
        promise(package[i], "tiles");
        promise(package[i], "packed");
    }
}

/* Left alone, the weights take the form that fits, whichever this processor prefers. */
static void takes_the_form_that_fits(void **state) {
    (void)state;
    for (int i = 0; i < N_ARCHS; i++) {
        uint64_t tiles = needed(package[i], "tiles", "f16", 256, NULL),
                 packed = needed(package[i], "packed", "f16", 256, NULL),
                 own = needed(package[i], "auto", "f16", 256, NULL), least = packed < own ? packed : own;
        assert_true(own == tiles || own == packed);
        tern_engine *e = NULL;
        tern_error err = {0};
        if (open_within(package[i], NULL, NULL, least, &e, &err) != TERN_OK) fail_msg("%s", err.message);
        tern_engine_close(&e);
        assert_int_equal(open_within(package[i], NULL, NULL, least - 1, &e, &err), TERN_E_LIMIT);
    }
}

static void tuned(const char *profile, const char *key, uint64_t fingerprint) {
    FILE *f = fopen(profile, "w");
    assert_non_null(f);
    fprintf(f, "{\"tuned\": {\"key\": \"%s\", \"fingerprint\": \"%016llx\", \"chunk\": 512}}\n", key,
            (unsigned long long)fingerprint);
    fclose(f);
}

/* One row's products take the form that was measured to be the fastest here, with chunks of any length; another
 * machine's, another package's or one that this processor has not is none. */
static void measured_forms(void **state) {
    (void)state;
    char profile[FIXTURE_PATH + 16], key[40];
    snprintf(profile, sizeof profile, "%s.profile", package[0]);
    remove(profile);
    tern_engine *e = NULL;
    tern_error err = {0};
    if (open_long(package[0], "packed", "f16", 64, 1 << 30, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    const tn_packed_form *forms = tn_packed_forms(e->kern.cpu);
    const tn_gemm_packed_fn usual = e->kern.gemm_packed;
    const uint64_t print = e->model->fingerprint;
    tn_tuned_key(e->kern.cpu, e->n_lane_workers, key);
    tern_engine_close(&e);
    if (!forms) skip();
    for (int i = 0; i < 4; i++) {
        FILE *f = fopen(profile, "w");
        assert_non_null(f);
        fprintf(f,
                "{\"tuned\": {\"key\": \"%s\", \"fingerprint\": \"%016llx\", \"chunk\": 512, "
                "\"packed_form\": \"%s\"}}\n",
                i == 2 ? "another-machine" : key, (unsigned long long)(print + (i == 1)),
                i == 3 ? "none such" : forms[1].name);
        fclose(f);
        if (open_long(package[0], "packed", "f16", 64, 1 << 30, &e, &err) != TERN_OK)
            fail_msg("%s", err.message);
        assert_true(e->kern.gemm_packed == (i ? usual : forms[1].fn));
        tern_engine_close(&e);
    }
    remove(profile);
}

/* A chunk length that was measured to be faster takes more, so where that does not fit it is the usual one. */
static void measured_lengths(void **state) {
    (void)state;
    enum { N_CTX = 4096 };
    char profile[FIXTURE_PATH + 16];
    snprintf(profile, sizeof profile, "%s.profile", package[0]);
    remove(profile);
    tern_engine *e = NULL;
    tern_error err = {0};
    const uint64_t usual = needed(package[0], "tiles", "f16", N_CTX, NULL);
    if (open_long(package[0], "tiles", "f16", N_CTX, 1 << 30, &e, &err) != TERN_OK)
        fail_msg("%s", err.message);
    char key[40];
    tn_tuned_key(e->kern.cpu, e->n_lane_workers, key);
    const uint64_t print = e->model->fingerprint;
    tern_engine_close(&e);
    tuned(profile, "another-machine", print);
    assert_int_equal(needed(package[0], "tiles", "f16", N_CTX, NULL), usual);
    tuned(profile, key, print + 1); /* another package lay there */
    assert_int_equal(needed(package[0], "tiles", "f16", N_CTX, NULL), usual);
    tuned(profile, key, print);
    const uint64_t more = needed(package[0], "tiles", "f16", N_CTX, NULL);
    assert_true(more > usual);
    for (int fits = 0; fits < 2; fits++) {
        if (open_long(package[0], "tiles", "f16", N_CTX, fits ? more : usual, &e, &err) != TERN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(e->npu->chunk, fits ? 512 : TN_CHUNK_DEFAULT);
        tern_engine_close(&e);
    }
    remove(profile);
}

static void form_is(const char *path, const char *kv, int32_t n_ctx, bool exact, tn_kv_type want) {
    tern_options *o;
    tern_estimate m;
    tern_engine *e;
    tern_session *s = NULL;
    tn_stats stats;
    tern_error err = {0};
    char ctx[16];
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n_ctx;
    snprintf(ctx, sizeof ctx, "%d", n_ctx);
    assert_int_equal(tern_options_new(&o, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "kv", kv, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "ctx-size", ctx, &err), TERN_OK);
    if (exact) assert_int_equal(tern_options_set(o, "exact", "on", &err), TERN_OK);
    if (tern_engine_estimate(path, o, &m, &err) != TERN_OK ||
        tern_engine_open(path, o, &e, &err) != TERN_OK || tern_session_open(e, &so, &s, &err) != TERN_OK)
        fail_msg("%s", err.message);
    tn_session_stats(s, &stats);
    assert_int_equal(s->state.kv.type, want);
    assert_int_equal(m.kv_bytes, stats.kv_bytes);
    tern_session_close(&s);
    tern_engine_close(&e);
    tern_options_free(&o);
}

/* Keys and values: as asked for, else halves in long contexts and floats in short ones, and never but
 * floats where every bit counts. */
static void forms_of_keys_and_values(void **state) {
    (void)state;
    for (int t = 0; t < TN_N_KV_TYPES; t++)
        form_is(package[0], tn_kv_type_name((tn_kv_type)t), 300, false, (tn_kv_type)t);
    form_is(model[0], "auto", TN_KV_FLOATS, false, TN_KV_F32);
    form_is(model[0], "auto", TN_KV_FLOATS + 1, false, TN_KV_F16);
    form_is(model[0], "auto", TN_KV_FLOATS + 1, true, TN_KV_F32);
    tern_options *o;
    tern_engine *e;
    tern_error err = {0};
    assert_int_equal(tern_options_new(&o, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "exact", "on", &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "kv", "f16", &err), TERN_OK);
    assert_int_equal(tern_engine_open(model[0], o, &e, &err), TERN_E_INVALID);
    tern_options_free(&o);
}

/* Before a context becomes shorter, its keys and values take fewer bits. */
static void memory_takes_bits_first(void **state) {
    (void)state;
    static const char *const forms[] = {"f32", "f16", "int8"};
    for (int k = 0; k < 3; k++) {
        int32_t longest;
        const char *path =
            TN_SOURCE_DIR "/models/tern-tiny"; /* heads of 64: small ones fill up groups of codes */
        uint64_t limit = needed(path, "auto", forms[k], 0, &longest);
        tern_engine *e = NULL;
        tern_session *s = NULL;
        tern_error err = {0};
        if (open_within(path, NULL, NULL, limit, &e, &err) != TERN_OK ||
            tern_session_open(e, NULL, &s, &err) != TERN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(tern_session_capacity(s), longest);
        assert_string_equal(tn_kv_type_name(s->state.kv.type), forms[k]);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* LFM2: two layers of six attend, the others remember the last inputs of a convolution. */
static void layers_without_attention_keep_no_keys(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    tern_options *o;
    tern_estimate m;
    tern_model_info info;
    tn_stats stats;
    tern_error err = {0};
    fixture_model(path, "conv.gguf", "tiny-lfm2", 1, TN_F16);
    assert_int_equal(tern_options_new(&o, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "ctx-size", "1024", &err), TERN_OK);
    if (tern_engine_estimate(path, o, &m, &err) != TERN_OK) fail_msg("%s", err.message);
    opened(path, 1024, &info, &stats);
    assert_int_equal(m.kv_bytes, stats.kv_bytes);
    /* K and V of two KV heads of 16 values, and rings of 384 rows of 64 channels and the last two, in
     * floats */
    assert_int_equal(stats.kv_bytes, 4 * (2 * 2 * 1024 * 2 * 16 + 4 * (384 + 2) * 64));
    tern_options_free(&o);
}

static void fails_as_opening_would(void **state) {
    (void)state;
    tern_estimate m;
    tern_error err = {0};
    assert_int_equal(tern_engine_estimate("/nonexistent.gguf", NULL, &m, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "/nonexistent.gguf"));
    assert_int_equal(tern_engine_estimate(TN_SOURCE_DIR "/README.md", NULL, &m, &err), TERN_E_FORMAT);
    assert_int_equal(tern_engine_estimate_sized(model[0], NULL, &m, 8, &err), TERN_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_it_will_be),
        cmocka_unit_test(memory_is_promised),
        cmocka_unit_test(takes_the_form_that_fits),
        cmocka_unit_test(measured_forms),
        cmocka_unit_test(measured_lengths),
        cmocka_unit_test(forms_of_keys_and_values),
        cmocka_unit_test(memory_takes_bits_first),
        cmocka_unit_test(layers_without_attention_keep_no_keys),
        cmocka_unit_test(guesses_further),
        cmocka_unit_test(in_the_files_blocks),
        cmocka_unit_test(fails_as_opening_would),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
