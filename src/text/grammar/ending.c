#include "text/grammar/ending.h"

#include "base/status.h"
#include "text/grammar/grammar_impl.h"
#include "text/tokenizer_impl.h"

#include <assert.h>
#include <string.h>

/* A byte costs more than all nodes passed before the next byte. Nodes cost a little, so each costs more than
 * its parts, and following the cheapest one terminates. */
enum { BYTE_SHIFT = 20 };
#define COST_NONE ((uint64_t)1 << 62) /* also stands for anything larger */
enum { TEXT_MAX = 1 << 16 };          /* bytes of an ending */

typedef struct queued {
    uint64_t cost;
    uint32_t node;
} queued;

/* What is still to be written: a node, or a loop that has `rounds` to go. */
typedef struct pending {
    uint32_t at, rounds;
    bool loop;
} pending;

/* The best way to spell the text from one byte on. */
typedef struct spelt {
    uint32_t n_tokens; /* UINT32_MAX: none */
    uint32_t id, n_bytes;
} spelt;

/* An ending as tokens; the first i have been taken. */
typedef struct plan {
    int32_t *ids;
    size_t n, i, cap;
} plan;

static const char no_memory[] = "no memory for a grammar's ending";

struct tn_ending {
    tn_ctx *ctx;
    uint64_t *cost;     /* [n_nodes] */
    uint32_t root[256]; /* the node of a token's first byte, + 1 */
    bool all_bytes;     /* every byte is a token */
    plan plan, fresh;   /* the ending being followed, and a candidate */
    char *text;
    size_t n_text, cap_text;
    pending *todo;
    size_t n_todo, cap_todo;
    spelt *way;
    size_t cap_way;
};

void tn_ending_close(tn_ending **pe) {
    tn_ending *e = *pe;
    if (!e) return;
    tn_ctx *ctx = e->ctx;
    void *owned[] = {e->cost, e->plan.ids, e->fresh.ids, e->text, e->todo, e->way, e};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) tn_free(ctx, owned[i]);
    *pe = NULL;
}

/* ---- costs of nodes -------------------------------------------------------------------------------------
 */

static uint64_t plus(uint64_t a, uint64_t b) { return a + b < COST_NONE ? a + b : COST_NONE; }

static uint64_t times(uint64_t a, uint64_t n) { return n && a > COST_NONE / n ? COST_NONE : a * n; }

/* Returns a node's cost from the costs known so far. */
static uint64_t cost_of(const tn_gprog *p, const uint64_t *cost, size_t i) {
    const tn_gnode *n = &p->nodes[i];
    const tn_gloop *l;
    uint64_t least = COST_NONE;
    switch ((tn_gnode_kind)n->kind) {
    case TN_GN_END: return 0;
    case TN_GN_EDGES:
        for (uint32_t k = 0; k < n->n; k++)
            if (cost[p->edges[n->first + k].next] < least) least = cost[p->edges[n->first + k].next];
        return plus(least, 1u << BYTE_SHIFT);
    case TN_GN_FORK:
        for (uint32_t k = 0; k < n->n; k++)
            if (cost[p->targets[n->first + k]] < least) least = cost[p->targets[n->first + k]];
        return plus(least, 1);
    case TN_GN_CALL: return plus(plus(cost[p->start[n->first]], cost[n->n]), 1);
    case TN_GN_LOOP:
        l = &p->loops[n->first];
        return plus(plus(l->min ? times(cost[p->start[l->rule]], l->min) : 0, cost[l->next]), 1);
    }
    return COST_NONE;
}

static void heap_add(queued *q, size_t *n, queued x) {
    size_t i = (*n)++;
    for (; i && q[(i - 1) / 2].cost > x.cost; i = (i - 1) / 2) q[i] = q[(i - 1) / 2];
    q[i] = x;
}

static queued heap_take(queued *q, size_t *n) {
    queued least = q[0], last = q[--*n];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < *n; i = k) {
        if (k + 1 < *n && q[k + 1].cost < q[k].cost) k++;
        if (last.cost <= q[k].cost) break;
        q[i] = q[k];
    }
    q[i] = last;
    return least;
}

/* Settles the costs of all nodes, cheapest first (Knuth's generalisation of Dijkstra's algorithm: a node
 * costs more than each of its parts). */
static bool find_costs(tn_ending *e, const tn_gprog *p) {
    tn_ctx *ctx = e->ctx;
    size_t n = p->n_nodes, total = 0, n_heap = 0, cap_heap = 0;
    uint32_t to;
    uint32_t *at = tn_calloc(ctx, TN_MEM_TEXT, n + 2, sizeof *at), *by = NULL;
    queued *heap = NULL;
    for (size_t i = 0; at && i < n; i++)
        for (uint32_t k = 0; tn_gprog_looks_at(p, i, k, &to); k++, total++) at[to + 2]++;
    if (at) by = tn_alloc(ctx, TN_MEM_TEXT, total + 1, sizeof *by);
    bool ok = by && TN_GVEC_ROOM(ctx, heap, cap_heap, total + n + 1);
    for (size_t i = 0; ok && i < n; i++) at[i + 2] += at[i + 1], e->cost[i] = COST_NONE;
    for (size_t i = 0; ok && i < n; i++) {
        for (uint32_t k = 0; tn_gprog_looks_at(p, i, k, &to); k++) by[at[to + 1]++] = (uint32_t)i;
        uint64_t c = cost_of(p, e->cost, i);
        if (c < COST_NONE) heap_add(heap, &n_heap, (queued){c, (uint32_t)i});
    }
    while (n_heap) {
        queued x = heap_take(heap, &n_heap);
        if (x.cost >= e->cost[x.node]) continue;
        e->cost[x.node] = x.cost;
        for (uint32_t k = at[x.node]; k < at[x.node + 1]; k++) {
            uint64_t c = cost_of(p, e->cost, by[k]);
            if (c < e->cost[by[k]]) heap_add(heap, &n_heap, (queued){c, by[k]});
        }
    }
    tn_free(ctx, at);
    tn_free(ctx, by);
    tn_free(ctx, heap);
    return ok;
}

static void find_roots(tn_ending *e, const tn_gvocab *v) {
    e->all_bytes = true;
    for (uint32_t i = 0; i < v->n_nodes; i = v->nodes[i].past) e->root[v->nodes[i].byte] = i + 1;
    for (int b = 0; b < 256; b++)
        e->all_bytes = e->all_bytes && e->root[b] && v->nodes[e->root[b] - 1].has_ids;
}

static tern_status ending_open(tn_grammar *g, tern_error *err) {
    const tn_gprog *p = &g->m.prog;
    tn_ending *e = tn_calloc(g->ctx, TN_MEM_TEXT, 1, sizeof *e);
    TN_FAIL_IF(!e, err, TERN_E_MEMORY, "%s", no_memory);
    e->ctx = g->ctx;
    e->cost = tn_alloc(g->ctx, TN_MEM_TEXT, p->n_nodes, sizeof *e->cost);
    if (!e->cost || !find_costs(e, p)) {
        tn_ending_close(&e);
        return tn_fail(err, TERN_E_MEMORY, "%s", no_memory);
    }
    find_roots(e, g->v);
    g->ending = e;
    return TERN_OK;
}

/* ---- from a place to its end ----------------------------------------------------------------------------
 */

/* Returns how many rounds a loop's body must still run, not counting the current one. */
static uint32_t rounds_left(const tn_gloop *l, uint32_t count) { return l->min > count ? l->min - count : 0; }

/* Returns the cost of completing the frames from f down. */
static uint64_t cost_below(const tn_gmachine *m, const tn_ending *e, uint32_t f) {
    uint64_t sum = 0;
    for (; m->frames[f].kind != TN_GFK_END; f = m->frames[f].below) {
        const tn_gframe *x = &m->frames[f];
        const tn_gloop *l = x->kind == TN_GFK_LOOP ? &m->prog.loops[x->node] : NULL;
        sum = plus(sum, e->cost[l ? l->next : x->node]);
        if (l && rounds_left(l, x->count))
            sum = plus(sum, times(e->cost[m->prog.start[l->rule]], rounds_left(l, x->count)));
    }
    return sum;
}

/* Returns the cost of a state, and its cheapest configuration. */
static uint64_t cost_of_state(const tn_grammar *g, uint32_t state, tn_gconf *best) {
    const tn_gmachine *m = &g->m;
    const tn_gstate *s = &m->states[state];
    uint64_t least = COST_NONE;
    *best = (tn_gconf){TN_GC_ACCEPT, 0};
    if (s->accept) return 0;
    for (uint32_t i = 0; i < s->n_readers; i++) {
        tn_gconf c = m->confs[s->first + i];
        uint64_t x = plus(g->ending->cost[c.node], cost_below(m, g->ending, c.frame));
        if (x < least) least = x, *best = c;
    }
    return least;
}

/* The most neutral byte of a set: a zero among digits, a dot in text. */
static char plainest(const uint64_t set[4]) {
    static const char liked[] = "._a0";
#define HAS(c) (set[(uint8_t)(c) >> 6] >> ((uint8_t)(c)&63) & 1)
    if (HAS('0') && !HAS('a')) return '0';
    for (const char *p = liked; *p; p++)
        if (HAS(*p)) return *p;
    for (int c = 0x20; c < 0x7f; c++)
        if (HAS(c)) return (char)c;
    for (int c = 0; c < 256; c++)
        if (HAS(c)) return (char)c;
#undef HAS
    return 0;
}

static tern_status put(tn_ending *e, const char *p, size_t n, tern_error *err) {
    TN_FAIL_IF(!TN_GVEC_ROOM(e->ctx, e->text, e->cap_text, e->n_text + n), err, TERN_E_MEMORY, "%s",
               no_memory);
    memcpy(e->text + e->n_text, p, n);
    e->n_text += n;
    return TERN_OK;
}

static tern_status later(tn_ending *e, uint32_t at, uint32_t rounds, bool loop, tern_error *err) {
    TN_FAIL_IF(!TN_GVEC_ROOM(e->ctx, e->todo, e->cap_todo, e->n_todo + 1), err, TERN_E_MEMORY, "%s",
               no_memory);
    e->todo[e->n_todo++] = (pending){at, rounds, loop};
    return TERN_OK;
}

/* Continues after the end of a rule: with what is still to be written above the frame, then with the frame.
 * Returns false at the end of the text. */
static bool rule_ended(tn_ending *e, const tn_gmachine *m, tn_gconf *c) {
    const tn_gloop *l;
    if (e->n_todo) {
        pending *t = &e->todo[e->n_todo - 1];
        if (t->loop && t->rounds) {
            t->rounds--;
            c->node = m->prog.start[m->prog.loops[t->at].rule];
            return true;
        }
        c->node = t->loop ? m->prog.loops[t->at].next : t->at;
        e->n_todo--;
        return true;
    }
    tn_gframe f = m->frames[c->frame];
    if (f.kind == TN_GFK_END) return false;
    c->frame = f.below;
    c->node = f.node;
    if (f.kind == TN_GFK_RETURN) return true;
    l = &m->prog.loops[f.node];
    e->todo[e->n_todo++] = (pending){f.node, rounds_left(l, f.count), true};
    return rule_ended(e, m, c);
}

/* Adds the shortest ending from a configuration to e->text. */
static tern_status write_from(tn_grammar *g, tn_gconf c, tern_error *err) {
    tn_ending *e = g->ending;
    const tn_gprog *p = &g->m.prog;
    TN_FAIL_IF(!TN_GVEC_ROOM(e->ctx, e->todo, e->cap_todo, 16), err, TERN_E_MEMORY, "%s",
               no_memory); /* for rule_ended */
    e->n_todo = 0;
    while (c.node != TN_GC_ACCEPT) {
        const tn_gnode *n = &p->nodes[c.node];
        uint32_t best = 0;
        char byte;
        switch ((tn_gnode_kind)n->kind) {
        case TN_GN_EDGES:
            for (uint32_t k = 1; k < n->n; k++)
                if (e->cost[p->edges[n->first + k].next] < e->cost[p->edges[n->first + best].next]) best = k;
            byte = plainest(p->edges[n->first + best].set);
            TN_TRY(put(e, &byte, 1, err));
            c.node = p->edges[n->first + best].next;
            break;
        case TN_GN_FORK:
            for (uint32_t k = 1; k < n->n; k++)
                if (e->cost[p->targets[n->first + k]] < e->cost[p->targets[n->first + best]]) best = k;
            c.node = p->targets[n->first + best];
            break;
        case TN_GN_CALL:
            if (n->n) TN_TRY(later(e, n->n, 0, false, err));
            c.node = p->start[n->first];
            break;
        case TN_GN_LOOP:
            TN_TRY(later(e, n->first, p->loops[n->first].min, true, err));
            if (!rule_ended(e, &g->m, &c)) return TERN_OK;
            break;
        case TN_GN_END:
            if (!rule_ended(e, &g->m, &c)) return TERN_OK;
            break;
        }
    }
    return TERN_OK;
}

/* Finds the fewest tokens that spell e->text and appends them to the fresh plan. *fits is false if that takes
 * more than `most` tokens or is impossible. */
static tern_status spell(tn_grammar *g, size_t most, bool *fits, tern_error *err) {
    tn_ending *e = g->ending;
    const tn_gvocab *v = g->v;
    size_t n = e->n_text;
    *fits = false;
    TN_FAIL_IF(!TN_GVEC_ROOM(e->ctx, e->way, e->cap_way, n + 1) ||
                   !TN_GVEC_ROOM(e->ctx, e->fresh.ids, e->fresh.cap, e->fresh.n + n),
               err, TERN_E_MEMORY, "%s", no_memory);
    e->way[n] = (spelt){0};
    for (size_t i = n; i-- > 0;) {
        spelt best = {.n_tokens = UINT32_MAX};
        uint32_t at = e->root[(uint8_t)e->text[i]];
        for (size_t k = 1; at; k++) {
            const tn_gvocab_node *t = &v->nodes[at - 1];
            uint32_t behind = e->way[i + k].n_tokens;
            if (t->has_ids && behind < UINT32_MAX && behind + 1 <= best.n_tokens)
                best = (spelt){behind + 1, v->ids[t->first_id], (uint32_t)k};
            if (i + k == n) break;
            uint32_t c = at, past = t->past; /* the first child is the next node */
            while (c < past && v->nodes[c].byte != (uint8_t)e->text[i + k]) c = v->nodes[c].past;
            at = c < past ? c + 1 : 0;
        }
        e->way[i] = best;
    }
    if (e->way[0].n_tokens > most) return TERN_OK;
    for (size_t i = 0; i < n; i += e->way[i].n_bytes) e->fresh.ids[e->fresh.n++] = (int32_t)e->way[i].id;
    *fits = true;
    return TERN_OK;
}

/* Whether `left` tokens can end the text from here. With `planned` they are then in e->fresh. */
static tern_status ends_within(tn_grammar *g, size_t left, bool planned, bool *fits, tern_error *err) {
    tn_ending *e = g->ending;
    tn_gconf best;
    uint32_t state = g->at.is_free ? g->start : g->at.state;
    size_t lacks = g->at.is_free ? g->n_after - g->at.matched : 0;
    uint64_t bytes = (cost_of_state(g, state, &best) >> BYTE_SHIFT) + lacks;
    *fits =
        g->at.n_mark || (e->all_bytes && bytes <= left); /* a text behind a mark has no form to complete */
    if (*fits && !planned) return TERN_OK;
    *fits = false;
    if (bytes > TEXT_MAX) return TERN_OK;
    e->n_text = e->fresh.n = e->fresh.i = 0;
    if (lacks) { /* as one token if the vocabulary has it, otherwise byte by byte */
        int32_t whole = tn_tokenizer_find(g->v->tok, g->after);
        tn_gplace at = g->at;
        if (whole >= 0 && left && tn_grammar_follow(g, &at, g->after, g->n_after) && !at.is_free) {
            TN_FAIL_IF(!TN_GVEC_ROOM(e->ctx, e->fresh.ids, e->fresh.cap, 1), err, TERN_E_MEMORY, "%s",
                       no_memory);
            e->fresh.ids[e->fresh.n++] = whole;
            left--;
            (void)cost_of_state(g, at.state, &best);
        } else {
            TN_TRY(put(e, g->after + g->at.matched, lacks, err));
        }
    }
    TN_TRY(write_from(g, best, err));
    TN_TRY(spell(g, left, fits, err));
    return tn_gmachine_status(&g->m, err);
}

void tn_ending_forget(tn_ending *e) {
    if (e) e->plan.n = e->plan.i = 0;
}

tern_status tn_grammar_take_within(tn_grammar *g, int32_t *id, size_t left, bool *forced, tern_error *err) {
    tn_gplace before = g->at;
    bool fits;
    if (!g->ending) TN_TRY(ending_open(g, err));
    tn_ending *e = g->ending;
    TN_FAIL_IF(!tn_grammar_take(g, *id), err, TERN_E_INVALID,
               "the model's logits leave no token that the grammar allows");
    TN_TRY(ends_within(g, left, false, &fits, err));
    if (fits) {
        tn_ending_forget(e); /* the limit again leaves room for free text */
        return TERN_OK;
    }
    if (e->plan.i < e->plan.n && e->plan.ids[e->plan.i] == *id) {
        e->plan.i++;
        return TERN_OK;
    }
    tn_gplace after = g->at;
    g->at = before;
    if (e->plan.i == e->plan.n) {
        TN_TRY(ends_within(g, left + 1, true, &fits, err));
        if (!fits) {
            g->at = after;
            return TERN_OK;
        }
        plan old = e->plan;
        e->plan = e->fresh;
        e->fresh = old;
    }
    *forced = true;
    *id = e->plan.i < e->plan.n ? e->plan.ids[e->plan.i++] : -1;
    bool taken = *id < 0 || tn_grammar_take(g, *id);
    TN_FAIL_IF(!taken, err, TERN_E_INVALID, "the grammar refuses its own ending: token %d", (int)*id);
    return TERN_OK;
}
