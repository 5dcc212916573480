#include "text/grammar/local.h"

#include "base/status.h"

#include <string.h>

tern_status tn_glocals_open(tn_glocals *l, tn_ctx *ctx, const tn_gvocab *v, size_t n_words, tern_error *err) {
    *l = (tn_glocals){.ctx = ctx, .v = v, .n_words = n_words};
    l->way = tn_alloc(ctx, TN_MEM_TEXT, v->max_depth + 1u, sizeof *l->way);
    TN_FAIL_IF(!l->way, err, TERN_E_MEMORY, "no memory for masks");
    return TERN_OK;
}

static void local_free(tn_ctx *ctx, tn_glocal *l) {
    tn_free(ctx, l->all);
    tn_free(ctx, l->by_round);
    tn_free(ctx, l->n_upto);
    tn_free(ctx, l->ends);
    tn_free(ctx, l->branches);
}

void tn_glocals_close(tn_glocals *l) {
    if (!l->ctx) return;
    for (size_t i = 0; i < l->n_local; i++) local_free(l->ctx, &l->v_local[i]);
    void *owned[] = {l->way, l->v_local, l->pieces, l->ids, l->rounds, l->esc};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) tn_free(l->ctx, owned[i]);
    *l = (tn_glocals){0};
}

void tn_glocals_renumbered(tn_glocals *l) { l->n_pieces = l->n_ids = l->n_esc = 0; }

static bool no_memory(tn_gmachine *m) {
    if (m->st == TERN_OK) m->st = TERN_E_MEMORY;
    return false;
}

/* Notes what a state says of the node of the tree at which it was reached: tokens with their rounds, and
 * escapes. */
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

/* Walks the subtree of `at`, a child of the root, from the state behind its byte. */
static bool piece_walk(tn_glocals *l, tn_gmachine *m, uint32_t at, uint32_t state) {
    const tn_gvocab *v = l->v;
    const uint8_t *class_of = m->prog.class_of;
    uint32_t end = v->nodes[at].past;
    l->way[1] = state;
    if (!note(l, m, at, state)) return false;
    for (uint32_t i = at + 1; i < end;) {
        const tn_gvocab_node *t = &v->nodes[i];
        uint32_t to = tn_gmachine_step(m, l->way[t->depth - 1], class_of[t->byte]);
        if (to == TN_GS_DEAD) {
            i = t->past;
            continue;
        }
        l->way[t->depth] = to;
        if (!note(l, m, i, to)) return false;
        i++;
    }
    return m->st == TERN_OK;
}

static const tn_gpiece *piece_of(tn_glocals *l, tn_gmachine *m, uint32_t at, uint32_t state) {
    for (size_t i = 0; i < l->n_pieces; i++)
        if (l->pieces[i].state == state && l->pieces[i].at == at) return &l->pieces[i];
    tn_gpiece p = {.state = state, .at = at, .first_id = l->n_ids, .first_esc = l->n_esc};
    if (!TN_GVEC_ROOM(l->ctx, l->pieces, l->cap_pieces, l->n_pieces + 1)) {
        no_memory(m);
        return NULL;
    }
    if (!piece_walk(l, m, at, state)) return NULL;
    p.n_ids = l->n_ids - p.first_id;
    p.n_esc = l->n_esc - p.first_esc;
    l->pieces[l->n_pieces] = p;
    return &l->pieces[l->n_pieces++];
}

/* Gathers the pieces of a node into x: tokens by round. */
static bool gather_tokens(tn_glocals *l, tn_gmachine *m, const uint32_t *piece, size_t n_pieces,
                          tn_glocal *x) {
    tn_ctx *ctx = l->ctx;
    x->n_rounds = 1;
    for (size_t k = 0; k < n_pieces; k++) {
        const tn_gpiece *p = &l->pieces[piece[k]];
        x->n += p->n_ids;
        for (size_t i = 0; i < p->n_ids; i++) {
            size_t r = l->rounds[p->first_id + i];
            x->n_rounds = r >= x->n_rounds ? r + 1 : x->n_rounds;
        }
    }
    x->all = tn_calloc(ctx, TN_MEM_TEXT, l->n_words, sizeof *x->all);
    x->by_round = tn_alloc(ctx, TN_MEM_TEXT, x->n, sizeof *x->by_round);
    x->n_upto = tn_calloc(ctx, TN_MEM_TEXT, x->n_rounds + 1, sizeof *x->n_upto);
    if (!x->all || !x->by_round || !x->n_upto) return no_memory(m);
    for (size_t k = 0; k < n_pieces; k++) {
        const tn_gpiece *p = &l->pieces[piece[k]];
        for (size_t i = p->first_id; i < p->first_id + p->n_ids; i++) {
            x->all[l->ids[i] >> 6] |= 1ull << (l->ids[i] & 63);
            x->n_upto[l->rounds[i] + 1]++;
        }
    }
    for (size_t r = 0; r < x->n_rounds; r++) x->n_upto[r + 1] += x->n_upto[r];
    for (size_t k = 0; k < n_pieces; k++) {
        const tn_gpiece *p = &l->pieces[piece[k]];
        for (size_t i = p->first_id; i < p->first_id + p->n_ids; i++)
            x->by_round[x->n_upto[l->rounds[i]]++] = l->ids[i];
    }
    return true;
}

/* Gathers escapes: the tokens that end there, and the branches behind. They are counted, then placed. */
static bool gather_escapes(tn_glocals *l, tn_gmachine *m, const uint32_t *piece, size_t n_pieces,
                           tn_glocal *x) {
    const tn_gvocab_node *nodes = l->v->nodes;
    const uint8_t *class_of = m->prog.class_of;
    uint32_t count[257] = {0};
    size_t n_ends = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < n_pieces; k++) {
            const tn_gpiece *p = &l->pieces[piece[k]];
            for (size_t i = p->first_esc; i < p->first_esc + p->n_esc; i++) {
                tn_gescape e = l->esc[i];
                if (nodes[e.at].has_ids) {
                    if (pass) x->ends[x->n_ends++] = e;
                    else n_ends++;
                }
                for (uint32_t c = e.at + 1; c < nodes[e.at].past; c = nodes[c].past) {
                    uint8_t class = class_of[nodes[c].byte];
                    if (pass) x->branches[count[class]++] = (tn_gescape){c, e.round};
                    else count[class + 1]++;
                }
            }
        }
        if (pass) break;
        for (int i = 0; i < 256; i++) count[i + 1] += count[i];
        memcpy(x->branch_at, count, sizeof x->branch_at);
        x->ends = tn_alloc(l->ctx, TN_MEM_TEXT, n_ends, sizeof *x->ends);
        x->branches = tn_alloc(l->ctx, TN_MEM_TEXT, count[256], sizeof *x->branches);
        if (!x->ends || !x->branches) return no_memory(m);
    }
    return true;
}

const tn_glocal *tn_glocals_get(tn_glocals *l, tn_gmachine *m, uint32_t node, uint32_t loop) {
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
    bool ok = m->st == TERN_OK && gather_tokens(l, m, piece, n_pieces, &x) &&
              gather_escapes(l, m, piece, n_pieces, &x);
    if (ok && !TN_GVEC_ROOM(l->ctx, l->v_local, l->cap_local, l->n_local + 1)) ok = no_memory(m);
    if (!ok) {
        local_free(l->ctx, &x);
        return NULL;
    }
    l->v_local[l->n_local] = x;
    return &l->v_local[l->n_local++];
}
