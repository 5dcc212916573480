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

tern_status tn_state_open(tn_ctx *ctx, const tn_program *p, const tn_hparams *h, int32_t n_ctx, tn_kv_type kv,
                          tn_state *out, tern_error *err) {
    *out = (tn_state){.ctx = ctx};
    uint32_t kinds = 0;
    for (int32_t i = 0; i < p->n_ops; i++) kinds |= p->ops[i].state_reads | p->ops[i].state_writes;
    /* a model whose layers do not attend has an empty one, by which others know how long a text may be */
    tern_status rc = tn_kv_open(ctx, h, n_ctx, kv, &out->kv, err);
    if (rc == TERN_OK) tn_state_add(out, &tn_kv_state, &out->kv);
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

uint64_t tn_state_bytes_of(const tn_hparams *h, int32_t n_ctx, tn_kv_type kv) {
    uint64_t n = 0;
    for (int32_t l = 0; l < h->n_layers; l++)
        if (tn_layer_keeps_rows(h, l)) n += tn_conv_floats(tn_kept_row(h), h->conv_len);
    return tn_kv_bytes_of(h, n_ctx, kv) + (n + tn_delta_floats(h)) * sizeof(float);
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

static size_t mark_bytes(const tn_state *s) {
    size_t n = 0;
    for (int32_t i = 0; i < s->n_parts; i++) n += snapshot_bytes(&s->parts[i]);
    return n;
}

int32_t tn_state_unmarked(const tn_state *s) {
    if (tn_state_truncates(s)) return 0;
    return s->n_tok - (s->n_marks ? s->marks[s->n_marks - 1].n_tok : 0);
}

/* The place, before the last and not at `but`, without which the longest way back grows least; of two at least. */
static int32_t nearest(const int32_t *at, int32_t n, int32_t but) {
    int32_t best = 0, least = INT32_MAX;
    for (int32_t i = 0; i + 1 < n; i++) {
        int32_t gap = at[i + 1] - (i ? at[i - 1] : 0);
        if (gap >= least || at[i] == but) continue;
        least = gap;
        best = i;
    }
    return best;
}

static void drop_nearest(tn_state *s) {
    int32_t at[TN_STATE_MARKS];
    for (int32_t i = 0; i < s->n_marks; i++) at[i] = s->marks[i].n_tok;
    int32_t best = nearest(at, s->n_marks, 0);
    tn_free(s->ctx, s->marks[best].data);
    s->n_marks--;
    memmove(s->marks + best, s->marks + best + 1, (size_t)(s->n_marks - best) * sizeof *s->marks);
}

/* Large snapshots are few. */
static int32_t most_marks(size_t snapshot_bytes) {
    size_t fit = TN_STATE_MARK_BYTES / (snapshot_bytes + 1);
    return fit < TN_STATE_LEAST_MARKS ? TN_STATE_LEAST_MARKS
           : fit < TN_STATE_MARKS     ? (int32_t)fit
                                      : TN_STATE_MARKS;
}

tern_status tn_state_snapshot(tn_state *s, tern_error *err) {
    if (tn_state_truncates(s) || (s->n_marks && s->marks[s->n_marks - 1].n_tok == s->n_tok)) return TERN_OK;
    size_t n = mark_bytes(s);
    char *data = tn_calloc(s->ctx, TN_MEM_KV, n, 1), *at = data; /* not all is written, and files have it */
    TN_FAIL_IF(!data, err, TERN_E_MEMORY, "no memory for a snapshot of %zu bytes at position %d", n,
               s->n_tok);
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct tn_state_part *p = &s->parts[i];
        if (!is_free(p)) p->ops->snapshot(p->self, at);
        at += snapshot_bytes(p);
    }
    while (s->n_marks >= most_marks(n)) drop_nearest(s);
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

/* How many marks lie at or before a position. */
static int32_t marks_before(const tn_state *s, int32_t n_tok) {
    int32_t n = s->n_marks;
    while (n && s->marks[n - 1].n_tok > n_tok) n--;
    return n;
}

int32_t tn_state_left(const tn_state *s, int32_t n_tok) {
    if (n_tok >= s->n_tok) return s->n_tok;
    if (tn_state_reaches(s, n_tok)) return n_tok;
    int32_t n = marks_before(s, n_tok);
    return n ? s->marks[n - 1].n_tok : 0;
}

int32_t tn_state_truncate(tn_state *s, int32_t n_tok) {
    if (n_tok >= s->n_tok) return s->n_tok;
    int32_t n = marks_before(s, n_tok), left = tn_state_left(s, n_tok);
    drop_marks(s, n);
    if (!tn_state_reaches(s, n_tok)) restore(s, n ? s->marks[n - 1].data : NULL);
    n_tok = left;
    for (int32_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].ops->truncate) s->parts[i].ops->truncate(s->parts[i].self, n_tok);
    return s->n_tok = n_tok;
}

/* ---- copies ---------------------------------------------------------------------------------------- */

/* A state is here on its way from one text to another. */
typedef struct memory {
    char *data;
    size_t n;
} memory;

static void count(void *user, void *p, size_t n) {
    (void)p;
    ((memory *)user)->n += n;
}

static void to_memory(void *user, void *p, size_t n) {
    memory *m = user;
    memcpy(m->data + m->n, p, n);
    m->n += n;
}

static void from_memory(void *user, void *p, size_t n) {
    memory *m = user;
    memcpy(p, m->data + m->n, n);
    m->n += n;
}

/* Keys and values in two forms are converted where they lie. */
static bool converts(const struct tn_state_part *to, const struct tn_state_part *from) {
    return from->ops == &tn_kv_state && ((const tn_kv *)from->self)->type != ((const tn_kv *)to->self)->type;
}

/* All that can fail: what is to be copied, in memory of dst's. */
static tern_status read_all(tn_state *dst, const tn_state *s, int32_t n_tok, bool all, int32_t n_marks,
                            memory parts[], void *marks[], tern_error *err) {
    const size_t size = mark_bytes(s);
    for (int32_t i = 0; i < n_marks; i++) {
        marks[i] = tn_alloc(dst->ctx, TN_MEM_KV, size, 1);
        TN_FAIL_IF(!marks[i], err, TERN_E_MEMORY, "no memory for a snapshot of %zu bytes", size);
        memcpy(marks[i], s->marks[i].data, size);
    }
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct tn_state_part *from = &s->parts[i];
        memory *m = &parts[i];
        if (converts(&dst->parts[i], from) || !(all || is_free(from))) continue;
        from->ops->transfer(from->self, n_tok, true, count, m);
        m->data = tn_alloc(dst->ctx, TN_MEM_OTHER, m->n + 1, 1);
        TN_FAIL_IF(!m->data, err, TERN_E_MEMORY, "no memory to copy what the layers remember of %d tokens",
                   n_tok);
        m->n = 0;
        from->ops->transfer(from->self, n_tok, true, to_memory, m);
        m->n = 0;
    }
    return TERN_OK;
}

tern_status tn_state_copy(tn_state *dst, const tn_state *s, int32_t n_tok, tern_error *err) {
    int32_t n = marks_before(s, n_tok);
    bool reaches = n_tok == s->n_tok || tn_state_reaches(s, n_tok);
    memory parts[TN_N_STATE_KINDS + 1] = {0};
    void *marks[TN_STATE_MARKS] = {0};
    assert(n_tok == tn_state_left(s, n_tok) && dst->n_parts == s->n_parts);
    tern_status st = read_all(dst, s, n_tok, reaches, n, parts, marks, err);
    if (st == TERN_OK) {
        (void)tn_state_truncate(dst, 0);
        for (int32_t i = 0; i < n; i++)
            dst->marks[i] = (tn_state_mark){.n_tok = s->marks[i].n_tok, .data = marks[i]};
        dst->n_marks = n;
        if (!reaches) restore(dst, n ? dst->marks[n - 1].data : NULL);
        dst->n_tok = n_tok;
    }
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct tn_state_part *to = &dst->parts[i];
        if (st == TERN_OK && parts[i].data) to->ops->transfer(to->self, n_tok, false, from_memory, &parts[i]);
        else if (st == TERN_OK && converts(to, &s->parts[i]))
            tn_kv_convert(s->parts[i].self, n_tok, to->self);
        tn_free(dst->ctx, parts[i].data);
    }
    for (int32_t i = 0; st != TERN_OK && i < n; i++) tn_free(dst->ctx, marks[i]);
    return st;
}

/* ---- files ----------------------------------------------------------------------------------------- */

void tn_state_places_of(const tn_state *s, tn_state_places *out, uint64_t *n_bytes) {
    memory rest = {0};
    size_t each = mark_bytes(s);
    bool has_end = false;
    *out = (tn_state_places){.n = s->n_marks, .end = out->end};
    for (int32_t i = 0; i < s->n_marks; i++) {
        out->at[i] = s->marks[i].n_tok;
        has_end = has_end || out->at[i] == out->end;
    }
    if (!has_end) out->end = 0;
    for (int32_t i = 0; s->n_marks && i < s->n_parts; i++)
        s->parts[i].ops->transfer(s->parts[i].self, s->n_tok, true, count, &rest);
    while (out->n > 2 && (uint64_t)out->n * each > rest.n) {
        int32_t which = nearest(out->at, out->n, out->end);
        out->n--;
        memmove(out->at + which, out->at + which + 1, (size_t)(out->n - which) * sizeof *out->at);
    }
    *n_bytes = (uint64_t)out->n * each;
}

void tn_state_save(const tn_state *s, const tn_state_places *places, tn_state_io put, void *user) {
    for (int32_t i = 0; i < s->n_parts; i++)
        s->parts[i].ops->transfer(s->parts[i].self, s->n_tok, true, put, user);
    for (int32_t i = 0, k = 0; k < places->n; i++)
        if (s->marks[i].n_tok == places->at[k]) put(user, s->marks[i].data, mark_bytes(s)), k++;
}

static tern_status load_marks(tn_state *s, const tn_state_places *places, tn_state_io get, void *user,
                              tern_error *err) {
    const size_t n = mark_bytes(s);
    for (int32_t i = 0; i < places->n; i++) {
        void *data = tn_alloc(s->ctx, TN_MEM_KV, n, 1);
        TN_FAIL_IF(!data, err, TERN_E_MEMORY, "no memory for a snapshot of %zu bytes", n);
        get(user, data, n);
        while (s->n_marks >= most_marks(n)) drop_nearest(s); /* a file may have more */
        s->marks[s->n_marks++] = (tn_state_mark){.n_tok = places->at[i], .data = data};
        const char *at = data;
        for (int32_t k = 0; k < s->n_parts; at += snapshot_bytes(&s->parts[k++]))
            TN_FAIL_IF(s->parts[k].ops->snapshot_at && s->parts[k].ops->snapshot_at(at) != places->at[i], err,
                       TERN_E_FORMAT, "the snapshot of position %d is another's", places->at[i]);
    }
    return TERN_OK;
}

tern_status tn_state_load(tn_state *s, const tn_hparams *h, int32_t n_tok, tn_kv_type kv,
                          const tn_state_places *places, tn_state_io get, void *user, tern_error *err) {
    (void)tn_state_truncate(s, 0);
    for (int32_t i = 0; i < s->n_parts; i++) {
        const struct tn_state_part *p = &s->parts[i];
        bool other = p->ops == &tn_kv_state && s->kv.type != kv;
        tn_kv saved;
        if (other) TN_TRY(tn_kv_open(s->ctx, h, n_tok, kv, &saved, err));
        if (other) saved.fuse_at = INT32_MAX; /* it is soon gone */
        p->ops->transfer(other ? &saved : p->self, n_tok, false, get, user);
        if (!other) continue;
        tn_kv_convert(&saved, n_tok, &s->kv);
        tn_kv_close(&saved);
    }
    s->n_tok = n_tok;
    tern_status st = load_marks(s, places, get, user, err);
    if (st != TERN_OK) (void)tn_state_truncate(s, 0);
    return st;
}
