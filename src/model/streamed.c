#include "model/streamed.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "model/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SLACK = 20,        /* a layer's part of the file is a 20th longer than its tensors, at most */
    SLACK_BYTES = 4096 /* or so much */
};

/* What arrives together: a layer, or a matrix of the model's own. */
typedef struct unit {
    int layer;
    tn_role role; /* of layer -1 */
    uint64_t from,
        end;     /* of the file, from whole pages; from == end: it is not read but taken from the mapping */
    uint8_t *at; /* memory of these bytes */
    tn_aio_read reads[2]; /* whole pages, and the rest of the file's last one */
    int32_t n_reads;
} unit;

struct tn_streamed {
    tn_ctx *ctx;
    tn_pool *pool;
    tn_source *src;
    tn_model *m;
    int fd;
    tn_aio *aio;
    int32_t n_units;
    unit *units;
    int64_t open_ns;
    _Atomic int32_t n_ready; /* the units before this one may be used; release: them. Written under mu */
    atomic_bool quit;
    atomic_int n_asking; /* who waits for mu, or holds it, and is asked for */
    pthread_t ahead;
    bool is_ahead;
    _Atomic int status; /* the failure that stays. Written under mu */
    pthread_mutex_t mu; /* guards what follows */
    tern_error error;
    tn_streamed_stats stats;
};

static uint64_t page_down(uint64_t n) { return n / TN_AIO_ALIGN * TN_AIO_ALIGN; }
static uint64_t page_up(uint64_t n) { return page_down(n + TN_AIO_ALIGN - 1); }

/* ---- where everything lies --------------------------------------------------------------------------- */

static void span_of(const tn_source *src, int layer, tn_role role, uint64_t *from, uint64_t *end) {
    const tn_tensor *t = tn_source_tensor(src, layer, role);
    if (!t) return;
    if (t->off_bytes < *from) *from = t->off_bytes;
    if (t->off_bytes + t->size_bytes > *end) *end = t->off_bytes + t->size_bytes;
}

/* The part of the file that a layer's tensors lie in. false: others lie between them. *has_blocks: some are in
 * blocks that stay. */
static bool span_of_layer(const tn_source *src, int layer, uint64_t *from, uint64_t *end, bool *has_blocks) {
    uint64_t n_bytes = 0;
    *has_blocks = false;
    *from = UINT64_MAX, *end = 0;
    for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
        const tn_tensor *t = tn_source_tensor(src, layer, role);
        bool known = false;
        for (tn_role r = 0; r < role && t && !known; r++) known = tn_source_tensor(src, layer, r) == t;
        if (!t || known) continue;
        n_bytes += t->size_bytes;
        *has_blocks = *has_blocks || tn_blocks_stay(src, layer, role);
        span_of(src, layer, role, from, end);
    }
    return *end - *from <= n_bytes + n_bytes / SLACK + SLACK_BYTES;
}

const char *tn_streamed_why_not(const tn_source *src) {
    const tn_hparams *h = tn_source_hparams(src);
    uint64_t from, end;
    bool has_blocks;
    if (!tn_source_file(src)) return "it is not one GGUF file";
    if (h->n_ple) return "its layers have embeddings of their own";
    if (h->bidirectional) return "it reads texts in both directions";
    for (int layer = 0; layer < h->n_layers; layer++) {
        if (!span_of_layer(src, layer, &from, &end, &has_blocks))
            return "its layers do not lie one after another";
        if (!has_blocks)
            return "a layer of it has floats alone, or types whose weights memory holds in another form";
    }
    return NULL;
}

static uint8_t *tensor_memory(void *user, int layer, tn_role role) {
    const tn_streamed *s = user;
    const tn_tensor *t = tn_source_tensor(s->src, layer, role);
    const tn_hparams *h = tn_source_hparams(s->src);
    const unit *u = &s->units[layer >= 0 ? layer : h->n_layers + (role == TN_W_EMBD && !h->tied)];
    if (!t || (layer < 0 && role != u->role) || u->from == u->end) return NULL;
    return u->at + (t->off_bytes - u->from);
}

/* Units in the order of use, without memory. */
static tern_status plan(tn_streamed *s, tern_error *err) {
    const tn_hparams *h = tn_source_hparams(s->src);
    bool has_blocks;
    s->units = tn_calloc(s->ctx, TN_MEM_OTHER, (size_t)h->n_layers + 2, sizeof *s->units);
    TN_FAIL_IF(!s->units, err, TERN_E_MEMORY, "no memory to plan the reading");
    for (int layer = 0; layer < h->n_layers; layer++) {
        unit *u = &s->units[s->n_units++];
        u->layer = layer;
        (void)span_of_layer(s->src, layer, &u->from, &u->end, &has_blocks);
        u->from = page_down(u->from);
    }
    const tn_role top[] = {h->tied ? TN_W_EMBD : TN_W_OUT, TN_W_EMBD};
    for (int i = 0; i < (h->tied ? 1 : 2); i++) {
        unit *u = &s->units[s->n_units++];
        *u = (unit){.layer = -1, .role = top[i], .from = UINT64_MAX};
        span_of(s->src, -1, u->role, &u->from, &u->end);
        u->from = page_down(u->from);
        if (!tn_blocks_stay(s->src, -1, u->role)) u->from = u->end = 0; /* it takes another form */
    }
    return TERN_OK;
}

/* Bytes of a unit in memory. A vocabulary may end within a tile, whose other rows get room. */
static uint64_t room_of(const tn_source *src, const unit *u) {
    const tn_tensor *t = u->layer < 0 ? tn_source_tensor(src, -1, u->role) : NULL;
    return page_up(u->end - u->from + (t ? t->size_bytes / t->dims[0] * TN_BLOCKS_N : 0));
}

/* The same order of pages in memory as in the file, for reads that bypass the page cache. */
static tern_status make_room(tn_ctx *ctx, uint64_t n_bytes, void **room, uint8_t **at, tern_error *err) {
    *room = tn_alloc(ctx, TN_MEM_WEIGHTS, n_bytes + TN_AIO_ALIGN, 1);
    TN_FAIL_IF(!*room, err, TERN_E_MEMORY, "no memory for %" PRIu64 " bytes of weights", n_bytes);
    *at = (uint8_t *)page_up((uintptr_t)*room);
    return TERN_OK;
}

static void plan_reads(unit *u, uint64_t n_file) {
    const uint64_t end = page_up(u->end), whole = end <= n_file ? end : page_down(n_file);
    if (whole > u->from)
        u->reads[u->n_reads++] =
            (tn_aio_read){.off_bytes = u->from, .n_bytes = whole - u->from, .dst = u->at};
    if (end > whole)
        u->reads[u->n_reads++] =
            (tn_aio_read){.off_bytes = whole, .n_bytes = n_file - whole, .dst = u->at + (whole - u->from)};
}

/* Memory of every unit, which the model frees as that of its layers. */
static tern_status take_memory(tn_streamed *s, void **rooms, tern_error *err) {
    uint64_t n_top = 0;
    for (int32_t i = 0; i < s->n_units; i++) {
        if (s->units[i].layer < 0) n_top += room_of(s->src, &s->units[i]);
        else TN_TRY(make_room(s->ctx, room_of(s->src, &s->units[i]), &rooms[i], &s->units[i].at, err));
    }
    uint8_t *at;
    if (!n_top) return TERN_OK;
    const int32_t n_layers = tn_source_hparams(s->src)->n_layers;
    TN_TRY(make_room(s->ctx, n_top, &rooms[n_layers], &at, err));
    for (int32_t i = n_layers; i < s->n_units; at += room_of(s->src, &s->units[i++])) s->units[i].at = at;
    return TERN_OK;
}

/* ---- life -------------------------------------------------------------------------------------------- */

/* The file is opened again, because a mapping has no descriptor. */
static tern_status open_reader(tn_streamed *s, const tn_aio_options *io, tern_error *err) {
    const tn_file *f = tn_source_file(s->src);
    struct stat sb;
    s->fd = tn_file_open_regular(f->path, &sb, err);
    if (s->fd < 0) return TERN_E_IO;
    TN_FAIL_IF(!tn_file_is(f, s->fd), err, TERN_E_IO,
               "%s: was replaced or written to while it was opened; try again", f->path);
    return tn_aio_open_fd(s->ctx, s->fd, f->path, io, &s->aio, err);
}

static void begin_reading(tn_streamed *s) {
    const uint64_t n_file = tn_source_file(s->src)->size_bytes;
    for (int32_t i = 0; i < s->n_units; i++) {
        unit *u = &s->units[i];
        if (u->from < u->end) plan_reads(u, n_file);
        for (int32_t r = 0; r < u->n_reads; r++) tn_aio_submit(s->aio, &u->reads[r], false);
    }
}

tern_status tn_streamed_open(tn_ctx *ctx, tn_pool *pool, tn_source **src, const tn_aio_options *io,
                             tn_model **out, tern_error *err) {
    *out = NULL;
    const int32_t n_layers = tn_source_hparams(*src)->n_layers;
    tn_streamed *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory to open the model");
    *s = (tn_streamed){.ctx = ctx, .pool = pool, .src = *src, .fd = -1, .open_ns = tn_now_ns()};
    pthread_mutex_init(&s->mu, NULL);
    void **rooms = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_layers + 1, sizeof *rooms);
    tern_status st = TERN_OK;
    tn_model *m = NULL;
    bool fits = false;
    TN_BAIL_IF(!rooms, err, TERN_E_MEMORY, "no memory to open the model");
    if ((st = plan(s, err)) != TERN_OK || (st = take_memory(s, rooms, err)) != TERN_OK) goto out;
    if ((st = tn_model_place(ctx, *src, tensor_memory, s, &fits, &m, err)) != TERN_OK || !fits) goto out;
    if ((st = tn_model_fill(m, pool, *src, -1, TN_W_OUT_NORM, tensor_memory, s, err)) != TERN_OK) goto out;
    if ((st = open_reader(s, io, err)) != TERN_OK) goto out;
    for (int32_t i = 0; i < n_layers; i++) m->layers[i].room = rooms[i];
    m->top.room = rooms[n_layers];
    tn_free(ctx, rooms);
    begin_reading(s);
    s->m = m;
    m->streamed = s;
    *src = NULL;
    st = tn_source_read_text(s->src, err); /* while bytes arrive */
    m->tokenizer = tn_source_take_tokenizer(s->src);
    if (st == TERN_OK)
        st = tn_model_fill(m, pool, s->src, n_layers, TN_W_N_ROLES, tensor_memory, s,
                           err); /* sessions ask if it is there */
    if (st == TERN_OK) *out = m;
    else tn_model_close(&m);
    return st;
out:
    tn_model_close(&m);
    for (int32_t i = 0; rooms && i <= n_layers; i++) tn_free(ctx, rooms[i]);
    tn_free(ctx, rooms);
    s->src = NULL; /* the caller's still */
    tn_streamed_close(&s);
    return st;
}

/* What reading needs, and the model that was read does not. */
static void end_reading(tn_streamed *s) {
    tn_aio_close(&s->aio);
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    tn_source_close(&s->src);
}

void tn_streamed_close(tn_streamed **ps) {
    tn_streamed *s = *ps;
    if (!s) return;
    *ps = NULL;
    atomic_store(&s->quit, true);
    if (s->is_ahead) pthread_join(s->ahead, NULL);
    end_reading(s);
    pthread_mutex_destroy(&s->mu);
    tn_free(s->ctx, s->units);
    tn_free(s->ctx, s);
}

static int32_t n_ready_of(const tn_streamed *s) {
    return atomic_load_explicit(&s->n_ready, memory_order_acquire);
}

/* ---- use --------------------------------------------------------------------------------------------- */

/* Waits for all of these reads, so that none is in flight after a failure. The first failure is told. */
static tern_status wait_for(tn_streamed *s, tn_aio_read *reads, int32_t n, tern_error *err) {
    tern_status st = TERN_OK;
    for (int32_t i = 0; i < n; i++) {
        tern_error one;
        const tern_status rc = tn_aio_wait(s->aio, &reads[i], &one);
        if (rc == TERN_OK || st != TERN_OK) continue;
        st = rc;
        if (err) *err = one;
    }
    return st;
}

static void read_stats(tn_streamed *s) {
    tn_aio_stats a;
    if (!s->aio) return;
    tn_aio_stats_get(s->aio, &a);
    s->stats.n_read_bytes = a.n_bytes;
    s->stats.read_ns = a.busy_ns;
    s->stats.method = tn_aio_method(s->aio);
}

/* Bytes of two files would be no model: whatever was written, was written before this is asked. */
static tern_status check_file(const tn_streamed *s, tern_error *err) {
    const tn_file *f = tn_source_file(s->src);
    TN_FAIL_IF(tn_file_was_written(f, s->fd) || tn_file_shrank(f), err, TERN_E_IO,
               "%s: was written to while it was read", f->path);
    return TERN_OK;
}

static tern_status take_unit(tn_streamed *s, tern_error *err) {
    const int32_t n_ready = n_ready_of(s);
    unit *u = &s->units[n_ready];
    TN_TRY(wait_for(s, u->reads, u->n_reads, err));
    if (!n_ready) {
        read_stats(s);
        s->stats.n_first_bytes = s->stats.n_read_bytes;
    }
    TN_TRY(check_file(s, err));
    const int64_t t0 = tn_now_ns();
    TN_TRY(tn_model_fill(s->m, s->pool, s->src, u->layer, u->role, tensor_memory, s, err));
    s->stats.turn_ns += tn_now_ns() - t0;
    atomic_store_explicit(&s->n_ready, n_ready + 1, memory_order_release);
    if (n_ready + 1 < s->n_units) return TERN_OK;
    read_stats(s);
    s->stats.done_ns = tn_now_ns() - s->open_ns;
    end_reading(s);
    return TERN_OK;
}

tern_status tn_streamed_status(const tn_streamed *s) { return (tern_status)atomic_load(&s->status); }

/* Takes the next unit; a failure stays. */
static tern_status take_next(tn_streamed *s) {
    tern_status st = tn_streamed_status(s);
    if (st == TERN_OK) atomic_store(&s->status, (int)(st = take_unit(s, &s->error)));
    return st;
}

/* Takes the next unit if it is a layer that is there. */
static bool take_layer(tn_streamed *s) {
    const int32_t i = n_ready_of(s);
    unit *u = &s->units[i];
    if (i >= s->n_units || u->layer < 0) return false;
    for (int32_t r = 0; r < u->n_reads; r++)
        if (!tn_aio_done(s->aio, &u->reads[r])) return false;
    if (take_next(s) != TERN_OK) return false;
    s->stats.n_early++;
    return true;
}

/* Tells of progress; false: the caller does not want more. */
static bool goes_on(tn_streamed *s, tern_error *err) {
    if (tn_progress(s->ctx, "load", (double)n_ready_of(s) / s->n_units)) return true;
    (void)tn_fail(err, TERN_E_CANCELLED, "loading was cancelled");
    return false;
}

/* tells: of progress, on the thread that asked for the work. */
static tern_status need(tn_streamed *s, int32_t layer, bool tells, tern_error *err) {
    const int32_t n = layer < s->n_units ? layer + 1 : s->n_units;
    if (n_ready_of(s) >= n) return TERN_OK;
    tern_status st = TERN_OK;
    pthread_mutex_lock(&s->mu);
    while (st == TERN_OK && n_ready_of(s) < n) {
        st = take_next(s);
        if (st != TERN_OK && err) *err = s->error;
        if (st == TERN_OK && tells && !goes_on(s, err)) st = TERN_E_CANCELLED;
    }
    pthread_mutex_unlock(&s->mu);
    return st;
}

tern_status tn_streamed_need(tn_streamed *s, int32_t layer, tern_error *err) {
    atomic_fetch_add(&s->n_asking, 1);
    const tern_status st = need(s, layer, true, err);
    atomic_fetch_sub(&s->n_asking, 1);
    return st;
}

static void *wait_for_all(void *arg) {
    tn_streamed *s = arg;
    const struct timespec a_little = {.tv_nsec = 1000 * 1000};
    for (int32_t layer = 0; layer < s->n_units && !atomic_load(&s->quit);) {
        if (atomic_load(&s->n_asking))
            nanosleep(&a_little, NULL); /* a prompt goes first: it asks layer by layer */
        else if (need(s, layer++, false, NULL) != TERN_OK) break; /* whoever needs it is told */
    }
    return NULL;
}

void tn_streamed_ahead(tn_streamed *s) { s->is_ahead = !pthread_create(&s->ahead, NULL, wait_for_all, s); }

static int ascending(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Reads the rows one by one, all at once in flight, and turns layers meanwhile. bytes [n][row_bytes] */
static tern_status read_rows(tn_streamed *s, const int32_t *ids, int32_t n, size_t row_bytes, uint8_t *bytes,
                             tern_error *err) {
    const tn_tensor *t = tn_source_tensor(s->src, -1, TN_W_EMBD);
    tn_aio_read *reads = tn_calloc(s->ctx, TN_MEM_OTHER, (size_t)n, sizeof *reads);
    TN_FAIL_IF(!reads, err, TERN_E_MEMORY, "no memory for the embedding of %d tokens", (int)n);
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *row = tn_source_row(s->src, -1, TN_W_EMBD, ids[i]);
        reads[i] = (tn_aio_read){.off_bytes = t->off_bytes + (uint64_t)(row - t->data),
                                 .n_bytes = row_bytes,
                                 .dst = bytes + (size_t)i * row_bytes};
        tn_aio_submit(s->aio, &reads[i], true);
    }
    bool wanted = true; /* instead of waiting: */
    while (wanted && !tn_aio_done(s->aio, &reads[n - 1]) && take_layer(s)) wanted = goes_on(s, err);
    tern_status st = wait_for(s, reads, n, wanted ? err : NULL);
    if (!wanted) st = TERN_E_CANCELLED;
    tn_free(s->ctx, reads);
    return st;
}

static tern_status widen_rows(tn_streamed *s, tn_streamed_rows *r, tern_error *err) {
    const tn_tensor *t = tn_source_tensor(s->src, -1, TN_W_EMBD);
    const size_t k = (size_t)tn_source_hparams(s->src)->n_embd,
                 row_bytes = (size_t)tn_dtype_row_bytes(t->dtype, k);
    uint8_t *bytes = tn_alloc(s->ctx, TN_MEM_OTHER, (size_t)r->n, row_bytes);
    r->values = tn_alloc(s->ctx, TN_MEM_OTHER, (size_t)r->n * k, sizeof *r->values);
    tern_status st = bytes && r->values
                         ? read_rows(s, r->ids, r->n, row_bytes, bytes, err)
                         : tn_fail(err, TERN_E_MEMORY, "no memory for the embedding of %d tokens", (int)r->n);
    if (st == TERN_OK) st = check_file(s, err);
    for (int32_t i = 0; i < r->n && st == TERN_OK; i++) {
        float *row = r->values + (size_t)i * k;
        tn_dequantise(t->dtype, bytes + (size_t)i * row_bytes, row, k);
        for (size_t c = 0; c < k && st == TERN_OK; c++)
            if (!isfinite(row[c]))
                st = tn_fail(err, TERN_E_FORMAT, "%s: the embedding of token %d holds no numbers", t->file,
                             (int)r->ids[i]);
    }
    tn_free(s->ctx, bytes);
    return st;
}

tern_status tn_streamed_rows_read(tn_streamed *s, const int32_t *ids, int32_t n, tn_streamed_rows *out,
                                  tern_error *err) {
    if (!n || n_ready_of(s) == s->n_units) return TERN_OK;
    tn_streamed_rows r = {.ctx = s->ctx,
                          .n_embd = (size_t)s->m->h.n_embd,
                          .ids = tn_alloc(s->ctx, TN_MEM_OTHER, (size_t)n, sizeof *r.ids)};
    TN_FAIL_IF(!r.ids, err, TERN_E_MEMORY, "no memory for the embedding of %d tokens", (int)n);
    memcpy(r.ids, ids, (size_t)n * sizeof *ids);
    qsort(r.ids, (size_t)n, sizeof *r.ids, ascending);
    for (int32_t i = 0; i < n && r.ids[i] < s->m->h.n_vocab; i++) /* beyond it: rows of a picture */
        if (!i || r.ids[i] != r.ids[i - 1]) r.ids[r.n++] = r.ids[i];
    pthread_mutex_lock(&s->mu); /* nobody ends the reading meanwhile */
    tern_status st = tn_streamed_status(s);
    if (st != TERN_OK && err) *err = s->error;
    if (st == TERN_OK && r.n && n_ready_of(s) < s->n_units) st = widen_rows(s, &r, err);
    pthread_mutex_unlock(&s->mu);
    if (st == TERN_OK && r.values) *out = r;
    else tn_streamed_rows_close(&r);
    return st;
}

const float *tn_streamed_row(const tn_streamed_rows *r, int32_t id) {
    const int32_t *found = r->values ? bsearch(&id, r->ids, (size_t)r->n, sizeof id, ascending) : NULL;
    return found ? r->values + (size_t)(found - r->ids) * r->n_embd : NULL;
}

void tn_streamed_rows_close(tn_streamed_rows *r) {
    if (!r->ctx) return;
    tn_free(r->ctx, r->ids);
    tn_free(r->ctx, r->values);
    *r = (tn_streamed_rows){0};
}

void tn_streamed_stats_get(tn_streamed *s, tn_streamed_stats *out) {
    pthread_mutex_lock(&s->mu);
    read_stats(s);
    *out = s->stats;
    pthread_mutex_unlock(&s->mu);
}
