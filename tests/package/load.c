/* Cold start: the same bits however the weights come, whatever the disk does; what is wrong with a file is
 * one clear line. */
#include "base/cpu.h"
#include "session/session.h"
#include "package/loader.h"
#include "formats/package.h"
#include "lab/synth.h"
#include "quant/pack.h"

#include "fuzz/true_package.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_PACKAGES = 7, N_PROMPT = 150, MAX_VOCAB = 4096 };

/* Tied and untied, packed and in tiles, with outlier rows, parallel blocks; the last two as entropy-coded streams of
 * what an earlier one has. */
static const struct {
    const char *arch;
    tn_scheme scheme;
    float prune;
    tn_outlier_mode outliers;
    int coded_from; /* 0: not coded */
} kinds[N_PACKAGES] = {{"tiny-qwen2", TN_SCHEME_EDGEFLOW, 85, TN_OUTLIERS_AUTO, 0},
                       {"tiny-qwen2", TN_SCHEME_LLM_NPU, 0, TN_OUTLIERS_AUTO, 0},
                       {"tiny-llama", TN_SCHEME_GRAM, 85, TN_OUTLIERS_OFF, 0},
                       {"tiny-phi2", TN_SCHEME_LLM_NPU, 85, TN_OUTLIERS_AUTO, 0},
                       {"tiny-qwen2", TN_SCHEME_GRAM, 85, TN_OUTLIERS_OFF, 0},
                       {"tiny-llama", TN_SCHEME_GRAM, 85, TN_OUTLIERS_OFF, 2},
                       {"tiny-qwen2", TN_SCHEME_GRAM, 85, TN_OUTLIERS_OFF, 4}};
static char paths[N_PACKAGES][256];
static int32_t prompt[N_PROMPT];

static void remove_package(const char *path) {
    char profile[1200];
    snprintf(profile, sizeof profile, "%s.profile", path);
    unlink(profile);
    unlink(path);
}

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    for (int i = 0; i < N_PACKAGES; i++) {
        char gguf[256];
        tn_pool *pool;
        tern_error err;
        snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/load-%ld-%d.gguf", (long)getpid(), i);
        snprintf(paths[i], sizeof paths[i], TN_BINARY_DIR "/load-%ld-%d.tern", (long)getpid(), i);
        if (tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK ||
            tn_synth(&ctx, pool, kinds[i].arch, gguf, 7, TN_F32, &err) != TERN_OK)
            return -1;
        tn_pool_close(&pool);
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.scheme = kinds[i].scheme;
        o.prune_percent = kinds[i].prune;
        o.outliers = kinds[i].outliers;
        o.calib_tokens = 256;
        o.outlier_share = 0.01f;
        o.compress = kinds[i].coded_from > 0;
        o.compress_rate = 0; /* the same weights */
        if (tn_pack(&ctx, gguf, paths[i], &o, NULL, &err) != TERN_OK) fail_msg("%s", err.message);
        unlink(gguf);
    }
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 500;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < N_PACKAGES; i++) remove_package(paths[i]);
    return 0;
}

/* ---- an engine's inside, so that the disk can be made to misbehave ----------------------------------- */

typedef struct rig {
    tn_ctx ctx;
    tn_kernels kern;
    tn_pool *pool;
    tn_executor *exec;
    tn_npu_model *m;
    tn_model *model;
    tn_kv kv;
    tn_pipeline *p;
    tn_step_profile profile;
    tern_error err;
} rig;

static uint32_t cpu_mask = UINT32_MAX; /* of the processor's features */

static tern_status rig_open(rig *r, const char *path, const tn_npu_model_options *o, tn_policy policy,
                            int32_t n_cpu, int32_t n_npu) {
    memset(r, 0, sizeof *r);
    tn_ctx_init(&r->ctx, NULL);
    tn_kernels_init(&r->kern, tn_cpu_flags(NULL) & cpu_mask);
    const int32_t workers[TN_N_LANES] = {n_cpu, n_npu, 1};
    assert_int_equal(tn_pool_open(&r->ctx, 2, &r->pool, &r->err), TERN_OK);
    assert_int_equal(tn_executor_open(&r->ctx, workers, &r->exec, &r->err), TERN_OK);
    tern_status st = tn_npu_model_open(&r->ctx, r->pool, &r->kern, path, o, &r->m, &r->model, &r->err);
    if (st == TERN_OK) st = tn_kv_open(&r->ctx, &r->model->h, 256, TN_KV_F32, &r->kv, &r->err);
    if (st == TERN_OK)
        st = tn_pipeline_open(&r->ctx, r->m, r->model, &r->kern, &r->kv, r->pool, r->exec, policy,
                              &(tn_attn_options){.mode = TN_ATTN_FULL}, &r->profile, &r->p, &r->err);
    return st;
}

static tern_status rig_run(rig *r, int32_t n, const atomic_bool *cancel, float *logits) {
    const tn_pipeline_text t = {.p = r->p, .ids = prompt, .n = n};
    tern_status st = tn_pipeline_forward(&t, cancel, NULL, &r->err);
    return st == TERN_OK ? tn_pipeline_logits(r->p, n - 1, 1, logits, &r->err) : st;
}

static void rig_close(rig *r) {
    tn_pipeline_close(&r->p);
    if (r->kv.ctx) tn_kv_close(&r->kv);
    tn_npu_model_close(&r->m);
    if (r->model) tn_model_close(&r->model);
    tn_executor_close(&r->exec);
    tn_pool_close(&r->pool);
}

static tn_npu_model_options model_options(tn_load_mode load, const char *method) {
    tn_npu_model_options o = {.n_threads = 1, .chunk = 64, .load = load};
    tn_aio_defaults(&o.io);
    assert_true(tn_aio_method_parse(method, &o.io));
    o.io.piece_bytes = TN_PKG_BLOCK;
    return o;
}

static tn_policy policy_of(tn_policy_kind kind, bool keep_busy) {
    tn_policy p = tn_policy_defaults(kind);
    p.keep_busy = keep_busy;
    return p;
}

/* Logits of the first n tokens, the plain way, from weights that are not coded. */
static void reference(const char *path, int32_t n, float *logits) {
    for (int k = 0; k < N_PACKAGES; k++)
        if (path == paths[k] && kinds[k].coded_from) path = paths[kinds[k].coded_from];
    tn_npu_model_options o = model_options(TN_LOAD_SEQUENTIAL, "threads");
    o.weights = TN_WEIGHTS_TILES;
    rig r;
    if (rig_open(&r, path, &o, policy_of(TN_POLICY_IN_ORDER, false), 1, 1) != TERN_OK ||
        rig_run(&r, n, NULL, logits) != TERN_OK)
        fail_msg("%s", r.err.message);
    rig_close(&r);
}

static float want[MAX_VOCAB], got[MAX_VOCAB];

static void check(const char *what, const char *path, const tn_npu_model_options *o, tn_policy policy,
                  int32_t n_cpu, int32_t n_npu, int32_t n) {
    rig r;
    if (rig_open(&r, path, o, policy, n_cpu, n_npu) != TERN_OK || rig_run(&r, n, NULL, got) != TERN_OK)
        fail_msg("%s: %s", what, r.err.message);
    assert_true(tn_loader_done(r.m->loader));
    if (memcmp(want, got, (size_t)r.model->h.n_vocab * sizeof *got)) fail_msg("%s: other logits", what);
    if (rig_run(&r, n, NULL, got) != TERN_OK || memcmp(want, got, (size_t)r.model->h.n_vocab * sizeof *got))
        fail_msg("%s: other logits once it is loaded", what);
    rig_close(&r);
}

/* Every mode, method and policy, rings that hold one unit only, few tokens and several chunks. */
static void same_bits(void **state) {
    (void)state;
    static const char *const methods[] = {"threads", "threads-direct", "uring", "uring-direct"};
    static const int32_t lengths[] = {1, 20, 64, N_PROMPT};
    for (int k = 0; k < N_PACKAGES; k++) {
        for (size_t i = 0; i < 4; i++) {
            reference(paths[k], lengths[i], want);
            for (int mode = 0; mode < TN_N_LOAD_MODES; mode++) {
                tn_npu_model_options o = model_options((tn_load_mode)mode, methods[(i + (size_t)k) % 4]);
                for (int form = TN_WEIGHTS_TILES; form <= TN_WEIGHTS_PACKED; form++) {
                    o.weights = (tn_weights_form)form;
                    check("mode", paths[k], &o, policy_of(TN_POLICY_OOE, true), 1, 1, lengths[i]);
                }
            }
            for (int p = 0; p < TN_POLICY_PLAN; p++) {
                for (int busy = 0; busy < 2; busy++) {
                    tn_npu_model_options o = model_options(TN_LOAD_STREAM, methods[(i + (size_t)p) % 4]);
                    o.ring_bytes = busy ? 1 : 20000;
                    if (busy) o.weights = TN_WEIGHTS_PACKED;
                    check("policy", paths[k], &o, policy_of((tn_policy_kind)p, busy), 1, busy ? 0 : 2,
                          lengths[i]);
                }
            }
        }
    }
}

/* Every instruction set, packed and unpacked, few rows and many, chunks of other lengths, more threads. */
static void instruction_sets(void **state) {
    (void)state;
    static const uint32_t masks[] = {0, TN_CPU_AVX2 | TN_CPU_NEON,
                                     TN_CPU_AVX2 | TN_CPU_AVX512 | TN_CPU_NEON | TN_CPU_DOTPROD};
    for (int k = 0; k < N_PACKAGES; k += k ? 3 : 2) {
        if (getenv("TERN_TEST_QUICK") && k > 2) break;
        for (size_t l = 0; l < 3; l++) {
            const int32_t n = l == 0 ? 5 : l == 1 ? 20 : N_PROMPT;
            reference(paths[k], n, want);
            for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
                cpu_mask = masks[i];
                for (int form = TN_WEIGHTS_TILES; form <= TN_WEIGHTS_PACKED; form++) {
                    tn_npu_model_options o = model_options(TN_LOAD_STREAM, "threads");
                    o.weights = (tn_weights_form)form;
                    o.chunk = i ? 96 : 64;
                    o.n_threads = (int32_t)i + 1;
                    check("instruction set", paths[k], &o, policy_of(TN_POLICY_OOE, true), 1 + (int32_t)i, 1,
                          n);
                }
                cpu_mask = UINT32_MAX;
            }
        }
    }
}

/* Nothing is compiled when the engine opens a package with the form it holds. */
static void graphs_are_in_the_package(void **state) {
    (void)state;
    for (int k = 0; k < N_PACKAGES; k++) {
        rig r;
        tn_npu_model_options o = model_options(TN_LOAD_STREAM, "threads");
        o.chunk = 0;
        if (rig_open(&r, paths[k], &o, policy_of(TN_POLICY_OOE, true), 1, 1) != TERN_OK)
            fail_msg("%s", r.err.message);
        assert_int_equal(r.m->n_compiled, 0);
        rig_close(&r);
        o.chunk = 96;
        if (rig_open(&r, paths[k], &o, policy_of(TN_POLICY_OOE, true), 1, 1) != TERN_OK)
            fail_msg("%s", r.err.message);
        assert_true(r.m->n_compiled > 0);
        rig_close(&r);
    }
}

/* ---- the disk misbehaves ----------------------------------------------------------------------------- */

typedef struct bad_disk {
    atomic_int n;
    int fails_at; /* request number; -1: none fails, all are short */
} bad_disk;

static ssize_t misbehave(void *user, uint64_t off, uint64_t n) {
    bad_disk *d = user;
    (void)off;
    if (d->fails_at < 0) return n > 1 ? (ssize_t)(n - n / 3) : 0;
    return atomic_fetch_add(&d->n, 1) == d->fails_at ? -EIO : 0;
}

static void disk_faults(void **state) {
    (void)state;
    static const char *const methods[] = {"threads", "uring-direct"};
    for (int k = 0; k < N_PACKAGES; k += k < 2 ? 1 : 3) {
        reference(paths[k], N_PROMPT, want);
        for (int m = 0; m < 2; m++) {
            bad_disk d = {.fails_at = -1};
            tn_npu_model_options o = model_options(TN_LOAD_STREAM, methods[m]);
            o.io.fault = misbehave;
            o.io.fault_user = &d;
            check("short reads", paths[k], &o, policy_of(TN_POLICY_SYNERGY, true), 1, 1, N_PROMPT);
            bool failed = true;
            for (int at = 0; failed; at += 1 + at / 8) {
                d = (bad_disk){.fails_at = at};
                rig r;
                tern_status st = rig_open(&r, paths[k], &o, policy_of(TN_POLICY_OOE, true), 1, 1);
                if (st == TERN_OK) st = rig_run(&r, N_PROMPT, NULL, got);
                failed = st != TERN_OK;
                if (!failed) assert_true(at > 10 && atomic_load(&d.n) <= at);
                if (failed) {
                    assert_int_equal(st, TERN_E_IO);
                    assert_non_null(strstr(r.err.message, "cannot read at offset"));
                    assert_non_null(strstr(r.err.message, paths[k]));
                    assert_int_equal(rig_run(&r, N_PROMPT, NULL, got), TERN_E_IO); /* and it stays so */
                }
                rig_close(&r);
            }
        }
    }
}

/* A cancelled start goes on where it was. */
static ssize_t slow(void *user, uint64_t off, uint64_t n) {
    (void)off, (void)n;
    if (atomic_fetch_add((atomic_int *)user, 1) % 4 == 3) usleep(1500);
    return 0;
}

static void *cancel_later(void *arg) {
    usleep(1200);
    atomic_store((atomic_bool *)arg, true);
    return NULL;
}

static void cancelled_and_resumed(void **state) {
    (void)state;
    for (int k = 0; k < 3; k++) {
        reference(paths[k], N_PROMPT, want);
        int n_cancelled = 0;
        for (int round = 0; round < 6; round++) {
            atomic_int n = 0;
            tn_npu_model_options o = model_options(TN_LOAD_STREAM, "threads");
            o.ring_bytes = 1;
            o.io.fault = slow;
            o.io.fault_user = &n;
            o.io.n_parallel = 1;
            rig r;
            if (rig_open(&r, paths[k], &o, policy_of(TN_POLICY_OOE, true), 1, 1) != TERN_OK)
                fail_msg("%s", r.err.message);
            atomic_bool cancel = false;
            pthread_t t;
            pthread_create(&t, NULL, cancel_later, &cancel);
            tern_status st = rig_run(&r, N_PROMPT, &cancel, got);
            pthread_join(t, NULL);
            n_cancelled += st == TERN_E_CANCELLED;
            if (rig_run(&r, N_PROMPT, NULL, got) != TERN_OK) fail_msg("%s", r.err.message);
            assert_memory_equal(want, got, (size_t)r.model->h.n_vocab * sizeof *got);
            rig_close(&r);
        }
        assert_true(n_cancelled > 0);
    }
}

/* ---- the file is wrong ------------------------------------------------------------------------------- */

static tern_status start(const char *path, const char *load, int32_t n, tern_error *err) {
    tern_options o;
    tn_options_defaults(&o);
    o.load = load;
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 256;
    tern_status st = tern_engine_open(path, &o, &e, err);
    if (st == TERN_OK) st = tern_session_open(e, &so, &s, err);
    if (st == TERN_OK) st = tern_session_prefill(s, prompt, (size_t)n, err);
    tern_session_close(&s);
    tern_engine_close(&e);
    return st;
}

/* A bit of every tensor, and of everything else that is read: each mode notices, and names layer and offset.
 */
static void damage_is_told(void **state) {
    (void)state;
    static const char *const modes[] = {"stream", "overlap", "sequential"};
    char bad[270];
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    for (int k = 0; k < N_PACKAGES; k += k < 2 ? 1 : 3) {
        snprintf(bad, sizeof bad, "%.255s.bad", paths[k]);
        size_t n, n_tensors = 0;
        uint8_t *b = fixture_read(paths[k], &n);
        tn_pkg *p;
        tern_error err;
        assert_int_equal(tn_pkg_open(&ctx, paths[k], &p, &err), TERN_OK);
        for (size_t i = 0; i < tn_pkg_n_sections(p); i++) {
            const tn_pkg_section *s = tn_pkg_section_at(p, i);
            if (s->kind != TN_PKG_LAYER && s->kind != TN_PKG_LM_HEAD) continue;
            size_t n_records;
            const tn_pkg_record *r = tn_pkg_records(p, s, &n_records);
            for (size_t t = 0; t < n_records; t++, n_tensors++) {
                if (!r[t].size_bytes) continue;
                size_t at = s->off_bytes + r[t].off_bytes + (n_tensors * 131) % r[t].size_bytes;
                b[at] ^= (uint8_t)(1u << n_tensors % 8);
                fixture_write(bad, b, n);
                b[at] ^= (uint8_t)(1u << n_tensors % 8);
                err.message[0] = 0;
                assert_int_equal(start(bad, modes[n_tensors % 3], n_tensors % 2 ? 20 : N_PROMPT, &err),
                                 TERN_E_FORMAT);
                assert_non_null(strstr(err.message, "damaged"));
                assert_non_null(strstr(err.message, "offset"));
            }
        }
        assert_true(n_tensors > 40);
        tn_pkg_close(&p);
        free(b);
        remove_package(bad);
    }
}

/* Streams that were made to be wrong, with true checksums: what describes them, their states, their words and their sizes
 * in memory. Each mode and form refuses them, and says so. */
static void lying_streams_are_told(void **state) {
    (void)state;
    char bad[270];
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    int n_tried = 0;
    for (int k = 0; k < N_PACKAGES; k++) {
        if (!kinds[k].coded_from) continue;
        snprintf(bad, sizeof bad, "%.255s.bad", paths[k]);
        size_t n;
        uint8_t *whole = fixture_read(paths[k], &n), *b = malloc(n);
        tn_pkg *p;
        tern_error err;
        assert_int_equal(tn_pkg_open(&ctx, paths[k], &p, &err), TERN_OK);
        for (size_t i = 0; i < tn_pkg_n_sections(p); i++) {
            const tn_pkg_section *s = tn_pkg_section_at(p, i);
            size_t n_records;
            const tn_pkg_record *r = tn_pkg_records(p, s, &n_records);
            for (size_t t = 0; t < n_records; t++) {
                if (r[t].part != TN_PKG_STREAMS && !tn_pkg_is_coded(&r[t])) continue;
                const size_t about = tn_pkg_is_coded(&r[t]) ? 256 : r[t].size_bytes,
                             to = s->off_bytes + r[t].off_bytes,
                             toc = PACKAGE_INDEX + s->toc_off_bytes + 16 + t * sizeof *r;
                /* the first, one within, the last; number of channels or streams; the size in memory. Within streams only states: the
                 * lower bits of wide codes may be anything */
                const size_t places[] = {to, to + about / 3, to + about - 1, toc + 8, toc + 48};
                for (size_t a = 0; a < (tn_pkg_is_coded(&r[t]) ? 5u : 4u); a++, n_tried++) {
                    memcpy(b, whole, n);
                    b[places[a]] ^= 1;
                    package_make_true(b, n);
                    fixture_write(bad, b, n);
                    tn_npu_model_options o =
                        model_options((tn_load_mode)(n_tried % TN_N_LOAD_MODES), "threads");
                    o.weights = n_tried % 3 ? TN_WEIGHTS_PACKED : TN_WEIGHTS_TILES;
                    rig g;
                    tern_status st = rig_open(&g, bad, &o, policy_of(TN_POLICY_OOE, true), 1, 1);
                    if (st == TERN_OK) st = rig_run(&g, N_PROMPT, NULL, got);
                    if (st != TERN_E_FORMAT || !g.err.message[0])
                        fail_msg("role %u, part %u, place %zu: %d, %s", r[t].role, r[t].part, a, (int)st,
                                 g.err.message);
                    rig_close(&g);
                }
            }
        }
        tn_pkg_close(&p);
        free(b), free(whole);
        remove_package(bad);
    }
    assert_true(n_tried > 100);
}

/* The embedding of the prompt's first tokens is read before the tensor it is in: damage there is told of
 * these tokens, not when the tensor comes at the end. */
static void damaged_rows_are_told_at_once(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    int n_seen = 0, n_coded = 0;
    for (int k = 0; k < N_PACKAGES; k++) {
        char bad[270], want[96];
        size_t n, n_records;
        tn_pkg *p;
        tern_error err = {0};
        uint8_t *b = fixture_read(paths[k], &n);
        assert_int_equal(tn_pkg_open(&ctx, paths[k], &p, &err), TERN_OK);
        const tn_pkg_section *s = tn_pkg_find(p, TN_PKG_LM_HEAD, -1);
        const tn_pkg_record *r = tn_pkg_records(p, s, &n_records);
        for (size_t t = 0; t < n_records; t++) {
            const bool coded = tn_pkg_is_coded(&r[t]);
            if (r[t].role != TN_W_EMBD || (r[t].part != TN_PKG_TILES && !coded)) continue;
            size_t each = coded ? 64 : 16, tile = (size_t)prompt[0] / each,
                   bytes = r[t].size_bytes / (((size_t)r[t].n + each - 1) / each);
            assert_true(!coded || tile == 0); /* where the others begin is in the file */
            b[s->off_bytes + r[t].off_bytes + tile * bytes + 7] ^= 16;
            n_coded += coded;
            snprintf(bad, sizeof bad, "%.255s.bad", paths[k]);
            fixture_write(bad, b, n);
            assert_int_equal(start(bad, "stream", N_PROMPT, &err), TERN_E_FORMAT);
            snprintf(want, sizeof want, "the embedding of tokens %zu to %zu", tile * each,
                     tile * each + each - 1);
            if (!strstr(err.message, want)) fail_msg("%s", err.message);
            remove_package(bad);
            n_seen++;
        }
        tn_pkg_close(&p);
        free(b);
    }
    assert_true(n_seen > n_coded && n_coded == 2);
}

/* The file shrinks after it was opened, at any boundary of a tensor; readers on their way end with one line.
 */
static void truncated_while_open(void **state) {
    (void)state;
    char bad[270];
    snprintf(bad, sizeof bad, "%s.cut", paths[0]);
    size_t n;
    uint8_t *b = fixture_read(paths[0], &n);
    for (size_t cut = n / 7; cut < n; cut += n / 9) {
        fixture_write(bad, b, n);
        tn_npu_model_options o = model_options(TN_LOAD_STREAM, "threads");
        o.ring_bytes = 1; /* little is read ahead */
        rig r;
        assert_int_equal(rig_open(&r, bad, &o, policy_of(TN_POLICY_OOE, true), 1, 1), TERN_OK);
        assert_int_equal(truncate(bad, (off_t)cut), 0);
        tern_status st = rig_run(&r, N_PROMPT, NULL, got);
        if (st != TERN_OK) assert_int_equal(st, TERN_E_FORMAT);
        if (st != TERN_OK)
            assert_true(strstr(r.err.message, "ends at offset") || strstr(r.err.message, "damaged"));
        else assert_true(cut > n / 2); /* all of it had been read */
        rig_close(&r);
    }
    free(b);
    remove_package(bad);
}

/* Another device's tiles, a package of the future, of the past. */
static void other_packages_are_refused(void **state) {
    (void)state;
    char bad[270];
    snprintf(bad, sizeof bad, "%s.other", paths[0]);
    size_t n;
    uint8_t *b = fixture_read(paths[0], &n);
    tern_error err;
    b[8] = TN_PKG_VERSION + 1;
    fixture_write(bad, b, n);
    assert_int_equal(start(bad, NULL, 20, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "newer tern"));
    b[8] = TN_PKG_OLDEST - 1;
    fixture_write(bad, b, n);
    assert_int_equal(start(bad, NULL, 20, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "pack the model again"));
    free(b);
    remove_package(bad);
    /* META with another layout, true checksums */
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pkg *p;
    tn_pkg_writer *w;
    assert_int_equal(tn_pkg_open(&ctx, paths[0], &p, &err), TERN_OK);
    const tn_pkg_section *s = tn_pkg_find(p, TN_PKG_META, -1);
    char *meta = calloc(1, s->size_bytes + 1);
    assert_int_equal(tn_pkg_read(p, s, meta, &err), TERN_OK);
    char *layout = strstr(meta, "\"layout\":2");
    assert_non_null(layout);
    layout[9] = '3';
    assert_int_equal(tn_pkg_create(&ctx, bad, 1, 0, &w, &err), TERN_OK);
    assert_int_equal(tn_pkg_put_section(w, TN_PKG_META, -1, meta, s->size_bytes, &err), TERN_OK);
    assert_int_equal(tn_pkg_finish(&w, &err), TERN_OK);
    free(meta);
    tn_pkg_close(&p);
    assert_int_equal(start(bad, NULL, 20, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "tiled for another device"));
    assert_int_equal(start(paths[0], "by post", 20, &err), TERN_E_INVALID);
    remove_package(bad);
}

/* ---- several at once --------------------------------------------------------------------------------- */

typedef struct reader {
    tern_engine *e; /* NULL: one of its own */
    float logits[MAX_VOCAB];
    tern_status st;
    tern_error err;
} reader;

static void *read_and_answer(void *arg) {
    reader *x = arg;
    tern_engine *own = NULL;
    tern_session *s = NULL;
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 256;
    tern_options o;
    tn_options_defaults(&o);
    o.chunk = 64;
    x->st = x->e ? TERN_OK : tern_engine_open(paths[0], &o, &own, &x->err);
    tern_engine *e = x->e ? x->e : own;
    if (x->st == TERN_OK) x->st = tern_session_open(e, &so, &s, &x->err);
    if (x->st == TERN_OK) x->st = tern_session_prefill(s, prompt, N_PROMPT, &x->err);
    tern_model_info info;
    if (x->st == TERN_OK) {
        tern_engine_info(e, &info);
        memcpy(x->logits, tern_session_logits(s), (size_t)info.n_vocab * sizeof(float));
    }
    tern_session_close(&s);
    tern_engine_close(&own);
    return NULL;
}

/* Sessions of one engine while it is being loaded, and engines of one file. */
static void several_at_once(void **state) {
    (void)state;
    enum { N = 4 };
    static reader x[N];
    reference(paths[0], N_PROMPT, want);
    for (int shared = 0; shared < 2; shared++) {
        tern_engine *e = NULL;
        tern_error err;
        tern_options o;
        tn_options_defaults(&o);
        o.chunk = 64;
        if (shared && tern_engine_open(paths[0], &o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
        pthread_t t[N];
        for (int i = 0; i < N; i++) {
            x[i] = (reader){.e = e};
            pthread_create(&t[i], NULL, read_and_answer, &x[i]);
        }
        for (int i = 0; i < N; i++) {
            pthread_join(t[i], NULL);
            if (x[i].st != TERN_OK) fail_msg("%s", x[i].err.message);
            assert_memory_equal(x[i].logits, want, 500 * sizeof(float));
        }
        tern_engine_close(&e);
    }
}

/* One copy of the weights: tiles, what is small, and the ring; or packed where the package has weightlets and
 * no outlier path. */
static void memory_is_planned(void **state) {
    (void)state;
    for (int k = 0; k < N_PACKAGES; k++) {
        for (int form = 0; form < TN_N_WEIGHTS_FORMS; form++) {
            rig r;
            tn_npu_model_options o = model_options(TN_LOAD_STREAM, "threads");
            o.ring_bytes = 1;
            o.weights = (tn_weights_form)form;
            if (rig_open(&r, paths[k], &o, policy_of(TN_POLICY_OOE, true), 1, 1) != TERN_OK ||
                rig_run(&r, N_PROMPT, NULL, got) != TERN_OK)
                fail_msg("%s", r.err.message);
            uint64_t want_bytes = 0, room = 0;
            int n_packed = 0;
            for (int i = 0; i < r.m->n_sites; i++) {
                const tn_npu_site *s = &r.m->sites[i];
                for (int op = 0; op < s->ops.n_ops; op++) {
                    bool packed = form != TN_WEIGHTS_TILES && s->tiles[op]->part == TN_PKG_WEIGHTLETS &&
                                  !s->has_outliers;
                    assert_true(packed == !s->image[op].tiles);
                    n_packed += packed;
                    want_bytes += packed ? tn_pkg_plain_bytes(s->tiles[op])
                                         : (uint64_t)s->ops.n[op] * (uint64_t)s->ops.k;
                    room += 4096 + 64; /* alignment; small models are mostly that */
                }
            }
            room += (uint64_t)r.m->n_layers * 3 * 8192 + (1 << 18); /* small tensors, a unit in the ring */
            uint64_t weights = atomic_load(&r.ctx.live_bytes[TN_MEM_WEIGHTS]);
            if (weights > want_bytes + want_bytes / 10 + room)
                fail_msg("%llu bytes of weights for %llu", (unsigned long long)weights,
                         (unsigned long long)want_bytes);
            if (kinds[k].outliers == TN_OUTLIERS_OFF)
                assert_true((n_packed > 0) == (form != TN_WEIGHTS_TILES));
            rig_close(&r);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(instruction_sets),
        cmocka_unit_test(graphs_are_in_the_package),
        cmocka_unit_test(disk_faults),
        cmocka_unit_test(cancelled_and_resumed),
        cmocka_unit_test(damage_is_told),
        cmocka_unit_test(lying_streams_are_told),
        cmocka_unit_test(damaged_rows_are_told_at_once),
        cmocka_unit_test(truncated_while_open),
        cmocka_unit_test(other_packages_are_refused),
        cmocka_unit_test(several_at_once),
        cmocka_unit_test(memory_is_planned),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
