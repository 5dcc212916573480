#include "measure/tune.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/order.h"
#include "base/rng.h"
#include "base/status.h"
#include "session/session.h"
#include "engine/engine.h"
#include "npu/profile.h"
#include "quant/cache.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_REPEATS = 3, SAMPLE_BYTES = 256 << 20, N_PIECE = 512, MOST_OTHERS = 8 };
enum { I_DEFAULT = 3 }; /* where the default stands among the lengths of chunks */
_Static_assert(TN_CHUNK_MIN << I_DEFAULT == TN_CHUNK_DEFAULT, "another default of chunks");
#define WORTH 1.02
#define WORTH_CHUNK 1.05 /* by itself: another run shall seldom find another one */
#define SECONDS_CHUNK 20.0
#define SECONDS_THRESHOLD 40.0
#define WORTH_FORM 1.05
#define WORTH_READING 1.1 /* storage scatters more than products */

/* Reads at most n_most bytes of the package, twice by each method in turn. */
static tern_status best_read(const char *path, uint64_t n_bytes, uint64_t n_most, tn_tune_report *r,
                             tern_error *err) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    uint64_t n = n_bytes / 4096 * 4096;
    if (n > n_most) n = n_most;
    for (int i = 0; i < 2 * TN_TUNED_READS; i++) {
        int method = i % TN_TUNED_READS;
        tn_aio_options o;
        tn_aio_defaults(&o);
        (void)tn_aio_method_parse(tn_tuned_read_names[method], &o);
        double stays, t;
        TN_TRY(tn_aio_drop_cache(path, &stays, err));
        if (stays > 0.1) { /* others use the file: nothing to measure, nothing to gain */
            memset(r->read_gb_per_second, 0, sizeof r->read_gb_per_second);
            break;
        }
        TN_TRY(tn_aio_measure(&ctx, path, &o, 0, n, &t, err));
        if (t > 0 && (double)n * 1e-9 / t > r->read_gb_per_second[method])
            r->read_gb_per_second[method] = (double)n * 1e-9 / t;
    }
    for (r->i_read = 0; strcmp(tn_tuned_read_names[r->i_read], TN_TUNED_READ_DEFAULT); r->i_read++) {
    }
    double usual = r->read_gb_per_second[r->i_read], best = usual * WORTH_READING;
    for (int i = 0; i < TN_TUNED_READS; i++)
        if (r->read_gb_per_second[i] > best) best = r->read_gb_per_second[i], r->i_read = i;
    return TERN_OK;
}

/* What was measured last by other lanes, or on another machine, stays under its key; of MOST_OTHERS at most. */
static void keep_others(json_t **j, const char *key) {
    json_t *last = json_object_get(*j, "tuned"), *others = json_object_get(*j, "tuned_else");
    const char *before = json_string_value(json_object_get(last, "key"));
    others = json_is_object(others) && json_object_size(others) < MOST_OTHERS ? json_incref(others)
                                                                              : json_object();
    json_object_del(others, key);
    if (before && strcmp(before, key)) tn_json_set(&others, before, json_incref(last));
    tn_json_set(j, "tuned_else", others);
}

/* Reads the profile; one that is missing or damaged is an empty one. */
static tern_status read_profile(const tern_engine *e, json_t **j, tern_error *err) {
    if (tn_json_read(e->profile_path, 0, j, err) == TERN_E_MEMORY) return TERN_E_MEMORY;
    if (json_is_object(*j)) return TERN_OK;
    json_decref(*j);
    *j = json_object();
    return TERN_OK;
}

static tern_status save(const tern_engine *e, const tn_tune_report *r, tern_error *err) {
    json_t *j;
    TN_TRY(read_profile(e, &j, err));
    json_t *rows = json_object(), *speed = json_object();
    for (int s = 0; s < TN_N_SITES; s++)
        if (r->has_shape[s])
            tn_json_set(&rows, tn_site_name((tn_site)s), json_integer(r->tuned.rows_per_run[s]));
    for (int i = 0; i < TN_TUNE_LENGTHS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", r->chunk[i]);
        if (r->tokens_per_second[i] > 0) tn_json_set(&speed, name, tn_json_real(r->tokens_per_second[i]));
    }
    char key[40], print[24];
    tn_tuned_key(e->kern.cpu, e->n_lane_workers, key);
    snprintf(print, sizeof print, "%016" PRIx64, r->tuned.fingerprint);
    json_t *tuned =
        tn_json_pack("{s:s, s:s, s:i, s:o, s:i, s:o, s:i}", "key", key, "fingerprint", print, "chunk",
                     (int)r->tuned.chunk, "rows_per_run", rows, "prompt", (int)r->n_prompt,
                     "tokens_per_second", speed, "attention_from", (int)r->tuned.attn_threshold);
    if (r->tuned.attn_times.n_widths)
        tn_json_set(&tuned, "attention_times", tn_attn_times_json(&r->tuned.attn_times));
    if (*r->tuned.packed_form)
        tn_json_set(&tuned, "packed_form",
                    tn_json_string(r->tuned.packed_form, strlen(r->tuned.packed_form)));
    keep_others(&j, key);
    if (r->tuned.unfinished) tn_json_set(&tuned, "unfinished", json_true());
    tn_json_set(&j, "tuned", tuned);
    if (r->read_gb_per_second[r->i_read] > 0) {
        json_t *gb = json_object();
        for (int i = 0; i < TN_TUNED_READS; i++)
            tn_json_set(&gb, tn_tuned_read_names[i], tn_json_real(r->read_gb_per_second[i]));
        tn_json_set(
            &j, "read",
            tn_json_pack("{s:s, s:o}", "method", tn_tuned_read_names[r->i_read], "gb_per_second", gb));
    }
    TN_FAIL_IF(!j, err, TERN_E_MEMORY, "no memory to keep what was tuned");
    bool kept = tn_profile_put((tn_ctx *)&e->ctx, e->profile_path, j);
    json_decref(j);
    TN_FAIL_IF(!kept, err, TERN_E_IO, "%s: cannot be written, so nothing is kept of the tuning",
               e->profile_path);
    return TERN_OK;
}

/* Opens a session and makes n random tokens for it. The caller closes and frees both, whatever is
 * returned. */
static tern_status open_prompt(tern_engine *e, int32_t n, tern_session **s, int32_t **ids, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n;
    *ids = tn_alloc(&e->ctx, TN_MEM_OTHER, (size_t)n, sizeof **ids);
    TN_FAIL_IF(!*ids, err, TERN_E_MEMORY, "no memory for a prompt of %d tokens", n);
    tn_rng rng = {42};
    for (int32_t k = 0; k < n; k++) (*ids)[k] = (int32_t)tn_rng_below(&rng, (uint64_t)e->model->h.n_vocab);
    return tern_session_open(e, &so, s, err);
}

/* Measures the median tokens/s of a prefill of random tokens, after one that warms up. */
static tern_status speed_of(tern_engine *e, int32_t n, double *out, tern_error *err) {
    tern_session *s = NULL;
    int32_t *ids = NULL;
    tern_status st = open_prompt(e, n, &s, &ids, err);
    double t[1 + N_REPEATS];
    for (int i = 0; i < 1 + N_REPEATS && st == TERN_OK; i++) {
        tn_session_truncate(s, 0);
        double t0 = tn_now_s();
        st = tern_session_prefill(s, ids, (size_t)n, err);
        t[i] = tn_now_s() - t0;
    }
    if (st == TERN_OK) {
        qsort(t + 1, N_REPEATS, sizeof t[0], tn_by_double);
        *out = n / t[1 + N_REPEATS / 2];
    }
    tern_session_close(&s);
    tn_free(&e->ctx, ids);
    return st;
}

/* Finds the median of every type of step over warm prefills of whole chunks. The session keeps them in the
 * profile when it closes. */
static tern_status step_times(tern_engine *e, int32_t n_prompt, tern_error *err) {
    enum { N_TIMES = 7 };
    int32_t n = n_prompt / e->npu->chunk * e->npu->chunk;
    tern_session *s = NULL;
    int32_t *ids = NULL;
    tern_status st = open_prompt(e, n, &s, &ids, err);
    enum { PER_POS = TN_MAX_STEP_TYPES, REST, WALL, N_KINDS };
    double us[N_KINDS][N_TIMES];
    for (int i = -1; i < N_TIMES && st == TERN_OK; i++) {
        s->profile.measured = i < 0;                                          /* the first prefill warms up */
        s->profile.n_waves = i < 0 ? TN_PROFILE_WAVES : TN_PROFILE_WAVES - 1; /* one wave of each prefill */
        s->profile.later_waves = i >= 0;
        tn_session_truncate(s, 0);
        double t0 = tn_now_s();
        int64_t wave_ns = tn_pipeline_stats_get(tn_session_pipeline(s))->wall_ns;
        st = tern_session_prefill(s, ids, (size_t)n, err);
        if (i < 0) continue;
        for (int k = 0; k < TN_MAX_STEP_TYPES; k++) us[k][i] = s->profile.us[k];
        us[PER_POS][i] = s->profile.attn_us_per_pos;
        us[WALL][i] = (tn_now_s() - t0) * 1e6;
        us[REST][i] =
            fmax(0, us[WALL][i] -
                        (double)(tn_pipeline_stats_get(tn_session_pipeline(s))->wall_ns - wave_ns) * 1e-3);
    }
    if (st == TERN_OK) {
        for (int k = 0; k < N_KINDS; k++) qsort(us[k], N_TIMES, sizeof us[k][0], tn_by_double);
        for (int k = 0; k < TN_MAX_STEP_TYPES; k++) s->profile.us[k] = us[k][N_TIMES / 2];
        s->profile.attn_us_per_pos = us[PER_POS][N_TIMES / 2], s->profile.rest_us = us[REST][N_TIMES / 2];
        s->profile.whole_us = us[WALL][N_TIMES / 2], s->profile.whole_tok = n;
    }
    tern_session_close(&s);
    tn_free(&e->ctx, ids);
    return st;
}

static tern_status best_splits(const tern_engine *e, tn_tune_report *r, tern_error *err) {
    const tn_program *p = &e->model->program;
    for (int32_t i = p->n_sites; i-- > 0;) { /* the first of a kind speaks for all */
        const tn_npu_site *site = &e->npu->sites[i];
        tn_site s = p->sites[i].kind;
        if (!tn_site_in_layers(s)) continue;
        bool first = true;
        for (int32_t j = 0; j < i; j++) first = first && p->sites[j].kind != s;
        if (!first) continue;
        if (site->ops.n_experts) continue; /* a chunk's rows for one are as many as choose it */
        tn_npu_graph_desc d = *tn_npu_graph_get(site->graphs[TN_FORM_CHUNK]);
        d.rows_per_run = 0;
        TN_TRY(tn_npu_best_split(tn_npu_site_device(e->npu, site), &d, NULL, NULL, err));
        r->tuned.rows_per_run[s] = d.rows_per_run == d.m ? 0 : d.rows_per_run;
        r->has_shape[s] = true;
    }
    return TERN_OK;
}

/* Finds from where on sparse attention pays. Both kinds' cost of a row grows with its position, and sparse
 * attention's begins higher. So where it breaks even over a whole prompt it has been paying since half of
 * it. */
static tern_status best_threshold(const char *path, const tern_options *opt, tn_tune_report *r,
                                  tern_error *err) {
    r->tuned.attn_threshold = TN_TUNE_NEVER;
    for (int i = TN_TUNE_ATTN - 1; i >= 0; i--) {
        r->attn_length[i] = r->n_prompt >> (TN_TUNE_ATTN - 1 - i);
        for (int sparse = 0; sparse < 2; sparse++) {
            tern_options o = *opt;
            tern_engine *e = NULL;
            o.chunk = r->tuned.chunk;
            o.attention = sparse ? "shadow" : "full";
            o.attention_threshold = 1;
            TN_TRY(tern_engine_open(path, &o, &e, err));
            tern_status st = speed_of(e, r->attn_length[i], &r->attn_speed[i][sparse], err);
            tern_engine_close(&e);
            TN_TRY(st);
        }
        if (r->attn_speed[i][1] < r->attn_speed[i][0]) break;
        r->tuned.attn_threshold = r->attn_length[i] / 2;
    }
    return TERN_OK;
}

static tern_status open_with(const char *path, const tern_options *opt, int32_t chunk, tern_engine **e,
                             tern_error *err) {
    tern_options o = *opt;
    o.chunk = chunk;
    TN_TRY(tern_engine_open(path, &o, e, err));
    if ((*e)->npu) return TERN_OK;
    tern_engine_close(e);
    return tn_fail(err, TERN_E_INVALID, "%s: only packages are tuned", path);
}

/* Measures tokens/s of a prefill in chunks of a given length. */
static tern_status speed_with(const char *path, const tern_options *opt, int32_t chunk, int32_t n_prompt,
                              double *out, tern_error *err) {
    tern_engine *e = NULL;
    TN_TRY(open_with(path, opt, chunk, &e, err));
    tern_status st = speed_of(e, n_prompt, out, err);
    tern_engine_close(&e);
    return st;
}

static tern_status best_chunk(const char *path, const tern_options *opt, tn_tune_report *r, tern_error *err) {
    double best = 0;
    for (int i = 0; i < TN_TUNE_LENGTHS; i++) {
        r->chunk[i] = TN_CHUNK_MIN << i;
        if (r->chunk[i] > r->n_prompt) continue;
        TN_TRY(speed_with(path, opt, r->chunk[i], r->n_prompt, &r->tokens_per_second[i], err));
        if (r->tokens_per_second[i] <= best * WORTH) continue; /* longer chunks take more memory */
        best = r->tokens_per_second[i];
        r->tuned.chunk = r->chunk[i];
    }
    return TERN_OK;
}

static bool may_attend_sparsely(const tern_engine *e) {
    return e->npu->attn_scale_q && !tn_sparse_attn_why_not(&e->model->h);
}

/* What an open engine tells of its own package: shapes of the products, what sparse attention's stages take.
 */
/* Decodes with every form of one row's products by turns and keeps the fastest. Each has its least time: what else
 * the machine does only takes away. */
static tern_status best_form(tern_engine *e, tn_tune_report *r, tern_error *err) {
    enum { ROUNDS = 4, TOKENS = 4 };
    const tn_packed_form *forms = r->forms = tn_packed_forms(e->kern.cpu);
    tern_session *s = NULL;
    int32_t *ids = NULL;
    double least[TN_PACKED_FORMS_MOST] = {0};
    int best = 0;
    *r->tuned.packed_form = 0;
    if (!forms || !e->npu->packed) return TERN_OK;
    tern_status st = open_prompt(e, 2 * TOKENS, &s, &ids, err);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; forms[i].name; i++) {
            (void)tn_packed_form_use(&e->kern, forms[i].name);
            if (st == TERN_OK) tn_session_truncate(s, 0);
            for (int t = 0; t <= TOKENS && st == TERN_OK; t++) { /* the first warms up */
                double t0 = tn_now_s();
                st = tern_session_prefill(s, ids + t, 1, err);
                double took = tn_now_s() - t0;
                if (t && (least[i] == 0 || took < least[i])) least[i] = took;
            }
        }
    }
    (void)tn_packed_form_use(&e->kern, forms[0].name);
    for (int i = 0; forms[i].name && st == TERN_OK; i++) {
        r->form_speed[i] = 1 / least[i];
        if (least[i] * (best ? 1 : WORTH_FORM) < least[best]) best = i;
    }
    if (best) snprintf(r->tuned.packed_form, sizeof r->tuned.packed_form, "%s", forms[best].name);
    tern_session_close(&s);
    tn_free(&e->ctx, ids);
    return st;
}

static tern_status best_for_engine(tern_engine *e, tn_tune_report *r, tern_error *err) {
    r->tuned.fingerprint = tn_model_fingerprint(e->model);
    TN_TRY(best_splits(e, r, err));
    TN_TRY(best_form(e, r, err));
    if (!may_attend_sparsely(e)) return TERN_OK;
    tern_status st = tn_sparse_attn_measure(&e->ctx, &e->kern, e->npu->dev, &e->model->h, &e->attention,
                                            &r->tuned.attn_times, err);
    if (st != TERN_E_UNSUPPORTED && st != TERN_E_LIMIT) return st;
    r->tuned.attn_times = (tn_attn_times){0}; /* heads that cannot be a pipeline have no times */
    return TERN_OK;
}

/* Times every stage with the shapes that were just found. */
static tern_status time_stages(const char *path, const tern_options *opt, const tn_tune_report *r,
                               tern_error *err) {
    tern_engine *e = NULL;
    TN_TRY(open_with(path, opt, r->tuned.chunk, &e, err));
    tern_status st = step_times(e, r->n_prompt, err);
    tern_engine_close(&e);
    return st;
}

tern_status tn_tune(const char *path, const tern_options *opt, int32_t n_prompt, tn_tune_report *out,
                    tern_error *err) {
    TN_FAIL_IF(n_prompt < TN_CHUNK_MIN || n_prompt > 1 << 20, err, TERN_E_INVALID,
               "tuning on a prompt of %d tokens: want %d to %d", n_prompt, TN_CHUNK_MIN, 1 << 20);
    *out = (tn_tune_report){.n_prompt = n_prompt};
    tern_engine *e = NULL;
    TN_TRY(best_chunk(path, opt, out, err));
    TN_TRY(open_with(path, opt, out->tuned.chunk, &e, err));
    tern_status st = best_for_engine(e, out, err);
    if (st == TERN_OK) st = save(e, out, err); /* so that they are planned by in what follows */
    if (st == TERN_OK && may_attend_sparsely(e)) st = best_threshold(path, opt, out, err);
    if (st == TERN_OK) st = best_read(path, tn_pkg_file_bytes(e->npu->pkg), 1u << 30, out, err);
    if (st == TERN_OK) st = save(e, out, err);
    tern_engine_close(&e);
    TN_TRY(st);
    return time_stages(path, opt, out, err);
}

static bool is_quantised_file(const tern_engine *e) {
    return !e->npu && e->profile_path && e->model->scheme == TN_FLOAT_BLOCKS;
}

static bool known(const tern_engine *e) {
    tn_tuned t;
    if (is_quantised_file(e)) return tn_tuned_load(e->profile_path, e->kern.cpu, e->n_lane_workers, &t);
    return e->npu && e->npu->tuned.chunk && !e->npu->tuned.unfinished;
}

/* Opens the file for who measures for it. Returns a descriptor, whose closing lets others measure, or -1 while
 * another process measures. */
static int lock(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool tn_tune_wanted(const tern_engine *e, const char *path) {
    tern_options usual;
    int32_t n_lane_workers[TN_N_LANES];
    struct stat st;
    tn_options_defaults(&usual);
    tn_engine_lanes(&usual, tn_engine_threads(&usual), n_lane_workers);
    bool wanted = e->profile_path && !known(e) &&
                  !memcmp(n_lane_workers, e->n_lane_workers, sizeof n_lane_workers) &&
                  (lstat(e->profile_path, &st) || (S_ISREG(st.st_mode) && !access(e->profile_path, W_OK)));
    int fd = wanted ? lock(path) : -1;
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Keeps another chunk length than the default where that is clearly faster. */
static tern_status chunk_by_itself(const char *path, const tern_options *opt, tn_tune_report *r,
                                   tern_error *err) {
    enum { N_TRIED = 3 };
    static const int tried[N_TRIED] = {I_DEFAULT, I_DEFAULT - 1, I_DEFAULT + 1};
    double best = 0;
    for (int k = 0; k < N_TRIED; k++) {
        int i = tried[k];
        r->chunk[i] = TN_CHUNK_MIN << i;
        TN_TRY(speed_with(path, opt, r->chunk[i], r->n_prompt, &r->tokens_per_second[i], err));
        double speed = r->tokens_per_second[i];
        if (!k && (N_TRIED - 1) * (1 + N_REPEATS) * r->n_prompt > SECONDS_CHUNK * speed) break;
        if (k && speed <= best * WORTH_CHUNK) continue;
        best = k ? speed / WORTH_CHUNK : speed;
        r->tuned.chunk = r->chunk[i];
    }
    if (r->tuned.chunk == TN_CHUNK_DEFAULT) return TERN_OK;
    double again[2]; /* other work on the machine is seldom the same twice */
    TN_TRY(speed_with(path, opt, TN_CHUNK_DEFAULT, r->n_prompt, &again[0], err));
    TN_TRY(speed_with(path, opt, r->tuned.chunk, r->n_prompt, &again[1], err));
    if (again[1] <= again[0] * WORTH_CHUNK) r->tuned.chunk = TN_CHUNK_DEFAULT;
    return TERN_OK;
}

/* Times every piece of a prompt of n tokens, the least of two tries: the processor's time, because a machine that is
 * busy with other work would choose by chance, and what it chose is kept. */
static tern_status piece_times(tern_engine *e, int32_t n, int32_t n_piece, double *us, tern_error *err) {
    tern_session *s = NULL;
    int32_t *ids = NULL;
    tern_status st = open_prompt(e, n, &s, &ids, err);
    for (int try = 0; try < 2; try++) {
        if (st == TERN_OK) tn_session_truncate(s, 0);
        for (int32_t at = 0; at < n && st == TERN_OK; at += n_piece) {
            double t0 = tn_cpu_s(), *least = &us[at / n_piece];
            st = tern_session_prefill(s, ids + at, (size_t)n_piece, err);
            double t = (tn_cpu_s() - t0) * 1e6;
            if (*least == 0 || t < *least) *least = t;
        }
    }
    tern_session_close(&s);
    tn_free(&e->ctx, ids);
    return st;
}

int32_t tn_tune_begins(const double *const us[2], int32_t n_pieces, int32_t n_piece) {
    int32_t first = n_pieces;
    while (first > 0 && us[1][first - 1] * WORTH < us[0][first - 1]) first--;
    double from = (double)(first + 1) * n_piece;
    if (first == n_pieces) { /* the line of least squares through what a piece gains */
        double x = 0, y = 0, xx = 0, xy = 0, n = n_pieces;
        for (int32_t i = 0; i < n_pieces; i++) {
            double gain = us[0][i] - us[1][i] * WORTH;
            x += i, y += gain, xx += (double)i * i, xy += i * gain;
        }
        double slope = n * xy - x * y, all = n * xx - x * x;
        if (slope <= 0 || all <= 0) return TN_TUNE_NEVER;
        from = (1 + (x - all / slope * y) / n) * n_piece;
    }
    if (from > TN_TUNE_FARTHEST) return TN_TUNE_NEVER;
    int32_t power = TN_CHUNK_MIN;
    while (power < from) power *= 2;
    return power;
}

/* Finds where sparse attention begins from a prompt's pieces, both kinds by turns. Where that takes too long
 * nothing is found. */
static tern_status threshold_by_itself(const char *path, const tern_options *opt, tn_tune_report *r,
                                       tern_error *err) {
    enum { N_PIECES = 4 };
    double us[2][2][N_PIECES] = {{{0}}}, speed = r->tokens_per_second[I_DEFAULT];
    int32_t n = N_PIECES * N_PIECE, n_rounds = 2;
    while (n_rounds && 4.0 * n_rounds * n > SECONDS_THRESHOLD * speed) n_rounds--;
    if (!n_rounds) return TERN_OK;
    for (int k = 0; k < 2 * n_rounds; k++) {
        tern_options o = *opt;
        tern_engine *e = NULL;
        o.chunk = r->tuned.chunk;
        o.attention = k % 2 ? "shadow" : "full";
        o.attention_threshold = 1;
        TN_TRY(tern_engine_open(path, &o, &e, err));
        tern_status st = piece_times(e, n, N_PIECE, us[k / 2][k % 2], err);
        tern_engine_close(&e);
        if (k % 2 && (st == TERN_E_UNSUPPORTED || st == TERN_E_LIMIT)) return TERN_OK; /* only in full */
        TN_TRY(st);
    }
    int32_t least = INT32_MAX, most = 0;
    for (int i = 0; i < n_rounds; i++) {
        const double *const both[2] = {us[i][0], us[i][1]};
        int32_t from = tn_tune_begins(both, N_PIECES, N_PIECE);
        if (from < least) least = from;
        if (from > most) most = from;
    }
    /* Rounds that differ by more than one power of two tell of other work on the machine: as usual then. */
    if (most <= 2 * least) r->tuned.attn_threshold = most;
    return TERN_OK;
}

/* One engine is open at a time: measuring takes the memory of answering and what empties the caches between two
 * products (npu/profile.h). */
static tern_status measure_all(const char *path, const tern_options *opt, tern_error *err) {
    tn_tune_report r = {.n_prompt = 2 * TN_CHUNK_DEFAULT, .tuned.chunk = TN_CHUNK_DEFAULT};
    tern_engine *e = NULL;
    r.tuned.unfinished = true;
    TN_TRY(chunk_by_itself(path, opt, &r, err));
    TN_TRY(open_with(path, opt, r.tuned.chunk, &e, err));
    tern_status st = best_for_engine(e, &r, err);
    if (st == TERN_OK) st = save(e, &r, err); /* so that heads are planned by it in what follows */
    bool may_be_sparse = may_attend_sparsely(e);
    tern_engine_close(&e);
    if (st == TERN_OK && may_be_sparse) st = threshold_by_itself(path, opt, &r, err);
    TN_TRY(st);
    TN_TRY(open_with(path, opt, r.tuned.chunk, &e, err));
    st = best_read(path, tn_pkg_file_bytes(e->npu->pkg), SAMPLE_BYTES, &r, err);
    r.tuned.unfinished = false;
    if (st == TERN_OK) st = save(e, &r, err);
    tern_engine_close(&e);
    TN_TRY(st);
    return time_stages(path, opt, &r, err);
}

/* A quantised file has no graphs: where sparse attention begins, and how its storage is read fastest. */
static tern_status measure_file(const char *path, const tern_options *opt, tern_error *err) {
    enum { SHORT = 128 }; /* tokens that tell how long the rest would take */
    tn_tune_report r = {.n_prompt = SHORT, .tuned.chunk = TN_CHUNK_DEFAULT};
    tern_engine *e = NULL;
    struct stat st_file;
    TN_TRY(tern_engine_open(path, opt, &e, err));
    tern_status st = speed_of(e, SHORT, &r.tokens_per_second[I_DEFAULT], err);
    const bool may_be_sparse = tn_engine_heads(e) != NULL;
    tern_engine_close(&e); /* one is open at a time */
    if (st == TERN_OK && may_be_sparse) st = threshold_by_itself(path, opt, &r, err);
    if (st == TERN_OK && !stat(path, &st_file) && S_ISREG(st_file.st_mode)) {
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const bool was_there = fd >= 0 && tn_aio_cached_share(fd) > 0.5;
        st = best_read(path, (uint64_t)st_file.st_size, SAMPLE_BYTES, &r, err);
        if (was_there)
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED); /* the next start finds it there again */
        if (fd >= 0) close(fd);
    }
    TN_TRY(st);
    TN_TRY(tern_engine_open(path, opt, &e, err));
    st = save(e, &r, err);
    tern_engine_close(&e);
    return st;
}

/* Writes the profile as it is, so that a place that takes none costs no measuring. */
static tern_status writable(const tern_engine *e, tern_error *err) {
    json_t *j;
    TN_TRY(read_profile(e, &j, err));
    bool ok = j && tn_profile_put((tn_ctx *)&e->ctx, e->profile_path, j);
    json_decref(j);
    TN_FAIL_IF(!ok, err, TERN_E_IO, "%s: cannot be written, so nothing is measured", e->profile_path);
    return TERN_OK;
}

tern_status tn_tune_by_itself(const char *path, const tern_options *opt, bool *busy, tern_error *err) {
    tern_engine *e = NULL;
    int fd = lock(path);
    *busy = fd < 0 && !access(path, R_OK);
    if (*busy) return TERN_OK;
    tern_status st = tern_engine_open(path, opt, &e, err);
    const bool is_file = st == TERN_OK && is_quantised_file(e);
    if (st == TERN_OK && !e->npu && !is_file)
        st = tn_fail(err, TERN_E_INVALID, "%s: only packages and quantised files are measured for", path);
    bool unknown = st == TERN_OK && !known(e);
    char folder[TN_CACHE_PATH];
    if (unknown && is_file) st = tn_cache_profiles(folder, true, err);
    if (unknown && st == TERN_OK) st = writable(e, err);
    tern_engine_close(&e);
    if (unknown && st == TERN_OK) st = is_file ? measure_file(path, opt, err) : measure_all(path, opt, err);
    char profile[4096];
    if (!is_file && access(path, F_OK) && tn_tuned_path(path, profile, sizeof profile))
        (void)unlink(profile); /* somebody removed the package */
    if (fd >= 0) close(fd);
    return st;
}
