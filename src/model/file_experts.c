#include "model/file_experts.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/heat.h"
#include "base/status.h"
#include "model/blocks.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { HALF_TOKENS = 64, NO_SLOT = -1 };

typedef struct unit {
    int32_t slot; /* NO_SLOT: it is not in memory */
    double
        heat; /* log2 of its uses, each counted 2^(its time / the time in which uses halve); 0: only in a pass */
    uint64_t came;  /* when it was read */
    uint64_t taken; /* the take that wants it */
    bool told;      /* the system was told of it by a guess */
} unit;

struct tn_file_experts {
    tn_model *m;
    tn_pool *pool;
    tn_source *src;
    int fd;
    uint8_t *room; /* [n_slots][slot_bytes] */
    uint64_t slot_bytes, all_bytes;
    int32_t n_slots, n_units;
    int32_t *unit_in; /* [n_slots]; -1: free */
    unit *units;      /* [n_layers][n_experts] */
    pthread_mutex_t mu;
    uint64_t clock, n_takes, n_uses;
    double half_uses; /* uses of HALF_TOKENS tokens */
    tn_file_experts_stats stats;
    int32_t guessed_layer, corrected_layer; /* -1: none */
    bool guessed[TN_MAX_EXPERTS];
    float guess[TN_MAX_EXPERTS]; /* its scores, not corrected */
    float *drift;                /* [n_layers][n_experts] mean difference of scores */
    atomic_int status;           /* release: error was written before it */
    tern_error error;
};

static tn_role role_of(int i) { return tn_expert_linears[i].role; }

/* Bytes of an expert of a layer as tiles. 0: the layer has no experts. can: they are all in blocks. */
static uint64_t unit_bytes(const tn_source *src, int layer, bool *can) {
    const tn_hparams *h = tn_source_hparams(src);
    uint64_t n = 0;
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++) {
        int64_t rows, cols;
        if (!tn_source_has(src, layer, role_of(i))) continue;
        tn_role_shape(h, layer, role_of(i), &rows, &cols);
        const size_t one = tn_blocks_linear_room(src, layer, role_of(i), rows / h->n_experts, cols);
        if (!one) *can = false;
        n += one;
    }
    return n;
}

void tn_file_experts_need_of(const tn_source *src, tn_experts_need *out) {
    const tn_hparams *h = tn_source_hparams(src);
    *out = (tn_experts_need){.can = h->n_experts > 0 && tn_source_file(src)};
    uint64_t most = 0;
    for (int layer = 0; layer < h->n_layers && h->n_experts; layer++) {
        const uint64_t one = unit_bytes(src, layer, &out->can);
        most = one > most ? one : most;
        out->all_bytes += one * (uint64_t)h->n_experts;
    }
    out->least_bytes = 2 * most * (uint64_t)h->n_experts_used;
    if (!out->all_bytes) out->can = false;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static tern_status take_memory(tn_file_experts *x, uint64_t budget_bytes, tern_error *err) {
    const tn_hparams *h = &x->m->h;
    tn_ctx *ctx = x->m->ctx;
    tn_experts_need need;
    tn_file_experts_need_of(x->src, &need);
    x->all_bytes = need.all_bytes;
    x->slot_bytes = need.least_bytes / (2 * (uint64_t)h->n_experts_used); /* of the largest unit */
    x->n_units = h->n_layers * h->n_experts;
    const uint64_t fit = x->slot_bytes ? budget_bytes / x->slot_bytes : 0;
    x->n_slots = fit < (uint64_t)x->n_units ? (int32_t)fit : x->n_units;
    TN_FAIL_IF(!need.can || x->n_slots < h->n_experts_used, err, TERN_E_LIMIT,
               "%" PRIu64 " bytes for experts hold %d of %" PRIu64 " bytes, want %d", budget_bytes,
               x->n_slots, x->slot_bytes, h->n_experts_used);
    x->room = tn_alloc(ctx, TN_MEM_WEIGHTS, (size_t)x->n_slots, x->slot_bytes);
    x->unit_in = tn_alloc(ctx, TN_MEM_OTHER, (size_t)x->n_slots, sizeof *x->unit_in);
    x->units = tn_calloc(ctx, TN_MEM_OTHER, (size_t)x->n_units, sizeof *x->units);
    x->drift = tn_calloc(ctx, TN_MEM_OTHER, (size_t)x->n_units, sizeof *x->drift);
    TN_FAIL_IF(!x->room || !x->unit_in || !x->units || !x->drift, err, TERN_E_MEMORY,
               "no memory for %d experts", x->n_slots);
    for (int32_t i = 0; i < x->n_slots; i++) x->unit_in[i] = -1;
    for (int32_t i = 0; i < x->n_units; i++) x->units[i].slot = NO_SLOT;
    return TERN_OK;
}

/* The file is opened again, because a mapping has no descriptor. */
static tern_status open_file(tn_file_experts *x, tern_error *err) {
    const tn_file *f = tn_source_file(x->src);
    struct stat sb;
    TN_FAIL_IF(!f, err, TERN_E_UNSUPPORTED, "experts are read on demand from files in one part");
    x->fd = tn_file_open_regular(f->path, &sb, err);
    if (x->fd < 0) return TERN_E_IO;
    TN_FAIL_IF(!tn_file_is(f, x->fd), err, TERN_E_IO,
               "%s: was replaced or written to while it was opened; try again", f->path);
    return TERN_OK;
}

tern_status tn_file_experts_open(tn_model *m, tn_pool *pool, tn_source **src, uint64_t budget_bytes,
                                 tern_error *err) {
    tn_file_experts *x = tn_calloc(m->ctx, TN_MEM_OTHER, 1, sizeof *x);
    TN_FAIL_IF(!x, err, TERN_E_MEMORY, "no memory to read experts");
    *x = (tn_file_experts){
        .m = m, .pool = pool, .src = *src, .fd = -1, .guessed_layer = -1, .corrected_layer = -1};
    pthread_mutex_init(&x->mu, NULL);
    *src = NULL;
    m->file_experts = x; /* which is closed with the model */
    TN_TRY(take_memory(x, budget_bytes, err));
    int32_t n_layers = 0;
    for (int32_t i = 0; i < m->h.n_layers; i++)
        n_layers += m->layers[i].experts[0] || m->layers[i].experts[1];
    x->half_uses = (double)HALF_TOKENS * n_layers * m->h.n_experts_used;
    return open_file(x, err);
}

void tn_file_experts_close(tn_file_experts **px) {
    tn_file_experts *x = *px;
    if (!x) return;
    *px = NULL;
    if (x->fd >= 0) close(x->fd);
    tn_source_close(&x->src);
    pthread_mutex_destroy(&x->mu);
    tn_free(x->m->ctx, x->room);
    tn_free(x->m->ctx, x->unit_in);
    tn_free(x->m->ctx, x->units);
    tn_free(x->m->ctx, x->drift);
    tn_free(x->m->ctx, x);
}

/* ---- use --------------------------------------------------------------------------------------------- */

void tn_file_experts_begin(tn_file_experts *x) { pthread_mutex_lock(&x->mu); }
void tn_file_experts_end(tn_file_experts *x) { pthread_mutex_unlock(&x->mu); }
int32_t tn_file_experts_most(const tn_file_experts *x) { return x->n_slots; }

/* Decides which of two units goes first; layer: the one at work. */
static bool gives_way(const tn_file_experts *x, const unit *a, const unit *b, int32_t layer) {
    const int32_t n = x->m->h.n_experts;
    if (!b) return true;
    const bool a_here = (a - x->units) / n == layer, b_here = (b - x->units) / n == layer;
    if (a_here != b_here) return b_here;
    if (!(a->heat > 0) && !(b->heat > 0)) return a->came > b->came;
    return a->heat < b->heat;
}

static int32_t free_slot(tn_file_experts *x, int32_t layer) {
    unit *out = NULL;
    for (int32_t i = 0; i < x->n_slots; i++) {
        if (x->unit_in[i] < 0) return i;
        unit *u = &x->units[x->unit_in[i]];
        if (u->taken != x->n_takes && gives_way(x, u, out, layer)) out = u;
    }
    const int32_t slot = out->slot; /* no more are taken at once than there are slots */
    out->slot = NO_SLOT;
    x->unit_in[slot] = -1;
    return slot;
}

/* Counts a use. */
static void warm(tn_file_experts *x, unit *u) {
    u->heat = tn_heat(u->heat, (double)++x->n_uses / x->half_uses);
}

/* The rows of an expert's linear as the file has them; *n_bytes 0: they do not lie together. */
static const uint8_t *part_of(const tn_file_experts *x, int32_t layer, int i, int32_t e, uint64_t *n_bytes) {
    const tn_linear *l = x->m->layers[layer].experts[i] ? &x->m->layers[layer].experts[i][e] : NULL;
    *n_bytes = 0;
    if (!l || !tn_source_rows_in_order(x->src, layer, role_of(i))) return NULL;
    const tn_tensor *t = tn_source_tensor(x->src, layer, role_of(i));
    *n_bytes = (uint64_t)l->n * tn_dtype_row_bytes(t->dtype, (uint64_t)l->k);
    return tn_source_row(x->src, layer, role_of(i), (int64_t)e * l->n);
}

/* Tells the system what will be read, or that it has been. */
static void advise(const tn_file_experts *x, int32_t layer, int32_t e, bool wanted) {
    const tn_file *f = tn_source_file(x->src);
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++) {
        uint64_t n_bytes;
        const uint8_t *p = part_of(x, layer, i, e, &n_bytes);
        if (!n_bytes) continue;
        if (wanted)
            (void)posix_fadvise(x->fd, (off_t)(p - f->data), (off_t)n_bytes,
                                POSIX_FADV_WILLNEED); /* a hint */
        else tn_file_release(p, n_bytes);
    }
}

static tern_status read_unit(tn_file_experts *x, int32_t layer, int32_t e, int32_t slot, tern_error *err) {
    const tn_file *f = tn_source_file(x->src);
    uint8_t *room = x->room + (uint64_t)slot * x->slot_bytes;
    tern_status st = TERN_OK;
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++) {
        tn_linear *l = x->m->layers[layer].experts[i] ? &x->m->layers[layer].experts[i][e] : NULL;
        if (l && st == TERN_OK)
            st = tn_blocks_load(x->m->ctx, x->pool, x->src, layer, role_of(i), (int64_t)e * l->n, &room, l,
                                err);
        if (l) x->stats.n_read_bytes += tn_blocks_bytes(l->blocks_type, (size_t)l->n, (size_t)l->k);
    }
    /* Bytes of two files would be no model, and are often no blocks: whatever was written, was written before this was
     * read. */
    TN_FAIL_IF(tn_file_was_written(f, x->fd) || tn_file_shrank(f), err, TERN_E_IO,
               "%s: was written to while it was in use; start again to read what it is now", f->path);
    advise(x, layer, e, false);
    return st;
}

static tern_status need(tn_file_experts *x, int32_t layer, int32_t e, tern_error *err) {
    unit *u = &x->units[layer * x->m->h.n_experts + e];
    if (u->slot != NO_SLOT) return TERN_OK;
    const int32_t slot = free_slot(x, layer);
    TN_TRY(read_unit(x, layer, e, slot, err));
    u->slot = slot;
    x->stats.n_ahead += u->told;
    u->told = false;
    u->came = ++x->clock;
    x->unit_in[slot] = (int32_t)(u - x->units);
    return TERN_OK;
}

/* ---- guesses ----------------------------------------------------------------------------------------- */

void tn_file_experts_foresee(tn_file_experts *x, int32_t layer, const bool *likely) {
    pthread_mutex_lock(&x->mu);
    unit *u = &x->units[layer * x->m->h.n_experts];
    x->guessed_layer = layer;
    for (int32_t e = 0; e < x->m->h.n_experts; e++) {
        x->guessed[e] = likely[e];
        u[e].told = likely[e] && u[e].slot == NO_SLOT;
        if (u[e].told) advise(x, layer, e, true);
    }
    pthread_mutex_unlock(&x->mu);
}

void tn_file_experts_correct(tn_file_experts *x, int32_t layer, float *scores) {
    const int32_t n = x->m->h.n_experts;
    pthread_mutex_lock(&x->mu);
    x->corrected_layer = layer;
    for (int32_t e = 0; e < n; e++) {
        x->guess[e] = scores[e];
        scores[e] += x->drift[layer * n + e];
    }
    pthread_mutex_unlock(&x->mu);
}

void tn_file_experts_learn(tn_file_experts *x, int32_t layer, const float *scores) {
    const float NEW = 0.05f; /* the last token has a weight of one twentieth */
    const int32_t n = x->m->h.n_experts;
    pthread_mutex_lock(&x->mu);
    for (int32_t e = 0; e < n && x->corrected_layer == layer; e++) {
        float *drift = &x->drift[layer * n + e];
        *drift += NEW * (scores[e] - x->guess[e] - *drift);
    }
    x->corrected_layer = -1;
    pthread_mutex_unlock(&x->mu);
}

/* Of the experts of a choice those that were guessed. */
static void count_guesses(tn_file_experts *x, int32_t layer, const int32_t *first, int32_t e0, int32_t e1) {
    for (int32_t e = e0; e < e1 && x->guessed_layer == layer; e++) {
        if (first[e + 1] == first[e]) continue;
        x->stats.n_predicted++;
        x->stats.n_right += x->guessed[e];
    }
}

bool tn_file_experts_take(tn_file_experts *x, int32_t layer, const int32_t *first, int32_t e0, int32_t e1,
                          bool pass, bool counts) {
    unit *u = &x->units[layer * x->m->h.n_experts];
    const int32_t n = x->m->h.n_experts, ahead = e1 + (e1 - e0) < n ? e1 + (e1 - e0) : n;
    bool reads = false;
    x->n_takes++;
    if (counts && !pass) count_guesses(x, layer, first, e0, e1);
    for (int32_t e = e0; e < ahead; e++) { /* as many again come next */
        if (first[e + 1] == first[e]) continue;
        if (e >= e1) {
            if (u[e].slot == NO_SLOT) advise(x, layer, e, true);
            continue;
        }
        u[e].taken = x->n_takes;
        x->stats.n_taken += counts;
        x->stats.n_hits += counts && u[e].slot != NO_SLOT;
        if (u[e].slot != NO_SLOT) continue;
        reads = true;
        advise(x, layer, e, true);
    }
    const int64_t t0 = reads ? tn_now_ns() : 0;
    tern_status st =
        (tern_status)atomic_load_explicit(&x->status, memory_order_relaxed); /* written under mu */
    for (int32_t e = e0; e < e1 && st == TERN_OK; e++) {
        if (first[e + 1] == first[e]) continue;
        st = need(x, layer, e, &x->error);
        if (st != TERN_OK) atomic_store_explicit(&x->status, (int)st, memory_order_release);
        else if (counts && !pass) warm(x, &u[e]);
    }
    if (reads) x->stats.wait_ns += tn_now_ns() - t0;
    return st == TERN_OK;
}

tern_status tn_file_experts_status(tn_file_experts *x, tern_error *err) {
    const tern_status st = (tern_status)atomic_load_explicit(&x->status, memory_order_acquire);
    if (st != TERN_OK && err) *err = x->error;
    return st;
}

uint64_t tn_file_experts_hash(const tn_file_experts *x, uint64_t seed) {
    for (int32_t layer = 0; layer < x->m->h.n_layers; layer++) {
        for (int i = 0; i < TN_N_EXPERT_LINEARS; i++) {
            const tn_tensor *t = tn_source_tensor(x->src, layer, role_of(i));
            if (!t) continue;
            seed = XXH64(t->data, t->size_bytes, seed);
            tn_file_release(t->data, t->size_bytes);
        }
    }
    return seed;
}

void tn_file_experts_stats_get(tn_file_experts *x, tn_file_experts_stats *out) {
    pthread_mutex_lock(&x->mu);
    *out = x->stats;
    pthread_mutex_unlock(&x->mu);
    out->n_slots = x->n_slots;
    out->n_units = x->n_units;
    out->slot_bytes = x->slot_bytes;
    out->all_bytes = x->all_bytes;
}
