#include "text/grammar/vocab.h"

#include "base/status.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const uint8_t *p;
    uint64_t key; /* its first bytes, for quick comparison */
    uint32_t n, id;
} entry;

static int by_bytes(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    if (c) return c;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_text(const tn_tokenizer *t, uint32_t id) {
    tn_token_type ty = tn_tok_type(t, id);
    size_t n = t->off[id + 1] - t->off[id];
    return n && n <= UINT16_MAX && !tn_tokenizer_is_end(t, (int32_t)id) &&
           (ty == TN_TOKEN_NORMAL || ty == TN_TOKEN_USER || ty == TN_TOKEN_BYTE);
}

static size_t collect(const tn_tokenizer *t, entry *e, uint32_t *ends, size_t *n_ends) {
    size_t n = 0;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        if (tn_tokenizer_is_end(t, (int32_t)id)) ends[(*n_ends)++] = id;
        if (!is_text(t, id)) continue;
        size_t len;
        const uint8_t *p = tn_tok_text(t, id, &len);
        uint64_t key = 0;
        for (size_t i = 0; i < 8; i++) key = key << 8 | (i < len ? p[i] : 0u);
        e[n++] = (entry){p, key, (uint32_t)len, id};
    }
    qsort(e, n, sizeof *e, by_bytes);
    return n;
}

static size_t shared(const entry *a, const entry *b) { /* first bytes in common */
    size_t n = a->n < b->n ? a->n : b->n, i = 0;
    while (i < n && a->p[i] == b->p[i]) i++;
    return i;
}

/* Writes the tree of the sorted entries. open[d] is the node at depth d + 1 of the current path. */
static void plant(tn_gvocab *v, const entry *e, size_t n, uint32_t *open) {
    size_t k = 0, way = 0;
    for (size_t i = 0; i < n; i++) {
        size_t keep = i ? shared(&e[i - 1], &e[i]) : 0;
        for (; way > keep; way--) v->nodes[open[way - 1]].past = (uint32_t)k;
        for (; way < e[i].n; way++, k++) {
            v->nodes[k] = (tn_gvocab_node){
                .depth = (uint16_t)(way + 1), .byte = e[i].p[way], .first_id = (uint32_t)i & 0x7fffffff};
            open[way] = (uint32_t)k;
        }
        tn_gvocab_node *at = &v->nodes[open[way - 1]];
        v->ids[i] = e[i].id;
        at->has_ids = 1;
        if (at->n_ids < UINT8_MAX) at->n_ids++;
        else v->crowded = true;
        if (way > v->max_depth) v->max_depth = (uint32_t)way;
    }
    for (; way; way--) v->nodes[open[way - 1]].past = (uint32_t)k;
    v->n_nodes = k;
}

uint8_t tn_gvocab_group(uint8_t b) {
    static const char alone[] = " \"\\-_.:,[]{}/@+'#";
    enum { LOWER = sizeof alone - 1, HEX, UPPER, DIGIT, CONTROL, OTHER, N_GROUPS };
    _Static_assert(N_GROUPS <= (int)TN_GVOCAB_HIGH, "groups are bits");
    const char *p = b ? strchr(alone, b) : NULL;
    if (p) return (uint8_t)(p - alone);
    if (b >= 0x80) return TN_GVOCAB_HIGH;
    if (b < 0x20 || b == 0x7f) return CONTROL;
    if (b >= '0' && b <= '9') return DIGIT;
    if (b >= 'a' && b <= 'f') return HEX;
    if (b >= 'g' && b <= 'z') return LOWER;
    return b >= 'A' && b <= 'Z' ? UPPER : OTHER;
}

bool tn_gvocab_utf8(uint8_t b, uint8_t *need, uint8_t *lo, uint8_t *hi) {
    bool inside = *need > 0, fits = !inside || (b >= *lo && b <= *hi);
    *lo = 0x80;
    *hi = 0xbf;
    if (inside && fits) {
        --*need;
        return true;
    }
    *need = 0;
    if (b < 0x80) return fits;
    if (!fits || b < 0xc2 || b > 0xf4) return false;
    *need = b >= 0xf0 ? 3 : b >= 0xe0 ? 2 : 1;
    if (b == 0xe0) *lo = 0xa0;
    if (b == 0xed) *hi = 0x9f;
    if (b == 0xf0) *lo = 0x90;
    if (b == 0xf4) *hi = 0x8f;
    return true;
}

/* A place on the current path: a node, and how its bytes continue. */
typedef struct step {
    uint32_t node;
    uint8_t lo, hi;
} step;

/* Fills text, id_chars and by_byte. way: scratch, as long as the longest token. */
static void look_over(tn_gvocab *v, step *way) {
    uint32_t at[257] = {0};
    for (size_t i = 0; i < v->n_nodes; i++) at[v->nodes[i].byte + 1]++;
    for (int b = 0; b < 256; b++) at[b + 1] += at[b];
    memcpy(v->by_byte_at, at, sizeof at);
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        const tn_gvocab_node *t = &v->nodes[i];
        const step *up = t->depth > 1 ? &way[t->depth - 2] : NULL;
        tn_gvocab_text x = up ? v->text[up->node] : (tn_gvocab_text){0};
        step *here = &way[t->depth - 1];
        *here = (step){i, up ? up->lo : 0, up ? up->hi : 0};
        bool good = tn_gvocab_utf8(t->byte, &x.need, &here->lo, &here->hi);
        if (!x.need && (good || t->byte < 0x80)) x.chars++;
        x.below = good ? 0 : 1u << TN_GVOCAB_BAD; /* its own, for the moment */
        v->text[i] = x;
        v->by_byte[at[t->byte]++] = (tn_gvocab_edge){i, up ? up->node : UINT32_MAX};
        for (uint32_t k = 0; t->has_ids && k < t->n_ids; k++)
            v->id_chars[t->first_id + k] = (uint32_t)x.chars << 1 | !x.need;
    }
    for (size_t i = v->n_nodes; i-- > 0;) { /* children have larger numbers, so they are complete */
        const tn_gvocab_node *t = &v->nodes[i];
        uint32_t below = 0;
        for (size_t c = i + 1; c < t->past; c = v->nodes[c].past)
            below |= v->text[c].below | 1u << tn_gvocab_group(v->nodes[c].byte);
        v->text[i].below |= below;
    }
}

tern_status tn_gvocab_open(tn_ctx *ctx, const tn_tokenizer *tok, size_t n_vocab, tn_gvocab **out,
                           tern_error *err) {
    *out = NULL;
    tern_status st = TERN_OK;
    tn_gvocab *v = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *v);
    size_t n_tok = tok->n_vocab;
    entry *e = tn_alloc(ctx, TN_MEM_TEXT, n_tok, sizeof *e);
    uint32_t *ends = tn_alloc(ctx, TN_MEM_TEXT, n_tok, sizeof *ends), *open = NULL;
    step *way = NULL;
    if (v) v->ctx = ctx; /* to close it */
    TN_BAIL_IF(!v || !e || !ends, err, TERN_E_MEMORY, "no memory for a tree of %zu tokens", n_tok);
    *v = (tn_gvocab){.ctx = ctx, .tok = tok, .n_vocab = n_vocab > n_tok ? n_vocab : n_tok, .ends = ends};
    size_t n_ends = 0, n = collect(tok, e, ends, &n_ends), n_nodes = 0, longest = 0;
    v->n_ends = n_ends;
    ends = NULL;
    for (size_t i = 0; i < n; i++) {
        n_nodes += e[i].n - (i ? shared(&e[i - 1], &e[i]) : 0);
        longest = e[i].n > longest ? e[i].n : longest;
    }
    v->n_ids = n;
    v->nodes = tn_alloc(ctx, TN_MEM_TEXT, n_nodes, sizeof *v->nodes);
    v->ids = tn_alloc(ctx, TN_MEM_TEXT, n, sizeof *v->ids);
    v->id_chars = tn_calloc(ctx, TN_MEM_TEXT, n, sizeof *v->id_chars);
    v->text = tn_alloc(ctx, TN_MEM_TEXT, n_nodes, sizeof *v->text);
    way = tn_alloc(ctx, TN_MEM_TEXT, longest, sizeof *way);
    v->by_byte = tn_alloc(ctx, TN_MEM_TEXT, n_nodes, sizeof *v->by_byte);
    open = tn_alloc(ctx, TN_MEM_TEXT, longest, sizeof *open);
    TN_BAIL_IF(n_nodes >= UINT32_MAX || !v->nodes || !v->ids || !v->id_chars || !v->text || !way ||
                   !v->by_byte || !open,
               err, TERN_E_MEMORY, "no memory for a tree of %zu tokens", n_tok);
    plant(v, e, n, open);
    look_over(v, way);
    *out = v;
    v = NULL;
out:
    tn_free(ctx, e);
    tn_free(ctx, ends);
    tn_free(ctx, open);
    tn_free(ctx, way);
    tn_gvocab_close(&v);
    return st;
}

void tn_gvocab_close(tn_gvocab **pv) {
    tn_gvocab *v = *pv;
    if (!v) return;
    tn_ctx *ctx = v->ctx;
    tn_free(ctx, v->nodes);
    tn_free(ctx, v->ids);
    tn_free(ctx, v->id_chars);
    tn_free(ctx, v->text);
    tn_free(ctx, v->by_byte);
    tn_free(ctx, v->ends);
    tn_free(ctx, v);
    *pv = NULL;
}
