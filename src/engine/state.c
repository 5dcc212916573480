/* Saving and loading a session: tokens, KV cache and logits, tied to the model by its fingerprint.
 * File: state_head | tokens i32 | per layer and KV head: K panels, V rows (f32) | logits f32 | XXH64 of all
 * before. */
#include "engine/engine.h"

#include "base/file.h"
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = "TERNSTA";

typedef struct state_head {
    char magic[8];
    uint32_t version;
    int32_t n_tok, n_layers, n_kv_heads, d_head, n_vocab;
    uint64_t fingerprint;
    uint32_t has_logits, rope_long;
} state_head;
_Static_assert(sizeof(state_head) == 48, "on-disk layout");

typedef struct stream {
    FILE *f;
    XXH64_state_t *hash;
    bool failed;
} stream;

static void put(stream *s, const void *p, size_t n) {
    if (n && fwrite(p, 1, n, s->f) != n) s->failed = true;
    XXH64_update(s->hash, p, n);
}

static void get(stream *s, void *p, size_t n) {
    if (n && fread(p, 1, n, s->f) != n) {
        s->failed = true;
        memset(p, 0, n);
    }
    XXH64_update(s->hash, p, n);
}

/* The cache slices that hold the first n_tok positions, in file order. */
static void each_slice(const tern_session *s, int32_t n_tok, stream *st,
                       void (*io)(stream *, void *, size_t)) {
    const tn_kv *kv = &s->kv;
    size_t d = (size_t)kv->d_head, k_pos = (size_t)(n_tok + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    for (int l = 0; l < kv->n_layers; l++) {
        for (int h = 0; h < kv->n_kv_heads; h++) {
            io(st, tn_kv_k(kv, l, h), k_pos * d * sizeof(float));
            io(st, tn_kv_v(kv, l, h), (size_t)n_tok * d * sizeof(float));
        }
    }
}

static void put_slice(stream *s, void *p, size_t n) { put(s, p, n); }

/* The last K panel is written whole: give the slots behind n_tok a value, so that files are reproducible. */
static void clear_tail(const tern_session *s) {
    const tn_kv *kv = &s->kv;
    size_t d = (size_t)kv->d_head, in_panel = (size_t)(s->n_tok % TN_KV_PANEL);
    if (!in_panel) return;
    size_t off = (size_t)(s->n_tok / TN_KV_PANEL) * d * TN_KV_PANEL;
    for (int l = 0; l < kv->n_layers; l++) {
        for (int h = 0; h < kv->n_kv_heads; h++) {
            for (size_t i = 0; i < d; i++) {
                memset(tn_kv_k(kv, l, h) + off + i * TN_KV_PANEL + in_panel, 0,
                       (TN_KV_PANEL - in_panel) * sizeof(float));
            }
        }
    }
}

tern_status tern_session_save(const tern_session *s, const char *path, tern_error *err) {
    TN_FAIL_IF(!s || !path, err, TERN_E_INVALID, "no session or no path given");
    TN_TRY(tn_file_may_replace(path, err));
    const tn_model *m = s->e->model;
    size_t cap = strlen(path) + 32;
    char *tmp = tn_alloc(&s->e->ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!tmp, err, TERN_E_MEMORY, "no memory to save a session");
    snprintf(tmp, cap, "%s.tmp%ld", path, (long)getpid());
    stream st = {.f = fopen(tmp, "wb"), .hash = XXH64_createState()};
    tern_status rc = TERN_OK;
    if (!st.f || !st.hash) {
        rc = tn_fail(err, TERN_E_IO, "%s: cannot write: %s", tmp, strerror(errno));
        goto out;
    }
    XXH64_reset(st.hash, 0);
    state_head head = {.version = 1,
                       .n_tok = s->n_tok,
                       .n_layers = m->h.n_layers,
                       .n_kv_heads = m->h.n_kv_heads,
                       .d_head = m->h.d_head,
                       .n_vocab = m->h.n_vocab,
                       .fingerprint = m->fingerprint,
                       .has_logits = s->has_logits,
                       .rope_long = tn_session_rope_long(s)};
    memcpy(head.magic, MAGIC, sizeof head.magic);
    clear_tail(s);
    put(&st, &head, sizeof head);
    put(&st, s->tokens, (size_t)s->n_tok * sizeof *s->tokens);
    each_slice(s, s->n_tok, &st, put_slice);
    if (s->has_logits) put(&st, s->logits, (size_t)m->h.n_vocab * sizeof *s->logits);
    uint64_t digest = XXH64_digest(st.hash);
    if (fwrite(&digest, sizeof digest, 1, st.f) != 1 || fflush(st.f) || fsync(fileno(st.f))) st.failed = true;
    if (fclose(st.f)) st.failed = true;
    st.f = NULL;
    if (st.failed || rename(tmp, path))
        rc = tn_fail(err, TERN_E_IO, "%s: cannot write the session: %s", path, strerror(errno));
out:
    if (st.f) fclose(st.f);
    if (rc != TERN_OK) (void)remove(tmp);
    if (st.hash) XXH64_freeState(st.hash);
    tn_free(&s->e->ctx, tmp);
    return rc;
}

tern_status tern_session_copy(tern_session *dst, const tern_session *src, tern_error *err) {
    TN_FAIL_IF(!dst || !src, err, TERN_E_INVALID, "tern_session_copy needs two sessions");
    TN_FAIL_IF(dst->e != src->e, err, TERN_E_INVALID, "the sessions are of different engines");
    TN_FAIL_IF(src->n_tok > dst->n_ctx, err, TERN_E_LIMIT, "%d tokens do not fit a context of %d", src->n_tok,
               dst->n_ctx);
    TN_FAIL_IF(tn_session_rope_long(dst) != tn_session_rope_long(src), err, TERN_E_INVALID,
               "the sessions' contexts lie on different sides of %d tokens, with other rope factors",
               src->e->model->h.rope_orig_ctx);
    if (dst == src) return TERN_OK;
    const tn_kv *from = &src->kv;
    size_t d = (size_t)from->d_head, v_bytes = (size_t)src->n_tok * d * sizeof(float),
           k_bytes = (size_t)(src->n_tok + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL * d * sizeof(float);
    if (dst->pipeline) tn_pipeline_forget(dst->pipeline);
    tn_session_truncate(dst, 0);
    for (int l = 0; l < from->n_layers; l++) {
        for (int h = 0; h < from->n_kv_heads; h++) {
            memcpy(tn_kv_k(&dst->kv, l, h), tn_kv_k(from, l, h), k_bytes);
            memcpy(tn_kv_v(&dst->kv, l, h), tn_kv_v(from, l, h), v_bytes);
        }
    }
    memcpy(dst->tokens, src->tokens, (size_t)src->n_tok * sizeof *src->tokens);
    if (src->has_logits)
        memcpy(dst->logits, src->logits, (size_t)src->e->model->h.n_vocab * sizeof *src->logits);
    dst->n_tok = src->n_tok;
    dst->has_logits = src->has_logits;
    return TERN_OK;
}

tern_status tern_session_load(tern_session *s, const char *path, tern_error *err) {
    TN_FAIL_IF(!s || !path, err, TERN_E_INVALID, "no session or no path given");
    const tn_model *m = s->e->model;
    stream st = {.f = fopen(path, "rb"), .hash = XXH64_createState()};
    tern_status rc = TERN_OK;
    state_head head;
    if (!st.f || !st.hash) {
        rc = tn_fail(err, TERN_E_IO, "%s: cannot read: %s", path, strerror(errno));
        goto out;
    }
    XXH64_reset(st.hash, 0);
    get(&st, &head, sizeof head);
    if (st.failed || memcmp(head.magic, MAGIC, sizeof head.magic)) {
        rc = tn_fail(err, TERN_E_FORMAT, "%s: not a saved session", path);
    } else if (head.version != 1) {
        rc = tn_fail(err, TERN_E_UNSUPPORTED, "%s: saved by another version (format %u, this one reads 1)",
                     path, head.version);
    } else if (head.fingerprint != m->fingerprint || head.n_layers != m->h.n_layers ||
               head.n_kv_heads != m->h.n_kv_heads || head.d_head != m->h.d_head ||
               head.n_vocab != m->h.n_vocab) {
        rc = tn_fail(err, TERN_E_INVALID, "%s: saved with another model", path);
    } else if (head.rope_long !=
               (uint32_t)tn_session_rope_long(s)) { /* its keys are rotated by the other factors */
        rc = tn_fail(
            err, TERN_E_INVALID,
            "%s: saved with the rope factors of a %s context; open the session with %s than %d tokens", path,
            head.rope_long ? "long" : "short", head.rope_long ? "more" : "no more", m->h.rope_orig_ctx);
    } else if (head.n_tok < 0 || head.n_tok > s->n_ctx) {
        rc = tn_fail(err, TERN_E_LIMIT, "%s: holds %d tokens, this session has room for %d", path, head.n_tok,
                     s->n_ctx);
    }
    if (rc != TERN_OK) goto out;
    if (s->pipeline) tn_pipeline_forget(s->pipeline);
    tn_session_truncate(s, 0); /* from here on the old contents are gone */
    get(&st, s->tokens, (size_t)head.n_tok * sizeof *s->tokens);
    each_slice(s, head.n_tok, &st, get);
    if (head.has_logits) get(&st, s->logits, (size_t)m->h.n_vocab * sizeof *s->logits);
    uint64_t digest = XXH64_digest(st.hash), stored;
    bool ok = !st.failed && fread(&stored, sizeof stored, 1, st.f) == 1 && stored == digest;
    for (int32_t i = 0; ok && i < head.n_tok; i++) ok = s->tokens[i] >= 0 && s->tokens[i] < m->h.n_vocab;
    if (!ok) {
        rc = tn_fail(err, TERN_E_FORMAT,
                     "%s: truncated or damaged (checksum differs); the session is empty now", path);
        goto out;
    }
    s->n_tok = head.n_tok;
    s->has_logits = head.has_logits != 0;
out:
    if (st.f) fclose(st.f);
    if (st.hash) XXH64_freeState(st.hash);
    return rc;
}
