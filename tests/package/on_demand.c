/* Experts read on demand: the bits of everything in memory, within the budget, as many reads as an
 * independent replay says, guesses that are right where nothing changes them, and one clear error where the
 * file is not what it was. */
#include "base/rng.h"
#include "engine/engine.h"
#include "formats/package.h"
#include "package/on_demand.h"
#include "quant/pack.h"
#include "session/session.h"

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

#include "fixture/fixture.h"
#include "fixture/held.h"

enum { N_PROMPT = 150, N_STEPS = 24, N_VOCAB = 512, N_CTX = 256, N_MIXTURES = 4 };

static const struct {
    const char *arch;
    tn_scheme scheme;
    double bits;
} mixtures[N_MIXTURES] = {{"tiny-qwen3moe", TN_SCHEME_GRAM, 5},   /* weightlets */
                          {"tiny-olmoe", TN_SCHEME_NAIVE, 8},     /* tiles */
                          {"tiny-lfm2moe", TN_SCHEME_GRAM, 4.5},  /* dense layers in front */
                          {"tiny-qwen35moe", TN_SCHEME_GRAM, 5}}; /* a shared expert, delta nets */
static char packages[N_MIXTURES][FIXTURE_PATH];
static int32_t prompt[N_PROMPT];
static float want[(N_STEPS + 1) * N_VOCAB], got[(N_STEPS + 1) * N_VOCAB];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < N_MIXTURES; i++) {
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.scheme = mixtures[i].scheme;
        o.bits = o.scheme == TN_SCHEME_NAIVE ? 0 : mixtures[i].bits;
        o.calib_tokens = 512;
        fixture_both(NULL, packages[i], i, mixtures[i].arch, 5, TN_F16, &o);
    }
    fixture_prompt(prompt, N_PROMPT);
    return 0;
}

/* max-memory that leaves this share of the experts' bytes for them. */
static uint64_t memory_for(const char *path, const tern_options *o, double share, tn_experts_need *need) {
    tn_ctx ctx;
    tern_error err;
    tn_pkg *p;
    tn_hparams h;
    tern_estimate e;
    char scheme[24], description[64];
    uint64_t n_params;
    tn_ctx_init(&ctx, NULL);
    must(tn_pkg_open(&ctx, path, &p, &err), &err);
    must(tn_package_hparams(&ctx, p, &h, scheme, description, &n_params, &err), &err);
    tn_experts_need_of(p, &h, true, need);
    tn_pkg_close(&p);
    must(tern_engine_estimate(path, o, &e, &err), &err);
    return e.weight_bytes + e.kv_bytes + e.work_bytes - need->all_bytes +
           (uint64_t)(share * (double)need->all_bytes);
}

static tern_options options(int n_threads) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = n_threads;
    o.session.n_ctx = N_CTX;
    o.weights = "packed";
    o.kv = "f32";
    return o;
}

/* Logits after the prompt, in pieces, and after every one of some tokens. */
static void logits_of(tern_engine *e, size_t piece, float *out) {
    tern_session *s = fixture_session(e, N_CTX, "none");
    tern_error err;
    for (size_t n = piece; n < N_PROMPT + piece; n += piece)
        must(tern_session_prefill(s, prompt, n < N_PROMPT ? n : N_PROMPT, &err), &err);
    for (size_t i = 0; i <= N_STEPS; i++) {
        if (i) must(tern_session_step(s, (int32_t)(i * 37 % 400), &err), &err);
        memcpy(out + i * N_VOCAB, tern_session_logits(s), N_VOCAB * sizeof *out);
    }
    tern_session_close(&s);
}

static void same_bits(void **state) {
    (void)state;
    static const double shares[] = {0, 0.3, 0.7};
    static const size_t pieces[] = {N_PROMPT, 40, 3};
    for (int p = 0; p < N_MIXTURES; p++) {
        tern_options o = options(1);
        tern_engine *e = fixture_engine(packages[p], &o);
        assert_null(e->npu->on_demand);
        logits_of(e, N_PROMPT, want);
        tern_engine_close(&e);
        for (int i = 0; i < 3; i++) {
            for (int n_threads = 1; n_threads <= 4; n_threads *= 2) {
                tn_experts_need need;
                tn_on_demand_stats s;
                o = options(n_threads);
                double share = i ? shares[i] : 0;
                o.max_memory_bytes = memory_for(packages[p], &o, share, &need);
                if (!i) o.max_memory_bytes += need.least_bytes;
                assert_true(need.can);
                e = fixture_engine(packages[p], &o);
                assert_non_null(e->npu->on_demand);
                logits_of(e, pieces[(i + n_threads) % 3], got);
                if (memcmp(want, got, sizeof got))
                    fail_msg("%s: other bits with %.0f %% of the experts", mixtures[p].arch, 100 * share);
                tn_on_demand_stats_get(e->npu->on_demand, &s);
                assert_true(s.all_bytes == need.all_bytes && s.n_reads && s.n_hits + s.n_ahead <= s.n_taken);
                assert_true(i < 2 || s.n_hits > s.n_taken / 20);
                assert_true((uint64_t)s.n_slots * s.slot_bytes <= s.budget_bytes && s.n_read_bytes);
                assert_true(s.budget_bytes <= (uint64_t)(share * (double)need.all_bytes) + need.least_bytes);
                assert_true(s.n_predicted && s.n_right <= s.n_predicted);
                tern_engine_close(&e);
            }
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------ */

/* *most: while it was opened and ran. Returns what it holds afterwards. */
static long long held_by(const char *path, const tern_options *o, long long *top) {
    tern_hooks hooks;
    held memory = {0};
    held_hooks(&hooks, &memory);
    tern_options with = *o;
    with.hooks = &hooks;
    tern_engine *e = fixture_engine(path, &with);
    logits_of(e, N_PROMPT, got);
    long long stays = memory.now;
    tern_engine_close(&e);
    assert_int_equal(memory.now, 0);
    *top = memory.most;
    return stays;
}

static void within_the_budget(void **state) {
    (void)state;
    for (int p = 0; p < N_MIXTURES; p++) {
        tern_options o = options(1);
        tn_experts_need need;
        long long top, all = held_by(packages[p], &o, &top);
        o.max_memory_bytes = memory_for(packages[p], &o, 0.3, &need);
        long long some = held_by(packages[p], &o, &top);
        /* what is not there any more, less what keeps account of it: units, offsets, checksums */
        long long less = (long long)(0.7 * (double)need.all_bytes);
        assert_true(top <= (long long)o.max_memory_bytes);
        if (all - some < less * 3 / 4)
            fail_msg("%s: %lld bytes, %lld with 30 %% of %llu", mixtures[p].arch, all, some,
                     (unsigned long long)need.all_bytes);
    }
}

/* A layer of experts that guesses further is left out where the model's own have no room, and counts as
 * nothing. */
static void nobody_guesses(void **state) {
    (void)state;
    char gguf[FIXTURE_PATH], path[FIXTURE_PATH];
    tn_pack_options po;
    tn_pack_defaults(&po);
    po.quick = true;
    po.calib_tokens = 256;
    fixture_model(gguf, "next.gguf", "tiny-qwen35moe+mtp", 5, TN_F16);
    fixture_package(path, "next.tern", gguf, &po);
    tern_options o = options(1);
    tern_error err;
    tern_estimate all, some;
    tn_experts_need need;
    o.session.draft = "sam,mtp";
    must(tern_engine_estimate(path, &o, &all, &err), &err);
    tern_engine *e[2];
    tern_session *s[2];
    e[0] = fixture_engine(path, &o);
    assert_non_null(e[0]->model->next);
    o.max_memory_bytes = memory_for(path, &o, 0.2, &need);
    must(tern_engine_estimate(path, &o, &some, &err), &err);
    e[1] = fixture_engine(path, &o);
    assert_null(e[1]->model->next);
    assert_non_null(e[1]->npu->on_demand);
    /* what it took is the experts' now */
    assert_true(some.weight_bytes + some.kv_bytes + some.work_bytes <= o.max_memory_bytes);
    assert_true(some.kv_bytes < all.kv_bytes && some.work_bytes < all.work_bytes);
    uint64_t freed = (all.kv_bytes - some.kv_bytes) + (all.work_bytes - some.work_bytes) + 200000;
    if (!(e[1]->experts_bytes > need.all_bytes / 5 + freed)) /* its weights are 219 KiB */
        fail_msg("%llu bytes for experts of %llu, %llu are free", (unsigned long long)e[1]->experts_bytes,
                 (unsigned long long)need.all_bytes, (unsigned long long)freed);
    for (int i = 0; i < 2; i++) {
        s[i] = fixture_session(e[i], N_CTX, "auto");
        assert_int_equal(!s[i]->drafting.mtp, i);
        must(tern_session_prefill(s[i], prompt, N_PROMPT, &err), &err);
    }
    assert_memory_equal(tern_session_logits(s[0]), tern_session_logits(s[1]), N_VOCAB * sizeof(float));
    tern_session_close(&s[1]);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.draft = "mtp";
    assert_int_equal(tern_session_open(e[1], &so, &s[1], &err), TERN_E_INVALID);
    tern_session_close(&s[0]);
    for (int i = 0; i < 2; i++) tern_engine_close(&e[i]);
}

/* ---- what goes --------------------------------------------------------------------------------------- */

typedef struct replay { /* counts that are halved as time goes by, all of them at every use */
    double count[64 * TN_MAX_EXPERTS];
    int32_t size[64 * TN_MAX_EXPERTS]; /* slots; 0: away */
    int32_t n, used, room;
    uint64_t n_reads;
} replay;

static void replay_take(replay *r, int32_t unit, int32_t size, double half) {
    if (unit >= r->n) r->n = unit + 1;
    if (!r->size[unit]) {
        while (r->room - r->used < size) {
            int32_t least = -1;
            for (int32_t i = 0; i < r->n; i++)
                if (r->size[i] && (least < 0 || r->count[i] < r->count[least])) least = i;
            r->used -= r->size[least];
            r->size[least] = 0;
        }
        r->used += size;
        r->n_reads++;
        r->size[unit] = size;
    }
    for (int32_t i = 0; i < r->n; i++) r->count[i] *= pow(0.5, 1 / half);
    r->count[unit] += 1;
}

/* Uses after which one counts half: those of 64 tokens. */
static double half_of(const tn_npu_model *m) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_sites; i++) n += m->sites[i].ops.n_experts > 0;
    return 64.0 * n * m->model->h.n_experts_used;
}

static const tn_npu_site *some_site(const tn_npu_model *m, tn_rng *rng) {
    for (;;) {
        const tn_npu_site *s = &m->sites[tn_rng_below(rng, (uint32_t)m->n_sites)];
        if (s->ops.n_experts) return s;
    }
}

static void used_least_goes_first(void **state) {
    (void)state;
    for (int p = 0; p < N_MIXTURES; p++) {
        tern_options o = options(1);
        tern_error err;
        tn_experts_need need;
        tn_on_demand_stats s;
        tn_rng rng = {3};
        o.max_memory_bytes = memory_for(packages[p], &o, 0.4, &need);
        tern_engine *e = fixture_engine(packages[p], &o);
        tn_on_demand *d = e->npu->on_demand;
        static replay r;
        tn_on_demand_stats_get(d, &s);
        memset(&r, 0, sizeof r);
        r.room = s.n_slots;
        const double half = half_of(e->npu);
        assert_true(e->npu->n_sites <= 64);
        uint64_t n = 0;
        for (int i = 0; i < 3000; i++) {
            const tn_npu_site *site = some_site(e->npu, &rng);
            /* some experts are chosen more often than others, and later others */
            int32_t x = (int32_t)tn_rng_below(&rng, 1 + tn_rng_below(&rng, (uint32_t)site->ops.n_experts));
            if (i > 1500) x = site->ops.n_experts - 1 - x;
            must(tn_on_demand_take(d, site, x, false, &err), &err);
            tn_on_demand_give(d, site, x);
            replay_take(&r, (int32_t)(site - e->npu->sites) * TN_MAX_EXPERTS + x, site->ops.n_ops, half);
            n++;
        }
        tn_on_demand_stats_get(d, &s);
        assert_int_equal(s.n_taken, n);
        assert_int_equal(s.n_reads, r.n_reads);
        assert_int_equal(s.n_hits, n - r.n_reads);
        assert_true(s.n_reads > 100 && s.n_hits > 100);
        tern_engine_close(&e);
    }
}

static void use(tn_on_demand *d, const tn_npu_site *s, int32_t expert) {
    tern_error err;
    must(tn_on_demand_take(d, s, expert, false, &err), &err);
    tn_on_demand_give(d, s, expert);
}

/* An expert that is rarely used and hinted at is there when it is taken, whatever had to go meanwhile; a guess that was
 * wrong does not keep it. */
static void what_is_hinted_at_stays(void **state) {
    (void)state;
    for (int right = 0; right < 2; right++) {
        tern_options o = options(1);
        tn_experts_need need;
        tn_on_demand_stats s, t;
        o.max_memory_bytes = memory_for(packages[0], &o, 0.4, &need);
        tern_engine *e = fixture_engine(packages[0], &o);
        tn_on_demand *d = e->npu->on_demand;
        const tn_npu_site *first = tn_npu_site_at(e->npu, 1, TN_SITE_EXPERTS);
        const int32_t rare = 0, other = 1;
        use(d, first, rare);
        use(d, first, other);
        use(d, first, other);
        tn_on_demand_predict(d, 1, &rare, 1);
        if (!right) tn_on_demand_chosen(d, 1, &other, 1);
        do { /* more than fits, each more often than that one */
            for (int32_t i = 0; i < e->npu->n_sites; i++) {
                const tn_npu_site *site = &e->npu->sites[i];
                for (int32_t x = 0; x < site->ops.n_experts; x++)
                    if (site->layer != 1) use(d, site, x), use(d, site, x);
            }
            tn_on_demand_stats_get(d, &s);
        } while (s.n_reads < (uint64_t)s.n_units);
        use(d, first, rare);
        tn_on_demand_stats_get(d, &t);
        assert_int_equal(t.n_hits - s.n_hits, right);
        tern_engine_close(&e);
    }
}

/* Passes through everything, as prompts make them: what fits stays, so each pass finds about that share. */
static void passes_keep_what_fits(void **state) {
    (void)state;
    tern_options o = options(1);
    tern_error err;
    tn_experts_need need;
    tn_on_demand_stats s, before = {0};
    o.max_memory_bytes = memory_for(packages[0], &o, 0.5, &need);
    tern_engine *e = fixture_engine(packages[0], &o);
    tn_on_demand *d = e->npu->on_demand;
    for (int pass = 0; pass < 4; pass++) {
        int32_t n_slots = 0; /* that everything would take */
        tn_on_demand_stats_get(d, &before);
        for (int32_t i = 0; i < e->npu->n_sites; i++) {
            const tn_npu_site *site = &e->npu->sites[i];
            n_slots += site->ops.n_experts * site->ops.n_ops;
            for (int32_t x = 0; x < site->ops.n_experts; x++) {
                must(tn_on_demand_take(d, site, x, true, &err), &err);
                tn_on_demand_give(d, site, x);
            }
        }
        tn_on_demand_stats_get(d, &s);
        double share = (double)(s.n_hits - before.n_hits) / s.n_units, fits = (double)s.n_slots / n_slots;
        print_message("pass %d: %.3f of the experts were there, %.3f fit\n", pass, share, fits);
        assert_true(fits > 0.3 && fits < 0.6);
        assert_true(pass ? share > 0.85 * fits && share < 1.15 * fits : share == 0);
    }
    tern_engine_close(&e);
}

/* ---- guesses ----------------------------------------------------------------------------------------- */

/* What attention and convolutions give becomes nothing: scales of their last product are 0. */
static void without_attention(tn_pkg_writer *w, const tn_pkg *p, const tn_pkg_section *s, const void *user) {
    (void)user;
    tern_error err;
    size_t n;
    const tn_pkg_record *r = tn_pkg_records(p, s, &n);
    char *bytes = malloc(s->size_bytes + 1);
    must(tn_pkg_read(p, s, bytes, &err), &err);
    if (!n) must(tn_pkg_put_section(w, (tn_pkg_kind)s->kind, s->layer, bytes, s->size_bytes, &err), &err);
    if (n) must(tn_pkg_begin(w, (tn_pkg_kind)s->kind, s->layer, &err), &err);
    for (size_t k = 0; k < n; k++) {
        if ((r[k].role == TN_W_O || r[k].role == TN_W_CONV_OUT) && r[k].part == TN_PKG_ROWS16)
            memset(bytes + r[k].off_bytes, 0, r[k].size_bytes / 2); /* sums lie after them */
        must(tn_pkg_add(w, &r[k], bytes + r[k].off_bytes, r[k].size_bytes, &err), &err);
    }
    if (n) must(tn_pkg_end(w, &err), &err);
    free(bytes);
}

/* Where nothing comes between a layer's beginning and its router, every choice after the first layer is
 * foreseen, by scores and by sigmoids with a bias. */
static void what_does_not_change_is_foreseen(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    fixture_file(path, "still.tern");
    for (int p = 0; p < N_MIXTURES; p += 2) { /* attention, and convolutions */
        tern_options o = options(2);
        tn_experts_need need;
        tn_on_demand_stats s;
        fixture_rewrite(packages[p], path, without_attention, NULL);
        o.max_memory_bytes = memory_for(path, &o, 0.5, &need);
        tern_engine *e = fixture_engine(path, &o);
        logits_of(e, N_PROMPT, got);
        tn_on_demand_stats_get(e->npu->on_demand, &s);
        int32_t n_layers = 0;
        for (int32_t l = 1; l < e->model->h.n_layers; l++) n_layers += tn_layer_has_experts(&e->model->h, l);
        assert_int_equal(s.n_predicted, N_STEPS * n_layers * e->model->h.n_experts_used);
        if (s.n_right != s.n_predicted)
            fail_msg("%s: %llu of %llu foreseen", mixtures[p].arch, (unsigned long long)s.n_right,
                     (unsigned long long)s.n_predicted);
        tern_engine_close(&e);
    }
    unlink(path);
}

/* What scores always differ by is known soon; that of one layer is no other's, and scores of a layer that was
 * not guessed tell nothing. */
static void scores_are_corrected(void **state) {
    (void)state;
    enum { N = 200 };
    tern_options o = options(1);
    tn_experts_need need;
    o.max_memory_bytes = memory_for(packages[0], &o, 0.5, &need);
    tern_engine *e = fixture_engine(packages[0], &o);
    tn_on_demand *d = e->npu->on_demand;
    const int32_t n = e->model->h.n_experts;
    float guess[TN_MAX_EXPERTS], is[TN_MAX_EXPERTS];
    for (int32_t i = 0; i <= N; i++) {
        for (int32_t layer = 1; layer <= 2; layer++) {
            for (int32_t x = 0; x < n; x++) {
                guess[x] = (float)((i * 7 + x * 3) % 5);
                is[x] = guess[x] + (float)x * (layer == 1 ? 0.25f : -0.5f);
            }
            tn_on_demand_correct(d, layer, guess);
            for (int32_t x = 0; x < n && i == N; x++) assert_true(fabsf(guess[x] - is[x]) < 1e-3f);
            for (int32_t x = 0; x < n && !i; x++)
                assert_true(guess[x] == (float)(x * 3 % 5)); /* nothing is known yet */
            tn_on_demand_learn(d, layer, is);
            memset(guess, 0x3f, sizeof guess);
            tn_on_demand_learn(d, 3 - layer, guess);
        }
    }
    tern_engine_close(&e);
}

/* Guesses that were wrong keep neither room nor the place of later ones: those that are right are still read
 * ahead. */
static void wrong_guesses_go(void **state) {
    (void)state;
    tern_options o = options(1);
    tern_error err;
    tn_experts_need need;
    tn_on_demand_stats s;
    o.max_memory_bytes = memory_for(packages[0], &o, 0.4, &need);
    tern_engine *e = fixture_engine(packages[0], &o);
    tn_on_demand *d = e->npu->on_demand;
    const int32_t n = e->model->h.n_experts, n_layers = e->model->h.n_layers;
    const int N = 300;
    for (int32_t i = 0; i < N; i++) {
        int32_t layer = 1 + i % (n_layers - 1), right = i * 5 % n, wrong = (right + 3) % n;
        int32_t guessed[2] = {right, wrong};
        const tn_npu_site *site = tn_npu_site_at(e->npu, layer, TN_SITE_EXPERTS);
        tn_on_demand_predict(d, layer, guessed, 2);
        tn_on_demand_chosen(d, layer, &right, 1);
        must(tn_on_demand_take(d, site, right, false, &err), &err);
        tn_on_demand_give(d, site, right);
        site = tn_npu_site_at(e->npu, layer, TN_SITE_EXPERTS_DOWN);
        must(tn_on_demand_take(d, site, right, false, &err), &err);
        tn_on_demand_give(d, site, right);
    }
    tn_on_demand_stats_get(d, &s);
    assert_int_equal(s.n_taken, 2 * N);
    assert_int_equal(s.n_hits + s.n_ahead, 2 * N);
    assert_int_equal(s.n_right, N);
    tern_engine_close(&e);
}

/* ---- files that change ------------------------------------------------------------------------------- */

/* Turns over every byte of the experts' weights. */
static void damage(const tn_npu_model *m, const char *path) {
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (int32_t i = 0; i < m->n_sites; i++) {
        const tn_npu_site *s = &m->sites[i];
        for (int32_t op = 0; s->ops.n_experts && op < s->ops.n_ops; op++) {
            uint64_t at = tn_pkg_find(m->pkg, TN_PKG_LAYER, s->layer)->off_bytes + s->tiles[op]->off_bytes,
                     n = s->tiles[op]->size_bytes;
            char *bytes = malloc(n);
            assert_int_equal(pread(fd, bytes, n, (off_t)at), n);
            for (uint64_t k = 0; k < n; k++) bytes[k] = (char)~bytes[k];
            assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
            free(bytes);
        }
    }
    close(fd);
}

static void fails_with(tern_engine *e, tern_status st, const char *told) {
    tern_session *s = fixture_session(e, N_CTX, "none");
    tern_error err = {0};
    assert_int_equal(tern_session_prefill(s, prompt, N_PROMPT, &err), st);
    if (!strstr(err.message, told)) fail_msg("'%s' says nothing of '%s'", err.message, told);
    assert_null(strchr(err.message, '\n'));
    tern_session_close(&s);
}

static void files_that_change(void **state) {
    (void)state;
    char path[FIXTURE_PATH], other[FIXTURE_PATH];
    struct stat sb;
    fixture_file(path, "changing.tern");
    fixture_file(other, "other.tern");
    for (int n_threads = 1; n_threads <= 4; n_threads += 3) {
        tern_options o = options(n_threads);
        tn_experts_need need;
        fixture_copy(packages[0], path);
        o.max_memory_bytes = memory_for(path, &o, 0.3, &need);
        tern_engine *e = fixture_engine(path, &o);
        logits_of(e, N_PROMPT, want);
        damage(e->npu, path); /* written over in place */
        fails_with(e, TERN_E_FORMAT, "is damaged (checksum differs)");
        fails_with(e, TERN_E_FORMAT, "expert");
        damage(e->npu, path); /* and back: nothing is remembered */
        logits_of(e, N_PROMPT, got);
        assert_memory_equal(want, got, sizeof got);
        fixture_copy(packages[1], other); /* another file under the name: the opened one is read on */
        assert_int_equal(rename(path, other), 0);
        fixture_copy(packages[1], path);
        logits_of(e, N_PROMPT, got);
        assert_memory_equal(want, got, sizeof got);
        assert_int_equal(stat(other, &sb), 0);
        assert_int_equal(truncate(other, sb.st_size / 8), 0);
        fails_with(e, TERN_E_FORMAT, "changing.tern");
        tern_engine_close(&e);
    }
}

/* Experts that are used where the file is mapped have no checksum that could be looked at again. */
static void mapped_files_that_change(void **state) {
    (void)state;
    char path[FIXTURE_PATH], other[FIXTURE_PATH];
    fixture_file(path, "mapped.tern");
    fixture_file(other, "moved.tern");
    for (int what = 0; what < 3; what++) {
        tern_options o = options(1);
        o.load = "mmap";
        fixture_copy(packages[0], path);
        const struct timespec long_ago[2] = {{.tv_sec = 1000000000},
                                             {.tv_sec = 1000000000}}; /* clocks of file systems are slow */
        assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
        tern_engine *e = fixture_engine(path, &o);
        logits_of(e, N_PROMPT, want);
        if (what == 0) { /* another file under the name */
            assert_int_equal(rename(path, other), 0);
            fixture_copy(packages[1], path);
            logits_of(e, N_PROMPT, got);
            assert_memory_equal(want, got, sizeof got);
            assert_int_equal(unlink(other), 0);
            logits_of(e, N_PROMPT, got);
            assert_memory_equal(want, got, sizeof got);
        } else if (what == 1) { /* written over in place */
            damage(e->npu, path);
            fails_with(e, TERN_E_IO, "was written to while it was in use");
        } else {
            assert_int_equal(truncate(path, 4096), 0);
            fails_with(e, TERN_E_IO, "while it was in use");
        }
        tern_engine_close(&e);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void drop_checksums(tn_pkg_writer *w, const tn_pkg *p, const tn_pkg_section *s, const void *user) {
    (void)user;
    tern_error err;
    size_t n;
    const tn_pkg_record *r = tn_pkg_records(p, s, &n);
    char *bytes = malloc(s->size_bytes + 1);
    must(tn_pkg_read(p, s, bytes, &err), &err);
    if (!n) must(tn_pkg_put_section(w, (tn_pkg_kind)s->kind, s->layer, bytes, s->size_bytes, &err), &err);
    if (n) must(tn_pkg_begin(w, (tn_pkg_kind)s->kind, s->layer, &err), &err);
    for (size_t k = 0; k < n; k++)
        if (r[k].part != TN_PKG_EXPERT_HASH)
            must(tn_pkg_add(w, &r[k], bytes + r[k].off_bytes, r[k].size_bytes, &err), &err);
    if (n) must(tn_pkg_end(w, &err), &err);
    free(bytes);
}

/* The package as those of before were: without the experts' checksums. */
static void without_checksums(const char *path, const char *out) {
    fixture_rewrite(path, out, drop_checksums, NULL);
}

static void refusals(void **state) {
    (void)state;
    char old[FIXTURE_PATH];
    tn_experts_need need;
    tern_error err;
    tern_engine *e;
    tern_options o = options(1);
    o.max_memory_bytes = memory_for(packages[0], &o, 0, &need); /* not even what a layer needs */
    assert_int_equal(tern_engine_open(packages[0], &o, &e, &err), TERN_E_LIMIT);
    assert_non_null(strstr(err.message, "max-memory allows"));
    o.max_memory_bytes += need.all_bytes / 2;
    o.npu_apart = true; /* takes whole jobs: all experts of a chunk at once */
    assert_int_equal(tern_engine_open(packages[0], &o, &e, &err), TERN_E_LIMIT);
    o.npu_apart = false;
    fixture_file(old, "old.tern");
    without_checksums(packages[0], old);
    assert_int_equal(tern_engine_open(old, &o, &e, &err), TERN_E_LIMIT);
    o.max_memory_bytes = 0;
    e = fixture_engine(old, &o); /* all in memory: as before */
    logits_of(e, N_PROMPT, got);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(nobody_guesses),
        cmocka_unit_test(within_the_budget),
        cmocka_unit_test(used_least_goes_first),
        cmocka_unit_test(what_is_hinted_at_stays),
        cmocka_unit_test(passes_keep_what_fits),
        cmocka_unit_test(what_does_not_change_is_foreseen),
        cmocka_unit_test(scores_are_corrected),
        cmocka_unit_test(wrong_guesses_go),
        cmocka_unit_test(files_that_change),
        cmocka_unit_test(mapped_files_that_change),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
