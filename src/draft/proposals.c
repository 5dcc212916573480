#include "draft/proposals.h"

#include <string.h>

static const float GUESS_WEIGHT = 4, MEMORY = 96; /* observations a guess is worth; a class remembers about so many */
static const float MIN_P = 0.02f;                 /* a node below this is not worth a row */
static const float MARGIN = 1.02f;                /* gain a draft must promise: measured times are not exact */
static const float ROW_COST = 0.015f;             /* of a row more, relative to a forward of one, until measured */

void tn_prop_guess(tn_proposals *p, int class_, float rate) {
    p->tried[class_] = GUESS_WEIGHT;
    p->accepted[class_] = GUESS_WEIGHT * rate;
}

float tn_prop_rate(const tn_proposals *p, int class_) { return p->accepted[class_] / p->tried[class_]; }

void tn_prop_begin(tn_proposals *p, int32_t root) {
    p->n = 1;
    p->at = 0;
    p->node[0] = (tn_prop){.token = root, .parent = -1, .child = -1, .sibling = -1, .p = 1};
}

static float node_rate(const tn_proposals *p, const tn_prop *x) {
    float best = 0;
    for (int i = 0; i < x->n_classes; i++) {
        float r = tn_prop_rate(p, x->classes[i]);
        best = r > best ? r : best;
    }
    return best;
}

int32_t tn_prop_add(tn_proposals *p, int32_t parent, int32_t token, int class_) {
    tn_prop *up = &p->node[parent];
    int32_t i = up->child;
    while (i >= 0 && p->node[i].token != token) i = p->node[i].sibling;
    if (i < 0) {
        if (p->n == TN_PROP_MAX) return -1;
        i = p->n++;
        p->node[i] = (tn_prop){.token = token, .parent = (int16_t)parent, .child = -1, .sibling = up->child, .depth = (int16_t)(up->depth + 1)};
        up->child = (int16_t)i;
    }
    tn_prop *x = &p->node[i];
    bool known = x->n_classes == TN_PROP_EVIDENCE;
    for (int c = 0; c < x->n_classes; c++) known |= x->classes[c] == class_;
    if (!known) x->classes[x->n_classes++] = (uint8_t)class_;
    x->p = up->p * node_rate(p, x);
    return i;
}

void tn_prop_judge(tn_proposals *p, int32_t token) {
    if (p->at < 0) return;
    int32_t next = -1;
    for (int32_t i = p->node[p->at].child; i >= 0; i = p->node[i].sibling) {
        const tn_prop *x = &p->node[i];
        bool hit = x->token == token;
        if (hit) next = i;
        for (int c = 0; c < x->n_classes; c++) {
            float *tried = &p->tried[x->classes[c]], *accepted = &p->accepted[x->classes[c]];
            if (*tried >= MEMORY) {
                *tried *= 0.5f;
                *accepted *= 0.5f;
            }
            *tried += 1;
            *accepted += hit;
        }
    }
    p->at = next;
}

void tn_prop_timed(tn_proposals *p, int32_t n_rows, int64_t ns) {
    float *cost = &p->cost_ns[n_rows], x = (float)ns;
    int32_t n = p->n_cost[n_rows]++;
    if (n && x > 3 * *cost) x = 3 * *cost; /* somebody else had the processor */
    *cost = n ? *cost + (x - *cost) / (float)(n < 8 ? n + 1 : 8) : x;
}

/* Time of n rows for every n, from those measured: straight lines between them, the guessed slope beyond. Never falling. */
static void fill_costs(const tn_proposals *p, float *cost) {
    int32_t prev = 0;
    for (int32_t n = 1; n <= TN_TREE_MAX; n++) {
        if (!p->n_cost[n]) continue;
        cost[n] = p->cost_ns[n];
        if (prev && cost[n] < cost[prev]) cost[n] = cost[prev];
        for (int32_t i = prev + 1; i < n; i++) {
            cost[i] = prev ? cost[prev] + (cost[n] - cost[prev]) * (float)(i - prev) / (float)(n - prev) : cost[n];
        }
        prev = n;
    }
    float one = prev ? cost[1] : 1;
    for (int32_t i = prev + 1; i <= TN_TREE_MAX; i++) cost[i] = (prev ? cost[prev] : 1) + one * ROW_COST * (float)(i - (prev ? prev : 1));
}

void tn_prop_choose(const tn_proposals *p, int32_t max_rows, bool eager, tn_tree *out) {
    int32_t order[TN_PROP_MAX], row_of[TN_PROP_MAX], n = 0;
    *out = (tn_tree){0};
    tn_tree_add(out, -1, p->node[0].token);
    if (max_rows > TN_TREE_MAX) max_rows = TN_TREE_MAX;
    if (max_rows <= 1 || p->n == 1) return;
    /* the likeliest max_rows - 1 nodes by insertion: a parent is never less likely than its child and comes first among equals */
    int32_t want = max_rows - 1;
    for (int32_t i = 1; i < p->n; i++) {
        float x = p->node[i].p;
        if (!eager && x < MIN_P) continue;
        if (n == want && x <= p->node[order[n - 1]].p) continue;
        int32_t j = n < want ? n++ : n - 1;
        for (; j > 0 && p->node[order[j - 1]].p < x; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    int32_t best = n;
    if (!eager) {
        float cost[TN_TREE_MAX + 1], sum = 1, best_gain = MARGIN;
        fill_costs(p, cost);
        best = 0;
        for (int32_t i = 0; i < n; i++) {
            sum += p->node[order[i]].p;
            float gain = sum * cost[1] / cost[i + 2];
            if (gain > best_gain) {
                best_gain = gain;
                best = i + 1;
            }
        }
    }
    row_of[0] = 0;
    for (int32_t i = 0; i < best; i++) row_of[order[i]] = tn_tree_add(out, row_of[p->node[order[i]].parent], p->node[order[i]].token);
}
