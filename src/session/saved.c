/* Saves and loads a session: tokens, state and logits, tied to the model by its fingerprint.
 *
 * A file is state_head | pictures | tokens i32 | places | state, kind by kind (model/state.h) | logits f32 | XXH64 of everything
 * before. A text with pictures (format 3) has their number, and the key and rows of each view; its tokens beyond the
 * vocabulary count these rows in that order, because an engine's own ids mean nothing to another. A text that can go back to some
 * places only (format 4) has the number of its pictures in any case, and the number and positions of these places; their
 * snapshots stand after the state. The logits of one of them, whose position comes after the others, stand after the session's own. Keys and values have the session's form, which is named. A session with another form converts them:
 * it continues the same text, though not with the bits that it would have had without the file. */
#include "session/session.h"

#include "base/finite.h"
#include "base/file.h"
#include "base/outfile.h"
#include "base/status.h"
#include "model/streamed.h"

#include <assert.h>
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
    uint8_t has_logits, kv, zero[2]; /* kv: tn_kv_type */
    uint32_t rope_long;
} state_head;
_Static_assert(sizeof(state_head) == 48, "on-disk layout");

/* A view of a picture in the text. */
typedef struct state_view {
    uint8_t key[32];
    int32_t n, columns; /* of a grid; 0: its rows stand one after another */
} state_view;
_Static_assert(sizeof(state_view) == 40, "on-disk layout");

enum { VERSION_FLOATS = 1, VERSION_FORMS = 2, VERSION_PICTURES = 3, VERSION_PLACES = 4 };

/* Of the model, and of the adapters that the text was read with. */
static uint64_t fingerprint_of(const tern_session *s) {
    return tn_model_fingerprint(s->e->model) ^ tn_lora_mix_id(&s->mix);
}

/* Where a state goes, or comes from: a file, the caller's function, or memory. */
typedef struct stream {
    FILE *f;
    bool (*write)(void *user, const void *bytes, size_t n);
    void *user;
    const uint8_t *at, *end;
    XXH64_state_t *hash;
    bool failed;
} stream;

static bool put_bytes(stream *s, const void *p, size_t n) {
    return s->write ? s->write(s->user, p, n) : fwrite(p, 1, n, s->f) == n;
}

static bool get_bytes(stream *s, void *p, size_t n) {
    if (s->f) return fread(p, 1, n, s->f) == n;
    if (n > (size_t)(s->end - s->at)) return false;
    memcpy(p, s->at, n);
    s->at += n;
    return true;
}

/* After a failure nothing is written: a caller that refused once is not asked again. */
static void put(stream *s, const void *p, size_t n) {
    if (n && !s->failed && !put_bytes(s, p, n)) s->failed = true;
    XXH64_update(s->hash, p, n);
}

static void get(stream *s, void *p, size_t n) {
    if (n && !get_bytes(s, p, n)) {
        s->failed = true;
        memset(p, 0, n);
    }
    XXH64_update(s->hash, p, n);
}

static void put_state(void *user, void *p, size_t n) { put(user, p, n); }
static void get_state(void *user, void *p, size_t n) { get(user, p, n); }

/* ---- pictures ---------------------------------------------------------------------------------------- */

/* The views that a text has rows of, held; in a file their rows are counted in this order from the vocabulary on. */
typedef struct views {
    tern_engine *e;
    tn_seen **at;
    size_t n;
} views;

static void views_free(views *v) {
#ifndef TERN_MINIMAL
    for (size_t i = 0; i < v->n; i++) tn_sight_let_go(v->e, v->at[i]);
#endif
    tn_free(&v->e->ctx, v->at);
    v->at = NULL;
    v->n = 0;
}

#ifndef TERN_MINIMAL
static tern_status views_add(views *v, tn_seen *seen, tern_error *err) {
    tn_seen **more = tn_realloc(&v->e->ctx, TN_MEM_OTHER, v->at, v->n + 1, sizeof(tn_seen *));
    TN_FAIL_IF(!more, err, TERN_E_MEMORY, "no memory for the pictures of a session");
    v->at = more;
    v->at[v->n++] = seen;
    return TERN_OK;
}

/* Replaces the engine's ids by those of a file; ids has a copy of the text. */
static tern_status to_file(const tern_session *s, int32_t *ids, views *v, tern_error *err) {
    const int32_t n_vocab = s->e->model->h.n_vocab;
    for (int32_t i = 0; i < s->n_tok; i++) {
        int32_t id = ids[i], at = n_vocab;
        if (id < n_vocab) continue;
        size_t k = 0;
        for (; k < v->n && (id < v->at[k]->first || id - v->at[k]->first >= v->at[k]->n); k++)
            at += v->at[k]->n;
        if (k == v->n) {
            tn_seen *seen = tn_sight_hold_of(s->e, id);
            TN_FAIL_IF(!seen, err, TERN_E_UNSUPPORTED,
                       "the session's text has a picture that the engine knows no longer");
            tern_status st = views_add(v, seen, err);
            if (st != TERN_OK) tn_sight_let_go(s->e, seen);
            TN_TRY(st);
        }
        ids[i] = at + (id - v->at[k]->first);
    }
    return TERN_OK;
}
#endif

/* The text as a file has it: *ids is the caller's, and so is *v. */
static tern_status text_of(const tern_session *s, int32_t **ids, views *v, tern_error *err) {
    *v = (views){.e = s->e};
    *ids = tn_alloc(&s->e->ctx, TN_MEM_OTHER, (size_t)s->n_tok + 1, sizeof **ids);
    TN_FAIL_IF(!*ids, err, TERN_E_MEMORY, "no memory to save the session");
    memcpy(*ids, s->tokens, (size_t)s->n_tok * sizeof **ids);
    tern_status st = TERN_OK;
#ifndef TERN_MINIMAL
    st = to_file(s, *ids, v, err);
#endif
    if (st == TERN_OK) return TERN_OK;
    views_free(v);
    tn_free(&s->e->ctx, *ids);
    return st;
}

static void put_views(stream *st, const views *v) {
    const uint64_t n = v->n;
    put(st, &n, sizeof n);
#ifndef TERN_MINIMAL
    for (size_t i = 0; i < v->n; i++) {
        state_view one = {.n = v->at[i]->n, .columns = atomic_load(&v->at[i]->columns)};
        memcpy(one.key, v->at[i]->key, sizeof one.key);
        put(st, &one, sizeof one);
    }
#endif
}

#ifndef TERN_MINIMAL
/* A view that the engine has looked at keeps its columns, whatever a file says. */
static bool has_columns(tn_seen *v, int columns) {
    int none = 0;
    return !columns || atomic_compare_exchange_strong(&v->columns, &none, columns) || none == columns;
}
#endif

/* The views of a file, held, so that the engine has ids for them. */
static tern_status get_views(stream *st, const tern_session *s, const state_head *head, const char *from,
                             views *v, tern_error *err) {
    uint64_t n = 0;
    *v = (views){.e = s->e};
    if (head->version < VERSION_PICTURES) return TERN_OK;
    get(st, &n, sizeof n);
    TN_FAIL_IF(st->failed || (!n && head->version == VERSION_PICTURES) || n > (uint64_t)head->n_tok, err,
               TERN_E_FORMAT, "%s: truncated or damaged: its pictures", from);
#ifdef TERN_MINIMAL
    TN_FAIL_IF(n, err, TERN_E_UNSUPPORTED, "%s: this build of tern sees no pictures", from);
    return TERN_OK;
#else
    tern_status rc = TERN_OK;
    for (uint64_t i = 0; i < n && rc == TERN_OK; i++) {
        state_view one;
        tn_seen *seen;
        get(st, &one, sizeof one);
        if (st->failed || one.n < 1 || one.n > 1 << 20 || one.columns < 0 || one.columns > one.n ||
            (one.columns && one.n % one.columns))
            rc = tn_fail(err, TERN_E_FORMAT, "%s: truncated or damaged: its pictures", from);
        else rc = tn_sight_view(s->e, one.key, one.n, &seen, err);
        if (rc == TERN_OK && !has_columns(seen, one.columns)) {
            tn_sight_let_go(s->e, seen);
            rc = tn_fail(err, TERN_E_FORMAT, "%s: its picture %d has other columns than the engine's", from,
                         (int)i);
        }
        if (rc == TERN_OK && (rc = views_add(v, seen, err)) != TERN_OK) tn_sight_let_go(s->e, seen);
    }
    if (rc != TERN_OK) views_free(v);
    return rc;
#endif
}

/* Replaces the ids of a file by the engine's. Returns false where one is no row of the file's pictures. */
static bool from_file(const views *v, int32_t n_vocab, int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0) return false;
        if (ids[i] < n_vocab) continue;
#ifndef TERN_MINIMAL
        int32_t back = ids[i] - n_vocab;
        size_t k = 0;
        for (; k < v->n && back >= v->at[k]->n; k++) back -= v->at[k]->n;
        if (k < v->n) ids[i] = v->at[k]->first + back;
        else return false;
#else
        (void)v;
        return false;
#endif
    }
    return true;
}

/* ---- places to go back to ------------------------------------------------------------------------------ */

static tern_status get_places(stream *st, const tern_session *s, const state_head *head, const char *from,
                              tn_state_places *p, tern_error *err) {
    *p = (tn_state_places){0};
    if (head->version < VERSION_PLACES) return TERN_OK;
    get(st, &p->n, sizeof p->n);
    bool ok = !st->failed && p->n >= 0 && p->n <= TN_STATE_MARKS && !(p->n && tn_state_truncates(&s->state));
    if (ok) get(st, p->at, (size_t)p->n * sizeof *p->at);
    if (ok) get(st, &p->end, sizeof p->end);
    bool has_end = !p->end;
    for (int32_t i = 0; ok && i < p->n; i++) {
        ok = p->at[i] > (i ? p->at[i - 1] : 0) && p->at[i] <= head->n_tok;
        has_end = has_end || p->at[i] == p->end;
    }
    ok = ok && has_end;
    TN_FAIL_IF(!ok || st->failed, err, TERN_E_FORMAT, "%s: truncated or damaged: its places to go back to",
               from);
    return TERN_OK;
}

/* ---- saving -------------------------------------------------------------------------------------------- */

static void put_session(stream *st, const tern_session *s, const int32_t *ids, const views *v) {
    const tn_model *m = s->e->model;
    tn_state_places places = {.end = s->end.at};
    uint64_t n_bytes;
    tn_state_places_of(&s->state, &places, &n_bytes);
    XXH64_reset(st->hash, 0);
    state_head head = {.version = places.n                        ? VERSION_PLACES
                                  : v->n                          ? VERSION_PICTURES
                                  : s->state.kv.type == TN_KV_F32 ? VERSION_FLOATS
                                                                  : VERSION_FORMS,
                       .n_tok = s->n_tok,
                       .n_layers = tn_n_attending(&m->h),
                       .n_kv_heads = m->h.n_kv_heads,
                       .d_head = m->h.d_head,
                       .n_vocab = m->h.n_vocab,
                       .fingerprint = fingerprint_of(s),
                       .has_logits = s->has_logits,
                       .kv = (uint8_t)s->state.kv.type,
                       .rope_long = tn_session_rope_long(s)};
    memcpy(head.magic, MAGIC, sizeof head.magic);
    put(st, &head, sizeof head);
    if (head.version >= VERSION_PICTURES) put_views(st, v);
    put(st, ids, (size_t)s->n_tok * sizeof *ids);
    if (places.n) {
        put(st, &places.n, sizeof places.n);
        put(st, places.at, (size_t)places.n * sizeof *places.at);
        put(st, &places.end, sizeof places.end);
    }
    tn_state_save(&s->state, &places, put_state, st);
    if (s->has_logits) put(st, s->logits, (size_t)m->h.n_vocab * sizeof *s->logits);
    if (places.end) put(st, s->end.logits, (size_t)m->h.n_vocab * sizeof *s->logits);
    uint64_t digest = XXH64_digest(st->hash);
    put(st, &digest, sizeof digest);
}

static tern_status save(stream *st, const tern_session *s, tern_error *err) {
    int32_t *ids;
    views v;
    TN_TRY(text_of(s, &ids, &v, err));
    put_session(st, s, ids, &v);
    views_free(&v);
    tn_free(&s->e->ctx, ids);
    return TERN_OK;
}

tern_status tern_session_save_to(const tern_session *s,
                                 bool (*write)(void *user, const void *bytes, size_t n_bytes), void *user,
                                 tern_error *err) {
    TN_FAIL_IF(!s || !write, err, TERN_E_INVALID, "no session or nobody who takes it given");
    stream st = {.write = write, .user = user, .hash = XXH64_createState()};
    TN_FAIL_IF(!st.hash, err, TERN_E_MEMORY, "no memory to save the session");
    tern_status rc = save(&st, s, err);
    XXH64_freeState(st.hash);
    TN_TRY(rc);
    TN_FAIL_IF(st.failed, err, TERN_E_CANCELLED, "the session was not taken to its end");
    return TERN_OK;
}

tern_status tern_session_save(const tern_session *s, const char *path, tern_error *err) {
    TN_FAIL_IF(!s || !path, err, TERN_E_INVALID, "no session or no path given");
    static const tn_outkind kind = {.what = "a saved session", .begins = {"TERNSTA"}, .is_private = true};
    tn_outfile *file;
    TN_TRY(tn_outfile_open((tn_ctx *)&s->e->ctx, path, &kind, &file, err));
    int fd = dup(tn_outfile_fd(file));
    stream st = {.f = fd >= 0 ? fdopen(fd, "wb") : NULL, .hash = XXH64_createState()};
    tern_status rc = TERN_OK;
    if (!st.f || !st.hash) {
        if (!st.f && fd >= 0) close(fd);
        rc = tn_fail(err, TERN_E_IO, "%s: cannot write: %s", path, strerror(errno));
        goto out;
    }
    rc = save(&st, s, err);
    if (fclose(st.f)) st.failed = true;
    st.f = NULL;
    if (rc != TERN_OK) goto out;
    rc = st.failed ? tn_fail(err, TERN_E_IO, "%s: cannot write the session: %s", path, strerror(errno))
                   : tn_outfile_commit(&file, err);
out:
    if (st.f) fclose(st.f);
    tn_outfile_abort(&file);
    if (st.hash) XXH64_freeState(st.hash);
    return rc;
}

tern_status tn_session_copy(tern_session *dst, const tern_session *src, int32_t n, tern_error *err) {
    bool all = n == src->n_tok;
    TN_TRY(tn_state_copy(&dst->state, &src->state, n, err));
#ifndef TERN_MINIMAL
    tern_status st = tn_session_see_same(dst, src, err);
    if (st != TERN_OK) {
        dst->n_tok = n;
        tn_session_truncate(dst, 0);
        return st;
    }
#endif
    dst->evaluator->ops->forget(dst->evaluator);
    tn_storing_truncate(&dst->storing, 0);
    tn_drafting_copy(dst, src, n);
    memcpy(dst->tokens, src->tokens, (size_t)n * sizeof *src->tokens);
    if (dst->next) memcpy(dst->next, src->next, (size_t)n * sizeof *src->next);
    dst->end.at = 0;
    if (src->end.at && src->end.at <= n) tn_session_keep_end(dst, src->end.at, src->end.logits);
    if (all && src->has_logits)
        memcpy(dst->logits, src->logits, (size_t)src->e->model->h.n_vocab * sizeof *src->logits);
    dst->n_tok = n;
    dst->has_logits = all && src->has_logits;
    return TERN_OK;
}

tern_status tern_session_copy(tern_session *dst, const tern_session *src, tern_error *err) {
    TN_FAIL_IF(!dst || !src, err, TERN_E_INVALID, "tern_session_copy needs two sessions");
    TN_FAIL_IF(dst->e != src->e, err, TERN_E_INVALID, "the sessions are of different engines");
    TN_FAIL_IF(src->n_tok > dst->n_ctx, err, TERN_E_LIMIT, "%d tokens do not fit a context of %d", src->n_tok,
               dst->n_ctx);
    TN_FAIL_IF(tn_lora_mix_id(&dst->mix) != tn_lora_mix_id(&src->mix), err, TERN_E_INVALID,
               "the sessions have different adapters");
    TN_FAIL_IF(tn_session_rope_long(dst) != tn_session_rope_long(src), err, TERN_E_INVALID,
               "the sessions' contexts lie on different sides of %d tokens, with other rope factors",
               src->e->model->h.rope_orig_ctx);
    return dst == src ? TERN_OK : tn_session_copy(dst, src, src->n_tok, err);
}

/* Checks the head of a file that this session may load. */
static tern_status get_head(stream *st, const tern_session *s, const char *path, state_head *out,
                            tern_error *err) {
    const tn_model *m = s->e->model;
    state_head head;
    get(st, &head, sizeof head);
    *out = head;
    TN_FAIL_IF(st->failed || memcmp(head.magic, MAGIC, sizeof head.magic), err, TERN_E_FORMAT,
               "%s: not a saved session", path);
    TN_FAIL_IF(head.version < VERSION_FLOATS || head.version > VERSION_PLACES, err, TERN_E_UNSUPPORTED,
               "%s: saved by another version (format %u, this one reads 1 to 4)", path, head.version);
    TN_FAIL_IF(head.kv >= TN_N_KV_TYPES, err, TERN_E_UNSUPPORTED,
               "%s: keys and values are kept in form %u, this version knows %d", path, head.kv,
               TN_N_KV_TYPES);
    char mix[300];
    TN_FAIL_IF(head.fingerprint != fingerprint_of(s) || head.n_layers != tn_n_attending(&m->h) ||
                   head.n_kv_heads != m->h.n_kv_heads || head.d_head != m->h.d_head ||
                   head.n_vocab != m->h.n_vocab,
               err, TERN_E_INVALID, "%s: saved with another model or other adapters (this session has %s)",
               path, tn_lora_mix_text(&s->mix, mix, sizeof mix));
    /* else its keys are rotated by the other rope factors */
    TN_FAIL_IF(head.rope_long != (uint32_t)tn_session_rope_long(s), err, TERN_E_INVALID,
               "%s: saved with the rope factors of a %s context; open the session with %s than %d tokens",
               path, head.rope_long ? "long" : "short", head.rope_long ? "more" : "no more",
               m->h.rope_orig_ctx);
    TN_FAIL_IF(head.n_tok < 0 || head.n_tok > s->n_ctx, err, TERN_E_LIMIT,
               "%s: holds %d tokens, this session has room for %d", path, head.n_tok, s->n_ctx);
    return TERN_OK;
}

tern_status tn_session_peek(const tern_session *s, const char *path, int32_t **tokens, int32_t *n,
                            tn_state_places *places, tern_error *err) {
    struct stat sb;
    *tokens = NULL;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    stream st = {.f = fdopen(fd, "rb"), .hash = XXH64_createState()};
    state_head head = {0};
    views seen = {.e = s->e};
    tern_status rc = TERN_OK;
    if (!st.f || !st.hash) rc = tn_fail(err, TERN_E_MEMORY, "%s: no memory to read it", path);
    if (st.hash) XXH64_reset(st.hash, 0); /* updated, though the result is not used */
    if (rc == TERN_OK) rc = get_head(&st, s, path, &head, err);
    if (rc == TERN_OK) rc = get_views(&st, s, &head, path, &seen, err);
    if (rc == TERN_OK && !(*tokens = malloc(((size_t)head.n_tok + 1) * sizeof **tokens)))
        rc = tn_fail(err, TERN_E_MEMORY, "%s: no memory to read it", path);
    if (rc == TERN_OK) get(&st, *tokens, (size_t)head.n_tok * sizeof **tokens);
    if (rc == TERN_OK && (st.failed || !from_file(&seen, s->e->model->h.n_vocab, *tokens, head.n_tok)))
        rc = tn_fail(err, TERN_E_FORMAT, "%s: truncated or damaged", path);
    if (rc == TERN_OK) rc = get_places(&st, s, &head, path, places, err);
    if (rc != TERN_OK) {
        free(*tokens);
        *tokens = NULL;
    }
    views_free(&seen);
    *n = head.n_tok;
    if (st.f) fclose(st.f);
    else close(fd);
    if (st.hash) XXH64_freeState(st.hash);
    return rc;
}

/* Takes the state that st gives; from names it in errors. */
static tern_status load(tern_session *s, stream *st, const char *from, tern_error *err) {
    const tn_model *m = s->e->model;
    state_head head;
    TN_TRY(tn_model_need(m, TN_NEED_ALL, err)); /* all weights tell which model it is */
    XXH64_reset(st->hash, 0);
    TN_TRY(get_head(st, s, from, &head, err));
    s->evaluator->ops->forget(s->evaluator);
    tn_session_truncate(s, 0); /* from here on the old contents are gone */
    views seen;
    TN_TRY(get_views(st, s, &head, from, &seen, err));
    get(st, s->tokens, (size_t)head.n_tok * sizeof *s->tokens);
    tn_state_places places;
    tern_status rc = get_places(st, s, &head, from, &places, err);
    if (rc == TERN_OK)
        rc = tn_state_load(&s->state, &m->h, head.n_tok, (tn_kv_type)head.kv, &places, get_state, st, err);
    bool known = rc == TERN_OK && !st->failed && from_file(&seen, m->h.n_vocab, s->tokens, head.n_tok);
#ifndef TERN_MINIMAL
    if (known) rc = tn_session_axes_of(s, head.n_tok, seen.at, seen.n, err);
#endif
    views_free(&seen);
    if (rc != TERN_OK) (void)tn_state_truncate(&s->state, 0);
    TN_TRY(rc);
    const size_t n_vocab = (size_t)m->h.n_vocab;
    if (head.has_logits) get(st, s->logits, n_vocab * sizeof *s->logits);
    if (places.end) {
        tn_session_keep_end(s, places.end, s->logits); /* for its room */
        known = known && s->end.at == places.end;
        get(st, s->end.at ? s->end.logits : s->logits, n_vocab * sizeof *s->logits);
    }
    uint64_t digest = XXH64_digest(st->hash), stored;
    bool ok = known && !st->failed && get_bytes(st, &stored, sizeof stored) && stored == digest;
    ok = ok && (!head.has_logits || tn_all_finite(s->logits, n_vocab));
    ok = ok && (!places.end || tn_all_finite(s->end.logits, n_vocab));
    if (!ok) {
        s->end.at = 0;
        (void)tn_state_truncate(&s->state, 0);
        return tn_fail(err, TERN_E_FORMAT,
                       "%s: truncated or damaged (checksum differs); the session is empty now", from);
    }
    s->n_tok = head.n_tok;
    s->has_logits = head.has_logits != 0;
    tn_drafting_copy(s, NULL, s->n_tok);
    return TERN_OK;
}

tern_status tern_session_load(tern_session *s, const char *path, tern_error *err) {
    TN_FAIL_IF(!s || !path, err, TERN_E_INVALID, "no session or no path given");
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    stream st = {.f = fdopen(fd, "rb"), .hash = XXH64_createState()};
    if (!st.f) close(fd);
    tern_status rc = st.f && st.hash ? load(s, &st, path, err)
                                     : tn_fail(err, TERN_E_IO, "%s: cannot read: %s", path, strerror(errno));
    if (st.f) fclose(st.f);
    if (st.hash) XXH64_freeState(st.hash);
    return rc;
}

tern_status tern_session_load_from(tern_session *s, const void *bytes, size_t n_bytes, tern_error *err) {
    TN_FAIL_IF(!s || !bytes, err, TERN_E_INVALID, "no session or no bytes given");
    stream st = {.at = bytes, .end = (const uint8_t *)bytes + n_bytes, .hash = XXH64_createState()};
    TN_FAIL_IF(!st.hash, err, TERN_E_MEMORY, "no memory to load the session");
    tern_status rc = load(s, &st, "the saved session", err);
    XXH64_freeState(st.hash);
    return rc;
}
