#include "engine/sight.h"

#include "base/clock.h"
#include "base/finite.h"
#include "base/status.h"
#include "engine/sight_find.h"
#include "engine/sight_kept.h"
#include "media/prompt.h"
#include "params/options.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 1024, VIEWS_MAX = 1 << 16 };

struct tn_sight {
    tern_engine *e;
    char *model, *mmproj; /* files; mmproj NULL: none was named */
    tn_tower_scheme scheme;
    bool chosen; /* scheme is: nobody is asked for a verdict */
    tn_tower_verdict verdict;
    const char *why; /* chosen without one */
    bool one_view;
    int32_t most_rows; /* of a picture of any size */
    uint64_t memory_bytes, disk_bytes;
    char *folder;             /* of rows on disk, [TN_KEPT_PATH]; NULL: none */
    pthread_mutex_t encoding; /* the tower, and work with it but for pauses; before mu */
    tn_tower *tower;
    int32_t n_paused;     /* views that go on with the tower */
    tn_tower_shape shape; /* once it was open */
    uint64_t fingerprint;
    bool opened;
    uint64_t folder_bytes;
    pthread_mutex_t mu; /* of what follows */
    tn_seen *buckets[BUCKETS];
    int32_t n_views, next_id;
    uint64_t clock;
    tn_sight_counts counts;
};

/* ---- opening ----------------------------------------------------------------------------------------- */

static char *copied(tern_engine *e, const char *s) { return s ? tn_strdup(&e->ctx, TN_MEM_TEXT, s) : NULL; }

/* Asked for; or else a verdict decides, when the first picture comes. */
static void set_scheme(tn_sight *s, const tern_options *o) {
    const bool asked = o->encoder && strcmp(o->encoder, "auto");
    s->scheme = asked && !strcmp(o->encoder, "int8") ? TN_TOWER_INT8 : TN_TOWER_FLOAT;
    s->why = asked ? "asked for" : o->exact ? "exact" : NULL;
    s->chosen = s->why;
}

tern_status tn_sight_open(tern_engine *e, const char *path, const tern_options *o, tern_error *err) {
    enum { MEMORY_BYTES = 256 << 20, ROWS = 1280 };
    tn_sight *s = tn_calloc(&e->ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for an engine");
    e->sight = s;
    s->e = e;
    set_scheme(s, o);
    s->one_view = o->one_view;
    s->most_rows = o->picture_rows ? o->picture_rows : ROWS;
    s->memory_bytes = o->picture_memory_bytes ? o->picture_memory_bytes : MEMORY_BYTES;
    s->disk_bytes = o->picture_cache_bytes;
    s->next_id = e->model->h.n_vocab;
    s->model = copied(e, o->beside ? o->beside : path);
    s->mmproj = copied(e, o->mmproj);
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->encoding, NULL);
    bool ok = s->model && (s->mmproj || !o->mmproj);
    if (ok && s->disk_bytes) {
        s->folder = tn_alloc(&e->ctx, TN_MEM_TEXT, TN_KEPT_PATH, 1);
        ok = s->folder;
        if (ok && !tn_kept_place(s->folder)) s->disk_bytes = 0;
    }
    return ok ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for an engine");
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
    tn_tower_close(&s->tower);
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->encoding);
    tn_free(ctx, s->folder);
    tn_free(ctx, s->model);
    tn_free(ctx, s->mmproj);
    tn_free(ctx, s);
}

/* What the language model lacks for pictures. */
static tern_status check_model(const tern_engine *e, tern_error *err) {
    const tn_hparams *h = &e->model->h;
    TN_FAIL_IF(h->n_streams || h->bidirectional, err, TERN_E_UNSUPPORTED,
               "architecture %s takes no rows of pictures", h->arch);
    TN_FAIL_IF(!e->model->tokenizer, err, TERN_E_UNSUPPORTED, "the model has no tokenizer");
    return TERN_OK;
}

/* The encoder in the package; NULL: there is none. */
static const tn_pkg_section *packed(const tn_sight *s) {
    return s->e->npu ? tn_pkg_find(s->e->npu->pkg, TN_PKG_ENCODER, -1) : NULL;
}

static tern_status open_packed(tn_sight *s, tn_tower_scheme scheme, tern_error *err) {
    tern_engine *e = s->e;
    const tn_pkg_section *section = packed(s);
    uint8_t *bytes = tn_alloc(&e->ctx, TN_MEM_OTHER, section->size_bytes, 1);
    TN_FAIL_IF(!bytes, err, TERN_E_MEMORY, "no memory for an encoder of %" PRIu64 " bytes",
               section->size_bytes);
    tern_status st = tn_pkg_read(e->npu->pkg, section, bytes, err);
    if (st == TERN_OK)
        st = tn_tower_open_memory(&e->ctx, e->pool, bytes, section->size_bytes, e->model->h.n_embd, scheme,
                                  &s->tower, err);
    tn_free(&e->ctx, bytes);
    return st;
}

static tern_status open_file(tn_sight *s, tn_tower_scheme scheme, tern_error *err) {
    tern_engine *e = s->e;
    char *found = s->mmproj ? NULL : tn_sight_find(s->model, e->model->h.n_embd, err);
    if (!s->mmproj && !found) return err ? err->code : TERN_E_UNSUPPORTED;
    tern_status st = tn_tower_open(&e->ctx, e->pool, s->mmproj ? s->mmproj : found, e->model->h.n_embd,
                                   scheme, &s->tower, err);
    free(found);
    return st;
}

bool tn_sight_can(tern_engine *e, tern_error *why) {
    const tn_sight *s = e->sight;
    if (check_model(e, why) != TERN_OK) return false;
    if (s->mmproj || packed(s)) return true;
    char *path = tn_sight_find(s->model, e->model->h.n_embd, why);
    free(path);
    return path;
}

/* A picture's rows see each other: Gemma 3's, and those of Gemma 4 whose layers have no embeddings of their own. */
static bool sees_itself(const tern_engine *e, tn_tower_kind kind) {
    return kind == TN_TOWER_GEMMA3 || (kind == TN_TOWER_GEMMA4 && !e->model->h.n_ple);
}

/* What the encoder's rows need of the language model. */
static tern_status check_tower(const tn_sight *s, const tn_tower_shape *shape, tern_error *err) {
    const tn_hparams *h = &s->e->model->h;
    TN_FAIL_IF(sees_itself(s->e, shape->kind) && s->e->npu, err, TERN_E_UNSUPPORTED,
               "pictures of Gemma %d need the model's own file (--pack never, or the file's name): a package "
               "reads a "
               "picture's rows in pieces, and they see each other",
               shape->kind == TN_TOWER_GEMMA3 ? 3 : 4);
    TN_FAIL_IF(
        tn_tower_has_axes(shape->kind) && !tn_has_axes(h), err, TERN_E_UNSUPPORTED,
        "pictures of Qwen's encoders need a model whose rope has three axes, and the file of this one (%s) "
        "says nothing about them%s",
        h->arch, s->e->npu ? ": a package of an older tern must be packed again" : "");
    TN_FAIL_IF(tn_tower_has_axes(shape->kind) && h->rope_interleaved != (shape->kind == TN_TOWER_QWEN3VL),
               err, TERN_E_INVALID,
               "the encoder is of another model: its rows turn by axes %s, and the model's %s",
               h->rope_interleaved ? "one after another (Qwen2.5-VL)" : "in turns (Qwen3-VL)",
               h->rope_interleaved ? "in turns" : "one after another");
    TN_FAIL_IF(
        shape->n_deep != h->n_deepstack, err, TERN_E_INVALID,
        "the encoder is of another model: it gives rows for %d first layers (deepstack), and the model's "
        "read %d",
        shape->n_deep, h->n_deepstack);
    return TERN_OK;
}

static tern_status open_tower(tn_sight *s, tn_tower_scheme scheme, tern_error *err) {
    TN_TRY(packed(s) && !s->mmproj ? open_packed(s, scheme, err) : open_file(s, scheme, err));
    tern_status st = check_tower(s, tn_tower_shape_of(s->tower), err);
    if (st != TERN_OK) tn_tower_close(&s->tower);
    return st;
}

static tern_status open_form(void *user, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    tn_sight *s = user;
    tern_status st = open_tower(s, scheme, err);
    *out = s->tower;
    return st;
}

/* The verdict that packing wrote beside the encoder; NULL: none, or a later tern's. */
static const tn_pkg_section *packed_verdict(const tn_sight *s) {
    const tn_pkg_section *v = s->e->npu ? tn_pkg_find(s->e->npu->pkg, TN_PKG_VERDICT, -1) : NULL;
    return v && v->size_bytes == sizeof(tn_pkg_verdict) ? v : NULL;
}

/* Takes it if it is of this encoder and of this judge. */
static tern_status read_verdict(tn_sight *s, uint64_t fingerprint, bool *known, tern_error *err) {
    const tn_pkg_section *section = packed_verdict(s);
    tn_pkg_verdict v;
    *known = false;
    if (!section) return TERN_OK;
    TN_TRY(tn_pkg_read(s->e->npu->pkg, section, &v, err));
    *known = v.version == TN_TOWER_VERDICT && v.fingerprint == fingerprint;
    if (*known) s->verdict = (tn_tower_verdict){v.mean, v.least};
    return TERN_OK;
}

enum { VERDICT_FLOATS = sizeof(tn_tower_verdict) / sizeof(float) };

/* Under which a verdict is kept (sight_kept.h). */
static void verdict_key(uint64_t fingerprint, uint8_t key[TN_VIEW_KEY]) {
    for (size_t i = 0; i < TN_VIEW_KEY / sizeof(uint64_t); i++) {
        const uint64_t part[] = {0x6a75646765ull /* "judge": no view's */, TN_TOWER_VERDICT, i, fingerprint},
                       h = XXH64(part, sizeof part, 0);
        memcpy(key + i * sizeof h, &h, sizeof h);
    }
}

/* By the verdict that is kept, or by a new one. */
static tern_status judge(tn_sight *s, uint64_t fingerprint, tern_error *err) {
    const tn_tower_judging j = {&s->e->ctx, &s->e->kern, s->e->pool, open_form, s};
    uint8_t key[TN_VIEW_KEY];
    float kept[VERDICT_FLOATS];
    verdict_key(fingerprint, key);
    if (tn_kept_read(s->folder, key, 1, VERDICT_FLOATS, kept)) {
        memcpy(&s->verdict, kept, sizeof kept);
        return TERN_OK;
    }
    TN_TRY(tn_tower_judge(&j, &s->tower, &s->verdict, err));
    memcpy(kept, &s->verdict, sizeof kept);
    tn_kept_write(&s->e->ctx, s->folder, s->disk_bytes, &s->folder_bytes, key, 1, VERDICT_FLOATS, kept);
    return TERN_OK;
}

/* Takes INT8 where it sees what floats see. A verdict takes as long as a picture in floats at worst, so none is made where
 * none can be kept. */
static tern_status choose(tn_sight *s, tern_error *err) {
    bool known = false;
    if (s->disk_bytes || packed_verdict(s)) {
        TN_TRY(open_tower(s, TN_TOWER_INT8, err));
        const uint64_t fingerprint = tn_tower_fingerprint(s->tower);
        TN_TRY(read_verdict(s, fingerprint, &known, err));
        if (!known && s->disk_bytes) {
            TN_TRY(judge(s, fingerprint, err));
            known = true;
        }
    }
    s->why = known ? NULL : "nothing is kept on disk, so INT8 was not judged";
    s->scheme = known && tn_tower_holds(s->verdict) ? TN_TOWER_INT8 : TN_TOWER_FLOAT;
    s->chosen = true;
    if (s->tower && tn_tower_scheme_of(s->tower) != s->scheme) tn_tower_close(&s->tower);
    return TERN_OK;
}

/* With the lock `encoding`. */
static tern_status need_tower(tn_sight *s, tern_error *err) {
    tern_engine *e = s->e;
    if (s->tower) return TERN_OK;
    TN_TRY(check_model(e, err));
    tern_status chosen = s->chosen ? TERN_OK : choose(s, err);
    if (chosen != TERN_OK) tn_tower_close(&s->tower);
    TN_TRY(chosen);
    if (!s->tower) TN_TRY(open_tower(s, s->scheme, err));
    if (s->opened && tn_tower_fingerprint(s->tower) != s->fingerprint) {
        tn_tower_close(&s->tower);
        return tn_fail(err, TERN_E_IO, "the encoder of pictures was changed while it was in use");
    }
    s->shape = *tn_tower_shape_of(s->tower);
    const int64_t block = (int64_t)s->shape.patch * s->shape.shuffle, most = s->most_rows * block * block;
    if (s->shape.max_pixels > most) s->shape.max_pixels = most;
    if (s->shape.min_pixels > s->shape.max_pixels / 4) s->shape.min_pixels = s->shape.max_pixels / 4;
    s->fingerprint = tn_tower_fingerprint(s->tower);
    s->opened = true;
    return TERN_OK;
}

tern_status tn_sight_shape(tern_engine *e, const tn_tower_shape **out, tern_error *err) {
    tn_sight *s = e->sight;
    pthread_mutex_lock(&s->encoding);
    tern_status st = s->opened ? TERN_OK : need_tower(s, err);
    pthread_mutex_unlock(&s->encoding);
    *out = &s->shape;
    return st;
}

void tn_sight_form(tern_engine *e, tn_sight_form_of *out) {
    tn_sight *s = e->sight;
    pthread_mutex_lock(&s->encoding);
    *out = (tn_sight_form_of){
        .int8 = s->scheme == TN_TOWER_INT8, .known = s->chosen, .why = s->why, .verdict = s->verdict};
    pthread_mutex_unlock(&s->encoding);
}

void tn_sight_rest(tern_engine *e) {
    tn_sight *s = e->sight;
    if (!s) return;
    pthread_mutex_lock(&s->encoding);
    if (!s->n_paused) tn_tower_close(&s->tower);
    pthread_mutex_unlock(&s->encoding);
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

tern_status tn_sight_view(tern_engine *e, const uint8_t key[TN_VIEW_KEY], int32_t n, tn_seen **out,
                          tern_error *err) {
    tn_sight *s = e->sight;
    tern_status st = TERN_OK;
    pthread_mutex_lock(&s->mu);
    tn_seen *v = *bucket_of(s, key);
    while (v && (memcmp(v->key, key, TN_VIEW_KEY) || v->n != n)) v = v->next;
    if (!v) st = add(s, key, n, &v, err);
    if (st == TERN_OK) {
        v->holders++;
        v->used = ++s->clock;
        *out = v;
    }
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
    if (!atomic_load(&v->x) && s->disk_bytes) {
        float *rows = tn_alloc(&e->ctx, TN_MEM_OTHER, bytes_of(s, v), 1);
        TN_FAIL_IF(!rows, err, TERN_E_MEMORY, "no memory for the %d rows of a picture", v->n);
        on_disk = tn_kept_read(s->folder, v->key, v->n, (int32_t)tn_sight_row_width(e), rows);
        tern_status st = on_disk ? tn_sight_give(e, v, rows, err) : TERN_OK;
        tn_free(&e->ctx, rows);
        TN_TRY(st);
    }
    l->on_disk += on_disk;
    return TERN_OK;
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
}

static tern_status look(tn_look *l, const tn_picture *p, bool one_view, tern_error *err) {
    tern_engine *e = l->e;
    const tn_tower_shape *shape;
    TN_TRY(tn_sight_shape(e, &shape, err));
    TN_TRY(tn_medium_make(&e->ctx, shape, p, one_view || e->sight->one_view, &l->medium, err));
    l->n_rows = tn_medium_rows(&l->medium);
    l->views = tn_calloc(&e->ctx, TN_MEM_OTHER, (size_t)l->medium.n_views, sizeof(tn_seen *));
    TN_FAIL_IF(!l->views, err, TERN_E_MEMORY, "no memory for a picture");
    for (int32_t i = 0; i < l->medium.n_views; i++) {
        uint8_t key[TN_VIEW_KEY];
        tn_view_key(&l->medium, i, e->sight->fingerprint, key);
        TN_TRY(tn_sight_view(e, key, l->medium.views[i].n_rows, &l->views[i], err));
        atomic_store(&l->views[i]->whole, sees_itself(e, l->medium.kind));
        atomic_store(&l->views[i]->in_windows, l->medium.kind == TN_TOWER_GEMMA4);
        atomic_store(&l->views[i]->columns, l->medium.views[i].columns);
        TN_TRY(find_rows(l, i, err));
    }
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
    TN_TRY(need_tower(s, err));
    float *rows = tn_alloc(&e->ctx, TN_MEM_OTHER, bytes_of(s, v), 1);
    TN_FAIL_IF(!rows, err, TERN_E_MEMORY, "no memory for the %d rows of a picture", v->n);
    int64_t t0 = tn_now_ns();
    const tn_view *view = &l->medium.views[l->next];
    const tn_pause pause = {.wanted = is_wanted, .run = let_others, .user = l};
    tern_status st = tn_tower_encode(s->tower, &e->kern, e->pool, l->medium.rgb + view->at,
                                     (tn_tower_size){view->width, view->height}, cancel,
                                     l->pause ? &pause : NULL, rows, err);
    double took_s = (double)(tn_now_ns() - t0) * 1e-9;
    if (st == TERN_OK) st = tn_sight_give(e, v, rows, err);
    if (st == TERN_OK && s->disk_bytes)
        tn_kept_write(&e->ctx, s->folder, s->disk_bytes, &s->folder_bytes, v->key, v->n,
                      (int32_t)tn_sight_row_width(e), rows);
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

tern_status tn_look_encode(tn_look *l, const atomic_bool *cancel, bool *more, tern_error *err) {
    tn_sight *s = l->e->sight;
    tern_status st = TERN_OK;
    pthread_mutex_lock(&s->encoding); /* an equal view of somebody else's may be encoded right now */
    pass_known(l);
    if (l->next < l->medium.n_views) st = encode(l, cancel, err);
    pthread_mutex_unlock(&s->encoding);
    pass_known(l);
    *more = st == TERN_OK && l->next < l->medium.n_views;
    return st;
}

void tn_look_skip(tn_look *l, int32_t n) {
    if (l->next < n) l->next = n;
    pass_known(l);
}

bool tn_look_done(const tn_look *l) { return l->next >= l->medium.n_views; }

void tn_look_close(tn_look **pl) {
    tn_look *l = *pl;
    *pl = NULL;
    if (!l) return;
    for (int32_t i = 0; l->views && i < l->medium.n_views; i++)
        if (l->views[i]) tn_sight_let_go(l->e, l->views[i]);
    tn_free(&l->e->ctx, l->views);
    tn_medium_free(&l->medium);
    tn_free(&l->e->ctx, l);
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

enum { LOOKS_MAX = 4096 };

static tern_status check_prompt(const tern_engine *e, size_t n_looks, tern_error *err) {
    TN_TRY(check_model(e, err));
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
