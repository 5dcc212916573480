/* quant/rows.c - rows of a linear to codes, each weight by itself, and the allocation of bits. */
#include "quant/packer.h"

#include "base/status.h"
#include "quant/allocate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void *tn_hoard_keep(hoard *h, size_t n, size_t size) {
    void *p = h->n < 256 ? tn_calloc(h->ctx, TN_MEM_OTHER, n, size) : NULL;
    if (p) h->blocks[h->n++] = p;
    return p;
}

void tn_hoard_drop(hoard *h) {
    while (h->n) tn_free(h->ctx, h->blocks[--h->n]);
}

enum { ROWS_PER_ITEM = 64 };

/* Codes 2u - (2^B - 1) of a row; returns the scale with the least squared error among several that clip
 * the largest weights. */
static float quantise_narrow(const float *w, size_t k, float max, unsigned bits, int8_t *q) {
    int top = (1 << bits) - 1;
    float best = 1, best_error = INFINITY;
    for (int pass = 0; pass <= 16 && max > 0; pass++) { /* the last one keeps the best */
        float scale = pass == 16 ? best
                                 : max / (float)(1 << bits) * (1 - (bits > 5 ? 0.01f : 0.045f) * (float)pass),
              inv = 0.5f / scale, error = 0;
        for (size_t i = 0; i < k; i++) {
            float u = fminf(fmaxf(nearbyintf(w[i] * inv + 0.5f * (float)top), 0), (float)top),
                  v = 2 * u - (float)top, d = w[i] - v * scale;
            q[i] = (int8_t)v;
            error += d * d;
        }
        if (error < best_error) {
            best_error = error;
            best = scale;
        }
    }
    if (!(max > 0)) {
        for (size_t i = 0; i < k; i++) q[i] = 1; /* there is no zero code, so the scale is zero */
        return 0;
    }
    if (bits > 1) return best;
    double sum = 0; /* one bit: the sign, and the mean magnitude */
    for (size_t i = 0; i < k; i++) sum += (double)fabsf(w[i]);
    return (float)(sum / (double)k);
}

/* Symmetric per output channel: scale = max |w| / 127, or fewer bits. */
static void quantise_rows(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    quantise_job *j = arg;
    if (atomic_load(&j->failed)) return;
    int64_t n0 = (int64_t)i_item * ROWS_PER_ITEM, n1 = n0 + ROWS_PER_ITEM < j->n ? n0 + ROWS_PER_ITEM : j->n;
    size_t n_values = (size_t)(n1 - n0) * (size_t)j->k;
    float *w = tn_alloc(j->p->ctx, TN_MEM_OTHER, n_values, sizeof *w);
    int8_t *q = tn_alloc(j->p->ctx, TN_MEM_OTHER, n_values, 1);
    tern_error err;
    tern_status st = w && q ? tn_source_read(j->p->src, j->layer, j->role, n0, n1, w, &err)
                            : tn_fail(&err, TERN_E_MEMORY, "no memory to quantise");
    for (int64_t n = n0; n < n1 && st == TERN_OK; n++) {
        float *row = w + (n - n0) * j->k, max = 0;
        for (int64_t k = 0; k < j->k; k++) {
            if (j->smooth) row[k] *= j->smooth[k];
            max = fmaxf(max, fabsf(row[k]));
        }
        if (j->peak) {
            double sum = 0;
            for (int64_t k = 0; k < j->k; k++) sum += (double)row[k] * (double)row[k];
            j->peak[n] = sum > 0 ? (float)((double)max * (double)max * (double)j->k / sum) : 0;
            continue;
        }
        unsigned bits = j->bits ? tn_channel_bits_get(j->bits, (size_t)n) : 8;
        if (bits < 8) {
            j->scale[n] = quantise_narrow(row, (size_t)j->k, max, bits, q + (n - n0) * j->k);
            continue;
        }
        float scale = max > 0 ? max / 127 : 1, inv = 1 / scale;
        j->scale[n] = scale;
        for (int64_t k = 0; k < j->k; k++)
            q[(n - n0) * j->k + k] = (int8_t)fminf(fmaxf(nearbyintf(row[k] * inv), -127), 127);
    }
    if (st == TERN_OK && !j->peak) tn_npu_tiles_pack(&tn_pack_layout, j->tiles, j->col_sum, q, n0, n1, j->k);
    if (st == TERN_OK && j->bits) {
        tn_weightlets_pack(j->weightlets + tn_weightlets_bytes(j->bits, 0, (size_t)n0, (size_t)j->k), j->bits,
                           q, (size_t)n0, (size_t)n1, (size_t)j->k);
    }
    if (st != TERN_OK && !atomic_exchange(&j->failed, true)) j->err = err;
    tn_free(j->p->ctx, w);
    tn_free(j->p->ctx, q);
}

tern_status tn_rows_quantise(packer *p, quantise_job *j, tern_error *err) {
    tn_pool_for(p->pool, (int)((j->n + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM), quantise_rows, j);
    if (!atomic_load(&j->failed)) return TERN_OK;
    if (err) *err = j->err;
    return j->err.code;
}

static int by_peak(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a,
                   y = *(const uint64_t *)b; /* the bits of a non-negative float, then the channel */
    return x < y ? -1 : x > y;
}

static tern_status allocate_cmpq(packer *p, const float *peak, size_t n, uint8_t *bits, tern_error *err) {
    uint64_t *order = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *order);
    TN_FAIL_IF(!order, err, TERN_E_MEMORY, "no memory to allocate bits");
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &peak[i], sizeof u);
        order[i] = (uint64_t)u << 32 | i;
    }
    qsort(order, n, sizeof *order, by_peak);
    for (size_t i = 0; i < n; i++) {
        int b = (int)p->bits + (i < n / 4 ? -1 : i >= n - n / 4 ? 1 : 0);
        bits[(uint32_t)order[i]] = (uint8_t)(b < 1 ? 1 : b > 8 ? 8 : b);
    }
    tn_free(p->ctx, order);
    return TERN_OK;
}

/* Measures every row, allocates the bits, makes room for the weightlets. */
tern_status tn_rows_allocate(packer *p, hoard *h, quantise_job *j, tern_error *err) {
    uint8_t *bits = tn_hoard_keep(h, (size_t)j->n, 1),
            *packed = tn_hoard_keep(h, tn_channel_bits_bytes((size_t)j->n), 1);
    TN_FAIL_IF(!bits || !packed, err, TERN_E_MEMORY, "no memory to pack");
    if (p->allocation == TN_ALLOCATE_UNIFORM) {
        memset(bits, (int)p->bits, (size_t)j->n);
    } else if (p->model_bits) {
        memcpy(bits, p->model_bits + p->n_model_bits, (size_t)j->n);
        p->n_model_bits += (size_t)j->n;
    } else {
        j->peak = tn_hoard_keep(h, (size_t)j->n, sizeof *j->peak);
        TN_FAIL_IF(!j->peak, err, TERN_E_MEMORY, "no memory to pack");
        TN_TRY(tn_rows_quantise(p, j, err));
        if (p->allocation == TN_ALLOCATE_CMPQ) TN_TRY(allocate_cmpq(p, j->peak, (size_t)j->n, bits, err));
        else TN_TRY(tn_allocate_bits(p->ctx, j->peak, NULL, (size_t)j->n, p->bits, bits, err));
        j->peak = NULL;
    }
    for (int64_t n = 0; n < j->n; n++) tn_channel_bits_put(packed, (size_t)n, bits[n]);
    j->weightlets = tn_hoard_keep(h, tn_weightlets_bytes(packed, 0, (size_t)j->n, (size_t)j->k), 1);
    TN_FAIL_IF(!j->weightlets, err, TERN_E_MEMORY, "no memory to pack");
    j->bits = packed;
    return TERN_OK;
}

/* The channels of every layer's linears share one budget: measures all of them first. */
tern_status tn_rows_allocate_model(packer *p, tern_error *err) {
    const tn_program *prog = &p->m->program; /* sites as put_layer writes them */
    size_t n = 0;
    for (int32_t i = 0; i < prog->n_sites; i++)
        n += prog->sites[i].kind == TN_SITE_LM_HEAD ? 0 : (size_t)tn_program_linears(prog, i)->n_total;
    float *peak = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *peak);
    uint32_t *n_weights = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *n_weights);
    p->model_bits = tn_alloc(p->ctx, TN_MEM_OTHER, n, 1);
    tern_status st = peak && n_weights && p->model_bits
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory to allocate the bits of %zu channels", n);
    size_t at = 0;
    for (int layer = 0; layer < p->m->h.n_layers && st == TERN_OK; layer++) {
        int32_t first, n_sites = tn_program_layer_sites(prog, layer, &first);
        for (int32_t i = first; i < first + n_sites; i++) {
            const tn_site_ops ops = *tn_program_linears(prog, i);
            for (int32_t op = 0; op < ops.n_ops && st == TERN_OK; op++) {
                quantise_job j = {.p = p,
                                  .layer = layer,
                                  .role = ops.roles[op],
                                  .smooth = p->plans[i].smooth,
                                  .n = ops.n[op],
                                  .k = ops.k,
                                  .peak = peak + at};
                st = tn_rows_quantise(p, &j, err);
                for (int32_t c = 0; c < ops.n[op]; c++) n_weights[at++] = (uint32_t)ops.k;
            }
        }
        tn_source_release(p->src, layer);
        if (st == TERN_OK && !tn_progress(p->ctx, "allocate", (layer + 1.0) / p->m->h.n_layers))
            st = tn_fail(err, TERN_E_CANCELLED, "packing was cancelled");
    }
    if (st == TERN_OK) st = tn_allocate_bits(p->ctx, peak, n_weights, n, p->bits, p->model_bits, err);
    tn_free(p->ctx, peak);
    tn_free(p->ctx, n_weights);
    return st;
}
