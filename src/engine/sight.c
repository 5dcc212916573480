#include "engine/sight.h"

#include "base/clock.h"
#include "base/finite.h"
#include "base/status.h"
#include "media/prompt.h"
#include "params/options.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 1024, VIEWS_MAX = 1 << 16 };

struct tn_sight {
    tern_engine *e;
    bool one_view;
    uint64_t memory_bytes;
    pthread_mutex_t
        encoding; /* the encoder, what is kept on disk, and work with them but for pauses; before mu */
    tn_encoder *encoder;
    int32_t n_paused; /* views that go on with its weights */
    tn_kept kept;
    bool leaves;        /* the weights do after the pictures of a question, */
    bool rests;         /* or in a server after a minute without a picture */
    uint64_t n_uses;    /* views encoded */
    uint64_t seen_uses; /* when tn_sight_idle was asked */
    int64_t idle_ns;    /* when it was asked first after that */
    pthread_mutex_t mu; /* of what follows */
    /* Whether the encoder's fingerprint is known, and so all keys are whole; until then views that were
     * looked at are told apart by their pixels alone. */
    bool settled;
    uint64_t fingerprint;
    tn_seen *buckets[BUCKETS];
    int32_t n_views, next_id;
    int32_t n_pending;   /* looks that are to be encoded */
    int32_t n_unsettled; /* views whose keys are of their pixels alone */
    bool has_others;     /* there are views that a saved text named */
    uint64_t clock;
    tn_sight_counts counts;
};

/* ---- opening ----------------------------------------------------------------------------------------- */

tern_status tn_sight_open(tern_engine *e, const char *path, const tern_options *o, tern_error *err) {
    enum { MEMORY_BYTES = 256 << 20 };
    tn_sight *s = tn_calloc(&e->ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for an engine");
    e->sight = s;
    s->e = e;
    s->one_view = o->one_view;
    s->leaves = o->keep_encoder && !strcmp(o->keep_encoder, "off");
    s->rests = !o->keep_encoder || !strcmp(o->keep_encoder, "auto");
    s->memory_bytes = o->picture_memory_bytes ? o->picture_memory_bytes : MEMORY_BYTES;
    s->kept.limit_bytes = o->picture_cache_bytes;
    s->next_id = e->model->h.n_vocab;
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->encoding, NULL);
    if (s->kept.limit_bytes) {
        s->kept.folder = tn_alloc(&e->ctx, TN_MEM_TEXT, TN_KEPT_PATH, 1);
        TN_FAIL_IF(!s->kept.folder, err, TERN_E_MEMORY, "no memory for an engine");
        if (!tn_kept_place(s->kept.folder)) s->kept.limit_bytes = 0;
    }
    return tn_encoder_open(e, path, o, &s->kept, &s->encoder, err);
}

void tn_sight_close(tern_engine *e) {
    tn_sight *s = e->sight;
    tn_ctx *ctx = &e->ctx;
    e->sight = NULL;
    if (!s) return;
    for (size_t b = 0; b < BUCKETS; b++) {
        for (tn_seen *v = s->buckets[b], *next; v; v = next) {
            next = v->next;
            tn_free(ctx, atomic_load(&v->x));
            tn_free(ctx, v);
        }
    }
    tn_encoder_close(&s->encoder);
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->encoding);
    tn_free(ctx, s->kept.folder);
    tn_free(ctx, s);
}

static tern_status check_sight(const tern_engine *e, tern_error *err) {
    const tern_error *blind = tn_encoder_blind(e->sight->encoder);
    return blind ? tn_fail(err, blind->code, "%s", blind->message) : TERN_OK;
}

bool tn_sight_can(tern_engine *e, tern_error *why) { return check_sight(e, why) == TERN_OK; }

tern_status tn_sight_shape(tern_engine *e, const tn_tower_shape **out, tern_error *err) {
    *out = tn_encoder_shape(e->sight->encoder);
    return check_sight(e, err);
}

void tn_sight_form(tern_engine *e, tn_encoder_form *out) {
    tn_sight *s = e->sight;
    pthread_mutex_lock(&s->encoding);
    tn_encoder_form_of(s->encoder, out);
    pthread_mutex_unlock(&s->encoding);
}

/* The weights leave memory, unless a paused view goes on with them. With the lock `encoding`. */
static void rest(tn_sight *s) {
    if (!s->n_paused) tn_encoder_rest(s->encoder);
}

void tn_sight_rest(tern_engine *e) {
    tn_sight *s = e->sight;
    if (!s) return;
    pthread_mutex_lock(&s->encoding);
    rest(s);
    pthread_mutex_unlock(&s->encoding);
}

int64_t tn_sight_idle(tern_engine *e, int64_t now_ns) {
    static const int64_t MINUTE_NS = INT64_C(60000000000);
    tn_sight *s = e->sight;
    int64_t left = -1;
    if (!s || !s->rests) return -1;
    if (pthread_mutex_trylock(&s->encoding)) return MINUTE_NS; /* it works */
    if (s->n_uses != s->seen_uses) {
        s->seen_uses = s->n_uses;
        s->idle_ns = now_ns;
    }
    if (tn_encoder_is_read(s->encoder)) left = s->idle_ns + MINUTE_NS - now_ns;
    const bool due = tn_encoder_is_read(s->encoder) && left <= 0;
    if (due) rest(s);
    pthread_mutex_unlock(&s->encoding);
    return due ? -1 : left;
}

/* ---- views --------------------------------------------------------------------------------------------- */

static tn_seen **bucket_of(tn_sight *s, const uint8_t *key) {
    return &s->buckets[(key[0] | (uint32_t)key[1] << 8) % BUCKETS];
}

size_t tn_sight_row_width(const tern_engine *e) {
    const tn_hparams *h = &e->model->h;
    return (size_t)h->n_embd * (size_t)(1 + h->n_deepstack);
}

static uint64_t bytes_of(const tn_sight *s, const tn_seen *v) {
    return (uint64_t)v->n * tn_sight_row_width(s->e) * sizeof(float);
}

/* The view that nobody holds for longest, of those with rows or of all. With the lock. */
static tn_seen *oldest(tn_sight *s, bool with_rows) {
    tn_seen *best = NULL;
    for (size_t b = 0; b < BUCKETS; b++)
        for (tn_seen *v = s->buckets[b]; v; v = v->next)
            if (!v->holders && (!with_rows || atomic_load(&v->x)) && (!best || v->used < best->used))
                best = v;
    return best;
}

/* The rows leave memory. With the lock. */
static void drop_rows(tn_sight *s, tn_seen *v) {
    float *x = atomic_exchange(&v->x, NULL);
    if (x) s->counts.row_bytes -= bytes_of(s, v);
    tn_free(&s->e->ctx, x);
}

/* The engine knows it no longer: should it come again it gets other ids. With the lock. */
static void drop_view(tn_sight *s, tn_seen *v) {
    tn_seen **at = bucket_of(s, v->key);
    while (*at != v) at = &(*at)->next;
    *at = v->next;
    s->n_unsettled -= v->unsettled;
    drop_rows(s, v);
    tn_free(&s->e->ctx, v);
    s->n_views--;
}

/* With the lock. */
static tern_status add(tn_sight *s, const uint8_t *key, int32_t n, tn_seen **out, tern_error *err) {
    tn_seen *old = s->n_views >= VIEWS_MAX ? oldest(s, false) : NULL;
    if (old) drop_view(s, old);
    TN_FAIL_IF(n < 1 || n > 1 << 20, err, TERN_E_LIMIT, "a view of a picture has 1 to %d rows, not %d",
               1 << 20, n);
    TN_FAIL_IF(s->next_id > INT32_MAX - n, err, TERN_E_LIMIT,
               "this engine has seen too many pictures: open the model again");
    tn_seen *v = tn_calloc(&s->e->ctx, TN_MEM_OTHER, 1, sizeof *v);
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory for a picture");
    memcpy(v->key, key, TN_VIEW_KEY);
    v->first = s->next_id;
    v->n = n;
    s->next_id += n;
    s->n_views++;
    v->next = *bucket_of(s, key);
    *bucket_of(s, key) = *out = v;
    return TERN_OK;
}

/* A view whose key is whole, or of its pixels alone. With the lock. */
static tern_status view_of(tn_sight *s, const uint8_t *key, bool unsettled, int32_t n, tn_seen **out,
                           tern_error *err) {
    tn_seen *v = *bucket_of(s, key);
    while (v && (memcmp(v->key, key, TN_VIEW_KEY) || v->n != n)) v = v->next;
    if (!v) {
        TN_TRY(add(s, key, n, &v, err));
        v->unsettled = unsettled;
        s->n_unsettled += unsettled;
    }
    v->holders++;
    v->used = ++s->clock;
    *out = v;
    return TERN_OK;
}

/* The encoder's fingerprint is known: the keys become whole. With the lock `encoding`. */
static void settle(tn_sight *s) {
    tn_seen *all = NULL;
    pthread_mutex_lock(&s->mu);
    s->fingerprint = tn_encoder_fingerprint(s->encoder);
    s->settled = true;
    for (size_t b = 0; s->n_unsettled && b < BUCKETS; b++) {
        for (tn_seen **at = &s->buckets[b], *v; (v = *at);) {
            if (!v->unsettled) {
                at = &v->next;
                continue;
            }
            *at = v->next;
            v->next = all;
            all = v;
        }
    }
    for (tn_seen *v; (v = all);) {
        all = v->next;
        tn_view_key(v->key, s->fingerprint, v->key);
        v->unsettled = false;
        v->next = *bucket_of(s, v->key);
        *bucket_of(s, v->key) = v;
    }
    s->n_unsettled = 0;
    pthread_mutex_unlock(&s->mu);
}

static bool is_settled(tn_sight *s) {
    pthread_mutex_lock(&s->mu);
    const bool is = s->settled;
    pthread_mutex_unlock(&s->mu);
    return is;
}

/* Reads the encoder's weights if nothing else tells which one it is. With the lock `encoding`. */
static tern_status need_settled(tn_sight *s, tern_error *err) {
    tn_tower *t;
    if (is_settled(s)) return TERN_OK;
    if (!tn_encoder_recall(s->encoder)) TN_TRY(tn_encoder_need(s->encoder, &t, err));
    settle(s);
    return TERN_OK;
}

/* Settles what costs nothing to settle, or what has to be: a saved text names views by whole keys. */
static void settle_early(tn_sight *s, bool must) {
    if (is_settled(s)) return;
    if (must) pthread_mutex_lock(&s->encoding);
    else if (pthread_mutex_trylock(&s->encoding)) return; /* somebody encodes, and will settle it */
    if (must) (void)need_settled(s, NULL);                /* who encodes tells why it cannot */
    else if (!is_settled(s) && tn_encoder_recall(s->encoder)) settle(s);
    pthread_mutex_unlock(&s->encoding);
}

tern_status tn_sight_view(tern_engine *e, const uint8_t key[TN_VIEW_KEY], int32_t n, tn_seen **out,
                          tern_error *err) {
    tn_sight *s = e->sight;
    pthread_mutex_lock(&s->mu);
    s->has_others = true;
    const bool must = s->n_unsettled;
    pthread_mutex_unlock(&s->mu);
    if (must) settle_early(s, true);
    pthread_mutex_lock(&s->mu);
    tern_status st = view_of(s, key, false, n, out, err);
    pthread_mutex_unlock(&s->mu);
    return st;
}

tern_status tn_sight_give(tern_engine *e, tn_seen *v, const float *rows, tern_error *err) {
    tn_sight *s = e->sight;
    const uint64_t n_bytes = bytes_of(s, v);
    if (atomic_load(&v->x)) return TERN_OK;
    float *x = tn_alloc(&e->ctx, TN_MEM_OTHER, n_bytes, 1);
    TN_FAIL_IF(!x, err, TERN_E_MEMORY, "no memory for the %d rows of a picture", v->n);
    memcpy(x, rows, n_bytes);
    pthread_mutex_lock(&s->mu);
    float *none = NULL;
    if (atomic_compare_exchange_strong(&v->x, &none, x)) s->counts.row_bytes += n_bytes, x = NULL;
    for (tn_seen *old; s->counts.row_bytes > s->memory_bytes && (old = oldest(s, true));) drop_rows(s, old);
    pthread_mutex_unlock(&s->mu);
    tn_free(&e->ctx, x);
    return TERN_OK;
}

void tn_sight_hold(tern_engine *e, tn_seen *v) {
    pthread_mutex_lock(&e->sight->mu);
    v->holders++;
    pthread_mutex_unlock(&e->sight->mu);
}

void tn_sight_let_go(tern_engine *e, tn_seen *v) {
    tn_sight *s = e->sight;
    pthread_mutex_lock(&s->mu);
    if (!--v->holders && s->counts.row_bytes > s->memory_bytes) drop_rows(s, v);
    pthread_mutex_unlock(&s->mu);
}

tn_seen *tn_sight_hold_of(tern_engine *e, int32_t id) {
    tn_sight *s = e->sight;
    tn_seen *found = NULL;
    pthread_mutex_lock(&s->mu);
    for (size_t b = 0; b < BUCKETS && !found; b++)
        for (tn_seen *v = s->buckets[b]; v && !found; v = v->next)
            if (id >= v->first && id - v->first < v->n) found = v;
    if (found) found->holders++;
    pthread_mutex_unlock(&s->mu);
    return found;
}

tn_sight_counts tn_sight_count(tern_engine *e) {
    tn_sight *s = e->sight;
    pthread_mutex_lock(&s->mu);
    tn_sight_counts c = s->counts;
    c.reads = tn_encoder_reads(s->encoder);
    c.encoder_bytes = tn_encoder_held(s->encoder);
    pthread_mutex_unlock(&s->mu);
    return c;
}

/* ---- looks --------------------------------------------------------------------------------------------- */

/* Finds the rows of a view in memory or on disk. */
static tern_status find_rows(tn_look *l, int32_t i, tern_error *err) {
    tern_engine *e = l->e;
    tn_sight *s = e->sight;
    tn_seen *v = l->views[i];
    bool on_disk = false;
    if (!atomic_load(&v->x) && s->kept.limit_bytes) {
        float *rows = tn_alloc(&e->ctx, TN_MEM_OTHER, bytes_of(s, v), 1);
        TN_FAIL_IF(!rows, err, TERN_E_MEMORY, "no memory for the %d rows of a picture", v->n);
        on_disk = tn_kept_read(&s->kept, v->key, v->n, (int32_t)tn_sight_row_width(e), rows);
        tern_status st = on_disk ? tn_sight_give(e, v, rows, err) : TERN_OK;
        tn_free(&e->ctx, rows);
        TN_TRY(st);
    }
    l->on_disk += on_disk;
    return TERN_OK;
}

/* Whether it is among those that are to be encoded. */
static void set_pending(tn_look *l, bool is) {
    tn_sight *s = l->e->sight;
    pthread_mutex_lock(&s->mu);
    s->n_pending += is - l->pending;
    l->pending = is;
    pthread_mutex_unlock(&s->mu);
}

/* The weights leave when nobody waits for them, where they are not to stay. With the lock `encoding`. */
static void leave_if_done(tn_sight *s) {
    pthread_mutex_lock(&s->mu);
    const bool done = !s->n_pending;
    pthread_mutex_unlock(&s->mu);
    if (done && s->leaves) rest(s);
}

/* Pixels are needed until all rows are there. */
static void pass_known(tn_look *l) {
    tn_sight *s = l->e->sight;
    while (l->next < l->medium.n_views && atomic_load(&l->views[l->next]->x)) l->next++;
    if (l->next < l->medium.n_views || !l->medium.rgb) return;
    const int32_t in_memory = l->medium.n_views - l->encoded - l->on_disk; /* some came after the look */
    pthread_mutex_lock(&s->mu);
    s->counts.in_memory += (uint64_t)in_memory;
    s->counts.on_disk += (uint64_t)l->on_disk;
    pthread_mutex_unlock(&s->mu);
    l->in_memory = in_memory;
    tn_free(&l->e->ctx, l->medium.rgb);
    l->medium.rgb = NULL;
    set_pending(l, false);
}

/* The view of some pixels, held. *settled: its key is whole, so that its rows may be looked for. */
static tern_status view_at(tn_look *l, int32_t i, bool *settled, tern_error *err) {
    tn_sight *s = l->e->sight;
    uint8_t key[TN_VIEW_KEY];
    tn_view_pixels(&l->medium, i, key);
    pthread_mutex_lock(&s->mu);
    *settled = s->settled;
    if (*settled) tn_view_key(key, s->fingerprint, key);
    tern_status st = view_of(s, key, !*settled, l->medium.views[i].n_rows, &l->views[i], err);
    pthread_mutex_unlock(&s->mu);
    return st;
}

static tern_status look(tn_look *l, const tn_picture *p, bool one_view, tern_error *err) {
    tern_engine *e = l->e;
    tn_sight *s = e->sight;
    const tn_tower_shape *shape;
    TN_TRY(tn_sight_shape(e, &shape, err));
    TN_TRY(tn_medium_make(&e->ctx, shape, p, one_view || s->one_view, &l->medium, err));
    l->n_rows = tn_medium_rows(&l->medium);
    l->views = tn_calloc(&e->ctx, TN_MEM_OTHER, (size_t)l->medium.n_views, sizeof(tn_seen *));
    TN_FAIL_IF(!l->views, err, TERN_E_MEMORY, "no memory for a picture");
    pthread_mutex_lock(&s->mu);
    const bool must = s->has_others;
    pthread_mutex_unlock(&s->mu);
    settle_early(s, must);
    for (int32_t i = 0; i < l->medium.n_views; i++) {
        bool settled;
        TN_TRY(view_at(l, i, &settled, err));
        atomic_store(&l->views[i]->whole, tn_encoder_sees_itself(e, l->medium.kind));
        atomic_store(&l->views[i]->in_windows, l->medium.kind == TN_TOWER_GEMMA4);
        atomic_store(&l->views[i]->columns, l->medium.views[i].columns);
        if (settled) TN_TRY(find_rows(l, i, err));
        else l->unsettled = true;
    }
    set_pending(l, true);
    pass_known(l);
    return TERN_OK;
}

tern_status tn_look_at(tern_engine *e, const tn_picture *p, bool one_view, tn_look **out, tern_error *err) {
    tn_look *l = *out = tn_calloc(&e->ctx, TN_MEM_OTHER, 1, sizeof *l);
    TN_FAIL_IF(!l, err, TERN_E_MEMORY, "no memory for a picture");
    l->e = e;
    l->width = p->width;
    l->height = p->height;
    tern_status st = look(l, p, one_view, err);
    if (st != TERN_OK) tn_look_close(out);
    return st;
}

/* Others may encode while a view pauses: the lock is theirs then. */
static bool is_wanted(void *user) {
    const tn_look *l = user;
    return l->pause->wanted(l->pause->user);
}

static void let_others(void *user) {
    const tn_look *l = user;
    tn_sight *s = l->e->sight;
    s->n_paused++;
    pthread_mutex_unlock(&s->encoding);
    l->pause->run(l->pause->user);
    pthread_mutex_lock(&s->encoding);
    s->n_paused--;
}

/* With the lock `encoding`. */
static tern_status encode(tn_look *l, const atomic_bool *cancel, tern_error *err) {
    tern_engine *e = l->e;
    tn_sight *s = e->sight;
    tn_seen *v = l->views[l->next];
    tn_tower *tower;
    TN_TRY(tn_encoder_need(s->encoder, &tower, err));
    s->n_uses++;
    float *rows = tn_alloc(&e->ctx, TN_MEM_OTHER, bytes_of(s, v), 1);
    TN_FAIL_IF(!rows, err, TERN_E_MEMORY, "no memory for the %d rows of a picture", v->n);
    int64_t t0 = tn_now_ns();
    const tn_view *view = &l->medium.views[l->next];
    const tn_pause pause = {.wanted = is_wanted, .run = let_others, .user = l};
    tern_status st = tn_tower_encode(tower, &e->kern, e->pool, l->medium.rgb + view->at,
                                     (tn_tower_size){view->width, view->height}, cancel,
                                     l->pause ? &pause : NULL, rows, err);
    double took_s = (double)(tn_now_ns() - t0) * 1e-9;
    if (st == TERN_OK) st = tn_sight_give(e, v, rows, err);
    if (st == TERN_OK && s->kept.limit_bytes)
        tn_kept_write(&e->ctx, &s->kept, v->key, v->n, (int32_t)tn_sight_row_width(e), rows);
    tn_free(&e->ctx, rows);
    if (st != TERN_OK) return st;
    l->encoded++;
    l->encode_s += took_s;
    pthread_mutex_lock(&s->mu);
    s->counts.encoded++;
    s->counts.encode_s += took_s;
    pthread_mutex_unlock(&s->mu);
    return TERN_OK;
}

/* What was looked at before the encoder's fingerprint was known may be known all the same. With the lock
 * `encoding`. */
static tern_status find_late(tn_look *l, tern_error *err) {
    if (!l->unsettled) return TERN_OK;
    TN_TRY(need_settled(l->e->sight, err));
    for (int32_t i = l->next; i < l->medium.n_views; i++) TN_TRY(find_rows(l, i, err));
    l->unsettled = false;
    return TERN_OK;
}

tern_status tn_look_encode(tn_look *l, const atomic_bool *cancel, bool *more, tern_error *err) {
    tn_sight *s = l->e->sight;
    tern_status st = TERN_OK;
    pthread_mutex_lock(&s->encoding); /* an equal view of somebody else's may be encoded right now */
    pass_known(l);
    if (l->next < l->medium.n_views) st = find_late(l, err);
    pass_known(l);
    if (st == TERN_OK && l->next < l->medium.n_views) st = encode(l, cancel, err);
    pass_known(l);
    leave_if_done(s);
    pthread_mutex_unlock(&s->encoding);
    *more = st == TERN_OK && l->next < l->medium.n_views;
    return st;
}

/* Nothing more of it is encoded. */
static void give_up(tn_look *l) {
    tn_sight *s = l->e->sight;
    set_pending(l, false);
    pthread_mutex_lock(&s->encoding);
    leave_if_done(s);
    pthread_mutex_unlock(&s->encoding);
}

void tn_look_skip(tn_look *l, int32_t n) {
    const bool was = l->pending;
    if (l->next < n) l->next = n;
    pass_known(l);
    if (was && !l->pending) give_up(l);
}

bool tn_look_done(const tn_look *l) { return l->next >= l->medium.n_views; }

void tn_look_close(tn_look **pl) {
    tn_look *l = *pl;
    *pl = NULL;
    if (!l) return;
    if (l->pending) give_up(l);
    for (int32_t i = 0; l->views && i < l->medium.n_views; i++)
        if (l->views[i]) tn_sight_let_go(l->e, l->views[i]);
    tn_free(&l->e->ctx, l->views);
    tn_medium_free(&l->medium);
    tn_free(&l->e->ctx, l);
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

enum { LOOKS_MAX = 4096 };

static tern_status check_prompt(const tern_engine *e, size_t n_looks, tern_error *err) {
    TN_TRY(check_sight(e, err));
    TN_FAIL_IF(n_looks > LOOKS_MAX, err, TERN_E_LIMIT, "%zu pictures in one prompt; up to %d", n_looks,
               LOOKS_MAX);
    return TERN_OK;
}

static tern_status media_of(tern_engine *e, tn_look *const *looks, size_t n, const tn_medium ***out,
                            tern_error *err) {
    *out = tn_alloc(&e->ctx, TN_MEM_OTHER, n + 1, sizeof **out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for a prompt with pictures");
    for (size_t i = 0; i < n; i++) (*out)[i] = &looks[i]->medium;
    return TERN_OK;
}

/* The ids of rows, in the order of the looks. Takes ids; *out is malloc'ed. */
static tern_status fill(tern_engine *e, tn_look *const *looks, size_t n_looks, int32_t *ids, size_t n_ids,
                        int32_t **out, tern_error *err) {
    size_t at = 0;
    *out = malloc((n_ids + 1) * sizeof **out);
    if (*out) memcpy(*out, ids, n_ids * sizeof *ids);
    tn_free(&e->ctx, ids);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for a prompt of %zu tokens", n_ids);
    for (size_t i = 0; i < n_looks; i++) {
        for (int32_t k = 0; k < looks[i]->medium.n_views; k++) {
            const tn_seen *v = looks[i]->views[k];
            for (int32_t r = 0; r < v->n && at < n_ids; at++)
                if ((*out)[at] == TN_MEDIA_ROW) (*out)[at] = v->first + r++;
        }
    }
    return TERN_OK;
}

tern_status tn_look_chat(tern_engine *e, const tern_chat_options *o, tn_look *const *looks, size_t n_looks,
                         int32_t **ids, size_t *n_ids, tern_error *err) {
    const tn_medium **media;
    int32_t *marked;
    *ids = NULL;
    TN_TRY(check_prompt(e, n_looks, err));
    TN_TRY(media_of(e, looks, n_looks, &media, err));
    tern_status st = tn_media_chat(&e->ctx, e->model->tokenizer, o, media, n_looks, &marked, n_ids, err);
    tn_free(&e->ctx, media);
    return st == TERN_OK ? fill(e, looks, n_looks, marked, *n_ids, ids, err) : st;
}

tern_status tn_look_plain(tern_engine *e, const char *text, size_t n_text, tn_look *const *looks,
                          size_t n_looks, int32_t **ids, size_t *n_ids, tern_error *err) {
    const tn_medium **media;
    int32_t *marked;
    *ids = NULL;
    TN_TRY(check_prompt(e, n_looks, err));
    TN_TRY(media_of(e, looks, n_looks, &media, err));
    tern_status st =
        tn_media_plain(&e->ctx, e->model->tokenizer, text, n_text, media, n_looks, &marked, n_ids, err);
    tn_free(&e->ctx, media);
    return st == TERN_OK ? fill(e, looks, n_looks, marked, *n_ids, ids, err) : st;
}
