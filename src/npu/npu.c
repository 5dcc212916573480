/* npu/npu.c - the front of every device: rules, memory account, references, completion. Backends only
 * compute. */
#include "base/checked.h"
#include "kernels/kernels.h"
#include "kernels/unpack.h"
#include "npu/backend.h"

#include <assert.h>
#include <math.h>
#include <sched.h>
#include <string.h>

static const tn_npu_backend *const backends[] = {
    &tn_npu_host,
    &tn_npu_scalar,
#ifdef TERN_HEXAGON
    &tn_npu_hexagon,
#endif
};
enum { N_BACKENDS = sizeof backends / sizeof backends[0] };

/* ---- layout ---------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

uint64_t tn_npu_tiles_bytes(const tn_npu_layout *l, int64_t n, int64_t k) {
    return (uint64_t)round_up(n, l->tile_n) * (uint64_t)round_up(k, l->tile_k);
}

/* Element (n,k) is at row_of(n) + k / tile_k * tile_n * tile_k + k % tile_k. */
static size_t row_of(const tn_npu_layout *l, int64_t n, int64_t n_k_tiles) {
    return (size_t)((n / l->tile_n * n_k_tiles * l->tile_n + n % l->tile_n) * l->tile_k);
}

void tn_npu_tiles_pack(const tn_npu_layout *l, int8_t *tiles, int32_t *col_sum, const int8_t *w, int64_t n0,
                       int64_t n1, int64_t k) {
    assert(n0 % l->tile_n == 0);
    int64_t n_k_tiles = (k + l->tile_k - 1) / l->tile_k;
    for (int64_t n = n0; n < round_up(n1, l->tile_n); n++) {
        int8_t *to = tiles + row_of(l, n, n_k_tiles);
        const int8_t *from = n < n1 ? w + (n - n0) * k : NULL;
        int32_t sum = 0;
        for (int64_t k0 = 0; k0 < k; k0 += l->tile_k, to += l->tile_n * l->tile_k) {
            for (int64_t i = 0; i < l->tile_k; i++) sum += to[i] = from && k0 + i < k ? from[k0 + i] : 0;
        }
        col_sum[n] = sum;
    }
}

void tn_npu_tiles_row(const tn_npu_layout *l, const int8_t *tiles, int64_t n, int64_t k, int8_t *out) {
    const int8_t *from = tiles + row_of(l, n, (k + l->tile_k - 1) / l->tile_k);
    for (int64_t k0 = 0; k0 < k; k0 += l->tile_k, from += l->tile_n * l->tile_k) {
        for (int64_t i = 0; i < l->tile_k && k0 + i < k; i++) out[k0 + i] = from[i];
    }
}

void tn_npu_tiles_column(const tn_npu_layout *l, const int8_t *tiles, int64_t n, int64_t k, int64_t i_k,
                         int8_t *out) {
    int64_t stride = (k + l->tile_k - 1) / l->tile_k * l->tile_n * l->tile_k;
    const int8_t *from = tiles + i_k / l->tile_k * l->tile_n * l->tile_k + i_k % l->tile_k;
    for (int64_t n0 = 0; n0 < n; n0 += l->tile_n, from += stride) {
        int64_t rows = n - n0 < l->tile_n ? n - n0 : l->tile_n;
        if (l->id == TN_NPU_LAYOUT_16X4 && rows == 16) { /* constant strides: the compiler vectorises this */
            const int8_t *tile = from - i_k % 4;
            unsigned shift = (unsigned)(i_k % 4) * 8;
            uint32_t quads[16];
            memcpy(quads, tile, sizeof quads);
            if (n0 + 16 < n) __builtin_prefetch(from + stride);
            for (int j = 0; j < 16; j++) out[n0 + j] = (int8_t)(quads[j] >> shift & 0xff);
            continue;
        }
        for (int64_t j = 0; j < rows; j++) out[n0 + j] = from[j * l->tile_k];
    }
}

/* ---- device ---------------------------------------------------------------------------------------- */

void tn_npu_options_defaults(tn_npu_options *o) { *o = (tn_npu_options){.n_threads = 1}; }

const char *tn_npu_backend_name(size_t i) { return i < N_BACKENDS ? backends[i]->name : NULL; }

tern_status tn_npu_open(tn_ctx *ctx, const char *backend, const tn_npu_options *opt, tn_npu_device **out,
                        tern_error *err) {
    *out = NULL;
    tn_npu_options def;
    tn_npu_options_defaults(&def);
    if (!opt) opt = &def;
    const tn_npu_backend *be = NULL;
    for (int i = 0; i < N_BACKENDS; i++) {
        if (!strcmp(backends[i]->name, backend)) be = backends[i];
    }
    TN_FAIL_IF(!be, err, TERN_E_UNSUPPORTED, "there is no NPU backend '%s' in this build", backend);
    tn_npu_device *d = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *d);
    TN_FAIL_IF(!d, err, TERN_E_MEMORY, "no memory for the NPU device");
    d->ctx = ctx;
    d->be = be;
    d->caps = (tn_npu_caps){.name = be->name,
                            .memory_cap_bytes = opt->memory_cap_bytes,
                            .shares_weights = !opt->separate_weights};
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->done, NULL);
    tern_status st = be->open(d, opt, err);
    if (st != TERN_OK) {
        pthread_cond_destroy(&d->done);
        pthread_mutex_destroy(&d->mu);
        tn_free(ctx, d);
        return st;
    }
    d->caps.own_memory = be->mem_alloc != NULL;
    d->caps.unpacks = be->unpack != NULL;
    d->caps.cpu_computes =
        d->caps.shared_memory && (be->run_part || (be->compute && d->caps.layout.id == TN_NPU_LAYOUT_16X4));
    *out = d;
    return TERN_OK;
}

void tn_npu_close(tn_npu_device **pd) {
    tn_npu_device *d = *pd;
    if (!d) return;
    *pd = NULL;
    assert(d->n_objects == 0 && d->used_bytes == 0);
    d->be->close(d);
    pthread_cond_destroy(&d->done);
    pthread_mutex_destroy(&d->mu);
    tn_free(d->ctx, d);
}

const tn_npu_caps *tn_npu_device_caps(const tn_npu_device *d) { return &d->caps; }

uint64_t tn_npu_used_bytes(tn_npu_device *d) {
    pthread_mutex_lock(&d->mu);
    uint64_t used = d->used_bytes;
    pthread_mutex_unlock(&d->mu);
    return used;
}

/* Accounts n_bytes of one object before they are allocated. */
static tern_status reserve(tn_npu_device *d, uint64_t n_bytes, const char *what, tern_error *err) {
    uint64_t cap = d->caps.memory_cap_bytes;
    pthread_mutex_lock(&d->mu);
    uint64_t used = d->used_bytes;
    bool fits = !cap || (used <= cap && n_bytes <= cap - used);
    if (fits) {
        d->used_bytes += n_bytes;
        d->n_objects++;
    }
    pthread_mutex_unlock(&d->mu);
    TN_FAIL_IF(!fits, err, TERN_E_LIMIT,
               "%s needs %" PRIu64 " bytes of NPU memory, %" PRIu64 " of %" PRIu64 " are in use", what,
               n_bytes, used, cap);
    return TERN_OK;
}

static void release(tn_npu_device *d, uint64_t n_bytes) {
    pthread_mutex_lock(&d->mu);
    d->used_bytes -= n_bytes;
    d->n_objects--;
    pthread_mutex_unlock(&d->mu);
}

static tern_status mem_alloc(tn_npu_device *d, uint64_t n_bytes, tn_mem_cat cat, const char *what, void **out,
                             tern_error *err) {
    if (d->be->mem_alloc) return d->be->mem_alloc(d, n_bytes, cat, out, err);
    *out = n_bytes <= SIZE_MAX ? tn_alloc(d->ctx, cat, 1, (size_t)n_bytes) : NULL;
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for %" PRIu64 " bytes of %s", n_bytes, what);
    return TERN_OK;
}

static void mem_free(tn_npu_device *d, void *p) {
    if (d->be->mem_free) d->be->mem_free(d, p);
    else tn_free(d->ctx, p);
}

enum { HEAD_BYTES = 64 }; /* in front of a lent buffer: its size */

tern_status tn_npu_mem_alloc(tn_npu_device *d, uint64_t n_bytes, void **out, tern_error *err) {
    *out = NULL;
    uint64_t total;
    TN_FAIL_IF(!tn_add_u64(n_bytes, HEAD_BYTES, &total), err, TERN_E_MEMORY,
               "a buffer of %" PRIu64 " bytes is too large", n_bytes);
    TN_TRY(reserve(d, total, "a buffer", err));
    void *p;
    tern_status st = mem_alloc(d, total, TN_MEM_ACTIVATIONS, "an NPU buffer", &p, err);
    if (st != TERN_OK) {
        release(d, total);
        return st;
    }
    memcpy(p, &total, sizeof total);
    *out = (char *)p + HEAD_BYTES;
    return TERN_OK;
}

void tn_npu_mem_free(tn_npu_device *d, void *p) {
    if (!p) return;
    char *base = (char *)p - HEAD_BYTES;
    uint64_t total;
    memcpy(&total, base, sizeof total);
    mem_free(d, base);
    release(d, total);
}

/* ---- weights --------------------------------------------------------------------------------------- */

/* The block of a weights object is tiles | col_sum | scale | bias, each part rounded up to a cache line. */
typedef struct weights_plan {
    uint64_t off_col_sum, off_scale, off_bias, n_bytes;
} weights_plan;

static weights_plan plan_weights(const tn_npu_layout *l, int64_t n, int64_t k, bool has_bias) {
    uint64_t per_channel = (uint64_t)round_up(round_up(n, l->tile_n) * 4, 64);
    weights_plan p;
    p.off_col_sum = (uint64_t)round_up((int64_t)tn_npu_tiles_bytes(l, n, k), 64);
    p.off_scale = p.off_col_sum + per_channel;
    p.off_bias = p.off_scale + per_channel;
    p.n_bytes = p.off_bias + (has_bias ? per_channel : 0);
    return p;
}

static tern_status weights_make(tn_npu_device *d, int64_t n, int64_t k, const tn_npu_weights_data *borrowed,
                                bool has_bias, tn_npu_weights **out, tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(n < 1 || k < 1 || n > d->caps.max_n || k > d->caps.max_k, err, TERN_E_LIMIT,
               "weights [%" PRId64 "][%" PRId64 "]: the %s NPU takes 1..%d output channels of 1..%d inputs",
               n, k, d->caps.name, d->caps.max_n, d->caps.max_k);
    weights_plan plan = plan_weights(&d->caps.layout, n, k, has_bias);
    bool packed = borrowed && !borrowed->tiles,
         lent = borrowed && d->be->owns && d->be->owns(d, borrowed->tiles);
    if (packed) plan.n_bytes = plan.n_bytes - plan.off_col_sum + borrowed->packed_bytes;
    uint64_t n_counted = lent ? plan.n_bytes - plan.off_col_sum : plan.n_bytes;
    tn_npu_weights *w = tn_calloc(d->ctx, TN_MEM_WEIGHTS, 1, sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory for weights");
    tern_status st = reserve(d, n_counted, "a weight matrix", err);
    if (st != TERN_OK) {
        tn_free(d->ctx, w);
        return st;
    }
    *w = (tn_npu_weights){.dev = d,
                          .n = (int32_t)n,
                          .k = (int32_t)k,
                          .n_bytes = plan.n_bytes,
                          .n_counted = n_counted,
                          .n_refs = 1};
    if (borrowed) {
        w->data = *borrowed;
        w->block_off = packed ? tn_alloc(d->ctx, TN_MEM_WEIGHTS,
                                         (size_t)(n + TN_NPU_BLOCK - 1) / TN_NPU_BLOCK, sizeof *w->block_off)
                              : NULL;
        if (packed && !w->block_off) {
            tn_npu_weights_close(&w);
            return tn_fail(err, TERN_E_MEMORY, "no memory for weights");
        }
    } else {
        st = mem_alloc(d, plan.n_bytes, TN_MEM_WEIGHTS, "weights", &w->mem, err);
        if (st != TERN_OK) {
            release(d, n_counted);
            tn_free(d->ctx, w);
            return st;
        }
        char *p = w->mem;
        w->data = (tn_npu_weights_data){.tiles = (int8_t *)p,
                                        .col_sum = (int32_t *)(p + plan.off_col_sum),
                                        .scale = (float *)(p + plan.off_scale),
                                        .bias = has_bias ? (float *)(p + plan.off_bias) : NULL};
    }
    *out = w;
    return TERN_OK;
}

tern_status tn_npu_weights_open(tn_npu_device *d, int64_t n, int64_t k, bool has_bias, tn_npu_weights **out,
                                tern_error *err) {
    return weights_make(d, n, k, NULL, has_bias, out, err);
}

tern_status tn_npu_weights_borrow(tn_npu_device *d, int64_t n, int64_t k, const tn_npu_weights_data *data,
                                  tn_npu_weights **out, tern_error *err) {
    *out = NULL;
    bool packed = !data->tiles && data->packed && data->bits;
    TN_FAIL_IF(packed && !d->caps.has_weightlets, err, TERN_E_UNSUPPORTED,
               "the %s NPU cannot work on packed weights", d->caps.name);
    TN_FAIL_IF((!data->tiles && !packed) || (uintptr_t)data->tiles % 64 || !data->col_sum || !data->scale,
               err, TERN_E_INVALID,
               "borrowed weights need tiles (64-byte aligned) or weightlets, column sums and scales");
    return weights_make(d, n, k, data, data->bias, out, err);
}

tn_npu_weights_data tn_npu_weights_get(const tn_npu_weights *w) { return w->data; }

void tn_npu_weights_row(const tn_npu_weights *w, int64_t n, int8_t *out) {
    if (w->data.tiles) {
        tn_npu_tiles_row(&w->dev->caps.layout, w->data.tiles, n, w->k, out);
        return;
    }
    assert(w->indexed);
    size_t row = (size_t)n, block = row / TN_NPU_BLOCK, k = (size_t)w->k;
    const uint8_t *tile =
        w->data.packed + w->block_off[block] +
        tn_weightlets_bytes(w->data.bits, block * TN_NPU_BLOCK, row / TN_TILE_N * TN_TILE_N, k);
    tn_weightlets_row(tile, w->data.bits, row, (size_t)w->n, k, out);
}
uint64_t tn_npu_weights_bytes(const tn_npu_weights *w) { return w->n_bytes; }

bool tn_npu_unpack(tn_npu_device *d, const uint8_t *src, const uint8_t *packed_bits, int64_t n0, int64_t n1,
                   int64_t k, int8_t *tiles) {
    if (!d->be->unpack || !d->be->owns(d, tiles)) return false;
    d->be->unpack(d, src, packed_bits, n0, n1, k, tiles);
    return true;
}

void tn_npu_weights_close(tn_npu_weights **pw) {
    tn_npu_weights *w = *pw;
    if (!w) return;
    *pw = NULL;
    tn_npu_device *d = w->dev;
    pthread_mutex_lock(&d->mu);
    bool last = --w->n_refs == 0;
    pthread_mutex_unlock(&d->mu);
    if (!last) return;
    if (w->mem) mem_free(d, w->mem);
    if (w->copy) mem_free(d, w->copy);
    tn_free(d->ctx, w->block_off);
    release(d, w->n_counted);
    tn_free(d->ctx, w);
}

/* ---- the rules ------------------------------------------------------------------------------------- */

static bool is_scale(float s) { return isfinite(s) && s > 0 && isfinite(1.0f / s); }

static tern_status check_op(const tn_npu_caps *c, const tn_npu_graph_desc *g, int i, tn_npu_op *op,
                            tern_error *err) {
    static const char *const out_names[TN_NPU_N_OUTS] = {"f32", "s32", "u8", "s8"};
    TN_FAIL_IF(op->n == TN_NPU_DYNAMIC, err, TERN_E_UNSUPPORTED,
               "op %d: dynamic shape N; a graph's shapes are fixed", i);
    TN_FAIL_IF(op->n < 1, err, TERN_E_INVALID, "op %d: N = %d", i, op->n);
    TN_FAIL_IF(op->n > c->max_n, err, TERN_E_LIMIT, "op %d: N = %d, the %s NPU takes up to %d", i, op->n,
               c->name, c->max_n);
    TN_FAIL_IF(op->act_quant == TN_NPU_ACT_PER_TOKEN, err, TERN_E_UNSUPPORTED,
               "op %d: per-token activation scales; an NPU has one static scale per tensor", i);
    TN_FAIL_IF(op->act_quant != TN_NPU_ACT_PER_TENSOR, err, TERN_E_UNSUPPORTED,
               "op %d: an activation scale found at run time; an NPU's scales are frozen in the graph", i);
    TN_FAIL_IF(op->weight_quant == TN_NPU_WEIGHT_PER_GROUP, err, TERN_E_UNSUPPORTED,
               "op %d: weight scales per group; an NPU has at finest one per output channel", i);
    TN_FAIL_IF(op->weight_quant != TN_NPU_WEIGHT_PER_CHANNEL, err, TERN_E_UNSUPPORTED,
               "op %d: asymmetric weights; an NPU's weights have no zero point", i);
    TN_FAIL_IF((unsigned)op->out >= TN_NPU_N_OUTS, err, TERN_E_INVALID, "op %d: unknown output form %d", i,
               (int)op->out);
    TN_FAIL_IF(!(c->out_forms >> op->out & 1), err, TERN_E_UNSUPPORTED, "op %d: the %s NPU has no %s output",
               i, c->name, out_names[op->out]);
    TN_FAIL_IF(!is_scale(op->act_scale), err, TERN_E_INVALID, "op %d: activation scale %g", i,
               (double)op->act_scale);
    if (g->kind == TN_NPU_QK) {
        TN_FAIL_IF(!is_scale(op->k_scale) || !isfinite(op->act_scale * op->k_scale), err, TERN_E_INVALID,
                   "op %d: scales %g and %g of Q and K", i, (double)op->act_scale, (double)op->k_scale);
        TN_FAIL_IF(op->has_bias, err, TERN_E_UNSUPPORTED, "op %d: a Q.K product has no bias", i);
    } else {
        op->k_scale = 0;
    }
    if (tn_npu_op_requantised(op)) {
        TN_FAIL_IF(!is_scale(op->out_scale), err, TERN_E_INVALID, "op %d: output scale %g", i,
                   (double)op->out_scale);
    } else {
        op->out_scale = 0;
    }
    if (!op->out_stride) op->out_stride = op->n;
    TN_FAIL_IF(op->out_stride < op->n, err, TERN_E_INVALID, "op %d: rows of %d elements, %d apart", i, op->n,
               op->out_stride);
    return TERN_OK;
}

/* Checks desc against the rules and d's capabilities and writes it to out with its defaults filled in. */
static tern_status check_graph(const tn_npu_device *d, const tn_npu_graph_desc *desc, tn_npu_graph_desc *out,
                               tern_error *err) {
    const tn_npu_caps *c = &d->caps;
    TN_FAIL_IF((unsigned)desc->kind >= TN_NPU_N_KINDS, err, TERN_E_INVALID, "unknown kind of graph %d",
               (int)desc->kind);
    TN_FAIL_IF(desc->m == TN_NPU_DYNAMIC || desc->k == TN_NPU_DYNAMIC, err, TERN_E_UNSUPPORTED,
               "dynamic shape %s; a graph's shapes are fixed", desc->m == TN_NPU_DYNAMIC ? "M" : "K");
    TN_FAIL_IF(desc->m < 1 || desc->k < 1, err, TERN_E_INVALID, "shape M = %d, K = %d", desc->m, desc->k);
    TN_FAIL_IF(desc->m > c->max_m || desc->k > c->max_k, err, TERN_E_LIMIT,
               "shape M = %d, K = %d; the %s NPU takes up to M = %d, K = %d", desc->m, desc->k, c->name,
               c->max_m, c->max_k);
    TN_FAIL_IF(desc->n_ops < 1 || desc->n_ops > TN_NPU_MAX_OPS, err, TERN_E_LIMIT,
               "%d ops; a graph has 1..%d", desc->n_ops, TN_NPU_MAX_OPS);
    /* Field by field into zeros: fields that this kind of graph does not use are dropped. */
    *out = (tn_npu_graph_desc){.kind = desc->kind,
                               .m = desc->m,
                               .k = desc->k,
                               .in_stride = desc->in_stride,
                               .rows_per_run = desc->rows_per_run,
                               .n_ops = desc->n_ops};
    int32_t min_stride = (int32_t)round_up(desc->k, 4);
    if (!out->in_stride) { /* whole cache lines, and rows that do not share one cache set */
        out->in_stride = (int32_t)round_up(desc->k, 64);
        if (out->in_stride % 4096 == 0) out->in_stride += 64;
    }
    TN_FAIL_IF(out->in_stride < min_stride, err, TERN_E_INVALID, "input rows of %d bytes, %d apart",
               min_stride, out->in_stride);
    if (!out->rows_per_run) out->rows_per_run = desc->m;
    TN_FAIL_IF(out->rows_per_run < 1 || out->rows_per_run > desc->m, err, TERN_E_INVALID,
               "%d rows per run of %d", out->rows_per_run, desc->m);
    uint64_t need = 0;
    for (int i = 0; i < desc->n_ops; i++) {
        out->ops[i] = desc->ops[i];
        TN_TRY(check_op(c, out, i, &out->ops[i], err));
        if (desc->kind == TN_NPU_LINEARS)
            need += plan_weights(&c->layout, desc->ops[i].n, desc->k, desc->ops[i].has_bias).n_bytes;
    }
    TN_FAIL_IF(c->memory_cap_bytes && need > c->memory_cap_bytes, err, TERN_E_LIMIT,
               "the graph's weights take %" PRIu64 " bytes, the NPU addresses %" PRIu64, need,
               c->memory_cap_bytes);
    return TERN_OK;
}

/* ---- graph ----------------------------------------------------------------------------------------- */

tern_status tn_npu_compile(tn_npu_device *d, const tn_npu_graph_desc *desc, tn_npu_graph **out,
                           tern_error *err) {
    *out = NULL;
    tn_npu_graph_desc checked;
    TN_TRY(check_graph(d, desc, &checked, err));
    tn_npu_graph *g = tn_calloc(d->ctx, TN_MEM_GRAPHS, 1, sizeof *g);
    TN_FAIL_IF(!g, err, TERN_E_MEMORY, "no memory for a graph");
    g->dev = d;
    g->desc = checked;
    *out = g;
    return TERN_OK;
}

const tn_npu_graph_desc *tn_npu_graph_get(const tn_npu_graph *g) { return &g->desc; }

/* The places of an op's frozen constants in the graph's block, in floats. */
typedef struct op_plan {
    uint64_t off, n_padded; /* scale, then bias where the graph has its own */
    bool own_bias;
} op_plan;

/* Plain accumulators need no factors. For the hundreds of graphs of sparse attention, with one column for
 * each position, they would take megabytes. */
static int32_t n_factors(const tn_npu_graph *g, const tn_npu_op *op) {
    return op->out == TN_NPU_OUT_S32 && !g->dev->be->wants_all_factors ? 1 : op->n;
}

/* Plans all ops and returns how many floats they take. */
static uint64_t plan_ops(const tn_npu_graph *g, op_plan *plan) {
    uint64_t at = 0;
    for (int i = 0; i < g->desc.n_ops; i++) {
        const tn_npu_op *op = &g->desc.ops[i];
        uint64_t n_padded = (uint64_t)round_up(round_up(n_factors(g, op), g->dev->caps.layout.tile_n), 16);
        plan[i] = (op_plan){at, n_padded, op->has_bias && tn_npu_op_requantised(op)};
        at += n_padded * (1 + plan[i].own_bias);
    }
    return at;
}

uint64_t tn_npu_load_bytes(const tn_npu_graph *g) {
    op_plan plan[TN_NPU_MAX_OPS];
    return plan_ops(g, plan) * sizeof(float);
}

/* Freezes an op's factors and addends; padding gets 0. */
static tern_status freeze_op(tn_npu_graph *g, int i, const op_plan *plan, tern_error *err) {
    const tn_npu_op *op = &g->desc.ops[i];
    const tn_npu_weights *w = g->weights[i];
    const float *bias = op->has_bias ? w->data.bias : NULL;
    float *scale = g->scale[i] = g->scale[0] + plan->off,
          *own_bias = plan->own_bias ? scale + plan->n_padded : NULL;
    float r = tn_npu_op_requantised(op) ? 1.0f / op->out_scale : 1.0f;
    memset(scale, 0, plan->n_padded * (1 + plan->own_bias) * sizeof *scale);
    for (int32_t n = 0; n < n_factors(g, op); n++) {
        float s = w ? w->data.scale[n] : op->k_scale;
        scale[n] = op->act_scale * s * r; /* multiplying by 1 is exact */
        TN_FAIL_IF(!isfinite(scale[n]), err, TERN_E_FORMAT,
                   "op %d: output channel %d has the scale %g, over scales %g and %g", i, n, (double)s,
                   (double)op->act_scale, (double)op->out_scale);
        if (!bias) continue;
        TN_FAIL_IF(!isfinite(bias[n] * r), err, TERN_E_FORMAT, "op %d: output channel %d has the bias %g", i,
                   n, (double)bias[n]);
        if (own_bias) own_bias[n] = bias[n] * r;
    }
    g->bias[i] = own_bias ? own_bias : bias;
    return TERN_OK;
}

static tern_status check_binding(const tn_npu_graph *g, tn_npu_weights *const *weights, tern_error *err) {
    for (int i = 0; i < g->desc.n_ops; i++) {
        const tn_npu_weights *w = weights[i];
        const tn_npu_op *op = &g->desc.ops[i];
        TN_FAIL_IF(!w || w->dev != g->dev, err, TERN_E_INVALID, "op %d: weights of this device are missing",
                   i);
        TN_FAIL_IF(w->n != op->n || w->k != g->desc.k, err, TERN_E_INVALID,
                   "op %d is [%d][%d], its weights are [%d][%d]", i, op->n, g->desc.k, w->n, w->k);
        TN_FAIL_IF(op->has_bias && !w->data.bias, err, TERN_E_INVALID,
                   "op %d adds a bias, its weights have none", i);
    }
    return TERN_OK;
}

/* Finds the beginnings of the blocks of packed weights. */
static tern_status index_packed(const tn_npu_graph *g, tn_npu_weights *const *weights, tern_error *err) {
    for (int i = 0; i < g->desc.n_ops; i++) {
        tn_npu_weights *w = weights[i];
        uint64_t at = 0;
        pthread_mutex_lock(
            &g->dev->mu); /* two forms may be loaded at once, or one while the other computes */
        bool done = w->indexed || !w->block_off;
        for (int32_t n = 0, b = 0; n < w->n && !done; n += TN_NPU_BLOCK, b++) {
            w->block_off[b] = at;
            at += tn_weightlets_bytes(w->data.bits, (size_t)n,
                                      (size_t)(w->n - n < TN_NPU_BLOCK ? w->n : n + TN_NPU_BLOCK),
                                      (size_t)w->k);
        }
        w->indexed = done || at == w->data.packed_bytes;
        bool good = done || w->indexed;
        pthread_mutex_unlock(&g->dev->mu);
        TN_FAIL_IF(!good, err, TERN_E_FORMAT,
                   "op %d: packed weights of %" PRIu64 " bytes, their widths need %" PRIu64, i,
                   w->data.packed_bytes, at);
    }
    return TERN_OK;
}

/* Takes the graph's references to its weights. Fails without changing anything if the weights cannot be
 * shared and are in use. */
static bool bind_weights(tn_npu_graph *g, tn_npu_weights *const *weights) {
    tn_npu_device *d = g->dev;
    bool ok = true;
    pthread_mutex_lock(&d->mu);
    for (int i = 0; i < g->desc.n_ops && !d->caps.shares_weights; i++) {
        ok = ok && !weights[i]->n_loads;
        for (int j = 0; j < i; j++) ok = ok && weights[j] != weights[i];
    }
    for (int i = 0; i < g->desc.n_ops && ok; i++) {
        g->weights[i] = weights[i];
        weights[i]->n_refs++;
        weights[i]->n_loads++;
    }
    pthread_mutex_unlock(&d->mu);
    return ok;
}

static void unbind_weights(tn_npu_graph *g) {
    for (int i = 0; i < g->desc.n_ops; i++) {
        if (!g->weights[i]) continue;
        pthread_mutex_lock(&g->dev->mu);
        g->weights[i]->n_loads--;
        pthread_mutex_unlock(&g->dev->mu);
        tn_npu_weights_close(&g->weights[i]);
    }
}

tern_status tn_npu_load(tn_npu_graph *g, tn_npu_weights *const *weights, tern_error *err) {
    tn_npu_device *d = g->dev;
    TN_FAIL_IF(g->loaded, err, TERN_E_INVALID, "the graph is loaded already");
    TN_FAIL_IF(!weights != (g->desc.kind == TN_NPU_QK), err, TERN_E_INVALID,
               "linears need weights, Q.K products have none");
    op_plan plan[TN_NPU_MAX_OPS];
    g->load_bytes = plan_ops(g, plan) * sizeof(float);
    if (weights) TN_TRY(check_binding(g, weights, err));
    if (weights) TN_TRY(index_packed(g, weights, err));
    TN_TRY(reserve(d, g->load_bytes, "a graph's constants", err));
    void *constants = NULL;
    tern_status st = mem_alloc(d, g->load_bytes, TN_MEM_GRAPHS, "a graph's constants", &constants, err);
    if (st != TERN_OK) goto out;
    g->scale[0] = constants;
    TN_BAIL_IF(weights && !bind_weights(g, weights), err, TERN_E_UNSUPPORTED,
               "this NPU's graphs cannot share weights: each loaded graph needs its own copy");
    for (int i = 0; i < g->desc.n_ops && st == TERN_OK; i++) st = freeze_op(g, i, &plan[i], err);
    if (st == TERN_OK && d->be->load) st = d->be->load(d, g, err);
    g->loaded = st == TERN_OK;
out:
    if (st != TERN_OK) {
        unbind_weights(g);
        if (g->scale[0]) mem_free(d, g->scale[0]);
        g->scale[0] = NULL;
        release(d, g->load_bytes);
    }
    return st;
}

void tn_npu_unload(tn_npu_graph *g) {
    if (!g->loaded) return;
    tn_npu_device *d = g->dev;
    pthread_mutex_lock(&d->mu);
    while (g->n_jobs) pthread_cond_wait(&d->done, &d->mu);
    pthread_mutex_unlock(&d->mu);
    g->loaded = false;
    if (d->be->unload) d->be->unload(d, g);
    unbind_weights(g);
    mem_free(d, g->scale[0]);
    g->scale[0] = NULL;
    release(d, g->load_bytes);
}

void tn_npu_graph_close(tn_npu_graph **pg) {
    tn_npu_graph *g = *pg;
    if (!g) return;
    *pg = NULL;
    tn_npu_unload(g);
    tn_free(g->dev->ctx, g);
}

/* ---- execution ------------------------------------------------------------------------------------- */

static tern_status check_job(const tn_npu_job *j, tern_error *err) {
    const tn_npu_graph *g = j->graph;
    TN_FAIL_IF(!g || !g->loaded, err, TERN_E_INVALID, "the job's graph is not loaded");
    TN_FAIL_IF(j->n_rows < 1 || j->n_rows > g->desc.m, err, TERN_E_INVALID, "%d rows; the graph has 1..%d",
               j->n_rows, g->desc.m);
    for (int i = 0; i < g->desc.n_ops; i++) {
        TN_FAIL_IF(!j->out[i] || !tn_npu_op_in(j, i), err, TERN_E_INVALID, "op %d: no input or output given",
                   i);
        if (g->desc.kind != TN_NPU_QK) continue;
        TN_FAIL_IF(!j->k[i].tiles || (uintptr_t)j->k[i].tiles % 64 || !j->k[i].col_sum, err, TERN_E_INVALID,
                   "op %d: K needs tiles (64-byte aligned) and column sums", i);
        TN_FAIL_IF(j->k[i].n_pos < 1 || j->k[i].n_pos > g->desc.ops[i].n, err, TERN_E_INVALID,
                   "op %d: %d positions; the graph has 1..%d", i, j->k[i].n_pos, g->desc.ops[i].n);
    }
    return TERN_OK;
}

tern_status tn_npu_submit(tn_npu_job *j, tern_error *err) {
    TN_TRY(check_job(j, err));
    TN_FAIL_IF(atomic_load_explicit(&j->state, memory_order_acquire) == TN_NPU_JOB_RUNNING, err,
               TERN_E_INVALID, "the job is running already");
    tn_npu_device *d = j->graph->dev;
    j->status = TERN_OK;
    atomic_store_explicit(&j->state, TN_NPU_JOB_RUNNING,
                          memory_order_relaxed); /* published by the backend's queue */
    pthread_mutex_lock(&d->mu);
    j->graph->n_jobs++;
    pthread_mutex_unlock(&d->mu);
    d->be->submit(d, j);
    return TERN_OK;
}

void tn_npu_complete(tn_npu_device *d, tn_npu_job *j, tern_status st) {
    j->status = st;
    if (j->on_done) j->on_done(j->user, j, st);
    pthread_mutex_lock(&d->mu);
    j->graph->n_jobs--;
    atomic_store_explicit(&j->state, TN_NPU_JOB_DONE,
                          memory_order_release); /* from here on the job belongs to its owner */
    pthread_cond_broadcast(&d->done);
    pthread_mutex_unlock(&d->mu);
}

bool tn_npu_done(const tn_npu_job *j) {
    return atomic_load_explicit(&j->state, memory_order_acquire) == TN_NPU_JOB_DONE;
}

tern_status tn_npu_wait(tn_npu_job *j) {
    enum { SPINS = 200 }; /* about the time of a futex call: short products end within it */
    for (int i = 0; i < SPINS && !tn_npu_done(j); i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    if (!tn_npu_done(j)) {
        tn_npu_device *d = j->graph->dev;
        pthread_mutex_lock(&d->mu);
        while (atomic_load_explicit(&j->state, memory_order_relaxed) == TN_NPU_JOB_RUNNING)
            pthread_cond_wait(&d->done, &d->mu);
        pthread_mutex_unlock(&d->mu);
    }
    return j->status;
}

tern_status tn_npu_run_part(const tn_npu_job *j, int32_t i, int32_t n, tern_error *err) {
    TN_TRY(check_job(j, err));
    tn_npu_device *d = j->graph->dev;
    TN_FAIL_IF(!d->caps.has_parts, err, TERN_E_UNSUPPORTED, "the %s NPU runs whole graphs only",
               d->caps.name);
    TN_FAIL_IF(n < 1 || i < 0 || i >= n, err, TERN_E_INVALID, "part %d of %d", i, n);
    d->be->run_part(d, j, i, n);
    return TERN_OK;
}

tern_status tn_npu_compute_here(const tn_npu_job *j, const tn_kernels *k, tern_error *err) {
    TN_TRY(check_job(j, err));
    tn_npu_device *d = j->graph->dev;
    TN_FAIL_IF(!d->caps.cpu_computes, err, TERN_E_UNSUPPORTED,
               "the CPU cannot do the work of the %s NPU: its memory is not shared, or in another layout",
               d->caps.name);
    if (d->be->run_part) d->be->run_part(d, j, 0, 1);
    else d->be->compute(k, j);
    return TERN_OK;
}

int32_t tn_npu_n_parts(const tn_npu_job *j) {
    const tn_npu_device *d = j->graph->dev;
    return d->be->n_parts ? d->be->n_parts(d, j) : 1;
}

bool tn_npu_help(tn_npu_device *d) { return d->caps.has_parts && d->be->help(d); }
