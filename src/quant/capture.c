#include "quant/capture.h"

#include "base/status.h"

#include <string.h>

enum { MAX_ROWS = 8192, MAX_VALUES = 1 << 25, MIN_ROWS = 512 }; /* 128 MiB of floats */

tern_status tn_capture_open(tn_ctx *ctx, const tn_program *p, int32_t layer, size_t n_tok, tn_capture *out,
                            tern_error *err) {
    *out = (tn_capture){.ctx = ctx};
    int64_t width = 0;
    for (int s = 0; s < TN_N_SITES; s++) {
        if (tn_site_in_layers((tn_site)s) != (layer < p->n_layers)) continue;
        int32_t i = tn_program_site_index(p, layer, (tn_site)s);
        out->k[s] = i < 0 ? 0 : tn_program_linears(p, i)->k;
        width += out->k[s];
    }
    int64_t rows = width ? MAX_VALUES / width : 1;
    rows = rows < MIN_ROWS ? MIN_ROWS : rows > MAX_ROWS ? MAX_ROWS : rows;
    out->step = (int32_t)(((int64_t)n_tok + rows - 1) / rows);
    if (out->step < 1) out->step = 1;
    out->cap_rows = (int32_t)((n_tok + (size_t)out->step - 1) / (size_t)out->step);
    for (int s = 0; s < TN_N_SITES; s++) {
        if (!out->k[s]) continue;
        out->x[s] = tn_alloc(ctx, TN_MEM_OTHER, (size_t)out->cap_rows * (size_t)out->k[s], sizeof(float));
        if (out->x[s]) continue;
        tn_capture_close(out);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the inputs of a layer");
    }
    return TERN_OK;
}

void tn_capture_add(tn_capture *c, tn_site site, const float *x, size_t ldx, int32_t n_rows) {
    for (int32_t i = 0; i < n_rows && c->x[site]; i++) {
        if (c->seen[site]++ % c->step || c->rows[site] == c->cap_rows) continue;
        size_t k = (size_t)c->k[site];
        memcpy(c->x[site] + (size_t)c->rows[site]++ * k, x + (size_t)i * ldx, k * sizeof *x);
    }
}

void tn_capture_close(tn_capture *c) {
    for (int s = 0; s < TN_N_SITES && c->ctx; s++) tn_free(c->ctx, c->x[s]);
    *c = (tn_capture){0};
}
