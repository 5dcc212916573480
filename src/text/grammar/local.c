#include "text/grammar/local.h"

#include "base/status.h"

#include <string.h>

tern_status tn_glocals_open(tn_glocals *l, tn_ctx *ctx, const tn_gvocab *v, size_t n_words, tern_error *err) {
    *l = (tn_glocals){.ctx = ctx, .v = v, .n_words = n_words};
    l->way = tn_alloc(ctx, TN_MEM_TEXT, v->max_depth + 1u, sizeof *l->way);
    TN_FAIL_IF(!l->way, err, TERN_E_MEMORY, "no memory for masks");
    return TERN_OK;
}

static void local_free(tn_ctx *ctx, tn_glocal *l, size_t n_classes) {
    for (size_t i = 0; l->branches && i < n_classes; i++) tn_free(ctx, l->branches[i].v);
    void *owned[] = {l->all,       l->inside.ids, l->inside.upto, l->ends.ids,
                     l->ends.upto, l->esc,        l->bulks,       l->branches};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) tn_free(ctx, owned[i]);
}

void tn_glocals_close(tn_glocals *l) {
    if (!l->ctx) return;
    for (size_t i = 0; i < l->n_local; i++) local_free(l->ctx, &l->v_local[i], l->n_classes);
    void *owned[] = {l->way, l->v_local, l->uniform, l->pieces, l->ids, l->rounds, l->esc, l->bulks};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) tn_free(l->ctx, owned[i]);
    *l = (tn_glocals){0};
}

void tn_glocals_renumbered(tn_glocals *l) {
    l->n_pieces = l->n_ids = l->n_esc = l->n_bulks = l->n_uniform = l->n_computed = 0;
}

static bool no_memory(tn_gmachine *m) {
    if (m->st == TERN_OK) m->st = TERN_E_MEMORY;
    return false;
}

/* ---- bytes that change nothing ---------------------------------------------------------------------- */

/* Whether b equals a with every round `shift` later. */
static bool same_but_round(const tn_gmachine *m, uint32_t a, uint32_t b, uint32_t shift) {
    const tn_gstate *x = &m->states[a], *y = &m->states[b];
    if (x->n != y->n || x->n_readers != y->n_readers || x->accept || y->accept) return false;
    for (uint32_t i = 0; i < x->n; i++) {
        const tn_gconf *c = &m->confs[x->first + i], *d = &m->confs[y->first + i];
        if (c->node != d->node) return false;
        if (c->node == TN_GC_ESCAPE) {
            if (d->frame != c->frame + shift) return false;
            continue;
        }
        const tn_gframe *f = &m->frames[c->frame], *g = &m->frames[d->frame];
        bool rounds = f->kind == TN_GFK_ROUND && g->kind == TN_GFK_ROUND && f->node == g->node;
        if (!rounds || g->count != f->count + shift) return false;
    }
    return true;
}

/* A place inside a string: few readers, one of them wide, at most one escape. */
static bool is_place(const tn_gmachine *m, const tn_gstate *s) {
    bool wide = false;
    if (!s->n_readers || s->n_readers > 8 || s->n > s->n_readers + 1 || s->accept) return false;
    for (uint32_t i = 0; i < s->n_readers; i++)
        wide = wide || m->prog.nodes[m->confs[s->first + i].node].wide;
    return wide;
}

/* Follows every non-ASCII character from a state; `at` is the state inside it. Sets the HIGH bit of *stays
 * (*moves) if one does not lead back to the state (to it, a round later). */
static void follow_high(tn_gmachine *m, uint32_t state, uint32_t at, uint8_t need, uint8_t lo, uint8_t hi,
                        uint32_t *moves, uint32_t *stays) {
    const uint32_t bit = 1u << TN_GVOCAB_HIGH;
    uint64_t seen[4] = {0}; /* neighbouring bytes of one class behave alike */
    uint32_t last = 0;
    for (int b = need ? lo : 0xc2;
         b <= (need ? hi : 0xf4) && (*moves & *stays & bit) != bit && m->st == TERN_OK; b++) {
        uint8_t class = m->prog.class_of[b], n = need, l = lo, h = hi;
        (void)tn_gvocab_utf8((uint8_t)b, &n, &l, &h);
        uint32_t follows = (uint32_t)n << 16 | (uint32_t)l << 8 | h;
        if (follows != last) memset(seen, 0, sizeof seen);
        last = follows;
        if (seen[class >> 6] >> (class & 63) & 1) continue;
        seen[class >> 6] |= 1ull << (class & 63);
        uint32_t to = tn_gmachine_step(m, at, class);
        if (n) {
            const tn_gstate *s = &m->states[to];
            if (to != TN_GS_DEAD && s->n == s->n_readers && s->round == m->states[state].round) {
                follow_high(m, state, to, n, l, h, moves, stays);
                continue;
            }
            *moves |= bit;
            *stays |= bit;
            return;
        }
        if (to != state) *stays |= bit;
        if (to == TN_GS_DEAD || !same_but_round(m, state, to, 1)) *moves |= bit;
    }
}

/* Looks at every byte. */
static tn_guniform find_uniform(tn_gmachine *m, uint32_t state) {
    uint32_t moves = 1u << TN_GVOCAB_BAD, stays = moves; /* groups that this byte rules out */
    for (int b = 0; b < 0x80; b++) {
        uint32_t to = tn_gmachine_step(m, state, m->prog.class_of[b]),
                 bit = 1u << tn_gvocab_group((uint8_t)b);
        if (to != state) stays |= bit;
        if (to == TN_GS_DEAD || !same_but_round(m, state, to, 1)) moves |= bit;
    }
    follow_high(m, state, state, 0, 0, 0, &moves, &stays);
    return (tn_guniform){.still = ~stays, .shifted = ~moves, .known = true};
}

/* Over the hole a loop has no limit of rounds, so a byte has the same effect on a state in every round. */
static tn_guniform uniform_of(tn_glocals *l, tn_gmachine *m, uint32_t state) {
    if (state >= l->n_uniform) {
        if (!TN_GVEC_ROOM(l->ctx, l->uniform, l->cap_uniform, state + 64)) {
            no_memory(m);
            return (tn_guniform){0};
        }
        memset(l->uniform + l->n_uniform, 0, (state + 64 - l->n_uniform) * sizeof *l->uniform);
        l->n_uniform = state + 64;
    }
    tn_guniform *u = &l->uniform[state];
    for (size_t i = 0; i < l->n_computed && !u->known; i++) {
        uint32_t other = l->computed[i], later = m->states[state].round - m->states[other].round;
        if (same_but_round(m, other, state, later)) *u = l->uniform[other];
    }
    if (u->known) return *u;
    *u = (tn_guniform){.known = true};
    if (l->v->crowded || !is_place(m, &m->states[state])) return *u;
    *u = find_uniform(m, state);
    if (l->n_computed < sizeof l->computed / sizeof *l->computed) l->computed[l->n_computed++] = state;
    return *u;
}

/* Adds the subtree of `at` to the bulks if its characters change nothing in this state. */
static bool bulk_of(tn_glocals *l, tn_gmachine *m, uint32_t at, uint32_t state) {
    const tn_gvocab *v = l->v;
    const tn_gvocab_node *t = &v->nodes[at];
    const tn_gvocab_text *x = &v->text[at];
    if (t->past == at + 1 || x->need) return false;
    tn_guniform u = uniform_of(l, m, state);
    bool still = !(x->below & ~u.still), shift = !(x->below & ~u.shifted);
    if (m->st != TERN_OK || (!still && !shift)) return false;
    const tn_gstate *s = &m->states[state];
    bool escapes = s->n > s->n_readers;
    int32_t back = still ? 0 : (int32_t)x->chars;
    if (!TN_GVEC_ROOM(l->ctx, l->bulks, l->cap_bulks, l->n_bulks + 1)) return no_memory(m);
    l->bulks[l->n_bulks++] = (tn_gbulk){
        .first = at + 1,
        .past = t->past,
        .first_id = v->nodes[at + 1].first_id,
        .past_id = tn_gvocab_past_id(v, at),
        .base = (int32_t)s->round - back,
        .escape_base = escapes ? (int32_t)m->confs[s->first + s->n_readers].frame - back : 0,
        .escapes = escapes,
        .shift = !still,
    };
    return true;
}

/* ---- walks ------------------------------------------------------------------------------------------ */

/* Notes what a state means for the tree node where it was reached: tokens with their rounds, and escapes. */
static bool note(tn_glocals *l, tn_gmachine *m, uint32_t at, uint32_t state) {
    const tn_gvocab_node *t = &l->v->nodes[at];
    const tn_gstate *s = &m->states[state];
    if (s->n_readers && t->has_ids) {
        if (l->n_ids + t->n_ids > l->cap_ids || l->n_ids + t->n_ids > l->cap_rounds) {
            if (!TN_GVEC_ROOM(l->ctx, l->ids, l->cap_ids, l->n_ids + l->v->n_ids / 4 + t->n_ids) ||
                !TN_GVEC_ROOM(l->ctx, l->rounds, l->cap_rounds, l->cap_ids))
                return no_memory(m);
        }
        for (uint32_t k = 0; k < t->n_ids; k++) {
            l->ids[l->n_ids] = l->v->ids[t->first_id + k];
            l->rounds[l->n_ids++] = s->round;
        }
    }
    if (s->n == s->n_readers) return true;
    if (!TN_GVEC_ROOM(l->ctx, l->esc, l->cap_esc, l->n_esc + s->n)) return no_memory(m);
    for (uint32_t k = s->n_readers; k < s->n; k++) {
        if (m->confs[s->first + k].node != TN_GC_ESCAPE) continue;
        l->esc[l->n_esc++] = (tn_gescape){at, m->confs[s->first + k].frame};
    }
    return true;
}

/* Walks the subtree of `at`, a child of the root, from the state after its byte. */
static bool piece_walk(tn_glocals *l, tn_gmachine *m, uint32_t at, uint32_t state) {
    const tn_gvocab *v = l->v;
    const uint8_t *class_of = m->prog.class_of;
    uint32_t end = v->nodes[at].past;
    l->way[1] = state;
    if (!note(l, m, at, state)) return false;
    for (uint32_t i = bulk_of(l, m, at, state) ? end : at + 1; i < end && m->st == TERN_OK;) {
        const tn_gvocab_node *t = &v->nodes[i];
        uint32_t to = tn_gmachine_step(m, l->way[t->depth - 1], class_of[t->byte]);
        if (to == TN_GS_DEAD) {
            i = t->past;
            continue;
        }
        l->way[t->depth] = to;
        if (!note(l, m, i, to)) return false;
        i = bulk_of(l, m, i, to) ? t->past : i + 1;
    }
    return m->st == TERN_OK;
}

static const tn_gpiece *piece_of(tn_glocals *l, tn_gmachine *m, uint32_t at, uint32_t state) {
    for (size_t i = 0; i < l->n_pieces; i++)
        if (l->pieces[i].state == state && l->pieces[i].at == at) return &l->pieces[i];
    tn_gpiece p = {
        .state = state, .at = at, .first_id = l->n_ids, .first_esc = l->n_esc, .first_bulk = l->n_bulks};
    if (!TN_GVEC_ROOM(l->ctx, l->pieces, l->cap_pieces, l->n_pieces + 1)) {
        no_memory(m);
        return NULL;
    }
    if (!piece_walk(l, m, at, state)) return NULL;
    p.n_ids = l->n_ids - p.first_id;
    p.n_esc = l->n_esc - p.first_esc;
    p.n_bulks = l->n_bulks - p.first_bulk;
    l->pieces[l->n_pieces] = p;
    return &l->pieces[l->n_pieces++];
}

/* ---- what is kept of them --------------------------------------------------------------------------- */

/* Copies the escapes and bulks of a node's pieces, in the order of the tree. */
static bool gather(tn_glocals *l, tn_gmachine *m, const uint32_t *piece, size_t n_pieces, tn_glocal *x) {
    for (int pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < n_pieces; k++) {
            const tn_gpiece *p = &l->pieces[piece[k]];
            if (pass && p->n_esc) memcpy(x->esc + x->n_esc, l->esc + p->first_esc, p->n_esc * sizeof *x->esc);
            if (pass && p->n_bulks)
                memcpy(x->bulks + x->n_bulks, l->bulks + p->first_bulk, p->n_bulks * sizeof *x->bulks);
            x->n_esc += p->n_esc;
            x->n_bulks += p->n_bulks;
        }
        if (pass) break;
        x->esc = tn_alloc(l->ctx, TN_MEM_TEXT, x->n_esc, sizeof *x->esc);
        x->bulks = tn_alloc(l->ctx, TN_MEM_TEXT, x->n_bulks, sizeof *x->bulks);
        if (!x->esc || !x->bulks) return no_memory(m);
        x->n_esc = x->n_bulks = 0;
    }
    return true;
}

/* A counting sort in two passes: rounds are counted, then ids placed. */
typedef struct sorting {
    tn_ctx *ctx;
    tn_grounds *to;
    bool placing;
} sorting;

static bool sort_one(sorting *o, uint32_t id, uint32_t round) {
    tn_grounds *to = o->to;
    if (o->placing) {
        to->ids[to->upto[round]++] = id;
        return true;
    }
    if (round >= to->n_rounds) {
        uint32_t *more = tn_realloc(o->ctx, TN_MEM_TEXT, to->upto, round + 2u, sizeof *more);
        if (!more) return false;
        memset(more + to->n_rounds + (to->n_rounds > 0), 0,
               (round + 2 - to->n_rounds - (to->n_rounds > 0)) * sizeof *more);
        to->upto = more;
        to->n_rounds = round + 1;
    }
    to->upto[round + 1]++;
    to->n++;
    return true;
}

/* Between the passes upto[r] is the place of round r's first id; the second pass moves it past the last. */
static bool sort_place(sorting *o) {
    tn_grounds *to = o->to;
    for (size_t r = 0; r < to->n_rounds; r++) to->upto[r + 1] += to->upto[r];
    o->placing = true;
    return (to->ids = tn_alloc(o->ctx, TN_MEM_TEXT, to->n, sizeof *to->ids)) != NULL;
}

/* All tokens of a bulk, or only those that end with a complete character. */
static bool sort_bulk(sorting *o, const tn_gvocab *v, const tn_gbulk *b, int32_t base, bool whole) {
    for (uint32_t i = b->first_id; i < b->past_id; i++) {
        if (whole && !(v->id_chars[i] & 1)) continue;
        int32_t chars = b->shift ? (int32_t)(v->id_chars[i] >> 1) : 0;
        if (!sort_one(o, v->ids[i], (uint32_t)(base + chars))) return false;
    }
    return true;
}

/* Tokens that stay inside. Without a loop a set suffices. */
static bool gather_inside(tn_glocals *l, tn_gmachine *m, const uint32_t *piece, size_t n_pieces,
                          tn_glocal *x) {
    sorting o = {.ctx = l->ctx, .to = &x->inside};
    x->all = tn_calloc(l->ctx, TN_MEM_TEXT, l->n_words, sizeof *x->all);
    if (!x->all) return no_memory(m);
    for (size_t k = 0; k < n_pieces; k++) {
        const tn_gpiece *p = &l->pieces[piece[k]];
        for (size_t i = p->first_id; i < p->first_id + p->n_ids; i++)
            x->all[l->ids[i] >> 6] |= 1ull << (l->ids[i] & 63);
    }
    for (size_t k = 0; k < x->n_bulks; k++) {
        for (uint32_t i = x->bulks[k].first_id; i < x->bulks[k].past_id; i++)
            x->all[l->v->ids[i] >> 6] |= 1ull << (l->v->ids[i] & 63);
    }
    if (!x->loop) return true;
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !sort_place(&o)) return no_memory(m);
        for (size_t k = 0; k < n_pieces; k++) {
            const tn_gpiece *p = &l->pieces[piece[k]];
            for (size_t i = p->first_id; i < p->first_id + p->n_ids; i++)
                if (!sort_one(&o, l->ids[i], l->rounds[i])) return no_memory(m);
        }
        for (size_t k = 0; k < x->n_bulks; k++)
            if (!sort_bulk(&o, l->v, &x->bulks[k], x->bulks[k].base, false)) return no_memory(m);
    }
    return true;
}

static bool gather_ends(const tn_glocals *l, tn_gmachine *m, tn_glocal *x) {
    sorting o = {.ctx = l->ctx, .to = &x->ends};
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !sort_place(&o)) return no_memory(m);
        for (size_t k = 0; k < x->n_esc; k++) {
            const tn_gvocab_node *t = &l->v->nodes[x->esc[k].at];
            for (uint32_t i = 0; t->has_ids && i < t->n_ids; i++)
                if (!sort_one(&o, l->v->ids[t->first_id + i], x->esc[k].round)) return no_memory(m);
        }
        for (size_t k = 0; k < x->n_bulks; k++)
            if (x->bulks[k].escapes && !sort_bulk(&o, l->v, &x->bulks[k], x->bulks[k].escape_base, true))
                return no_memory(m);
    }
    return true;
}

tn_glocal *tn_glocals_get(tn_glocals *l, tn_gmachine *m, uint32_t node, uint32_t loop) {
    for (size_t i = 0; i < l->n_local; i++)
        if (l->v_local[i].node == node && l->v_local[i].loop == loop) return &l->v_local[i];
    uint32_t frame = loop ? tn_gmachine_round(m, loop - 1) : TN_GF_HOLE;
    uint32_t state = tn_gmachine_single(m, node, frame), piece[256];
    size_t n_pieces = 0;
    for (uint32_t i = 0; i < l->v->n_nodes && m->st == TERN_OK; i = l->v->nodes[i].past) {
        uint32_t to = tn_gmachine_step(m, state, m->prog.class_of[l->v->nodes[i].byte]);
        const tn_gpiece *p = to == TN_GS_DEAD ? NULL : piece_of(l, m, i, to);
        if (p) piece[n_pieces++] = (uint32_t)(p - l->pieces);
    }
    tn_glocal x = {.node = node, .loop = loop};
    l->n_classes = m->prog.n_classes;
    x.branches = tn_calloc(l->ctx, TN_MEM_TEXT, l->n_classes, sizeof *x.branches);
    bool ok = m->st == TERN_OK && (x.branches || no_memory(m)) && gather(l, m, piece, n_pieces, &x) &&
              gather_inside(l, m, piece, n_pieces, &x) && gather_ends(l, m, &x);
    if (ok && !TN_GVEC_ROOM(l->ctx, l->v_local, l->cap_local, l->n_local + 1)) ok = no_memory(m);
    if (!ok) {
        local_free(l->ctx, &x, l->n_classes);
        return NULL;
    }
    l->v_local[l->n_local] = x;
    return &l->v_local[l->n_local++];
}

/* ---- branches --------------------------------------------------------------------------------------- */

static bool add_branch(const tn_glocals *l, tn_gmachine *m, tn_gbranches *b, uint32_t at, uint32_t round) {
    if (!TN_GVEC_ROOM(l->ctx, b->v, b->cap, b->n + 1)) return no_memory(m);
    b->v[b->n++] = (tn_gescape){at, round};
    return true;
}

/* The first escape whose node is at least `at`. */
static size_t find_escape(const tn_glocal *x, uint32_t at) {
    size_t lo = 0, hi = x->n_esc;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (x->esc[mid].at < at) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Looks up each node of one byte among the escapes and the bulks. */
static bool branches_of_byte(const tn_glocals *l, tn_gmachine *m, const tn_glocal *x, uint8_t byte,
                             tn_gbranches *b) {
    const tn_gvocab *v = l->v;
    size_t k = 0;
    for (uint32_t i = v->by_byte_at[byte]; i < v->by_byte_at[byte + 1]; i++) {
        tn_gvocab_edge t = v->by_byte[i];
        if (t.parent == UINT32_MAX) continue;
        for (size_t e = find_escape(x, t.parent); e < x->n_esc && x->esc[e].at == t.parent; e++)
            if (!add_branch(l, m, b, t.node, x->esc[e].round)) return false;
        while (k < x->n_bulks && x->bulks[k].past <= t.node) k++;
        if (k == x->n_bulks || t.parent < x->bulks[k].first || !x->bulks[k].escapes || v->text[t.parent].need)
            continue;
        int32_t chars = x->bulks[k].shift ? v->text[t.parent].chars : 0;
        if (!add_branch(l, m, b, t.node, (uint32_t)(x->bulks[k].escape_base + chars))) return false;
    }
    return true;
}

const tn_gbranches *tn_glocal_branches(const tn_glocals *l, tn_gmachine *m, tn_glocal *x,
                                       uint32_t byte_class) {
    tn_gbranches *b = &x->branches[byte_class];
    for (int byte = 0; byte < 256 && !b->known; byte++) {
        if (m->prog.class_of[byte] == byte_class && !branches_of_byte(l, m, x, (uint8_t)byte, b)) return NULL;
    }
    b->known = true;
    return b;
}
