/* Compiles rules of expressions to nodes over bytes. An expression is compiled after the node that follows
 * it, so nothing needs patching. */
#include "text/grammar/program.h"

#include "base/status.h"
#include "text/utf8.h"

#include <string.h>

enum { DEPTH_MAX = 500 };          /* of expressions inside each other */
enum { NULLABLE_REPEAT_MAX = 64 }; /* of a part that may be empty */
enum { WIDE_BYTES = 32 };
enum { LIKE_MAX = 256 }; /* loops searched for an equal body */

typedef struct compiler {
    tn_gb *b;
    tn_gprog *p;
    int depth;
    tern_status st;
} compiler;

static bool room(compiler *c, void **v, size_t *cap, size_t need, size_t size) {
    if (c->st != TERN_OK) return false;
    if (need > 8 * (size_t)TN_GX_MAX) c->st = TERN_E_LIMIT;
    else if (!tn_gvec_room(c->p->ctx, v, cap, need, size)) c->st = TERN_E_MEMORY;
    return c->st == TERN_OK;
}
#define ROOM(c, v, cap, need) room(c, (void **)&(c)->p->v, &(c)->p->cap, need, sizeof *(c)->p->v)

static uint32_t node(compiler *c, tn_gnode_kind kind, uint32_t first, uint32_t n) {
    if (!ROOM(c, nodes, cap_nodes, c->p->n_nodes + 1)) return 0;
    c->p->nodes[c->p->n_nodes] = (tn_gnode){.kind = (uint8_t)kind, .first = first, .n = n};
    return (uint32_t)c->p->n_nodes++;
}

static void set_bytes(uint64_t set[4], uint32_t lo, uint32_t hi) {
    for (uint32_t i = lo; i <= hi; i++) set[i >> 6] |= 1ull << (i & 63);
}

static uint32_t byte_node(compiler *c, uint8_t byte, uint32_t next) {
    size_t first = c->p->n_edges;
    if (!ROOM(c, edges, cap_edges, first + 1)) return 0;
    c->p->edges[first] = (tn_gedge){.next = next};
    set_bytes(c->p->edges[first].set, byte, byte);
    c->p->n_edges++;
    return node(c, TN_GN_EDGES, (uint32_t)first, 1);
}

/* ---- sets of code points as bytes ----------------------------------------------------------------- */

typedef struct edge_list {
    tn_gedge e[64];
    uint32_t n;
} edge_list;

/* Adds an edge: bytes lo..hi lead to next. */
static void edge_add(edge_list *l, uint32_t lo, uint32_t hi, uint32_t next) {
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->e[i].next == next) {
            set_bytes(l->e[i].set, lo, hi);
            return;
        }
    }
    l->e[l->n] = (tn_gedge){.next = next};
    set_bytes(l->e[l->n++].set, lo, hi);
}

static uint32_t edges_node(compiler *c, const edge_list *l) {
    size_t first = c->p->n_edges;
    if (!ROOM(c, edges, cap_edges, first + l->n)) return 0;
    if (l->n) memcpy(c->p->edges + first, l->e, l->n * sizeof *l->e);
    c->p->n_edges += l->n;
    return node(c, TN_GN_EDGES, (uint32_t)first, l->n);
}

/* Makes nodes for the last n bytes of sequences whose earlier bytes are `high`: the part of the set in [high
 * << 6n, (high + 1) << 6n). any[n] is n arbitrary continuation bytes. Returns 0 when none of them is in the
 * set. */
static uint32_t tail_node(compiler *c, const tn_grange *r, size_t n_r, uint32_t high, int n, uint32_t next,
                          uint32_t any[4]) {
    uint32_t lo = high << (6 * n), hi = lo + (1u << (6 * n)) - 1;
    while (n_r && r->hi < lo) r++, n_r--;
    while (n_r && r[n_r - 1].lo > hi) n_r--;
    if (!n_r) return UINT32_MAX;
    bool all = r->lo <= lo && r->hi >= hi;
    if (all && any[n] != UINT32_MAX) return any[n];
    edge_list l = {.n = 0};
    uint32_t at[64];
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t cp = high << 6 | i;
        if (n == 1) {
            bool in = false;
            for (size_t k = 0; k < n_r && !in; k++) in = r[k].lo <= cp && cp <= r[k].hi;
            at[i] = in ? next : UINT32_MAX;
        } else {
            at[i] = tail_node(c, r, n_r, cp, n - 1, next, any);
        }
        if (at[i] != UINT32_MAX) edge_add(&l, 0x80 + i, 0x80 + i, at[i]);
    }
    uint32_t made = edges_node(c, &l);
    if (all) any[n] = made;
    return made;
}

/* The ranges without surrogates, split at the ends of planes. */
static size_t scalar_ranges(const tn_grange *r, size_t n, tn_grange *out) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        tn_grange x = r[i];
        if (x.lo > 0x10ffff) continue;
        if (x.hi > 0x10ffff) x.hi = 0x10ffff;
        if (x.lo < 0xd800) out[k++] = (tn_grange){x.lo, x.hi < 0xd800 ? x.hi : 0xd7ff};
        if (x.hi > 0xdfff) out[k++] = (tn_grange){x.lo > 0xdfff ? x.lo : 0xe000, x.hi};
    }
    return k;
}

static uint32_t set_node(compiler *c, const tn_gx_node *x, uint32_t next) {
    tn_ctx *ctx = c->p->ctx;
    tn_grange *r = tn_alloc(ctx, TN_MEM_TEXT, 2 * (size_t)x->n, sizeof *r);
    if (!r) {
        c->st = TERN_E_MEMORY;
        return 0;
    }
    size_t n = scalar_ranges(c->b->ranges + x->first, x->n, r);
    static const struct {
        uint32_t lo, hi, first_byte, shift;
    } lengths[] = {{0x80, 0x7ff, 0xc0, 6}, {0x800, 0xffff, 0xe0, 12}, {0x10000, 0x10ffff, 0xf0, 18}};
    edge_list l = {.n = 0};
    for (size_t i = 0; i < n && r[i].lo < 0x80; i++)
        edge_add(&l, r[i].lo, r[i].hi < 0x7f ? r[i].hi : 0x7f, next);
    uint32_t any[4] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    for (int k = 0; k < 3; k++) {
        size_t a = 0, e;
        while (a < n && r[a].hi < lengths[k].lo) a++;
        for (e = a; e < n && r[e].lo <= lengths[k].hi;) e++;
        if (a == e) continue;
        tn_grange first = r[a],
                  last = r[e - 1]; /* cuts off what belongs to the neighbours, then restores it */
        if (first.lo < lengths[k].lo) r[a].lo = lengths[k].lo;
        if (last.hi > lengths[k].hi) r[e - 1].hi = lengths[k].hi;
        for (uint32_t h = lengths[k].lo >> lengths[k].shift; h <= lengths[k].hi >> lengths[k].shift; h++) {
            uint32_t t = tail_node(c, r + a, e - a, h, k + 1, next, any);
            if (t != UINT32_MAX) edge_add(&l, lengths[k].first_byte + h, lengths[k].first_byte + h, t);
        }
        r[a].lo = first.lo;
        r[e - 1].hi = last.hi;
    }
    tn_free(ctx, r);
    return edges_node(c, &l);
}

/* ---- expressions ---------------------------------------------------------------------------------- */

static uint32_t compile(compiler *c, tn_gx x, uint32_t next);

static uint32_t fork_of(compiler *c, size_t n) { /* n targets, to be filled */
    size_t first = c->p->n_targets;
    if (!ROOM(c, targets, cap_targets, first + n)) return 0;
    if (n) memset(c->p->targets + first, 0, n * sizeof *c->p->targets);
    c->p->n_targets += n;
    return node(c, TN_GN_FORK, (uint32_t)first, (uint32_t)n);
}

static void target(compiler *c, uint32_t fork, uint32_t i, uint32_t to) {
    if (c->st == TERN_OK) c->p->targets[c->p->nodes[fork].first + i] = to;
}

static tn_grule body_rule(compiler *c, tn_gx body) { /* compiled with the other rules, later */
    if (c->b->x[body].kind == TN_GXK_RULE) return c->b->x[body].first;
    tn_grule r = tn_gb_rule(c->b, "", 0);
    tn_gb_define(c->b, r, body);
    return r;
}

static uint32_t loop_node(compiler *c, tn_grule body, uint32_t min, uint32_t max, uint32_t next) {
    if (!ROOM(c, loops, cap_loops, c->p->n_loops + 1)) return 0;
    c->p->loops[c->p->n_loops] = (tn_gloop){.rule = body, .next = next, .min = min, .max = max};
    return node(c, TN_GN_LOOP, (uint32_t)c->p->n_loops++, 0);
}

static uint32_t repeat_node(compiler *c, const tn_gx_node *x, uint32_t next) {
    if (x->max == TN_GX_INF) {
        uint32_t fork = fork_of(c, 2), body;
        tn_grule r = 0;
        if (x->min > 1) {
            r = body_rule(c, x->first);
            body = node(c, TN_GN_CALL, r, fork);
        } else {
            body = compile(c, x->first, fork);
        }
        target(c, fork, 0, body);
        target(c, fork, 1, next);
        if (x->min > 1) return loop_node(c, r, x->min, x->min, fork);
        return x->min ? body : fork;
    }
    if (!x->min && x->max == 1) {
        uint32_t start = fork_of(c, 2);
        target(c, start, 0, compile(c, x->first, next));
        target(c, start, 1, next);
        return start;
    }
    return loop_node(c, body_rule(c, x->first), x->min, x->max, next);
}

static uint32_t compile_node(compiler *c, const tn_gx_node *x, uint32_t next) {
    uint32_t at = next;
    switch (x->kind) {
    case TN_GXK_NEVER: return fork_of(c, 0);
    case TN_GXK_EMPTY: return next;
    case TN_GXK_SET: return set_node(c, x, next);
    case TN_GXK_TEXT:
        for (uint32_t i = x->n; i-- > 0;) at = byte_node(c, (uint8_t)c->b->text[x->first + i], at);
        return at;
    case TN_GXK_SEQ:
        for (uint32_t i = x->n; i-- > 0;) at = compile(c, c->b->kids[x->first + i], at);
        return at;
    case TN_GXK_ALT:
        at = fork_of(c, x->n);
        for (uint32_t i = 0; i < x->n && c->st == TERN_OK; i++)
            target(c, at, i, compile(c, c->b->kids[x->first + i], next));
        return at;
    case TN_GXK_REP: return repeat_node(c, x, next);
    case TN_GXK_RULE: return node(c, TN_GN_CALL, x->first, next);
    }
    return 0;
}

static uint32_t compile(compiler *c, tn_gx x, uint32_t next) {
    if (c->st == TERN_OK && c->depth > DEPTH_MAX) c->st = TERN_E_LIMIT;
    if (c->st != TERN_OK) return 0;
    c->depth++;
    tn_gx_node copy = c->b->x[x]; /* the builder's arrays may move */
    uint32_t at = compile_node(c, &copy, next);
    c->depth--;
    return at;
}

/* ---- what must hold ------------------------------------------------------------------------------- */

/* Whether some text leads from node i to the end of its rule. */
static bool node_live(const tn_gprog *p, size_t i_node, const bool *live) {
    const tn_gnode *n = &p->nodes[i_node];
#define LIVE(i) (live[i])
    switch ((tn_gnode_kind)n->kind) {
    case TN_GN_END: return true;
    case TN_GN_EDGES:
        for (uint32_t i = 0; i < n->n; i++)
            if (LIVE(p->edges[n->first + i].next)) return true;
        return false;
    case TN_GN_FORK:
        for (uint32_t i = 0; i < n->n; i++)
            if (LIVE(p->targets[n->first + i])) return true;
        return false;
    case TN_GN_CALL: return LIVE(p->start[n->first]) && LIVE(n->n);
    case TN_GN_LOOP: {
        const tn_gloop *l = &p->loops[n->first];
        return LIVE(l->next) && (!l->min || LIVE(p->start[l->rule]));
    }
    }
    return false;
#undef LIVE
}

bool tn_gprog_looks_at(const tn_gprog *p, size_t i, uint32_t nth, uint32_t *out) {
    const tn_gnode *n = &p->nodes[i];
    switch ((tn_gnode_kind)n->kind) {
    case TN_GN_END: return false;
    case TN_GN_EDGES:
        if (nth < n->n) *out = p->edges[n->first + nth].next;
        return nth < n->n;
    case TN_GN_FORK:
        if (nth < n->n) *out = p->targets[n->first + nth];
        return nth < n->n;
    case TN_GN_CALL: *out = nth ? n->n : p->start[n->first]; return nth < 2;
    case TN_GN_LOOP: *out = nth ? p->loops[n->first].next : p->start[p->loops[n->first].rule]; return nth < 2;
    }
    return false;
}

/* Sets holds[i] where rule(i) is true, until nothing changes: the least fixed point. */
static bool spread(const tn_gprog *p, bool *holds, bool (*rule)(const tn_gprog *, size_t, const bool *)) {
    tn_ctx *ctx = p->ctx;
    size_t n = p->n_nodes, total = 0, n_todo = 0;
    uint32_t to;
    uint32_t *at = tn_calloc(ctx, TN_MEM_TEXT, n + 2, sizeof *at);
    uint32_t *todo = tn_alloc(ctx, TN_MEM_TEXT, n + 1, sizeof *todo), *by = NULL;
    for (size_t i = 0; at && i < n; i++)
        for (uint32_t k = 0; tn_gprog_looks_at(p, i, k, &to); k++, total++) at[to + 2]++;
    if (at) by = tn_alloc(ctx, TN_MEM_TEXT, total + 1, sizeof *by);
    bool ok = at && todo && by;
    for (size_t i = 0; ok && i < n; i++) at[i + 2] += at[i + 1];
    for (size_t i = 0; ok && i < n; i++)
        for (uint32_t k = 0; tn_gprog_looks_at(p, i, k, &to); k++) by[at[to + 1]++] = (uint32_t)i;
    for (size_t i = 0; ok && i < n; i++)
        if (rule(p, i, holds)) holds[i] = true, todo[n_todo++] = (uint32_t)i;
    while (n_todo) {
        uint32_t i = todo[--n_todo];
        for (uint32_t k = at[i]; k < at[i + 1]; k++) {
            uint32_t j = by[k];
            if (!holds[j] && rule(p, j, holds)) holds[j] = true, todo[n_todo++] = j;
        }
    }
    tn_free(ctx, at);
    tn_free(ctx, todo);
    tn_free(ctx, by);
    return ok;
}

/* Whether the end of the rule can be reached without a byte. */
static bool node_empty(const tn_gprog *p, size_t i_node, const bool *empty) {
    const tn_gnode *n = &p->nodes[i_node];
    switch ((tn_gnode_kind)n->kind) {
    case TN_GN_END: return true;
    case TN_GN_EDGES: return false;
    case TN_GN_FORK:
        for (uint32_t i = 0; i < n->n; i++)
            if (empty[p->targets[n->first + i]]) return true;
        return false;
    case TN_GN_CALL: return empty[p->start[n->first]] && empty[n->n];
    case TN_GN_LOOP: {
        const tn_gloop *l = &p->loops[n->first];
        return empty[l->next] && (!l->min || empty[p->start[l->rule]]);
    }
    }
    return false;
}

/* The nodes entered from node i without a byte: out[0..3), the rest of a fork by `nth`. A call enters its
 * rule, and continues after it if the rule may be empty. Returns false when there are no more. */
static bool entered(const tn_gprog *p, uint32_t i, uint32_t nth, const bool *empty, uint32_t *out) {
    const tn_gnode *n = &p->nodes[i];
    uint32_t rule, behind;
    switch ((tn_gnode_kind)n->kind) {
    case TN_GN_FORK:
        if (nth >= n->n) return false;
        *out = p->targets[n->first + nth];
        return true;
    case TN_GN_CALL: rule = n->first, behind = n->n; break;
    case TN_GN_LOOP: rule = p->loops[n->first].rule, behind = p->loops[n->first].next; break;
    default: return false;
    }
    bool pass = empty[p->start[rule]] || (n->kind == TN_GN_LOOP && !p->loops[n->first].min);
    if (nth > (pass ? 1u : 0u)) return false;
    *out = nth ? behind : p->start[rule];
    return true;
}

/* One step of a depth-first walk over nodes entered without a byte. Returning to a node on the path is
 * harmless inside a rule (an empty round of a repetition), but if a rule was entered in between, that rule
 * begins with itself. */
typedef struct step {
    uint32_t node, nth, rule;
} step;

static tern_status left_recursion(const tn_gb *b, const tn_gprog *p, const bool *empty, tern_error *err) {
    enum { NEW, OPEN, DONE };
    tn_ctx *ctx = p->ctx;
    uint8_t *colour = tn_calloc(ctx, TN_MEM_TEXT, p->n_rules, 1);
    uint32_t *seen = tn_calloc(ctx, TN_MEM_TEXT, p->n_nodes, sizeof *seen); /* rule + 1 that walked it */
    step *way = tn_alloc(ctx, TN_MEM_TEXT, p->n_nodes + p->n_rules + 1, sizeof *way);
    tern_status st = TERN_OK;
    TN_BAIL_IF(!colour || !seen || !way, err, TERN_E_MEMORY, "no memory for the grammar");
    for (uint32_t r = 0; r < p->n_rules; r++) {
        if (colour[r] != NEW) continue;
        size_t n = 0;
        way[n++] = (step){p->start[r], 0, r};
        colour[r] = OPEN;
        while (n) {
            step *s = &way[n - 1];
            uint32_t to;
            if (!entered(p, s->node, s->nth++, empty, &to)) {
                if (s->node == p->start[s->rule] && (n == 1 || way[n - 2].rule != s->rule))
                    colour[s->rule] = DONE;
                n--;
                continue;
            }
            const tn_gnode *from = &p->nodes[s->node];
            uint32_t rule = s->rule;
            if (from->kind != TN_GN_FORK && s->nth == 1)
                rule = from->kind == TN_GN_CALL ? from->first : p->loops[from->first].rule;
            if (rule != s->rule || (from->kind != TN_GN_FORK && s->nth == 1)) {
                const tn_grule_def *d = &b->rules[rule];
                TN_BAIL_IF(
                    colour[rule] == OPEN, err, TERN_E_INVALID,
                    "grammar: rule '%.*s' begins with itself (left recursion), so it cannot be followed",
                    d->n_name ? (int)d->n_name : 9, d->n_name ? b->text + d->name : "(unnamed)");
                if (colour[rule] == DONE) continue;
                colour[rule] = OPEN;
            } else if (seen[to] == rule + 1) {
                continue;
            }
            seen[to] = rule + 1;
            way[n++] = (step){to, 0, rule};
        }
    }
out:
    tn_free(ctx, colour);
    tn_free(ctx, seen);
    tn_free(ctx, way);
    return st;
}

static tern_status settle_loops(tn_gprog *p, const bool *empty, tern_error *err) {
    for (size_t i = 0; i < p->n_loops; i++) {
        tn_gloop *l = &p->loops[i];
        l->counted = !empty[p->start[l->rule]];
        l->like = (uint32_t)i;
        for (uint32_t k = 0; k < i && k < LIKE_MAX && l->like == i; k++)
            if (p->loops[k].rule == l->rule) l->like = k;
        if (l->counted) continue;
        TN_FAIL_IF(l->max > NULLABLE_REPEAT_MAX, err, TERN_E_UNSUPPORTED,
                   "grammar: a part that may be empty is repeated up to %u times; at most %d are supported",
                   l->max, NULLABLE_REPEAT_MAX);
        l->min = 0; /* missing rounds are empty */
    }
    return TERN_OK;
}

/* Splits 0..255 into classes: every edge takes all bytes of a class or none. */
static void find_classes(tn_gprog *p) {
    memset(p->class_of, 0, sizeof p->class_of);
    p->n_classes = 1;
    bool alone[256] = {false}; /* bytes that have been split off by themselves */
    for (size_t e = 0; e < p->n_edges; e++) {
        const uint64_t *set = p->edges[e].set;
        int count = 0, one = 0;
        for (int k = 0; k < 4; k++) {
            count += __builtin_popcountll(set[k]);
            if (set[k]) one = 64 * k + __builtin_ctzll(set[k]);
        }
        if (count == 1 && alone[one]) continue;
        if (count == 1) alone[one] = true;
        int16_t inside[256];
        bool outside[256] = {false};
        memset(inside, -1, sizeof inside);
        for (int i = 0; i < 256; i++)
            if (!(set[i >> 6] >> (i & 63) & 1)) outside[p->class_of[i]] = true;
        for (int i = 0; i < 256; i++) {
            uint8_t k = p->class_of[i];
            if (!(set[i >> 6] >> (i & 63) & 1) || !outside[k]) continue;
            if (inside[k] < 0) inside[k] = (int16_t)p->n_classes++;
            p->class_of[i] = (uint8_t)inside[k];
        }
    }
    for (int i = 255; i >= 0; i--) p->byte_of[p->class_of[i]] = (uint8_t)i;
}

static void find_wide(tn_gprog *p) {
    for (size_t i = 0; i < p->n_nodes; i++) {
        tn_gnode *n = &p->nodes[i];
        if (n->kind != TN_GN_EDGES) continue;
        uint64_t all[4] = {0};
        int count = 0;
        for (uint32_t e = 0; e < n->n; e++)
            for (int k = 0; k < 4; k++) all[k] |= p->edges[n->first + e].set[k];
        for (int k = 0; k < 4; k++) count += __builtin_popcountll(all[k]);
        n->wide = count > WIDE_BYTES;
    }
}

static tern_status check(tn_gb *b, tn_gprog *p, tern_error *err) {
    tn_ctx *ctx = p->ctx;
    bool *live = tn_calloc(ctx, TN_MEM_TEXT, p->n_nodes, sizeof *live);
    bool *empty = tn_calloc(ctx, TN_MEM_TEXT, p->n_nodes, sizeof *empty);
    tern_status st = TERN_OK;
    TN_BAIL_IF(!live || !empty || !spread(p, live, node_live) || !spread(p, empty, node_empty), err,
               TERN_E_MEMORY, "no memory for the grammar");
    st = left_recursion(b, p, empty, err);
    if (st == TERN_OK) st = settle_loops(p, empty, err);
    if (st != TERN_OK) goto out;
    for (size_t i = 0; i < p->n_nodes; i++) p->nodes[i].live = live[i];
    TN_BAIL_IF(!live[p->start[p->root]], err, TERN_E_INVALID,
               "grammar: no text fits it, because it never ends");
    find_classes(p);
    find_wide(p);
out:
    tn_free(ctx, live);
    tn_free(ctx, empty);
    return st;
}

tern_status tn_gprog_make(tn_gb *b, tn_grule root, tn_gprog *out, tern_error *err) {
    *out = (tn_gprog){.ctx = b->ctx, .root = root};
    compiler c = {.b = b, .p = out};
    size_t cap_start = 0;
    TN_TRY(tn_gb_status(b, err));
    node(&c, TN_GN_END, 0, 0);
    for (uint32_t r = 0; r < b->n_rules && c.st == TERN_OK && b->st == TERN_OK; r++) { /* loops add rules */
        const tn_grule_def *d = &b->rules[r];
        if (!d->defined) {
            (void)tn_fail(err, TERN_E_INVALID, "grammar: rule '%.*s' is used but not defined",
                          d->n_name > 100 ? 100 : (int)d->n_name, b->text + d->name);
            tn_gprog_free(out);
            return TERN_E_INVALID;
        }
        uint32_t start = compile(&c, d->body, 0);
        if (!tn_gvec_room(out->ctx, (void **)&out->start, &cap_start, r + 1u, sizeof *out->start))
            c.st = TERN_E_MEMORY;
        else out->start[r] = start;
    }
    out->n_rules = b->n_rules;
    tern_status st = b->st != TERN_OK ? tn_gb_status(b, err) : TERN_OK;
    if (st == TERN_OK && c.st == TERN_E_LIMIT)
        st = tn_fail(err, TERN_E_LIMIT, "the grammar is too large or nested too deeply");
    else if (st == TERN_OK && c.st != TERN_OK) st = tn_fail(err, c.st, "no memory for the grammar");
    if (st == TERN_OK) st = check(b, out, err);
    if (st != TERN_OK) tn_gprog_free(out);
    return st;
}

void tn_gprog_free(tn_gprog *p) {
    tn_free(p->ctx, p->nodes);
    tn_free(p->ctx, p->edges);
    tn_free(p->ctx, p->targets);
    tn_free(p->ctx, p->loops);
    tn_free(p->ctx, p->start);
    *p = (tn_gprog){.ctx = p->ctx};
}
