/* A session's text: prefill, step, score, cancel. */
#include "session/session.h"

#include "base/clock.h"
#include "base/finite.h"
#include "base/sized.h"
#include "base/status.h"
#include "engine/adapters.h"
#include "model/streamed.h"
#include "package/loader.h"
#include "package/on_demand.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

tern_status tern_session_options_init(tern_session_options *o, size_t size_bytes) {
    const tern_session_options d = {.size_bytes = size_bytes};
    return tn_sized_out(o, size_bytes, &d, sizeof d, TN_SIZE_UP_TO(tern_session_options, n_ctx));
}

/* What was measured on this machine before. */
static void load_profile(tern_session *s) {
    tn_profile_file kept;
    if (!s->e->profile_path) return;
    tn_engine_profile(s->e, &kept);
    tn_profile_load(&kept, &s->e->model->program, &s->profile);
}

static tern_status open_packed(tern_session *s, tern_error *err) {
    tern_engine *e = s->e;
    if (e->trace) {
        static const char *const own[] = {
            "session"}; /* the caller's thread between scheduled runs: drafts, verifications */
        tn_timeline_options to = {.cap_events = 1 << 16, .cap_flows = 1 << 17, .extra = own, .n_extra = 1};
        memcpy(to.n_workers, e->n_lane_workers, sizeof to.n_workers);
        TN_TRY(tn_timeline_open(&e->ctx, &to, &s->timeline, err));
    }
    return tn_evaluator_open_packed(e, &s->state, &s->profile, &s->mix, &s->evaluator, err);
}

tern_status tern_session_open(tern_engine *e, const tern_session_options *opt, tern_session **out,
                              tern_error *err) {
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "tern_session_open needs a place for the session");
    *out = NULL;
    TN_FAIL_IF(!e, err, TERN_E_INVALID, "tern_session_open needs an engine");
    tern_session_options o;
    tern_session_options_defaults(&o);
    if (opt)
        TN_TRY(tn_sized_in(&o, sizeof o, opt, opt->size_bytes, TN_SIZE_UP_TO(tern_session_options, n_ctx),
                           "tern_session_options", err));
    const tn_hparams *h = &e->model->h;
    int32_t n_ctx = o.n_ctx ? o.n_ctx : h->ctx_train < 4096 ? h->ctx_train : 4096;
    if (e->n_ctx_fits && !o.n_ctx && n_ctx > e->n_ctx_fits) {
        n_ctx = e->n_ctx_fits;
        tn_log(&e->ctx, TERN_LOG_INFO, "a context of %d tokens fits max-memory", n_ctx);
    }
    TN_FAIL_IF(e->n_ctx_fits && n_ctx > e->n_ctx_fits, err, TERN_E_LIMIT,
               "a context of %d tokens does not fit max-memory; %d do", n_ctx, e->n_ctx_fits);
    TN_FAIL_IF(n_ctx < 1 || n_ctx > 1 << 24, err, TERN_E_INVALID, "a context of %d tokens: want 1 to %d",
               n_ctx, 1 << 24);
    if (n_ctx > h->ctx_train) {
        tn_log(&e->ctx, TERN_LOG_WARN, "a context of %d tokens is beyond the %d the model was trained for",
               n_ctx, h->ctx_train);
    }
    tn_ctx *ctx = &e->ctx;
    tern_session *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for a session");
    s->e = e;
    s->n_ctx = n_ctx;
    s->tokens = tn_alloc(ctx, TN_MEM_OTHER, (size_t)n_ctx, sizeof *s->tokens);
    s->logits = tn_alloc(ctx, TN_MEM_ACTIVATIONS, (size_t)h->n_vocab, sizeof *s->logits);
#ifndef TERN_MINIMAL
    const bool has_axes = tn_has_axes(h);
    if (has_axes) s->next = tn_alloc(ctx, TN_MEM_OTHER, (size_t)n_ctx, sizeof *s->next);
#else
    const bool has_axes = false; /* no picture moves a text's positions */
#endif
    tern_status st = s->tokens && s->logits && (s->next || !has_axes)
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory for a session of %d tokens", n_ctx);
    if (st == TERN_OK) st = tn_mix_parse(e, NULL, &s->mix, err);
    if (st == TERN_OK)
        st = tn_state_open(ctx, &e->model->program, h, n_ctx, n_ctx > TN_KV_FLOATS ? e->kv_long : e->kv_short,
                           &s->state, err);
    load_profile(s);
    if (st == TERN_OK)
        st = e->npu ? open_packed(s, err)
                    : tn_evaluator_open_plain(e, &s->state, n_ctx, &s->mix, &s->evaluator, err);
    uint32_t drafters;
    if (st == TERN_OK) st = tn_drafting_use(s, o.draft ? o.draft : "none", &drafters, err);
    if (st == TERN_OK) st = tn_storing_open(s, o.store, o.store_bytes, err);
    if (st == TERN_OK) {
        s->drafting.drafters = drafters;
        *out = s;
    } else {
        tern_session_close(&s);
    }
    return st;
}

void tern_session_close(tern_session **ps) {
    if (!ps || !*ps) return;
    tern_session *s = *ps;
    *ps = NULL;
    tn_ctx *ctx = &s->e->ctx;
    float rows[TN_PROFILE_FORWARDS] = {0}, relative[TN_PROFILE_FORWARDS] = {0};
    int n_times =
        s->e->profile_path && s->drafting.draft ? tn_draft_costs(s->drafting.draft, rows, relative) : 0;
    if (n_times) {
        memcpy(s->profile.forward_rows, rows, sizeof rows);
        memcpy(s->profile.forward_relative, relative, sizeof relative);
        s->profile.n_forwards = n_times;
    }
#ifndef TERN_MINIMAL
    tn_session_rows_close(s);
#endif
    tn_constraint_close(s);
    tn_drafting_close(s);
    tn_storing_close(s);
    tn_state_close(&s->state);
    if ((s->profile.measured || s->profile.n_forwards) && s->e->profile_path) {
        tn_profile_file kept;
        tn_engine_profile(s->e, &kept);
        tn_profile_save(&s->e->ctx, &kept, &s->e->model->program, &s->profile);
    }
    tn_evaluator_close(&s->evaluator);
    tn_timeline_close(&s->timeline);
    tn_free(ctx, s->tokens);
    tn_free(ctx, s->next);
    tn_free(ctx, s->tree_logits);
    tn_free(ctx, s->logits);
    tn_free(ctx, s->end.logits);
    tn_free(ctx, s->score_logits);
    tn_free(ctx, s);
}

/* Whether the id is that of a row of a picture, which is at hand. */
static bool has_row(const tern_session *s, int32_t id) {
#ifdef TERN_MINIMAL
    (void)s, (void)id;
    return false;
#else
    return tn_session_has_row(s, id);
#endif
}

static tern_status check_ids(const tern_session *s, const int32_t *ids, size_t n, tern_error *err) {
    int32_t n_vocab = s->e->model->h.n_vocab;
    for (size_t i = 0; i < n; i++) {
        TN_FAIL_IF(ids[i] < 0 || (ids[i] >= n_vocab && !has_row(s, ids[i])), err, TERN_E_INVALID,
                   "token %d at position %d is outside the vocabulary of %d", ids[i], s->n_tok + (int32_t)i,
                   n_vocab);
    }
    return TERN_OK;
}

static int32_t max_rows(const tern_session *s) { return s->evaluator->ops->max_rows(s->evaluator, s->n_tok); }

/* The next rows of the session's text. */
static tn_evaluator_text rows_of(tern_session *s, const int32_t *ids, int32_t n, const tn_tree *tree) {
    const int32_t next = s->next && s->n_tok ? s->next[s->n_tok - 1] : s->n_tok;
    return (tn_evaluator_text){s->evaluator, ids, n, s->n_tok, tree, tn_session_rope_long(s), next};
}

static tern_status evaluate(tern_session *s, const int32_t *ids, int32_t n, const tn_tree *tree,
                            tern_error *err) {
    tn_evaluator_text t = rows_of(s, ids, n, tree);
    return s->evaluator->ops->evaluate(&t, &s->cancel, tn_session_timeline(s), err);
}

/* Refuses logits that are not finite, because the sampler would draw tokens from them all the same. The
 * layers' values tell where it began: a non-finite input of a layer shows in its V. */
static tern_status judge_logits(const tern_session *s, bool finite, int32_t end, tern_error *err) {
    const tn_kv *kv = &s->state.kv;
    const tn_hparams *h = &s->e->model->h;
    TN_FAIL_IF(s->e->npu && tn_file_shrank(s->e->npu->map), err, TERN_E_IO,
               "the package became shorter while it was in use: its weights are gone");
    TN_FAIL_IF(
        s->e->npu && tn_file_was_written(s->e->npu->map, tn_pkg_fd(s->e->npu->pkg)), err, TERN_E_IO,
        "the package was written to while it was in use, and its weights are read from the file (load mmap): "
        "open it again");
    if (finite) return TERN_OK;
    for (int l = 0; l < h->n_layers; l++) {
        for (int i = 0; tn_layer_attends(h, l) && i < tn_kv_layer_of(kv, l)->n_kv_heads; i++)
            TN_FAIL_IF(!tn_kv_finite(kv, &s->e->kern, l, i, end), err, TERN_E_FORMAT,
                       "the model computes values that are not finite: layer %d is the first that has some",
                       l);
    }
    return tn_fail(err, TERN_E_FORMAT,
                   "the model computes values that are not finite: after the attention of layer %d, the last",
                   h->n_layers - 1);
}

static tern_status check_logits(const tern_session *s, const float *logits, int32_t n, int32_t end,
                                tern_error *err) {
    return judge_logits(s, tn_all_finite(logits, (size_t)n * (size_t)s->e->model->h.n_vocab), end, err);
}

/* Computes logits of rows of the last evaluation, which come after the session's tokens. */
static tern_status logits_of(tern_session *s, int32_t row0, int32_t n, float *logits, tern_error *err) {
    TN_TRY(s->evaluator->ops->logits(s->evaluator, row0, n, logits, err));
    return check_logits(s, logits, n, s->n_tok + row0 + n, err);
}

/* Computes the logits that a scorer wants among n evaluated rows, TN_SCORE_ROWS at a time. `done` is the
 * number of tokens before them. */
static tern_status score_rows(tern_session *s, int32_t n_rows, size_t done, const tn_scorer *scorer,
                              tern_error *err) {
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    int32_t i = scorer->first > done ? (int32_t)(scorer->first - done) : 0;
    for (; scorer->on_hidden && i < n_rows; i++) {
        const tn_model *m = s->e->model;
        tn_forward_out_norm(m, &s->e->kern, tn_session_row(s, i), scorer->row, 1);
        scorer->on_hidden(scorer->user, done + (size_t)i, scorer->row);
    }
    while (i < n_rows) {
        int32_t n = n_rows - i < TN_SCORE_ROWS ? n_rows - i : TN_SCORE_ROWS;
        tn_pause_here(s->pause);
        TN_TRY(logits_of(s, i, n, s->score_logits, err));
        for (int32_t j = 0; j < n; j++) {
            bool more = scorer->on_logits(scorer->user, done + (size_t)(i + j),
                                          s->score_logits + (size_t)j * n_vocab);
            TN_FAIL_IF(!more, err, TERN_E_CANCELLED, "stopped by the caller");
        }
        i += n;
    }
    return TERN_OK;
}

/* For drafts of the layer that guesses one token further, and of a head: tokens at pos.. are text, and their rows are
 * consecutive. They read tokens' embeddings, so they begin anew after a picture. */
static void note(tern_session *s, int32_t pos, const int32_t *tokens, int32_t n, const tern_session *in,
                 int32_t row) {
    const tn_evaluator *v = in->evaluator;
    const tn_buffer of_head = s->drafting.head && tn_is_assistant(&s->e->head->h) ? TN_BUF_X : TN_BUF_TAPS;
    for (int32_t i = 0; i < n; i++) {
        if (tokens[i] >= s->e->model->h.n_vocab) continue;
        if (s->drafting.mtp)
            tn_mtp_note(s->drafting.mtp, pos + i, tokens[i], v->ops->row(v, TN_BUF_X, row + i));
        if (s->drafting.head)
            tn_mtp_note(s->drafting.head, pos + i, tokens[i], v->ops->row(v, of_head, row + i));
    }
}

/* The text grew by n tokens. */
static void grow_axes(tern_session *s, int32_t n) {
#ifdef TERN_MINIMAL
    (void)s, (void)n;
#else
    tn_session_axes(s, n);
#endif
}

/* The rows just evaluated become part of the text. */
static void keep_rows(tern_session *s, const int32_t *tokens, int32_t n, const tern_session *in,
                      int32_t row) {
    memcpy(s->tokens + s->n_tok, tokens, (size_t)n * sizeof *tokens);
    tn_state_append(&s->state, n);
    s->n_tok += n;
    grow_axes(s, n);
    note(s, s->n_tok - n, tokens, n, in, row);
}

enum { MARK_EVERY = 256, MARKED_ROWS = 64 }; /* tokens */

/* Snapshots for states that need them: at chunks of prompts, at a prompt's end, and now and then in an
 * answer. */
static tern_status mark(tern_session *s, bool here, tern_error *err) {
    return here || tn_state_unmarked(&s->state) >= MARK_EVERY ? tn_state_snapshot(&s->state, err) : TERN_OK;
}

/* Rows that see those after them cannot be followed by others. */
static tern_status check_begins(const tern_session *s, tern_error *err) {
    TN_FAIL_IF(s->e->model->h.bidirectional && s->n_tok, err, TERN_E_UNSUPPORTED,
               "this model reads a text as a whole and writes none: nothing can follow its %d tokens",
               s->n_tok);
    return TERN_OK;
}

static tern_status check_writes(const tern_session *s, tern_error *err) {
    TN_FAIL_IF(
        s->e->model->h.bidirectional, err, TERN_E_UNSUPPORTED,
        "this model reads texts as a whole and writes none: it embeds them (tern embed, /v1/embeddings)");
    return TERN_OK;
}

/* Announces n tokens that follow in one or more pieces. */
static tern_status begin_pieces(tern_session *s, const int32_t *tokens, size_t n, tn_prefill *out,
                                tern_error *err) {
    *out = (tn_prefill){.s = s, .tokens = tokens, .n = n};
    TN_TRY(check_begins(s, err));
    TN_FAIL_IF(n > (size_t)(s->n_ctx - s->n_tok), err, TERN_E_LIMIT,
               "%zu tokens after %d do not fit a context of %d; open the session with a larger one", n,
               s->n_tok, s->n_ctx);
    TN_TRY(check_ids(s, tokens, n, err));
    TN_TRY(s->evaluator->ops->begin(s->evaluator, (int32_t)n, s->n_tok, err));
    out->calibrates = tn_drafting_calibrates(s, n);
    return out->calibrates ? tn_drafting_before(s, tokens, n, err) : TERN_OK;
}

/* How many rows come next, at most `most`. */
static tern_status pieces_of(const tern_session *s, const int32_t *tokens, size_t n, int32_t most,
                             int32_t *rows, tern_error *err) {
#ifdef TERN_MINIMAL
    (void)s, (void)tokens, (void)err;
    *rows = n < (size_t)most ? (int32_t)n : most;
    return TERN_OK;
#else
    return tn_session_whole(s, tokens, n, most, rows, err);
#endif
}

/* The next rows, at most `most` of them. */
static tern_status next_piece(tn_prefill *p, int32_t most, const tn_scorer *scorer, tern_error *err) {
    tern_session *s = p->s;
    const int32_t *tokens = p->tokens + p->done;
    int32_t rows;
    TN_TRY(pieces_of(s, tokens, p->n - p->done, most, &rows, err));
    bool last = p->done + (size_t)rows == p->n;
    s->has_logits = false;
    tern_status st = evaluate(s, tokens, rows, NULL, err);
    if (st == TERN_E_CANCELLED) atomic_store(&s->cancel, false);
    if (st == TERN_OK && scorer && scorer->first < p->done + (size_t)rows)
        st = score_rows(s, rows, p->done, scorer, err);
    bool wanted = last && !s->e->model->h.bidirectional && !(scorer && scorer->on_hidden);
    if (st == TERN_OK && wanted) st = logits_of(s, rows - 1, 1, s->logits, err);
    if (st != TERN_OK) return st;
    if (p->calibrates) TN_TRY(tn_drafting_calibrate(s, s->n_tok, rows, err));
    keep_rows(s, tokens, rows, s, 0);
    TN_TRY(mark(s, rows >= MARKED_ROWS || (last && p->n > 1), err));
    p->done += (size_t)rows;
    s->has_logits = wanted;
    if (wanted && p->n > 1) tn_session_keep_end(s, s->n_tok, s->logits);
    return TERN_OK;
}

tern_status tn_session_append(tern_session *s, const int32_t *tokens, size_t n, const tn_scorer *scorer,
                              tern_error *err) {
    tn_prefill p;
    TN_TRY(begin_pieces(s, tokens, n, &p, err));
    bool shown = n > (size_t)max_rows(s);
    while (p.done < n) {
        TN_TRY(next_piece(&p, max_rows(s), scorer, err));
        if (!shown || tn_progress(&s->e->ctx, "prompt", (double)p.done / (double)n)) continue;
        s->has_logits = false;
        return tn_fail(err, TERN_E_CANCELLED, "the prompt was cancelled after %zu of %zu tokens", p.done, n);
    }
    return TERN_OK;
}

tern_status tn_prefill_chunk(tn_prefill *p, tern_error *err) {
    tern_session *s = p->s;
    if (p->done == p->n) return TERN_OK;
    return next_piece(p, s->evaluator->ops->chunk_rows(s->evaluator, s->n_tok), p->scorer, err);
}

void tn_session_pauses(tern_session *s, const tn_pause *pause) {
    s->pause = pause;
    s->evaluator->ops->pauses(s->evaluator, pause);
}

static tern_status tree_logits(tern_session *s, tern_error *err) {
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    if (s->tree_logits) return TERN_OK;
    s->tree_logits = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, TN_TREE_MAX * n_vocab, sizeof *s->tree_logits);
    TN_FAIL_IF(!s->tree_logits, err, TERN_E_MEMORY, "no memory for the logits of %d draft tokens",
               TN_TREE_MAX);
    return TERN_OK;
}

static tern_status check_tree(const tern_session *s, const tn_tree *tree, tern_error *err) {
    TN_TRY(check_writes(s, err));
    TN_FAIL_IF(tree->n > s->n_ctx - s->n_tok, err, TERN_E_LIMIT,
               "a draft of %d tokens after %d does not fit a context of %d", tree->n, s->n_tok, s->n_ctx);
    return check_ids(s, tree->token, (size_t)tree->n, err);
}

tern_status tn_session_verify(tern_session *s, const tn_tree *tree, tern_error *err) {
    TN_TRY(check_tree(s, tree, err));
    TN_TRY(tree_logits(s, err));
    s->has_logits = false;
    s->rows_in = s;
    s->rows_at = 0;
    tern_status st = evaluate(s, tree->token, tree->n, tree, err);
    if (st == TERN_E_CANCELLED) atomic_store(&s->cancel, false);
    return st == TERN_OK ? logits_of(s, 0, tree->n, s->tree_logits, err) : st;
}

/* ---- several sessions in one forward ---------------------------------------------------------------- */

/* The session whose buffers have room for all caches comes first. */
static int32_t room(const tern_session *s) { return s->evaluator->ops->room(s->evaluator); }

/* Finds the sessions that can share a forward, the roomiest first; the others get their errors. Returns their
 * number, and all their rows. */
static int32_t line_up(tn_turn *turns, int32_t n, tn_turn **out, int32_t *n_rows) {
    int32_t k = 0;
    *n_rows = 0;
    for (int32_t i = 0; i < n; i++) {
        tn_turn *t = &turns[i];
        assert(t->s->e == turns[0].s->e);
        t->status = check_tree(t->s, &t->tree, &t->err);
        if (t->status == TERN_OK && t->tree.n > 1) t->status = tree_logits(t->s, &t->err);
        if (t->status != TERN_OK) continue;
        *n_rows += t->tree.n;
        out[k++] = t;
    }
    for (int32_t i = 1; i < k; i++) {
        if (room(out[i]->s) <= room(out[0]->s)) continue;
        tn_turn *first = out[0];
        out[0] = out[i];
        out[i] = first;
    }
    return k;
}

static tern_status forward_together(tn_turn *const *t, int32_t n, tern_error *err) {
    tn_evaluator_text texts[TN_MAX_TEXTS];
    for (int32_t i = 0; i < n; i++) {
        const tn_tree *tree = &t[i]->tree;
        t[i]->s->has_logits = false;
        texts[i] = rows_of(t[i]->s, tree->token, tree->n, tree->n > 1 ? tree : NULL);
    }
    tern_session *lead = t[0]->s;
    return lead->evaluator->ops->together(texts, n, tn_session_timeline(lead), err);
}

/* One session's logits, which the first session computed among those of all. */
typedef struct shared_logits {
    const float *from;
    float *to; /* NULL: they stay where they are */
    size_t n;
    bool finite;
} shared_logits;

static void share_item(void *arg, int i_item, int i_thread) {
    enum { SLICE = 256 }; /* copied, and looked at while they are in cache */
    shared_logits *x = (shared_logits *)arg + i_item;
    (void)i_thread;
    x->finite = true;
    for (size_t at = 0, n; at < x->n; at += n) {
        n = x->n - at < SLICE ? x->n - at : SLICE;
        if (x->to) memcpy(x->to + at, x->from + at, n * sizeof *x->to);
        x->finite = tn_all_finite(x->from + at, n) && x->finite;
    }
}

/* Gives every session its logits: lead has those of all rows, in the order of the turns. */
static void share_out(tn_turn *const *t, int32_t n, const float *logits) {
    shared_logits shares[TN_MAX_TEXTS];
    const size_t n_vocab = (size_t)t[0]->s->e->model->h.n_vocab;
    for (int32_t i = 0; i < n; i++) {
        const int32_t k = t[i]->tree.n;
        float *own = k == 1 ? t[i]->s->logits : i ? t[i]->s->tree_logits : NULL;
        shares[i] = (shared_logits){.from = logits, .to = own, .n = (size_t)k * n_vocab};
        logits += shares[i].n;
    }
    tn_pool_for(t[0]->s->e->pool, n, share_item, shares);
    for (int32_t i = 0, row = 0; i < n; row += t[i++]->tree.n) {
        tern_session *s = t[i]->s;
        const int32_t k = t[i]->tree.n;
        s->rows_in = t[0]->s;
        s->rows_at = row;
        t[i]->status = judge_logits(s, shares[i].finite, s->n_tok + k, &t[i]->err);
        if (k > 1) continue;
        keep_rows(s, t[i]->tree.token, 1, t[0]->s, row);
        (void)mark(s, false, NULL);
        s->has_logits = t[i]->status == TERN_OK;
    }
}

void tn_sessions_forward(tn_turn *turns, int32_t n) {
    tn_turn *t[TN_MAX_TEXTS];
    tern_error err = {0};
    assert(n > 0 && n <= TN_MAX_TEXTS);
    int32_t n_rows = 0, k = n > 1 ? line_up(turns, n, t, &n_rows) : 0;
    assert(n_rows <= TN_TREE_MAX);
    bool share = k > 1;
    for (int32_t i = 0; share && i < k; i++) share = t[i]->s->evaluator->ops->shares(t[i]->s->evaluator);
    if (!share || n_rows > max_rows(t[0]->s)) {
        for (int32_t i = 0; i < n; i++) {
            tn_turn *x = &turns[i];
            x->status = x->tree.n > 1 ? tn_session_verify(x->s, &x->tree, &x->err)
                                      : tern_session_step(x->s, x->tree.token[0], &x->err);
        }
        return;
    }
    tern_session *lead = t[0]->s;
    tern_status st = tree_logits(lead, &err);
    if (st == TERN_OK) st = forward_together(t, k, &err);
    if (st == TERN_OK) st = lead->evaluator->ops->logits(lead->evaluator, 0, n_rows, lead->tree_logits, &err);
    if (st == TERN_OK) {
        share_out(t, k, lead->tree_logits);
        return;
    }
    for (int32_t i = 0; i < k; i++) {
        t[i]->status = st;
        t[i]->err = err;
    }
}

void tn_session_keep(tern_session *s, const tn_tree *tree, int32_t row) {
    /* rows lie from slot n_tok - depth on, so a slot taken here belongs to a row that no later path needs */
    tn_state_keep(&s->state, s->n_tok - tree->depth[row] + row);
    s->tokens[s->n_tok++] = tree->token[row];
    grow_axes(s, 1);
    note(s, s->n_tok - 1, &tree->token[row], 1, s->rows_in, s->rows_at + row);
    (void)mark(s, false, NULL); /* without memory for it, going back takes longer */
}

void tn_session_settle(tern_session *s, int32_t row) {
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    memcpy(s->logits, s->tree_logits + (size_t)row * n_vocab, n_vocab * sizeof *s->logits);
    s->has_logits = true;
}

tn_timeline *tn_session_timeline(const tern_session *s) {
    /* acquire: the timeline is complete before it is visible */
    return s->timeline ? s->timeline : atomic_load_explicit(&s->e->watched, memory_order_acquire);
}

void tn_session_trace(tern_session *s, const char *name, int64_t start_ns, int64_t end_ns) {
    tn_timeline_note(tn_session_timeline(s), name, start_ns, end_ns);
}

void tn_session_truncate(tern_session *s, int32_t n) {
    if (n >= s->n_tok) return;
    n = tn_state_truncate(&s->state, n); /* some kinds of state go back further, to a snapshot */
    tn_storing_truncate(&s->storing, n);
    s->n_tok = n;
    s->has_logits = false;
    if (s->end.at > n) s->end.at = 0;
}

void tn_session_keep_end(tern_session *s, int32_t at, const float *logits) {
    size_t n = (size_t)s->e->model->h.n_vocab;
    s->end.at = 0;
    if (tn_state_truncates(&s->state)) return; /* one token is soon evaluated */
    if (!s->end.logits) s->end.logits = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, n, sizeof *logits);
    if (!s->end.logits) return;
    memcpy(s->end.logits, logits, n * sizeof *logits);
    s->end.at = at;
}

tern_status tern_session_truncate(tern_session *s, size_t n_tok, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_FAIL_IF(n_tok > (size_t)s->n_tok, err, TERN_E_LIMIT, "%zu tokens to keep of %d", n_tok, s->n_tok);
    TN_FAIL_IF(n_tok && n_tok < (size_t)s->n_tok && !tn_state_reaches(&s->state, (int32_t)n_tok), err,
               TERN_E_UNSUPPORTED, "what this model remembers cannot go back to token %zu", n_tok);
    tn_session_truncate(s, (int32_t)n_tok);
    return TERN_OK;
}

size_t tn_session_keep_prefix(tern_session *s, const int32_t *prompt, size_t n_tok) {
    size_t same = 0;
    while (same < n_tok && same < (size_t)s->n_tok && s->tokens[same] == prompt[same]) same++;
    s->n_prompt = s->n_known = n_tok;
    if (same == n_tok && n_tok == (size_t)s->n_tok && s->has_logits) return n_tok;
    if (same == n_tok && (size_t)s->end.at == n_tok && (size_t)tn_state_left(&s->state, s->end.at) == n_tok) {
        tn_session_truncate(s, s->end.at);
        memcpy(s->logits, s->end.logits, (size_t)s->e->model->h.n_vocab * sizeof *s->logits);
        s->has_logits = true;
        return n_tok;
    }
    if (same == n_tok) same--; /* the last token again, for its logits */
    if (s->e->model->h.bidirectional) same = 0;
    tn_session_truncate(s, (int32_t)same);
    return s->n_known = (size_t)s->n_tok;
}

tern_status tern_session_prefill(tern_session *s, const int32_t *prompt, size_t n_tok, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_FAIL_IF(n_tok == 0 || !prompt, err, TERN_E_INVALID, "the prompt is empty");
    TN_TRY(check_writes(s, err));
    size_t same = tn_session_keep_prefix(s, prompt, n_tok);
    return same == n_tok ? TERN_OK : tn_session_append(s, prompt + same, n_tok - same, NULL, err);
}

tern_status tn_prefill_begin(tern_session *s, const int32_t *prompt, size_t n_tok, tn_prefill *out,
                             tern_error *err) {
    TN_TRY(check_writes(s, err));
    size_t same = tn_session_keep_prefix(s, prompt, n_tok);
    return begin_pieces(s, prompt + same, n_tok - same, out, err);
}

static tern_status score_room(tern_session *s, tern_error *err) {
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    if (s->score_logits) return TERN_OK;
    s->score_logits = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, TN_SCORE_ROWS * n_vocab, sizeof(float));
    TN_FAIL_IF(!s->score_logits, err, TERN_E_MEMORY, "no memory for the logits of %d positions",
               TN_SCORE_ROWS);
    return TERN_OK;
}

tern_status tn_prefill_score(tn_prefill *p, const tn_scorer *scorer, tern_error *err) {
    assert(!p->done);
    TN_TRY(score_room(p->s, err));
    p->scorer = scorer;
    return TERN_OK;
}

tern_status tern_session_score(tern_session *s, const int32_t *prompt, size_t n_tok, size_t first,
                               bool (*on_logits)(void *, size_t, const float *), void *user,
                               tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_FAIL_IF(n_tok == 0 || !prompt || !on_logits, err, TERN_E_INVALID,
               "scoring needs tokens and a callback");
    TN_TRY(check_writes(s, err));
    TN_TRY(score_room(s, err));
    tn_session_truncate(s, 0);
    const tn_scorer scorer = {.first = first, .on_logits = on_logits, .user = user};
    return tn_session_append(s, prompt, n_tok, &scorer, err);
}

tern_status tern_session_step(tern_session *s, int32_t token, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_TRY(check_writes(s, err));
    return tn_session_append(s, &token, 1, NULL, err);
}

const float *tern_session_logits(const tern_session *s) { return s && s->has_logits ? s->logits : NULL; }
const int32_t *tern_session_tokens(const tern_session *s) { return s && s->n_tok ? s->tokens : NULL; }
size_t tern_session_length(const tern_session *s) { return s ? (size_t)s->n_tok : 0; }
int32_t tern_session_capacity(const tern_session *s) { return s ? s->n_ctx : 0; }
void tern_session_cancel(tern_session *s) {
    if (s) atomic_store(&s->cancel, true);
}

static void put_attention(const tern_session *s, tn_stats *out) {
    tn_attn_stats a;
    s->evaluator->ops->attention(s->evaluator, &a);
    out->attn_rows = a.n_rows;
    out->attn_seen = a.n_seen;
    out->attn_selected = a.n_selected;
    out->attn_true = a.n_true;
    out->attn_found = a.n_found;
    out->attn_launches = a.n_launches;
    out->attn_requantised = a.n_requantised;
    out->attn_bytes = a.bytes;
    out->attn_fused = a.n_fused;
    out->attn_fused_launches = a.n_fused_launches;
    out->attn_plans = a.n_plans;
    out->attn_plan_us = a.n_plans ? (double)a.plan_ns * 1e-3 / (double)a.n_plans : 0;
    out->attn_plan_max_us = (double)a.plan_max_ns * 1e-3;
    out->attn_planned_s = a.planned_us * 1e-6;
    out->attn_took_s = a.took_us * 1e-6;
    out->attn_mass = a.n_rows ? a.mass / (double)a.n_rows : 0;
}

#ifndef TERN_MINIMAL
static void put_streamed(tn_streamed *streamed, tn_stats *out) {
    tn_streamed_stats t;
    tn_streamed_stats_get(streamed, &t);
    out->read_bytes = t.n_read_bytes;
    out->read_s = (double)t.read_ns * 1e-9;
    out->unpack_s = (double)t.turn_ns * 1e-9;
    out->loaded_s = (double)t.done_ns * 1e-9;
    out->read_method = t.method;
}

static void put_file_experts(tn_file_experts *x, tn_stats *out) {
    tn_file_experts_stats t;
    tn_file_experts_stats_get(x, &t);
    out->experts_bytes = t.all_bytes;
    out->experts_room_bytes = (uint64_t)t.n_slots * t.slot_bytes;
    out->experts_taken = t.n_taken;
    out->experts_hits = t.n_hits;
    out->experts_ahead = t.n_ahead;
    out->experts_read_bytes = t.n_read_bytes;
    out->experts_wait_s = (double)t.wait_ns * 1e-9;
    out->experts_chosen = t.n_predicted;
    out->experts_foreseen = t.n_right;
}
#endif

static tn_stats stats_of(const tern_session *s) {
    tn_stats all = {.kv_bytes = tn_state_bytes(&s->state)};
    tn_stats *out = &all;
    put_attention(s, out);
#ifndef TERN_MINIMAL
    if (s->e->model->streamed) put_streamed(s->e->model->streamed, out);
    if (s->e->model->file_experts) put_file_experts(s->e->model->file_experts, out);
#endif
    if (!tn_session_pipeline(s)) return all;
    const tn_pipeline_stats *p = tn_pipeline_stats_get(tn_session_pipeline(s));
    const int32_t *w = s->e->n_lane_workers;
    double wall = (double)p->wall_ns;
    out->wall_s = wall * 1e-9;
    out->cpu_busy_s = (double)p->busy_ns[TN_LANE_CPU] * 1e-9;
    out->npu_busy_s = (double)p->busy_ns[TN_LANE_NPU] * 1e-9;
    out->cpu_bubble =
        wall > 0 && w[TN_LANE_CPU] ? 1 - (double)p->busy_ns[TN_LANE_CPU] / (wall * w[TN_LANE_CPU]) : 0;
    out->npu_bubble =
        wall > 0 && w[TN_LANE_NPU] ? 1 - (double)p->busy_ns[TN_LANE_NPU] / (wall * w[TN_LANE_NPU]) : 0;
    out->decision_us = p->n_decisions ? (double)p->decide_ns * 1e-3 / (double)p->n_decisions : 0;
    out->decision_max_us = (double)p->decide_max_ns * 1e-3;
    out->n_decisions = (uint64_t)p->n_decisions;
    out->n_stolen = (uint64_t)p->n_stolen;
    out->n_outliers = p->n_outliers;
    out->n_dropped = p->n_dropped;
    out->hot_hits = p->hot_hits;
    out->cold_misses = p->cold_misses;
    out->graph_bytes = p->graph_bytes;
    out->graph_bytes_unshared = p->graph_bytes_unshared;
    out->n_subgraphs = p->n_subgraphs;
    out->n_shared = p->n_shared;
    out->activation_bytes = p->activation_bytes;
    out->n_switched = (uint64_t)p->switching.n_loads;
    out->switch_s = (double)p->switching.load_ns * 1e-9;
    out->switch_exposed_s = (double)p->switching.exposed_ns * 1e-9;
    out->switch_blocks = p->switching.n_blocks;
    out->switch_planned_stall_s = p->switching.planned_stall_us * 1e-6;
    tn_loader_stats l;
    tn_loader_stats_get(s->e->npu->loader, &l);
    out->read_bytes = l.n_read_bytes;
    out->read_s = (double)l.read_ns * 1e-9;
    out->unpack_s = (double)l.unpack_ns * 1e-9;
    out->load_s = (double)l.load_ns * 1e-9;
    out->loaded_s = (double)l.done_ns * 1e-9;
    out->read_method = l.method;
    out->unpacked_by_device = l.n_unpacked_by_device;
    if (!s->e->npu->on_demand) return all;
    tn_on_demand_stats d;
    tn_on_demand_stats_get(s->e->npu->on_demand, &d);
    out->experts_bytes = d.all_bytes;
    out->experts_room_bytes = (uint64_t)d.n_slots * d.slot_bytes;
    out->experts_taken = d.n_taken;
    out->experts_hits = d.n_hits;
    out->experts_ahead = d.n_ahead;
    out->experts_read_bytes = d.n_read_bytes;
    out->experts_wait_s = (double)d.wait_ns * 1e-9;
    out->experts_chosen = d.n_predicted;
    out->experts_foreseen = d.n_right;
    return all;
}

void tn_session_stats(const tern_session *s, tn_stats *out) { *out = stats_of(s); }

tern_status tern_session_write_trace(const tern_session *s, const char *path, tern_error *err) {
    TN_FAIL_IF(!s || !path, err, TERN_E_INVALID, "no session or no path given");
    TN_FAIL_IF(!s->timeline, err, TERN_E_INVALID,
               "nothing was recorded: only a package that is opened with the option trace records");
    return tn_timeline_save_trace(s->timeline, (tn_ctx *)&s->e->ctx, path, err);
}

tern_status tern_session_write_gantt(const tern_session *s, int fd, int32_t width, tern_error *err) {
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "no session given");
    TN_FAIL_IF(!s->timeline, err, TERN_E_INVALID,
               "nothing was recorded: only a package that is opened with the option trace records");
#ifdef TERN_MINIMAL
    (void)fd, (void)width;
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "this build of tern draws no charts: tern_session_write_trace writes the same as JSON");
#else
    int copy = dup(fd);
    FILE *f = copy >= 0 ? fdopen(copy, "w") : NULL;
    if (!f && copy >= 0) close(copy);
    TN_FAIL_IF(!f, err, TERN_E_IO, "cannot write the chart: %s", strerror(errno));
    tern_status st = tn_timeline_write_gantt(s->timeline, -1, width > 0 ? width : 100, isatty(fd), f, err);
    if (st == TERN_OK) st = tn_timeline_write_summary(s->timeline, -1, f, err);
    fclose(f);
    return st;
#endif
}
