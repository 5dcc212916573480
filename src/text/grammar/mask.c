/* Finds which tokens may come next in a machine's state: walks the tree of tokens with the machine, and uses
 * local.h where most bytes are allowed. */
#include "text/grammar/grammar.h"

#include "base/status.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/grammar_impl.h"
#include "text/grammar/schema.h"
#include "text/tokenizer_impl.h"

#include <string.h>

enum {
    MASK_BYTES_MAX = 64 << 20, /* kept; beyond it all are forgotten */
    STATES_KEPT = 1 << 15,
    SPACE_MAX = 16 /* bytes of white space skipped after free text */
};

/* ---- walks ---------------------------------------------------------------------------------------- */

static inline void allow(uint64_t *mask, const tn_gvocab *v, const tn_gvocab_node *t) {
    for (uint32_t i = 0; i < t->n_ids; i++) {
        uint32_t id = v->ids[t->first_id + i];
        mask[id >> 6] |= 1ull << (id & 63);
    }
}

/* Adds all tokens that branch from depth `depth` in nodes [i, end), from state. */
static void walk(tn_grammar *g, uint32_t i, uint32_t end, uint32_t depth, uint32_t state) {
    const tn_gvocab *v = g->v;
    const uint8_t *class_of = g->m.prog.class_of;
    g->way[depth] = state;
    while (i < end) {
        const tn_gvocab_node *t = &v->nodes[i];
        uint32_t to = tn_gmachine_step(&g->m, g->way[t->depth - 1], class_of[t->byte]);
        if (to == TN_GS_DEAD) {
            i = t->past;
            continue;
        }
        g->way[t->depth] = to;
        if (t->has_ids) allow(g->mask, v, t);
        i++;
    }
}

static void set_bits(uint64_t *mask, const uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) mask[ids[i] >> 6] |= 1ull << (ids[i] & 63);
}

/* Adds the tokens of a node's walk that begin no more than `most` rounds. */
static void add_upto(tn_grammar *g, tn_glocal *l, uint32_t most) {
    const tn_grounds *r = &l->inside;
    size_t n_in = most < r->n_rounds ? r->upto[most] : r->n;
    if (2 * n_in < r->n) {
        set_bits(g->mask, r->ids, n_in);
        return;
    }
    /* all except a few that are too long; these are removed from `all` meanwhile */
    for (size_t i = n_in; i < r->n; i++) l->all[r->ids[i] >> 6] &= ~(1ull << (r->ids[i] & 63));
    for (size_t i = 0; i < g->n_words; i++) g->mask[i] |= l->all[i];
    set_bits(l->all, r->ids + n_in, r->n - n_in);
}

/* Adds a wide configuration's tokens to g->mask. */
static void add_wide(tn_grammar *g, tn_gconf c) {
    tn_gmachine *m = &g->m;
    const tn_gvocab_node *nodes = g->v->nodes;
    tn_gframe f = m->frames[c.frame];
    bool loop = f.kind == TN_GFK_LOOP && m->prog.loops[f.node].counted;
    tn_glocal *l = tn_glocals_get(&g->locals, m, c.node, loop ? m->prog.loops[f.node].like + 1 : 0);
    if (!l) return;
    uint32_t least = 0, most = UINT32_MAX; /* rounds that may, and must, still be begun */
    if (loop) {
        const tn_gloop *p = &m->prog.loops[f.node];
        least = p->min > f.count ? p->min - f.count : 0;
        most = p->max - f.count;
    }
    add_upto(g, l, most);
    uint32_t behind = tn_gmachine_return(m, c.frame);
    if (behind == TN_GS_DEAD) return;
    /* if another round follows, the token is inside as well */
    const tn_grounds *ends = &l->ends;
    uint32_t round = loop ? most : 0;
    if (round < ends->n_rounds) {
        uint32_t first = round ? ends->upto[round - 1] : 0;
        set_bits(g->mask, ends->ids + first, ends->upto[round] - first);
    }
    for (uint32_t class = 0; class < m->prog.n_classes; class ++) {
        if (tn_gmachine_step(m, behind, (uint8_t) class) == TN_GS_DEAD) continue;
        const tn_gbranches *b = tn_glocal_branches(&g->locals, m, l, class);
        for (size_t i = 0; b && i < b->n; i++) {
            tn_gescape e = b->v[i];
            if (e.round >= least && e.round <= most)
                walk(g, e.at, nodes[e.at].past, nodes[e.at].depth - 1u, behind);
        }
    }
}

static void forget_masks(tn_grammar *g) {
    for (size_t i = 0; i < g->m.n_states; i++) {
        tn_free(g->ctx, g->m.states[i].mask);
        g->m.states[i].mask = NULL;
    }
    g->n_masks = 0;
}

static void compute(tn_grammar *g) {
    tn_gmachine *m = &g->m;
    g->n_computed++;
    memset(g->mask, 0, g->n_words * sizeof *g->mask);
    tn_gstate s = m->states[g->at.state];
    for (uint32_t i = 0; i < s.n_readers && m->st == TERN_OK; i++) {
        tn_gconf c = m->confs[s.first + i];
        if (m->prog.nodes[c.node].wide) add_wide(g, c);
    }
    uint32_t narrow = tn_gmachine_narrow(m, g->at.state);
    if (narrow != TN_GS_DEAD) walk(g, 0, (uint32_t)g->v->n_nodes, 0, narrow);
    for (size_t i = 0; s.accept && i < g->v->n_ends; i++)
        g->mask[g->v->ends[i] >> 6] |= 1ull << (g->v->ends[i] & 63);
}

/* ---- free text in front ---------------------------------------------------------------------------- */

static size_t match_on(const tn_grammar *g, size_t matched, char c) {
    while (matched && g->after[matched] != c) matched = g->fall[matched];
    return g->after[matched] == c ? matched + 1 : 0;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

bool tn_grammar_follow(tn_grammar *g, tn_gplace *at, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (at->n_mark) {
            if (at->n_mark == g->n_unless) return true;
            if (p[i] != g->unless[at->n_mark++]) return false;
            continue;
        }
        if (at->is_free) {
            at->matched = match_on(g, at->matched, p[i]);
            if (at->matched < g->n_after) continue;
            at->is_free = false;
            at->space_left = SPACE_MAX;
            at->state = g->start;
            at->fresh = g->unless != NULL;
            continue;
        }
        uint32_t to = tn_gmachine_step(&g->m, at->state, g->m.prog.class_of[(uint8_t)p[i]]);
        if (to == TN_GS_DEAD) {
            if (at->fresh && p[i] == *g->unless) {
                at->n_mark = 1;
                continue;
            }
            if (!at->space_left || !is_space(p[i])) return false;
            at->space_left--;
            continue;
        }
        at->space_left = 0;
        at->fresh = false;
        at->state = to;
    }
    return true;
}

/* Finds the tokens with text after a possible end of `after`. Only those can leave the free text wrongly. */
static tern_status find_cross(tn_grammar *g, tern_error *err) {
    const tn_tokenizer *t = g->v->tok;
    g->n_cross = 0;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *p = (const char *)tn_tok_text(t, id, &n);
        bool crosses = false;
        for (size_t i = 0; i + 1 < n && !crosses; i++) { /* p[0..i] ends with an end of `after` */
            size_t k = i + 1 < g->n_after ? i + 1 : g->n_after;
            crosses = !memcmp(p + i + 1 - k, g->after + g->n_after - k, k);
        }
        if (!crosses) continue;
        TN_FAIL_IF(!TN_GVEC_ROOM(g->ctx, g->cross, g->cap_cross, g->n_cross + 1), err, TERN_E_MEMORY,
                   "no memory for the grammar");
        g->cross[g->n_cross++] = id;
    }
    return TERN_OK;
}

static void free_mask(tn_grammar *g) {
    memset(g->mask, 0xff, g->n_words * sizeof *g->mask);
    if (g->v->n_vocab & 63) g->mask[g->n_words - 1] &= (1ull << (g->v->n_vocab & 63)) - 1;
    for (uint32_t id = g->v->tok->n_vocab; id < g->v->n_vocab; id++) g->mask[id >> 6] &= ~(1ull << (id & 63));
    for (size_t i = 0; i < g->v->n_ends; i++) g->mask[g->v->ends[i] >> 6] &= ~(1ull << (g->v->ends[i] & 63));
    for (size_t i = 0; i < g->n_cross; i++) {
        size_t n;
        const char *p = (const char *)tn_tok_text(g->v->tok, g->cross[i], &n);
        tn_gplace at = g->at;
        if (!tn_grammar_follow(g, &at, p, n)) g->mask[g->cross[i] >> 6] &= ~(1ull << (g->cross[i] & 63));
    }
}

/* White space that the grammar does not begin with may still be skipped. So tokens of only white space are
 * allowed, and tokens that continue after it. */
static void space_mask(tn_grammar *g) {
    const tn_gvocab *v = g->v;
    for (uint32_t i = 0; i < v->n_nodes;) { /* spaces lead on, others into the grammar */
        const tn_gvocab_node *t = &v->nodes[i];
        bool begins = tn_gmachine_step(&g->m, g->start, g->m.prog.class_of[t->byte]) != TN_GS_DEAD;
        if (begins || !is_space((char)t->byte) || t->depth > g->at.space_left) {
            if (begins && t->depth > 1) walk(g, i, t->past, t->depth - 1u, g->start);
            i = t->past;
            continue;
        }
        if (t->has_ids) allow(g->mask, v, t);
        i++;
    }
}

/* ---- a mark in place of the grammar -------------------------------------------------------------------- */

bool tn_grammar_unless(tn_grammar *g, const char *mark) {
    const bool may =
        mark && *mark && tn_gmachine_step(&g->m, g->start, g->m.prog.class_of[(uint8_t)*mark]) == TN_GS_DEAD;
    g->unless = may ? mark : NULL;
    g->n_unless = may ? strlen(mark) : 0;
    g->one_mark = may && g->v && tn_tokenizer_find(g->v->tok, mark) >= 0;
    return may || !mark;
}

static bool is_loose(const tn_grammar *g) { return g->at.n_mark && g->at.n_mark == g->n_unless; }

/* Whether a token that leads to this place may. Where one token is the mark, a model writes it with that, and its parts
 * are other text. */
static bool may_mark(const tn_grammar *g, const tn_gplace *to) {
    return !g->one_mark || g->at.n_mark || !to->n_mark || to->n_mark == g->n_unless;
}

/* Adds the tokens with which the mark begins, goes on or ends. A control token may be all of it. */
static void mark_mask(tn_grammar *g) {
    for (uint32_t id = 0; id < g->v->tok->n_vocab; id++) {
        size_t n;
        const char *p = (const char *)tn_tok_text(g->v->tok, id, &n);
        tn_gplace at = g->at;
        if (n && tn_grammar_follow(g, &at, p, n) && at.n_mark && may_mark(g, &at))
            g->mask[id >> 6] |= 1ull << (id & 63);
    }
}

/* ---- the grammar's place --------------------------------------------------------------------------- */

tern_status tn_grammar_begin(tn_grammar *g, const char *after, tern_error *err) {
    tn_ctx *ctx = g->ctx;
    size_t n = after ? strlen(after) : 0;
    TN_FAIL_IF(n && !g->v, err, TERN_E_INVALID, "the grammar has no vocabulary yet");
    if (n && (!g->after || strcmp(after, g->after))) {
        char *copy = tn_strdup(ctx, TN_MEM_TEXT, after);
        size_t *fall = tn_calloc(ctx, TN_MEM_TEXT, n + 1, sizeof *fall);
        if (!copy || !fall) {
            tn_free(ctx, copy);
            tn_free(ctx, fall);
            return tn_fail(err, TERN_E_MEMORY, "no memory for the grammar");
        }
        tn_free(ctx, g->after);
        tn_free(ctx, g->fall);
        g->after = copy;
        g->fall = fall;
        g->n_after = n;
        for (size_t i = 1, k = 0; i < n; i++) {
            while (k && after[k] != after[i]) k = fall[k];
            fall[i + 1] = k += after[k] == after[i];
        }
        TN_TRY(find_cross(g, err));
    }
    g->at = (tn_gplace){.state = g->start, .is_free = n > 0, .fresh = !n && g->unless};
    tn_ending_forget(g->ending);
    return tn_gmachine_status(&g->m, err);
}

bool tn_grammar_pass(tn_grammar *g, const char *text, size_t n_bytes) {
    tn_gplace at = g->at;
    if (!tn_grammar_follow(g, &at, text, n_bytes)) return false;
    g->at = at;
    return true;
}

bool tn_grammar_begins(tn_grammar *g, const char *text, size_t n_bytes) {
    tn_gplace at = {.state = g->start};
    return tn_grammar_follow(g, &at, text, n_bytes);
}

static bool forget_states(tn_grammar *g) {
    forget_masks(g);
    tn_glocals_renumbered(&g->locals);
    g->at.state = tn_gmachine_forget(&g->m, g->at.state);
    g->start = tn_gmachine_start(&g->m);
    return g->m.st == TERN_OK;
}

/* Of a place where the text may begin with the mark, has begun with it, or has passed it and is free. */
static tern_status mask_of_mark(tn_grammar *g, tern_error *err) {
    const bool loose = is_loose(g), begins = !g->at.n_mark;
    memset(g->mask, loose ? 0xff : 0, g->n_words * sizeof *g->mask);
    if (begins) compute(g);
    if (begins && g->at.space_left) space_mask(g);
    if (!loose) mark_mask(g);
    for (size_t id = g->v->tok->n_vocab; loose && id < g->n_words * 64; id++)
        g->mask[id >> 6] &= ~(1ull << (id & 63));
    return tn_gmachine_status(&g->m, err);
}

tern_status tn_grammar_mask(tn_grammar *g, const uint64_t **mask, tern_error *err) {
    TN_FAIL_IF(!g->v, err, TERN_E_INVALID, "the grammar has no vocabulary yet");
    TN_TRY(tn_gmachine_status(&g->m, err));
    *mask = g->mask;
    g->n_asked++;
    if (g->m.n_states > STATES_KEPT && !forget_states(g)) return tn_gmachine_status(&g->m, err);
    if (g->at.is_free) {
        free_mask(g);
        return tn_gmachine_status(&g->m, err);
    }
    if (g->at.fresh || g->at.n_mark) return mask_of_mark(g, err);
    uint64_t *kept = g->m.states[g->at.state].mask;
    if (kept && !g->at.space_left) {
        *mask = kept;
        return TERN_OK;
    }
    compute(g);
    if (g->at.space_left) space_mask(g);
    TN_TRY(tn_gmachine_status(&g->m, err));
    uint64_t any = 0;
    for (size_t i = 0; i < g->n_words; i++) any |= g->mask[i];
    TN_FAIL_IF(!any, err, TERN_E_UNSUPPORTED,
               "the grammar wants text here that no token of the vocabulary begins%s",
               g->m.states[g->at.state].accept ? ", and the vocabulary has no end token" : "");
    if (g->at.space_left) return TERN_OK;
    if ((g->n_masks + 1) * g->n_words * sizeof *g->mask > MASK_BYTES_MAX) forget_masks(g);
    kept = tn_alloc(g->ctx, TN_MEM_TEXT, g->n_words, sizeof *kept);
    if (kept) { /* if memory is short, it is computed again next time */
        memcpy(kept, g->mask, g->n_words * sizeof *kept);
        g->m.states[g->at.state].mask = kept;
        g->n_masks++;
    }
    return TERN_OK;
}

bool tn_grammar_take(tn_grammar *g, int32_t id) {
    const tn_tokenizer *t = g->v->tok;
    if (id < 0 || (uint32_t)id >= t->n_vocab) return false;
    if (tn_tokenizer_is_end(t, id)) return tn_grammar_can_end(g);
    tn_token_type ty = tn_tok_type(t, (uint32_t)id);
    const bool is_text = ty == TN_TOKEN_NORMAL || ty == TN_TOKEN_USER || ty == TN_TOKEN_BYTE;
    size_t n;
    const char *p = (const char *)tn_tok_text(t, (uint32_t)id, &n);
    tn_gplace at = g->at;
    if ((!n && !g->at.is_free && !is_loose(g)) || !tn_grammar_follow(g, &at, p, n)) return false;
    if ((!is_text && !g->at.is_free && !at.n_mark) || !may_mark(g, &at)) return false;
    g->at = at;
    return true;
}

bool tn_grammar_can_end(const tn_grammar *g) {
    return g->at.n_mark ? is_loose(g) : !g->at.is_free && g->m.states[g->at.state].accept;
}

bool tn_grammar_must_end(const tn_grammar *g) {
    return !g->at.n_mark && tn_grammar_can_end(g) && !g->m.states[g->at.state].n_readers && !g->at.space_left;
}

bool tn_grammar_accepts(tn_grammar *g, const char *text, size_t n_bytes) {
    if (g->m.n_states > STATES_KEPT && !forget_states(g)) return false;
    tn_gplace at = {.state = g->start};
    return tn_grammar_follow(g, &at, text, n_bytes) && g->m.states[at.state].accept &&
           (!g->later || tn_schema_fits(g->ctx, g->schema, strlen(g->schema), text, n_bytes));
}

bool tn_grammar_is_whole(const tn_grammar *g) { return g->m.st == TERN_OK; }
const char *tn_grammar_later(const tn_grammar *g) { return g->later; }

tn_grammar_stats tn_grammar_get_stats(const tn_grammar *g) {
    return (tn_grammar_stats){g->m.n_states, g->n_masks, g->n_computed, g->n_asked};
}

/* ---- life ----------------------------------------------------------------------------------------- */

static void unbind(tn_grammar *g) {
    forget_masks(g);
    tn_ending_close(&g->ending);
    tn_glocals_close(&g->locals);
    tn_free(g->ctx, g->way);
    tn_free(g->ctx, g->mask);
    tn_free(g->ctx, g->after);
    tn_free(g->ctx, g->fall);
    g->way = NULL;
    g->mask = NULL;
    g->after = NULL;
    g->fall = NULL;
    g->v = NULL;
}

tern_status tn_grammar_bind(tn_grammar *g, const tn_gvocab *v, tern_error *err) {
    unbind(g);
    g->n_words = (v->n_vocab + 63) / 64;
    g->way = tn_alloc(g->ctx, TN_MEM_TEXT, v->max_depth + 1u, sizeof *g->way);
    g->mask = tn_alloc(g->ctx, TN_MEM_TEXT, g->n_words, sizeof *g->mask);
    TN_FAIL_IF(!g->way || !g->mask, err, TERN_E_MEMORY, "no memory for masks of %zu tokens", v->n_vocab);
    TN_TRY(tn_glocals_open(&g->locals, g->ctx, v, g->n_words, err));
    g->v = v;
    return tn_grammar_begin(g, NULL, err);
}

static tern_status open_with(tn_ctx *ctx, const char *text, size_t n_bytes,
                             tern_status (*read)(tn_gb *, const char *, size_t, tn_grule *, tern_error *),
                             tn_grammar **out, tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(n_bytes > TN_GRAMMAR_TEXT_MAX, err, TERN_E_LIMIT,
               "the grammar has %zu bytes; at most %d are read", n_bytes, TN_GRAMMAR_TEXT_MAX);
    tn_gb b;
    tn_grule root = 0;
    tn_gprog prog = {.ctx = ctx};
    tn_gb_open(&b, ctx);
    char later[TN_GB_LATER];
    tern_status st = read(&b, text, n_bytes, &root, err);
    if (st == TERN_OK) st = tn_gb_status(&b, err);
    memcpy(later, b.later, sizeof later);
    if (st == TERN_OK) st = tn_gprog_make(&b, root, &prog, err);
    tn_gb_close(&b);
    TN_TRY(st);
    tn_grammar *g = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *g);
    if (!g) {
        tn_gprog_free(&prog);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the grammar");
    }
    g->ctx = ctx;
    st = tn_gmachine_open(&g->m, &prog, err);
    if (st == TERN_OK) {
        g->start = g->at.state = tn_gmachine_start(&g->m);
        st = tn_gmachine_status(&g->m, err);
    }
    if (st == TERN_OK && later[0]) {
        g->later = tn_strdup(ctx, TN_MEM_TEXT, later);
        g->schema = tn_alloc(ctx, TN_MEM_TEXT, n_bytes + 1, 1);
        if (!g->later || !g->schema) st = tn_fail(err, TERN_E_MEMORY, "no memory for the grammar");
        else memcpy(g->schema, text, n_bytes), g->schema[n_bytes] = 0;
    }
    *out = g;
    if (st != TERN_OK) tn_grammar_close(out);
    return st;
}

tern_status tn_grammar_open_gbnf(tn_ctx *ctx, const char *text, size_t n_bytes, tn_grammar **out,
                                 tern_error *err) {
    return open_with(ctx, text, n_bytes, tn_gbnf_read, out, err);
}

tern_status tn_grammar_open_schema(tn_ctx *ctx, const char *json, size_t n_bytes, tn_grammar **out,
                                   tern_error *err) {
    return open_with(ctx, json, n_bytes, tn_schema_read, out, err);
}

void tn_grammar_close(tn_grammar **pg) {
    tn_grammar *g = *pg;
    if (!g) return;
    tn_ctx *ctx = g->ctx;
    unbind(g);
    tn_free(ctx, g->cross);
    tn_gmachine_close(&g->m);
    tn_free(ctx, g->schema);
    tn_free(ctx, g->later);
    tn_free(ctx, g);
    *pg = NULL;
}
