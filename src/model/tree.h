/* model/tree.h - a token tree to evaluate in one forward: row 0 is a token certain to come next, every other
 * row a guess of what follows its parent's row. Parents come before children. */
#ifndef TN_MODEL_TREE_H
#define TN_MODEL_TREE_H

#include <assert.h>
#include <stdint.h>

enum { TN_TREE_MAX = 32 };

typedef struct tn_tree {
    int32_t n;
    int32_t token[TN_TREE_MAX], parent[TN_TREE_MAX], depth[TN_TREE_MAX]; /* parent of the root: -1 */
    uint64_t mask[TN_TREE_MAX]; /* bit j: row j is this row or one of its ancestors */
} tn_tree;

/* A tree of its root alone. */
static inline void tn_tree_begin(tn_tree *t, int32_t token) {
    *t = (tn_tree){.n = 1, .token = {token}, .parent = {-1}, .mask = {1}};
}

static inline int32_t tn_tree_add(tn_tree *t, int32_t parent, int32_t token) {
    int32_t i = t->n++;
    assert(i < TN_TREE_MAX && parent < i && (parent >= 0) == (i > 0));
    t->token[i] = token;
    t->parent[i] = parent;
    t->depth[i] = i ? t->depth[parent] + 1 : 0;
    t->mask[i] = (i ? t->mask[parent] : 0) | UINT64_C(1) << i;
    return i;
}

/* Child of row `parent` with this token, or -1. */
static inline int32_t tn_tree_child(const tn_tree *t, int32_t parent, int32_t token) {
    for (int32_t i = parent + 1; i < t->n; i++) {
        if (t->parent[i] == parent && t->token[i] == token) return i;
    }
    return -1;
}

#endif
