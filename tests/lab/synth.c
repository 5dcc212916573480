/* Is every small synthetic model readable, of its shape, finite through a forward pass and the same bytes
 * whatever the threads? */
#include "session/session.h"
#include "formats/gguf.h"
#include "model/source.h"
#include "lab/synth.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

static tn_ctx ctx;
static char folder[64] = "/tmp/tern-synth-XXXXXX", path[128], other[128];

static void make(const char *name, const char *to, uint64_t seed, tn_dtype d, int n_threads) {
    tn_pool *pool;
    tern_error err = {0};
    assert_int_equal(tn_pool_open(&ctx, n_threads, &pool, &err), TERN_OK);
    if (tn_synth(&ctx, pool, name, to, seed, d, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    tn_pool_close(&pool);
}

static void finite_logits(const char *name) {
    tern_options o;
    tern_session_options so;
    tern_error err = {0};
    tn_options_defaults(&o);
    tern_session_options_defaults(&so);
    o.n_threads = 1;
    so.n_ctx = 64;
    tern_engine *e;
    tern_session *s;
    if (tern_engine_open(path, &o, &e, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    assert_int_equal(tern_session_open(e, &so, &s, &err), TERN_OK);
    int32_t ids[48];
    for (int i = 0; i < 48; i++) ids[i] = (i * 37) % 256;
    if (tern_session_prefill(s, ids, 48, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    tern_model_info info;
    tern_engine_info(e, &info);
    const float *l = tern_session_logits(s);
    float max = 0;
    for (int i = 0; i < info.n_vocab; i++) {
        if (!isfinite(l[i])) fail_msg("%s: logit %d is %g", name, i, (double)l[i]);
        max = fmaxf(max, fabsf(l[i]));
    }
    if (!(max > 0.01f && max < 1000)) fail_msg("%s: largest logit %g", name, (double)max);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Files write nemotron_h where the table of architectures has nemotron-h. */
static bool same_arch(const char *a, const char *b, size_t n) {
    if (strlen(a) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] && !(strchr("-_", a[i]) && strchr("-_", b[i]))) return false;
    return true;
}

static void small_models_run(void **state) {
    (void)state;
    int n = 0;
    for (size_t i = 0; tn_synth_name(i); i++) {
        const char *name = tn_synth_name(i);
        if (strncmp(name, "tiny-", 5)) continue;
        for (int k = 0; k < 4; k++) {
            make(name, path, 1, (const tn_dtype[]){TN_F32, TN_F16, TN_Q4_0, TN_Q8_0}[k], 2);
            finite_logits(name);
        }
        tn_source *s;
        tern_error err = {0};
        assert_int_equal(tn_source_open(&ctx, path, &s, &err), TERN_OK);
        size_t n_arch = strcspn(name + 5, "+"); /* "tiny-olmo2+window" is an olmo2 */
        assert_true(same_arch(tn_source_hparams(s)->arch, name + 5, n_arch));
        /* It names the type of the last layer's down projection, whose rows are whole blocks or stay F16; of a model
         * without any (Mamba 2) that of its embedding. */
        const tn_hparams *h = tn_source_hparams(s);
        bool blocks = h->n_ff == 1 || (h->n_experts ? h->n_ff_exp : h->n_ff) % 32 == 0;
        assert_string_equal(tn_source_description(s), blocks ? "GGUF v3, Q8_0" : "GGUF v3, F16");
        const tn_tokenizer *t = tn_source_tokenizer(s);
        assert_non_null(t);
        assert_int_equal(tn_tokenizer_n_vocab(t), tn_source_hparams(s)->n_vocab);
        int32_t ids[16];
        size_t n_ids;
        assert_int_equal(tn_tokenize(t, "the \xc3\xa9", 6, false, false, ids, 16, &n_ids, &err), TERN_OK);
        assert_true(n_ids == 5 && tn_tokenizer_find(t, "th") == ids[0]); /* th, e, the space, two bytes */
        tn_source_close(&s);
        n++;
    }
    assert_true(n >= 20);
}

static void bytes_depend_on_the_seed_only(void **state) {
    (void)state;
    uint8_t *a, *b;
    make("tiny-qwen2", path, 3, TN_Q8_0, 1);
    make("tiny-qwen2", other, 3, TN_Q8_0, 3);
    size_t n, n_other;
    a = fixture_read(path, &n);
    b = fixture_read(other, &n_other);
    assert_int_equal(n_other, n);
    assert_memory_equal(a, b, n);
    free(b);
    make("tiny-qwen2", other, 4, TN_Q8_0, 1);
    b = fixture_read(other, &n_other);
    assert_int_equal(n_other, n);
    assert_true(memcmp(a, b, n));
    free(a);
    free(b);
}

/* Phi-3 as other engines want it, Llama 3's scaling as a tensor, convolutions in floats. */
static void tensors_others_look_for(void **state) {
    (void)state;
    tern_error err = {0};
    tn_gguf *g;
    make("tiny-phi3", path, 1, TN_F16, 1);
    assert_int_equal(tn_gguf_open(&ctx, path, &g, &err), TERN_OK);
    const tn_tensor *qkv = tn_gguf_tensor(g, "blk.1.attn_qkv.weight"),
                    *up = tn_gguf_tensor(g, "blk.1.ffn_up.weight");
    assert_true(qkv && qkv->dims[0] == 192 && qkv->dims[1] == 64 && up && up->dims[0] == 256);
    assert_true(!tn_gguf_tensor(g, "blk.1.attn_q.weight") && !tn_gguf_tensor(g, "blk.1.ffn_gate.weight"));
    tn_gguf_close(&g);
    make("tiny-llama", path, 1, TN_F16, 1);
    assert_int_equal(tn_gguf_open(&ctx, path, &g, &err), TERN_OK);
    const tn_tensor *f = tn_gguf_tensor(g, "rope_freqs.weight");
    assert_true(f && f->dtype == TN_F32 && f->dims[0] == 8);
    float v[8];
    memcpy(v, f->data, sizeof v);
    assert_true(v[0] == 1 &&
                v[7] == 8); /* the shortest wavelength is kept, the longest stretched by the whole factor */
    tn_gguf_close(&g);
    make("tiny-lfm2", path, 1, TN_Q4_0, 1);
    assert_int_equal(tn_gguf_open(&ctx, path, &g, &err), TERN_OK);
    const tn_tensor *conv = tn_gguf_tensor(g, "blk.0.shortconv.conv.weight");
    assert_true(conv && conv->dtype == TN_F32); /* llama.cpp takes no other */
    tn_gguf_close(&g);
}

static bool never(void *user, const char *stage, double fraction) {
    (void)user, (void)stage, (void)fraction;
    return false;
}

static void failures_leave_nothing(void **state) {
    (void)state;
    (void)remove(path);
    (void)remove(other);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.progress = never;
    tn_ctx cancelling;
    tn_ctx_init(&cancelling, &hooks);
    tn_pool *pool;
    tern_error err = {0};
    assert_int_equal(tn_pool_open(&ctx, 1, &pool, &err), TERN_OK);
    assert_int_equal(tn_synth(&cancelling, pool, "tiny-llama", path, 1, TN_F16, &err), TERN_E_CANCELLED);
    assert_int_equal(tn_synth(&ctx, pool, "gpt-7", path, 1, TN_F16, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "gpt-7"));
    assert_int_equal(tn_synth(&ctx, pool, "tiny-llama", path, 1, TN_Q4_K, &err), TERN_E_INVALID);
    assert_int_equal(tn_synth(&ctx, pool, "tiny-llama", "/nowhere/x.gguf", 1, TN_F16, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "/nowhere/x.gguf"));
    tn_pool_close(&pool);
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 0);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/a.gguf", folder);
    snprintf(other, sizeof other, "%s/b.gguf", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_models_run), cmocka_unit_test(bytes_depend_on_the_seed_only),
        cmocka_unit_test(tensors_others_look_for), cmocka_unit_test(failures_leave_nothing)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)remove(path);
    (void)remove(other);
    (void)rmdir(folder);
    return rc;
}
