/* The drafters that copy from the text and from the store. */
#include "draft/source.h"

#include <assert.h>

enum {
    LOOKUP_NGRAM = 3,
    LOOKUP_TOKENS = 10,
    LOOKUP_PLACES = 256
}; /* as in prompt lookup decoding: 3-grams, 10 tokens */
enum { MAIN_TOKENS = TN_TREE_MAX - 1, OTHER_TOKENS = 8, N_OTHERS = 3, N_SHORTER = 2 };
enum { BEHIND_LENGTH = 2 }; /* minimum length of a match after a proposal; one token says little */

void tn_source_guesses(tn_proposals *p) {
    /* Rough rates over the sets of bench/spec.sh: a session starts with these and learns its own. */
    static const float by_length[TN_N_LENGTHS] = {0.23f, 0.48f, 0.75f, 0.82f, 0.87f, 0.94f, 0.94f, 0.98f};
    static const float other[TN_N_LENGTHS] = {0.06f, 0.2f, 0.35f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    static const float shorter[TN_N_LENGTHS] = {0.2f, 0.6f, 0.8f, 0.8f, 0.8f, 0.95f, 0.97f, 0.98f};
    static const float in_store[TN_N_LENGTHS] = {0.2f, 0.37f, 0.4f, 0.6f, 0.7f, 0.88f, 0.95f, 0.98f};
    static const float by_depth[4] = {0.4f, 0.5f, 0.6f, 0.7f};
    static const float calibrated[2 * TN_SUCCESSORS][4] = {
        {0.72f, 0.3f, 0.17f, 0.12f}, {0.1f, 0.075f, 0.07f, 0.025f},  {0.08f, 0.06f, 0.05f, 0.01f},
        {0.2f, 0.1f, 0.09f, 0.06f},  {0.04f, 0.035f, 0.035f, 0.02f}, {0.04f, 0.04f, 0.03f, 0.012f}};
    static const float recalled[6][4] = {{0.88f, 0.8f, 0.6f, 0.4f},      {0.09f, 0.075f, 0.03f, 0.012f},
                                         {0.04f, 0.02f, 0.015f, 0.006f}, {0.45f, 0.43f, 0.3f, 0.17f},
                                         {0.1f, 0.08f, 0.08f, 0.03f},    {0.045f, 0.05f, 0.03f, 0.018f}};
    for (int i = 0; i < TN_PROP_CLASSES; i++) tn_prop_guess(p, i, 0.1f);
    p->sum_kept = p->sum_promised = 4;
    for (int i = 0; i < 12; i++)
        tn_prop_guess(p, TN_CLASS_LOOKUP + i, by_depth[i % 4] * (float)(1 + i / 4) / 3);
    for (int i = 0; i < TN_N_LENGTHS; i++) {
        tn_prop_guess(p, TN_CLASS_SAM + i, by_length[i]);
        tn_prop_guess(p, TN_CLASS_SAM_OTHER + i, other[i]);
        tn_prop_guess(p, TN_CLASS_SAM_SHORTER + i, shorter[i]);
        tn_prop_guess(p, TN_CLASS_STORE + i, in_store[i]);
        tn_prop_guess(p, TN_CLASS_STORE_OTHER + i, other[i]);
    }
    for (int i = 0; i < 8 * TN_SUCCESSORS; i++)
        tn_prop_guess(p, TN_CLASS_CALIBRATED + i, calibrated[i / 4][i % 4]);
    for (int i = 0; i < 8 * TN_RECALLED; i++) {
        int rank = i % (4 * TN_RECALLED) / 4;
        tn_prop_guess(p, TN_CLASS_RECALLED + i,
                      recalled[i / (4 * TN_RECALLED) * 3 + (rank < 2 ? rank : 2)][i % 4]);
    }
    for (int i = 0; i < 8; i++)
        tn_prop_guess(p, TN_CLASS_EXTEND + i, i % 2 ? 0.8f : 0.05f - 0.004f * (float)i);
    for (int i = 0; i < 16; i++) /* outside drafters report their confidence */
        tn_prop_guess(p, TN_CLASS_MODEL + i, 0.1f + 0.1f * (float)(i % 8));
}

static int length_level(int32_t n) {
    static const int32_t up_to[TN_N_LENGTHS - 1] = {1, 2, 3, 5, 8, 16, 32};
    int i = 0;
    while (i < TN_N_LENGTHS - 1 && n > up_to[i]) i++;
    return i;
}

/* Prompt lookup: proposes what follows the latest place where the last 3, 2 or 1 tokens occurred. */
void tn_propose_lookup(const tn_text *t, tn_proposals *p) {
    int32_t best = 0, at = -1, n_seen = 0;
    for (int32_t i = t->prev[t->n - 1]; i >= 0 && n_seen < LOOKUP_PLACES && best < LOOKUP_NGRAM;
         i = t->prev[i], n_seen++) {
        int32_t len = 1;
        while (len < LOOKUP_NGRAM && len <= i && t->ids[i - len] == t->ids[t->n - 1 - len]) len++;
        if (len <= best) continue;
        best = len;
        at = i + 1;
    }
    for (int32_t i = 0, node = 0; i < LOOKUP_TOKENS && best && at + i < t->n && node >= 0; i++) {
        node = tn_prop_add(p, node, t->ids[at + i], TN_CLASS_LOOKUP + (best - 1) * 4 + (i < 3 ? i : 3));
    }
}

/* Copies at most n tokens from position `at` after a node. A copy that reaches the end of the text continues
 * with itself (a period). */
static void copy(const tn_sam *s, int32_t at, int32_t length, int32_t n, int class0, int32_t node,
                 tn_proposals *p) {
    int32_t copied[TN_TREE_MAX], end = tn_sam_length(s);
    for (int32_t i = 0; i < n && node >= 0; i++) {
        int32_t token = at + i < end ? tn_sam_token(s, at + i)
                        : at < end   ? copied[at + i - end]
                                     : TN_SAM_SEPARATOR;
        if (token == TN_SAM_SEPARATOR) break;
        copied[i] = token;
        node = tn_prop_add(p, node, token, class0 + length_level(length + i));
    }
}

static void propose_match(const tn_sam *s, const tn_sam_match *m, int latest, int others, int32_t n_latest,
                          tn_proposals *p) {
    int32_t pos[1 + N_OTHERS], n = tn_sam_next(s, m, pos, 1 + N_OTHERS);
    for (int32_t i = 0; i < n; i++)
        copy(s, pos[i], m->length, i ? OTHER_TOKENS : n_latest, i ? others : latest, 0, p);
}

void tn_propose_sam(const tn_sam *text, tn_proposals *p) {
    tn_sam_match m = tn_sam_self(text);
    if (!m.length) return;
    propose_match(text, &m, TN_CLASS_SAM, TN_CLASS_SAM_OTHER, MAIN_TOKENS, p);
    for (int i = 0; i < N_SHORTER; i++) {
        m = tn_sam_shorter(text, &m);
        if (!m.length) return;
        propose_match(text, &m, TN_CLASS_SAM_SHORTER, TN_CLASS_SAM_SHORTER, OTHER_TOKENS, p);
    }
}

void tn_propose_store(const tn_sam *store, const tn_sam_match *m, tn_proposals *p) {
    if (m->length) propose_match(store, m, TN_CLASS_STORE, TN_CLASS_STORE_OTHER, MAIN_TOKENS, p);
}

void tn_propose_behind(const tn_sam *s, tn_sam_match m, int class0, int32_t node, tn_proposals *p) {
    int32_t path[TN_TREE_MAX], at, n = p->node[node].depth;
    assert(n <= TN_TREE_MAX);
    for (int32_t i = n, up = node; i > 0; up = p->node[up].parent) path[--i] = p->node[up].token;
    for (int32_t i = 0; i < n; i++) tn_sam_follow(s, &m, path[i]);
    if (m.length >= BEHIND_LENGTH && tn_sam_next(s, &m, &at, 1))
        copy(s, at, m.length, OTHER_TOKENS, class0, node, p);
}
