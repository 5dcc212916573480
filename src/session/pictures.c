#include "session/pictures.h"

#include "base/status.h"
#include "model/axes.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

struct tn_session_rows {
    tn_extra_rows extra; /* the evaluator's; spans in the order of their ids */
    tn_seen **views;     /* [n] held */
    size_t n;
};

static int by_id(const void *a, const void *b) {
    const tn_seen *x = *(tn_seen *const *)a, *y = *(tn_seen *const *)b;
    return x->first < y->first ? -1 : x->first > y->first;
}

static tern_status make(tern_session *s, tn_seen *const *views, size_t n, tn_session_rows **out,
                        tern_error *err) {
    tn_ctx *ctx = &s->e->ctx;
    tn_session_rows *r = *out = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *r);
    tn_extra_span *spans = r ? tn_alloc(ctx, TN_MEM_OTHER, n, sizeof *spans) : NULL;
    if (spans) r->views = tn_alloc(ctx, TN_MEM_OTHER, n, sizeof(tn_seen *));
    if (!spans || !r->views) {
        tn_free(ctx, spans);
        tn_free(ctx, r);
        return tn_fail(err, TERN_E_MEMORY, "no memory for %zu views of pictures", n);
    }
    memcpy(r->views, views, n * sizeof(tn_seen *));
    qsort(r->views, n, sizeof(tn_seen *), by_id);
    for (size_t i = 0; i < n; i++) tn_sight_hold(s->e, r->views[i]);
    for (size_t i = 0; i < n; i++)
        spans[i] = (tn_extra_span){r->views[i]->first,
                                   r->views[i]->n,
                                   atomic_load(&r->views[i]->x),
                                   atomic_load(&r->views[i]->whole),
                                   atomic_load(&r->views[i]->columns),
                                   atomic_load(&r->views[i]->in_windows)};
    r->n = n;
    r->extra = (tn_extra_rows){
        .first = s->e->model->h.n_vocab, .width = tn_sight_row_width(s->e), .n = n, .spans = spans};
    return TERN_OK;
}

tern_status tn_session_see(tern_session *s, tn_seen *const *views, size_t n, tern_error *err) {
    tn_session_rows *r = NULL;
    if (n) TN_TRY(make(s, views, n, &r, err));
    tn_session_rows_close(s);
    s->pictures = r;
    if (r) s->evaluator->ops->see(s->evaluator, &r->extra);
    return TERN_OK;
}

tern_status tn_session_look(tern_session *s, tn_look *const *looks, size_t n, tern_error *err) {
    tn_ctx *ctx = &s->e->ctx;
    size_t n_views = 0, at = 0;
    for (size_t i = 0; i < n; i++) n_views += (size_t)looks[i]->medium.n_views;
    tn_seen **views = tn_alloc(ctx, TN_MEM_OTHER, n_views + 1, sizeof(tn_seen *));
    TN_FAIL_IF(!views, err, TERN_E_MEMORY, "no memory for %zu views of pictures", n_views);
    for (size_t i = 0; i < n; i++) {
        memcpy(views + at, looks[i]->views, (size_t)looks[i]->medium.n_views * sizeof(tn_seen *));
        at += (size_t)looks[i]->medium.n_views;
    }
    tern_status st = tn_session_see(s, views, n_views, err);
    tn_free(ctx, views);
    return st;
}

bool tn_session_has_row(const tern_session *s, int32_t id) {
    return s->pictures && tn_extra_row(&s->pictures->extra, id);
}

void tn_session_axes(tern_session *s, int32_t n) {
    const tn_extra_rows *e = s->pictures ? &s->pictures->extra : NULL;
    for (int32_t i = s->n_tok - n; s->next && i < s->n_tok; i++)
        s->next[i] = tn_axes_next(e, s->tokens[i], i ? s->next[i - 1] : 0);
}

static void let_go(tern_session *s, tn_session_rows *r) {
    for (size_t i = 0; i < r->n; i++) tn_sight_let_go(s->e, r->views[i]);
    tn_free(&s->e->ctx, (void *)(uintptr_t)r->extra.spans);
    tn_free(&s->e->ctx, r->views);
    tn_free(&s->e->ctx, r);
}

tern_status tn_session_axes_of(tern_session *s, int32_t n, tn_seen *const *views, size_t n_views,
                               tern_error *err) {
    tn_session_rows *r = NULL;
    if (!s->next) return TERN_OK;
    if (n_views) TN_TRY(make(s, views, n_views, &r, err));
    for (int32_t i = 0; i < n; i++)
        s->next[i] = tn_axes_next(r ? &r->extra : NULL, s->tokens[i], i ? s->next[i - 1] : 0);
    if (r) let_go(s, r);
    return TERN_OK;
}

/* The picture whose rows see each other and that a piece cuts whose last row has this id; NULL: it cuts none. */
static const tn_extra_span *cut_by(const tn_extra_rows *e, int32_t id) {
    const tn_extra_span *s = id >= e->first ? tn_extra_span_of(e, id) : NULL;
    return s && s->whole && id < s->first + s->n - 1 ? s : NULL;
}

tern_status tn_session_whole(const tern_session *s, const int32_t *tokens, size_t n, int32_t most,
                             int32_t *rows, tern_error *err) {
    const tn_extra_rows *e = s->pictures ? &s->pictures->extra : NULL;
    const tn_evaluator *v = s->evaluator;
    const tn_extra_span *span = NULL;
    const int32_t end = n < (size_t)most ? (int32_t)n : most;
    int32_t at = 0; /* where a chunk of the evaluator's ends */
    *rows = end;
    while (e && !span && at < end) {
        at += v->ops->chunk_rows(v, s->n_tok + at);
        span = cut_by(e, tokens[(at < end ? at : end) - 1]);
    }
    if (!span) return TERN_OK;
    if (at > end) at = end;
    const int32_t before = tokens[at - 1] - span->first + 1, left = span->n - before;
    TN_FAIL_IF((size_t)(at + left) > n, err, TERN_E_INVALID,
               "the prompt ends within a picture: %zu rows are missing", (size_t)(at + left) - n);
    *rows = before < at ? at - before : at + left; /* the text in front of it, or all that is left of it */
    const int32_t one = v->ops->chunk_rows(v, 0);
    TN_FAIL_IF(before >= at && *rows > one, err, TERN_E_LIMIT,
               "a picture has %d rows that see each other, and %d are read at once", span->n, one);
    return TERN_OK;
}

tern_status tn_session_see_same(tern_session *dst, const tern_session *src, tern_error *err) {
    const tn_session_rows *r = src->pictures;
    if (dst == src) return TERN_OK;
    return tn_session_see(dst, r ? r->views : NULL, r ? r->n : 0, err);
}

void tn_session_rows_close(tern_session *s) {
    tn_session_rows *r = s->pictures;
    s->pictures = NULL;
    if (!r) return;
    if (s->evaluator) s->evaluator->ops->see(s->evaluator, NULL);
    let_go(s, r);
}
