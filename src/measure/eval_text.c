#include "measure/eval_text.h"

#include "base/order.h"
#include "base/status.h"
#include "session/session.h"
#include "model/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

tn_estimate tn_eval_estimate(const double *x, size_t n) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    double mean = n ? sum / (double)n : 0;
    for (size_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    return (tn_estimate){mean, n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : 0};
}

double tn_eval_p(tn_estimate d) {
    if (d.stderr_ > 0) return erfc(fabs(d.value) / d.stderr_ / sqrt(2));
    return d.value == 0 ? 1 : 0;
}

/* A reader is one model and what it said of every scored token. */
typedef struct reader {
    tern_engine *e;
    tern_session *s;
    double *nll, *kl, *same;
    size_t n; /* tokens scored */
} reader;

typedef struct text_run {
    reader source, model, against; /* without an engine: not asked for */
    int32_t *ids;
    size_t n_ids, n_vocab;
    float *source_logp; /* [rows scored in a window][n_vocab] */
    /* of the window that is read */
    const int32_t *window;
    size_t n_window, first;
    reader *now;
} text_run;

static double log_sum(const float *logits, size_t n) {
    float max = -INFINITY;
    double sum = 0;
    for (size_t i = 0; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)max);
    return (double)max + log(sum);
}

static bool on_logits(void *user, size_t i, const float *logits) {
    text_run *t = user;
    reader *r = t->now;
    if (i < t->first || i + 1 >= t->n_window) return true;
    size_t n = t->n_vocab;
    double total = log_sum(logits, n);
    float *logp = t->source_logp ? t->source_logp + (i - t->first) * n : NULL;
    r->nll[r->n] = total - (double)logits[t->window[i + 1]];
    if (logp && r == &t->source) {
        for (size_t v = 0; v < n; v++) logp[v] = (float)((double)logits[v] - total);
    } else if (logp) {
        double kl = 0;
        for (size_t v = 0; v < n; v++) {
            double p = (double)logp[v];
            if (p > -80) kl += exp(p) * (p - ((double)logits[v] - total));
        }
        r->kl[r->n] = kl;
        r->same[r->n] = tn_argmax(logits, n) == tn_argmax(logp, n);
    }
    r->n++;
    return true;
}

/* ---- before the first window --------------------------------------------------------------------- */

static tern_status tokens_of(tern_engine *e, const tn_eval_options *o, const char *text, size_t n_bytes,
                             bool special, int32_t **ids, size_t *n, tern_error *err) {
    TN_FAIL_IF(!e->model->tokenizer, err, TERN_E_UNSUPPORTED, "this model has no tokenizer");
    size_t cap = n_bytes + 16;
    *ids = malloc(cap * sizeof **ids);
    TN_FAIL_IF(!*ids, err, TERN_E_MEMORY, "no memory for the tokens of %s", o->data);
    return tern_tokenize(e, text, n_bytes, special, false, *ids, cap, n, err);
}

/* Checks that the other model sees the same tokens as the first one. */
static tern_status check_same(const text_run *t, tern_engine *other, const tn_eval_options *o,
                              const char *text, size_t n_bytes, bool special, tern_error *err) {
    int32_t *ids = NULL;
    size_t n = 0;
    tern_status st = tokens_of(other, o, text, n_bytes, special, &ids, &n, err);
    bool same = st == TERN_OK && n == t->n_ids && !memcmp(ids, t->ids, n * sizeof *ids) &&
                (size_t)other->model->h.n_vocab == t->n_vocab;
    free(ids);
    TN_TRY(st);
    TN_FAIL_IF(!same, err, TERN_E_INVALID,
               "the models do not see the same tokens: %zu of a vocabulary of %zu, and %zu of %d", t->n_ids,
               t->n_vocab, n, other->model->h.n_vocab);
    return TERN_OK;
}

static tern_status open_reader(reader *r, tern_engine *e, int32_t n_ctx, size_t cap, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n_ctx;
    r->e = e;
    r->nll = malloc(cap * sizeof *r->nll);
    r->kl = malloc(cap * sizeof *r->kl);
    r->same = malloc(cap * sizeof *r->same);
    TN_FAIL_IF(!r->nll || !r->kl || !r->same, err, TERN_E_MEMORY, "no memory for the scores of %zu tokens",
               cap);
    return tern_session_open(e, &so, &r->s, err);
}

static void close_reader(reader *r) {
    tern_session_close(&r->s);
    free(r->nll);
    free(r->kl);
    free(r->same);
}

static bool adds_bos(const tern_engine *e, int32_t *bos) {
    int32_t one;
    size_t n = 0;
    *bos = tn_tokenizer_bos(e->model->tokenizer);
    return *bos >= 0 && tern_tokenize(e, "", 0, true, false, &one, 1, &n, NULL) == TERN_OK && n == 1 &&
           one == *bos;
}

/* ---- windows ------------------------------------------------------------------------------------- */

static tern_status read_window(text_run *t, reader *r, tern_error *err) {
    if (!r->e) return TERN_OK;
    t->now = r;
    return tern_session_score(r->s, t->window, t->n_window, t->first, on_logits, t, err);
}

static tern_status read_windows(text_run *t, const tn_eval_options *o, size_t n_ctx, bool halves,
                                tern_error *err) {
    int32_t bos;
    bool has_bos = adds_bos(t->model.e, &bos);
    size_t n_windows = halves ? t->n_ids / n_ctx : (t->n_ids + n_ctx - 1) / n_ctx;
    if (o->limit > 0 && n_windows > (size_t)o->limit) n_windows = (size_t)o->limit;
    for (size_t done = 0; done < n_windows; done++) {
        int32_t *w = t->ids + done * n_ctx;
        t->window = w;
        t->n_window = t->n_ids - done * n_ctx < n_ctx ? t->n_ids - done * n_ctx : n_ctx;
        t->first = halves ? n_ctx / 2 : 0;
        if (t->n_window < 2) break;
        int32_t first = w[0];
        if (has_bos) w[0] = bos; /* a model that expects BOS gets it in place of the window's first token */
        tern_status st = read_window(t, &t->source, err);
        if (st == TERN_OK) st = read_window(t, &t->model, err);
        if (st == TERN_OK) st = read_window(t, &t->against, err);
        w[0] = first;
        TN_TRY(st);
        if (o->progress)
            o->progress(o->user, (int64_t)done + 1, (int64_t)n_windows,
                        exp(tn_eval_estimate(t->model.nll, t->model.n).value));
    }
    return TERN_OK;
}

/* ---- results ------------------------------------------------------------------------------------- */

static tn_estimate difference(const double *a, const double *b, size_t n) {
    double mean = 0, squares = 0;
    for (size_t i = 0; i < n; i++) mean += (a[i] - b[i]) / (double)n;
    for (size_t i = 0; i < n; i++) squares += (a[i] - b[i] - mean) * (a[i] - b[i] - mean);
    return (tn_estimate){mean, n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : 0};
}

/* Computes the loss. It sorts r's divergences, so differences of them are taken before. */
static tn_eval_loss loss_of(reader *r, const reader *source) {
    tn_eval_loss l = {.nll_diff = difference(r->nll, source->nll, r->n),
                      .kl = tn_eval_estimate(r->kl, r->n),
                      .same_top = tn_eval_estimate(r->same, r->n)};
    qsort(r->kl, r->n, sizeof *r->kl, tn_by_double);
    l.kl_p99 = r->kl[(size_t)((double)(r->n - 1) * 0.99)];
    l.kl_max = r->kl[r->n - 1];
    return l;
}

static void results(text_run *t, tn_eval_result *out) {
    size_t n = t->model.n;
    tn_estimate nll = tn_eval_estimate(t->model.nll, n);
    *out = (tn_eval_result){.is_ppl = true,
                            .n_items = (int64_t)n,
                            .value = exp(nll.value),
                            .perplexity = exp(nll.value),
                            .stderr_ = exp(nll.value) * nll.stderr_, /* delta method */
                            .has_source = t->source.e,
                            .has_against = t->against.e};
    tn_session_stats(t->model.s, &out->stats);
    if (t->against.e) {
        out->against_value = exp(tn_eval_estimate(t->against.nll, n).value);
        out->paired = difference(t->model.nll, t->against.nll, n);
        if (t->source.e) out->paired_kl = difference(t->model.kl, t->against.kl, n);
    }
    if (!t->source.e) return;
    out->source_value = exp(tn_eval_estimate(t->source.nll, n).value);
    out->loss = loss_of(&t->model, &t->source);
    if (t->against.e) out->against_loss = loss_of(&t->against, &t->source);
}

tern_status tn_eval_text(tern_engine *e, const tn_eval_options *o, const char *text, size_t n_bytes,
                         tn_eval_result *out, tern_error *err) {
    bool halves = o->protocol && !strcmp(o->protocol, "llama.cpp");
    TN_FAIL_IF(o->protocol && !halves && strcmp(o->protocol, "windows"), err, TERN_E_INVALID,
               "protocol '%s' is unknown; there are windows, llama.cpp", o->protocol);
    int32_t n_ctx = o->n_ctx ? o->n_ctx : e->model->h.ctx_train > 512 ? 512 : e->model->h.ctx_train;
    text_run t = {.n_vocab = (size_t)e->model->h.n_vocab};
    tern_status st = tokens_of(e, o, text, n_bytes, halves, &t.ids, &t.n_ids, err);
    if (st == TERN_OK && t.n_ids < 2)
        st = tn_fail(err, TERN_E_FORMAT, "%s has %zu tokens, perplexity needs 2", o->data, t.n_ids);
    if (st == TERN_OK && halves && t.n_ids < 2 * (size_t)n_ctx)
        st = tn_fail(err, TERN_E_FORMAT, "%s has %zu tokens, two windows of %d are needed", o->data, t.n_ids,
                     n_ctx);
    if (st == TERN_OK) st = open_reader(&t.model, e, n_ctx, t.n_ids, err);
    if (st == TERN_OK && o->source) {
        st = check_same(&t, o->source, o, text, n_bytes, halves, err);
        if (st == TERN_OK) st = open_reader(&t.source, o->source, n_ctx, t.n_ids, err);
        t.source_logp = st == TERN_OK ? malloc((size_t)n_ctx * t.n_vocab * sizeof *t.source_logp) : NULL;
        if (st == TERN_OK && !t.source_logp)
            st = tn_fail(err, TERN_E_MEMORY, "no memory for the source's predictions (%zu bytes)",
                         (size_t)n_ctx * t.n_vocab * sizeof *t.source_logp);
    }
    if (st == TERN_OK && o->against) {
        st = check_same(&t, o->against, o, text, n_bytes, halves, err);
        if (st == TERN_OK) st = open_reader(&t.against, o->against, n_ctx, t.n_ids, err);
    }
    if (st == TERN_OK) st = read_windows(&t, o, (size_t)n_ctx, halves, err);
    if (st == TERN_OK) results(&t, out);
    close_reader(&t.model);
    close_reader(&t.source);
    close_reader(&t.against);
    free(t.source_logp);
    free(t.ids);
    return st;
}
