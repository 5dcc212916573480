/* The layer of a package that guesses one token further (model/next.h). It only drafts, so it needs
 * neither the device nor frozen scales: its linears are blocks of 8 bits, used by the CPU in place. */
#include "package/impl.h"

#include "base/status.h"
#include "model/next.h"

#include <string.h>

/* Its tensors according to the index; the program of this layer determines which must exist. */
typedef struct next_view {
    section_view s;
    const tn_npu_model *m;
    size_t n_found;
} next_view;

static next_view view_of(const tn_npu_model *m) {
    next_view v = {.m = m, .s = {.base = m->next}};
    v.s.records = tn_pkg_records(m->pkg, tn_pkg_find(m->pkg, TN_PKG_NEXT, -1), &v.s.n);
    return v;
}

static const tn_pkg_record *find(next_view *v, tn_role role, tn_pkg_part part) {
    const tn_pkg_record *r = tn_pkg_record_find(v->s.records, v->s.n, (uint32_t)role, (uint32_t)part);
    v->n_found += r != NULL;
    return r;
}

static tern_status wrong(const next_view *v, tn_role role, tern_error *err) {
    return tn_fail(err, TERN_E_FORMAT,
                   "%s: %s of the layer that guesses one token further (MTP) is missing, or odd",
                   tn_pkg_path(v->m->pkg), tn_role_name(role));
}

static tern_status check_vector(next_view *v, tn_role role, bool required, tern_error *err) {
    const tn_hparams *h = &v->m->model->h;
    const tn_pkg_record *r = find(v, role, TN_PKG_F32);
    int64_t rows, cols;
    if (!r) return required ? wrong(v, role, err) : TERN_OK;
    tn_role_shape(h, h->n_layers, role, &rows, &cols);
    bool used = tn_role_of_next(role) || tn_program_uses(&v->m->model->next->program, 0, role);
    return used && r->size_bytes == (uint64_t)(rows * cols) * sizeof(float) ? TERN_OK : wrong(v, role, err);
}

static tern_status check_linear(next_view *v, const struct tn_layer_linear *l, tern_error *err) {
    const tn_hparams *h = &v->m->model->h;
    const tn_pkg_record *r = find(v, l->role, TN_PKG_BLOCKS);
    int64_t n, k;
    tn_role_shape(h, h->n_layers, l->role, &n, &k);
    bool used = l->role == TN_W_NEXT_PROJ || tn_program_uses(&v->m->model->next->program, 0, l->role);
    if (used != (r != NULL)) return wrong(v, l->role, err);
    if (r && (r->n != n || r->k != k || k % 32 ||
              r->size_bytes != tn_blocks_bytes(TN_BLOCKS_Q8_0, (size_t)n, (size_t)k)))
        return wrong(v, l->role, err);
    return l->bias == TN_W_N_ROLES ? TERN_OK : check_vector(v, l->bias, false, err);
}

/* The router: floats, as it is in the layers. */
static tern_status check_router(next_view *v, tern_error *err) {
    const tn_hparams *h = &v->m->model->h;
    const tn_pkg_record *r = find(v, TN_W_ROUTER, TN_PKG_F32);
    const uint64_t n_bytes = (uint64_t)h->n_experts * (uint64_t)h->n_embd * sizeof(float);
    if (!r || r->size_bytes != n_bytes) return wrong(v, TN_W_ROUTER, err);
    r = find(v, TN_W_ROUTER_B, TN_PKG_F32);
    if (r && r->size_bytes != (uint64_t)h->n_experts * sizeof(float)) return wrong(v, TN_W_ROUTER_B, err);
    return TERN_OK;
}

/* All experts of a linear are one matrix of whole tiles, so one record describes them. */
static tern_status check_experts(next_view *v, tern_error *err) {
    if (!v->m->model->h.n_experts) return TERN_OK;
    TN_TRY(check_router(v, err));
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++) {
        TN_TRY(check_linear(v, &tn_expert_linears[i], err));
        int64_t rows, cols;
        tn_role_shape(&v->m->model->h, v->m->model->h.n_layers, tn_expert_linears[i].role, &rows, &cols);
        if (rows / v->m->model->h.n_experts % TN_BLOCKS_N) return wrong(v, tn_expert_linears[i].role, err);
    }
    return TERN_OK;
}

static bool is_required(const tn_npu_model *m, tn_role role) {
    bool bias = role == TN_W_ATTN_NORM_B || role == TN_W_FFN_NORM_B;
    return tn_role_of_next(role) || (!bias && tn_program_uses(&m->model->next->program, 0, role));
}

tern_status tn_package_next_open(tn_npu_model *m, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_NEXT, -1);
    TN_FAIL_IF(!s != !m->model->h.n_next, err, TERN_E_FORMAT,
               "%s: %s of a layer that guesses one token further (MTP)", tn_pkg_path(m->pkg),
               s ? "a section that its metadata does not tell" : "its metadata tells, and it has no section");
    if (!s) return TERN_OK;
    if (m->experts_bytes) { /* no room for a whole layer of experts for guesses if not even the model's own
                               fit in memory */
        m->model->h.n_next = 0;
        tn_log(m->ctx, TERN_LOG_INFO,
               "%s: experts are read on demand; drafts are without the layer that "
               "guesses one token further (MTP)",
               tn_pkg_path(m->pkg));
        return TERN_OK;
    }
    TN_TRY(tn_next_make(m->model, err));
    m->model->next->scheme = TN_FLOAT_BLOCKS;
    next_view v = view_of(m);
    for (int i = 0; i < TN_N_LAYER_VECTORS; i++)
        TN_TRY(check_vector(&v, tn_layer_vectors[i], is_required(m, tn_layer_vectors[i]), err));
    for (int i = 0; i < TN_N_LAYER_LINEARS; i++) TN_TRY(check_linear(&v, &tn_layer_linears[i], err));
    TN_TRY(check_experts(&v, err));
    TN_FAIL_IF(v.n_found != v.s.n, err, TERN_E_FORMAT,
               "%s: the layer that guesses one token further (MTP) has %zu tensors, of which %zu are known",
               tn_pkg_path(m->pkg), v.s.n, v.n_found);
    m->model->weight_bytes += s->size_bytes;
    return tn_room_section(m, s, &m->next, &m->next_block, err);
}

/* A linear over blocks that stay in place. */
static tn_linear in_blocks(const char *blocks, int32_t n, int32_t k) {
    return (tn_linear){.n = n,
                       .k = k,
                       .blocks = (void *)(uintptr_t)blocks,
                       .blocks_type = TN_BLOCKS_Q8_0,
                       .blocks_in_room = true};
}

/* The linears of one kind of all experts, and their biases. */
static tern_status experts_ready(const next_view *v, const struct tn_layer_linear *of, tn_linear **out,
                                 tern_error *err) {
    const tn_npu_model *m = v->m;
    const tn_hparams *h = &m->model->h;
    const tn_pkg_record *r = tn_pkg_record_find(v->s.records, v->s.n, (uint32_t)of->role, TN_PKG_BLOCKS);
    if (!r) return TERN_OK;
    const size_t n = (size_t)(r->n / h->n_experts), size = tn_blocks_bytes(TN_BLOCKS_Q8_0, n, (size_t)r->k);
    float *bias = NULL;
    if (!*out) *out = tn_calloc(m->ctx, TN_MEM_WEIGHTS, (size_t)h->n_experts, sizeof **out);
    tn_linear *l = *out;
    TN_FAIL_IF(!l, err, TERN_E_MEMORY, "no memory for %d experts", h->n_experts);
    TN_TRY(tn_section_vector(m->ctx, &v->s, h, h->n_layers, of->bias, false, &bias, err));
    for (int32_t e = 0; e < h->n_experts; e++) {
        float *own = l[e].bias; /* of a run that was cancelled after this */
        if (bias && !own) own = tn_alloc(m->ctx, TN_MEM_WEIGHTS, n, sizeof *own);
        if (bias && own) memcpy(own, bias + (size_t)e * n, n * sizeof *own);
        l[e] = in_blocks(v->s.base + r->off_bytes + (size_t)e * size, (int32_t)n, (int32_t)r->k);
        l[e].bias = own;
    }
    bool all = !bias || l[h->n_experts - 1].bias;
    tn_free(m->ctx, bias);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory for %s", tn_role_name(of->bias));
    return TERN_OK;
}

tern_status tn_package_next_ready(tn_npu_model *m, tern_error *err) {
    const next_view v = view_of(m);
    const tn_hparams *h = &m->model->h;
    tn_layer *layer = &m->model->next->layers[0];
    for (int i = 0; i < TN_N_LAYER_VECTORS; i++) {
        tn_role role = tn_layer_vectors[i];
        TN_TRY(tn_section_vector(m->ctx, &v.s, h, h->n_layers, role, is_required(m, role),
                                 &layer->vectors[role], err));
    }
    for (int i = 0; i < TN_N_LAYER_LINEARS; i++) {
        const struct tn_layer_linear *of = &tn_layer_linears[i];
        const tn_pkg_record *r = tn_pkg_record_find(v.s.records, v.s.n, (uint32_t)of->role, TN_PKG_BLOCKS);
        tn_linear *l = &layer->linears[of->role];
        if (!r) continue;
        float *bias = l->bias;
        *l = in_blocks(v.s.base + r->off_bytes, (int32_t)r->n, (int32_t)r->k);
        l->bias = bias;
        if (of->bias != TN_W_N_ROLES)
            TN_TRY(tn_section_vector(m->ctx, &v.s, h, h->n_layers, of->bias, false, &l->bias, err));
    }
    if (!h->n_experts) return TERN_OK;
    for (int i = 0; i < TN_N_EXPERT_LINEARS; i++)
        TN_TRY(experts_ready(&v, &tn_expert_linears[i], &layer->experts[i], err));
    return tn_section_router(m, &v.s, h->n_layers, &layer->linears[TN_W_ROUTER], err);
}
