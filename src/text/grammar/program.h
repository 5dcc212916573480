/* text/grammar/program.h - a grammar over bytes: what a machine runs. Immutable once made.
 *
 * Every rule is a graph of nodes. A node of edges reads one byte; all others read none: a fork goes to
 * several nodes, a call goes to a rule and comes back, a loop calls its rule a counted number of times, the
 * end returns. Every node in a list can reach the end of its rule, so every text that can continue can also
 * end. */
#ifndef TN_TEXT_GRAMMAR_PROGRAM_H
#define TN_TEXT_GRAMMAR_PROGRAM_H

#include "text/grammar/expr.h"

typedef enum tn_gnode_kind { TN_GN_END, TN_GN_EDGES, TN_GN_FORK, TN_GN_CALL, TN_GN_LOOP } tn_gnode_kind;

typedef struct tn_gnode {
    uint8_t kind;
    bool live;         /* some text leads from here to the end of the rule */
    bool wide;         /* edges: for so many bytes that keeping its tokens pays (mask.c) */
    uint32_t first, n; /* edges: edges[first..+n); fork: targets[first..+n); call: rule, node after; loop:
                          loops[first] */
} tn_gnode;

typedef struct tn_gedge {
    uint64_t set[4]; /* the bytes, as bits */
    uint32_t next;
} tn_gedge;

typedef struct tn_gloop {
    uint32_t rule, next, min, max;
    uint32_t like; /* a loop with the same body */
    bool counted;  /* the body reads a byte at least */
} tn_gloop;

typedef struct tn_gprog {
    tn_ctx *ctx;
    tn_gnode *nodes; /* node 0 is the one end of all rules */
    size_t n_nodes, cap_nodes;
    tn_gedge *edges;
    size_t n_edges, cap_edges;
    uint32_t *targets;
    size_t n_targets, cap_targets;
    tn_gloop *loops;
    size_t n_loops, cap_loops;
    uint32_t *start; /* [n_rules] */
    size_t n_rules;
    uint32_t root;         /* a rule */
    uint8_t class_of[256]; /* bytes that no edge distinguishes share a class */
    uint8_t byte_of[256];  /* one byte of each class */
    uint32_t n_classes;
} tn_gprog;

/* Makes a program from the rules of b, starting at root. TERN_E_INVALID, with the rule's name: a rule is
 * undefined, begins with itself, or root never ends. */
tern_status tn_gprog_make(tn_gb *b, tn_grule root, tn_gprog *out, tern_error *err);
void tn_gprog_free(tn_gprog *p);
/* Returns the successors of node i one by one, then false. */
bool tn_gprog_looks_at(const tn_gprog *p, size_t i, uint32_t nth, uint32_t *out);

#endif
