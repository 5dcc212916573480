#include "server/watch.h"

#include "base/clock.h"
#include "session/session.h"
#include "measure/explain.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 16, TOKEN_BYTES = 256, WRONG_BYTES = 512 };

struct tn_watch {
    pthread_mutex_t mu;
    tern_session *s; /* the worker's, between begin and end */
    tn_explain_mark before;
    /* guarded by mu */
    const tern_engine *e;
    int64_t begin_ns, first_ns, end_ns; /* 0: not yet */
    bool reading, done;
    size_t n_prompt, n_cached;
    int32_t n_tokens, n_ctx;
    json_t *tokens, *steps; /* NULL: no memory, or too many */
    tn_explained explained[TN_EXPLAIN_MAX];
    size_t n_explained;
};

tn_watch *tn_watch_open(void) {
    tn_watch *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    pthread_mutex_init(&w->mu, NULL);
    w->tokens = json_array();
    w->steps = json_array();
    return w;
}

void tn_watch_close(tn_watch **pw) {
    tn_watch *w = *pw;
    *pw = NULL;
    if (!w) return;
    json_decref(w->tokens);
    json_decref(w->steps);
    pthread_mutex_destroy(&w->mu);
    free(w);
}

/* ---- the worker's side ----------------------------------------------------------------------------- */

static size_t bytes_of(const tern_engine *e, int32_t token, char out[TOKEN_BYTES]) {
    size_t n = tern_token_bytes(e, token, false, out, TOKEN_BYTES);
    return n < TOKEN_BYTES ? n : TOKEN_BYTES;
}

/* The likeliest proposals after row `last`, as far as they go: what was expected there and did not come. */
static json_t *wrong_text(const tern_engine *e, const tn_tree *t, int32_t last) {
    char text[WRONG_BYTES];
    size_t n = 0;
    for (int32_t i = last + 1, at = last; i < t->n; i++) {
        char token[TOKEN_BYTES];
        if (t->parent[i] != at) continue;
        size_t k = bytes_of(e, t->token[i], token);
        if (n + k > sizeof text) break;
        memcpy(text + n, token, k);
        n += k;
        at = i;
    }
    return tn_json_string(text, n);
}

static void on_step(void *user, const tn_tree *tree, int32_t last) {
    tn_watch *w = user;
    json_t *step = json_array();
    tn_json_append(&step, json_integer(tree->depth[last]));
    tn_json_append(&step, json_integer(tree->n - 1));
    tn_json_append(&step, wrong_text(w->e, tree, last));
    pthread_mutex_lock(&w->mu);
    if (json_array_size(w->steps) < TOKENS_MAX) tn_json_append(&w->steps, step);
    else json_decref(step);
    pthread_mutex_unlock(&w->mu);
}

void tn_watch_begin(tn_watch *w, tern_session *s, size_t n_prompt, size_t n_cached) {
    if (!w) return;
    tn_explain_mark_set(s, &w->before);
    pthread_mutex_lock(&w->mu);
    w->s = s;
    w->e = s->e;
    w->begin_ns = tn_now_ns();
    w->reading = true;
    w->n_prompt = n_prompt;
    w->n_cached = n_cached;
    w->n_ctx = tern_session_capacity(s);
    pthread_mutex_unlock(&w->mu);
    s->drafting.on_step = on_step;
    s->drafting.on_step_user = w;
}

void tn_watch_read(tn_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->mu);
    w->reading = false;
    w->first_ns = tn_now_ns();
    pthread_mutex_unlock(&w->mu);
}

void tn_watch_token(tn_watch *w, int32_t token) {
    char text[TOKEN_BYTES];
    if (!w || token < 0) return;
    json_t *t = tn_json_string(text, bytes_of(w->e, token, text));
    pthread_mutex_lock(&w->mu);
    w->n_tokens++;
    if (json_array_size(w->tokens) < TOKENS_MAX) tn_json_append(&w->tokens, t);
    else json_decref(t);
    pthread_mutex_unlock(&w->mu);
}

void tn_watch_end(tn_watch *w) {
    if (!w || !w->s) return;
    tn_explained all[TN_EXPLAIN_MAX];
    w->s->drafting.on_step = NULL;
    int64_t end_ns = tn_now_ns();
    size_t n = tn_explain_since(w->s, &w->before, all);
    pthread_mutex_lock(&w->mu);
    w->s = NULL;
    w->done = true;
    w->end_ns = end_ns;
    w->n_explained = n;
    memcpy(w->explained, all, n * sizeof *all);
    pthread_mutex_unlock(&w->mu);
}

/* ---- the readers' side ------------------------------------------------------------------------------ */

json_t *tn_watch_progress(tn_watch *w) {
    pthread_mutex_lock(&w->mu);
    int64_t now = tn_now_ns(), read_end = w->first_ns ? w->first_ns : w->done ? w->end_ns : now;
    const char *state = w->done                      ? "done"
                        : !w->begin_ns               ? "waiting"
                        : w->reading || !w->first_ns ? "reading"
                                                     : "writing";
    json_t *v = tn_json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "state", state, "prompt_tokens",
                             (json_int_t)w->n_prompt, "cached_tokens", (json_int_t)w->n_cached, "tokens",
                             (json_int_t)w->n_tokens, "n_ctx", (json_int_t)w->n_ctx, "prefill_s",
                             w->begin_ns ? (double)(read_end - w->begin_ns) * 1e-9 : 0.0, "decode_s",
                             w->first_ns ? (double)((w->done ? w->end_ns : now) - w->first_ns) * 1e-9 : 0.0);
    if (w->begin_ns) tn_json_set(&v, "begin_us", json_integer(w->begin_ns / 1000));
    if (w->first_ns) tn_json_set(&v, "first_us", json_integer(w->first_ns / 1000));
    if (w->done) tn_json_set(&v, "end_us", json_integer(w->end_ns / 1000));
    pthread_mutex_unlock(&w->mu);
    return v;
}

json_t *tn_watch_drafts(tn_watch *w) {
    pthread_mutex_lock(&w->mu);
    /* copies: the lists grow while the reader writes them out */
    json_t *tokens = tn_json_copy_flat(w->tokens), *steps = tn_json_copy_flat(w->steps);
    pthread_mutex_unlock(&w->mu);
    return tn_json_pack("{s:o, s:o}", "tokens", tokens, "steps", steps);
}

json_t *tn_watch_explained(tn_watch *w) {
    json_t *list = json_array();
    pthread_mutex_lock(&w->mu);
    for (size_t i = 0; i < w->n_explained; i++) {
        const tn_explained *x = &w->explained[i];
        json_t *v =
            tn_json_pack("{s:s, s:b, s:s}", "mechanism", x->mechanism, "on", (int)x->on, "text", x->text);
        if (x->of)
            tn_json_set(&v, "saved",
                        tn_json_pack("{s:I, s:I, s:s}", "count", (json_int_t)x->saved, "of",
                                     (json_int_t)x->of, "unit", x->unit));
        tn_json_append(&list, v);
    }
    pthread_mutex_unlock(&w->mu);
    return list;
}
