#include "model/state.h"

#include "base/status.h"
#include "kernels/attn_f32.h"

#include <assert.h>
#include <string.h>

void tn_state_add(tn_state *s, const tn_state_ops *ops, void *self) {
    assert(s->n_parts < (int32_t)(sizeof s->parts / sizeof *s->parts));
    assert((ops->truncate && !ops->reaches) || (ops->snapshot_bytes && ops->snapshot && ops->restore));
    s->parts[s->n_parts++] = (struct tn_state_part){ops, self};
}

tern_status tn_state_open(tn_ctx *ctx, const tn_program *p, const tn_hparams *h, int32_t n_ctx, tn_state *out,
                          tern_error *err) {
    *out = (tn_state){.ctx = ctx};
    uint32_t kinds = 0;
    for (int32_t i = 0; i < p->n_ops; i++) kinds |= p->ops[i].state_reads | p->ops[i].state_writes;
    tern_status rc = TERN_OK;
    if (kinds >> TN_STATE_KV & 1) {
        rc = tn_kv_open(ctx, h, n_ctx, &out->kv, err);
        if (rc == TERN_OK) tn_state_add(out, &tn_kv_state, &out->kv);
    }
    if (rc == TERN_OK && kinds >> TN_STATE_CONV & 1) {
        rc = tn_conv_open(ctx, h, &out->conv, err);
        if (rc == TERN_OK) tn_state_add(out, &tn_conv_state, &out->conv);
    }
    if (rc == TERN_OK && kinds >> TN_STATE_DELTA & 1) {
        rc = tn_delta_open(ctx, h, &out->delta, err);
        if (rc == TERN_OK) tn_state_add(out, &tn_delta_state, &out->delta);
    }
    if (rc != TERN_OK) tn_state_close(out);
    return rc;
}

static void drop_marks(tn_state *s, int32_t n_left) {
    while (s->n_marks > n_left) tn_free(s->ctx, s->marks[--s->n_marks].data);
}

void tn_state_close(tn_state *s) {
    if (!s->ctx) return;
    drop_marks(s, 0);
    for (int32_t i = 0; i < s->n_parts; i++) s->parts[i].ops->close(s->parts[i].self);
    *s = (tn_state){0};
}

uint64_t tn_state_bytes(const tn_state *s) {
    uint64_t n = 0;
    for (int32_t i = 0; i < s->n_parts; i++) n += s->parts[i].ops->bytes(s->parts[i].self);
    return n;
}

uint64_t tn_state_bytes_of(const tn_hparams *h, int32_t n_ctx) {
    uint64_t slots = ((uint64_t)n_ctx + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL,
             n = 2 * slots * (uint64_t)tn_n_attending(h) * (uint64_t)(h->n_kv_heads * h->d_head);
    for (int32_t l = 0; l < h->n_layers; l++)
        if (h->layer_kind[l] == TN_LAYER_CONVOLVES) n += tn_conv_floats(h->n_embd, h->conv_len);
    return (n + tn_delta_floats(h)) * sizeof(float);
}

void tn_state_append(tn_state *s, int32_t n) {
    for (int32_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].ops->append) s->parts[i].ops->append(s->parts[i].self, s->n_tok, n);
    s->n_tok += n;
}

void tn_state_keep(tn_state *s, int32_t slot) {
    for (int32_t i = 0; i < s->n_parts; i++) s->parts[i].ops->keep(s->parts[i].self, slot, s->n_tok);
    s->n_tok++;
}

/* ---- going back ------------------------------------------------------------------------------------ */

/* Does this kind go back to any position? */
static bool is_free(const struct tn_state_part *p) { return p->ops->truncate && !p->ops->reaches; }

bool tn_state_truncates(const tn_state *s) {
    bool all = true;
    for (int32_t i = 0; i < s->n_parts; i++) all = all && is_free(&s->parts[i]);
    return all;
}

bool tn_state_reaches(const tn_state *s, int32_t n_tok) {
    bool all = true;
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct tn_state_part *p = &s->parts[i];
        all = all && p->ops->truncate && (!p->ops->reaches || p->ops->reaches(p->self, n_tok));
    }
    return all;
}

static size_t snapshot_bytes(const struct tn_state_part *p) {
    return is_free(p) ? 0 : (p->ops->snapshot_bytes(p->self) + 15) / 16 * 16;
}

tern_status tn_state_snapshot(tn_state *s, tern_error *err) {
    if (tn_state_truncates(s) || (s->n_marks && s->marks[s->n_marks - 1].n_tok == s->n_tok)) return TERN_OK;
    size_t n = 0;
    for (int32_t i = 0; i < s->n_parts; i++) n += snapshot_bytes(&s->parts[i]);
    char *data = tn_alloc(s->ctx, TN_MEM_KV, n, 1), *at = data;
    TN_FAIL_IF(!data, err, TERN_E_MEMORY, "no memory for a snapshot of %zu bytes at position %d", n,
               s->n_tok);
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct tn_state_part *p = &s->parts[i];
        if (!is_free(p)) p->ops->snapshot(p->self, at);
        at += snapshot_bytes(p);
    }
    if (s->n_marks == TN_STATE_MARKS) {
        tn_free(s->ctx, s->marks[0].data);
        memmove(s->marks, s->marks + 1, --s->n_marks * sizeof *s->marks);
    }
    s->marks[s->n_marks++] = (tn_state_mark){.n_tok = s->n_tok, .data = data};
    return TERN_OK;
}

/* Kinds that cannot truncate become what they were at the last mark, or before the first token. */
static void restore(tn_state *s, const char *at) {
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct tn_state_part *p = &s->parts[i];
        if (is_free(p)) continue;
        p->ops->restore(p->self, at);
        if (at) at += snapshot_bytes(p);
    }
}

int32_t tn_state_truncate(tn_state *s, int32_t n_tok) {
    if (n_tok >= s->n_tok) return s->n_tok;
    int32_t n = s->n_marks;
    while (n && s->marks[n - 1].n_tok > n_tok) n--;
    drop_marks(s, n);
    if (!tn_state_reaches(s, n_tok)) {
        n_tok = n ? s->marks[n - 1].n_tok : 0;
        restore(s, n ? s->marks[n - 1].data : NULL);
    }
    for (int32_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].ops->truncate) s->parts[i].ops->truncate(s->parts[i].self, n_tok);
    return s->n_tok = n_tok;
}

/* ---- files ----------------------------------------------------------------------------------------- */

void tn_state_save(const tn_state *s, tn_state_io put, void *user) {
    for (int32_t i = 0; i < s->n_parts; i++)
        s->parts[i].ops->transfer(s->parts[i].self, s->n_tok, true, put, user);
}

void tn_state_load(tn_state *s, int32_t n_tok, tn_state_io get, void *user) {
    drop_marks(s, 0);
    for (int32_t i = 0; i < s->n_parts; i++)
        s->parts[i].ops->transfer(s->parts[i].self, n_tok, false, get, user);
    s->n_tok = n_tok;
}
