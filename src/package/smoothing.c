#include "package/smoothing.h"

#include "base/half.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

/* Whether this scheme never divides inputs. */
static bool never_smooths(const char *scheme) {
    return !strcmp(scheme, "llm-npu") || !strcmp(scheme, "naive-w8a8");
}

/* u32 sites, u32 [sites] channels or 0, then of each that has some bf16 [channels]. */
static tern_status parse(tn_smoothing *out, const uint8_t *bytes, uint64_t n_bytes, tern_error *err) {
    size_t n_sites = (size_t)out->p->n_sites, n_values = 0, at = 0;
    const uint64_t head = 4 + 4 * (uint64_t)n_sites;
    uint32_t n = 0;
    if (n_bytes >= 4) memcpy(&n, bytes, sizeof n);
    TN_FAIL_IF(n_bytes < head || n != n_sites, err, TERN_E_FORMAT,
               "the package's smoothing is not of its %zu sites", n_sites);
    for (size_t i = 0; i < n_sites; i++) {
        memcpy(&n, bytes + 4 + 4 * i, sizeof n);
        TN_FAIL_IF(n && n != (uint32_t)tn_program_linears(out->p, (int32_t)i)->k, err, TERN_E_FORMAT,
                   "the package's smoothing of site %zu has %u channels", i, n);
        n_values += n;
    }
    TN_FAIL_IF(n_bytes != head + 2 * (uint64_t)n_values, err, TERN_E_FORMAT,
               "the package's smoothing has %" PRIu64 " bytes for %zu channels", n_bytes, n_values);
    out->all = tn_alloc(out->ctx, TN_MEM_OTHER, n_values + 1, sizeof *out->all);
    TN_FAIL_IF(!out->all, err, TERN_E_MEMORY, "no memory for a package's smoothing");
    for (size_t i = 0; i < n_values; i++) {
        uint16_t h;
        memcpy(&h, bytes + head + 2 * i, sizeof h);
        out->all[i] = tn_bf16_f32(h);
        TN_FAIL_IF(!isfinite(out->all[i]) || !(out->all[i] > 0), err, TERN_E_FORMAT,
                   "the package's smoothing holds an invalid scale");
    }
    for (size_t i = 0; i < n_sites; i++) {
        memcpy(&n, bytes + 4 + 4 * i, sizeof n);
        if (n) out->of[i] = out->all + at;
        at += n;
    }
    return TERN_OK;
}

tern_status tn_smoothing_read(tn_ctx *ctx, const tn_npu_model *m, const tn_model *model, tn_smoothing *out,
                              tern_error *err) {
    *out = (tn_smoothing){.ctx = ctx, .m = m, .p = &model->program};
    out->of = tn_calloc(ctx, TN_MEM_OTHER, (size_t)out->p->n_sites, sizeof *out->of);
    TN_FAIL_IF(!out->of, err, TERN_E_MEMORY, "no memory for a package's smoothing");
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_SMOOTHING, -1);
    TN_FAIL_IF(!s && !never_smooths(m->scheme), err, TERN_E_UNSUPPORTED,
               "%s does not say how its inputs were smoothed, which adapters need: pack the model again",
               tn_pkg_path(m->pkg));
    if (!s) return TERN_OK;
    uint8_t *bytes = tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1);
    tern_status st = bytes ? tn_pkg_read(m->pkg, s, bytes, err)
                           : tn_fail(err, TERN_E_MEMORY, "no memory for a package's smoothing");
    if (st == TERN_OK) st = parse(out, bytes, s->size_bytes, err);
    tn_free(ctx, bytes);
    if (st != TERN_OK) tn_smoothing_free(out);
    return st;
}

void tn_smoothing_free(tn_smoothing *s) {
    if (!s->ctx) return;
    tn_free(s->ctx, s->all);
    tn_free(s->ctx, (void *)(uintptr_t)s->of);
    *s = (tn_smoothing){0};
}

static void inputs(const void *user, int32_t site, float *row) {
    const tn_smoothing *s = user;
    size_t k = (size_t)tn_program_linears(s->p, site)->k;
    for (size_t i = 0; s->of[site] && i < k; i++) row[i] *= s->of[site][i];
    const int32_t rotated = s->m->sites[site].rotated;
    if (rotated) tn_hadamard_wide(s->m->kern->hadamard_f32, row, k, (size_t)rotated);
}

/* V and up are multiplied by what the site after them is divided by. */
static float output(const void *user, int32_t site, int32_t op, int32_t i) {
    const tn_smoothing *s = user;
    tn_role role = tn_program_linears(s->p, site)->roles[op];
    tn_site behind = role == TN_W_V ? TN_SITE_O : role == TN_W_UP ? TN_SITE_DOWN : TN_NO_SITE;
    int32_t at = behind == TN_NO_SITE ? -1 : tn_program_site_index(s->p, s->p->sites[site].layer, behind);
    if (at < 0 || !s->of[at]) return 1;
    const tn_hparams *h = &s->m->model->h;
    if (role == TN_W_V) i = i / h->d_head * (h->n_heads / h->n_kv_heads) * h->d_head + i % h->d_head;
    return 1 / s->of[at][i];
}

tn_lora_basis tn_smoothing_basis(const tn_smoothing *s) {
    return (tn_lora_basis){.user = s, .inputs = inputs, .output = output};
}
