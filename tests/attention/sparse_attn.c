/* Sparse attention of the prompt: full at ratio 1, the same bits whatever the schedule and the instruction
 * set, nothing left of a text that was taken back, and estimates that find what matters. */
#include "session/session.h"
#include "attention/sparse_impl.h"
#include "model/head_ratio.h"
#include "prefill/impl.h"
#include "lab/synth.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_PROMPT = 700, N_LONG = 1301, CTX = 1344 };

static char gguf[256], package[256];
static int32_t prompt[N_LONG], other[N_PROMPT];

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    tern_error err = {0};
    snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/sparse-%ld.gguf", (long)getpid());
    snprintf(package, sizeof package, TN_BINARY_DIR "/sparse-%ld.tern", (long)getpid());
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.calib_tokens = 512;
    o.head_importance = true;
    if (tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK ||
        tn_synth(&ctx, pool, "tiny-qwen2", gguf, 7, TN_F32, &err) != TERN_OK ||
        tn_pack(&ctx, gguf, package, &o, NULL, &err) != TERN_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    tn_pool_close(&pool);
    for (int i = 0; i < N_LONG; i++) prompt[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 500;
    for (int i = 0; i < N_PROMPT; i++) {
        other[i] = i < 96 ? prompt[i] : (int32_t)((uint32_t)i * 2246822519u >> 8) % 500;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char profile[300];
    snprintf(profile, sizeof profile, "%s.profile", package);
    unlink(profile);
    unlink(package);
    unlink(gguf);
    return 0;
}

static tern_options options(const char *mode, float ratio) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.attention = mode;
    o.attention_ratio = ratio;
    o.attention_threshold = 1;
    return o;
}

typedef struct run {
    tern_engine *e;
    tern_session *s;
} run;

static run open_run(const tern_options *o) {
    run r = {0};
    tern_error err = {0};
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = CTX;
    if (tern_engine_open(package, o, &r.e, &err) != TERN_OK ||
        tern_session_open(r.e, &so, &r.s, &err) != TERN_OK)
        fail_msg("%s", err.message);
    return r;
}

static void prefill(run *r, const int32_t *text, size_t n) {
    tern_error err = {0};
    if (tern_session_prefill(r->s, text, n, &err) != TERN_OK) fail_msg("%s", err.message);
}

/* The logits after the prompt; closes the run. The caller frees. */
static float *take_logits(run *r, tn_stats *stats) {
    tern_model_info info;
    tern_engine_info(r->e, &info);
    float *out = malloc((size_t)info.n_vocab * sizeof *out);
    memcpy(out, tern_session_logits(r->s), (size_t)info.n_vocab * sizeof *out);
    if (stats) tn_session_stats(r->s, stats);
    tern_session_close(&r->s);
    tern_engine_close(&r->e);
    return out;
}

static float *logits_of(const tern_options *o, size_t n, tn_stats *stats) {
    run r = open_run(o);
    prefill(&r, prompt, n);
    return take_logits(&r, stats);
}

enum { N_VOCAB_BYTES = 512 * sizeof(float) }; /* of tiny-qwen2 */

static void everything_is_full(void **state) {
    (void)state;
    static const char *const modes[] = {"shadow", "float-sparse", "block-sparse", "npu-full"};
    tern_options o = options("full", 0);
    float *want = logits_of(&o, N_PROMPT, NULL);
    for (int i = 0; i < 4; i++) {
        o = options(modes[i], 1);
        float *got = logits_of(&o, N_PROMPT, NULL);
        assert_memory_equal(got, want, N_VOCAB_BYTES);
        free(got);
    }
    o = options("shadow", 0.2f);
    o.attention_threshold = N_PROMPT + 1;
    float *got = logits_of(&o, N_PROMPT, NULL);
    assert_memory_equal(got, want, N_VOCAB_BYTES);
    free(got);
    tern_options full = options("full", 0);
    float *want_short = logits_of(&full, 500, NULL);
    o.attention_threshold = 0; /* automatic, and 500 tokens are too few */
    got = logits_of(&o, 500, NULL);
    assert_memory_equal(got, want_short, N_VOCAB_BYTES);
    free(got);
    free(want_short);
    o.attention_threshold = 1;
    got = logits_of(&o, N_PROMPT, NULL);
    assert_memory_not_equal(got, want, N_VOCAB_BYTES); /* or this test tests nothing */
    free(got);
    /* "auto" is shadow where the context reaches the length, and takes no memory for it where it does not */
    float *shadow = logits_of(&o, N_PROMPT, NULL);
    tn_stats stats;
    o.attention = "auto";
    got = logits_of(&o, N_PROMPT, NULL);
    assert_memory_equal(got, shadow, N_VOCAB_BYTES);
    free(got);
    o.attention_threshold = CTX + 64; /* caches are whole panels */
    got = logits_of(&o, N_PROMPT, &stats);
    assert_memory_equal(got, want, N_VOCAB_BYTES);
    assert_int_equal(stats.attn_bytes, 0);
    free(got);
    free(shadow);
    free(want);
}

static void schedules_and_instruction_sets(void **state) {
    (void)state;
    static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"}, *const isas[] = {
                                                                                         "scalar", "avx2",
                                                                                         "avx512", "neon",
                                                                                         "dotprod"};
    static const char *const modes[] = {"shadow", "float-sparse", "block-sparse", "npu-full"};
    for (int m = 0; m < 4; m++) {
        tern_options o = options(modes[m], 0.2f);
        tn_stats stats;
        o.chunk = 64;
        float *want = logits_of(&o, N_PROMPT, &stats);
        assert_true(stats.attn_rows > 0);
        for (int i = 0; i < 4; i++) {
            o.policy = policies[i];
            o.n_threads = 1 + i % 3;
            o.cpu_threads = 1 + i / 2;
            float *got = logits_of(&o, N_PROMPT, NULL);
            assert_memory_equal(got, want, N_VOCAB_BYTES);
            free(got);
        }
        for (int i = 0; i < 5 && m < 2; i++) {
            setenv("TERN_CPU", isas[i], 1);
            float *got = logits_of(&o, N_PROMPT, NULL);
            unsetenv("TERN_CPU");
            if (memcmp(got, want, N_VOCAB_BYTES)) fail_msg("%s, %s", modes[m], isas[i]);
            free(got);
        }
        free(want);
    }
}

/* Nothing of a text that was taken back is left in the INT8 keys. */
static void text_taken_back(void **state) {
    (void)state;
    static const char *const modes[] = {"shadow", "block-sparse", "npu-full"};
    for (int m = 0; m < 3; m++) {
        tern_options o = options(modes[m], 0.2f);
        o.chunk = 32;
        o.attention_threshold = 128; /* the first 96 tokens are attended in full either way */
        run a = open_run(&o), b = open_run(&o);
        prefill(&a, prompt, N_PROMPT);
        prefill(&a, other, N_PROMPT);
        prefill(&b, other, 96);
        prefill(&b, other, N_PROMPT);
        float *x = take_logits(&a, NULL), *y = take_logits(&b, NULL);
        if (memcmp(x, y, N_VOCAB_BYTES)) fail_msg("%s", modes[m]);
        free(x);
        free(y);
    }
}

/* All blocks are full attention; few positions, of which each has a weight worth a step, are nearly that in
 * INT8. */
static void baselines(void **state) {
    (void)state;
    enum { N_SHORT = 33 };
    tern_options o = options("full", 0);
    float *want = logits_of(&o, N_PROMPT, NULL);
    o = options("block-sparse", 0.999f);
    o.no_head_ratios = true;
    float *got = logits_of(&o, N_PROMPT, NULL);
    assert_memory_equal(got, want, N_VOCAB_BYTES);
    free(got);
    free(want);
    o = options("full", 0);
    want = logits_of(&o, N_SHORT, NULL);
    o = options("npu-full", 0.2f);
    got = logits_of(&o, N_SHORT, NULL);
    double error = 0, all = 0;
    for (int i = 0; i < 512; i++) {
        error += pow((double)got[i] - (double)want[i], 2);
        all += pow((double)want[i], 2);
    }
    print_message("npu-full: error %.4f of the logits\n", sqrt(error / all));
    assert_true(error > 0 && sqrt(error / all) < 0.1);
    free(got);
    free(want);
}

static void estimates_find_what_matters(void **state) {
    (void)state;
    tern_options o = options("shadow", 0.2f);
    o.attention_check = true;
    tn_stats nine, one, exact;
    free(logits_of(&o, N_PROMPT, &nine));
    o.attention_buckets = 1;
    free(logits_of(&o, N_PROMPT, &one));
    o = options("float-sparse", 0.2f);
    o.attention_check = true;
    free(logits_of(&o, N_PROMPT, &exact));
    double recall = (double)nine.attn_found / (double)nine.attn_true,
           share = (double)nine.attn_selected / (double)nine.attn_seen;
    print_message("recall %.4f with 9 pairs of scales, %.4f with 1; share %.3f\n", recall,
                  (double)one.attn_found / (double)one.attn_true, share);
    assert_true(recall > 0.97);
    assert_true(share > 0.19 && share < 0.25);
    assert_true(exact.attn_true > 0 && exact.attn_found == exact.attn_true);
    assert_true(nine.attn_launches > 0 && exact.attn_launches == 0);
}

/* Heads that matter more attend to more, also where they share a list: each KV head's lists have the mean share of its
 * heads. */
static void heads_have_their_shares(void **state) {
    (void)state;
    tern_options o = options("shadow", 0.2f);
    run r = open_run(&o);
    const tn_sparse_attn *s = tn_session_pipeline(r.s)->sparse;
    float least = 1, most = 0;
    for (int32_t i = 0; i < s->h->n_layers * s->h->n_kv_heads; i++) {
        const float mean = tn_sparse_mean_ratio(s, (size_t)(i * s->n_group));
        least = mean < least ? mean : least;
        most = mean > most ? mean : most;
    }
    assert_true(most > 1.2f * least); /* or this test tests nothing */
    prefill(&r, prompt, N_PROMPT);
    float *own = take_logits(&r, NULL);
    o.no_head_ratios = true;
    float *same = logits_of(&o, N_PROMPT, NULL);
    assert_memory_not_equal(own, same, N_VOCAB_BYTES);
    free(own);
    free(same);
}

/* The scale of queries is the nearest of the queries' scales; what keys have changes nothing. */
static void queries_have_scales_of_their_own(void **state) {
    (void)state;
    tern_options o = options("shadow", 0.2f);
    o.chunk = 64;
    int32_t bucket[2][64];
    for (int i = 0; i < 2; i++) {
        run r = open_run(&o);
        const tn_sparse_attn *s = tn_session_pipeline(r.s)->sparse;
        const int32_t n = s->h->n_kv_heads * s->n_units_kv, last = s->h->n_layers - 1;
        assert_true(s->n_steps > 1 && n <= 64);
        for (int32_t k = 0; k < s->n_steps && i; k++) s->scale_k[last * s->n_steps + k] *= 1000;
        prefill(&r, prompt, 64); /* one chunk, whose plan is the last layer's afterwards */
        memcpy(bucket[i], s->plans[0].q_bucket, (size_t)n * sizeof **bucket);
        for (int32_t k = 0; k < n && i; k++) assert_int_equal(bucket[1][k], bucket[0][k]);
        tern_session_close(&r.s);
        tern_engine_close(&r.e);
    }
}

/* The largest key of every panel counts, whatever pieces the text came in: what a later piece adds to a panel, too. */
static void panels_fill_in_pieces(void **state) {
    (void)state;
    tern_options o = options("shadow", 0.2f);
    run r = open_run(&o);
    for (size_t n = 45; n < N_PROMPT; n += 45) prefill(&r, prompt, n);
    const tn_sparse_attn *s = tn_session_pipeline(r.s)->sparse;
    const size_t d = (size_t)s->h->d_head;
    for (int layer = 0; layer < s->h->n_layers; layer++) {
        for (int32_t head = 0; head < s->h->n_kv_heads; head++) {
            const key_cache *k = tn_sparse_keys(s, layer, head);
            const float *keys = tn_kv_k(s->kv, layer, head);
            for (int32_t p = 0; p * TN_KV_PANEL < k->n_keys; p++) {
                float max = 0;
                for (int32_t i = 0; i < TN_KV_PANEL && p * TN_KV_PANEL + i < k->n_keys; i++)
                    for (size_t j = 0; j < d; j++)
                        max = fmaxf(max, fabsf(keys[((size_t)p * d + j) * TN_KV_PANEL + (size_t)i]));
                if (k->panel_max[p] != max) fail_msg("layer %d, head %d, panel %d", layer, head, p);
            }
        }
    }
    tern_session_close(&r.s);
    tern_engine_close(&r.e);
}

static void odd_lengths(void **state) {
    (void)state;
    static const size_t ns[] = {1, 2, 31, 33, 64, 65, 257, 300};
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        for (int tiny = 0; tiny < 2; tiny++) {
            tern_options o = options("shadow", tiny ? 1e-6f : 0.5f);
            float *got = logits_of(&o, ns[i], NULL);
            for (int j = 0; j < 512; j++) assert_true(isfinite(got[j]));
            free(got);
        }
    }
}

/* A device that shares our memory works part by part, one apart on whole rows: the same bits. */
static void part_by_part(void **state) {
    (void)state;
    for (int share = -1; share <= 8; share += 3) {
        tern_options o = options("shadow", 0.2f);
        o.attention_share = share;
        o.attention_pool = 1 + share % 2;
        tn_stats a, b;
        float *want = logits_of(&o, N_LONG, &a);
        o.attention_whole = true;
        float *got = logits_of(&o, N_LONG, &b);
        assert_memory_equal(got, want, N_VOCAB_BYTES);
        assert_true(a.attn_rows > 0 && a.attn_selected == b.attn_selected &&
                    a.attn_launches == b.attn_launches);
        free(got);
        free(want);
    }
}

/* How rows share changes what is selected, not how well; a prompt of one token over and over has equal scores
 * everywhere. */
static void ways_to_share(void **state) {
    (void)state;
    for (int share = -1; share <= 8; share++) {
        for (int pool = 1; pool <= 2; pool++) {
            tern_options o = options("shadow", 0.2f);
            o.attention_share = share;
            o.attention_pool = pool;
            o.attention_check = true;
            tn_stats s;
            free(logits_of(&o, 333, &s));
            double recall = (double)s.attn_found / (double)s.attn_true,
                   kept = (double)s.attn_selected / (double)s.attn_seen;
            if (!(recall > 0.95) || !(s.attn_mass > 0.2 && s.attn_mass <= 1) || !(kept > 0.19 && kept < 0.32))
                fail_msg("share %d, pool %d: recall %.3f, mass %.3f, kept %.3f", share, pool, recall,
                         s.attn_mass, kept);
        }
        tern_options o = options("shadow", 0.3f);
        o.attention_share = share;
        o.chunk = 32;
        int32_t same[200];
        for (int i = 0; i < 200; i++) same[i] = 7;
        run r = open_run(&o);
        prefill(&r, same, 200);
        float *got = take_logits(&r, NULL);
        for (int j = 0; j < 512; j++) assert_true(isfinite(got[j]));
        free(got);
    }
}

/* ---- memory as it comes ------------------------------------------------------------------------------ */

enum { LARGE = 1 << 18, MAX_BLOCKS = 512 };
typedef struct arena {
    int fill; /* -1: pages as the kernel gives them */
    struct {
        void *at;
        size_t n_bytes;
    } block[MAX_BLOCKS]; /* the large ones */
    pthread_mutex_t mu;
} arena;

/* Large blocks lie on pages of their own, so that one can ask which pages were touched. */
static void *arena_alloc(void *user, size_t n, size_t align) {
    arena *a = user;
    void *p = NULL;
    if (n < LARGE || a->fill >= 0) {
        if (!posix_memalign(&p, align, n) && a->fill >= 0) memset(p, a->fill, n);
        return p;
    }
    p = mmap(NULL, n + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    (void)madvise(p, n + align, MADV_NOHUGEPAGE);
    pthread_mutex_lock(&a->mu);
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (a->block[i].at) continue;
        a->block[i].at = p;
        a->block[i].n_bytes = n + align;
        break;
    }
    pthread_mutex_unlock(&a->mu);
    return (char *)p + (align - (uintptr_t)p % align) % align;
}

static void arena_release(void *user, void *p) {
    arena *a = user;
    pthread_mutex_lock(&a->mu);
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if ((char *)p < (char *)a->block[i].at || (char *)p >= (char *)a->block[i].at + a->block[i].n_bytes)
            continue;
        munmap(a->block[i].at, a->block[i].n_bytes);
        a->block[i].at = NULL;
        a->block[i].n_bytes = 0;
        p = NULL;
    }
    pthread_mutex_unlock(&a->mu);
    free(p);
}

static size_t touched(const arena *a, size_t *n_all) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 0;
    *n_all = 0;
    for (int i = 0; i < MAX_BLOCKS; i++) {
        size_t pages = (a->block[i].n_bytes + page - 1) / page;
        unsigned char *in = calloc(pages + 1, 1);
        if (pages) assert_int_equal(mincore(a->block[i].at, a->block[i].n_bytes, in), 0);
        for (size_t j = 0; j < pages; j++) n += (in[j] & 1) * page;
        *n_all += a->block[i].n_bytes;
        free(in);
    }
    return n;
}

/* Opening a session waits for no memory of positions that are not there, and none of it needs zeros. */
static void memory_is_taken_as_it_comes(void **state) {
    (void)state;
    arena pages = {.fill = -1}, zeros = {.fill = 0}, ones = {.fill = 0xff};
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.alloc = arena_alloc;
    hooks.release = arena_release;
    for (int m = 0; m < 2; m++) {
        float *got[2];
        for (int i = 0; i < 2; i++) {
            tern_options o = options(m ? "npu-full" : "shadow", 0.2f);
            hooks.user = i ? &ones : &zeros;
            o.hooks = &hooks;
            got[i] = logits_of(&o, N_PROMPT, NULL);
        }
        assert_memory_equal(got[0], got[1], N_VOCAB_BYTES);
        free(got[0]);
        free(got[1]);
    }
    tern_options o = options("shadow", 0.2f);
    hooks.user = &pages;
    o.hooks = &hooks;
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_error err = {0};
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 16384;
    size_t before, after, n_engine, n_all;
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_OK);
    before = touched(&pages, &n_engine);
    if (tern_session_open(e, &so, &s, &err) != TERN_OK) fail_msg("%s", err.message);
    after = touched(&pages, &n_all);
    print_message("%zu KiB of large blocks for the session, %zu touched\n", (n_all - n_engine) >> 10,
                  (after - before) >> 10);
    assert_true(n_all - n_engine > 8u << 20);
    assert_true(after - before < (n_all - n_engine) / 100);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void refusals(void **state) {
    (void)state;
    tern_engine *e = NULL;
    tern_error err = {0};
    tern_options o = options("sideways", 0);
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_E_INVALID);
    o = options("shadow", 1.5f);
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_E_INVALID);
    o = options("shadow", NAN);
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_E_INVALID);
    o = options("shadow", 0);
    o.attention_buckets = 4;
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_E_INVALID);
    o = options("shadow", 0);
    o.attention_share = 9;
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_E_INVALID);
    o = options("shadow", 0);
    o.attention_pool = -1;
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_E_INVALID);
    o = options("shadow", 0);
    o.attention_pipeline = "on"; /* a file's heads are none */
    assert_int_equal(tern_engine_open(gguf, &o, &e, &err), TERN_E_INVALID);
    o = options("shadow", 0);
    o.scheme = "llm-int8"; /* a baseline */
    assert_int_equal(tern_engine_open(gguf, &o, &e, &err), TERN_E_INVALID);
}

static void ratios(void **state) {
    (void)state;
    static const float w[] = {1, 1, 1, 5, 0.001f};
    float out[5];
    for (float r = 0; r <= 1; r += 0.05f) {
        double sum = 0;
        tn_head_ratios(w, 5, r, out);
        for (int i = 0; i < 5; i++) {
            assert_true(out[i] >= 0 && out[i] <= 1);
            sum += (double)out[i];
        }
        assert_true(fabs(sum / 5 - (double)r) < 1e-5);
        assert_true(out[3] >= out[0] && out[0] >= out[4]);
    }
    tn_head_ratios(w, 5, 1, out);
    for (int i = 0; i < 5; i++) assert_true(out[i] == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_full),
        cmocka_unit_test(schedules_and_instruction_sets),
        cmocka_unit_test(text_taken_back),
        cmocka_unit_test(baselines),
        cmocka_unit_test(estimates_find_what_matters),
        cmocka_unit_test(heads_have_their_shares),
        cmocka_unit_test(queries_have_scales_of_their_own),
        cmocka_unit_test(panels_fill_in_pieces),
        cmocka_unit_test(odd_lengths),
        cmocka_unit_test(part_by_part),
        cmocka_unit_test(ways_to_share),
        cmocka_unit_test(memory_is_taken_as_it_comes),
        cmocka_unit_test(refusals),
        cmocka_unit_test(ratios),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
