/* In-context distribution calibration (sd.npu 4.3): the model's own predictions at every place of the text become a token tree.
 * Sample: the likeliest successors of each place, among the tokens of the text. Search: a proposed token's places in the text are
 * looked up, and their successors are proposed behind it, and so on; likelier paths first. */
#include "draft/source.h"

#include <math.h>

enum { EXPANSIONS = 24, PLACES = 24, PAIR_PLACES = 3, TOKEN_PLACES = 2 };

static uint8_t level(float gap) { return gap > 4 ? 0 : gap > 2 ? 1 : gap > 1 ? 2 : 3; }

void tn_successors_of(const tn_text *t, const float *logits, int32_t n_vocabulary, bool all_ids, tn_successors *out) {
    float best[TN_SUCCESSORS];
    for (int s = 0; s < TN_SUCCESSORS; s++) {
        best[s] = -INFINITY;
        out->id[s] = -1;
    }
    for (int32_t i = 0; i < n_vocabulary; i++) {
        int32_t id = t->vocab[i];
        float x = logits[all_ids ? id : i];
        if (!(x > best[TN_SUCCESSORS - 1])) continue;
        int s = TN_SUCCESSORS - 1;
        for (; s > 0 && best[s - 1] < x; s--) {
            best[s] = best[s - 1];
            out->id[s] = out->id[s - 1];
        }
        best[s] = x;
        out->id[s] = id;
    }
    /* the first by its lead, the others by how little they lack: level 0 is the most certain either way */
    out->gap[0] = level(best[0] - best[1]);
    for (int s = 1; s < TN_SUCCESSORS; s++) out->gap[s] = (uint8_t)(3 - level(best[0] - best[s]));
}

static void add_successors(const tn_successors *x, int32_t node, bool pair, tn_proposals *p) {
    for (int s = 0; s < TN_SUCCESSORS && x->id[s] >= 0; s++) {
        tn_prop_add(p, node, x->id[s], TN_CLASS_CALIBRATED + (pair ? 0 : 12) + s * 4 + x->gap[s]);
    }
}

void tn_propose_calibrated(const tn_text *t, const tn_successors *succ, int32_t n_succ, tn_proposals *p) {
    bool done[TN_PROP_MAX] = {false};
    for (int e = 0; e < EXPANSIONS && p->n < TN_PROP_MAX; e++) {
        int32_t node = -1;
        for (int32_t i = 0; i < p->n; i++) {
            if (!done[i] && p->node[i].depth < TN_TREE_MAX - 1 && (node < 0 || p->node[i].p > p->node[node].p)) node = i;
        }
        if (node < 0 || p->node[node].p < 0.02f) return;
        done[node] = true;
        int32_t token = p->node[node].token, before = node ? p->node[p->node[node].parent].token : t->n > 1 ? t->ids[t->n - 2] : -1;
        int n_pairs = 0, n_tokens = 0, n_places = 0;
        for (int32_t i = t->last[token]; i >= 0 && n_places < PLACES && n_pairs < PAIR_PLACES; i = t->prev[i], n_places++) {
            if (i >= n_succ || succ[i].id[0] < 0) continue;
            bool pair = i > 0 && t->ids[i - 1] == before;
            if (!pair && n_tokens == TOKEN_PLACES) continue;
            add_successors(&succ[i], node, pair, p);
            if (pair) n_pairs++;
            else n_tokens++;
        }
    }
}
