/* The product beside a site's own, and what mixes are. */
#include "model/lora.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

bool tn_lora_at(const tn_lora_mix *mix, int32_t site) {
    for (int32_t i = 0; mix && i < mix->n; i++)
        if (mix->at[i]->sites[site].rank) return true;
    return false;
}

/* One adapter over at most TN_LORA_ROWS rows. */
static void add_rows(const tn_lora_site *s, float scale, const tn_kernels *kern, const tn_site_ops *ops,
                     const float *x, size_t ldx, size_t n_rows, float *const *out, const size_t *ldo,
                     float *scratch) {
    const tn_gemm_f32_fn gemm = kern->gemm_f32[TN_PANEL_F32];
    size_t rank = (size_t)s->rank;
    float *small = scratch, *given = scratch + TN_LORA_ROWS * rank;
    gemm(x, ldx, s->a, NULL, small, rank, n_rows, 0, rank, (size_t)ops->k);
    for (int32_t op = 0; op < ops->n_ops; op++) {
        size_t n = (size_t)ops->n[op];
        if (!s->op[op].rank) continue;
        gemm(small + s->op[op].first, rank, s->op[op].b, NULL, given, n, n_rows, 0, n,
             (size_t)s->op[op].rank);
        for (size_t r = 0; r < n_rows; r++) kern->add_f32(out[op] + r * ldo[op], given + r * n, scale, n);
    }
}

void tn_lora_rows(const tn_lora_mix *mix, const tn_kernels *kern, const tn_site_ops *ops, int32_t site,
                  const float *x, size_t ldx, int32_t n_rows, float *const *out, const size_t *ldo,
                  float *scratch) {
    float *at[TN_SITE_MAX_OPS];
    memcpy(at, out, (size_t)ops->n_ops * sizeof *at);
    for (int32_t row = 0; row < n_rows; row += TN_LORA_ROWS) {
        size_t n = (size_t)(n_rows - row < TN_LORA_ROWS ? n_rows - row : TN_LORA_ROWS);
        for (int32_t i = 0; i < mix->n; i++) {
            const tn_lora_site *s = &mix->at[i]->sites[site];
            if (s->rank)
                add_rows(s, mix->scale[i], kern, ops, x + (size_t)row * ldx, ldx, n, at, ldo, scratch);
        }
        for (int32_t op = 0; op < ops->n_ops; op++) at[op] += n * ldo[op];
    }
}

void tn_lora_embed(const tn_lora_mix *mix, const tn_kernels *kern, int32_t id, float *x, size_t n) {
    for (int32_t i = 0; i < mix->n; i++) {
        const tn_lora_embedding *e = &mix->at[i]->embd;
        const float *of_token = e->rank ? e->a + (size_t)id * (size_t)e->rank : NULL, scale = mix->scale[i];
        for (int32_t r = 0; r < e->rank; r++) kern->add_f32(x, e->b + (size_t)r * n, scale * of_token[r], n);
        if (e->type) kern->add_f32(x, e->type, scale, n);
    }
}

size_t tn_lora_scratch(tn_lora *const *loras, int32_t n, const tn_program *p) {
    size_t most = 0;
    for (int32_t l = 0; l < n; l++) {
        for (int32_t i = 0; i < p->n_sites; i++) {
            const tn_site_ops *ops = tn_program_linears(p, i);
            size_t need = (size_t)loras[l]->sites[i].rank, widest = 0;
            for (int32_t op = 0; op < ops->n_ops; op++)
                widest = (size_t)ops->n[op] > widest ? (size_t)ops->n[op] : widest;
            if (need && need + widest > most) most = need + widest;
        }
    }
    return TN_LORA_ROWS * most;
}

uint64_t tn_lora_mix_id(const tn_lora_mix *mix) {
    uint64_t id = 0;
    for (int32_t i = 0; i < mix->n; i++) {
        uint64_t one[2] = {mix->at[i]->fingerprint, 0};
        memcpy(&one[1], &mix->scale[i], sizeof mix->scale[i]);
        id = XXH64(one, sizeof one, id);
    }
    return id;
}

const char *tn_lora_mix_text(const tn_lora_mix *mix, char *buf, size_t cap) {
    size_t n = (size_t)snprintf(buf, cap, mix->n ? "adapters " : "no adapter");
    for (int32_t i = 0; i < mix->n && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%s:%g", i ? "," : "", mix->at[i]->name,
                              (double)mix->scale[i]);
    return buf;
}

void tn_lora_close(tn_lora **pl) {
    tn_lora *l = *pl;
    if (!l) return;
    *pl = NULL;
    for (int32_t i = 0; i < l->n_sites; i++) {
        tn_free(l->ctx, l->sites[i].a);
        for (int op = 0; op < TN_SITE_MAX_OPS; op++) tn_free(l->ctx, l->sites[i].op[op].b);
    }
    tn_free(l->ctx, l->sites);
    tn_free(l->ctx, l->embd.a);
    tn_free(l->ctx, l->embd.b);
    tn_free(l->ctx, l->embd.type);
    tn_free(l->ctx, l->prefix);
    tn_free(l->ctx, l);
}
