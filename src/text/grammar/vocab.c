#include "text/grammar/vocab.h"

#include "base/status.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>

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

/* Writes the tree of the sorted entries. open[d] is the node on the way at depth d + 1. */
static void plant(tn_gvocab *v, const entry *e, size_t n, uint32_t *open) {
    size_t k = 0, way = 0;
    for (size_t i = 0; i < n; i++) {
        size_t keep = i ? shared(&e[i - 1], &e[i]) : 0;
        for (; way > keep; way--) v->nodes[open[way - 1]].past = (uint32_t)k;
        for (; way < e[i].n; way++, k++) {
            v->nodes[k] = (tn_gvocab_node){.depth = (uint16_t)(way + 1), .byte = e[i].p[way]};
            open[way] = (uint32_t)k;
        }
        tn_gvocab_node *at = &v->nodes[open[way - 1]];
        v->ids[i] = e[i].id;
        if (!at->has_ids) at->first_id = (uint32_t)i & 0x7fffffff;
        at->has_ids = 1;
        if (at->n_ids < UINT8_MAX) at->n_ids++;
        if (way > v->max_depth) v->max_depth = (uint32_t)way;
    }
    for (; way; way--) v->nodes[open[way - 1]].past = (uint32_t)k;
    v->n_nodes = k;
}

tern_status tn_gvocab_open(tn_ctx *ctx, const tn_tokenizer *tok, size_t n_vocab, tn_gvocab **out,
                           tern_error *err) {
    *out = NULL;
    tern_status st = TERN_OK;
    tn_gvocab *v = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *v);
    size_t n_tok = tok->n_vocab;
    entry *e = tn_alloc(ctx, TN_MEM_TEXT, n_tok, sizeof *e);
    uint32_t *ends = tn_alloc(ctx, TN_MEM_TEXT, n_tok, sizeof *ends), *open = NULL;
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
    open = tn_alloc(ctx, TN_MEM_TEXT, longest, sizeof *open);
    TN_BAIL_IF(n_nodes >= UINT32_MAX || !v->nodes || !v->ids || !open, err, TERN_E_MEMORY,
               "no memory for a tree of %zu tokens", n_tok);
    plant(v, e, n, open);
    *out = v;
    v = NULL;
out:
    tn_free(ctx, e);
    tn_free(ctx, ends);
    tn_free(ctx, open);
    tn_gvocab_close(&v);
    return st;
}

void tn_gvocab_close(tn_gvocab **pv) {
    tn_gvocab *v = *pv;
    if (!v) return;
    tn_ctx *ctx = v->ctx;
    tn_free(ctx, v->nodes);
    tn_free(ctx, v->ids);
    tn_free(ctx, v->ends);
    tn_free(ctx, v);
    *pv = NULL;
}
