/* Loading float weights from a source into panels, and running one linear. */
#include "model/model.h"

#include "base/status.h"
#include "model/blocks.h"
#include "model/file_experts.h"
#include "model/next.h"
#include "model/streamed.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

enum { ROWS_PER_READ = 128 }; /* a multiple of TN_PANEL_N */

typedef struct loader {
    tn_source *src;
    tn_model *m;
    tn_pool *pool;
    bool to_q8;              /* floats become blocks of 8 bits */
    bool without_experts;    /* they are read when they are chosen */
    uint8_t *room;           /* where the next linear in blocks goes; NULL: into memory of its own */
    tn_tensor_memory memory; /* of tensors that were read already; NULL: they are read from the source */
    void *memory_user;
    uint64_t n_beside; /* bytes of blocks that cannot stay in that memory */
    /* What was loaded. Whoever owns the loader adds it to the model, which others may read meanwhile. */
    uint64_t n_params, n_bytes;
    tern_error *err;
} loader;

typedef struct pack_job {
    loader *ld;
    tn_linear *l;
    int layer;
    tn_role role;
    int64_t row0;           /* of the linear's rows in the tensor */
    tern_status status[64]; /* per thread */
    tern_error error[64];
} pack_job;

/* Rows that the panels hold as the file does. */
static void pack_halves(pack_job *j, int64_t n0, int64_t n1, uint16_t *rows, int i_thread) {
    tern_status *st = &j->status[i_thread % 64];
    *st = tn_source_read_halves(j->ld->src, j->layer, j->role, j->row0 + n0, j->row0 + n1, rows,
                                &j->error[i_thread % 64]);
    if (*st == TERN_OK) tn_panels_pack_halves(j->l->panels, rows, (size_t)n0, (size_t)n1, (size_t)j->l->k);
}

static void pack_rows(void *arg, int i_item, int i_thread) {
    pack_job *j = arg;
    tern_status *st = &j->status[i_thread % 64];
    if (*st != TERN_OK) return;
    tn_ctx *ctx = j->ld->m->ctx;
    int64_t n0 = (int64_t)i_item * ROWS_PER_READ, n1 = n0 + ROWS_PER_READ;
    if (n1 > j->l->n) n1 = j->l->n;
    float *rows = tn_alloc(ctx, TN_MEM_OTHER, (size_t)(n1 - n0) * (size_t)j->l->k, sizeof *rows);
    if (!rows) {
        *st = tn_fail(&j->error[i_thread % 64], TERN_E_MEMORY, "no memory to read %s", tn_role_name(j->role));
        return;
    }
    if (j->l->dtype != TN_PANEL_F32 && tn_source_has_halves(j->ld->src, j->layer, j->role)) {
        pack_halves(j, n0, n1, (uint16_t *)rows, i_thread);
        tn_free(ctx, rows);
        return;
    }
    *st = tn_source_read(j->ld->src, j->layer, j->role, j->row0 + n0, j->row0 + n1, rows,
                         &j->error[i_thread % 64]);
    if (*st == TERN_OK && j->l->full)
        tn_panels_pack(TN_PANEL_F32, j->l->full, rows, (size_t)n0, (size_t)n1, (size_t)j->l->k);
    if (*st == TERN_OK && j->layer >= 0)
        tn_baseline_weights(j->ld->m->scheme, rows, (size_t)(n1 - n0), (size_t)j->l->k);
    if (*st == TERN_OK)
        tn_panels_pack(j->l->dtype, j->l->panels, rows, (size_t)n0, (size_t)n1, (size_t)j->l->k);
    tn_free(ctx, rows);
}

static tern_status load_vector(loader *ld, int layer, tn_role role, float **out) {
    *out = NULL;
    if (!tn_source_has(ld->src, layer, role)) return TERN_OK;
    int64_t rows, cols;
    tn_role_shape(&ld->m->h, layer, role, &rows, &cols);
    assert(rows == 1 || tn_role_of_rows(role));
    int64_t n_rows = rows;
    cols *= rows;
    float *v = tn_alloc(ld->m->ctx, TN_MEM_WEIGHTS, (size_t)cols, sizeof *v);
    TN_FAIL_IF(!v, ld->err, TERN_E_MEMORY, "no memory for %s", tn_role_name(role));
    *out = v;
    const uint8_t *tensor = ld->memory ? ld->memory(ld->memory_user, layer, role) : NULL;
    if (tensor) TN_TRY(tn_source_read_from(ld->src, layer, role, tensor, 0, n_rows, v, ld->err));
    else TN_TRY(tn_source_read(ld->src, layer, role, 0, n_rows, v, ld->err));
    ld->n_params += (uint64_t)cols;
    ld->n_bytes += (uint64_t)cols * sizeof *v;
    return TERN_OK;
}

static bool is_rounded(tn_float_scheme scheme, int layer) {
    return layer >= 0 && (scheme == TN_FLOAT_LLM_INT8 || scheme == TN_FLOAT_GROUP_W8A8);
}

/* Returns how many linears the role's tensor is, one an expert; 0: it is a vector. */
static int64_t linears_of(const tn_hparams *h, int layer, tn_role role) {
    if (layer < 0) return role == TN_W_EMBD || role == TN_W_OUT || role == TN_W_PLE_EMBD;
    for (int i = 0; i < TN_N_LAYER_LINEARS; i++)
        if (tn_layer_linears[i].role == role) return 1;
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++)
        if (tn_expert_linears[i].role == role) return h->n_experts;
    return role == TN_W_ROUTER;
}

/* Packed weights whose rows a folder has as columns (latent attention): they are made floats, and in blocks rounded to 8
 * bits, since their own groups lie across. */
static bool is_packed_across(const tn_source *src, tn_float_scheme scheme, int layer, tn_role role,
                             int64_t cols) {
    return scheme == TN_FLOAT_BLOCKS && tn_source_crossed(src, layer, role) && cols % 32 == 0 &&
           tn_source_tensor(src, layer, role)->packed;
}

uint64_t tn_model_role_bytes(const tn_source *src, tn_float_scheme scheme, int layer, tn_role role) {
    const tn_hparams *h = tn_source_hparams(src);
    int64_t rows, cols, n = linears_of(h, layer, role);
    if (!tn_source_has(src, layer, role) || (h->tied && (role == TN_W_OUT || role == TN_W_OUT_B))) return 0;
    tn_role_shape(h, layer, role, &rows, &cols);
    if (!n) return (uint64_t)(rows * cols) * sizeof(float);
    rows /= n;
    size_t bytes = scheme == TN_FLOAT_BLOCKS ? tn_blocks_role_bytes(src, layer, role, rows, cols) : 0;
    if (is_packed_across(src, scheme, layer, role, cols))
        bytes = tn_blocks_bytes(TN_BLOCKS_Q8_0, (size_t)rows, (size_t)cols);
    bool rounded = is_rounded(scheme, layer);
    tn_panel_dtype dtype = rounded ? TN_PANEL_F32 : tn_source_panel_dtype(src, layer, role);
    if (!bytes) bytes = tn_panels_bytes(dtype, (size_t)rows, (size_t)cols);
    /* llm-int8 has the weights before they were rounded too */
    return (uint64_t)n * bytes * (rounded && scheme == TN_FLOAT_LLM_INT8 ? 2 : 1);
}

static tern_status load_panels(loader *ld, int layer, tn_role role, int64_t row0, tn_linear *l,
                               size_t *n_bytes) {
    bool rounded = is_rounded(ld->m->scheme, layer);
    l->dtype = rounded ? TN_PANEL_F32 : tn_source_panel_dtype(ld->src, layer, role);
    *n_bytes = tn_panels_bytes(l->dtype, (size_t)l->n, (size_t)l->k);
    size_t bytes = *n_bytes;
    l->panels = tn_alloc(ld->m->ctx, TN_MEM_WEIGHTS, bytes, 1);
    TN_FAIL_IF(!l->panels, ld->err, TERN_E_MEMORY, "no memory for %s of layer %d (%zu bytes)",
               tn_role_name(role), layer, bytes);
    if (rounded && ld->m->scheme == TN_FLOAT_LLM_INT8) {
        l->full = tn_alloc(ld->m->ctx, TN_MEM_WEIGHTS, bytes, 1);
        TN_FAIL_IF(!l->full, ld->err, TERN_E_MEMORY, "no memory for %s of layer %d (%zu bytes)",
                   tn_role_name(role), layer, bytes);
    }
    pack_job *j = tn_calloc(ld->m->ctx, TN_MEM_OTHER, 1, sizeof *j);
    TN_FAIL_IF(!j, ld->err, TERN_E_MEMORY, "no memory to load %s", tn_role_name(role));
    *j = (pack_job){.ld = ld, .l = l, .layer = layer, .role = role, .row0 = row0};
    tn_pool_for(ld->pool, (l->n + ROWS_PER_READ - 1) / ROWS_PER_READ, pack_rows, j);
    tern_status st = TERN_OK;
    for (int i = 0; i < 64 && st == TERN_OK; i++) {
        st = j->status[i];
        if (st != TERN_OK && ld->err) *ld->err = j->error[i];
    }
    tn_free(ld->m->ctx, j);
    return st;
}

/* Rows row0 .. row0 + rows - 1 of a tensor. */
static tern_status load_rows(loader *ld, int layer, tn_role role, int64_t row0, int64_t rows, int64_t cols,
                             tn_linear *l) {
    l->n = (int32_t)rows;
    l->k = (int32_t)cols;
    if (l->blocks) TN_TRY(tn_blocks_turn(ld->m->ctx, ld->pool, ld->src, layer, role, row0, l, ld->err));
    else if (ld->m->scheme == TN_FLOAT_BLOCKS)
        TN_TRY(tn_blocks_load(ld->m->ctx, ld->pool, ld->src, layer, role, row0, &ld->room, l, ld->err));
    size_t bytes = l->blocks ? tn_blocks_bytes(l->blocks_type, (size_t)rows, (size_t)cols) : 0;
    if (!bytes) TN_TRY(load_panels(ld, layer, role, row0, l, &bytes));
    if ((ld->to_q8 || is_packed_across(ld->src, ld->m->scheme, layer, role, cols)) && !l->blocks)
        TN_TRY(tn_blocks_from_panels(ld->m->ctx, ld->pool, l, &bytes, ld->err));
    ld->n_params += (uint64_t)(rows * cols);
    ld->n_bytes += bytes;
    return TERN_OK;
}

/* bias: the role of its bias vector, or TN_W_N_ROLES for none. */
static tern_status load_linear(loader *ld, int layer, tn_role role, tn_role bias, tn_linear *l) {
    if (!ld->memory) *l = (tn_linear){0};
    if (!tn_source_has(ld->src, layer, role)) return TERN_OK;
    int64_t rows, cols;
    tn_role_shape(&ld->m->h, layer, role, &rows, &cols);
    TN_TRY(load_rows(ld, layer, role, 0, rows, cols, l));
    return bias == TN_W_N_ROLES ? TERN_OK : load_vector(ld, layer, bias, &l->bias);
}

/* A linear of every expert, and their biases. */
static tern_status load_experts(loader *ld, int layer, const struct tn_layer_linear *r, tn_linear **out) {
    tn_ctx *ctx = ld->m->ctx;
    int64_t rows, cols, n = ld->m->h.n_experts;
    float *bias = NULL;
    if (!n || !tn_source_has(ld->src, layer, r->role)) return TERN_OK;
    tn_role_shape(&ld->m->h, layer, r->role, &rows, &cols);
    rows /= n;
    if (!*out) *out = tn_calloc(ctx, TN_MEM_WEIGHTS, (size_t)n, sizeof **out); /* else they were placed */
    tn_linear *l = *out;
    TN_FAIL_IF(!l, ld->err, TERN_E_MEMORY, "no memory for %d experts", (int)n);
    for (int64_t e = 0; e < n; e++) {
        if (ld->without_experts)
            l[e] = (tn_linear){.n = (int32_t)rows, .k = (int32_t)cols, .blocks_in_room = true};
        else TN_TRY(load_rows(ld, layer, r->role, e * rows, rows, cols, &l[e]));
    }
    TN_TRY(load_vector(ld, layer, r->bias, &bias));
    tern_status st = TERN_OK;
    for (int64_t e = 0; bias && e < n && st == TERN_OK; e++) {
        l[e].bias = tn_alloc(ctx, TN_MEM_WEIGHTS, (size_t)rows, sizeof(float));
        if (l[e].bias) memcpy(l[e].bias, bias + e * rows, (size_t)rows * sizeof(float));
        else st = tn_fail(ld->err, TERN_E_MEMORY, "no memory for %s", tn_role_name(r->bias));
    }
    tn_free(ctx, bias);
    return st;
}

static tern_status load_layer(loader *ld, int i, tn_layer *layer) {
    size_t room = ld->m->scheme == TN_FLOAT_BLOCKS && !ld->memory
                      ? tn_blocks_room(ld->src, i, !ld->without_experts)
                      : 0;
    if (room) {
        ld->room = layer->room = tn_alloc(ld->m->ctx, TN_MEM_WEIGHTS, room, 1);
        TN_FAIL_IF(!layer->room, ld->err, TERN_E_MEMORY, "no memory for layer %d (%zu bytes)", i, room);
    }
    for (int v = 0; v < TN_N_LAYER_VECTORS; v++)
        TN_TRY(load_vector(ld, i, tn_layer_vectors[v], &layer->vectors[tn_layer_vectors[v]]));
    for (int l = 0; l < TN_N_LAYER_LINEARS; l++) {
        const struct tn_layer_linear *r = &tn_layer_linears[l];
        TN_TRY(load_linear(ld, i, r->role, r->bias, &layer->linears[r->role]));
    }
    TN_TRY(load_linear(ld, i, TN_W_ROUTER, TN_W_ROUTER_B, &layer->linears[TN_W_ROUTER]));
    for (int l = 0; l < TN_N_EXPERT_LINEARS; l++)
        TN_TRY(load_experts(ld, i, &tn_expert_linears[l], &layer->experts[l]));
    assert(!room || ld->room <= (uint8_t *)layer->room + room);
    ld->room = NULL;
    return TERN_OK;
}

/* The layer that guesses further, in the model's own form; its parameters are not counted as the model's, and tell
 * nothing about which model it is. */
static tern_status load_next(loader *ld) {
    const tn_hparams *h = &ld->m->h;
    if (tn_source_without_next(ld->src))
        tn_log(ld->m->ctx, TERN_LOG_WARN, "%s", tn_source_without_next(ld->src));
    if (!h->n_next || (ld->m->scheme != TN_FLOAT && ld->m->scheme != TN_FLOAT_BLOCKS)) return TERN_OK;
    TN_TRY(tn_next_make(ld->m, ld->err));
    tn_layer *layer = &ld->m->next->layers[0];
    tern_status st = load_layer(ld, h->n_layers, layer);
    if (st == TERN_OK) tn_source_release(ld->src, h->n_layers);
    return st;
}

static tern_status load_out_norm(loader *ld) {
    float **vectors = ld->m->top.vectors;
    TN_TRY(load_vector(ld, -1, TN_W_OUT_NORM, &vectors[TN_W_OUT_NORM]));
    return load_vector(ld, -1, TN_W_OUT_NORM_B, &vectors[TN_W_OUT_NORM_B]);
}

/* A model of this source without weights. */
static tern_status new_model(tn_ctx *ctx, tn_source *src, tn_float_scheme scheme, tn_model **out,
                             tern_error *err) {
    tn_model *m = *out = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *m);
    TN_FAIL_IF(!m, err, TERN_E_MEMORY, "no memory for the model");
    m->ctx = ctx;
    m->scheme = scheme;
    m->h = *tn_source_hparams(src);
    TN_FAIL_IF(m->h.n_experts && scheme != TN_FLOAT && scheme != TN_FLOAT_BLOCKS, err, TERN_E_UNSUPPORTED,
               "architecture %s has a mixture of experts, which the schemes float and blocks can run",
               m->h.arch);
    strncpy(m->description, tn_source_description(src), sizeof m->description - 1);
    m->layers = tn_calloc(ctx, TN_MEM_OTHER, (size_t)m->h.n_layers, sizeof *m->layers);
    TN_FAIL_IF(!m->layers, err, TERN_E_MEMORY, "no memory for %d layers", m->h.n_layers);
    return tn_program_make(ctx, &m->h, &m->program, err);
}

tern_status tn_model_outline(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_model **out, tern_error *err) {
    tern_status st = new_model(ctx, src, TN_FLOAT, out, err);
    loader ld = {.src = src, .m = *out, .pool = pool, .err = err};
    if (st == TERN_OK) st = load_out_norm(&ld);
    if (st != TERN_OK) {
        tn_model_close(out);
        return st;
    }
    for (int layer = -1; layer < ld.m->h.n_layers; layer++) {
        for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
            int64_t rows, cols;
            if (!tn_source_has(src, layer, role) ||
                (ld.m->h.tied && (role == TN_W_OUT || role == TN_W_OUT_B)))
                continue;
            tn_role_shape(&ld.m->h, layer, role, &rows, &cols);
            ld.m->n_params += (uint64_t)(rows * cols);
        }
    }
    ld.m->tokenizer = tn_source_take_tokenizer(src);
    return TERN_OK;
}

tern_status tn_model_load_layer(tn_model *m, tn_pool *pool, tn_source *src, int layer, tern_error *err) {
    loader ld = {.src = src, .m = m, .pool = pool, .err = err};
    tern_status st = load_layer(&ld, layer, &m->layers[layer]); /* the outline has counted it */
    if (st != TERN_OK) tn_model_drop_layer(m, layer);
    return st;
}

tern_status tn_model_load_next(tn_model *m, tn_pool *pool, tn_source *src, tern_error *err) {
    loader ld = {.src = src, .m = m, .pool = pool, .to_q8 = true, .err = err};
    TN_TRY(tn_next_make(m, err));
    tern_status st = load_layer(&ld, m->h.n_layers, &m->next->layers[0]);
    m->weight_bytes += ld.n_bytes;
    return st;
}

/* ld: src, pool and how. */
static tern_status load_model(tn_ctx *ctx, loader ld, tn_float_scheme scheme, tn_model **out,
                              tern_error *err) {
    *out = NULL;
    tn_model *m;
    tn_source *src = ld.src;
    tern_status st = new_model(ctx, src, scheme, &m, err);
    ld.m = m;
    ld.err = err;
    if (st != TERN_OK) goto out;
    tn_linear *top = m->top.linears;
    if ((st = load_linear(&ld, -1, TN_W_EMBD, TN_W_N_ROLES, &top[TN_W_EMBD])) != TERN_OK) goto out;
    if (!m->h.tied && (st = load_linear(&ld, -1, TN_W_OUT, TN_W_OUT_B, &top[TN_W_OUT])) != TERN_OK) goto out;
    if ((st = load_linear(&ld, -1, TN_W_PLE_EMBD, TN_W_N_ROLES, &top[TN_W_PLE_EMBD])) != TERN_OK) goto out;
    if ((st = load_out_norm(&ld)) != TERN_OK) goto out;
    for (int i = 0; i < m->h.n_layers; i++) {
        if ((st = load_layer(&ld, i, &m->layers[i])) != TERN_OK) goto out;
        tn_source_release(src, i);
        TN_BAIL_IF(!tn_progress(ctx, "load", (i + 1.0) / m->h.n_layers), err, TERN_E_CANCELLED,
                   "loading was cancelled");
    }
    tn_source_release(src, -1);
    m->n_params = ld.n_params;
    if (!ld.without_experts && (st = load_next(&ld)) != TERN_OK) goto out;
    m->weight_bytes = ld.n_bytes;
    m->tokenizer = tn_source_take_tokenizer(src);
    *out = m;
    m = NULL;
out:
    tn_model_close(&m);
    return st;
}

tern_status tn_model_load(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_float_scheme scheme, tn_model **out,
                          tern_error *err) {
    return load_model(ctx, (loader){.src = src, .pool = pool}, scheme, out, err);
}

tern_status tn_model_load_q8(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_model **out, tern_error *err) {
    return load_model(ctx, (loader){.src = src, .pool = pool, .to_q8 = true}, TN_FLOAT_BLOCKS, out, err);
}

tern_status tn_model_load_without_experts(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_model **out,
                                          tern_error *err) {
    return load_model(ctx, (loader){.src = src, .pool = pool, .without_experts = true}, TN_FLOAT_BLOCKS, out,
                      err);
}

/* ---- tensors that lie in memory as in the file ------------------------------------------------------ */

/* What cannot be turned where it lies (a channel that is not there rounds its tiles up; its rows lie between others')
 * gets memory of its own when the layer is filled, beside the bytes that were read. */
enum { MOST_BESIDE = 8 /* a part of the weights */ };

static void place_rows(loader *ld, int layer, tn_role role, int64_t row0, int64_t rows, int64_t cols,
                       tn_linear *l) {
    const size_t bytes = tn_blocks_role_bytes(ld->src, layer, role, rows, cols);
    uint8_t *tensor = ld->memory(ld->memory_user, layer, role);
    *l = (tn_linear){.n = (int32_t)rows, .k = (int32_t)cols};
    ld->m->n_params += (uint64_t)(rows * cols);
    if (bytes && (!tensor || !tn_blocks_place(ld->src, layer, role, row0, tensor, layer < 0, l)))
        ld->n_beside += bytes;
}

static void place_linear(loader *ld, int layer, tn_role role, tn_linear *l) {
    int64_t rows, cols;
    if (!tn_source_has(ld->src, layer, role)) return;
    tn_role_shape(&ld->m->h, layer, role, &rows, &cols);
    place_rows(ld, layer, role, 0, rows, cols, l);
}

static tern_status place_layer(loader *ld, int layer) {
    tn_layer *to = &ld->m->layers[layer];
    for (int l = 0; l < TN_N_LAYER_LINEARS; l++)
        place_linear(ld, layer, tn_layer_linears[l].role, &to->linears[tn_layer_linears[l].role]);
    place_linear(ld, layer, TN_W_ROUTER, &to->linears[TN_W_ROUTER]);
    for (int l = 0; l < TN_N_EXPERT_LINEARS; l++) {
        const tn_role role = tn_expert_linears[l].role;
        int64_t rows, cols, n = ld->m->h.n_experts;
        if (!n || !tn_source_has(ld->src, layer, role)) continue;
        tn_role_shape(&ld->m->h, layer, role, &rows, &cols);
        rows /= n;
        to->experts[l] = tn_calloc(ld->m->ctx, TN_MEM_WEIGHTS, (size_t)n, sizeof *to->experts[l]);
        TN_FAIL_IF(!to->experts[l], ld->err, TERN_E_MEMORY, "no memory for %d experts", (int)n);
        for (int64_t e = 0; e < n; e++) place_rows(ld, layer, role, e * rows, rows, cols, &to->experts[l][e]);
    }
    return TERN_OK;
}

/* What is no linear, and what everything takes in memory. */
static void count(tn_model *m, const tn_source *src) {
    for (int layer = -1; layer < m->h.n_layers; layer++) {
        for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
            int64_t rows, cols;
            m->weight_bytes += tn_model_role_bytes(src, TN_FLOAT_BLOCKS, layer, role);
            if (!tn_source_has(src, layer, role) || linears_of(&m->h, layer, role)) continue;
            tn_role_shape(&m->h, layer, role, &rows, &cols);
            m->n_params += (uint64_t)(rows * cols);
        }
    }
}

tern_status tn_model_place(tn_ctx *ctx, tn_source *src, tn_tensor_memory memory, void *user, bool *fits,
                           tn_model **out, tern_error *err) {
    tn_model *m;
    *out = NULL;
    *fits = false;
    tern_status st = new_model(ctx, src, TN_FLOAT_BLOCKS, &m, err);
    loader ld = {.src = src, .m = m, .memory = memory, .memory_user = user, .err = err};
    if (st == TERN_OK) {
        place_linear(&ld, -1, TN_W_EMBD, &m->top.linears[TN_W_EMBD]);
        if (!m->h.tied) place_linear(&ld, -1, TN_W_OUT, &m->top.linears[TN_W_OUT]);
    }
    for (int i = 0; st == TERN_OK && i < m->h.n_layers; i++) st = place_layer(&ld, i);
    if (st == TERN_OK) {
        count(m, src);
        *fits = ld.n_beside <= m->weight_bytes / MOST_BESIDE;
    }
    if (!*fits) {
        tn_model_close(&m);
        return st;
    }
    *out = m;
    return TERN_OK;
}

tern_status tn_model_fill(tn_model *m, tn_pool *pool, tn_source *src, int layer, tn_role role,
                          tn_tensor_memory memory, void *user, tern_error *err) {
    loader ld = {.src = src, .m = m, .pool = pool, .memory = memory, .memory_user = user, .err = err};
    tern_status st = TERN_OK; /* all but the next layer was counted when it got its place */
    if (layer == m->h.n_layers) {
        ld.memory = NULL;
        st = load_next(&ld);
        m->weight_bytes += ld.n_bytes;
    } else if (layer >= 0) st = load_layer(&ld, layer, &m->layers[layer]);
    else if (role == TN_W_OUT_NORM) st = load_out_norm(&ld);
    else st = load_linear(&ld, -1, role, role == TN_W_OUT ? TN_W_OUT_B : TN_W_N_ROLES, &m->top.linears[role]);
    return st;
}

/* ---- which model it is ------------------------------------------------------------------------------ */

/* Each hash begins from the one before. */
static uint64_t hash_linear(const tn_linear *l, uint64_t seed) {
    const size_t n = (size_t)l->n, k = (size_t)l->k;
    if (!l->n) return seed;
    return l->blocks ? XXH64(l->blocks, tn_blocks_bytes(l->blocks_type, n, k), seed)
                     : XXH64(l->panels, tn_panels_bytes(l->dtype, n, k), seed);
}

static uint64_t hash_layer(const tn_model *m, int layer, const tn_layer *l, uint64_t seed) {
    for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
        int64_t rows, cols;
        tn_role_shape(&m->h, layer, role, &rows, &cols);
        if (l->vectors[role]) seed = XXH64(l->vectors[role], (size_t)(rows * cols) * sizeof(float), seed);
        const tn_linear *one = &l->linears[role];
        seed = hash_linear(one, seed);
        if (one->bias) seed = XXH64(one->bias, (size_t)one->n * sizeof(float), seed);
    }
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++)
        for (int32_t e = 0; l->experts[i] && e < m->h.n_experts; e++) {
            const tn_linear *one = &l->experts[i][e];
            if (!m->file_experts) seed = hash_linear(one, seed);
            if (one->bias) seed = XXH64(one->bias, (size_t)one->n * sizeof(float), seed);
        }
    return seed;
}

uint64_t tn_model_fingerprint(const tn_model *m) {
    uint64_t print =
        atomic_load_explicit(&m->fingerprint, memory_order_relaxed); /* stands for no other data */
    if (print) return print;
    /* Weights that did not arrive have no memory. What is said then is no model's; the next call asks again. */
    if (tn_model_need(m, TN_NEED_ALL, NULL) != TERN_OK) return ~tn_hparams_identity(&m->h);
    print = tn_hparams_identity(&m->h);
    print = hash_layer(m, -1, &m->top, print);
    for (int i = 0; i < m->h.n_layers; i++) print = hash_layer(m, i, &m->layers[i], print);
    if (m->file_experts) print = tn_file_experts_hash(m->file_experts, print);
    if (m->tokenizer) print ^= tn_tokenizer_fingerprint(m->tokenizer); /* a folder may have none */
    atomic_store_explicit(&((tn_model *)(uintptr_t)m)->fingerprint, print, memory_order_relaxed);
    return print;
}

static void free_linear(tn_ctx *ctx, tn_linear *l) {
    tn_free(ctx, l->panels);
    tn_free(ctx, l->bias);
    tn_free(ctx, l->full);
    if (!l->blocks_in_room) tn_free(ctx, l->blocks);
}

static void free_layer(tn_ctx *ctx, tn_layer *layer, int32_t n_experts) {
    for (int l = 0; l < TN_N_EXPERT_LINEARS; l++) {
        for (int32_t e = 0; layer->experts[l] && e < n_experts; e++) free_linear(ctx, &layer->experts[l][e]);
        tn_free(ctx, layer->experts[l]);
    }
    for (int r = 0; r < TN_W_N_ROLES; r++) {
        tn_free(ctx, layer->vectors[r]);
        free_linear(ctx, &layer->linears[r]);
    }
    tn_free(ctx, layer->room);
    *layer = (tn_layer){0};
}

void tn_model_drop_layer(tn_model *m, int layer) { free_layer(m->ctx, &m->layers[layer], m->h.n_experts); }

void tn_model_close(tn_model **pm) {
    tn_model *m = *pm;
    if (!m) return;
    *pm = NULL;
    tn_streamed_close(&m->streamed); /* before the memory that it reads to */
    tn_file_experts_close(&m->file_experts);
    for (int i = 0; m->layers && i < m->h.n_layers; i++) tn_model_drop_layer(m, i);
    free_layer(m->ctx, &m->top, 0);
    tn_model_close(&m->next);
    tn_program_free(&m->program);
    tn_free(m->ctx, m->layers);
    tn_tokenizer_close(&m->tokenizer);
    for (int32_t i = 0; i < m->n_loras; i++) tn_lora_close(&m->loras[i]);
    tn_free(m->ctx, m);
}

typedef struct linear_job {
    const tn_linear *l;
    tn_gemm_f32_fn fn;
    const float *x;
    float *out;
    size_t ldx, ldo, m, n_per_item;
} linear_job;

static void linear_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const linear_job *j = arg;
    size_t n0 = (size_t)i_item * j->n_per_item, n1 = n0 + j->n_per_item;
    if (n1 > (size_t)j->l->n) n1 = (size_t)j->l->n;
    j->fn(j->x, j->ldx, j->l->panels, j->l->bias, j->out, j->ldo, j->m, n0, n1, (size_t)j->l->k);
}

static void run_panels(const tn_product *p, const tn_kernels *kern, tn_pool *pool, const float *x,
                       size_t ldx) {
    const tn_linear *l = p->l;
    /* Few enough panels that threads of unequal speed finish together, and an even number: the products work
     * on two (many rows) or four (few rows) at once, and a single one left over runs at half the speed. Rows
     * in plenty make two panels worth an item. */
    size_t n_panels = ((size_t)l->n + TN_PANEL_N - 1) / TN_PANEL_N,
           panels_per_item = n_panels / ((size_t)tn_pool_size(pool) * 16) / 4 * 4;
    if (p->m > 8 || panels_per_item < 2) panels_per_item = 2;
    linear_job j = {.l = l,
                    .fn = kern->gemm_f32[l->dtype],
                    .x = x + p->row0 * ldx,
                    .out = p->out,
                    .ldx = ldx,
                    .ldo = p->ldo,
                    .m = p->m,
                    .n_per_item = panels_per_item * TN_PANEL_N};
    tn_pool_for(pool, (int)((n_panels + panels_per_item - 1) / panels_per_item), linear_item, &j);
}

void tn_linears_run(const tn_product *p, size_t n, const tn_kernels *kern, tn_pool *pool, const float *x,
                    size_t ldx, tn_blocks_act *acts) {
    for (size_t i = 0, n_blocks = 0; i < n; i += n_blocks ? n_blocks : 1) {
        for (n_blocks = 0; i + n_blocks < n && p[i + n_blocks].l->blocks;) n_blocks++;
        if (n_blocks) tn_blocks_run(p + i, n_blocks, kern, pool, x, ldx, acts);
        else run_panels(p + i, kern, pool, x, ldx);
    }
}

void tn_linear_run(const tn_linear *l, const tn_kernels *kern, tn_pool *pool, const float *x, size_t ldx,
                   float *out, size_t ldo, size_t m, tn_blocks_act *acts) {
    tn_linears_run(&(tn_product){.l = l, .m = m, .ldo = ldo, .out = out}, 1, kern, pool, x, ldx, acts);
}

void tn_linear_row(const tn_linear *l, size_t n, float *out) {
    if (l->blocks) tn_blocks_row(l->blocks_type, l->blocks, n, (size_t)l->k, out);
    else tn_panels_row(l->dtype, l->panels, n, (size_t)l->k, out);
}
