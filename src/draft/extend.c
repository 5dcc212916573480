/* Draft extension (sd.npu 4.4): what the model agreed with after a rejection is likely to follow once the
 * divergence is over. */
#include "draft/source.h"

#include <string.h>

/* Whether the model expects `token` at this row, compared only with the tokens of the text, since drafts
 * consist of those. That is cheaper than the whole vocabulary, and an error only costs a worse draft. */
static bool expects(const tn_text *t, const float *logits, int32_t token) {
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (logits[t->vocab[i]] > logits[token]) return false;
    }
    return true;
}

void tn_segments_keep(tn_segments *s, const tn_text *t, const tn_tree *tree, int32_t last,
                      const float *logits, size_t n_vocab) {
    /* the likeliest rejected chain: first children (rows are in order of likelihood) from `last` down */
    int32_t chain[TN_TREE_MAX], n = 0;
    for (int32_t row = last, i = last + 1; i < tree->n; i++) {
        if (tree->parent[i] == row) chain[n++] = row = i;
    }
    int32_t best = 0, from = 0;
    for (int32_t i = 1, run = 0; i < n; i++) {
        run = expects(t, logits + (size_t)chain[i - 1] * n_vocab, tree->token[chain[i]]) ? run + 1 : 0;
        if (run <= best) continue;
        best = run;
        from = i + 1 - run;
    }
    if (!best) return;
    if (from == 1) { /* tokens may only be missing before the draft, which then continues with the rejected
                        token itself */
        from = 0;
        best++;
    }
    tn_segment *g = &s->seg[s->next];
    s->next = (s->next + 1) % TN_SEGMENTS;
    *g = (tn_segment){.n = best};
    for (int32_t i = 0; i < best; i++) g->ids[i] = tree->token[chain[from + i]];
}

void tn_segments_age(tn_segments *s) {
    for (int i = 0; i < TN_SEGMENTS; i++) {
        if (s->seg[i].n && ++s->seg[i].age >= TN_SEGMENT_LIFE) s->seg[i].n = 0;
    }
}

static void append(const tn_segment *g, int32_t from, int32_t node, int first_class, tn_proposals *p) {
    for (int32_t i = from; i < g->n && node >= 0 && p->node[node].depth < TN_TREE_MAX - 1; i++) {
        node = tn_prop_add(p, node, g->ids[i], first_class + (i > from));
    }
}

void tn_propose_extended(const tn_segments *s, tn_proposals *p) {
    int32_t leaf = 0; /* end of the likeliest chain */
    for (int32_t i = 1; i < p->n; i++) {
        if (p->node[i].parent == leaf) leaf = i;
    }
    for (int i = 0; i < TN_SEGMENTS; i++) {
        const tn_segment *g = &s->seg[i];
        if (!g->n) continue;
        int c = TN_CLASS_EXTEND + 2 * g->age;
        int32_t from = 0;
        for (int32_t j = 0; j < g->n; j++) {
            if (g->ids[j] == p->node[0].token) from = j + 1; /* the text has reached the segment */
        }
        append(g, from, 0, c, p);
        if (from == 1 || !from) append(g, 1, 0, c, p);
        if (leaf) append(g, 0, leaf, c, p);
    }
}
