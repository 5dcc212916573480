#include "text/grammar/machine.h"

#include "base/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CONFS_MAX = 1 << 14 }; /* in one state; beyond that a grammar is too ambiguous to follow */
enum { STATES_MAX = 1 << 22 };

static bool fail(tn_gmachine *m, tern_status st) {
    if (m->st == TERN_OK) m->st = st;
    return false;
}

tern_status tn_gmachine_status(const tn_gmachine *m, tern_error *err) {
    TN_FAIL_IF(m->st == TERN_E_LIMIT, err, TERN_E_LIMIT,
               "the grammar is too ambiguous: it can be in more than %d places at once", CONFS_MAX);
    TN_FAIL_IF(m->st != TERN_OK, err, TERN_E_MEMORY, "no memory for the grammar's states");
    return TERN_OK;
}

/* ---- frames and states, each once ----------------------------------------------------------------- */

/* Grows an open-addressing table of numbers + 1, at most half full. Returns false without memory. */
static bool table_grow(tn_ctx *ctx, uint32_t **table, size_t *cap, size_t n) {
    if (2 * (n + 1) <= *cap) return true;
    size_t want = *cap ? 2 * *cap : 256;
    uint32_t *t = tn_calloc(ctx, TN_MEM_TEXT, want, sizeof *t);
    if (!t) return false;
    tn_free(ctx, *table);
    *table = t;
    *cap = want;
    return true;
}

static uint64_t frame_hash(const tn_gframe *f) { return XXH3_64bits(f, 4 * sizeof(uint32_t)); }

static void frame_enter(tn_gmachine *m, uint32_t i) {
    size_t mask = m->cap_frame_table - 1, at = (size_t)frame_hash(&m->frames[i]) & mask;
    while (m->frame_table[at]) at = (at + 1) & mask;
    m->frame_table[at] = i + 1;
}

static uint32_t frame_of(tn_gmachine *m, tn_gframe_kind kind, uint32_t node, uint32_t count, uint32_t below) {
    tn_gframe f = {.kind = kind, .node = node, .count = count, .below = below};
    f.round = kind == TN_GFK_ROUND ? count : m->frames[below].round;
    size_t mask = m->cap_frame_table - 1, at = (size_t)frame_hash(&f) & mask;
    for (; m->frame_table[at]; at = (at + 1) & mask)
        if (!memcmp(&m->frames[m->frame_table[at] - 1], &f, 4 * sizeof(uint32_t)))
            return m->frame_table[at] - 1;
    size_t old = m->cap_frame_table;
    if (!TN_GVEC_ROOM(m->ctx, m->frames, m->cap_frames, m->n_frames + 1) ||
        !table_grow(m->ctx, &m->frame_table, &m->cap_frame_table, m->n_frames + 1)) {
        fail(m, TERN_E_MEMORY);
        return TN_GF_HOLE;
    }
    m->frames[m->n_frames++] = f;
    if (m->cap_frame_table != old)
        for (uint32_t i = 0; i < m->n_frames; i++) frame_enter(m, i);
    else m->frame_table[at] = (uint32_t)m->n_frames;
    return (uint32_t)m->n_frames - 1;
}

static uint64_t state_hash(const tn_gconf *c, size_t n) { return XXH3_64bits(c, n * sizeof *c); }

static void state_enter(tn_gmachine *m, uint32_t i) {
    const tn_gstate *s = &m->states[i];
    size_t mask = m->cap_state_table - 1, at = (size_t)state_hash(m->confs + s->first, s->n) & mask;
    while (m->state_table[at]) at = (at + 1) & mask;
    m->state_table[at] = i + 1;
}

static int by_conf(const void *a, const void *b) {
    const tn_gconf *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

/* Returns the state of the set just made. */
static uint32_t state_of_set(tn_gmachine *m) {
    if (m->st != TERN_OK || !m->n_set) return TN_GS_DEAD;
    size_t n = m->n_set;
    if (n > 1) qsort(m->set, n, sizeof *m->set, by_conf);
    size_t mask = m->cap_state_table - 1, at = (size_t)state_hash(m->set, n) & mask;
    for (; m->state_table[at]; at = (at + 1) & mask) {
        const tn_gstate *s = &m->states[m->state_table[at] - 1];
        if (s->n == n && !memcmp(m->confs + s->first, m->set, n * sizeof *m->set))
            return m->state_table[at] - 1;
    }
    size_t k = m->prog.n_classes, old = m->cap_state_table;
    if (m->n_states >= STATES_MAX || !TN_GVEC_ROOM(m->ctx, m->states, m->cap_states, m->n_states + 1) ||
        !TN_GVEC_ROOM(m->ctx, m->confs, m->cap_confs, m->n_confs + n) ||
        !TN_GVEC_ROOM(m->ctx, m->next, m->cap_next, (m->n_states + 1) * k) ||
        !table_grow(m->ctx, &m->state_table, &m->cap_state_table, m->n_states + 1)) {
        fail(m, TERN_E_MEMORY);
        return TN_GS_DEAD;
    }
    memcpy(m->confs + m->n_confs, m->set, n * sizeof *m->set);
    tn_gstate s = {.first = (uint32_t)m->n_confs, .n = (uint32_t)n, .round = UINT32_MAX};
    for (size_t i = 0; i < n; i++) {
        if (m->set[i].node == TN_GC_ACCEPT) s.accept = true;
        if (m->set[i].node >= TN_GC_ESCAPE) continue;
        s.n_readers++;
        uint32_t r = m->frames[m->set[i].frame].round;
        if (r < s.round) s.round = r;
    }
    m->n_confs += n;
    memset(m->next + m->n_states * k, 0xff, k * sizeof *m->next);
    m->states[m->n_states++] = s;
    if (m->cap_state_table != old)
        for (uint32_t i = 1; i < m->n_states; i++) state_enter(m, i);
    else m->state_table[at] = (uint32_t)m->n_states;
    return (uint32_t)m->n_states - 1;
}

/* ---- sets ----------------------------------------------------------------------------------------- */

static void set_begin(tn_gmachine *m) {
    m->n_set = m->n_todo = m->n_mark = 0;
    if (!++m->gen) {
        memset(m->mark_gen, 0, m->cap_mark * sizeof *m->mark_gen);
        m->gen = 1;
    }
}

static bool mark_grow(tn_gmachine *m) {
    size_t cap = 2 * m->cap_mark;
    uint64_t *mark = tn_alloc(m->ctx, TN_MEM_TEXT, cap, sizeof *mark);
    uint32_t *gen = tn_calloc(m->ctx, TN_MEM_TEXT, cap, sizeof *gen);
    if (!mark || !gen) {
        tn_free(m->ctx, mark);
        tn_free(m->ctx, gen);
        return fail(m, TERN_E_MEMORY);
    }
    for (size_t i = 0; i < m->cap_mark; i++) {
        if (m->mark_gen[i] != m->gen) continue;
        size_t at = (size_t)(m->mark[i] * 0x9e3779b97f4a7c15u >> 32) & (cap - 1);
        while (gen[at] == m->gen) at = (at + 1) & (cap - 1);
        gen[at] = m->gen;
        mark[at] = m->mark[i];
    }
    tn_free(m->ctx, m->mark);
    tn_free(m->ctx, m->mark_gen);
    m->mark = mark;
    m->mark_gen = gen;
    m->cap_mark = cap;
    return true;
}

/* Adds a place to continue from, unless it was reached before. */
static void reach(tn_gmachine *m, uint32_t node, uint32_t frame) {
    if (node < TN_GC_ESCAPE && !m->prog.nodes[node].live) return;
    uint64_t key = (uint64_t)node << 32 | frame;
    if (2 * (m->n_mark + 1) > m->cap_mark && !mark_grow(m)) return;
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 32) & (m->cap_mark - 1);
    for (; m->mark_gen[at] == m->gen; at = (at + 1) & (m->cap_mark - 1))
        if (m->mark[at] == key) return;
    m->mark_gen[at] = m->gen;
    m->mark[at] = key;
    if (++m->n_mark > CONFS_MAX) {
        fail(m, TERN_E_LIMIT);
        return;
    }
    if (!TN_GVEC_ROOM(m->ctx, m->todo, m->cap_todo, m->n_todo + 1)) fail(m, TERN_E_MEMORY);
    else m->todo[m->n_todo++] = (tn_gconf){node, frame};
}

static void keep(tn_gmachine *m, uint32_t node, uint32_t frame) {
    if (!TN_GVEC_ROOM(m->ctx, m->set, m->cap_set, m->n_set + 1)) fail(m, TERN_E_MEMORY);
    else m->set[m->n_set++] = (tn_gconf){node, frame};
}

/* Continues a loop after `count` rounds. */
static void round_done(tn_gmachine *m, uint32_t i_loop, uint32_t count, uint32_t below) {
    const tn_gloop *l = &m->prog.loops[i_loop];
    if (count >= l->min) reach(m, l->next, below);
    uint32_t body = m->prog.start[l->rule];
    if (count < l->max && m->prog.nodes[body].live)
        reach(m, body, frame_of(m, TN_GFK_LOOP, i_loop, count + 1, below));
}

static void rule_done(tn_gmachine *m, uint32_t i_frame) {
    tn_gframe f = m->frames[i_frame];
    switch ((tn_gframe_kind)f.kind) {
    case TN_GFK_END:
        if (i_frame == TN_GF_TOP) keep(m, TN_GC_ACCEPT, 0);
        else keep(m, TN_GC_ESCAPE, 0);
        return;
    case TN_GFK_RETURN: reach(m, f.node, f.below); return;
    case TN_GFK_LOOP: round_done(m, f.node, f.count, f.below); return;
    case TN_GFK_ROUND: /* another round; the unknown frame decides whether there may be one */
        keep(m, TN_GC_ESCAPE, f.count);
        reach(m, m->prog.start[m->prog.loops[f.node].rule],
              frame_of(m, TN_GFK_ROUND, f.node, f.count + 1, TN_GF_HOLE));
        return;
    }
}

/* Follows everything reached until it reads a byte. */
static void settle(tn_gmachine *m) {
    while (m->n_todo && m->st == TERN_OK) {
        tn_gconf c = m->todo[--m->n_todo];
        const tn_gnode *n = &m->prog.nodes[c.node];
        switch ((tn_gnode_kind)n->kind) {
        case TN_GN_EDGES: keep(m, c.node, c.frame); break;
        case TN_GN_FORK:
            for (uint32_t i = 0; i < n->n; i++) reach(m, m->prog.targets[n->first + i], c.frame);
            break;
        case TN_GN_CALL: /* a call at the end needs no frame of its own: repetition by recursion stays flat */
            reach(m, m->prog.start[n->first], n->n ? frame_of(m, TN_GFK_RETURN, n->n, 0, c.frame) : c.frame);
            break;
        case TN_GN_LOOP: round_done(m, n->first, 0, c.frame); break;
        case TN_GN_END: rule_done(m, c.frame); break;
        }
    }
}

uint32_t tn_gmachine_compute(tn_gmachine *m, uint32_t state, uint8_t byte_class) {
    if (m->st != TERN_OK) return TN_GS_DEAD;
    uint8_t byte = m->prog.byte_of[byte_class];
    tn_gstate s = m->states[state];
    set_begin(m);
    for (uint32_t i = 0; i < s.n_readers; i++) {
        tn_gconf c = m->confs[s.first + i];
        const tn_gnode *n = &m->prog.nodes[c.node];
        for (uint32_t e = 0; e < n->n; e++) {
            const tn_gedge *g = &m->prog.edges[n->first + e];
            if (g->set[byte >> 6] >> (byte & 63) & 1) reach(m, g->next, c.frame);
        }
    }
    settle(m);
    uint32_t to = state_of_set(m);
    if (m->st == TERN_OK) m->next[(size_t)state * m->prog.n_classes + byte_class] = to;
    return to;
}

uint32_t tn_gmachine_single(tn_gmachine *m, uint32_t node, uint32_t frame) {
    set_begin(m);
    reach(m, node, frame);
    settle(m);
    return state_of_set(m);
}

uint32_t tn_gmachine_start(tn_gmachine *m) {
    return tn_gmachine_single(m, m->prog.start[m->prog.root], TN_GF_TOP);
}

uint32_t tn_gmachine_narrow(tn_gmachine *m, uint32_t state) {
    tn_gstate s = m->states[state];
    set_begin(m);
    for (uint32_t i = 0; i < s.n_readers; i++) {
        tn_gconf c = m->confs[s.first + i];
        if (!m->prog.nodes[c.node].wide) keep(m, c.node, c.frame);
    }
    return state_of_set(m);
}

uint32_t tn_gmachine_return(tn_gmachine *m, uint32_t frame) {
    set_begin(m);
    tn_gframe f = m->frames[frame];
    if (f.kind == TN_GFK_LOOP && m->prog.loops[f.node].counted) reach(m, m->prog.loops[f.node].next, f.below);
    else rule_done(m, frame);
    settle(m);
    return state_of_set(m);
}

uint32_t tn_gmachine_round(tn_gmachine *m, uint32_t loop) {
    return frame_of(m, TN_GFK_ROUND, loop, 0, TN_GF_HOLE);
}

/* ---- life ----------------------------------------------------------------------------------------- */

static void clear(tn_gmachine *m) {
    m->n_frames = 2;
    m->frames[TN_GF_TOP] = (tn_gframe){.kind = TN_GFK_END, .count = TN_GF_TOP};
    m->frames[TN_GF_HOLE] = (tn_gframe){.kind = TN_GFK_END, .count = TN_GF_HOLE};
    m->n_states = 1;
    m->n_confs = 0;
    m->states[TN_GS_DEAD] = (tn_gstate){0};
    memset(m->next, 0, m->prog.n_classes * sizeof *m->next); /* the dead state stays dead */
    memset(m->frame_table, 0, m->cap_frame_table * sizeof *m->frame_table);
    memset(m->state_table, 0, m->cap_state_table * sizeof *m->state_table);
}

tern_status tn_gmachine_open(tn_gmachine *m, tn_gprog *prog, tern_error *err) {
    *m = (tn_gmachine){.ctx = prog->ctx, .prog = *prog};
    *prog = (tn_gprog){.ctx = prog->ctx};
    tn_ctx *ctx = m->ctx;
    m->cap_mark = 256;
    m->mark = tn_alloc(ctx, TN_MEM_TEXT, m->cap_mark, sizeof *m->mark);
    m->mark_gen = tn_calloc(ctx, TN_MEM_TEXT, m->cap_mark, sizeof *m->mark_gen);
    if (m->mark && m->mark_gen && TN_GVEC_ROOM(ctx, m->frames, m->cap_frames, 2) &&
        TN_GVEC_ROOM(ctx, m->states, m->cap_states, 1) &&
        TN_GVEC_ROOM(ctx, m->next, m->cap_next, m->prog.n_classes) &&
        table_grow(ctx, &m->frame_table, &m->cap_frame_table, 2) &&
        table_grow(ctx, &m->state_table, &m->cap_state_table, 1)) {
        clear(m);
        return TERN_OK;
    }
    tn_gmachine_close(m);
    return tn_fail(err, TERN_E_MEMORY, "no memory for the grammar");
}

void tn_gmachine_close(tn_gmachine *m) {
    void *owned[] = {m->frames, m->frame_table, m->confs, m->states, m->state_table,
                     m->next,   m->set,         m->todo,  m->mark,   m->mark_gen};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) tn_free(m->ctx, owned[i]);
    tn_gprog_free(&m->prog);
    *m = (tn_gmachine){.ctx = m->ctx};
}

uint32_t tn_gmachine_forget(tn_gmachine *m, uint32_t state) {
    tn_gstate s = m->states[state];
    tn_ctx *ctx = m->ctx;
    uint32_t *now = tn_calloc(ctx, TN_MEM_TEXT, m->n_frames, sizeof *now); /* new number of a frame in use */
    tn_gframe *old = tn_alloc(ctx, TN_MEM_TEXT, m->n_frames, sizeof *old);
    if (!now || !old || !TN_GVEC_ROOM(ctx, m->set, m->cap_set, s.n)) {
        tn_free(ctx, now);
        tn_free(ctx, old);
        fail(m, TERN_E_MEMORY);
        return TN_GS_DEAD;
    }
    size_t n_old = m->n_frames;
    memcpy(old, m->frames, n_old * sizeof *old);
    m->n_set = s.n;
    if (s.n) memcpy(m->set, m->confs + s.first, s.n * sizeof *m->set);
    for (uint32_t i = 0; i < s.n_readers; i++)
        for (uint32_t f = m->set[i].frame; f > TN_GF_HOLE && !now[f]; f = old[f].below) now[f] = 1;
    clear(m);
    now[TN_GF_TOP] = TN_GF_TOP;
    now[TN_GF_HOLE] = TN_GF_HOLE;
    for (uint32_t f = TN_GF_HOLE + 1; f < n_old; f++) /* frames below have smaller numbers */
        if (now[f])
            now[f] = frame_of(m, (tn_gframe_kind)old[f].kind, old[f].node, old[f].count, now[old[f].below]);
    for (uint32_t i = 0; i < s.n_readers; i++) m->set[i].frame = now[m->set[i].frame];
    tn_free(ctx, now);
    tn_free(ctx, old);
    return state_of_set(m);
}
