#include "model/sampler.h"

#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

tern_status tn_sampler_open(tn_ctx *ctx, const tern_sampling *p, size_t n_vocab, tn_sampler *out,
                            tern_error *err) {
    *out = (tn_sampler){.ctx = ctx, .p = *p, .n_vocab = n_vocab};
    tn_mt_seed(&out->rng, p->seed);
    TN_FAIL_IF(!(p->temperature >= 0) || !isfinite(p->temperature), err, TERN_E_INVALID,
               "temperature %g: want a number >= 0", (double)p->temperature);
    TN_FAIL_IF(p->top_k < 0, err, TERN_E_INVALID, "top_k %d: want 0 (off) or more", p->top_k);
    TN_FAIL_IF(!(p->top_p > 0 && p->top_p <= 1), err, TERN_E_INVALID, "top_p %g: want a number in (0, 1]",
               (double)p->top_p);
    TN_FAIL_IF(!(p->min_p >= 0 && p->min_p < 1), err, TERN_E_INVALID, "min_p %g: want a number in [0, 1)",
               (double)p->min_p);
    TN_FAIL_IF(!(p->repeat_penalty > 0) || !isfinite(p->repeat_penalty), err, TERN_E_INVALID,
               "repeat_penalty %g: want a number > 0", (double)p->repeat_penalty);
    TN_FAIL_IF(p->repeat_last_n < -1, err, TERN_E_INVALID, "repeat_last_n %d: want -1 (all) or more",
               p->repeat_last_n);
    out->cand = tn_alloc(ctx, TN_MEM_OTHER, n_vocab, sizeof *out->cand);
    out->seen = tn_calloc(ctx, TN_MEM_OTHER, n_vocab, 1);
    if (p->repeat_penalty != 1.0f)
        out->penalised = tn_alloc(ctx, TN_MEM_OTHER, n_vocab, sizeof *out->penalised);
    if (out->cand && out->seen && (out->penalised || p->repeat_penalty == 1.0f)) return TERN_OK;
    tn_sampler_close(out);
    return tn_fail(err, TERN_E_MEMORY, "no memory to sample from %zu tokens", n_vocab);
}

void tn_sampler_close(tn_sampler *s) {
    tn_free(s->ctx, s->cand);
    tn_free(s->ctx, s->seen);
    tn_free(s->ctx, s->penalised);
    s->cand = NULL;
    s->seen = NULL;
    s->penalised = NULL;
}

int tn_top_logits(const float *logits, size_t n_vocab, int k, int32_t *ids, float *best) {
    enum { BLOCK = 64 }; /* looked through at once for anything that would count */
    int n = 0;
    float least = -INFINITY;
    for (size_t b = 0; b < n_vocab; b += BLOCK) {
        size_t end = n_vocab - b < BLOCK ? n_vocab : b + BLOCK;
        if (end - b == BLOCK) {
            int any = 0;
            for (size_t i = 0; i < BLOCK; i++) any |= logits[b + i] > least;
            if (!any) continue;
        }
        for (size_t i = b; i < end; i++) {
            float x = logits[i];
            if (!(x > least)) continue;
            int j = n < k ? n++ : k - 1;
            for (; j > 0 && best[j - 1] < x; j--) {
                best[j] = best[j - 1];
                ids[j] = ids[j - 1];
            }
            best[j] = x;
            ids[j] = (int32_t)i;
            if (n == k) least = best[k - 1];
        }
    }
    return n;
}

int tn_top_logprobs(const float *logits, size_t n_vocab, int k, int32_t *ids, float *logprobs) {
    int n = k > 0 ? tn_top_logits(logits, n_vocab, k, ids, logprobs) : 0;
    if (!n) return 0;
    double max = (double)logprobs[0], sum = 0;
    for (size_t i = 0; i < n_vocab; i++)
        if (logits[i] > -INFINITY) sum += exp((double)logits[i] - max);
    for (int i = 0; i < n; i++) logprobs[i] = (float)((double)logprobs[i] - max - log(sum));
    return n;
}

/* NaN counts as -infinity. */
int32_t tn_argmax(const float *logits, size_t n_vocab) {
    int32_t id;
    float best;
    return tn_top_logits(logits, n_vocab, 1, &id, &best) ? id : 0;
}

float tn_logprob(const float *logits, size_t n_vocab, int32_t id) {
    float max = -INFINITY;
    for (size_t i = 0; i < n_vocab; i++) max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (size_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - (double)max);
    return (float)((double)logits[id] - (double)max - log(sum));
}

static int by_logit(const void *a, const void *b) {
    const tn_candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Move the k best to the front, in no order (quickselect). */
static void select_top(tn_candidate *c, size_t n, size_t k) {
    size_t lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        tn_candidate pivot = c[lo + (hi - lo) / 2];
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (by_logit(&c[i], &pivot) < 0) i++;
            while (by_logit(&c[j], &pivot) > 0) j--;
            if (i >= j) break;
            tn_candidate t = c[i];
            c[i++] = c[j];
            c[j--] = t;
        }
        size_t mid = j + 1; /* c[lo..mid) is not worse than c[mid..hi) */
        if (mid == hi) mid--;
        if (k <= mid) hi = mid;
        else lo = mid;
    }
}

/* The logits with the penalty, where there is one. */
static const float *penalise(tn_sampler *s, const float *logits, const int32_t *history, size_t n_history) {
    if (s->p.repeat_penalty == 1.0f) return logits;
    memcpy(s->penalised, logits, s->n_vocab * sizeof *logits);
    size_t n = s->p.repeat_last_n < 0 ? n_history : (size_t)s->p.repeat_last_n;
    if (n > n_history) n = n_history;
    const int32_t *h = history + (n_history - n);
    for (size_t i = 0; i < n; i++) {
        size_t id = (size_t)h[i];
        if (id >= s->n_vocab || s->seen[id]) continue; /* beyond it: a row of a picture */
        s->seen[id] = 1;
        float *l = &s->penalised[id];
        *l = *l > 0 ? *l / s->p.repeat_penalty : *l * s->p.repeat_penalty;
    }
    for (size_t i = 0; i < n; i++)
        if ((size_t)h[i] < s->n_vocab) s->seen[h[i]] = 0;
    return s->penalised;
}

/* The top_k candidates in order, or all. */
static size_t candidates(tn_sampler *s, const float *logits) {
    enum { FEW = 128 }; /* of which a scan of the logits finds the best without touching the others */
    tn_candidate *c = s->cand;
    size_t n = s->n_vocab;
    const bool some = s->p.top_k > 0 && (size_t)s->p.top_k < n;
    if (some && s->p.top_k <= FEW) {
        int32_t ids[FEW];
        float best[FEW];
        const int n_best = tn_top_logits(logits, n, s->p.top_k, ids, best);
        c[0] = (tn_candidate){.logit = -INFINITY};
        for (int i = 0; i < n_best; i++) c[i] = (tn_candidate){.id = ids[i], .logit = best[i]};
        return n_best ? (size_t)n_best : 1;
    }
    for (size_t i = 0; i < n; i++)
        c[i] = (tn_candidate){.id = (int32_t)i, .logit = isnan(logits[i]) ? -INFINITY : logits[i]};
    if (some) {
        select_top(c, n, (size_t)s->p.top_k);
        n = (size_t)s->p.top_k;
    }
    qsort(c, n, sizeof *c, by_logit);
    while (n > 1 && c[n - 1].logit == -INFINITY) n--;
    return n;
}

static void normalise(tn_candidate *c, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += c[i].p = exp((double)c[i].logit - (double)c[0].logit);
    for (size_t i = 0; i < n; i++) c[i].p /= sum;
}

size_t tn_sampler_distribution(tn_sampler *s, const float *logits, const int32_t *history, size_t n_history) {
    tn_candidate *c = s->cand;
    logits = penalise(s, logits, history, n_history);
    if (s->p.temperature == 0) {
        const int32_t best = tn_argmax(logits, s->n_vocab);
        c[0] = (tn_candidate){.id = best, .logit = logits[best], .p = 1};
        return 1;
    }
    size_t n = candidates(s, logits);
    normalise(c, n);
    if (s->p.top_p < 1) {
        double sum = 0;
        size_t keep = 0;
        while (keep < n && sum < (double)s->p.top_p) sum += c[keep++].p;
        n = keep ? keep : 1;
    }
    if (s->p.min_p > 0) {
        size_t keep = 1;
        while (keep < n && c[keep].p >= (double)s->p.min_p * c[0].p) keep++;
        n = keep;
    }
    for (size_t i = 0; i < n; i++) c[i].logit /= s->p.temperature;
    normalise(c, n);
    return n;
}

int32_t tn_sampler_draw(tn_sampler *s, const float *logits, const int32_t *history, size_t n_history) {
    s->n_drawn = 0;
    if (s->p.temperature == 0 && s->p.repeat_penalty == 1.0f) return tn_argmax(logits, s->n_vocab);
    size_t n = s->n_drawn = tn_sampler_distribution(s, logits, history, n_history);
    if (n == 1) return s->cand[0].id;
    double u = tn_mt_f64(&s->rng), sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += s->cand[i].p;
        if (sum >= u) return s->cand[i].id;
    }
    return s->cand[n - 1].id;
}
