/* Quantising rows with a site's static scale, and the outlier path: clipped-off values times their weight
 * rows, in float beside the device's product (llm.npu 3.3). */
#include "base/status.h"
#include "prefill/impl.h"

#include <string.h>
#include <xxhash.h>

void tn_quantise_row(tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row, float *x) {
    const quantised *q = &c->in;
    uint8_t *out = q->x + (size_t)row * (size_t)s->in_stride;
    size_t k = (size_t)s->ops.k;
    if (s->inverse) { /* others read x undivided */
        float *own = q->own + (size_t)row * k;
        for (size_t i = 0; i < k; i++) own[i] = x[i] * s->inverse[i];
        x = own;
    }
    if (s->rotated) tn_hadamard_wide(p->kern->hadamard_f32, x, k, (size_t)s->rotated);
    if (!s->has_outliers) {
        p->kern->quantise_s8(x, s->inv_scale, out, k);
        return;
    }
    size_t off = (size_t)row * (size_t)p->out_cap;
    size_t n = p->kern->quantise_outliers(x, s->inv_scale, s->act_scale, out, k, 0, q->channel + off,
                                          q->resid + off, (size_t)p->out_cap);
    if (n > (size_t)p->out_cap) {
        atomic_fetch_add_explicit(&p->n_dropped, n - (size_t)p->out_cap, memory_order_relaxed);
        n = (size_t)p->out_cap;
    }
    q->n_out[row] = (uint32_t)n;
    atomic_fetch_add_explicit(&p->n_outliers, n, memory_order_relaxed);
}

/* Finds the weights of one input channel to all outputs of a site: resident for hot channels, else copied to
 * dst. */
static tern_status weight_row(tn_pipeline *p, const tn_npu_site *s, uint32_t channel, int8_t *dst,
                              const int8_t **row, tern_error *err) {
    size_t n_total = (size_t)s->ops.n_total;
    *row = s->hot_rows[channel];
    if (*row) return TERN_OK;
    *row = dst;
    if (p->m->cold_from_file) {
        TN_TRY(tn_pkg_read_range(p->m->pkg, s->rows_section, s->rows_off_bytes + (uint64_t)channel * n_total,
                                 n_total, dst, err));
        TN_FAIL_IF(XXH32(dst, n_total, 0) != s->row_hash[channel], err, TERN_E_FORMAT,
                   "layer %d: the weights of input channel %u of %s are damaged in the package",
                   s->rows_section->layer, channel, tn_role_name(s->ops.roles[0]));
        return TERN_OK;
    }
    const tn_npu_layout *l = &tn_npu_device_caps(tn_npu_site_device(p->m, s))->layout;
    for (int32_t op = 0; op < s->ops.n_ops; dst += s->ops.n[op++]) {
        tn_npu_tiles_column(l, s->image[op].tiles, s->ops.n[op], s->ops.k, channel, dst);
    }
    return TERN_OK;
}

/* Collects pointers to the weight rows of a row's outliers, by channel. */
static tern_status gather(tn_pipeline *p, const quantised *q, const tn_npu_site *s, int32_t row,
                          cold_cache *cold, tern_error *err) {
    const uint32_t *channel = q->channel + (size_t)row * (size_t)p->out_cap;
    size_t n = q->n_out[row], n_cold = 0;
    for (size_t i = 0; i < n; i++) {
        int8_t *dst = cold->rows + n_cold * (size_t)p->m->max_outlier_n;
        TN_TRY(weight_row(p, s, channel[i], dst, &cold->ptrs[channel[i]], err));
        n_cold += cold->ptrs[channel[i]] == dst;
    }
    atomic_fetch_add_explicit(&p->cold_misses, n_cold, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->hot_hits, n - n_cold, memory_order_relaxed);
    return TERN_OK;
}

bool tn_site_has_beside(const tn_pipeline *p, int32_t site) {
    bool changed = false;
    for (int32_t i = 0; i < p->model->n_loras; i++) changed = changed || p->model->loras[i]->sites[site].rank;
    return changed || p->m->sites[site].has_outliers;
}

/* Number of the row's values that were clipped at the site. */
static size_t n_cut(const quantised *q, const tn_npu_site *s, int32_t row) {
    return s->has_outliers ? q->n_out[row] : 0;
}

/* The adapters of a row's text if they change the site, else NULL. lm_head is handled separately. */
static const tn_lora_mix *lora_of(const tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row) {
    int32_t own;
    if (s->kind == TN_SITE_LM_HEAD) return NULL;
    const tn_lora_mix *mix = p->lora ? tn_frame_of(p, c, row, &own)->r->lora : NULL;
    return tn_lora_at(mix, (int32_t)(s - p->m->sites)) ? mix : NULL;
}

static float *share_of(const tn_pipeline *p, const quantised *q, int32_t row) {
    return q->share + (size_t)row * (size_t)p->share_n;
}

static tern_status cut_off(tn_pipeline *p, const quantised *q, const tn_npu_site *s, int32_t row,
                           int i_worker, tern_error *err) {
    cold_cache *cold = &p->cold[i_worker];
    size_t n = n_cut(q, s, row), n_off = 0;
    if (!n) return TERN_OK;
    TN_TRY(gather(p, q, s, row, cold, err));
    const uint32_t *channel = q->channel + (size_t)row * (size_t)p->out_cap, first[2] = {0, (uint32_t)n};
    for (int32_t op = 0; op < s->ops.n_ops; op++) {
        size_t n_op = (size_t)s->ops.n[op];
        for (size_t i = 0; i < n; i++) cold->ptrs[channel[i]] += op ? s->ops.n[op - 1] : 0;
        tn_outlier_f32_args a = {.out = share_of(p, q, row) + n_off,
                                 .ldo = n_op,
                                 .m = 1,
                                 .n0 = 0,
                                 .n1 = n_op,
                                 .first = first,
                                 .channel = channel,
                                 .resid = q->resid + (size_t)row * (size_t)p->out_cap,
                                 .w_rows = cold->ptrs,
                                 .scale = s->image[op].scale};
        p->kern->outlier_f32(&a);
        n_off += n_op;
    }
    return TERN_OK;
}

/* Adapters process the rows of one text together. */
static void add_loras(tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row0, int32_t row1,
                      int i_worker) {
    float *out[TN_SITE_MAX_OPS];
    size_t ldo[TN_SITE_MAX_OPS], k = (size_t)s->ops.k;
    const int32_t site = (int32_t)(s - p->m->sites);
    const tn_buffer in = p->model->program.ops[p->model->program.sites[site].op].in;
    for (int32_t row = row0, end; row < row1; row = end) {
        const tn_lora_mix *mix = lora_of(p, c, s, row);
        for (end = row + 1; end < row1 && lora_of(p, c, s, end) == mix;) end++;
        if (!mix) continue;
        for (int32_t op = 0, at = 0; op < s->ops.n_ops; at += s->ops.n[op++]) {
            out[op] = share_of(p, &c->in, row) + at;
            ldo[op] = (size_t)p->share_n;
        }
        tn_lora_rows(mix, p->kern, &s->ops, site, c->f.buf[in] + (size_t)row * k, k, end - row, out, ldo,
                     p->lora + (size_t)i_worker * p->lora_stride);
    }
}

tern_status tn_outlier_rows(tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row0, int32_t row1,
                            int i_worker, tern_error *err) {
    for (int32_t row = row0; row < row1; row++) {
        if (n_cut(&c->in, s, row) || lora_of(p, c, s, row))
            memset(share_of(p, &c->in, row), 0, (size_t)s->ops.n_total * sizeof(float));
        TN_TRY(cut_off(p, &c->in, s, row, i_worker, err));
    }
    if (p->lora) add_loras(p, c, s, row0, row1, i_worker);
    return TERN_OK;
}

void tn_outliers_merge(tn_pipeline *p, const chunk *c, const tn_npu_site *s, int32_t row0, int32_t row1) {
    for (int32_t row = row0; row < row1; row++) {
        if (!n_cut(&c->in, s, row) && !lora_of(p, c, s, row)) continue;
        const float *share = share_of(p, &c->in, row);
        for (int32_t op = 0; op < s->ops.n_ops; op++) {
            size_t n = (size_t)s->ops.n[op];
            p->kern->add_f32(c->f.buf[tn_role_buffer(s->ops.roles[op])] + (size_t)row * n, share, 1.0f, n);
            share += n;
        }
    }
}

/* One row of a linear whose outputs left the device in 8 bits: (u8 - 128) * scale * factor, plus factor times
 * the outliers' contribution, which was computed with the device's scales. */
static void take_row(const uint8_t *q, const float *share, float scale, const float *factor, float *out,
                     size_t n) {
    for (size_t i = 0; i < n; i++) {
        float y = (float)(q[i] - 128) * scale;
        out[i] = (share ? y + share[i] : y) * factor[i];
    }
}

void tn_outputs_take(tn_pipeline *p, int32_t i_chunk, int32_t site, int32_t row0, int32_t row1) {
    const tn_npu_site *s = &p->m->sites[site];
    chunk *c = &p->chunks[i_chunk];
    if (!s->out_factor[0]) {
        tn_outliers_merge(p, c, s, row0, row1);
        return;
    }
    const tn_npu_job *job = tn_job_of(p, i_chunk, site);
    for (int32_t row = row0; row < row1; row++) {
        bool any = n_cut(&c->in, s, row) || lora_of(p, c, s, row);
        const float *share = any ? share_of(p, &c->in, row) : NULL;
        for (int32_t op = 0; op < s->ops.n_ops; op++) {
            size_t n = (size_t)s->ops.n[op];
            take_row((const uint8_t *)job->out[op] + (size_t)row * n, share, s->out_scale[op],
                     s->out_factor[op], c->f.buf[tn_role_buffer(s->ops.roles[op])] + (size_t)row * n, n);
            share = any ? share + n : NULL;
        }
    }
}
