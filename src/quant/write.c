/* quant/write.c - a package's sections of tensors. */
#include "base/file.h"
#include "base/half.h"
#include "base/status.h"
#include "formats/gguf.h"
#include "model/tower.h"
#include "quant/packer.h"
#include "quant/readback.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

static tern_status add_vector(packer *p, hoard *h, int layer, tn_role role, const float *divide_by,
                              tern_error *err) {
    if (!tn_source_has(p->src, layer, role)) return TERN_OK;
    int64_t rows, cols;
    tn_role_shape(&p->m->h, layer, role, &rows, &cols);
    int64_t n_rows = rows;
    cols *= rows; /* the taps of a convolution are rows */
    float *v = tn_hoard_keep(h, (size_t)cols, sizeof *v);
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory to pack");
    TN_TRY(tn_source_read(p->src, layer, role, 0, n_rows, v, err));
    for (int64_t i = 0; divide_by && i < cols; i++) v[i] /= divide_by[i];
    return tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_F32, .n = 1, .k = cols}, v,
                      (uint64_t)cols * sizeof *v, err);
}

/* Weights of the model level (bits: weightlets, NULL: tiles; coded: streams of them), written after the
 * layers. The hashes of their column tiles or streams come earlier, so that rows can be looked up before
 * everything is read. */
static tern_status put_off(packer *p, hoard *h, const tn_pkg_record *r, const void *weights,
                           const uint8_t *bits, const tn_pack_coded *coded, uint64_t n_bytes,
                           tern_error *err) {
    int64_t tile_n = tn_pack_layout.tile_n,
            n_tiles = coded->bytes ? (int64_t)coded->n_streams : (r->n + tile_n - 1) / tile_n;
    uint32_t *hash = tn_hoard_keep(h, (size_t)n_tiles, sizeof *hash);
    TN_FAIL_IF(!hash, err, TERN_E_MEMORY, "no memory to pack");
    const uint8_t *at = weights;
    for (int64_t i = 0; i < n_tiles; i++) {
        int64_t end = (i + 1) * tile_n < r->n ? (i + 1) * tile_n : r->n;
        uint64_t size = coded->bytes ? coded->sizes[i]
                        : bits ? tn_weightlets_bytes(bits, (size_t)(i * tile_n), (size_t)end, (size_t)r->k)
                               : n_bytes / (uint64_t)n_tiles;
        hash[i] = XXH32(at, size, 0);
        at += size;
    }
    p->head[p->n_head] = *r;
    p->head[p->n_head].size_bytes = n_bytes;
    p->head_data[p->n_head++] = weights;
    return tn_pkg_add(p->w, &(tn_pkg_record){.role = r->role, .part = TN_PKG_TILE_HASH, .n = n_tiles, .k = 1},
                      hash, (uint64_t)n_tiles * sizeof *hash, err);
}

/* Scheme gram's result for a linear, or NULL. */
static const tn_rounded *made_linear(const packer *p, int layer, tn_role role) {
    if (!p->made) return NULL;
    if (layer < 0 && role == TN_W_EMBD && !p->m->h.tied) return &p->embedding;
    int32_t first = p->m->program.n_sites - 1, n = 1;
    if (layer >= 0) n = tn_program_layer_sites(&p->m->program, layer, &first);
    for (int32_t i = 0; i < n; i++) {
        const tn_site_ops *ops = tn_program_linears(&p->m->program, first + i);
        for (int32_t op = 0; op < ops->n_ops; op++) {
            if (ops->roles[op] == role) return &p->made[first + i].ops[op];
        }
    }
    return NULL;
}

/* Divisors of a linear's outputs that give the next linear smoothed inputs: V for o, up for down, each
 * expert's up for its down. They go into the row's scale; its codes do not change. *out [n]; NULL: none. */
static tern_status divisors(const packer *p, hoard *h, int layer, tn_role role, int64_t n, const float **out,
                            tern_error *err) {
    const site_plan *experts = NULL;
    const float *smooth = NULL;
    bool folds = p->o->scheme == TN_SCHEME_EDGEFLOW || p->o->scheme == TN_SCHEME_GRAM;
    if (folds && role == TN_W_V &&
        !tn_program_divides(&p->m->program, tn_program_site_index(&p->m->program, layer, TN_SITE_O)))
        smooth = plan_of(p, layer, TN_SITE_O)->smooth;
    if (folds && role == TN_W_UP) smooth = plan_of(p, layer, TN_SITE_DOWN)->smooth;
    if (folds && role == TN_W_UP_EXPS &&
        !tn_program_divides(&p->m->program,
                            tn_program_site_index(&p->m->program, layer, TN_SITE_EXPERTS_DOWN)))
        experts = plan_of(p, layer, TN_SITE_EXPERTS_DOWN);
    if (experts) smooth = experts->smooth;
    *out = NULL;
    if (!smooth) return TERN_OK;
    float *d = tn_hoard_keep(h, (size_t)n, sizeof *d);
    TN_FAIL_IF(!d, err, TERN_E_MEMORY, "no memory to pack");
    int32_t group = p->m->h.n_heads / p->m->h.n_kv_heads, width = p->m->h.d_head;
    for (int64_t i = 0; i < n; i++)
        d[i] = smooth[role == TN_W_V                  ? i / width * group * width + i % width
                      : experts && !experts->n_smooth ? i % p->m->h.n_ff_exp
                                                      : i];
    *out = d;
    return TERN_OK;
}

/* Outputs in 8 bits: the device's outputs are divided by the plan's factors, and the CPU multiplies by what
 * is left of them after *divide_by, which becomes the device's divisor. */
static tern_status add_output(packer *p, hoard *h, tn_role role, const tn_output_plan *output, int64_t n,
                              const float **divide_by, tern_error *err) {
    int64_t n_pad = (n + tn_pack_layout.tile_n - 1) / tn_pack_layout.tile_n * tn_pack_layout.tile_n;
    float *left = tn_hoard_keep(h, (size_t)n_pad, sizeof *left);
    TN_FAIL_IF(!left, err, TERN_E_MEMORY, "no memory to pack");
    for (int64_t i = 0; i < n; i++) left[i] = output->factor[i] / (*divide_by ? (*divide_by)[i] : 1);
    *divide_by = output->factor;
    tn_pkg_record r = {.role = role, .part = TN_PKG_OUTPUT, .n = n, .k = 1, .act_scale = output->scale};
    return tn_pkg_add(p->w, &r, left, (uint64_t)n_pad * sizeof *left, err);
}

/* Checksums of every expert's part of the joint linear, so that a part may be read alone. */
static tern_status add_expert_hashes(packer *p, hoard *h, const tn_pkg_record *r, const void *weights,
                                     const uint8_t *bits, uint64_t n_bytes, tern_error *err) {
    size_t n = (size_t)p->m->h.n_experts, each = (size_t)r->n / n;
    uint32_t *hash = tn_hoard_keep(h, n, sizeof *hash);
    TN_FAIL_IF(!hash, err, TERN_E_MEMORY, "no memory to pack");
    const uint8_t *at = weights;
    for (size_t e = 0; e < n; e++) {
        uint64_t size =
            bits ? tn_weightlets_bytes(bits, e * each, (e + 1) * each, (size_t)r->k) : n_bytes / n;
        hash[e] = XXH32(at, size, 0);
        at += size;
    }
    return tn_pkg_add(p->w,
                      &(tn_pkg_record){.role = r->role, .part = TN_PKG_EXPERT_HASH, .n = (int64_t)n, .k = 1},
                      hash, n * sizeof *hash, err);
}

/* Scales and sums of a linear's rows: short, or long where some do not fit. */
static tern_status add_rows(packer *p, hoard *h, const quantise_job *j, int64_t n_pad, tern_error *err) {
    tn_pkg_record r = {.role = j->role, .part = TN_PKG_ROWS16, .n = j->n, .k = 1};
    uint16_t *rows16 = tn_hoard_keep(h, 2 * (size_t)n_pad, sizeof *rows16);
    TN_FAIL_IF(!rows16, err, TERN_E_MEMORY, "no memory to pack");
    if (tn_pkg_rows16_pack(j->scale, j->col_sum, (size_t)n_pad, rows16, &r.act_scale))
        return tn_pkg_add(p->w, &r, rows16, 4 * (uint64_t)n_pad, err);
    r.act_scale = 0;
    r.part = TN_PKG_SCALE;
    TN_TRY(tn_pkg_add(p->w, &r, j->scale, 4 * (uint64_t)n_pad, err));
    r.part = TN_PKG_COL_SUM;
    return tn_pkg_add(p->w, &r, j->col_sum, 4 * (uint64_t)n_pad, err);
}

/* Turns weightlets into streams if that was asked for and makes them smaller: replaces *weights, *n_bytes
 * and the record. Experts stay plain, because each is read alone. */
static tern_status code(packer *p, hoard *h, const uint8_t *bits, tn_pkg_record *r, const void **weights,
                        uint64_t *n_bytes, tn_pack_coded *coded, tern_error *err) {
    const tn_role role = (tn_role)r->role;
    *coded = (tn_pack_coded){0};
    p->report->plain_bytes += *n_bytes;
    p->report->coded_bytes += *n_bytes;
    if (!p->o->compress || !bits || role == TN_W_GATE_EXPS || role == TN_W_UP_EXPS || role == TN_W_DOWN_EXPS)
        return TERN_OK;
    tn_pack_coded c;
    TN_TRY(tn_pack_code(p, h, role == TN_W_EMBD, *weights, bits, (size_t)r->n, (size_t)r->k, &c, err));
    if (c.n_bytes + c.streams_bytes >= *n_bytes) return TERN_OK;
    *coded = c;
    const tn_pkg_record about = {
        .role = role, .part = TN_PKG_STREAMS, .n = (int64_t)c.n_streams, .k = (int64_t)c.n_tables};
    p->report->coded_bytes -= *n_bytes - c.n_bytes - c.streams_bytes;
    r->flags |= TN_PKG_CODED;
    r->plain_bytes = *n_bytes;
    *weights = c.bytes;
    *n_bytes = c.n_bytes;
    return tn_pkg_add(p->w, &about, c.streams, c.streams_bytes, err);
}

/* One linear of a site: tiles, sums, scales, bias. rows (may be NULL) gets W by input channel at column
 * offset n_off of n_total. */
static tern_status add_linear(packer *p, hoard *h, int layer, tn_role role, tn_role bias,
                              const site_plan *plan, const tn_output_plan *output, int64_t n, int64_t k,
                              int8_t *rows, int64_t n_off, int64_t n_total, tern_error *err) {
    int64_t n_pad = (n + tn_pack_layout.tile_n - 1) / tn_pack_layout.tile_n * tn_pack_layout.tile_n;
    uint64_t tile_bytes = tn_npu_tiles_bytes(&tn_pack_layout, n, k);
    const tn_rounded *made = made_linear(p, layer, role);
    quantise_job j = {.p = p,
                      .layer = layer,
                      .role = role,
                      .smooth = plan->smooth,
                      .n = n,
                      .k = k,
                      .tiles = tn_hoard_keep(h, made ? 1 : tile_bytes, 1),
                      .col_sum = tn_hoard_keep(h, (size_t)n_pad, 4),
                      .scale = tn_hoard_keep(h, (size_t)n_pad, 4)};
    TN_FAIL_IF(!j.tiles || !j.col_sum || !j.scale, err, TERN_E_MEMORY, "no memory to pack");
    if (made) {
        j.bits = made->bits;
        j.weightlets = made->weightlets;
        memcpy(j.scale, made->scale, (size_t)n_pad * 4);
        memcpy(j.col_sum, made->col_sum, (size_t)n_pad * 4);
    } else {
        if (layer >= 0 && (p->o->scheme == TN_SCHEME_EDGEFLOW || p->bits < 8))
            TN_TRY(tn_rows_allocate(p, h, &j, err));
        TN_TRY(tn_rows_quantise(p, &j, err));
    }
    const float *divide_by = NULL;
    TN_TRY(divisors(p, h, layer, role, n, &divide_by, err));
    if (output) TN_TRY(add_output(p, h, role, output, n, &divide_by, err));
    for (int64_t i = 0; divide_by && i < n; i++) j.scale[i] /= divide_by[i];
    tn_pkg_record r = {
        .role = role,
        .part = TN_PKG_TILES,
        .n = n,
        .k = k,
        .act_scale = plan->clip / 127,
        .flags = (plan->outliers ? TN_PKG_HAS_OUTLIERS : 0u) | (plan->rotated ? TN_PKG_ROTATED : 0u) |
                 (plan->rotated == 256                  ? TN_PKG_WIDER
                  : plan->rotated == TN_HADAMARD_WIDEST ? TN_PKG_WIDEST
                                                        : 0u) |
                 (output ? TN_PKG_OUTPUT_INT8 : 0u) |
                 (plan->smooth && tn_program_divides_alone(&p->m->program, (int32_t)(plan - p->plans))
                      ? TN_PKG_DIVIDED
                      : 0u)};
    if (j.bits) {
        TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_CHANNEL_BITS, .n = n, .k = 1},
                          j.bits, tn_channel_bits_bytes((size_t)n), err));
        r.part = TN_PKG_WEIGHTLETS;
    }
    const void *weights = j.bits ? (const void *)j.weightlets : j.tiles;
    uint64_t n_bytes = j.bits ? tn_weightlets_bytes(j.bits, 0, (size_t)n, (size_t)k) : tile_bytes;
    tn_pack_coded coded;
    TN_TRY(code(p, h, j.bits, &r, &weights, &n_bytes, &coded, err));
    if (role == TN_W_GATE_EXPS || role == TN_W_UP_EXPS || role == TN_W_DOWN_EXPS)
        TN_TRY(add_expert_hashes(p, h, &r, weights, j.bits, n_bytes, err));
    if (layer >= 0) TN_TRY(tn_pkg_add(p->w, &r, weights, n_bytes, err));
    else TN_TRY(put_off(p, h, &r, weights, j.bits, &coded, n_bytes, err));
    TN_TRY(add_rows(p, h, &j, n_pad, err));
    if (bias != TN_W_N_ROLES && tn_source_has(p->src, layer, bias)) {
        float *b = tn_hoard_keep(h, (size_t)n_pad, sizeof *b);
        TN_FAIL_IF(!b, err, TERN_E_MEMORY, "no memory to pack");
        TN_TRY(tn_source_read(p->src, layer, bias, 0, 1, b, err));
        for (int64_t i = 0; divide_by && i < n; i++) b[i] /= divide_by[i];
        TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_BIAS, .n = n, .k = 1}, b,
                          (uint64_t)n_pad * 4, err));
    }
    if (rows) {
        int8_t *row = tn_hoard_keep(h, (size_t)k, 1);
        TN_FAIL_IF(!row, err, TERN_E_MEMORY, "no memory to pack");
        for (int64_t i = 0; i < n; i++) {
            tn_npu_tiles_row(&tn_pack_layout, j.tiles, i, k, row);
            for (int64_t c = 0; c < k; c++) rows[c * n_total + n_off + i] = row[c];
        }
    }
    return TERN_OK;
}

/* Every linear of a site, and for outlier sites the hot channels with their rows; *rows_out gets all rows
 * [k][n_total]. */
static tern_status add_site(packer *p, hoard *h, int layer, tn_site site, int8_t **rows_out,
                            tern_error *err) {
    const int32_t i_site = tn_program_site_index(&p->m->program, layer, site);
    const tn_site_ops ops = *tn_program_linears(&p->m->program, i_site);
    *rows_out = NULL;
    const site_plan *plan = &p->plans[i_site];
    if (plan->outliers) {
        *rows_out = tn_hoard_keep(h, (size_t)ops.k * (size_t)ops.n_total, 1);
        TN_FAIL_IF(!*rows_out, err, TERN_E_MEMORY, "no memory for outlier rows");
    }
    int64_t n_off = 0;
    for (int32_t op = 0; op < ops.n_ops; op++) {
        TN_TRY(add_linear(p, h, layer, ops.roles[op], ops.biases[op], plan, output_of(p, i_site, op),
                          ops.n[op], ops.k, *rows_out, n_off, ops.n_total, err));
        n_off += ops.n[op];
    }
    if (!plan->outliers) return TERN_OK;
    int8_t *hot_rows = tn_hoard_keep(h, (size_t)plan->n_hot * (size_t)ops.n_total + 1, 1);
    TN_FAIL_IF(!hot_rows, err, TERN_E_MEMORY, "no memory for outlier rows");
    for (int32_t i = 0; i < plan->n_hot; i++) {
        memcpy(hot_rows + (size_t)i * (size_t)ops.n_total,
               *rows_out + (size_t)plan->hot[i] * (size_t)ops.n_total, (size_t)ops.n_total);
    }
    uint64_t hot_bytes = (uint64_t)plan->n_hot * (uint64_t)ops.n_total;
    p->report->hot_row_bytes += hot_bytes;
    p->report->all_row_bytes += (uint64_t)ops.k * (uint64_t)ops.n_total;
    tn_pkg_record hot = {.role = ops.roles[0], .part = TN_PKG_HOT, .n = plan->n_hot, .k = 1};
    TN_TRY(tn_pkg_add(p->w, &hot, plan->hot, (uint64_t)plan->n_hot * sizeof *plan->hot, err));
    uint32_t *hash = tn_hoard_keep(h, (size_t)ops.k, sizeof *hash);
    TN_FAIL_IF(!hash, err, TERN_E_MEMORY, "no memory for outlier rows");
    for (int32_t i = 0; i < ops.k; i++)
        hash[i] = XXH32(*rows_out + (size_t)i * (size_t)ops.n_total, (size_t)ops.n_total, 0);
    TN_TRY(tn_pkg_add(p->w,
                      &(tn_pkg_record){.role = ops.roles[0], .part = TN_PKG_ROW_HASH, .n = ops.k, .k = 1},
                      hash, (uint64_t)ops.k * sizeof *hash, err));
    tn_pkg_record rows = {.role = ops.roles[0], .part = TN_PKG_HOT_ROWS, .n = plan->n_hot, .k = ops.n_total};
    return tn_pkg_add(p->w, &rows, hot_rows, hot_bytes, err);
}

/* rows[i]: of site first + i; NULL: none. */
static tern_status put_outlier_rows(packer *p, int layer, int8_t *const *rows, int32_t first, int32_t n,
                                    tern_error *err) {
    bool any = false;
    for (int32_t i = 0; i < n; i++) any = any || rows[i];
    if (!any) return TERN_OK;
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_OUTLIERS, layer, err));
    for (int32_t i = 0; i < n; i++) {
        if (!rows[i]) continue;
        const tn_site_ops *ops = tn_program_linears(&p->m->program, first + i);
        tn_pkg_record r = {.role = ops->roles[0], .part = TN_PKG_ROWS, .n = ops->k, .k = ops->n_total};
        TN_TRY(tn_pkg_add(p->w, &r, rows[i], (uint64_t)ops->k * (uint64_t)ops->n_total, err));
    }
    return tn_pkg_end(p->w, err);
}

/* Divisors of a norm's weights: the smoothing of the site that reads it. */
static const float *smooth_behind(const packer *p, int layer, tn_role vector) {
    int32_t n;
    const tn_op *op = tn_program_layer(&p->m->program, layer, &n);
    for (int32_t i = 0; i < n; i++) {
        if (op[i].kind != TN_OP_NORM || op[i].feeds == TN_NO_SITE ||
            (op[i].weight != vector && op[i].bias != vector))
            continue;
        const int32_t site = tn_program_site_index(&p->m->program, layer, op[i].feeds);
        return tn_program_divides(&p->m->program, site) ? NULL : p->plans[site].smooth;
    }
    return NULL;
}

/* Factors of the inputs of a site when they are quantised. */
static tern_status add_inverse(packer *p, hoard *h, int32_t i_site, tern_error *err) {
    const tn_site_ops *ops = tn_program_linears(&p->m->program, i_site);
    const float *smooth = p->plans[i_site].smooth;
    if (!smooth || !tn_program_divides(&p->m->program, i_site)) return TERN_OK;
    float *inverse = tn_hoard_keep(h, (size_t)ops->k, sizeof *inverse);
    TN_FAIL_IF(!inverse, err, TERN_E_MEMORY, "no memory to pack");
    for (int32_t i = 0; i < ops->k; i++) inverse[i] = 1 / smooth[i];
    return tn_pkg_add(p->w,
                      &(tn_pkg_record){.role = ops->roles[0], .part = TN_PKG_INVERSE, .n = 1, .k = ops->k},
                      inverse, (uint64_t)ops->k * sizeof *inverse, err);
}

/* The router stays in floats, so its choice is exact whatever the form of the experts. */
static tern_status add_router(packer *p, hoard *h, int layer, tern_error *err) {
    int64_t n = p->m->h.n_experts, k = p->m->h.n_embd;
    float *w = tn_hoard_keep(h, (size_t)(n * k), sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory to pack");
    TN_TRY(tn_source_read(p->src, layer, TN_W_ROUTER, 0, n, w, err));
    TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = TN_W_ROUTER, .part = TN_PKG_F32, .n = n, .k = k}, w,
                      (uint64_t)(n * k) * sizeof *w, err));
    return add_vector(p, h, layer, TN_W_ROUTER_B, NULL, err);
}

/* What every head of latent attention multiplies by and products of low rank, for the CPU: blocks of 8 bits, one scale
 * of 32 inputs. */
static tern_status add_for_cpu(packer *p, hoard *h, int layer, tn_role role, tern_error *err) {
    int64_t n, k;
    if (!tn_source_has(p->src, layer, role)) return TERN_OK;
    tn_role_shape(&p->m->h, layer, role, &n, &k);
    TN_FAIL_IF(k % 32 || n % TN_BLOCKS_N, err, TERN_E_UNSUPPORTED,
               "%s of %lld x %lld values cannot be packed; want multiples of 32", tn_role_name(role),
               (long long)n, (long long)k);
    const size_t row = (size_t)k / 32 * 34, size = tn_blocks_bytes(TN_BLOCKS_Q8_0, (size_t)n, (size_t)k);
    float *w = tn_hoard_keep(h, (size_t)(n * k), sizeof *w);
    uint8_t *rows = tn_hoard_keep(h, (size_t)n, row), *tiles = tn_hoard_keep(h, size, 1);
    TN_FAIL_IF(!w || !rows || !tiles, err, TERN_E_MEMORY, "no memory to pack");
    TN_TRY(tn_source_read(p->src, layer, role, 0, n, w, err));
    tn_quantise_q8_0(w, rows, (uint64_t)(n * k));
    for (int64_t i = 0; i < n; i += TN_BLOCKS_N) {
        const uint8_t *of_tile[TN_BLOCKS_N];
        for (int64_t j = 0; j < TN_BLOCKS_N; j++) of_tile[j] = rows + (size_t)(i + j) * row;
        tn_blocks_repack(TN_BLOCKS_Q8_0, of_tile, TN_BLOCKS_N, (size_t)k,
                         tiles + tn_blocks_bytes(TN_BLOCKS_Q8_0, (size_t)i, (size_t)k));
    }
    return tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_BLOCKS, .n = n, .k = k}, tiles,
                      size, err);
}

static tern_status put_layer(packer *p, hoard *h, int layer, tern_error *err) {
    int8_t *rows[TN_N_SITES] = {0};
    int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
    if (p->made) TN_TRY(tn_partial_fetch(&p->partial, &p->m->program, layer, &p->made[first], err));
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_LAYER, layer, err));
    for (int i = 0; i < TN_N_LAYER_VECTORS; i++) {
        tn_role role = tn_layer_vectors[i];
        TN_TRY(add_vector(p, h, layer, role, smooth_behind(p, layer, role), err));
    }
    if (tn_layer_has_experts(&p->m->h, layer)) TN_TRY(add_router(p, h, layer, err));
    for (tn_role role = 0; role < TN_W_N_ROLES; role++)
        if (tn_role_of_cpu(role)) TN_TRY(add_for_cpu(p, h, layer, role, err));
    for (int32_t i = 0; i < n; i++) {
        TN_TRY(add_inverse(p, h, first + i, err));
        TN_TRY(add_site(p, h, layer, p->m->program.sites[first + i].kind, &rows[i], err));
    }
    TN_TRY(tn_pkg_end(p->w, err));
    for (int32_t i = first; p->made && i < first + n; i++) tn_recipe_codes_free(p->ctx, &p->made[i]);
    tn_source_release(p->src, layer);
    return put_outlier_rows(p, layer, rows, first, n, err);
}

/* Scales of the embedding (the head's when tied) and head, output norm, rope tables. *rows: outlier rows of
 * the head. */
static tern_status put_model(packer *p, hoard *h, int8_t **rows, tern_error *err) {
    const tn_hparams *hp = &p->m->h;
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_MODEL, -1, err));
    if (!hp->tied) {
        site_plan plain = {.clip = 127};
        TN_TRY(add_linear(p, h, -1, TN_W_EMBD, TN_W_N_ROLES, &plain, NULL, hp->n_vocab, hp->n_embd, NULL, 0,
                          0, err));
    }
    TN_TRY(add_vector(p, h, -1, TN_W_OUT_NORM, NULL, err));
    TN_TRY(add_vector(p, h, -1, TN_W_OUT_NORM_B, NULL, err));
    TN_TRY(add_site(p, h, -1, TN_SITE_LM_HEAD, rows, err));
    /* the two rope tables under roles no tensor uses at this level */
    int64_t n = hp->n_rot / 2;
    TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = TN_W_Q_NORM, .part = TN_PKG_F32, .n = 1, .k = n},
                      hp->inv_freq, (uint64_t)n * 4, err));
    TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = TN_W_K_NORM, .part = TN_PKG_F32, .n = 1, .k = n},
                      hp->inv_freq_long, (uint64_t)n * 4, err));
    if (hp->local_rope) /* and the one of the layers with a window */
        TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = TN_W_ATTN_NORM, .part = TN_PKG_F32, .n = 1, .k = n},
                          hp->inv_freq_local, (uint64_t)n * 4, err));
    return tn_pkg_end(p->w, err);
}

/* Codes of a row of the table, layer by layer, then their scales. row: as the model has it. */
static void put_row(const tn_hparams *h, const float *row, uint8_t *out) {
    uint8_t *scales = out + (size_t)h->n_layers * (size_t)h->n_ple;
    for (int32_t l = 0; l < h->n_layers; l++, row += h->n_ple) {
        float max = 0;
        for (int32_t i = 0; i < h->n_ple; i++) max = fmaxf(max, fabsf(row[i]));
        for (int32_t i = 0; i < h->n_ple; i++)
            *out++ = (uint8_t)(int8_t)(max > 0 ? lrintf(row[i] * (127 / max)) : 0);
        max /= 127;
        memcpy(scales + (size_t)l * sizeof max, &max, sizeof max);
    }
}

/* The embeddings for every layer, in parts whose rows are read one by one. */
static tern_status put_table(packer *p, hoard *h, tern_error *err) {
    const tn_hparams *hp = &p->m->h;
    size_t n_row = tn_pkg_table_row(hp->n_layers, hp->n_ple),
           width = (size_t)hp->n_layers * (size_t)hp->n_ple;
    for (int32_t first = 0; hp->n_ple && first < hp->n_vocab; first += TN_PKG_TABLE_ROWS) {
        int32_t left = hp->n_vocab - first;
        size_t n = (size_t)(left < TN_PKG_TABLE_ROWS ? left : TN_PKG_TABLE_ROWS);
        float *x = tn_hoard_keep(h, width, sizeof *x);
        uint8_t *rows = tn_hoard_keep(h, n, n_row);
        uint32_t *hash = tn_hoard_keep(h, n, sizeof *hash);
        TN_FAIL_IF(!x || !rows || !hash, err, TERN_E_MEMORY, "no memory to pack");
        for (size_t i = 0; i < n; i++) {
            int64_t id = first + (int64_t)i;
            TN_TRY(tn_source_read(p->src, -1, TN_W_PLE_EMBD, id, id + 1, x, err));
            put_row(hp, x, rows + i * n_row);
            hash[i] = XXH32(rows + i * n_row, n_row, 0);
        }
        TN_TRY(tn_pkg_begin(p->w, TN_PKG_TABLE, first / TN_PKG_TABLE_ROWS, err));
        tn_pkg_record r = {.role = TN_W_PLE_EMBD, .part = TN_PKG_ROW_HASH, .n = (int64_t)n, .k = 1};
        TN_TRY(tn_pkg_add(p->w, &r, hash, n * sizeof *hash, err));
        r = (tn_pkg_record){.role = TN_W_PLE_EMBD, .part = TN_PKG_ROWS, .n = (int64_t)n, .k = (int64_t)n_row};
        TN_TRY(tn_pkg_add(p->w, &r, rows, n * n_row, err));
        TN_TRY(tn_pkg_end(p->w, err));
        tn_hoard_drop(h);
    }
    if (hp->n_ple) tn_source_release(p->src, -1);
    return TERN_OK;
}

/* A linear of the layer that guesses one token further, in its loaded form, and its bias. */
static tern_status add_blocks(packer *p, const tn_linear *l, const struct tn_layer_linear *of,
                              tern_error *err) {
    tn_pkg_record r = {.role = of->role, .part = TN_PKG_BLOCKS, .n = l->n, .k = l->k};
    if (!l->n) return TERN_OK;
    TN_TRY(tn_pkg_add(p->w, &r, l->blocks, tn_blocks_bytes(l->blocks_type, (size_t)l->n, (size_t)l->k), err));
    r = (tn_pkg_record){.role = of->bias, .part = TN_PKG_F32, .n = 1, .k = l->n};
    return l->bias ? tn_pkg_add(p->w, &r, l->bias, (uint64_t)l->n * sizeof *l->bias, err) : TERN_OK;
}

/* A linear of all its experts: the blocks of one expert after the other's, freed as they are copied. */
static tern_status add_experts(packer *p, hoard *h, tn_linear *each, const struct tn_layer_linear *of,
                               tern_error *err) {
    const int64_t n_experts = p->m->h.n_experts;
    tn_pkg_record r = {.role = of->role, .part = TN_PKG_BLOCKS, .n = n_experts * each->n, .k = each->k};
    const size_t size = tn_blocks_bytes(each->blocks_type, (size_t)each->n, (size_t)each->k);
    uint8_t *all = tn_hoard_keep(h, (size_t)n_experts, size);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory to pack");
    for (int64_t e = 0; e < n_experts; e++) {
        memcpy(all + (size_t)e * size, each[e].blocks, size);
        tn_free(p->ctx, each[e].blocks);
        each[e].blocks = NULL;
    }
    TN_TRY(tn_pkg_add(p->w, &r, all, (uint64_t)n_experts * size, err));
    return add_vector(p, h, p->m->h.n_layers, of->bias, NULL, err);
}

/* The layer that guesses one token further: it runs on the CPU, so nothing of it is calibrated. */
static tern_status put_next(packer *p, hoard *hoarded, tern_error *err) {
    const tn_hparams *h = &p->m->h;
    if (!h->n_next) return TERN_OK;
    TN_TRY(tn_model_load_next(p->m, p->pool, p->src, err));
    const tn_layer *layer = &p->m->next->layers[0];
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_NEXT, -1, err));
    if (h->n_experts) TN_TRY(add_router(p, hoarded, h->n_layers, err));
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++)
        if (layer->experts[i]) TN_TRY(add_experts(p, hoarded, layer->experts[i], &tn_expert_linears[i], err));
    for (int i = 0; i < TN_N_LAYER_VECTORS; i++) {
        int64_t rows, cols;
        tn_role role = tn_layer_vectors[i];
        if (!layer->vectors[role]) continue;
        tn_role_shape(h, h->n_layers, role, &rows, &cols);
        tn_pkg_record r = {.role = role, .part = TN_PKG_F32, .n = 1, .k = rows * cols};
        TN_TRY(tn_pkg_add(p->w, &r, layer->vectors[role], (uint64_t)(rows * cols) * sizeof(float), err));
    }
    for (int i = 0; i < TN_N_LAYER_LINEARS; i++)
        TN_TRY(add_blocks(p, &layer->linears[tn_layer_linears[i].role], &tn_layer_linears[i], err));
    TN_TRY(tn_pkg_end(p->w, err));
    tn_model_close(&p->m->next);
    tn_source_release(p->src, h->n_layers);
    return TERN_OK;
}

static tern_status put_head(packer *p, int8_t *rows, tern_error *err) {
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_LM_HEAD, -1, err));
    for (int32_t i = 0; i < p->n_head; i++)
        TN_TRY(tn_pkg_add(p->w, &p->head[i], p->head_data[i], p->head[i].size_bytes, err));
    TN_TRY(tn_pkg_end(p->w, err));
    return put_outlier_rows(p, -1, &rows, p->m->program.n_sites - 1, 1, err);
}

/* Adapters read undivided inputs where quantising divides; experts have no adapters. */
static const float *smoothed(const packer *p, size_t i_site) {
    if (tn_site_of_experts(p->m->program.sites[i_site].kind)) return NULL;
    return tn_program_divides(&p->m->program, (int32_t)i_site) ? NULL : p->plans[i_site].smooth;
}

/* Divisors of the inputs of sites, for adapters (docs/reference/package-format.md). */
static tern_status put_smoothing(packer *p, tern_error *err) {
    tn_scheme scheme = p->o->scheme;
    if (scheme == TN_SCHEME_LLM_NPU || scheme == TN_SCHEME_NAIVE) return TERN_OK;
    size_t n_sites = (size_t)p->m->program.n_sites, n_bytes = 4 + 4 * n_sites, at = n_bytes;
    for (size_t i = 0; i < n_sites; i++)
        n_bytes += smoothed(p, i) ? 2 * (size_t)tn_program_linears(&p->m->program, (int32_t)i)->k : 0;
    uint8_t *bytes = tn_alloc(p->ctx, TN_MEM_OTHER, n_bytes, 1);
    TN_FAIL_IF(!bytes, err, TERN_E_MEMORY, "no memory to pack");
    uint32_t n = (uint32_t)n_sites;
    memcpy(bytes, &n, sizeof n);
    for (size_t i = 0; i < n_sites; i++) {
        const float *smooth = smoothed(p, i);
        n = smooth ? (uint32_t)tn_program_linears(&p->m->program, (int32_t)i)->k : 0;
        memcpy(bytes + 4 + 4 * i, &n, sizeof n);
        for (uint32_t k = 0; k < n; k++, at += 2) {
            uint16_t h = tn_f32_bf16(smooth[k]);
            memcpy(bytes + at, &h, sizeof h);
        }
    }
    tern_status st = tn_pkg_put_section(p->w, TN_PKG_SMOOTHING, -1, bytes, n_bytes, err);
    tn_free(p->ctx, bytes);
    return st;
}

static tern_status put_verdict(packer *p, tern_error *err) {
    const tn_pkg_verdict v = {.version = TN_TOWER_VERDICT,
                              .fingerprint = p->encoder,
                              .mean = p->report->encoder.mean,
                              .least = p->report->encoder.least};
    return p->o->mmproj ? tn_pkg_put_section(p->w, TN_PKG_VERDICT, -1, &v, sizeof v, err) : TERN_OK;
}

/* The encoder of pictures, as its file has it; of a folder as a file would have it. */
static tern_status put_encoder(packer *p, tern_error *err) {
    tn_file *f;
    struct stat sb;
    if (!p->o->mmproj) return TERN_OK;
    if (!stat(p->o->mmproj, &sb) && S_ISDIR(sb.st_mode)) {
        uint8_t *bytes;
        uint64_t n_bytes;
        TN_TRY(tn_tower_folder_bytes(p->ctx, p->o->mmproj, &bytes, &n_bytes, err));
        tern_status st = tn_pkg_put_section(p->w, TN_PKG_ENCODER, -1, bytes, n_bytes, err);
        tn_free(p->ctx, bytes);
        return st;
    }
    TN_TRY(tn_file_open(p->ctx, p->o->mmproj, &f, err));
    tern_status st = tn_pkg_put_section(p->w, TN_PKG_ENCODER, -1, f->data, f->size_bytes, err);
    if (st == TERN_OK && tn_file_changed(f))
        st = tn_fail(err, TERN_E_IO, "%s was written to while it was packed", p->o->mmproj);
    tn_file_close(&f);
    return st;
}

/* Most records of a site in a layer's section, and the size of its weights in 8 bits. */
static uint32_t count_records(const packer *p, int32_t i_site, uint64_t *n_bytes) {
    const tn_site_ops *ops = tn_program_linears(&p->m->program, i_site);
    const site_plan *plan = &p->plans[i_site];
    uint64_t wide = ((uint64_t)ops->k + TN_WEIGHTLET_GROUP - 1) / TN_WEIGHTLET_GROUP * TN_WEIGHTLET_GROUP;
    const int layer = tn_program_site_layer(&p->m->program, i_site);
    uint32_t n = plan->smooth != NULL;
    for (int32_t op = 0; op < ops->n_ops; op++) {
        tn_role bias = ops->biases[op];
        n += 4 + p->o->compress + (ops->n_experts > 0) + (output_of(p, i_site, op) != NULL) +
             (bias != TN_W_N_ROLES && tn_source_has(p->src, layer, bias));
        *n_bytes += ((uint64_t)ops->n[op] + 64) * (wide + 64);
    }
    if (plan->outliers) { /* at most as many hot rows as channels */
        n += 3;
        *n_bytes += (uint64_t)ops->k * (uint64_t)(ops->n_total + 8);
    }
    return n;
}

/* Of the layer that guesses one token further; its small tensors take no more than they do as floats. */
static uint64_t next_toc_bound(const packer *p) {
    const tn_hparams *h = &p->m->h;
    uint64_t n_bytes = 0;
    uint32_t n_records = 0;
    for (tn_role role = 0; h->n_next && role < TN_W_N_ROLES; role++) {
        int64_t rows, cols;
        if (!tn_source_has(p->src, h->n_layers, role)) continue;
        tn_role_shape(h, h->n_layers, role, &rows, &cols);
        n_bytes += 4 * (uint64_t)(rows * cols) + 64 * (uint64_t)cols + TN_PKG_TENSOR_ALIGN;
        n_records++;
    }
    return n_records ? tn_pkg_toc_bound(n_records, n_bytes) : 0;
}

/* Bound of the size of the tables of contents. */
static uint64_t toc_bound(const packer *p) {
    const tn_hparams *h = &p->m->h;
    uint64_t bound = 0, n_bytes, embedding = (uint64_t)h->n_vocab * ((uint64_t)h->n_embd + 128);
    for (int layer = 0; layer < h->n_layers; layer++) {
        int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
        uint32_t n_records = 2; /* a router and its bias */
        n_bytes = 4 * (uint64_t)h->n_experts * (uint64_t)h->n_embd;
        for (int i = 0; i < TN_N_LAYER_VECTORS; i++) {
            int64_t rows = 0, cols = 0;
            if (!tn_source_has(p->src, layer, tn_layer_vectors[i])) continue;
            tn_role_shape(h, layer, tn_layer_vectors[i], &rows, &cols);
            n_bytes += 4 * (uint64_t)(rows * cols) + TN_PKG_TENSOR_ALIGN;
            n_records++;
        }
        for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
            int64_t rows = 0, cols = 0;
            if (!tn_role_of_cpu(role) || !tn_source_has(p->src, layer, role)) continue;
            tn_role_shape(h, layer, role, &rows, &cols);
            n_bytes += 2 * (uint64_t)(rows * cols) + TN_PKG_TENSOR_ALIGN;
            n_records++;
        }
        for (int32_t i = first; i < first + n; i++) {
            n_records += count_records(p, i, &n_bytes);
            if (p->plans[i].outliers) /* its rows, in the section after */
                bound += tn_pkg_toc_bound(1, (uint64_t)tn_program_linears(&p->m->program, i)->k *
                                                 (uint64_t)tn_program_linears(&p->m->program, i)->n_total);
        }
        bound += tn_pkg_toc_bound(n_records, n_bytes);
    }
    n_bytes = embedding;
    const uint32_t n_top = 12 + count_records(p, p->m->program.n_sites - 1, &n_bytes);
    if (h->n_ple) { /* parts of the table: the hashes of its rows, and these */
        uint32_t n_parts = (uint32_t)(h->n_vocab / TN_PKG_TABLE_ROWS) + 1;
        bound += n_parts * tn_pkg_toc_bound(2, TN_PKG_TABLE_ROWS *
                                                   (uint64_t)(tn_pkg_table_row(h->n_layers, h->n_ple) + 4));
    }
    /* the model level, its large tensors, and the head's outlier rows */
    return bound + next_toc_bound(p) + tn_pkg_toc_bound(n_top, n_bytes) + tn_pkg_toc_bound(2, n_bytes) +
           tn_pkg_toc_bound(1, n_bytes);
}

tern_status tn_pack_write(packer *p, const char *out, tern_error *err) {
    const int32_t n_layers = p->m->h.n_layers;
    uint32_t n_parts = p->m->h.n_ple ? (uint32_t)(p->m->h.n_vocab / TN_PKG_TABLE_ROWS) + 1 : 0;
    TN_TRY(tn_pkg_create(p->ctx, out, 2 * (uint32_t)n_layers + 10 + n_parts, toc_bound(p), &p->w, err));
    TN_TRY(tn_pack_put_meta(p, err));
    hoard model = {.ctx = p->ctx}, h = {.ctx = p->ctx};
    int8_t *rows = NULL;
    tern_status st = put_model(p, &model, &rows, err);
    if (st == TERN_OK) st = tn_pack_put_graphs(p, err);
    if (st == TERN_OK) st = tn_pack_put_tokenizer(p, err);
    for (int i = 0; i < n_layers && st == TERN_OK; i++) {
        st = put_layer(p, &h, i, err);
        tn_hoard_drop(&h);
        if (st == TERN_OK && !tn_progress(p->ctx, "pack", (i + 1.0) / n_layers))
            st = tn_fail(err, TERN_E_CANCELLED, "packing was cancelled");
    }
    tn_hoard_drop(&h);
    if (st == TERN_OK) st = put_head(p, rows, err);
    if (st == TERN_OK) st = put_table(p, &h, err);
    if (st == TERN_OK) st = put_next(p, &h, err);
    tn_hoard_drop(&h);
    tn_hoard_drop(&model);
    if (st == TERN_OK) st = put_smoothing(p, err);
    if (st == TERN_OK) st = put_encoder(p, err);
    if (st == TERN_OK) st = put_verdict(p, err);
    if (st == TERN_OK) st = tn_pkg_seal(p->w, err);
    if (st == TERN_OK) st = tn_pack_read_back(p->ctx, p->pool, p->w, p->m, err);
    if (st == TERN_OK) st = tn_pkg_finish(&p->w, err);
    return st;
}
