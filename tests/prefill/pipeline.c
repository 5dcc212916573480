/* Packages: the same bits whatever the policy, the lanes, the chunking and the memory cap; faults end in one
 * clear error. */
#include "base/cpu.h"
#include "session/session.h"
#include "formats/package.h"
#include "lab/synth.h"
#include "npu/backend.h"
#include "prefill/impl.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture/scarce.h"
#include "fixture/fixture.h"

enum { N_PROMPT = 333 };

static char gguf[256], package[256], all_outliers[256];
static int32_t prompt[N_PROMPT];

static void pack(const char *out, float prune, tn_scheme scheme) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.prune_percent = prune;
    o.scheme = scheme;
    o.calib_tokens = 512;
    o.outlier_share = 0.01f;
    tern_error err = {0};
    if (tn_pack(&ctx, gguf, out, &o, NULL, &err) != TERN_OK) fail_msg("%s", err.message);
}

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    tern_error err;
    snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/pipeline-%ld.gguf", (long)getpid());
    snprintf(package, sizeof package, TN_BINARY_DIR "/pipeline-%ld.tern", (long)getpid());
    snprintf(all_outliers, sizeof all_outliers, TN_BINARY_DIR "/pipeline-outliers-%ld.tern", (long)getpid());
    if (tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK ||
        tn_synth(&ctx, pool, "tiny-qwen2", gguf, 7, TN_F32, &err) != TERN_OK)
        return -1;
    tn_pool_close(&pool);
    pack(package, 85, TN_SCHEME_LLM_NPU);
    pack(all_outliers, 0, TN_SCHEME_LLM_NPU);
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 500;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    const char *paths[] = {gguf, package, all_outliers};
    for (int i = 0; i < 3; i++) {
        char profile[300];
        snprintf(profile, sizeof profile, "%s.profile", paths[i]);
        unlink(profile);
        unlink(paths[i]);
    }
    return 0;
}

typedef struct run {
    tern_engine *e;
    tern_session *s;
    int32_t n_vocab;
} run;

static run open_run(const char *path, const tern_options *o) {
    tern_engine *e = fixture_engine(path, o);
    tern_model_info info;
    tern_engine_info(e, &info);
    return (run){e, fixture_session(e, 512, NULL), info.n_vocab};
}

static void close_run(run *r) {
    tern_session_close(&r->s);
    tern_engine_close(&r->e);
}

/* Logits after the prompt and after three more tokens. */
static float *logits_under(const char *path, const tern_options *o, size_t piece, float *out) {
    run r = open_run(path, o);
    tern_error err = {0};
    for (size_t n = piece;; n += piece) {
        if (n > N_PROMPT) n = N_PROMPT;
        if (tern_session_prefill(r.s, prompt, n, &err) != TERN_OK) fail_msg("%s", err.message);
        if (n == N_PROMPT) break;
    }
    size_t v = (size_t)r.n_vocab;
    if (!out) out = malloc(4 * v * sizeof *out);
    memcpy(out, tern_session_logits(r.s), v * sizeof *out);
    for (size_t i = 1; i < 4; i++) {
        assert_int_equal(tern_session_step(r.s, (int32_t)i * 11, &err), TERN_OK);
        memcpy(out + i * v, tern_session_logits(r.s), v * sizeof *out);
    }
    close_run(&r);
    return out;
}

enum { N_VOCAB = 512, N_LOGITS = 4 * N_VOCAB };

static void same_bits(const char *path, const float *want, const tern_options *o, size_t piece,
                      const char *what) {
    float *got = logits_under(path, o, piece, NULL);
    if (memcmp(got, want, N_LOGITS * sizeof *got)) fail_msg("other bits with %s", what);
    free(got);
}

static void bits_do_not_depend_on_how(void **state) {
    (void)state;
    const char *const paths[] = {package, all_outliers};
    for (int p = 0; p < 2; p++) {
        tern_options o;
        tn_options_defaults(&o);
        o.n_threads = 1;
        float *want = logits_under(paths[p], &o, N_PROMPT, NULL);
        assert_true(isfinite(want[0]));
        static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"};
        for (int i = 0; i < 4; i++) {
            for (int threads = 1; threads <= 4; threads++) {
                tn_options_defaults(&o);
                o.policy = policies[i];
                o.n_threads = threads;
                same_bits(paths[p], want, &o, N_PROMPT, policies[i]);
            }
        }
        tn_options_defaults(&o);
        o.steal = TN_STEAL_NONE;
        same_bits(paths[p], want, &o, N_PROMPT, "lanes kept apart");
        tn_options_defaults(&o);
        o.cold_rows = "file";
        same_bits(paths[p], want, &o, N_PROMPT, "cold rows from the file");
        tn_options_defaults(&o);
        o.no_chunk_sharing = true;
        o.chunk = 64;
        same_bits(paths[p], want, &o, N_PROMPT, "graphs per chunk");
        static const int32_t chunks[] = {32, 96, 64, 256, 1024};
        for (int i = 0; i < 5; i++) {
            tn_options_defaults(&o);
            o.chunk = chunks[i];
            same_bits(paths[p], want, &o, N_PROMPT, "another chunk length");
        }
        static const size_t pieces[] = {1, 7, 32, 33, 100};
        tn_options_defaults(&o);
        for (int i = 0; i < 5; i++) same_bits(paths[p], want, &o, pieces[i], "a prompt in pieces");
        static const uint64_t caps[] = {1, 200000, 400000, 1u << 30};
        for (int i = 0; i < 4; i++) {
            o.npu_memory_bytes = caps[i];
            same_bits(paths[p], want, &o, N_PROMPT, "a memory cap");
        }
        tn_options_defaults(&o);
        setenv("TERN_CPU", "scalar", 1);
        same_bits(paths[p], want, &o, N_PROMPT, "scalar kernels");
        unsetenv("TERN_CPU");
        free(want);
    }
}

/* W8A8 with outliers stays near float; naive per-tensor scales do too on a model without outliers. */
static void close_to_float(void **state) {
    (void)state;
    tern_options o;
    tn_options_defaults(&o);
    float *want = logits_under(gguf, &o, N_PROMPT, NULL),
          *got = logits_under(all_outliers, &o, N_PROMPT, NULL);
    double err = 0, norm = 0;
    for (int i = 0; i < N_LOGITS; i++) {
        err += pow((double)got[i] - (double)want[i], 2);
        norm += pow((double)want[i], 2);
    }
    /* two layers of 8-bit rounding: step/sqrt(12)/rms of about 1 % an operand, a dozen products deep */
    assert_true(sqrt(err / norm) < 0.1);
    assert_true(err > 0);
    free(want);
    free(got);
}

/* One site computed by plain loops in double from the package's bytes: V of layer 0 is y = s (q(x) W8) +
 * extract(x) W8 + b of the normed embedding, and the KV cache shows it. */
typedef struct bytes {
    char *data;
    const tn_pkg_record *r;
    size_t n;
} bytes;

static bytes section(tn_ctx *ctx, const tn_pkg *pkg, tn_pkg_kind kind, int layer) {
    const tn_pkg_section *s = tn_pkg_find(pkg, kind, layer);
    tern_error err;
    bytes b = {.data = tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1)};
    assert_int_equal(tn_pkg_read(pkg, s, b.data, &err), TERN_OK);
    b.r = tn_pkg_records(pkg, s, &b.n);
    assert_non_null(b.r);
    return b;
}

static const void *part(const bytes *b, tn_role role, tn_pkg_part what, const tn_pkg_record **r) {
    const tn_pkg_record *found = tn_pkg_record_find(b->r, b->n, (uint32_t)role, (uint32_t)what);
    if (r) *r = found;
    return found ? b->data + found->off_bytes : NULL;
}

static float *scales(const bytes *b, tn_role role, int32_t n) {
    size_t n_pad = (size_t)(n + 15) / 16 * 16;
    float *scale = malloc(2 * n_pad * sizeof *scale);
    tern_error err = {0};
    assert_non_null(scale);
    if (tn_pkg_rows(b->r, b->n, b->data, (uint32_t)role, n_pad, scale, (int32_t *)(scale + n_pad), &err) !=
        TERN_OK)
        fail_msg("%s", err.message);
    return scale;
}

/* Weight [n][k] in tiles of 16 outputs by 4 inputs (docs/reference/package-format.md). */
static double weight(const int8_t *tiles, int64_t n, int64_t k, int64_t n_k) {
    int64_t quads = (n_k + 3) / 4;
    return tiles[((n / 16 * quads + k / 4) * 16 + n % 16) * 4 + k % 4];
}

static void brute_force_site(void **state) {
    (void)state;
    run r = open_run(all_outliers, NULL);
    tern_error err;
    assert_int_equal(tern_session_prefill(r.s, prompt, N_PROMPT, &err), TERN_OK);
    const tn_hparams *h = &r.e->model->h;
    tn_ctx *ctx = &r.e->ctx;
    bytes model = section(ctx, r.e->npu->pkg, TN_PKG_MODEL, -1),
          head = section(ctx, r.e->npu->pkg, TN_PKG_LM_HEAD, -1),
          layer = section(ctx, r.e->npu->pkg, TN_PKG_LAYER, 0);
    const tn_pkg_record *site;
    const int8_t *embd = part(&head, TN_W_EMBD, TN_PKG_TILES, NULL),
                 *w = part(&layer, TN_W_V, TN_PKG_TILES, NULL);
    part(&layer, TN_W_Q, TN_PKG_TILES, &site);
    float *embd_scale = scales(&model, TN_W_EMBD, h->n_vocab),
          *w_scale = scales(&layer, TN_W_V, h->n_kv_heads * h->d_head);
    const float *norm = part(&layer, TN_W_ATTN_NORM, TN_PKG_F32, NULL),
                *bias = part(&layer, TN_W_V, TN_PKG_BIAS, NULL);
    assert_true(embd && w && site && embd_scale && norm && w_scale && bias);
    assert_true(site->flags & TN_PKG_HAS_OUTLIERS);
    double s = (double)site->act_scale;
    int e = h->n_embd, n_outliers = 0, n_checked = 0;
    double *x = malloc((size_t)e * sizeof *x), *q = malloc((size_t)e * sizeof *q);
    for (int t = 0; t < N_PROMPT; t++) {
        double sum = 0, slack = 0;
        for (int i = 0; i < e; i++) {
            x[i] = weight(embd, prompt[t], i, e) * (double)embd_scale[prompt[t]];
            sum += x[i] * x[i];
        }
        for (int i = 0; i < e; i++) {
            x[i] *= (double)norm[i] / sqrt(sum / e + (double)h->norm_eps);
            double steps = x[i] / s;
            q[i] = fmax(-127, fmin(127, nearbyint(steps)));
            n_outliers += fabs(steps) > 127;
            /* float and double may round a value halfway between two steps differently: one step, in that
             * channel */
            if (fabs(fabs(steps - floor(steps)) - 0.5) < 1e-4) slack += s;
        }
        for (int n = 0; n < h->n_kv_heads * h->d_head; n++) {
            double acc = 0, extra = 0, mag = 0;
            for (int i = 0; i < e; i++) {
                double wi = weight(w, n, i, e);
                acc += q[i] * wi;
                if (fabs(x[i] / s) > 127) extra += (x[i] - s * q[i]) * wi;
                mag += fabs(x[i] * wi);
            }
            double want = (s * acc + extra) * (double)w_scale[n] + (double)bias[n];
            const float *v = tn_kv_v(&r.s->state.kv, 0, n / h->d_head);
            double got = (double)v[(size_t)t * (size_t)h->d_head + (size_t)(n % h->d_head)];
            double bound = mag * (double)w_scale[n] * 2e-6 + fabs((double)bias[n]) * 1e-6 +
                           slack * 127 * (double)w_scale[n];
            if (!(fabs(got - want) <= bound))
                fail_msg("token %d, channel %d: %.9g, want %.9g +- %.2g", t, n, got, want, bound);
            n_checked += slack == 0;
        }
    }
    assert_true(n_outliers > 50);
    assert_true(n_checked > N_PROMPT * h->d_head / 2); /* most rows had no doubtful rounding */
    free(x);
    free(q);
    free(embd_scale);
    free(w_scale);
    tn_free(ctx, model.data);
    tn_free(ctx, head.data);
    tn_free(ctx, layer.data);
    close_run(&r);
}

/* A row has room for a quarter of its channels. Those that do not fit are counted; those that do are made good. */
static void beyond_the_room(void **state) {
    (void)state;
    run r = open_run(all_outliers, NULL);
    tern_error err;
    tn_stats usual, many;
    const tn_pipeline *p = tn_session_pipeline(r.s);
    assert_int_equal(tern_session_prefill(r.s, prompt, N_PROMPT, &err), TERN_OK);
    tn_session_stats(r.s, &usual);
    assert_int_equal(usual.n_dropped, 0);
    tn_npu_site *site = tn_npu_site_at(r.e->npu, 0, TN_SITE_DOWN);
    site->act_scale *= 1e-3f; /* nearly every value is clipped */
    site->inv_scale *= 1e3f;
    tn_session_truncate(r.s, 0);
    assert_int_equal(tern_session_prefill(r.s, prompt, N_PROMPT, &err), TERN_OK);
    tn_session_stats(r.s, &many);
    const uint64_t room = (uint64_t)p->out_cap * N_PROMPT;
    print_message("%d made good, %d beyond\n", (int)(many.n_outliers - usual.n_outliers),
                  (int)many.n_dropped);
    assert_true(site->has_outliers && many.n_dropped > 0);
    assert_true(many.n_outliers - usual.n_outliers > room / 10 * 9);
    close_run(&r);
}

static void cold_rows_come_from_the_file(void **state) {
    (void)state;
    tern_options o;
    tn_options_defaults(&o);
    o.cold_rows = "file";
    run r = open_run(all_outliers, &o);
    tern_error err;
    assert_int_equal(tern_session_prefill(r.s, prompt, N_PROMPT, &err), TERN_OK);
    tn_stats st;
    tn_session_stats(r.s, &st);
    assert_true(st.n_outliers > 0);
    assert_true(st.cold_misses > 0);
    assert_true(st.hot_hits > 0);
    assert_int_equal(st.cold_misses + st.hot_hits, st.n_outliers);
    assert_int_equal(st.n_dropped, 0);
    assert_int_equal(st.n_shared * 6, st.n_subgraphs * 5);
    close_run(&r);
}

/* Rows read from the package give the same bits as resident ones: the same model packed with every channel
 * that ever clipped hot. */
static void cold_rows_are_the_same_rows(void **state) {
    (void)state;
    char path[300], profile[310];
    snprintf(path, sizeof path, "%s.hot", all_outliers);
    snprintf(profile, sizeof profile, "%s.profile", path);
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_LLM_NPU;
    o.prune_percent = 0;
    o.calib_tokens = 512;
    o.outlier_share = 0.01f;
    o.hot_coverage = o.hot_max = 1;
    tern_error err = {0};
    if (tn_pack(&ctx, gguf, path, &o, NULL, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_stats few, many;
    run r = open_run(all_outliers, NULL), h = open_run(path, NULL);
    assert_int_equal(tern_session_prefill(r.s, prompt, N_PROMPT, &err), TERN_OK);
    assert_int_equal(tern_session_prefill(h.s, prompt, N_PROMPT, &err), TERN_OK);
    tn_session_stats(r.s, &few);
    tn_session_stats(h.s, &many);
    assert_int_equal(few.n_outliers, many.n_outliers);
    assert_true(many.cold_misses < few.cold_misses);
    assert_true(many.hot_hits > few.hot_hits);
    assert_memory_equal(tern_session_logits(r.s), tern_session_logits(h.s),
                        (size_t)r.n_vocab * sizeof(float));
    close_run(&r);
    close_run(&h);
    unlink(path);
    unlink(profile);
}

static void saved_sessions(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s.session", package);
    run a = open_run(package, NULL), b = open_run(package, NULL), c = open_run(all_outliers, NULL);
    tern_error err = {0};
    assert_int_equal(tern_session_prefill(a.s, prompt, 100, &err), TERN_OK);
    assert_int_equal(tern_session_save(a.s, path, &err), TERN_OK);
    assert_int_equal(tern_session_load(b.s, path, &err), TERN_OK);
    assert_int_equal(tern_session_step(a.s, 5, &err), TERN_OK);
    assert_int_equal(tern_session_step(b.s, 5, &err), TERN_OK);
    assert_memory_equal(tern_session_logits(a.s), tern_session_logits(b.s),
                        (size_t)a.n_vocab * sizeof(float));
    assert_int_equal(tern_session_load(c.s, path, &err), TERN_E_INVALID); /* another package */
    unlink(path);
    close_run(&a);
    close_run(&b);
    close_run(&c);
}

static tern_status open_damaged(const uint8_t *bytes, size_t n, const char *path, tern_error *err) {
    fixture_write(path, bytes, n);
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_status st = tern_engine_open(path, NULL, &e, err);
    if (st == TERN_OK) st = tern_session_open(e, NULL, &s, err);
    if (st == TERN_OK) st = tern_session_prefill(s, prompt, 40, err); /* the weights come with it */
    tern_session_close(&s);
    tern_engine_close(&e);
    return st;
}

/* A flipped bit in any section that is read at load, and any truncation, is one clear error. */
static void damage_is_noticed(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s.damaged", package);
    size_t n;
    uint8_t *bytes = fixture_read(all_outliers, &n);
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pkg *pkg;
    tern_error err;
    assert_int_equal(tn_pkg_open(&ctx, all_outliers, &pkg, &err), TERN_OK);
    int n_flipped = 0;
    for (size_t i = 0; i < tn_pkg_n_sections(pkg); i++) {
        tn_pkg_section s = *tn_pkg_section_at(pkg, i);
        if (s.kind == TN_PKG_OUTLIERS) continue; /* read row by row, not at load */
        size_t n_records;
        const tn_pkg_record *records = tn_pkg_records(pkg, &s, &n_records),
                            whole = {.size_bytes = s.size_bytes};
        for (size_t r = 0; r < (records ? n_records : 1); r++) {
            const tn_pkg_record *part = records ? &records[r] : &whole;
            for (int k = 0; k < 3 && part->size_bytes; k++) {
                size_t at = s.off_bytes + part->off_bytes + (part->size_bytes - 1) * (size_t)k / 2;
                bytes[at] ^= 0x10;
                err.message[0] = 0;
                assert_int_not_equal(open_damaged(bytes, n, path, &err), TERN_OK);
                assert_true(strlen(err.message) > 10);
                bytes[at] ^= 0x10;
                n_flipped++;
            }
        }
    }
    assert_true(n_flipped >= 12);
    for (size_t at = 0; at < 56; at++) { /* the header, byte by byte */
        bytes[at] ^= 1;
        assert_int_not_equal(open_damaged(bytes, n, path, &err), TERN_OK);
        bytes[at] ^= 1;
    }
    bytes[8] = TN_PKG_VERSION + 1; /* a package of the future */
    assert_int_equal(open_damaged(bytes, n, path, &err), TERN_E_UNSUPPORTED);
    bytes[8] = TN_PKG_VERSION;
    for (size_t cut = 0; cut < n; cut += n / 37)
        assert_int_not_equal(open_damaged(bytes, cut, path, &err), TERN_OK);
    assert_int_equal(open_damaged(bytes, n, path, &err), TERN_OK);
    unlink(path);
    tn_pkg_close(&pkg);
    free(bytes);
}

/* Rows read on demand are checked too: damage there fails the prefill that needs them, and only where they
 * come from the file. */
static void damaged_rows_are_noticed(void **state) {
    (void)state;
    char path[300], profile[310];
    snprintf(path, sizeof path, "%s.rows", package);
    snprintf(profile, sizeof profile, "%s.profile", path);
    size_t n;
    uint8_t *bytes = fixture_read(all_outliers, &n);
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pkg *pkg;
    tern_error err;
    assert_int_equal(tn_pkg_open(&ctx, all_outliers, &pkg, &err), TERN_OK);
    const tn_pkg_section *s = tn_pkg_find(pkg, TN_PKG_OUTLIERS, 0);
    for (size_t i = 0; i < s->size_bytes; i += 8) bytes[s->off_bytes + i] ^= 4; /* every row */
    fixture_write(path, bytes, n);
    for (int from_file = 0; from_file < 2; from_file++) {
        tern_options o;
        tn_options_defaults(&o);
        o.cold_rows = from_file ? "file" : "weights";
        run r = open_run(path, &o);
        tern_status st = tern_session_prefill(r.s, prompt, N_PROMPT, &err);
        assert_int_equal(st, from_file ? TERN_E_FORMAT : TERN_OK);
        if (from_file) assert_non_null(strstr(err.message, "damaged"));
        close_run(&r);
    }
    unlink(path);
    unlink(profile);
    tn_pkg_close(&pkg);
    free(bytes);
}

/* Every allocation fails once: an error each time, nothing leaks (ASan), the last run succeeds. */
static void allocation_failures(void **state) {
    (void)state;
    bool quick = getenv("TERN_TEST_QUICK") != NULL;
    int n_tolerated = 0;
    for (long i = 0;; i += quick ? 17 : 1) {
        scarce f = {.left = i};
        tern_hooks h;
        scarce_hooks(&h, &f);
        tern_options o;
        tn_options_defaults(&o);
        o.hooks = &h;
        o.n_threads = 1;
        tern_engine *e = NULL;
        tern_session *s = NULL;
        tern_error err;
        tern_status st = tern_engine_open(package, &o, &e, &err);
        if (st == TERN_OK) st = tern_session_open(e, NULL, &s, &err);
        if (st == TERN_OK) st = tern_session_prefill(s, prompt, 40, &err);
        tern_session_close(&s);
        tern_engine_close(&e);
        assert_int_equal(f.live, 0);
        if (st == TERN_OK && f.left >= 0) { /* none failed any more */
            if (i < 60 || n_tolerated > 24) fail_msg("%ld allocations, %d tolerated", i, n_tolerated);
            break;
        }
        if (st == TERN_OK)
            n_tolerated++; /* the tokenizer does without compiled patterns when there is no memory for them */
        else assert_int_equal(st, TERN_E_MEMORY);
    }
}

/* Evaluating tokens allocates nothing. */
static void no_allocation_while_running(void **state) {
    (void)state;
    scarce f = {.left = -1};
    tern_hooks h;
    scarce_hooks(&h, &f);
    tern_options o;
    tn_options_defaults(&o);
    o.hooks = &h;
    run r = open_run(package, &o);
    tern_error err;
    assert_int_equal(tern_session_prefill(r.s, prompt, 300, &err),
                     TERN_OK); /* the executor's own state grows once */
    long live = f.live, left = f.left;
    tn_session_truncate(r.s, 0);
    assert_int_equal(tern_session_prefill(r.s, prompt, 300, &err), TERN_OK);
    for (int i = 0; i < 5; i++) assert_int_equal(tern_session_step(r.s, i, &err), TERN_OK);
    assert_int_equal(f.live, live);
    assert_int_equal(f.left, left);
    close_run(&r);
}

/* ---- stealing from a device with silicon of its own ------------------------------------------------- */

static struct {
    tn_npu_backend counting;
    const tn_npu_backend *real;
    pthread_mutex_t mu;
    pthread_cond_t moved;
    int n_jobs, n_here;
    bool
        gate; /* the first job waits in the device until the CPU lane took a product, however it computes it */
} counted = {.mu = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static void count_job(tn_npu_device *d, tn_npu_job *job) {
    pthread_mutex_lock(&counted.mu);
    counted.n_jobs++;
    pthread_cond_broadcast(&counted.moved);
    while (counted.gate && !counted.n_here && counted.n_jobs < 2)
        pthread_cond_wait(&counted.moved, &counted.mu);
    pthread_mutex_unlock(&counted.mu);
    counted.real->submit(d, job);
}

static void count_part(tn_npu_device *d, const tn_npu_job *job, int32_t i, int32_t n) {
    pthread_mutex_lock(&counted.mu);
    counted.n_here++;
    pthread_cond_broadcast(&counted.moved);
    pthread_mutex_unlock(&counted.mu);
    counted.real->run_part(d, job, i, n);
}

static void count_jobs_of(tern_engine *e, bool gate) {
    counted.real = e->npu->dev->be;
    counted.counting = *counted.real;
    counted.counting.submit = count_job;
    counted.counting.run_part = count_part;
    counted.n_jobs = counted.n_here = 0;
    counted.gate = gate;
    e->npu->dev->be = &counted.counting;
}

/* Every linear of every chunk is computed once: by the device, or by the CPU lane itself, which took it
 * while the device was busy. The device gets no job for what was taken; the bits are the same. */
static void stolen_products_are_the_cpus_work(void **state) {
    (void)state;
    const char *const paths[] = {package, all_outliers};
    for (int p = 0; p < 2; p++) {
        tern_options o;
        tn_options_defaults(&o);
        float *want = logits_under(paths[p], &o, N_PROMPT, NULL);
        tn_options_defaults(&o);
        o.npu_apart = true;
        o.policy = "synergy";
        o.chunk = 32;
        o.cpu_threads = o.npu_threads = 1;
        o.steal = 1;
        o.load = "overlap";
        run r = open_run(paths[p], &o);
        tern_error err = {0};
        int n_linears = 0;
        for (int32_t i = 0; i < r.e->npu->n_sites; i++)
            n_linears += r.e->npu->sites[i].layer >= 0 ? r.e->npu->sites[i].ops.n_ops : 0;
        assert_false(r.e->policy.keep_busy); /* no core is shared with silicon */
        count_jobs_of(r.e, true);
        enum { N_CHUNKS = (N_PROMPT + 31) / 32 };
        if (tern_session_prefill(r.s, prompt, N_PROMPT, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_memory_equal(tern_session_logits(r.s), want, N_VOCAB * sizeof *want);
        assert_int_equal(counted.n_jobs + counted.n_here,
                         N_CHUNKS * n_linears + 1); /* and the output layer */
        assert_int_equal(counted.n_here, tn_pipeline_stats_get(tn_session_pipeline(r.s))->n_stolen);
        assert_true(counted.n_here > 0 && counted.n_jobs > 1);
        close_run(&r);
        /* nothing is taken where nothing may be */
        o.steal = TN_STEAL_NONE;
        r = open_run(paths[p], &o);
        count_jobs_of(r.e, false);
        assert_int_equal(tern_session_prefill(r.s, prompt, N_PROMPT, &err), TERN_OK);
        assert_memory_equal(tern_session_logits(r.s), want, N_VOCAB * sizeof *want);
        assert_int_equal(counted.n_here, 0);
        close_run(&r);
        free(want);
    }
}

static bool waits_for(const tn_graph *g, int32_t task, int32_t for_) {
    for (int32_t i = g->succ_off[for_]; i < g->succ_off[for_ + 1]; i++)
        if (g->succ[i] == task) return true;
    return false;
}

/* q, k, v, gate and up by themselves: a job of the device each, none after another of its input, all in front of
 * what reads them; and the same bits on every device, by every policy, under every cap, decoding included. */
static void operators_are_tasks(void **state) {
    (void)state;
    const char *const paths[] = {package, all_outliers};
    for (int p = 0; p < 2; p++) {
        tern_options o;
        tn_options_defaults(&o);
        float *want = logits_under(paths[p], &o, N_PROMPT, NULL);
        static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"};
        for (int i = 0; i < 8; i++) {
            tn_options_defaults(&o);
            o.products = "operators";
            o.policy = policies[i % 4];
            o.npu_apart = i >= 4;
            o.chunk = i % 2 ? 32 : 0;
            same_bits(paths[p], want, &o, i % 3 ? N_PROMPT : 33, policies[i % 4]);
        }
        tn_options_defaults(&o);
        o.products = "operators";
        o.npu_memory_bytes = 400000;
        same_bits(paths[p], want, &o, N_PROMPT, "operators and a memory cap");
        tn_options_defaults(&o);
        o.products = "operators";
        o.npu_apart = true;
        o.chunk = 32;
        o.steal = TN_STEAL_NONE;
        o.load = "overlap";
        run r = open_run(paths[p], &o);
        tern_error err = {0};
        int n_linears = 0;
        for (int32_t i = 0; i < r.e->npu->n_sites; i++)
            n_linears += r.e->npu->sites[i].layer >= 0 ? r.e->npu->sites[i].ops.n_ops : 0;
        count_jobs_of(r.e, false);
        if (tern_session_prefill(r.s, prompt, N_PROMPT, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_memory_equal(tern_session_logits(r.s), want, N_VOCAB * sizeof *want);
        assert_int_equal(counted.n_jobs, (N_PROMPT + 31) / 32 * n_linears + 1); /* and the output layer */
        const tn_pipeline *line = tn_session_pipeline(r.s);
        const tn_graph *g = line->waves[1].graph;
        int n_siblings = 0;
        for (int32_t t = 1; t < g->n_tasks; t++) {
            const task_arg *a = &line->waves[1].args[t];
            if (a->kind != TN_STEP_PRODUCT || line->steps.work[a->step].alone < 2) continue;
            n_siblings++;
            int32_t first = t - line->steps.work[a->step].alone + 1, behind = t + 1;
            while (line->waves[1].args[behind].kind == TN_STEP_PRODUCT ||
                   line->waves[1].args[behind].kind == TN_STEP_OUTLIERS)
                behind++;
            assert_true(waits_for(g, t, first - 1) && waits_for(g, first, first - 1));
            assert_false(waits_for(g, t, t - 1));
            assert_true(waits_for(g, behind, t) && waits_for(g, behind, first));
        }
        assert_int_equal(n_siblings, 3 * r.e->npu->n_layers); /* k, v and up */
        close_run(&r);
        free(want);
    }
}

/* Cores are shared by default, where the device works on them. */
static void silicon_shares_no_cores(void **state) {
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        tern_options o;
        tn_options_defaults(&o);
        o.npu_apart = apart;
        run r = open_run(package, &o);
        assert_int_equal(r.e->policy.keep_busy, !apart);
        close_run(&r);
    }
}

/* Products have times of both lanes, from which the threshold follows; they are kept for later processes. */
static void products_are_timed_on_both_lanes(void **state) {
    (void)state;
    tern_options o;
    tn_options_defaults(&o);
    o.npu_apart = true;
    o.policy = "synergy";
    o.chunk = 64;
    o.steal = TN_STEAL_MEASURED;
    o.load = "overlap";
    o.cpu_threads = o.npu_threads = 1;
    char kept[300];
    snprintf(kept, sizeof kept, "%s.profile", package);
    unlink(kept);
    tern_options other =
        o; /* a profile without the CPU's times is there, and the weights are still to be read */
    other.policy = "ooe";
    other.steal = TN_STEAL_NONE;
    free(logits_under(package, &other, N_PROMPT, NULL));
    other = o;
    other.load = "stream";
    free(logits_under(package, &other, N_PROMPT, NULL));
    unlink(kept);
    for (int process = 0; process < 2; process++) {
        run r = open_run(package, &o);
        tn_pipeline *p = tn_session_pipeline(r.s);
        assert_int_equal(p->profile->measured, process);
        assert_int_equal(tern_session_prefill(r.s, prompt, 256, NULL), TERN_OK);     /* measures the device */
        assert_int_equal(tern_session_prefill(r.s, prompt + 1, 256, NULL), TERN_OK); /* and the CPU */
        tn_graph *g = p->waves[4].graph;
        int n_products = 0;
        for (int32_t t = 0; t < g->n_tasks; t++) {
            const task_arg *a = &p->waves[4].args[t];
            int32_t type = p->steps.at[a->step].type;
            if (a->kind != TN_STEP_PRODUCT) continue;
            n_products++;
            assert_true(p->profile->cpu_us[type] > 0);
            assert_true(g->tasks[t].est_us[TN_LANE_CPU] == (float)p->profile->cpu_us[type]);
            assert_true(g->tasks[t].est_us[TN_LANE_NPU] == (float)p->profile->us[type]);
        }
        assert_true(n_products > 8);
        close_run(&r);
    }
    unlink(kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_how),
        cmocka_unit_test(close_to_float),
        cmocka_unit_test(brute_force_site),
        cmocka_unit_test(beyond_the_room),
        cmocka_unit_test(cold_rows_come_from_the_file),
        cmocka_unit_test(cold_rows_are_the_same_rows),
        cmocka_unit_test(saved_sessions),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(damaged_rows_are_noticed),
        cmocka_unit_test(allocation_failures),
        cmocka_unit_test(no_allocation_while_running),
        cmocka_unit_test(stolen_products_are_the_cpus_work),
        cmocka_unit_test(operators_are_tasks),
        cmocka_unit_test(silicon_shares_no_cores),
        cmocka_unit_test(products_are_timed_on_both_lanes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
