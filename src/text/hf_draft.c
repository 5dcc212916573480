/* A tokenizer's description while it is read: its tokens, their scores, the strings that it owns. */
#include "text/hf_impl.h"

#include "base/status.h"

#include <string.h>

void tn_hf_draft_init(tn_hf_draft *d, tn_ctx *ctx, tern_error *err) {
    *d = (tn_hf_draft){.ctx = ctx, .err = err};
    d->spec.bos = d->spec.eos = d->spec.eot = d->spec.unk = d->spec.pad = -1;
}

void tn_hf_draft_free(tn_hf_draft *d) {
    void *owned[] = {d->tokens, d->token_bytes, d->types, d->scores, d->merges, d->merge_bytes};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) tn_free(d->ctx, owned[i]);
    for (size_t i = 0; i < d->n_made; i++) tn_free(d->ctx, d->made[i]);
    tn_free(d->ctx, d->made);
}

tern_status tn_hf_no_memory(tn_hf_draft *d) {
    return tn_fail(d->err, TERN_E_MEMORY, "out of memory reading the tokenizer");
}

bool tn_hf_grow(tn_ctx *ctx, void *array_at, size_t size, size_t cap_new) {
    void *old, *p;
    memcpy(&old, array_at, sizeof old);
    p = tn_realloc(ctx, TN_MEM_TEXT, old, cap_new, size);
    if (!p) return false;
    memcpy(array_at, &p, sizeof p);
    return true;
}

char *tn_hf_make(tn_hf_draft *d, size_t n) {
    if (d->n_made == d->cap_made) {
        size_t cap = d->cap_made * 2 + 16;
        if (!tn_hf_grow(d->ctx, &d->made, sizeof *d->made, cap)) return NULL;
        d->cap_made = cap;
    }
    char *s = tn_calloc(d->ctx, TN_MEM_TEXT, n + 1, 1);
    if (s) d->made[d->n_made++] = s;
    return s;
}

tern_status tn_hf_set_token(tn_hf_draft *d, json_int_t id, const char *text, size_t n, uint8_t type) {
    TN_FAIL_IF(id < 0 || id >= TN_HF_VOCAB, d->err, TERN_E_FORMAT,
               "token \"%.40s\" has id %" JSON_INTEGER_FORMAT, text, id);
    size_t i = (size_t)id;
    if (i >= d->cap_vocab) {
        size_t cap = (i + 1) + d->cap_vocab / 2 + 1024;
        if (!tn_hf_grow(d->ctx, &d->tokens, sizeof *d->tokens, cap) ||
            !tn_hf_grow(d->ctx, &d->token_bytes, sizeof *d->token_bytes, cap) ||
            !tn_hf_grow(d->ctx, &d->types, sizeof *d->types, cap))
            return tn_hf_no_memory(d);
        d->cap_vocab = cap;
    }
    for (; d->n_vocab <= i; d->n_vocab++) {
        d->tokens[d->n_vocab] = "";
        d->token_bytes[d->n_vocab] = 0;
        d->types[d->n_vocab] = TN_TOKEN_UNUSED;
    }
    d->tokens[i] = text;
    d->token_bytes[i] = n;
    d->types[i] = type;
    return TERN_OK;
}

/* Gives a score of 0 to tokens that have none: other files added them, and they are not merged. */
tern_status tn_hf_score_all(tn_hf_draft *d) {
    if (d->n_scores >= d->n_vocab) return TERN_OK;
    if (!tn_hf_grow(d->ctx, &d->scores, sizeof *d->scores, d->cap_vocab)) return tn_hf_no_memory(d);
    memset(d->scores + d->n_scores, 0, (d->cap_vocab - d->n_scores) * sizeof *d->scores);
    d->n_scores = d->cap_vocab;
    return TERN_OK;
}
