/* Random tiny models, each run in random ways that promise the same bits: devices, policies, threads, chunks,
 * forms of the weights, ways of loading, instruction sets, pieces of the prompt, drafts; and within sparse
 * attention what promises it there.
 *
 * TERN_DIFFERENTIAL=N looks at N times as many models (nightly), TERN_SEED takes others. A difference is
 * reported with the model's and the run's description, which repeat it. */
#include "base/cpu.h"
#include "base/rng.h"
#include "session/session.h"
#include "lab/synth.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { MAX_PROMPT = 300, MAX_VOCAB = 1024, STEPS = 3, N_GENERATED = 24, RUNS = 7, N_CTX = 400 };

static char gguf[FIXTURE_PATH], package[FIXTURE_PATH];
static tn_ctx ctx;

typedef struct setting {
    const char *name, *values[6];
} setting;

/* Whatever these are, a package gives the same logits. */
static const setting any_way[] = {
    {"npu", {"host", "scalar"}},
    {"policy", {"in-order", "overlap", "ooe", "synergy"}},
    {"threads", {"1", "2", "3", "4"}},
    {"chunk", {"32", "64", "128", "256"}},
    {"steal", {"none", "share-cores"}},
    {"weights", {"packed", "tiles"}},
    {"load", {"stream", "overlap", "sequential", "mmap"}},
    {"read", {"threads", "uring"}},
    {"cold-rows", {"file", "weights"}},
    {"npu-separate-weights", {"on"}},
    {"npu-apart", {"on"}},
    {"no-chunk-sharing", {"on"}},
};
/* With shadow attention the chunks decide which rows are selected for together: they stay, and so do the
 * scales. */
static const setting sparse_way[] = {
    {"policy", {"in-order", "overlap", "ooe", "synergy"}},
    {"threads", {"1", "2", "4"}},
    {"steal", {"none", "share-cores"}},
    {"weights", {"packed", "tiles"}},
    {"load", {"stream", "overlap", "sequential", "mmap"}},
    {"attention-whole", {"on"}},
    {"attention-pipeline", {"on", "off"}},
};
static const setting float_way[] = {{"threads", {"1", "2", "3", "4"}}};

typedef struct outcome {
    float logits[(STEPS + 1) * MAX_VOCAB];
    fixture_heard said;
} outcome;

typedef struct plan {
    tern_options *o;
    const char *draft, *cpu;
    tn_rng pieces; /* cuts the prompt; s = 0: it comes at once */
    char words[600];
} plan;

/* false: these settings do not go together. */
static bool run(const char *path, plan *p, const int32_t *prompt, size_t n, outcome *out) {
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_error err = {0};
    memset(out, 0, sizeof *out);
    if (p->cpu) setenv("TERN_CPU", p->cpu, 1);
    tern_status st = tern_engine_open(path, p->o, &e, &err);
    unsetenv("TERN_CPU");
    if (st == TERN_E_INVALID || st == TERN_E_UNSUPPORTED) return false;
    if (st != TERN_OK) fail_msg("%s: %s", p->words, err.message);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = N_CTX;
    so.draft = p->draft;
    st = tern_session_open(e, &so, &s, &err);
    if (st == TERN_E_UNSUPPORTED) tern_engine_close(&e); /* heads with sinks attend in full */
    if (st == TERN_E_UNSUPPORTED) return false;
    if (st != TERN_OK) fail_msg("%s: %s", p->words, err.message);
    for (size_t done = 0; done < n;) {
        size_t more = p->pieces.s ? 1 + (size_t)tn_rng_below(&p->pieces, 150) : n;
        done = more < n - done ? done + more : n;
        if (tern_session_prefill(s, prompt, done, &err) != TERN_OK) fail_msg("%s: %s", p->words, err.message);
    }
    tern_model_info info;
    tern_engine_info(e, &info);
    size_t v = (size_t)info.n_vocab;
    assert_true(v <= MAX_VOCAB);
    memcpy(out->logits, tern_session_logits(s), v * sizeof(float));
    for (int i = 1; i <= STEPS; i++) {
        if (tern_session_step(s, i * 11, &err) != TERN_OK) fail_msg("%s: %s", p->words, err.message);
        memcpy(out->logits + (size_t)i * v, tern_session_logits(s), v * sizeof(float));
    }
    tern_generate_options g;
    fixture_hear(&g, N_GENERATED, &out->said);
    if (tern_session_generate(s, &g, NULL, &err) != TERN_OK) fail_msg("%s: %s", p->words, err.message);
    tern_session_close(&s);
    tern_engine_close(&e);
    return true;
}

static void set(plan *p, const char *name, const char *value) {
    tern_error err = {0};
    if (tern_options_set(p->o, name, value, &err) != TERN_OK) fail_msg("%s=%s: %s", name, value, err.message);
    size_t n = strlen(p->words);
    snprintf(p->words + n, sizeof p->words - n, " %s=%s", name, value);
}

static void plan_init(plan *p, const char *model) {
    *p = (plan){0};
    tern_error err;
    assert_int_equal(tern_options_new(&p->o, &err), TERN_OK);
    snprintf(p->words, sizeof p->words, "%s", model);
}

/* Some of the settings, at random. */
static void choose(plan *p, tn_rng *rng, const setting *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t n_values = 0;
        while (n_values < 6 && s[i].values[n_values]) n_values++;
        if (tn_rng_below(rng, 3)) set(p, s[i].name, s[i].values[tn_rng_below(rng, n_values)]);
    }
}

static int n_compared, n_apart;

/* RUNS ways against the plain one; `fixed` is set in all of them. */
static void compare(const char *path, const char *what, tn_rng *rng, const setting *ways, size_t n_ways,
                    const setting *fixed, size_t n_fixed, bool sparse, const int32_t *prompt, size_t n) {
    static outcome want, got;
    for (int r = -1; r < RUNS; r++) {
        plan p;
        plan_init(&p, what);
        for (size_t i = 0; i < n_fixed; i++) set(&p, fixed[i].name, fixed[i].values[0]);
        if (r < 0) {
            set(&p, "threads", "1");
            bool ran = run(path, &p, prompt, n, &want);
            if (!ran && !sparse) fail_msg("%s: the plain run is refused", what);
            tern_options_free(&p.o);
            if (ran) continue;
            n_apart++;
            return;
        }
        choose(&p, rng, ways, n_ways);
        static const char *const drafts[] = {NULL, "lookup", "sam", "all"};
        p.draft = drafts[tn_rng_below(rng, sparse ? 1 : 4)];
#if defined(__x86_64__)
        static const char *const cpus[] = {NULL, NULL, "scalar", "avx2"};
        p.cpu = sparse ? NULL : cpus[tn_rng_below(rng, 4)];
#endif
        if (!sparse && tn_rng_below(rng, 2)) p.pieces.s = tn_rng_u64(rng) | 1;
        size_t len = strlen(p.words);
        snprintf(p.words + len, sizeof p.words - len, " draft %s, cpu %s, pieces %llx",
                 p.draft ? p.draft : "none", p.cpu ? p.cpu : "all", (unsigned long long)p.pieces.s);
        if (!run(path, &p, prompt, n, &got)) {
            n_apart++;
        } else {
            n_compared++;
            if (memcmp(want.logits, got.logits, sizeof want.logits)) fail_msg("other logits:%s", p.words);
            if (memcmp(&want.said, &got.said, sizeof want.said) != 0) fail_msg("another text:%s", p.words);
        }
        tern_options_free(&p.o);
    }
}

#define WAYS(w) (w), sizeof(w) / sizeof *(w)

static const char *random_name(tn_rng *rng) {
    const char *names[64];
    size_t n = 0;
    for (size_t i = 0; tn_synth_name(i) && n < 64; i++)
        if (!strncmp(tn_synth_name(i), "tiny-", 5) && !strstr(tn_synth_name(i), "exaone4+window"))
            names[n++] = tn_synth_name(i);
    return names[tn_rng_below(rng, n)];
}

static void one_model(tn_rng *rng) {
    tern_error err = {0};
    const char *name = random_name(rng);
    uint64_t seed = tn_rng_u64(rng) >> 32;
    static const tn_scheme schemes[] = {TN_SCHEME_EDGEFLOW, TN_SCHEME_LLM_NPU, TN_SCHEME_NAIVE,
                                        TN_SCHEME_EDGEFLOW};
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = schemes[tn_rng_below(rng, 4)];
    o.calib_tokens = 128;
    o.outlier_share = 0.01f;
    if (o.scheme == TN_SCHEME_EDGEFLOW) o.bits = 3 + (double)tn_rng_below(rng, 6);
    if (o.scheme == TN_SCHEME_EDGEFLOW) o.outliers = tn_rng_below(rng, 2) ? TN_OUTLIERS_ON : TN_OUTLIERS_AUTO;
    char what[200];
    snprintf(what, sizeof what, " %s seed %llu %s bits %g", name, (unsigned long long)seed,
             tn_scheme_name(o.scheme), o.bits);
    fixture_model(gguf, "m.gguf", name, seed, tn_rng_below(rng, 2) ? TN_F32 : TN_Q8_0);
    tern_status packed = tn_pack(&ctx, gguf, package, &o, NULL, &err);
    if (packed != TERN_OK && packed != TERN_E_UNSUPPORTED) /* some architectures have no packages */
        fail_msg("%s: %s", what, err.message);
    int32_t prompt[MAX_PROMPT];
    size_t n = 40 + (size_t)tn_rng_below(rng, MAX_PROMPT - 40);
    for (size_t i = 0; i < n; i++) {
        bool copies = i > 8 && tn_rng_below(rng, 3);
        prompt[i] = copies ? prompt[i - 5] : (int32_t)tn_rng_below(rng, 500);
    }
    /* Forms of keys and values give other bits, but each its own in every way. */
    static const char *const forms[] = {"f32", "f16", "int8", "int4"};
    const setting kv = {"kv", {forms[tn_rng_below(rng, 4)]}};
    compare(gguf, what, rng, WAYS(float_way), &kv, 1, false, prompt, n);
    if (packed == TERN_OK) {
        compare(package, what, rng, WAYS(any_way), &kv, 1, false, prompt, n);
        const setting sparse[] = {{"attention", {"shadow"}},
                                  {"attention-threshold", {"0"}},
                                  {"ratio", {"30"}},
                                  {"chunk", {"64"}},
                                  kv};
        compare(package, what, rng, WAYS(sparse_way), WAYS(sparse), true, prompt, n);
    }
}

static void same_bits(void **state) {
    (void)state;
    const char *more = getenv("TERN_DIFFERENTIAL"), *seed = getenv("TERN_SEED");
    long n = (getenv("TERN_TEST_QUICK") ? 1 : 4) * (more ? atol(more) : 1);
    uint64_t first = seed ? strtoull(seed, NULL, 0) : 2024;
    print_message("seed %llu (TERN_SEED), %ld models (TERN_DIFFERENTIAL)\n", (unsigned long long)first, n);
    for (long i = 0; i < n; i++) {
        tn_rng rng = {.s = first * 1000003 + (uint64_t)i};
        one_model(&rng);
    }
    print_message("%d runs compared, %d of settings that do not go together\n", n_compared, n_apart);
    assert_true(n_compared > n * 4);
}

static int setup(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    fixture_file(package, "m.tern");
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
