/* In-context distribution calibration (sd.npu 4.3): the model's own predictions become a token tree. It
 * has two sources: for each place of the prompt the likeliest successors among the tokens of the text, and
 * for every row evaluated since, accepted or not, the likeliest successors among all tokens. A search then
 * looks up the places of a proposed token, those after the same token first, proposes their successors,
 * and repeats; likelier paths come first. */
#include "draft/source.h"

#include "model/sampler.h"

#include <math.h>

enum { EXPANSIONS = 24, PLACES = 24, PAIR_PLACES = 3, TOKEN_PLACES = 2, PAIR_RECALLS = 2, TOKEN_RECALLS = 1 };

static uint8_t level(float gap) { return gap > 4 ? 0 : gap > 2 ? 1 : gap > 1 ? 2 : 3; }

/* The first successor is classed by its lead, the others by their distance from it: level 0 is the most
 * certain either way. */
static void levels(const float *best, int n, uint8_t *gap) {
    gap[0] = level(n > 1 ? best[0] - best[1] : INFINITY);
    for (int s = 1; s < n; s++) gap[s] = (uint8_t)(3 - level(best[0] - best[s]));
}

void tn_successors_of(const float *logits, const int32_t *ids, int32_t n, tn_successors *out) {
    float best[TN_SUCCESSORS];
    int n_found = tn_top_logits(logits, (size_t)n, TN_SUCCESSORS, out->id, best);
    for (int s = 0; s < TN_SUCCESSORS; s++) out->id[s] = s < n_found ? ids[out->id[s]] : -1;
    levels(best, n_found, out->gap);
}

void tn_recalls_add(tn_recalls *r, int32_t before, int32_t token, const float *logits, size_t n_vocab) {
    if (r->n == INT32_MAX) return;
    tn_recall *x = &r->ring[r->n % TN_RECALLS];
    float best[TN_RECALLED];
    *x = (tn_recall){.token = token, .before = before, .older = r->latest[token] - 1};
    int n = tn_top_logits(logits, n_vocab, TN_RECALLED, x->id, best);
    for (int s = n; s < TN_RECALLED; s++) x->id[s] = -1;
    levels(best, n, x->gap);
    r->latest[token] = ++r->n;
}

/* Writes the oldest first. */
size_t tn_recalls_out(const tn_recalls *r, int32_t *out) {
    int32_t first = r->n > TN_RECALLS ? r->n - TN_RECALLS : 0;
    for (int32_t i = first; out && i < r->n; i++) {
        const tn_recall *x = &r->ring[i % TN_RECALLS];
        uint32_t gaps = 0;
        *out++ = x->token;
        *out++ = x->before;
        for (int s = 0; s < TN_RECALLED; s++) {
            *out++ = x->id[s];
            gaps |= (uint32_t)(x->id[s] >= 0 ? x->gap[s] : 0) << 2 * s;
        }
        *out++ = (int32_t)gaps;
    }
    return (size_t)(r->n - first) * TN_RECALL_NUMBERS;
}

void tn_recalls_in(tn_recalls *r, const int32_t *in, size_t n, int32_t n_vocab) {
    for (; n >= TN_RECALL_NUMBERS && r->n < INT32_MAX; in += TN_RECALL_NUMBERS, n -= TN_RECALL_NUMBERS) {
        if (in[0] < 0 || in[0] >= n_vocab) continue;
        tn_recall x = {.token = in[0], .before = in[1], .older = r->latest[in[0]] - 1};
        uint32_t gaps = (uint32_t)in[TN_RECALL_NUMBERS - 1];
        bool ends = false;
        for (int s = 0; s < TN_RECALLED; s++) {
            int32_t id = in[2 + s];
            ends |= id < 0 || id >= n_vocab;
            x.id[s] = ends ? -1 : id;
            x.gap[s] = gaps >> 2 * s & 3;
        }
        r->ring[r->n % TN_RECALLS] = x;
        r->latest[in[0]] = ++r->n;
    }
}

static void add_recalled(const tn_recall *x, int32_t node, bool pair, tn_proposals *p) {
    for (int s = 0; s < TN_RECALLED && x->id[s] >= 0; s++) {
        tn_prop_add(p, node, x->id[s], TN_CLASS_RECALLED + (pair ? 0 : 4 * TN_RECALLED) + s * 4 + x->gap[s]);
    }
}

static void expand_recalled(const tn_recalls *r, int32_t node, int32_t before, tn_proposals *p) {
    int n_pairs = 0, n_tokens = 0;
    for (int32_t i = r->latest[p->node[node].token] - 1, n = 0;
         i >= 0 && i >= r->n - TN_RECALLS && n < PLACES && n_pairs < PAIR_RECALLS; n++) {
        const tn_recall *x = &r->ring[i % TN_RECALLS];
        bool pair = x->before == before;
        if (pair || n_tokens < TOKEN_RECALLS) add_recalled(x, node, pair, p);
        n_pairs += pair;
        n_tokens += !pair;
        i = x->older;
    }
}

static void add_successors(const tn_successors *x, int32_t node, bool pair, tn_proposals *p) {
    for (int s = 0; s < TN_SUCCESSORS && x->id[s] >= 0; s++) {
        tn_prop_add(p, node, x->id[s],
                    TN_CLASS_CALIBRATED + (pair ? 0 : 4 * TN_SUCCESSORS) + s * 4 + x->gap[s]);
    }
}

static void expand_prompt(const tn_text *t, const tn_successors *succ, int32_t n_succ, int32_t node,
                          int32_t before, tn_proposals *p) {
    int n_pairs = 0, n_tokens = 0, n_places = 0;
    for (int32_t i = t->last[p->node[node].token]; i >= 0 && n_places < PLACES && n_pairs < PAIR_PLACES;
         i = t->prev[i], n_places++) {
        if (i >= n_succ || succ[i].id[0] < 0) continue;
        bool pair = i > 0 && t->ids[i - 1] == before;
        if (!pair && n_tokens == TOKEN_PLACES) continue;
        add_successors(&succ[i], node, pair, p);
        if (pair) n_pairs++;
        else n_tokens++;
    }
}

void tn_propose_calibrated(const tn_text *t, const tn_successors *succ, int32_t n_succ,
                           const tn_recalls *recalls, tn_proposals *p) {
    bool done[TN_PROP_MAX] = {false};
    float worth = tn_prop_worth(p);
    for (int e = 0; e < EXPANSIONS && p->n < TN_PROP_MAX; e++) {
        int32_t node = -1;
        for (int32_t i = 0; i < p->n; i++) {
            if (!done[i] && p->node[i].depth < TN_TREE_MAX - 1 &&
                (node < 0 || p->node[i].p > p->node[node].p))
                node = i;
        }
        if (node < 0 || p->node[node].p < worth) return;
        done[node] = true;
        int32_t before = node ? p->node[p->node[node].parent].token : t->n > 1 ? t->ids[t->n - 2] : -1;
        expand_recalled(recalls, node, before, p);
        expand_prompt(t, succ, n_succ, node, before, p);
    }
}
