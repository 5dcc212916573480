#include "package/loader.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "package/coded.h"
#include "package/impl.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    CHANNELS_PER_PART = 256, /* of unpacking */
    RING_BYTES = 48 << 20,   /* for packed weights in transit, at least three units of layers */
};

typedef struct unit_op {
    const tn_pkg_record *r; /* TILES or WEIGHTLETS */
    tn_role role;
    int8_t *tiles; /* final memory: tiles, or packed weights */
    const uint8_t *packed,
        *bits;       /* weightlets to be unpacked, or streams; NULL: the bytes stay as they are */
    tn_coded *coded; /* description of the streams; NULL: weightlets */
    uint64_t phase;  /* bytes of its first page that belong to the tensor before it */
    int32_t part0;   /* first of its parts */
    tn_aio_read read;
} unit_op;

typedef struct unit {
    tn_loader *l;
    tn_unit_kind kind;
    int32_t layer; /* -1: model level */
    tn_npu_site *site;
    const tn_pkg_section *section;
    int32_t n_ops, n_parts;
    unit_op ops[TN_SITE_MAX_OPS]; /* small tensors: a single item without a record */
    bool submitted;               /* guarded by mu */
    atomic_bool loaded;           /* release: what was loaded */
} unit;

struct tn_loader {
    tn_npu_model *m;
    tn_load_mode mode;
    tn_aio *aio; /* NULL: mapped */
    tn_file *map;
    int32_t n_units;
    unit *units;
    tn_prefill_unit *graph_units;
    uint8_t *ring_block, *ring;
    int64_t open_ns;
    pthread_mutex_t run_mu; /* held by the thread that loads; taken before mu */
    pthread_mutex_t mu;     /* guards what follows */
    int32_t n_prefix;       /* the units before this one are loaded */
    int32_t n_submitted;
    bool any_site;          /* a site was loaded, */
    uint64_t n_first_bytes; /* bytes read by the time the first one was loaded */
    int32_t n_in_ring;      /* units of the ring that are not loaded; the ring is freed after the last */
    tern_status status;     /* first failure */
    tern_error error;
    atomic_bool done;
    atomic_int_fast64_t unpack_ns, load_ns, done_ns, n_by_device; /* relaxed: statistics */
    /* rows of the embedding that are needed before it is loaded; written under run_mu */
    int32_t n_rows, *row_tile; /* column tiles, or streams; ascending */
    int8_t *row_data;
    tn_aio_read *row_reads;
    const int8_t **row_at; /* tiles, or weightlets; NULL: streams that are not decoded yet */
    tn_coded *embd_coded;  /* streams of the embedding; NULL: none, or loaded already */
    const tn_pkg_record *embd;
    const tn_pkg_section *embd_section;
    const uint32_t *tile_hash;
    int32_t embd_unit;
};

static uint64_t aligned(uint64_t n) { return (n + TN_AIO_ALIGN - 1) / TN_AIO_ALIGN * TN_AIO_ALIGN; }

/* ---- reading ------------------------------------------------------------------------------------------ */

/* Checks a piece of a tensor that begins at a page. Only some of its bytes belong to the tensor, because
 * direct reads also bring what follows it. */
static tern_status check_piece(void *user, const tn_aio_read *r, uint64_t at, uint64_t n, tern_error *err) {
    const unit *u = user;
    const unit_op *op = u->kind == TN_UNIT_SMALL || u->kind == TN_UNIT_NEXT
                            ? &u->ops[0]
                            : (const unit_op *)((const char *)r - offsetof(unit_op, read));
    uint64_t size = op->r ? op->r->size_bytes : tn_pkg_small_bytes(u->l->m->pkg, u->section);
    if (at >= size) return TERN_OK;
    return tn_pkg_check(u->l->m->pkg, u->section, op->r, at, (const char *)r->dst + at,
                        n < size - at ? n : size - at, err);
}

/* A tensor that begins inside a page is at most one block, or a layer's small tensors: it is checked when
 * it is complete. */
static tern_status check_short(const unit *u, const unit_op *op, tern_error *err) {
    const tn_pkg *pkg = u->l->m->pkg;
    uint64_t size = op->r ? op->r->size_bytes : tn_pkg_small_bytes(pkg, u->section);
    return tn_pkg_check(pkg, u->section, op->r, 0, (const char *)op->read.dst + op->phase, size, err);
}

/* Queues the reads of every unit whose memory is free. The caller holds mu. */
static void pump(tn_loader *l) {
    while (l->aio && l->n_submitted < l->n_units && l->graph_units[l->n_submitted].after < l->n_prefix) {
        unit *u = &l->units[l->n_submitted++];
        u->submitted = true;
        for (int32_t i = 0; i < u->n_ops; i++) tn_aio_submit(l->aio, &u->ops[i].read, false);
    }
}

static tern_status remember(tn_loader *l, tern_status st, const tern_error *error, tern_error *err) {
    if (st == TERN_OK) return st;
    pthread_mutex_lock(&l->mu);
    if (l->status == TERN_OK) {
        l->status = st;
        l->error = *error;
    }
    if (err) *err = l->error;
    st = l->status;
    pthread_mutex_unlock(&l->mu);
    return st;
}

static tern_status failed_before(tn_loader *l, tern_error *err) {
    pthread_mutex_lock(&l->mu);
    tern_status st = l->status;
    if (st != TERN_OK && err) *err = l->error;
    pthread_mutex_unlock(&l->mu);
    return st;
}

static bool is_loaded(const unit *u) { return atomic_load_explicit(&u->loaded, memory_order_acquire); }

/* Widths of the head's channels, known since the package was opened. */
static tern_status head_weightlets(const unit *u, unit_op *op, tern_error *err) {
    const tn_npu_model *m = u->l->m;
    const section_view v = tn_section_view(m, -1);
    size_t n = (size_t)op->r->n;
    op->bits = tn_section_payload(&v, op->role, TN_PKG_CHANNEL_BITS, tn_channel_bits_bytes(n), -1, err);
    if (!op->bits) return TERN_E_FORMAT;
    uint64_t want = tn_weightlets_bytes(op->bits, 0, n, (size_t)op->r->k);
    TN_FAIL_IF(tn_pkg_plain_bytes(op->r) != want, err, TERN_E_FORMAT,
               "the packed weights of %s have %" PRIu64 " bytes, their widths need %" PRIu64,
               tn_role_name(op->role), tn_pkg_plain_bytes(op->r), want);
    return TERN_OK;
}

/* The widths of its channels came with the layer's small tensors. */
static tern_status find_weightlets(unit *u, tern_error *err) {
    const tn_npu_model *m = u->l->m;
    size_t n;
    const tn_pkg_record *records = tn_pkg_records(m->pkg, u->section, &n), *w;
    for (int32_t i = 0; i < u->n_ops; i++) {
        unit_op *op = &u->ops[i];
        if (op->r->part != TN_PKG_WEIGHTLETS) continue;
        if (u->layer < 0) TN_TRY(head_weightlets(u, op, err)); /* its widths come before the layers */
        else
            TN_TRY(tn_pkg_weightlets(records, n, m->small[u->layer + 1], (uint32_t)op->role, op->r->n,
                                     op->r->k, &op->bits, &w, err));
        if (!tn_pkg_is_coded(op->r) || op->coded) continue;
        const section_view v = tn_section_view(m, u->layer);
        TN_TRY(tn_coded_open(m->ctx, v.records, v.n, v.base, op->r, op->bits, &op->coded, err));
    }
    return TERN_OK;
}

static tern_status read_unit(unit *u, tern_error *err) {
    tn_loader *l = u->l;
    tn_npu_model *m = l->m;
    tern_status st = TERN_OK;
    for (int32_t i = 0; i < u->n_ops; i++) {
        unit_op *op = &u->ops[i];
        if (l->aio) {
            tern_error one;
            tern_status rc = tn_aio_wait(l->aio, &op->read,
                                         &one); /* waits for all, so that none is in flight after a failure */
            if (rc == TERN_OK && op->phase) rc = check_short(u, op, &one);
            if (rc != TERN_OK && st == TERN_OK) {
                st = rc;
                if (err) *err = one;
            }
        } else if (!op->r) {
            uint64_t n = tn_pkg_small_bytes(m->pkg, u->section);
            if (n)
                st = tn_pkg_check(m->pkg, u->section, NULL, 0, l->map->data + u->section->off_bytes, n, err);
        } else if (op->packed &&
                   st == TERN_OK) { /* data used in place is not checked, since that would read all of it */
            st = tn_pkg_check(m->pkg, u->section, op->r, 0, op->packed, op->r->size_bytes, err);
        }
    }
    /* later sites may be loaded before this unit, and need these */
    if (st == TERN_OK && u->kind == TN_UNIT_SMALL) st = tn_sites_read_rows(m, u->layer, err);
    if (st == TERN_OK && (u->site || u->kind == TN_UNIT_EMBD)) st = find_weightlets(u, err);
    return st;
}

static tern_status rows_wait(tn_loader *l, tern_error *err);

tern_status tn_loader_read(tn_loader *l, int32_t i, tern_error *err) {
    unit *u = &l->units[i];
    TN_TRY(failed_before(l, err));
    if (u->kind == TN_UNIT_SMALL && u->layer == 0)
        TN_TRY(rows_wait(l, err)); /* the first stage needs both, also in a run that resumes */
    if (is_loaded(u)) return TERN_OK;
    tern_error error = {0};
    return remember(l, read_unit(u, &error), &error, err);
}

static bool in_ring(const tn_loader *l, const tn_pkg_record *r) {
    return r && r->part == TN_PKG_WEIGHTLETS && (tn_pkg_is_coded(r) || !tn_npu_stays_packed(l->m, r));
}

/* Counts the bytes that pass through the ring. */
static uint64_t packed_bytes(const unit *u) {
    uint64_t n = 0;
    for (int32_t i = 0; i < u->n_ops; i++) n += in_ring(u->l, u->ops[i].r) ? u->ops[i].read.n_bytes : 0;
    return n;
}

/* ---- unpacking and loading --------------------------------------------------------------------------- */

/* Channels n0..n1-1 of a linear to the device's tiles. */
static void to_tiles(tn_loader *l, const unit_op *op, const uint8_t *packed, int64_t n0, int64_t n1) {
    const int64_t k = op->r->k;
    if (tn_npu_unpack(l->m->dev, packed, op->bits, n0, n1, k, op->tiles))
        atomic_fetch_add_explicit(&l->n_by_device, (n1 - n0) * k, memory_order_relaxed);
    else
        tn_weightlets_unpack(l->m->kern->unpack_tile, packed, op->bits, (size_t)n0, (size_t)n1, (size_t)k,
                             op->tiles);
}

/* The same from streams: to weightlets that stay, or through temporary ones to tiles. */
static tern_status from_streams(tn_loader *l, const unit_op *op, int64_t n0, int64_t n1, tern_error *err) {
    const tn_npu_model *m = l->m;
    const size_t k = (size_t)op->r->k;
    uint8_t *stays = (uint8_t *)op->tiles + tn_weightlets_bytes(op->bits, 0, (size_t)n0, k);
    if (tn_npu_stays_packed(m, op->r))
        return tn_coded_decode(op->coded, m->kern, op->packed, n0, n1, stays, err);
    uint8_t *some =
        tn_alloc(m->ctx, TN_MEM_OTHER, tn_weightlets_bytes(op->bits, (size_t)n0, (size_t)n1, k), 1);
    TN_FAIL_IF(!some, err, TERN_E_MEMORY, "no memory to decode weights");
    const tern_status st = tn_coded_decode(op->coded, m->kern, op->packed, n0, n1, some, err);
    if (st == TERN_OK) to_tiles(l, op, some, n0, n1);
    tn_free(m->ctx, some);
    return st;
}

tern_status tn_loader_unpack(tn_loader *l, int32_t i, int32_t part, tern_error *err) {
    unit *u = &l->units[i];
    if (is_loaded(u)) return TERN_OK;
    int64_t t0 = tn_now_ns();
    int32_t o = 0;
    while (o + 1 < u->n_ops && part >= u->ops[o + 1].part0) o++;
    const unit_op *op = &u->ops[o];
    if (!op->packed) return TERN_OK;
    const int64_t n = op->r->n, n0 = (int64_t)(part - op->part0) * CHANNELS_PER_PART,
                  n1 = n0 + CHANNELS_PER_PART < n ? n0 + CHANNELS_PER_PART : n;
    if (n0 >= n) return TERN_OK;
    tern_error error = {0};
    if (op->coded) TN_TRY(remember(l, from_streams(l, op, n0, n1, &error), &error, err));
    else to_tiles(l, op, op->packed + tn_weightlets_bytes(op->bits, 0, (size_t)n0, (size_t)op->r->k), n0, n1);
    atomic_fetch_add_explicit(&l->unpack_ns, tn_now_ns() - t0, memory_order_relaxed);
    return TERN_OK;
}

static tern_status load_unit(unit *u, tern_error *err) {
    switch (u->kind) {
    case TN_UNIT_SMALL: return tn_npu_model_small_ready(u->l->m, u->layer, err);
    case TN_UNIT_SITE:
    case TN_UNIT_HEAD: return tn_npu_model_site_ready(u->l->m, u->site, err);
    case TN_UNIT_NEXT: return tn_package_next_ready(u->l->m, err);
    default: return TERN_OK;
    }
}

tern_status tn_loader_load(tn_loader *l, int32_t i, tern_error *err) {
    unit *u = &l->units[i];
    if (is_loaded(u)) return TERN_OK;
    TN_TRY(failed_before(l, err)); /* in unpacking */
    int64_t t0 = tn_now_ns();
    tern_error error = {0};
    TN_TRY(remember(l, load_unit(u, &error), &error, err));
    int64_t now = tn_now_ns();
    atomic_fetch_add_explicit(&l->load_ns, now - t0, memory_order_relaxed);
    for (int32_t o = 0; o < u->n_ops; o++) tn_coded_close(l->m->ctx, &u->ops[o].coded);
    pthread_mutex_lock(&l->mu);
    atomic_store_explicit(&u->loaded, true, memory_order_release);
    if (u->kind == TN_UNIT_SITE && !l->any_site && l->aio) {
        tn_aio_stats s;
        tn_aio_stats_get(l->aio, &s);
        l->n_first_bytes = s.n_bytes;
        l->any_site = true;
    }
    while (l->n_prefix < l->n_units && is_loaded(&l->units[l->n_prefix])) l->n_prefix++;
    pump(l);
    bool last = l->n_prefix == l->n_units;
    uint8_t *ring = NULL;
    if (l->ring_block && packed_bytes(u) &&
        --l->n_in_ring == 0) { /* before the head is complete: the two are never both in memory */
        ring = l->ring_block;
        l->ring_block = NULL;
    }
    pthread_mutex_unlock(&l->mu);
    tn_free(l->m->ctx, ring);
    if (last) {
        atomic_store_explicit(&l->done_ns, now - l->open_ns, memory_order_relaxed);
        atomic_store_explicit(&l->done, true, memory_order_release);
    }
    return TERN_OK;
}

typedef struct pool_unpack {
    tn_loader *l;
    int32_t unit;
} pool_unpack;

static void unpack_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const pool_unpack *p = arg;
    (void)tn_loader_unpack(p->l, p->unit, i_item, NULL); /* loading tells */
}

tern_status tn_loader_finish(tn_loader *l, tn_pool *pool, int32_t layer, tern_error *err) {
    bool phases = l->mode == TN_LOAD_SEQUENTIAL;
    TN_TRY(rows_wait(l, err));
    for (int phase = 0; phase < (phases ? TN_N_LOAD_STEPS : 1); phase++) {
        for (int32_t u = 0; u < l->n_units && l->graph_units[u].layer <= layer; u++) {
            if (is_loaded(&l->units[u])) continue;
            if (!phases || phase == TN_LD_READ) TN_TRY(tn_loader_read(l, u, err));
            pool_unpack p = {l, u};
            if ((!phases || phase == TN_LD_UNPACK) && l->units[u].n_parts > 1)
                tn_pool_for(pool, l->units[u].n_parts, unpack_item, &p);
            else if (!phases || phase == TN_LD_UNPACK) unpack_item(&p, 0, 0);
            if (!phases || phase == TN_LD_LOAD) {
                TN_TRY(tn_loader_load(l, u, err));
                TN_FAIL_IF(!tn_progress(l->m->ctx, "load", (u + 1.0) / l->n_units), err, TERN_E_CANCELLED,
                           "loading was cancelled");
            }
        }
    }
    return TERN_OK;
}

/* ---- rows of the embedding --------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Tokens whose rows are read together. */
static int32_t row_tokens(const tn_loader *l) {
    return l->embd_coded ? (int32_t)tn_coded_channels(l->embd_coded) : l->m->layout->tile_n;
}

static tern_status check_row_tile(void *user, const tn_aio_read *r, uint64_t at, uint64_t n,
                                  tern_error *err) {
    const tn_loader *l = user;
    size_t i = (size_t)(r - l->row_reads);
    int32_t tile_n = row_tokens(l);
    if (at + n < r->n_bytes) return TERN_OK; /* pieces come in any order, but a tile is one piece */
    TN_FAIL_IF(XXH32(r->dst, r->n_bytes, 0) != l->tile_hash[l->row_tile[i]], err, TERN_E_FORMAT,
               "%s: the embedding of tokens %d to %d, at offset %" PRIu64 ", is damaged (checksum differs)",
               tn_pkg_path(l->m->pkg), l->row_tile[i] * tile_n, l->row_tile[i] * tile_n + tile_n - 1,
               r->off_bytes);
    return TERN_OK;
}

static void drop_rows(tn_loader *l) {
    for (int32_t i = 0; i < l->n_rows; i++) (void)tn_aio_wait(l->aio, &l->row_reads[i], NULL);
    l->n_rows = 0;
    tn_free(l->m->ctx, l->row_tile);
    tn_free(l->m->ctx, l->row_data);
    tn_free(l->m->ctx, l->row_reads);
    tn_free(l->m->ctx, l->row_at);
    l->row_tile = NULL;
    l->row_data = NULL;
    l->row_reads = NULL;
    l->row_at = NULL;
}

/* Bytes of the rows of these tokens when they are decoded. */
static uint64_t decoded_bytes(const tn_loader *l, int32_t first) {
    const int64_t end = first + row_tokens(l) < l->embd->n ? first + row_tokens(l) : l->embd->n;
    return l->embd_coded
               ? tn_weightlets_bytes(l->m->embd_bits, (size_t)first, (size_t)end, (size_t)l->embd->k)
               : 0;
}

tern_status tn_loader_rows_begin(tn_loader *l, const int32_t *ids, int32_t n, tern_error *err) {
    drop_rows(l);
    if (!n || !l->aio || is_loaded(&l->units[l->embd_unit])) return TERN_OK;
    tn_ctx *ctx = l->m->ctx;
    l->row_tile = tn_alloc(ctx, TN_MEM_OTHER, (size_t)n, sizeof *l->row_tile);
    TN_FAIL_IF(!l->row_tile, err, TERN_E_MEMORY, "no memory for the embedding of %d tokens", n);
    for (int32_t i = 0; i < n; i++)
        l->row_tile[i] = ids[i] < l->embd->n ? ids[i] / row_tokens(l) : 0; /* others are extra rows */
    qsort(l->row_tile, (size_t)n, sizeof *l->row_tile, ascending);
    int32_t n_tiles = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!i || l->row_tile[i] != l->row_tile[i - 1]) l->row_tile[n_tiles++] = l->row_tile[i];
    }
    const uint64_t *off = l->embd_coded ? tn_coded_offsets(l->embd_coded) : l->m->embd_off;
    uint64_t n_bytes = 0;
    for (int32_t i = 0; i < n_tiles; i++)
        n_bytes +=
            off[l->row_tile[i] + 1] - off[l->row_tile[i]] + decoded_bytes(l, l->row_tile[i] * row_tokens(l));
    l->row_data = tn_alloc(ctx, TN_MEM_OTHER, n_bytes + TN_AIO_ALIGN, 1);
    l->row_reads = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_tiles, sizeof *l->row_reads);
    l->row_at = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_tiles, sizeof *l->row_at);
    TN_FAIL_IF(!l->row_data || !l->row_reads || !l->row_at, err, TERN_E_MEMORY,
               "no memory for the embedding of %d tokens", n);
    int8_t *at = (int8_t *)aligned((uintptr_t)l->row_data);
    for (int32_t i = 0; i < n_tiles; i++) {
        uint64_t from = off[l->row_tile[i]], size = off[l->row_tile[i] + 1] - from;
        l->row_reads[i] = (tn_aio_read){.off_bytes = l->embd_section->off_bytes + l->embd->off_bytes + from,
                                        .n_bytes = size,
                                        .dst = at,
                                        .check = check_row_tile,
                                        .user = l};
        if (!l->embd_coded) l->row_at[i] = at;
        tn_aio_submit(l->aio, &l->row_reads[i], true);
        at += size + decoded_bytes(l, l->row_tile[i] * row_tokens(l)); /* after their streams */
    }
    l->n_rows = n_tiles;
    return TERN_OK;
}

static tern_status decode_row(const tn_loader *l, int32_t i, tern_error *err) {
    const tn_aio_read *r = &l->row_reads[i];
    uint8_t *dst = (uint8_t *)r->dst + r->n_bytes;
    const int64_t each = row_tokens(l), n0 = l->row_tile[i] * each,
                  n1 = n0 + each < l->embd->n ? n0 + each : l->embd->n;
    const uint8_t *whole = (const uint8_t *)r->dst - tn_coded_offsets(l->embd_coded)[l->row_tile[i]];
    TN_TRY(tn_coded_decode(l->embd_coded, l->m->kern, whole, n0, n1, dst, err));
    l->row_at[i] = (const int8_t *)dst;
    return TERN_OK;
}

static tern_status rows_wait(tn_loader *l, tern_error *err) {
    tern_error error = {0};
    for (int32_t i = 0; i < l->n_rows; i++) {
        TN_TRY(remember(l, tn_aio_wait(l->aio, &l->row_reads[i], &error), &error, err));
        if (!l->row_at[i]) TN_TRY(remember(l, decode_row(l, i, &error), &error, err));
    }
    return TERN_OK;
}

const int8_t *tn_loader_row_tile(const tn_loader *l, int32_t id, bool *packed) {
    const tn_npu_model *m = l->m;
    int32_t tile = id / l->m->layout->tile_n;
    if (!is_loaded(&l->units[l->embd_unit]) &&
        l->n_rows) { /* in this order: once it is loaded, rows belong to the loading thread */
        const int32_t first = id / row_tokens(l),
                      *found = bsearch(&first, l->row_tile, (size_t)l->n_rows, sizeof first, ascending);
        assert(found);
        *packed = m->embd_bits != NULL;
        const int8_t *at = l->row_at[found - l->row_tile];
        return l->embd_coded
                   ? at + tn_weightlets_bytes(m->embd_bits, (size_t)(first * row_tokens(l)),
                                              (size_t)(tile * m->layout->tile_n), (size_t)l->embd->k)
                   : at;
    }
    *packed = m->embd_packed;
    return m->embd_weights +
           (m->embd_packed ? m->embd_off[tile]
                           : (uint64_t)tile * tn_npu_tiles_bytes(m->layout, m->layout->tile_n, l->embd->k));
}

/* ---- life -------------------------------------------------------------------------------------------- */

/* Assigns memory in the ring, in order. A unit may reuse that of earlier ones. */
static tern_status place_in_ring(tn_loader *l, uint64_t ring_bytes, tern_error *err) {
    uint64_t most = 0, of_layers = 0, total = 0, size;
    for (int32_t i = 0; i < l->n_units; i++) {
        uint64_t n = packed_bytes(&l->units[i]);
        most = n > most ? n : most;
        if (l->units[i].layer >= 0 && n > of_layers) of_layers = n;
        total += n;
    }
    size = 3 * of_layers > RING_BYTES ? 3 * of_layers : RING_BYTES;
    if (size < most) size = most; /* the output layer, which is read last */
    if (ring_bytes) size = ring_bytes > most ? aligned(ring_bytes) : most;
    if (l->mode == TN_LOAD_SEQUENTIAL || total < size) size = total;
    if (!total) return TERN_OK;
    l->ring_block = tn_alloc(l->m->ctx, TN_MEM_WEIGHTS, size + TN_AIO_ALIGN, 1);
    TN_FAIL_IF(!l->ring_block, err, TERN_E_MEMORY, "no memory for %" PRIu64 " bytes of packed weights", size);
    l->ring = (uint8_t *)aligned((uintptr_t)l->ring_block);
    uint64_t *off = tn_calloc(l->m->ctx, TN_MEM_OTHER, 2 * (size_t)l->n_units, sizeof *off),
             *end = off + l->n_units, at = 0;
    TN_FAIL_IF(!off, err, TERN_E_MEMORY, "no memory to plan the reading");
    int32_t oldest = 0;
    for (int32_t i = 0; i < l->n_units; i++) {
        unit *u = &l->units[i];
        uint64_t n = packed_bytes(u);
        l->graph_units[i].after = oldest - 1;
        if (!n) continue;
        l->n_in_ring++;
        if (n > size - at) at = 0;
        off[i] = at;
        end[i] = at + n;
        for (int32_t v = oldest; v < i; v++) {
            if (off[v] < end[i] && off[i] < end[v]) oldest = v + 1;
        }
        l->graph_units[i].after = oldest - 1;
        for (int32_t o = 0; o < u->n_ops; o++) {
            if (!in_ring(l, u->ops[o].r)) continue;
            u->ops[o].packed = l->ring + at + u->ops[o].phase;
            u->ops[o].read.dst = l->ring + at;
            at += u->ops[o].read.n_bytes;
        }
    }
    tn_free(l->m->ctx, off);
    return TERN_OK;
}

static unit *add_unit(tn_loader *l, tn_unit_kind kind, int32_t layer, tn_npu_site *site,
                      const tn_pkg_section *section) {
    unit *u = &l->units[l->n_units];
    u->l = l;
    u->kind = kind;
    u->layer = layer;
    u->site = site;
    u->section = section;
    u->n_parts = 1;
    l->graph_units[l->n_units++] = (tn_prefill_unit){.layer = layer >= 0 ? layer : l->m->n_layers,
                                                     .weights = site ? (int32_t)site->kind : TN_NO_WEIGHTS,
                                                     .after = -1};
    return u;
}

/* The pages of the file that n bytes at off lie on. */
static tn_aio_read pages_of(unit *u, const unit_op *op, uint64_t off, uint64_t n) {
    return (tn_aio_read){.off_bytes = off - op->phase,
                         .n_bytes = aligned(op->phase + n),
                         .check = op->phase ? NULL : check_piece,
                         .user = u};
}

/* All small tensors of a section, and their place in the model. */
static void add_small(tn_loader *l, tn_unit_kind kind, int32_t layer, const tn_pkg_section *s, char *place) {
    unit *u = add_unit(l, kind, layer, NULL, s);
    u->n_ops = tn_pkg_small_bytes(l->m->pkg, s) > 0;
    u->ops[0].phase = tn_file_phase(s, NULL);
    u->ops[0].read = pages_of(u, &u->ops[0], s->off_bytes, tn_pkg_small_bytes(l->m->pkg, s));
    u->ops[0].read.dst = place - u->ops[0].phase;
}

/* Adds one linear of a unit, and its place in the model. */
static void add_op(unit *u, tn_role role, const tn_pkg_record *r, void *place, int64_t n) {
    unit_op *op = &u->ops[u->n_ops++];
    bool unpacked = in_ring(u->l, r);
    *op = (unit_op){.r = r, .role = role, .tiles = place, .part0 = u->n_ops > 1 ? u->n_parts : 0};
    op->phase = tn_file_phase(u->section, r);
    op->read = pages_of(u, op, u->section->off_bytes + r->off_bytes, r->size_bytes);
    op->read.dst = unpacked ? NULL : (int8_t *)place - op->phase;
    if (u->l->map && unpacked) op->packed = u->l->map->data + u->section->off_bytes + r->off_bytes;
    if (u->n_ops == 1) u->n_parts = 0;
    u->n_parts += unpacked ? (int32_t)((n + CHANNELS_PER_PART - 1) / CHANNELS_PER_PART) : 0;
}

static void add_site(tn_loader *l, tn_npu_site *s) {
    int32_t layer = s->layer;
    const tn_pkg_section *section = tn_pkg_find(l->m->pkg, layer < 0 ? TN_PKG_LM_HEAD : TN_PKG_LAYER, layer);
    unit *u = add_unit(l, layer < 0 ? TN_UNIT_HEAD : TN_UNIT_SITE, layer, s, section);
    for (int32_t i = 0; i < s->ops.n_ops && !tn_npu_on_demand(l->m, s); i++)
        add_op(u, s->ops.roles[i], s->tiles[i],
               s->image[i].tiles ? (void *)s->image[i].tiles : (void *)(uintptr_t)s->image[i].packed,
               s->ops.n[i]);
    if (u->n_parts < 1) u->n_parts = 1;
}

static tern_status add_embedding(tn_loader *l, tern_error *err) {
    tn_npu_model *m = l->m;
    const section_view v = tn_section_view(m, -1);
    size_t n;
    l->embd_section = tn_pkg_find(m->pkg, TN_PKG_LM_HEAD, -1);
    const tn_pkg_record *records = tn_pkg_records(m->pkg, l->embd_section, &n);
    l->embd = tn_pkg_record_find(records, n, TN_W_EMBD, m->embd_bits ? TN_PKG_WEIGHTLETS : TN_PKG_TILES);
    l->tile_hash = m->embd_tile_hash;
    const tn_npu_site *head = tn_npu_site_at(m, 0, TN_SITE_LM_HEAD);
    l->embd_unit = l->n_units - 1; /* tied: the head's */
    if (tn_pkg_is_coded(l->embd))
        TN_TRY(tn_coded_open(m->ctx, v.records, v.n, v.base, l->embd, m->embd_bits, &l->embd_coded, err));
    if (head->ops.roles[0] == TN_W_EMBD) return TERN_OK;
    unit *u = add_unit(l, TN_UNIT_EMBD, -1, NULL, l->embd_section);
    add_op(u, TN_W_EMBD, l->embd, (int8_t *)m->embd_weights, l->embd->n);
    if (u->n_parts < 1) u->n_parts = 1;
    l->embd_unit = l->n_units - 1;
    return TERN_OK;
}

tern_status tn_loader_open(tn_npu_model *m, const char *path, const tn_npu_model_options *opt,
                           tn_loader **out, tern_error *err) {
    *out = NULL;
    tn_loader *l = tn_calloc(m->ctx, TN_MEM_OTHER, 1, sizeof *l);
    TN_FAIL_IF(!l, err, TERN_E_MEMORY, "no memory for a loader");
    l->m = m;
    l->mode = opt->load;
    l->open_ns = tn_now_ns();
    l->map = m->map;
    pthread_mutex_init(&l->run_mu, NULL);
    pthread_mutex_init(&l->mu, NULL);
    size_t cap = (size_t)(m->n_layers + m->n_sites) + 2;
    tern_status st = TERN_OK;
    l->units = tn_calloc(m->ctx, TN_MEM_OTHER, cap, sizeof *l->units);
    l->graph_units = tn_calloc(m->ctx, TN_MEM_OTHER, cap, sizeof *l->graph_units);
    TN_BAIL_IF(!l->units || !l->graph_units, err, TERN_E_MEMORY, "no memory for a loader");
    for (int32_t layer = 0; layer < m->n_layers; layer++) {
        add_small(l, TN_UNIT_SMALL, layer, tn_pkg_find(m->pkg, TN_PKG_LAYER, layer), m->small[layer + 1]);
        for (int32_t i = 0; i < m->n_sites; i++)
            if (m->sites[i].layer == layer) add_site(l, &m->sites[i]);
    }
    add_site(l, tn_npu_site_at(m, 0, TN_SITE_LM_HEAD));
    if ((st = add_embedding(l, err)) != TERN_OK) goto out;
    if (m->next) add_small(l, TN_UNIT_NEXT, -1, tn_pkg_find(m->pkg, TN_PKG_NEXT, -1), m->next);
    if (!l->map) {
        if ((st = place_in_ring(l, opt->ring_bytes, err)) != TERN_OK) goto out;
        if ((st = tn_aio_open_fd(m->ctx, tn_pkg_fd(m->pkg), path, &opt->io, &l->aio, err)) != TERN_OK)
            goto out;
    }
    pthread_mutex_lock(&l->mu);
    pump(l);
    pthread_mutex_unlock(&l->mu);
    *out = l;
    return TERN_OK;
out:
    tn_loader_close(&l);
    return st;
}

void tn_loader_close(tn_loader **pl) {
    tn_loader *l = *pl;
    if (!l) return;
    *pl = NULL;
    tn_ctx *ctx = l->m->ctx;
    tn_aio_close(&l->aio); /* nothing writes to the buffers now */
    tn_free(ctx, l->row_tile);
    tn_free(ctx, l->row_data);
    tn_free(ctx, l->row_reads);
    tn_free(ctx, l->row_at);
    tn_coded_close(ctx, &l->embd_coded);
    for (int32_t i = 0; l->units && i < l->n_units; i++)
        for (int32_t o = 0; o < l->units[i].n_ops; o++) tn_coded_close(ctx, &l->units[i].ops[o].coded);
    tn_free(ctx, l->ring_block);
    tn_free(ctx, l->units);
    tn_free(ctx, l->graph_units);
    pthread_mutex_destroy(&l->mu);
    pthread_mutex_destroy(&l->run_mu);
    tn_free(ctx, l);
}

bool tn_loader_done(const tn_loader *l) { return atomic_load_explicit(&l->done, memory_order_acquire); }
bool tn_loader_is_broken(tn_loader *l) {
    tern_status st = failed_before(l, NULL);
    return st == TERN_E_MEMORY || st == TERN_E_IO;
}
void tn_loader_lock(tn_loader *l) { pthread_mutex_lock(&l->run_mu); }
void tn_loader_unlock(tn_loader *l) { pthread_mutex_unlock(&l->run_mu); }
int32_t tn_loader_n_units(const tn_loader *l) { return l->n_units; }
const tn_prefill_unit *tn_loader_units(const tn_loader *l) { return l->graph_units; }
uint64_t tn_loader_unit_bytes(const tn_loader *l, int32_t unit) {
    uint64_t n = 0;
    for (int32_t i = 0; i < l->units[unit].n_ops; i++) n += l->units[unit].ops[i].read.n_bytes;
    return n;
}
int32_t tn_loader_n_parts(const tn_loader *l, int32_t unit) { return l->units[unit].n_parts; }

void tn_loader_stats_get(tn_loader *l, tn_loader_stats *out) {
    *out = (tn_loader_stats){.unpack_ns = atomic_load_explicit(&l->unpack_ns, memory_order_relaxed),
                             .load_ns = atomic_load_explicit(&l->load_ns, memory_order_relaxed),
                             .done_ns = atomic_load_explicit(&l->done_ns, memory_order_relaxed),
                             .n_unpacked_by_device =
                                 (uint64_t)atomic_load_explicit(&l->n_by_device, memory_order_relaxed),
                             .method = l->aio ? tn_aio_method(l->aio) : "mmap"};
    if (!l->aio) return;
    tn_aio_stats s;
    tn_aio_stats_get(l->aio, &s);
    out->n_read_bytes = s.n_bytes;
    out->read_ns = s.busy_ns;
    pthread_mutex_lock(&l->mu);
    out->n_first_bytes = l->n_first_bytes;
    pthread_mutex_unlock(&l->mu);
}
