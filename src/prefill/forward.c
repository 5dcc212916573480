/* One forward of the pipeline: chunks of the prompt as a wave, or few rows step by step; the logits of some
 * rows. */
#include "base/clock.h"
#include "base/status.h"
#include "model/axes.h"
#include "model/forward.h"
#include "prefill/impl.h"

#include <assert.h>
#include <string.h>

_Static_assert((int)TN_TREE_MAX <= (int)TN_DECODE_M, "a draft tree is evaluated in the decode form");

static void begin_jobs(tn_pipeline *p, int32_t i, int32_t n) {
    for (int32_t s = 0; s < p->m->n_sites; s++) {
        const tn_npu_site *site = &p->m->sites[s];
        if (site->ops.n_experts) continue;
        tn_npu_job *job = tn_job_of(p, i, s);
        bool own = i && p->call.form == TN_FORM_CHUNK && site->chunk_graphs[i - 1];
        job->graph = own ? site->chunk_graphs[i - 1] : site->graphs[p->call.form];
        job->n_rows = n;
    }
}

/* Rows at .. end - 1 of the text. *next: of the text before them, then after them. */
static void begin_chunk(tn_pipeline *p, int32_t i, const tn_pipeline_text *t, int32_t at, int32_t end,
                        int32_t *next) {
    chunk *c = &p->chunks[i];
    const int32_t n = end - at, pos0 = t->pos0 + at;
    c->f.ids = t->ids + at;
    c->r.n_rows = n;
    for (int32_t r = 0; r < n; r++) c->pos[r] = c->slot[r] = pos0 + r;
    c->r.axes = tn_axes_of(c->r.h, c->r.extra, c->f.ids, n, NULL, pos0, *next, c->axes) ? c->axes : NULL;
    for (int32_t r = 0; r < n; r++) *next = tn_axes_next(c->r.extra, c->f.ids[r], *next);
    c->r.picture = tn_rows_pictures(c->r.extra, c->f.ids, n, pos0, c->picture) ? c->picture : NULL;
    tn_rows_rope_table(&c->r, t->rope_long);
    begin_jobs(p, i, n);
}

/* Places of the texts' rows in buffers whose width differs between layers. */
static void slice_texts(tn_pipeline *p, int32_t layer) {
    for (int32_t i = 0; i < p->call.n_texts; i++) {
        text *t = &p->call.texts[i];
        const int32_t *ids = t->f.ids;
        tn_frame_slice(&p->chunks[0].f, &t->r, t->row0, layer, &t->f);
        t->f.ids = ids;
    }
}

/* The rows of all texts are consecutive in chunk 0. */
static int32_t begin_texts(tn_pipeline *p, const tn_pipeline_text *texts, int32_t n_texts) {
    chunk *c = &p->chunks[0];
    int32_t row0 = 0;
    c->f.ids = NULL; /* every text has its own */
    for (int32_t i = 0; i < n_texts; i++) {
        const tn_pipeline_text *from = &texts[i];
        const tn_tree *tree = from->tree;
        text *t = &p->call.texts[i];
        *t = (text){.r = from->p->chunks[0].r, .sparse = from->p->sparse, .row0 = row0};
        t->r.n_rows = from->n;
        t->r.pos = c->pos + row0;
        t->r.slot = c->slot + row0;
        t->r.tree_base = tree ? from->pos0 : -1;
        t->r.tree_mask = tree ? tree->mask : NULL;
        t->r.n_tree_words = tree ? 1 : 0;
        for (int32_t k = 0; k < from->n; k++) {
            c->pos[row0 + k] = from->pos0 + (tree ? tree->depth[k] : k);
            c->slot[row0 + k] = from->pos0 + k;
        }
        tn_row_axes *axes = tn_has_axes(t->r.h) ? c->axes + row0 : NULL;
        t->r.axes = tn_axes_of(t->r.h, t->r.extra, from->ids, from->n, tree, from->pos0, from->next, axes)
                        ? axes
                        : NULL;
        tn_row_picture *picture = c->picture + row0;
        t->r.picture =
            !tree && tn_rows_pictures(t->r.extra, from->ids, from->n, from->pos0, picture) ? picture : NULL;
        tn_frame_slice(&c->f, &t->r, row0, -1, &t->f);
        t->f.ids = from->ids;
        tn_rows_rope_table(&t->r, from->rope_long);
        if (t->sparse) tn_sparse_attn_rewind(t->sparse, from->pos0);
        row0 += from->n;
    }
    p->call.n_texts = n_texts;
    c->r.n_rows = row0;
    begin_jobs(p, 0, row0);
    return row0;
}

/* ---- few rows -------------------------------------------------------------------------------------- */

enum { MAX_THREADS = 64 };

typedef struct small_step {
    tn_pipeline *p;
    int32_t step;
    const tn_op *op;  /* its first */
    const text *text; /* text that attends alone, or NULL for all */
    int32_t n_parts, rows_per_part, round;
    tern_status status[MAX_THREADS];
    tern_error errors[MAX_THREADS];
} small_step;

static float *scratch_of(const tn_pipeline *p, int i_thread) {
    return p->scratch + (size_t)i_thread * p->scratch_stride;
}

/* Attention of few rows, by text and group of heads. */
static void small_attention(void *arg, int i_item, int i_thread) {
    small_step *s = arg;
    int32_t n_groups = tn_rows_groups(&s->p->model->h, s->op->layer);
    const text *t = s->text ? s->text : &s->p->call.texts[i_item / n_groups];
    tn_rows_attention_group(&t->r, s->op->layer, tn_op_sinks(s->op, &t->f), i_item % n_groups,
                            t->f.buf[s->op->in], t->f.buf[s->op->out], 0, t->r.n_rows,
                            scratch_of(s->p, i_thread));
}

/* Plans the same for sparse rows, by KV head and row. */
static void small_plan(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    small_step *s = arg;
    tn_sparse_decode_plan(s->text->sparse, &s->text->r, s->op->layer, i_item, s->round);
}

static void small_sparse(void *arg, int i_item, int i_thread) {
    small_step *s = arg;
    tn_pipeline *p = s->p;
    const text *t = s->text;
    int32_t n = t->r.n_rows, kv_head = i_item / n, row = i_item % n;
    if (n == 1) small_plan(s, kv_head, i_thread);
    tern_status rc = tn_sparse_decode_row(t->sparse, &t->r, s->op->layer, kv_head, row, s->round,
                                          t->f.buf[s->op->in], t->f.buf[s->op->out], scratch_of(p, i_thread),
                                          i_thread, &s->errors[i_thread % MAX_THREADS]);
    if (rc != TERN_OK) s->status[i_thread % MAX_THREADS] = rc;
}

/* Where all texts attend in full they go together; otherwise each sparse one goes alone, in its own
 * rounds. */
static void attend_small(tn_pipeline *p, small_step *s) {
    int32_t n_rounds[TN_MAX_TEXTS], any = 0, n_kv = s->op->attend.n_kv_heads,
                                    n_groups = tn_rows_groups(&p->model->h, s->op->layer);
    for (int32_t i = 0; i < p->call.n_texts; i++) {
        const text *t = &p->call.texts[i];
        const bool may = t->sparse && !t->r.picture; /* a selection knows only what came before */
        any += n_rounds[i] = may ? tn_sparse_decode_rounds(t->sparse, &t->r, s->op->layer) : 0;
    }
    s->text = NULL;
    if (!any) tn_pool_for(p->pool, n_groups * p->call.n_texts, small_attention, s);
    for (int32_t i = 0; any && i < p->call.n_texts; i++) {
        int32_t n = p->call.texts[i].r.n_rows;
        s->text = &p->call.texts[i];
        if (!n_rounds[i]) tn_pool_for(p->pool, n_groups, small_attention, s);
        for (s->round = 0; s->round < n_rounds[i]; s->round++) {
            if (n > 1) tn_pool_for(p->pool, n_kv, small_plan, s);
            tn_pool_for(p->pool, n_kv * n, small_sparse, s);
        }
    }
}

static void small_behind_attention(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    small_step *s = arg;
    chunk *c = &s->p->chunks[0];
    int32_t row0 = i_item * s->rows_per_part,
            row1 = row0 + s->rows_per_part < c->r.n_rows ? row0 + s->rows_per_part : c->r.n_rows;
    tn_step_behind_attention(s->p, c, s->step, row0, row1);
}

static void small_item(void *arg, int i_item, int i_thread) {
    small_step *s = arg;
    tern_status rc = tn_step_run(s->p, 0, s->step, i_item, s->n_parts, i_thread, false,
                                 &s->errors[i_thread % MAX_THREADS]);
    if (rc != TERN_OK) s->status[i_thread % MAX_THREADS] = rc;
}

/* Records a step on the session's own track, because the pool's threads are not lanes. */
static void note_small(tn_timeline *timeline, const tn_step *step, int32_t n_parts, int64_t start_ns) {
    tn_event e = {.start_ns = start_ns,
                  .end_ns = tn_now_ns(),
                  .name = step->name,
                  .run = -1,
                  .task = -1,
                  .chunk = -1,
                  .layer = step->layer,
                  .n_parts = n_parts,
                  .lane = step->lane};
    tn_timeline_add(timeline, tn_timeline_n_workers(timeline), &e);
}

static tern_status run_small(small_step *s, int32_t n, tn_timeline *timeline, tern_error *err) {
    tn_pipeline *p = s->p;
    const tn_step *step = &p->steps.at[s->step];
    s->op = p->steps.work[s->step].ops;
    s->n_parts = tn_step_parts(p, s->step, step->kind, n);
    int64_t start_ns = timeline ? tn_now_ns() : 0;
    if (step->kind == TN_STEP_ATTENTION) {
        attend_small(p, s);
        tn_pool_for(p->pool, s->n_parts, small_behind_attention, s);
    } else {
        tn_pool_for(p->pool, s->n_parts, small_item, s);
    }
    if (timeline) note_small(timeline, step, s->n_parts, start_ns);
    for (int t = 0; t < MAX_THREADS; t++) {
        if (s->status[t] == TERN_OK) continue;
        if (err) *err = s->errors[t];
        return s->status[t];
    }
    return TERN_OK;
}

/* Computes few rows step by step over the pool, without scheduling. */
static tern_status forward_small(tn_pipeline *p, int32_t n, const atomic_bool *cancel, tn_timeline *timeline,
                                 tern_error *err) {
    int32_t n_threads = tn_pool_size(p->pool), layer = -1;
    p->call.small_rows = n < TN_FEW_ROWS ? n : (n + n_threads - 1) / n_threads;
    small_step s = {.p = p, .rows_per_part = p->call.small_rows};
    for (s.step = 0; s.step < p->steps.n; s.step++) {
        const tn_step *step = &p->steps.at[s.step];
        if (step->kind == TN_STEP_PLAN) continue;
        if (step->layer != layer) {
            layer = step->layer;
            slice_texts(p, layer);
            TN_FAIL_IF(cancel && atomic_load_explicit(cancel, memory_order_relaxed), err, TERN_E_CANCELLED,
                       "cancelled in layer %d", layer);
            tn_pause_here(tn_pipeline_pause_now(p));
            if (p->call.loading)
                TN_TRY(tn_loader_finish(p->m->loader, p->pool, layer,
                                        err)); /* later layers are being read meanwhile */
        }
        TN_TRY(run_small(&s, n, timeline, err));
    }
    return tn_npu_model_table_ok(p->m, err);
}

/* ---- waves ----------------------------------------------------------------------------------------- */

static void note_stats(tn_pipeline *p, int32_t n_chunks, const tn_run_stats *r) {
    enum { SUBGRAPHS = 6, STATIC_SUBGRAPHS = 5 }; /* per layer, as the paper counts: attention is dynamic */
    tn_pipeline_stats *s = &p->stats;
    s->wall_ns += r->wall_ns;
    s->n_decisions += r->n_decisions;
    s->decide_ns += r->decide_ns;
    s->n_stolen += r->n_stolen;
    s->n_tasks += r->counts.n_tasks;
    s->n_ahead += r->counts.n_ahead;
    s->n_beside += r->counts.n_beside;
    if (r->decide_max_ns > s->decide_max_ns) s->decide_max_ns = r->decide_max_ns;
    for (int l = 0; l < TN_N_LANES; l++) s->busy_ns[l] += r->busy_ns[l];
    s->n_subgraphs = n_chunks * p->m->n_layers * SUBGRAPHS;
    s->n_shared = p->m->no_chunk_sharing ? 0 : n_chunks * p->m->n_layers * STATIC_SUBGRAPHS;
    s->graph_bytes_unshared = p->m->prefill_graph_bytes * (uint64_t)n_chunks;
    s->graph_bytes =
        p->m->no_chunk_sharing ? p->m->prefill_graph_bytes * TN_WAVE_CHUNKS : p->m->prefill_graph_bytes;
}

/* Chooses the wave's graph. *full: its times are those of whole chunks with chunk graphs. */
static tern_status choose_wave(tn_pipeline *p, int32_t n_chunks, wave **out, bool *full, tern_error *err) {
    *out = &p->waves[n_chunks];
    if (p->call.loading) {
        TN_TRY(tn_wave_build_cold(p, n_chunks, err));
        *out = &p->start.wave;
    }
    if (!p->switching.switcher) return TERN_OK;
    if (tn_wave_switches(p)) {
        *out = &p->switching.wave;
        *full = false;
        TN_TRY(tn_wave_build_switching(p, n_chunks, err));
    }
    for (int32_t i = 0; i < p->m->n_layers; i++)
        *full = *full && tn_switcher_form(p->switching.switcher, i) == TN_FORM_CHUNK;
    return TERN_OK;
}

static tern_status forward_wave(tn_pipeline *p, int32_t n, int32_t n_chunks, int32_t pos0,
                                const atomic_bool *cancel, tn_timeline *timeline, tern_error *err) {
    wave *w;
    bool full = n >= p->n_rows && !p->call.loading && /* its first chunk, if not all */
                p->profile->n_waves < TN_PROFILE_WAVES;
    bool later = n == n_chunks * p->n_rows && pos0 > 0 && p->profile->later_waves && !p->switching.switcher;
    TN_TRY(choose_wave(p, n_chunks, &w, &full, err));
    tn_wave_fit(p, w);
    tn_form form_before[TN_MAX_LAYERS];
    for (int32_t i = 0; p->switching.switcher && i < p->m->n_layers; i++)
        form_before[i] = tn_switcher_form(p->switching.switcher, i);
    tn_policy policy = p->policy;
#ifndef TERN_MINIMAL
    /* The CPU's times can be measured once the weights are there. */
    if (policy.steal_by_profile && p->profile->measured && !p->call.loading)
        TN_TRY(tn_wave_learn_stolen(p, err));
#endif
    if (policy.steal_by_profile && p->profile->measured && !p->call.loading)
        policy.steal_above = tn_policy_steal_above(w->graph);
    tn_run run = {.graph = w->graph,
                  .policy = policy,
                  .cancel = cancel,
                  .pause = tn_pipeline_pause_now(p),
                  .timeline = timeline,
                  .task_ns = p->switching.switcher || later || full ? w->task_ns : NULL};
    if (run.task_ns) run.stolen_ns = w->stolen_ns;
    tn_run_stats rs;
    TN_TRY(tn_executor_run(p->exec, &run, &rs, err));
    if (full) tn_wave_learn(p, w, n / p->n_rows, pos0);
    if (later) tn_wave_learn_growth(p, w, n_chunks, pos0);
    if (p->switching.switcher && n == n_chunks * p->n_rows - p->call.n_skipped)
        tn_wave_learn_forms(p, w, form_before, n_chunks, rs.wall_ns);
    if (p->switching.next_wave >= 0) p->switching.next_wave++;
    note_stats(p, n_chunks, &rs);
    return tn_npu_model_table_ok(p->m, err);
}

/* ---- forward --------------------------------------------------------------------------------------- */

static tern_status texts_locked(tn_pipeline *p, const tn_pipeline_text *texts, int32_t n_texts,
                                const atomic_bool *cancel, tn_timeline *timeline, tern_error *err) {
    p->call.form = TN_FORM_DECODE;
    p->call.sparse = false;
    if (p->switching.switcher)
        TN_TRY(tn_switcher_ensure(p->switching.switcher, TN_FORM_DECODE,
                                  err)); /* what the prefill left to load */
    p->call.n_skipped = 0;
    int32_t n = begin_texts(p, texts, n_texts);
    p->stats.n_rows += (uint64_t)n;
    return forward_small(p, n, cancel, timeline, err);
}

/* Tells whether these few rows are the end of a larger wave, which takes the form of chunks. */
static bool ends_wave(const tn_pipeline *p, int32_t pos0, int32_t n) {
    if (pos0 < p->said_from || pos0 + n > p->said_end) return false;
    int32_t begin = p->said_from, rows = tn_pipeline_wave_rows(p, begin);
    while (begin + rows <= pos0) {
        begin += rows;
        rows = tn_pipeline_wave_rows(p, begin);
    }
    if (p->said_end - begin < rows) rows = p->said_end - begin;
    return rows > TN_DECODE_M;
}

/* Rows of the first chunk that are left out. A picture whose rows see each other is read in one chunk: it
 * begins a wave of its own where it would not fit otherwise, and no other chunk is in flight then. */
static int32_t skipped_rows(const tn_pipeline *p, const tn_pipeline_text *t) {
    const tn_extra_rows *e = p->chunks[0].r.extra;
    const int32_t skipped = tn_skipped_rows(t->pos0);
    const tn_extra_span *s = e && t->ids[0] >= e->first ? tn_extra_span_of(e, t->ids[0]) : NULL;
    if (!s || !s->whole || t->n > p->n_rows) return skipped;
    return skipped + s->first + s->n - t->ids[0] > p->n_rows ? 0 : skipped;
}

static tern_status forward_locked(const tn_pipeline_text *t, const atomic_bool *cancel, tn_timeline *timeline,
                                  tern_error *err) {
    tn_pipeline *p = t->p;
    const int32_t n = t->n, pos0 = t->pos0;
    if (n <= TN_DECODE_M && (t->tree || !ends_wave(p, pos0, n)))
        return texts_locked(p, t, 1, cancel, timeline, err);
    p->stats.n_rows += (uint64_t)n;
    p->call.form = TN_FORM_CHUNK;
    p->call.sparse = p->sparse_prompt;
    if (p->sparse) tn_sparse_attn_rewind(p->sparse, pos0);
    p->call.n_skipped = skipped_rows(p, t);
    int32_t n_chunks = (p->call.n_skipped + n + p->n_rows - 1) / p->n_rows, next = t->next;
    for (int32_t i = 0; i < n_chunks; i++) {
        int32_t at = i ? i * p->n_rows - p->call.n_skipped : 0, end = (i + 1) * p->n_rows - p->call.n_skipped;
        begin_chunk(p, i, t, at, end < n ? end : n, &next);
    }
    return forward_wave(p, n, n_chunks, pos0, cancel, timeline, err);
}

tern_status tn_pipeline_forward(const tn_pipeline_text *t, const atomic_bool *cancel, tn_timeline *timeline,
                                tern_error *err) {
    tn_pipeline *p = t->p;
    assert(t->n > 0 && t->n <= tn_pipeline_wave_rows(p, t->pos0) && (!t->tree || t->n <= TN_DECODE_M));
    if (!tn_loader_done(p->m->loader)) {
        tn_loader *l = p->m->loader;
        tn_loader_lock(l); /* another session may be doing it */
        p->call.loading = !tn_loader_done(l);
        tern_status rc = p->call.loading ? tn_loader_rows_begin(l, t->ids, t->n, err) : TERN_OK;
        if (rc == TERN_OK) rc = forward_locked(t, cancel, timeline, err);
        if (p->call.loading && rc == TERN_OK)
            rc = tn_loader_finish(l, p->pool, p->m->n_layers, err); /* few rows leave lm_head */
        if (p->call.loading && rc == TERN_OK) rc = tn_loader_rows_begin(l, NULL, 0, err);
        p->call.loading = false;
        tn_loader_unlock(l);
        tn_wave_drop_cold(p);
        return rc;
    }
    if (!p->switching.switcher) return forward_locked(t, cancel, timeline, err);
    tn_switcher_lock(p->switching.switcher);
    tern_status rc = forward_locked(t, cancel, timeline, err);
    tn_switcher_unlock(p->switching.switcher);
    return rc;
}

bool tn_pipeline_can_share(const tn_pipeline *p) { return tn_loader_done(p->m->loader); }

int32_t tn_pipeline_room(const tn_pipeline *p) { return p->chunks[0].r.kv->cap_tok; }

tern_status tn_pipeline_forward_texts(tn_pipeline *p, const tn_pipeline_text *texts, int32_t n_texts,
                                      tn_timeline *timeline, tern_error *err) {
    int32_t n = 0;
    assert(n_texts > 0 && n_texts <= TN_MAX_TEXTS && tn_pipeline_can_share(p));
    for (int32_t i = 0; i < n_texts; i++) {
        assert(texts[i].p->m == p->m && tn_pipeline_room(texts[i].p) <= tn_pipeline_room(p));
        n += texts[i].n;
    }
    assert(n <= TN_DECODE_M);
    if (!p->switching.switcher) return texts_locked(p, texts, n_texts, NULL, timeline, err);
    tn_switcher_lock(p->switching.switcher);
    tern_status rc = texts_locked(p, texts, n_texts, NULL, timeline, err);
    tn_switcher_unlock(p->switching.switcher);
    return rc;
}

int32_t tn_pipeline_wave_rows(const tn_pipeline *p, int32_t pos0) {
    return p->n_chunks_open * p->n_rows - tn_skipped_rows(pos0);
}

int32_t tn_pipeline_chunk_rows(const tn_pipeline *p, int32_t pos0) {
    return p->n_rows - tn_skipped_rows(pos0);
}

const float *tn_pipeline_row(const tn_pipeline *p, tn_buffer b, int32_t i) {
    if (i + p->call.n_skipped >= p->n_rows) i += p->call.n_skipped;
    return p->chunks[i / p->n_rows].f.buf[b] + (size_t)(i % p->n_rows) * (size_t)p->model->program.width[b];
}

/* ---- logits ---------------------------------------------------------------------------------------- */

typedef struct lm_head_run {
    tn_pipeline *p;
    tn_npu_job job;
    int32_t n_parts;
    atomic_int failed;
} lm_head_run;

static void lm_head_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    lm_head_run *h = arg;
    if (tn_npu_run_part(&h->job, i_item, h->n_parts, NULL) != TERN_OK) atomic_store(&h->failed, 1);
}

static tern_status run_lm_head(tn_pipeline *p, const tn_npu_site *s, int32_t n, float *logits,
                               tern_error *err) {
    lm_head_run x = {
        .p = p,
        .job = {.graph = s->graphs[TN_FORM_DECODE], .n_rows = n, .in = {p->lm_head_x}, .out = {logits}}};
    tern_status rc = TERN_OK;
    if (tn_site_has_parts(p, s)) {
        int32_t blocks = tn_site_blocks(p, s, -1);
        x.n_parts = tn_pool_size(p->pool) * 4 < blocks ? tn_pool_size(p->pool) * 4 : blocks;
        tn_pool_for(p->pool, x.n_parts, lm_head_item, &x);
        if (atomic_load(&x.failed)) rc = TERN_E_DEVICE;
    } else {
        TN_TRY(tn_npu_submit(&x.job, err));
        rc = tn_npu_wait(&x.job);
    }
    TN_FAIL_IF(rc != TERN_OK, err, rc, "the device failed in lm_head");
    return TERN_OK;
}

/* What adapters add to logits. */
static void add_loras(tn_pipeline *p, int32_t row0, int32_t n, float *logits) {
    const tn_npu_site *s = tn_npu_site_at(p->m, 0, TN_SITE_LM_HEAD);
    const int32_t site = (int32_t)(s - p->m->sites);
    const size_t n_vocab = (size_t)s->ops.n_total, k = (size_t)s->ops.k;
    for (int32_t i = 0, own; p->lora && i < n; i++) {
        const tn_lora_mix *mix = tn_frame_of(p, &p->chunks[0], row0 + i, &own)->r->lora;
        float *out[] = {logits + (size_t)i * n_vocab};
        if (tn_lora_at(mix, site))
            tn_lora_rows(mix, p->kern, &s->ops, site, p->lm_head_rows + (size_t)i * k, k, 1, out, &n_vocab,
                         p->lora);
    }
}

/* Of p->lm_head_rows, which are the last forward's rows from row0 on; row0 -1: of none of those. */
static tern_status head_of(tn_pipeline *p, int32_t row0, int32_t n, float *logits, tern_error *err) {
    const tn_npu_site *s = tn_npu_site_at(p->m, 0, TN_SITE_LM_HEAD);
    /* lm_head borrows chunk 0's outlier lists; its rows are few */
    chunk c = p->chunks[0];
    c.in.x = p->lm_head_x;
    c.f.buf[TN_BUF_LOGITS] = logits;
    for (int32_t i = 0; i < n; i++)
        tn_quantise_row(p, &c, s, i, p->lm_head_rows + (size_t)i * (size_t)s->ops.k);
    TN_TRY(run_lm_head(p, s, n, logits, err));
    if (s->has_outliers) {
        TN_TRY(tn_outlier_rows(p, &c, s, 0, n, 0, err));
        tn_outliers_merge(p, &c, s, 0, n);
    }
    if (row0 >= 0) add_loras(p, row0, n, logits);
    tn_frame f = {.m = p->model, .buf = {[TN_BUF_LOGITS] = logits}};
    int32_t n_ops;
    const tn_op *op = tn_program_layer(&p->model->program, p->m->n_layers, &n_ops);
    bool behind = false; /* what follows lm_head */
    for (int32_t i = 0; i < n_ops; i++) {
        if (behind) tn_op_info_of(op[i].kind)->rows(&op[i], &f, 0, n, NULL);
        behind = behind || op[i].site == TN_SITE_LM_HEAD;
    }
    return TERN_OK;
}

tern_status tn_pipeline_logits(tn_pipeline *p, int32_t row0, int32_t n, float *logits, tern_error *err) {
    assert(n > 0 && n <= TN_DECODE_M);
    const size_t k = (size_t)tn_npu_site_at(p->m, 0, TN_SITE_LM_HEAD)->ops.k;
    for (int32_t i = 0; i < n; i++)
        tn_forward_out_norm(p->model, p->kern, tn_pipeline_row(p, TN_BUF_X, row0 + i),
                            p->lm_head_rows + (size_t)i * k, 1);
    return head_of(p, row0, n, logits, err);
}

tern_status tn_pipeline_head(tn_pipeline *p, const float *states, int32_t n, float *logits, tern_error *err) {
    assert(n > 0 && n <= TN_DECODE_M);
    memcpy(p->lm_head_rows, states, (size_t)n * (size_t)p->model->h.n_embd * sizeof *states);
    return head_of(p, -1, n, logits, err);
}
