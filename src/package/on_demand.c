#include "package/on_demand.h"

#include "base/clock.h"
#include "base/heat.h"
#include "base/status.h"
#include "package/impl.h"

#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

typedef enum unit_state {
    ABSENT,
    COMING, /* hinted at: its reads are queued, and no thread waits for them */
    TAKING, /* a thread waits for its reads and loads its graphs */
    READY
} unit_state;

enum {
    UNIT_SLOTS = 6,  /* reckoned per unit when the budget is divided */
    HALF_TOKENS = 64 /* after so many tokens a use counts half */
};

typedef struct unit {
    unit_state state;
    bool fresh; /* not taken since it was read */
    bool vain;  /* COMING but not chosen: evicted first, and not counted as coming */
    int32_t n_users;
    bool
        wanted; /* hinted at while it was resident, and not taken since: stays for that, however rarely it is used */
    uint64_t used; /* time it was last taken, or wanted; 0: only in a pass */
    double heat;   /* log2 of its uses, each counted 2^(its time / the time in which uses halve); 0: none */
    uint64_t came; /* when its reads began */
    int32_t i_site, expert;
    int32_t slot[TN_SITE_MAX_OPS];
} unit;

typedef struct slot { /* of a linear of a unit */
    tn_aio_read read;
    const unit *u;
    int32_t op;
} slot;
_Static_assert(offsetof(slot, read) == 0, "check_read finds the slot of a read");

typedef struct linear { /* of a site */
    const tn_pkg_section *section;
    const uint32_t *hash;
    uint64_t *off; /* [n_experts + 1] beginnings of the experts' parts in the record */
} linear;

struct tn_on_demand {
    tn_npu_model *m;
    tn_aio *aio;
    uint8_t *block, *bytes; /* of the slots */
    slot *slots;
    uint64_t slot_bytes;
    int32_t n_slots;
    int32_t *first_unit; /* [n_sites] of a site of experts */
    linear *linears;     /* [n_sites][TN_SITE_MAX_OPS] */
    unit *units;
    int32_t n_units;
    pthread_mutex_t mu; /* guards the following fields, and the units */
    pthread_cond_t changed;
    int32_t *free_slots, n_free;
    int32_t n_coming;
    uint64_t clock, n_uses;  /* takes but those of a pass */
    double half_uses;        /* takes of HALF_TOKENS tokens */
    int32_t predicted_layer; /* -1: none */
    bool predicted[TN_MAX_EXPERTS];
    int32_t corrected_layer;       /* -1: none */
    float guessed[TN_MAX_EXPERTS]; /* its scores, not corrected */
    float *drift;                  /* [n_layers][n_experts] mean difference of scores */
    tn_on_demand_stats stats;
};

static tern_status check_read(void *user, const tn_aio_read *r, uint64_t at, uint64_t n, tern_error *err) {
    const tn_on_demand *d = user;
    const slot *at_slot = (const slot *)r; /* its first field */
    const unit *u = at_slot->u;
    int32_t op = at_slot->op;
    TN_FAIL_IF(at || n != r->n_bytes, err, TERN_E_FORMAT, "a part of an expert came in pieces");
    const tn_npu_site *s = &d->m->sites[u->i_site];
    const linear *l = &d->linears[u->i_site * TN_SITE_MAX_OPS + op];
    TN_FAIL_IF(XXH32(r->dst, n, 0) != l->hash[u->expert], err, TERN_E_FORMAT,
               "%s: %s of expert %d in layer %d, at offset %" PRIu64 ", is damaged (checksum differs)",
               tn_pkg_path(d->m->pkg), tn_role_name(s->ops.roles[op]), u->expert, s->layer, r->off_bytes);
    return TERN_OK;
}

/* ---- slots ----------------------------------------------------------------------------------------- */

/* Unloads a unit's graphs and frees its slots. */
static void drop(tn_on_demand *d, unit *u) {
    const tn_npu_site *s = &d->m->sites[u->i_site];
    if (u->state == COMING) {
        for (int32_t i = 0; i < s->ops.n_ops; i++)
            (void)tn_aio_wait(d->aio, &d->slots[u->slot[i]].read, NULL);
        d->n_coming -= !u->vain;
    } else {
        tn_site_drop_expert(s, u->expert);
    }
    for (int32_t i = 0; i < s->ops.n_ops; i++) d->free_slots[d->n_free++] = u->slot[i];
    u->state = ABSENT;
    u->vain = u->wanted = false;
}

/* Decides which of two units is evicted first. What was used longest ago would be the wrong one: a token passes through the
 * layers in a circle, so that this is what comes next (docs/record/beyond.md). */
static bool gives_way(const unit *a, const unit *b) {
    if (!b) return true;
    if (!a->used != !b->used) return !a->used;
    if (!a->used) return a->came > b->came;
    if (a->wanted != b->wanted) return b->wanted;
    return a->wanted ? a->used < b->used : a->heat < b->heat;
}

/* Counts a use. */
static void warm(tn_on_demand *d, unit *u) { u->heat = tn_heat(u->heat, (double)++d->n_uses / d->half_uses); }

static bool may_go(const unit *u) { return (u->state == READY && !u->n_users) || u->vain; }

/* Evicts units until n slots are free, but none that a thread waits for. Returns false if too many are in
 * use. */
static bool make_room(tn_on_demand *d, int32_t n) {
    int32_t n_there = d->n_free;
    for (int32_t i = 0; i < d->n_units && n_there < n; i++)
        if (may_go(&d->units[i])) n_there += d->m->sites[d->units[i].i_site].ops.n_ops;
    if (n_there < n) return false;
    while (d->n_free < n) {
        unit *out = NULL;
        for (int32_t i = 0; i < d->n_units; i++) {
            unit *u = &d->units[i];
            if (may_go(u) && gives_way(u, out)) out = u;
        }
        drop(d, out);
    }
    return true;
}

/* Like make_room, but also withdraws hints if necessary. */
static bool make_room_by_force(tn_on_demand *d, int32_t n) {
    for (int32_t i = 0; !make_room(d, n) && i < d->n_units; i++)
        if (d->units[i].state == COMING) drop(d, &d->units[i]);
    return d->n_free >= n;
}

/* ---- units ----------------------------------------------------------------------------------------- */

static unit *unit_of(const tn_on_demand *d, const tn_npu_site *s, int32_t expert) {
    return &d->units[d->first_unit[s - d->m->sites] + expert];
}

/* Queues the reads of a unit into free slots. */
static void begin(tn_on_demand *d, unit *u, bool urgent) {
    const tn_npu_site *s = &d->m->sites[u->i_site];
    for (int32_t i = 0; i < s->ops.n_ops; i++) {
        const linear *l = &d->linears[u->i_site * TN_SITE_MAX_OPS + i];
        u->slot[i] = d->free_slots[--d->n_free];
        slot *to = &d->slots[u->slot[i]];
        *to = (slot){.read = {.off_bytes = l->section->off_bytes + s->tiles[i]->off_bytes + l->off[u->expert],
                              .n_bytes = l->off[u->expert + 1] - l->off[u->expert],
                              .dst = d->bytes + (uint64_t)u->slot[i] * d->slot_bytes,
                              .check = check_read,
                              .user = d},
                     .u = u,
                     .op = i};
        d->stats.n_read_bytes += to->read.n_bytes;
        tn_aio_submit(d->aio, &to->read, urgent);
    }
    d->stats.n_reads++;
    u->came = ++d->clock;
    u->used = 0;
    u->fresh = true;
}

/* Waits for the reads and loads the graphs, without holding mu. */
static tern_status arrive(tn_on_demand *d, unit *u, tern_error *err) {
    const tn_npu_site *s = &d->m->sites[u->i_site];
    int8_t *at[TN_SITE_MAX_OPS] = {0};
    tern_status st = TERN_OK;
    for (int32_t i = 0; i < s->ops.n_ops; i++) {
        tern_error one = {0};
        tern_status rc = tn_aio_wait(d->aio, &d->slots[u->slot[i]].read,
                                     &one); /* waits for all: none stays in flight after a failure */
        if (rc != TERN_OK && st == TERN_OK) {
            st = rc;
            if (err) *err = one;
        }
        at[i] = (int8_t *)d->bytes + (uint64_t)u->slot[i] * d->slot_bytes;
    }
    return st == TERN_OK ? tn_site_load_expert(d->m, s, u->expert, at, err) : st;
}

static tern_status fetch(tn_on_demand *d, unit *u, tern_error *err) {
    u->state = TAKING;
    pthread_mutex_unlock(&d->mu);
    int64_t t0 = tn_now_ns();
    tern_status st = arrive(d, u, err);
    int64_t waited = tn_now_ns() - t0;
    pthread_mutex_lock(&d->mu);
    d->stats.wait_ns += waited;
    u->state = READY;
    if (st != TERN_OK) drop(d, u);
    pthread_cond_broadcast(&d->changed);
    return st;
}

tern_status tn_on_demand_take(tn_on_demand *d, const tn_npu_site *s, int32_t expert, bool pass,
                              tern_error *err) {
    unit *u = unit_of(d, s, expert);
    tern_status st = TERN_OK;
    bool hinted = true;
    pthread_mutex_lock(&d->mu);
    while (u->state != READY && st == TERN_OK) {
        if (u->state == TAKING) {
            pthread_cond_wait(&d->changed, &d->mu);
        } else if (u->state == COMING) {
            d->n_coming -= !u->vain;
            u->vain = false;
            st = fetch(d, u, err);
        } else if (make_room_by_force(d, s->ops.n_ops)) {
            hinted = false;
            begin(d, u, true);
            st = fetch(d, u, err);
        } else {
            pthread_cond_wait(&d->changed, &d->mu);
        }
    }
    if (st == TERN_OK) {
        u->n_users++;
        u->wanted = false;
        if (!pass) {
            u->used = ++d->clock;
            warm(d, u);
        }
        d->stats.n_taken++;
        d->stats.n_hits += !u->fresh;
        d->stats.n_ahead += u->fresh && hinted;
        u->fresh = false;
    }
    pthread_mutex_unlock(&d->mu);
    return st;
}

void tn_on_demand_give(tn_on_demand *d, const tn_npu_site *s, int32_t expert) {
    unit *u = unit_of(d, s, expert);
    pthread_mutex_lock(&d->mu);
    if (--u->n_users == 0) pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->mu);
}

void tn_on_demand_hint(tn_on_demand *d, const tn_npu_site *s, const int32_t *experts, int32_t n, bool pass) {
    pthread_mutex_lock(&d->mu);
    for (int32_t i = 0; i < n && !pass; i++) { /* resident units are kept for it */
        unit *u = unit_of(d, s, experts[i]);
        if (u->state != READY && !u->vain) continue;
        u->used = ++d->clock;
        u->wanted = true;
    }
    for (int32_t i = 0; i < n; i++) {
        unit *u = unit_of(d, s, experts[i]);
        if (u->vain) {
            u->vain = false;
            d->n_coming++;
        }
        if (u->state != ABSENT) continue;
        if ((d->n_coming + 1) * UNIT_SLOTS * 2 > d->n_slots || !make_room(d, s->ops.n_ops)) break;
        begin(d, u, false);
        if (!pass) u->used = ++d->clock;
        u->state = COMING;
        d->n_coming++;
    }
    pthread_mutex_unlock(&d->mu);
}

/* ---- predictions ----------------------------------------------------------------------------------- */

void tn_on_demand_correct(tn_on_demand *d, int32_t layer, float *scores) {
    const int32_t n = d->m->model->h.n_experts;
    const float *drift = d->drift + (ptrdiff_t)layer * n;
    pthread_mutex_lock(&d->mu);
    d->corrected_layer = layer;
    for (int32_t e = 0; e < n; e++) {
        d->guessed[e] = scores[e];
        scores[e] += drift[e];
    }
    pthread_mutex_unlock(&d->mu);
}

void tn_on_demand_learn(tn_on_demand *d, int32_t layer, const float *scores) {
    const float NEW = 0.05f; /* the last token has a weight of one twentieth */
    const int32_t n = d->m->model->h.n_experts;
    float *drift = d->drift + (ptrdiff_t)layer * n;
    pthread_mutex_lock(&d->mu);
    for (int32_t e = 0; e < n && d->corrected_layer == layer; e++)
        drift[e] += NEW * (scores[e] - d->guessed[e] - drift[e]);
    d->corrected_layer = -1;
    pthread_mutex_unlock(&d->mu);
}

void tn_on_demand_predict(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n) {
    pthread_mutex_lock(&d->mu);
    d->predicted_layer = layer;
    memset(d->predicted, 0, sizeof d->predicted);
    for (int32_t i = 0; i < n; i++) d->predicted[experts[i]] = true;
    pthread_mutex_unlock(&d->mu);
    tn_on_demand_hint(d, tn_npu_site_at(d->m, layer, TN_SITE_EXPERTS), experts, n, false);
}

void tn_on_demand_chosen(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n) {
    pthread_mutex_lock(&d->mu);
    for (int32_t i = 0; i < n && d->predicted_layer == layer; i++) {
        d->stats.n_predicted++;
        d->stats.n_right += d->predicted[experts[i]];
    }
    unit *first = unit_of(d, tn_npu_site_at(d->m, layer, TN_SITE_EXPERTS), 0);
    for (int32_t e = 0; e < d->m->model->h.n_experts && d->predicted_layer == layer; e++) {
        unit *u = first + e; /* predicted but chosen by no row: may be hinted at again below */
        u->wanted = false;
        if (u->state != COMING || u->vain) continue;
        u->vain = true;
        u->used = 0;
        d->n_coming--;
    }
    pthread_mutex_unlock(&d->mu);
    tn_on_demand_hint(d, tn_npu_site_at(d->m, layer, TN_SITE_EXPERTS), experts, n, false);
    tn_on_demand_hint(d, tn_npu_site_at(d->m, layer, TN_SITE_EXPERTS_DOWN), experts, n, false);
}

/* ---- life ------------------------------------------------------------------------------------------ */

static bool of_experts(uint32_t role) {
    return role == TN_W_GATE_EXPS || role == TN_W_UP_EXPS || role == TN_W_DOWN_EXPS;
}

void tn_experts_need_of(const tn_pkg *pkg, const tn_hparams *h, bool packed, tn_experts_need *out) {
    *out = (tn_experts_need){.can = h->n_experts > 0};
    for (size_t i = 0; h->n_experts && i < tn_pkg_n_sections(pkg); i++) {
        const tn_pkg_section *s = tn_pkg_section_at(pkg, i);
        uint64_t n_bytes = 0;
        size_t n;
        const tn_pkg_record *r = tn_pkg_records(pkg, s, &n);
        for (size_t k = 0; k < n; k++) {
            if (!tn_pkg_is_large(r[k].part) || !of_experts(r[k].role)) continue;
            n_bytes += r[k].size_bytes;
            if (!tn_pkg_record_find(r, n, r[k].role, TN_PKG_EXPERT_HASH)) out->can = false;
            if (r[k].part == TN_PKG_WEIGHTLETS && !packed) out->can = false;
        }
        uint64_t least = 2 * n_bytes * (uint64_t)h->n_experts_used / (uint64_t)h->n_experts;
        if (least > out->least_bytes) out->least_bytes = least;
        out->all_bytes += n_bytes;
    }
    if (!out->all_bytes) out->can = false;
}

/* Places and checksums of a linear's experts. */
static tern_status open_linear(tn_on_demand *d, int32_t i_site, int32_t op, tern_error *err) {
    const tn_npu_model *m = d->m;
    const tn_npu_site *s = &m->sites[i_site];
    linear *l = &d->linears[i_site * TN_SITE_MAX_OPS + op];
    const section_view v = tn_section_view(m, s->layer);
    size_t n_experts = (size_t)s->ops.n_experts, n = (size_t)tn_site_op_n(&s->ops, op);
    const tn_npu_weights_data *image = &s->image[op];
    l->section = tn_pkg_find(m->pkg, TN_PKG_LAYER, s->layer);
    l->hash = tn_section_payload(&v, s->ops.roles[op], TN_PKG_EXPERT_HASH, n_experts * sizeof *l->hash,
                                 s->layer, err);
    if (!l->hash) return TERN_E_FORMAT;
    l->off = tn_alloc(m->ctx, TN_MEM_OTHER, n_experts + 1, sizeof *l->off);
    TN_FAIL_IF(!l->off, err, TERN_E_MEMORY, "no memory for %zu experts", n_experts);
    l->off[0] = 0;
    for (size_t e = 0; e < n_experts; e++) {
        uint64_t size = image->bits ? tn_weightlets_bytes(image->bits, e * n, (e + 1) * n, (size_t)s->ops.k)
                                    : tn_npu_tiles_bytes(m->layout, (int64_t)n, s->ops.k);
        l->off[e + 1] = l->off[e] + size;
        if (size > d->slot_bytes) d->slot_bytes = size;
    }
    TN_FAIL_IF(l->off[n_experts] != s->tiles[op]->size_bytes, err, TERN_E_FORMAT,
               "layer %d: the experts' %s have %" PRIu64 " bytes, their shapes and widths need %" PRIu64,
               s->layer, tn_role_name(s->ops.roles[op]), s->tiles[op]->size_bytes, l->off[n_experts]);
    d->stats.all_bytes += l->off[n_experts];
    return TERN_OK;
}

static tern_status open_units(tn_on_demand *d, tern_error *err) {
    tn_npu_model *m = d->m;
    d->first_unit = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)m->n_sites, sizeof *d->first_unit);
    d->linears = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)m->n_sites * TN_SITE_MAX_OPS, sizeof *d->linears);
    TN_FAIL_IF(!d->first_unit || !d->linears, err, TERN_E_MEMORY, "no memory for experts on demand");
    for (int32_t i = 0; i < m->n_sites; i++) {
        d->first_unit[i] = d->n_units;
        d->n_units += m->sites[i].ops.n_experts;
        for (int32_t op = 0; m->sites[i].ops.n_experts && op < m->sites[i].ops.n_ops; op++)
            TN_TRY(open_linear(d, i, op, err));
    }
    d->units = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)d->n_units, sizeof *d->units);
    d->drift = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)m->model->h.n_layers * (size_t)m->model->h.n_experts,
                         sizeof *d->drift);
    TN_FAIL_IF(!d->units || !d->drift, err, TERN_E_MEMORY, "no memory for %d experts", d->n_units);
    for (int32_t i = 0; i < m->n_sites; i++) {
        if (m->sites[i].ops.n_experts) d->half_uses += (double)HALF_TOKENS * m->model->h.n_experts_used;
        for (int32_t e = 0; e < m->sites[i].ops.n_experts; e++)
            d->units[d->first_unit[i] + e] = (unit){.i_site = i, .expert = e};
    }
    return TERN_OK;
}

static tern_status open_slots(tn_on_demand *d, const char *path, uint64_t budget_bytes,
                              const tn_aio_options *io, tern_error *err) {
    tn_ctx *ctx = d->m->ctx;
    d->slot_bytes = (d->slot_bytes + 63) / 64 * 64;
    const uint64_t n = budget_bytes / d->slot_bytes, all = (uint64_t)d->n_units * UNIT_SLOTS;
    d->n_slots = (int32_t)(n < all ? n : all);
    TN_FAIL_IF(n < 2 * UNIT_SLOTS, err, TERN_E_LIMIT,
               "%s: %" PRIu64 " bytes are left for experts, whose linears have up to %" PRIu64, path,
               budget_bytes, d->slot_bytes);
    d->block = tn_alloc(ctx, TN_MEM_WEIGHTS, (uint64_t)d->n_slots * d->slot_bytes + TN_AIO_ALIGN, 1);
    d->free_slots = tn_alloc(ctx, TN_MEM_OTHER, (size_t)d->n_slots, sizeof *d->free_slots);
    d->slots = tn_calloc(ctx, TN_MEM_OTHER, (size_t)d->n_slots, sizeof *d->slots);
    TN_FAIL_IF(!d->block || !d->free_slots || !d->slots, err, TERN_E_MEMORY,
               "no memory for %d parts of experts", d->n_slots);
    d->bytes = (uint8_t *)(((uintptr_t)d->block + TN_AIO_ALIGN - 1) / TN_AIO_ALIGN * TN_AIO_ALIGN);
    for (int32_t i = 0; i < d->n_slots; i++) d->free_slots[d->n_free++] = d->n_slots - 1 - i;
    d->stats.n_slots = d->n_slots;
    d->stats.n_units = d->n_units;
    d->stats.slot_bytes = d->slot_bytes;
    d->stats.budget_bytes = budget_bytes;
    tn_aio_options whole = *io; /* a read is one piece with one checksum */
    if (whole.piece_bytes < d->slot_bytes)
        whole.piece_bytes = (uint32_t)((d->slot_bytes + TN_AIO_ALIGN - 1) / TN_AIO_ALIGN * TN_AIO_ALIGN);
    return tn_aio_open_fd(ctx, tn_pkg_fd(d->m->pkg), path, &whole, &d->aio, err);
}

tern_status tn_on_demand_open(tn_npu_model *m, const char *path, uint64_t budget_bytes,
                              const tn_aio_options *io, tn_on_demand **out, tern_error *err) {
    *out = NULL;
    tn_on_demand *d = tn_calloc(m->ctx, TN_MEM_OTHER, 1, sizeof *d);
    TN_FAIL_IF(!d, err, TERN_E_MEMORY, "no memory for experts on demand");
    d->m = m;
    d->predicted_layer = d->corrected_layer = -1;
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->changed, NULL);
    tern_status st = open_units(d, err);
    if (st == TERN_OK) st = open_slots(d, path, budget_bytes, io, err);
    if (st == TERN_OK) *out = d;
    else tn_on_demand_close(&d);
    return st;
}

void tn_on_demand_close(tn_on_demand **pd) {
    tn_on_demand *d = *pd;
    if (!d) return;
    *pd = NULL;
    tn_ctx *ctx = d->m->ctx;
    tn_aio_close(&d->aio); /* nothing writes to the slots now; graphs are closed with their sites */
    for (int32_t i = 0; d->linears && i < d->m->n_sites * TN_SITE_MAX_OPS; i++)
        tn_free(ctx, d->linears[i].off);
    tn_free(ctx, d->linears);
    tn_free(ctx, d->first_unit);
    tn_free(ctx, d->units);
    tn_free(ctx, d->free_slots);
    tn_free(ctx, d->slots);
    tn_free(ctx, d->drift);
    tn_free(ctx, d->block);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->mu);
    tn_free(ctx, d);
}

void tn_on_demand_stats_get(tn_on_demand *d, tn_on_demand_stats *out) {
    pthread_mutex_lock(&d->mu);
    *out = d->stats;
    pthread_mutex_unlock(&d->mu);
}
